"""Waiting: the clock, chance, what is looked at again and again, and how long to wait before trying again.

All retries wait by one rule: exponentially, bounded and with jitter. With the jitter, a thousand nodes that lose their
API server at one moment do not all come back at one moment.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
"""Between two starts of a job that fails."""
NEVER = float("inf")
"""In place of seconds: only an event is a reason to look."""

steady_seconds: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
)
"""Seconds that only go forward, also while the machine sleeps.

Linux's monotonic clock stops while a machine is suspended: a resumed leader would still believe in its term, long after
another has taken over.
"""


@dataclass(frozen=True, slots=True)
class Clock:
    """``now`` in seconds that only go forward, ``sleep``, and ``chance`` from 0 to 1; tests replace each."""

    now: Callable[[], float] = steady_seconds
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


CLOCK = Clock()
"""The real clock."""


class Backoff:
    """Delays that double from ``first_seconds`` up to ``longest_seconds``, each cut at random by up to half.

    ``chance`` gives numbers from 0 to 1, such as ``random.random``.
    """

    def __init__(self, chance: Callable[[], float], *, first_seconds: float, longest_seconds: float) -> None:
        self._chance = chance
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._delay_seconds = first_seconds

    def next_seconds(self) -> float:
        """The next delay."""
        delay = self._delay_seconds
        self._delay_seconds = min(delay * 2, self._longest_seconds)
        return delay * (1 + self._chance()) / 2

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._delay_seconds = self._first_seconds


async def every(
    seconds: float | Callable[[], float],
    look: Callable[[], Awaitable[None] | None],
    woken: asyncio.Event | None = None,
) -> NoReturn:
    """Look, and again after ``seconds`` or once ``woken`` is set, until cancelled.

    This is the frame of a watcher in both daemons. ``woken`` is cleared before each look, so no news is lost. A
    function in place of ``seconds`` is asked after each look.
    """
    woken = woken or asyncio.Event()
    while True:
        woken.clear()
        if (looking := look()) is not None:
            await looking
        pause = seconds() if callable(seconds) else seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(None if pause == NEVER else pause):
                await woken.wait()


async def keep_running(name: str, job: Callable[[], Awaitable[None]], *, clock: Clock = CLOCK) -> None:
    """Run ``job`` until it returns; after an error of any kind log it, wait and run it again.

    An unforeseen error of one job must not end its daemon. The wait grows with each error, and is one second again once
    the job has run for longer than the longest wait.
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(clock.chance, first_seconds=1.0, longest_seconds=LONGEST_PAUSE_SECONDS)
    while True:
        began = loop.time()
        try:
            return await job()
        except Exception:
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                backoff.reset()
            pause = backoff.next_seconds()
            logger.exception("a job failed and is started again", extra={"job": name, "in_seconds": pause})
        await asyncio.sleep(pause)
