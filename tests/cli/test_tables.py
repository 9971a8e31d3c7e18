from __future__ import annotations

import sys

import pytest

from neuron_plugin.cli.tables import clear_terminal, folded, on_terminal, print_lines, print_table, table_lines

HEADERS = ("DEVICE", "HOLDERS")


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)


def joined(headers: tuple[str, ...], rows: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(text for text, _ in line) for line in table_lines(headers, rows)]


def test_columns_stand_under_their_headers() -> None:
    assert joined(HEADERS, [[("0", ""), ("a/b/c", "")], [("11", ""), ("d", "")]]) == [
        "DEVICE  HOLDERS",
        "0       a/b/c",
        "11      d",
    ]


def test_an_empty_cell_is_a_dash_so_that_awk_counts_right() -> None:
    assert joined(("A", "B", "C"), [[("", ""), ("x", ""), ("", "")]]) == ["A  B  C", "-  x  -"]


def test_a_long_row_is_one_line_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADERS, [[("0", ""), ("x" * 500, "")]])
    assert capsys.readouterr().out.splitlines()[1] == "0       " + "x" * 500


def test_the_title_is_for_people_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    print_table(HEADERS, [[("0", ""), ("x", "")]], title="the machine")
    assert "the machine" not in capsys.readouterr().out
    pretend_terminal(monkeypatch)
    print_table(HEADERS, [[("0", ""), ("x", "")]], title="the machine")
    assert "the machine" in capsys.readouterr().out


def test_no_colour_where_no_terminal_is_and_rich_is_not_needed(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([[("red", "red"), (" plain", "")]])
    assert capsys.readouterr().out == "red plain\n"


def test_a_terminal_gets_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_terminal(monkeypatch)
    print_lines([[("bad", "red"), (" plain", "")]])
    assert capsys.readouterr().out == "\x1b[31mbad\x1b[0m plain\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colour_gets_no_escape_at_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setenv(variable, value)
    print_lines([[("bad", "bold red"), (" plain", "")]])
    assert capsys.readouterr().out == "bad plain\n"


def test_an_empty_no_color_is_as_good_as_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "")
    print_lines([[("bad", "red")]])
    assert capsys.readouterr().out == "\x1b[31mbad\x1b[0m\n"


@pytest.mark.parametrize("text", ["[gpu]", "[/dev/neuron0]", "pod[2,3]"])
def test_brackets_are_text_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    pretend_terminal(monkeypatch)
    print_table(HEADERS, [[("0", ""), (text, "")]])
    assert text in capsys.readouterr().out


def test_a_terminal_narrower_than_a_row_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    print_table(HEADERS, [[("0", ""), ("default/a-rather-long-name/main", "")]])
    assert "default/a-rather-long-name/main\n" in capsys.readouterr().out


def test_control_characters_in_a_cell_are_replaced() -> None:
    assert joined(("A",), [[("\x1b[2J", "")]])[1] == "\N{REPLACEMENT CHARACTER}[2J"


def test_a_captured_stdout_is_no_terminal() -> None:
    assert not on_terminal()


def test_clearing_starts_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    clear_terminal()
    assert capsys.readouterr().out == "\x1b[2J\x1b[H"


def test_prose_is_folded_below_itself() -> None:
    line = [("do  ", "dim"), ("run 'udevadm trigger' and look again", "bold")]
    assert folded(line, 28) == [
        [("do  ", "dim"), ("run 'udevadm trigger'", "bold")],
        [("    ", ""), ("and look again", "bold")],
    ]


def test_a_terminal_too_narrow_for_prose_gets_it_as_it_is() -> None:
    line = [("a long heading  ", ""), ("and some words", "")]
    assert folded(line, 30) == [line]
