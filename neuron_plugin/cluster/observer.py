"""Who counts what a reflector does, for metrics."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Told of events as they happen; must not block or raise."""

    def listed(self, kind: str, records: int, seconds: float) -> None:
        """A whole list is in, of which so many records were kept."""

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:
        """A list or watch ended: ``end``, ``expired``, ``refused``, ``unreachable`` or ``unreadable``."""


class Unobserved:
    """Nobody counts."""

    def listed(self, kind: str, records: int, seconds: float) -> None:
        """See ``Observer``."""

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:
        """See ``Observer``."""


UNOBSERVED = Unobserved()
