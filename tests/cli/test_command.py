from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from neuron_plugin.cli.command import (
    OBJECTS,
    REPORT,
    CommandError,
    Exit,
    Form,
    Parser,
    UsageError,
    add_command,
    add_output_flag,
    complain,
    document,
    in_order,
    on_terminal,
    print_lines,
    printable,
    program,
    show,
    table,
)
from neuron_plugin.cli.main import build_parser


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


WITHOUT_DOCUMENTS = {
    "neuron-plugin completion",  # a script for a shell
    *("neuron-plugin describe", "neuron-plugin describe node", "neuron-plugin describe pod"),  # pages for people
    "neuron-plugin demo",  # a story; its log and machine are kept with --keep
    "neuron-plugin extender",  # a daemon: --log-format, --print-config
    "neuron-plugin playground",  # a cluster to try: its nodes and pods are shown by nodes, pods and kubectl
    "neuron-plugin playground fault",
    "neuron-plugin playground run",
    "neuron-plugin run",  # a daemon, too
    "neuron-plugin simulate",  # its actions have them
    "neuron-plugin simulate fault",  # prints nothing: see what became of it with devices
}


class Sample(msgspec.Struct, rename="camel"):
    some_ids: tuple[int, ...]
    who: str | None


@pytest.mark.parametrize("content", [Sample((1, 2), None), {"someIds": [1, 2], "who": None}])
def test_json_and_yaml_say_the_same(content: object) -> None:
    assert json.loads(document(Form.JSON, content)) == yaml.safe_load(document(Form.YAML, content))
    assert document(Form.JSON, content).endswith("\n}\n")


@pytest.mark.parametrize(("forms", "expected"), [(REPORT, "text"), (OBJECTS, "yaml")])
def test_the_first_form_is_the_default_and_an_unknown_one_is_refused(
    forms: tuple[Form, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_output_flag(parser, forms)
    assert parser.parse_args([]).output == expected
    with pytest.raises(SystemExit):
        parser.parse_args(["-o", "xml"])
    assert "json" in capsys.readouterr().err


def commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Every command below ``parser`` but the many kinds of a fault."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += [command, *([] if command.prog.endswith(" DIR") else commands(command))]
    return found


def test_every_command_with_something_to_tell_tells_it_to_scripts() -> None:
    without = {
        command.prog.removesuffix(" DIR")
        for command in commands(build_parser())
        if not any("--output" in action.option_strings for action in command._actions)
    }
    kinds_of_faults = ("neuron-plugin simulate fault ", "neuron-plugin playground fault ")
    assert {command for command in without if not command.startswith(kinds_of_faults)} == WITHOUT_DOCUMENTS


HEADERS = ("DEVICE", "HOLDERS")


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)


def joined(headers: tuple[str, ...], *rows: tuple[str, ...]) -> list[str]:
    return ["".join(text for text, _ in line) for line in table([dict(zip(headers, row, strict=True)) for row in rows])]


def test_columns_stand_under_their_headers() -> None:
    assert joined(HEADERS, ("0", "a/b/c"), ("11", "d")) == [
        "DEVICE  HOLDERS",
        "0       a/b/c",
        "11      d",
    ]


def test_an_empty_cell_is_a_dash_so_that_awk_counts_right() -> None:
    assert joined(("A", "B", "C"), ("", "x", "")) == ["A  B  C", "-  x  -"]


def test_a_table_without_rows_has_no_headers_and_a_bare_one_never() -> None:
    assert table([]) == []
    assert table([{"A": ("x", "red")}], bare=True) == [[("x", "red")]]


def test_a_long_row_is_one_line_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(table([{"DEVICE": "0", "HOLDERS": "x" * 500}]))
    assert capsys.readouterr().out.splitlines()[1] == "0       " + "x" * 500


RED, PLAIN = "\x1b[31mbad\x1b[0m plain\n", "bad plain\n"
COLOURS = {
    "a terminal gets colour": ({}, RED),
    "one that wants none gets no escape at all": ({"NO_COLOR": "1"}, PLAIN),
    "nor one that can none": ({"TERM": "dumb"}, PLAIN),
    "an empty NO_COLOR is as good as none": ({"NO_COLOR": ""}, RED),
    "where no terminal is there is no colour, and rich is not needed": (None, PLAIN),
}


@pytest.mark.parametrize(("terminal", "printed"), COLOURS.values(), ids=COLOURS)
def test_colour_is_for_terminals_that_want_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: dict[str, str] | None, printed: str
) -> None:
    if terminal is not None:
        pretend_terminal(monkeypatch)
        for variable, value in terminal.items():
            monkeypatch.setenv(variable, value)
    print_lines([[("bad", "red"), (" plain", "")]])
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("text", ["[gpu]", "[/dev/neuron0]", "pod[2,3]"])
def test_brackets_are_text_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    pretend_terminal(monkeypatch)
    print_lines(table([{"DEVICE": "0", "HOLDERS": text}]))
    assert text in capsys.readouterr().out


def test_a_terminal_narrower_than_a_row_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    print_lines(table([{"DEVICE": "0", "HOLDERS": "default/a-rather-long-name/main"}]))
    assert "default/a-rather-long-name/main\n" in capsys.readouterr().out


def test_control_characters_in_a_cell_are_replaced() -> None:
    assert joined(("A",), ("\x1b[2J",))[1] == "\N{REPLACEMENT CHARACTER}[2J"


def test_a_captured_stdout_is_no_terminal() -> None:
    assert not on_terminal()


@pytest.mark.parametrize(("form", "printed"), [("text", "a line\n"), ("json", '{\n  "a": 1\n}\n'), ("yaml", "a: 1\n")])
def test_the_form_decides_between_lines_and_the_document(
    capsys: pytest.CaptureFixture[str], form: str, printed: str
) -> None:
    show(form, {"a": 1}, [[("a line", "")]])
    assert capsys.readouterr().out == printed


def test_that_there_is_nothing_is_said_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    show("text", {}, [], nothing="no pod waits")
    assert capsys.readouterr() == ("", "neuron-plugin: no pod waits\n")


def test_items_are_in_the_order_of_a_field_whatever_it_holds() -> None:
    items = [{"a": {"b": value}} for value in ("n-10", None, "n-9", 3, [1, 2], {"x": 1})]
    ordered = [item["a"]["b"] for item in in_order([*items, {}], ".a.b") if item]
    assert ordered == [None, {"x": 1}, [1, 2], 3, "n-9", "n-10"]
    assert in_order(items, "") == tuple(items)
    assert in_order([], ".nosuch") == ()


@pytest.mark.parametrize("typed", ["./neuron-plugin", ".venv/bin/neuron-plugin"])
def test_a_hint_names_the_program_as_it_was_typed(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(sys, "argv", [typed])
    assert program() == typed


def test_a_hint_is_short_where_the_program_is_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "neuron-plugin").write_text("#!/bin/sh\n")
    (tmp_path / "neuron-plugin").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "neuron-plugin")])
    assert program() == "neuron-plugin"
    monkeypatch.setattr(sys, "argv", ["/somewhere/main.py"])
    subprocess.run([*program().split(), "--version"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves
