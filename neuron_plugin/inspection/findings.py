"""What a check says: how bad, what was seen, why it matters and what to do. And what a check is.

A finding is made for somebody who did not write this program and has a node that does not work: everything but "ok"
says what to do next. A check that cannot be made is a note that says so, never silence and never a guess.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.unknown import Unknown

VERSION = 1


class Level(enum.StrEnum):
    """How bad, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; also a check that could not be made."""
    WARNING = "warning"
    """Works now; will hurt some pods, or later."""
    PROBLEM = "problem"
    """Pods do not get what they should. Only this makes the command fail."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that ``check`` found. ``checked`` is false where it could not look; ``seen`` then says why not."""

    check: str = ""
    level: Level
    checked: bool = True
    seen: str
    why: str = ""
    action: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it; ``worst`` is the worst level of all findings.

    The shape is a promise to scripts: keys are only added within a ``version``.
    """

    version: int = VERSION
    worst: Level
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A named question to the facts; ``looks_at`` is its line in the list of checks."""

    name: str
    looks_at: str
    ask: Callable[[Facts], Iterable[Finding]]


def ok(seen: str) -> Finding:
    """All is well here."""
    return Finding(level=Level.OK, seen=seen)


def note(seen: str, why: str = "", action: str = "") -> Finding:
    """Worth knowing."""
    return Finding(level=Level.NOTE, seen=seen, why=why, action=action)


def warning(seen: str, why: str, action: str) -> Finding:
    """Will hurt some pods, or later."""
    return Finding(level=Level.WARNING, seen=seen, why=why, action=action)


def problem(seen: str, why: str, action: str) -> Finding:
    """Pods do not get what they should."""
    return Finding(level=Level.PROBLEM, seen=seen, why=why, action=action)


def unchecked(unknown: Unknown) -> Finding:
    """It could not be looked at."""
    return Finding(level=Level.NOTE, seen=f"not checked: {unknown.why}", action=unknown.action, checked=False)


def or_ok(findings: Iterable[Finding], seen: str) -> Iterator[Finding]:
    """The findings, or that all is well if there are none."""
    nothing = True
    for finding in findings:
        nothing = False
        yield finding
    if nothing:
        yield ok(seen)


def report_of(findings: Iterable[Finding]) -> Report:
    """The findings as one document."""
    found, order = tuple(findings), list(Level)
    worst = max((finding.level for finding in found), key=order.index, default=Level.OK)
    return Report(worst=worst, findings=found)
