from __future__ import annotations

import pytest

from neuron_plugin.cli.command import CommandError, Exit, Parser, UsageError, add_command, complain, printable


def parser_with_a_command(**texts: str) -> Parser:
    parser = Parser(prog="tool")
    subparsers = parser.add_subparsers(dest="command")
    add_command(subparsers, "look", lambda _arguments: 7, summary="look at it", **texts)
    return parser


def test_a_command_is_run_by_its_function() -> None:
    arguments = parser_with_a_command().parse_args(["look"])
    assert arguments.command == "look"
    assert arguments.run(arguments) == 7


def test_the_summary_is_the_description_until_there_is_a_longer_one(capsys: pytest.CaptureFixture[str]) -> None:
    for texts, expected in (({}, "Look at it."), ({"description": "All about looking"}, "All about looking")):
        with pytest.raises(SystemExit):
            parser_with_a_command(**texts).parse_args(["look", "--help"])
        assert f"\n{expected}\n" in capsys.readouterr().out


def test_examples_are_indented_and_come_before_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_with_a_command(examples="\ntool look\n\ntool look twice\n").parse_args(["look", "--help"])
    out = capsys.readouterr().out
    assert "examples:\n  tool look\n\n  tool look twice\n\nexit status:" in out


def test_an_error_names_the_command_whose_help_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_with_a_command().parse_args(["look", "--at"])
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err == "neuron-plugin: unrecognized arguments: --at; see: tool look --help\n"


def test_a_complaint_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    complain("first\n  second\tthird\x07")
    assert capsys.readouterr().err == "neuron-plugin: first second third\N{REPLACEMENT CHARACTER}\n"


def test_unusable_arguments_have_another_status_than_failure() -> None:
    assert (CommandError.status, UsageError.status) == (1, 2)


def test_characters_that_steer_a_terminal_are_replaced() -> None:
    assert printable("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c"


def test_ordinary_text_stays_as_it_is() -> None:
    assert printable("default/träin-0[2,3]") == "default/träin-0[2,3]"
