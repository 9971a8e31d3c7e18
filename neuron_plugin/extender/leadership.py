"""Serving only as the leader, and only after the last one can have done nothing more.

A write that the previous leader sent at its last moment may land after this replica has the Lease. So a new leader
waits until that write's time is over, lists the pods consistently, and only then becomes ready. The other side is the
fence: no bind starts that could outlive this replica's own term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from neuron_plugin.cluster.api import ClusterError
from neuron_plugin.extender.readiness import Readiness

_log = logging.getLogger(__name__)

CONDITION = "leader"
NOT_LEADER = "another replica of the extender is the leader"
ALONE_LANDING_SECONDS = 0.7
_OUT_OF_TERM = "no bind now: the leader's lease was not renewed lately and may run out before the bind ends"
_TAKING_OVER = "taking over from the last leader"
_LIST_SECONDS = 60.0
_RETRY_SECONDS = 1.0


class Term(Protocol):
    """What is asked of an election."""

    def seconds_left(self) -> float:
        """For how long this replica is the leader even if no renewal succeeds."""


class Leadership:
    """Turns the election's news into readiness. ``list_pods`` brings the state to what the server knows now."""

    def __init__(
        self,
        readiness: Readiness,
        list_pods: Callable[[float], Awaitable[None]],
        *,
        landing_seconds: float,
    ) -> None:
        self._readiness = readiness
        self._list_pods = list_pods
        self._landing_seconds = landing_seconds
        self._leading = False
        self._news = asyncio.Event()

    def changed(self, leading: bool) -> None:  # noqa: FBT001 - the election's callback
        """Won or lost. Lost takes effect at once."""
        self._leading = leading
        if not leading:
            self._readiness.unmet(CONDITION, NOT_LEADER)
        self._news.set()

    async def run(self) -> None:
        """Take over each time the election is won, until cancelled."""
        while True:
            await self._news.wait()  # no deadline: a replica that never leads has nothing to do here
            self._news.clear()
            if self._leading:
                await self._take_over()

    async def _take_over(self) -> None:
        self._readiness.unmet(CONDITION, _TAKING_OVER)
        await asyncio.sleep(self._landing_seconds)
        while self._leading:
            try:
                await self._list_pods(_LIST_SECONDS)
            except ClusterError as error:
                _log.warning("taking over waits for a list of pods", extra={"cause": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                break
        if self._leading and not self._news.is_set():
            self._readiness.met(CONDITION)


async def lead_alone(readiness: Readiness) -> None:
    """Without an election: be the leader, once a predecessor that was killed can have done nothing more.

    Its connections ended with it, and the API server gives up requests whose connection is gone; the pause is for the
    write that it was just about to commit.
    """
    await asyncio.sleep(ALONE_LANDING_SECONDS)
    readiness.met(CONDITION)


def fence(readiness: Readiness, term: Term | None, write_seconds: float) -> Callable[[], str]:
    """Why no bind may start now: not ready, or the term (None: without end) may end before the write does."""

    def why_not() -> str:
        if reason := readiness.why_not:
            return reason
        return "" if term is None or term.seconds_left() > write_seconds else _OUT_OF_TERM

    return why_not
