"""What an inspection says: facts that are not known, and findings of ``doctor``.

A finding is written for somebody who does not know this program and has a node that does not work: everything but "ok"
says what to do next. A check that could not look is a note that says so; it is never silent and never guesses.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be learned: why not, and what would help. The inspection goes on without it."""

    why: str
    action: str = ""


class NotCheckedError(Exception):
    """A check needs a fact that is ``unknown``."""

    def __init__(self, unknown: Unknown) -> None:
        self.unknown = unknown


def known(fact: _Fact | Unknown) -> _Fact:
    """The fact, for a check that can say nothing without it.

    Raises:
        NotCheckedError: it is not known.
    """
    if isinstance(fact, Unknown):
        raise NotCheckedError(fact)
    return fact


def known_or(fact: _Fact | Unknown, default: _Fact) -> _Fact:
    """The fact, or ``default`` where it is not known."""
    return default if isinstance(fact, Unknown) else fact


class Level(enum.StrEnum):
    """How bad, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; also a check that could not look."""
    WARNING = "warning"
    """Works now; will hurt some pods, or later."""
    PROBLEM = "problem"
    """Pods do not get what they should. Only this makes the command fail."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that ``check`` found. ``checked`` is false where it could not look; ``seen`` then says why."""

    check: str = ""
    level: Level
    checked: bool = True
    seen: str
    why: str = ""
    action: str = ""


Findings: TypeAlias = Generator[Finding, None, str]
"""A check under way: it yields its findings, and returns the text of "ok" in case there are none."""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All findings; ``worst`` is the worst level among them. Within a ``version`` keys are only added."""

    version: int = 1
    worst: Level
    findings: tuple[Finding, ...]


def ok(seen: str) -> Finding:
    """Nothing is wrong here."""
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
    """The check could not look."""
    return Finding(level=Level.NOTE, seen=f"not checked: {unknown.why}", action=unknown.action, checked=False)


_FOR_ROOT = {
    "run this as root; in a pod it takes": "root is not enough here: it takes",
    "run this as root on": "root is not enough here: run this on",
    "run this as root": "root is not enough here: run this on the node itself, or give it CAP_DAC_READ_SEARCH",
}
"""Advice for root, who lacks a capability or looks from inside a container."""


def report_of(findings: Iterable[Finding], *, as_root: bool = False) -> Report:
    """The findings as one document; ``as_root``: the reader is root already."""
    listed, order = tuple(findings), list(Level)
    for words, instead in _FOR_ROOT.items() if as_root else ():  # no text has two of them
        listed = tuple(
            msgspec.structs.replace(finding, action=finding.action.replace(words, instead)) for finding in listed
        )
    return Report(worst=max((finding.level for finding in listed), key=order.index, default=Level.OK), findings=listed)
