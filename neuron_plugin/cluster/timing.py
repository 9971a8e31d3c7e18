"""Time and chance, in one place so that tests can stand in for them, and how long to wait before trying again.

Waits double with jitter, so that a thousand nodes that lost their API server at the same moment do not all come back at
the same moment.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_GROWTH = 2.0
_LEAST_SHARE = 0.5


def steady_seconds() -> float:
    """Seconds that only go forward, also while the machine sleeps.

    Linux's monotonic clock stands still in a suspended machine: a leader that was put to sleep would wake up with its
    term unspent, long after another has taken over.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


@dataclass(frozen=True, slots=True)
class Clock:
    """``now`` in seconds that only go forward, ``sleep``, and ``chance`` from 0 to 1."""

    now: Callable[[], float] = steady_seconds
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


CLOCK = Clock()
"""The real one."""


class Backoff:
    """Waits that double from ``first_seconds`` to ``limit_seconds``, each cut at random to a half or more of it."""

    def __init__(self, first_seconds: float, limit_seconds: float, chance: Callable[[], float]) -> None:
        self._first = first_seconds
        self._limit = limit_seconds
        self._chance = chance
        self._next = first_seconds

    def step(self) -> float:
        """Return the seconds to wait now, and make the next wait longer."""
        whole = self._next
        self._next = min(self._limit, whole * _GROWTH)
        return whole * (_LEAST_SHARE + (1 - _LEAST_SHARE) * self._chance())

    def reset(self) -> None:
        """It went well for a while: start small again."""
        self._next = self._first
