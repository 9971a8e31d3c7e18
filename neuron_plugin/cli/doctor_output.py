"""How ``doctor`` tells what it found: lines for people, one document for scripts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from neuron_plugin.cli.command import Exit
from neuron_plugin.cli.output import Form, document
from neuron_plugin.cli.tables import Segment, folded, on_terminal, print_lines, print_table
from neuron_plugin.inspection.checks.table import CHECKS
from neuron_plugin.inspection.findings import Finding, Level, Report
from neuron_plugin.inspection.text import plural, printable

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "bold yellow", Level.PROBLEM: "bold red"}
_LEVEL_WIDTH = max(len(level.value) for level in Level) + 2
_NAME_WIDTH = max(len(check.name) for check in CHECKS) + 2


def status_of(report: Report) -> Exit:
    """The exit status: only a problem is trouble."""
    return Exit.TROUBLE if report.worst is Level.PROBLEM else Exit.FINE


def show(form: Form, report: Report) -> None:
    """Print it."""
    if form is Form.TEXT:
        lines = [*_all_lines(report), [("", "")], _summary(report)]
        columns = shutil.get_terminal_size().columns
        print_lines([part for line in lines for part in folded(line, columns)] if on_terminal() else lines)
    else:
        print(document(form, report), end="")


def show_checks() -> None:
    """Print what is checked."""
    print_table(("CHECK", "IS FINE WHEN"), [((check.name, ""), (check.looks_at, "")) for check in CHECKS])


def _all_lines(report: Report) -> Iterator[list[Segment]]:
    """A line to ``grep`` for each finding, reason and remedy below it.

    What several findings in a row have in common is said once, below the last of them; and so is a remedy for several
    checks that could not be made.
    """
    said: set[str] = set()
    for finding, following in zip_longest(report.findings, report.findings[1:]):
        yield _line(finding)
        same_action = following and (following.check, following.action) == (finding.check, finding.action)
        if not (same_action and following.why == finding.why):
            yield from _below("why", finding.why)
        if not same_action and (finding.checked or finding.action not in said):
            yield from _below("do", finding.action)
            said.add(finding.action)


def _line(finding: Finding) -> list[Segment]:
    level = (finding.level.value.ljust(_LEVEL_WIDTH), _STYLES[finding.level])
    return [level, (finding.check.ljust(_NAME_WIDTH), ""), (printable(finding.seen), "")]


def _below(label: str, text: str) -> Iterator[list[Segment]]:
    if text:
        yield [(" " * _LEVEL_WIDTH, ""), (label.rjust(4).ljust(_NAME_WIDTH), "dim"), (printable(text), "")]


def _summary(report: Report) -> list[Segment]:
    counts = Counter(finding.level for finding in report.findings)
    unchecked = sum(not finding.checked for finding in report.findings)
    told = [
        plural(counts[Level.PROBLEM], "problem") if counts[Level.PROBLEM] else "no problem",
        *(plural(counts[level], level.value) for level in (Level.WARNING, Level.NOTE) if counts[level]),
        f"{counts[Level.OK]} ok",
    ]
    return [(", ".join(told) + (f" ({unchecked} not checked)" if unchecked else ""), _STYLES[report.worst])]
