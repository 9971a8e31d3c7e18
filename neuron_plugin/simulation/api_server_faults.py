"""Trouble on purpose: what the stand-in API server can be told to do wrong, to which requests, and how often."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests: all by default. ``path`` is a regular expression found anywhere in the path."""

    method: str = ""
    path: str = ""
    watch: bool | None = None

    def meets(self, method: str, path: str, *, watch: bool) -> bool:
        """Whether a request is meant."""
        if self.method and self.method != method:
            return False
        if self.watch is not None and self.watch != watch:
            return False
        return re.search(self.path, path) is not None


@dataclass(slots=True)
class Fault:
    """One trouble, for the next ``times`` requests that match.

    In this order: the request is held until ``gate`` is set, and ``delay_seconds``; ``drop`` cuts the connection
    before anything is done, ``status`` refuses instead of doing it (``retry_after_seconds`` goes with it);
    ``lose_answer`` does it and cuts the connection, which is how a write comes to be done though its writer was told
    nothing; ``ends`` answers a watch with 200 and ends it at once; ``body`` answers 200 with these bytes.
    """

    match: Match = field(default_factory=Match)
    times: int = 1
    gate: asyncio.Event | None = None
    delay_seconds: float = 0.0
    drop: bool = False
    status: int = 0
    retry_after_seconds: int | None = None
    lose_answer: bool = False
    ends: bool = False
    body: bytes | None = None


class Faults:
    """The troubles that are still to come."""

    def __init__(self) -> None:
        self._pending: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Have it happen."""
        self._pending.append(fault)

    def clear(self) -> None:
        """Have none of them happen any more."""
        self._pending.clear()

    def take(self, method: str, path: str, *, watch: bool) -> Fault | None:
        """Return the first that is meant for this request, and count it."""
        for fault in self._pending:
            if fault.match.meets(method, path, watch=watch):
                fault.times -= 1
                if fault.times <= 0:
                    self._pending.remove(fault)
                return fault
        return None
