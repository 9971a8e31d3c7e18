"""Time and chance, in one place so that tests can stand in for them."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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
