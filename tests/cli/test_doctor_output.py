from __future__ import annotations

import json

import msgspec
import pytest
import yaml

from neuron_plugin.cli.command import Exit
from neuron_plugin.cli.doctor_output import show, status_of
from neuron_plugin.cli.output import Form
from neuron_plugin.inspection.checks.table import CHECKS
from neuron_plugin.inspection.findings import Finding, Level, note, ok, problem, report_of, unchecked, warning
from neuron_plugin.inspection.unknown import Unknown

DRIVER, DEVICES = CHECKS[0].name, CHECKS[1].name


def examined(*findings: Finding, check: str = DRIVER) -> list[Finding]:
    return [msgspec.structs.replace(finding, check=check) for finding in findings]


def text_of(capsys: pytest.CaptureFixture[str], found: list[Finding]) -> list[str]:
    show(Form.TEXT, report_of(found))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (ok("fine"), Exit.FINE),
        (note("by the way"), Exit.FINE),
        (unchecked(Unknown("no permission")), Exit.FINE),
        (warning("hm", "because", "do"), Exit.FINE),
        (problem("no", "because", "do"), Exit.TROUBLE),
    ],
)
def test_only_a_problem_is_trouble(finding: Finding, status: Exit) -> None:
    assert status_of(report_of(examined(ok("fine"), finding, ok("fine")))) is status


def test_the_worst_level_is_told() -> None:
    assert report_of(examined(warning("a", "b", "c"), problem("a", "b", "c"), ok("a"))).worst is Level.PROBLEM
    assert report_of([]).worst is Level.OK


def test_a_finding_is_one_line_to_grep_with_reason_and_remedy_below(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text_of(capsys, examined(problem("it is broken", "it matters", "mend it")))
    assert [line.split(maxsplit=2) for line in lines[:3]] == [
        ["problem", "driver", "it is broken"],
        ["why", "it", "matters"],
        ["do", "mend", "it"],
    ]
    assert lines[0].index("it is") == lines[1].index("it matters") == lines[2].index("mend")


def test_what_findings_in_a_row_have_in_common_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    twice = [warning("one", "because", "mend"), warning("two", "because", "mend"), warning("three", "so", "mend")]
    words = [line.split()[0] for line in text_of(capsys, examined(*twice)) if line]
    assert words[:-1] == ["warning", "warning", "why", "warning", "why", "do"]


def test_the_same_remedy_of_two_checks_is_said_twice_unless_they_could_not_be_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = unchecked(Unknown("no kubelet", "start it"))
    lines = text_of(capsys, [*examined(unknown), *examined(unknown, check=DEVICES)])
    assert sum("start it" in line for line in lines) == 1
    broken = problem("no", "", "start it")
    lines = text_of(capsys, [*examined(broken), *examined(broken, check=DEVICES)])
    assert sum("start it" in line for line in lines) == 2


def test_on_a_terminal_no_line_is_longer_than_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = text_of(capsys, examined(problem("it is broken", "because " * 30, "mend it " * 30)))
    assert max(map(len, lines)) <= 80
    assert sum("because" in line for line in lines) > 1


@pytest.mark.parametrize(
    ("findings", "summary"),
    [
        ([ok("a"), ok("b")], "no problem, 2 ok"),
        ([problem("a", "b", "c"), ok("b")], "1 problem, 1 ok"),
        ([warning("a", "b", "c"), note("x"), unchecked(Unknown("y"))], "no problem, 1 warning, 2 notes, 0 ok (1 not"),
    ],
)
def test_the_last_line_sums_up(capsys: pytest.CaptureFixture[str], findings: list[Finding], summary: str) -> None:
    assert text_of(capsys, examined(*findings))[-1].startswith(summary)


def test_nothing_that_was_found_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in "".join(text_of(capsys, examined(problem("\x1b[2J", "\x1b", "\x07"))))


def test_json_and_yaml_are_one_document_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(examined(unchecked(Unknown("no permission", "run this as root"))))
    show(Form.JSON, report)
    as_json = json.loads(capsys.readouterr().out)
    show(Form.YAML, report)
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert as_json == {
        "version": 1,
        "worst": "note",
        "findings": [
            {
                "check": "driver",
                "level": "note",
                "checked": False,
                "seen": "not checked: no permission",
                "why": "",
                "action": "run this as root",
            }
        ],
    }
