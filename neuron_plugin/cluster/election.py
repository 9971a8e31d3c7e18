"""Agreeing on one leader by a Lease, and on where that leader is reached.

A leader knows by its own clock when it must stop: ``renew_deadline`` after it began its last successful renewal, which
is before anybody else can have seen the lease run out. So there is no moment with two leaders, even if the leader's
process or machine was stopped in between.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from neuron_plugin.cluster.api import ApiError, ApiRequest, ApiServer, ClusterError, send
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.leases import LeaseName, Sighting, claim_lease, create_lease, release_lease, utc_now
from neuron_plugin.cluster.timing import CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from neuron_plugin.cluster.records import Lease

log = logging.getLogger(__name__)

_NO_RIGHTS = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of an election, in seconds; the defaults are kube-scheduler's.

    ``renew_deadline`` must be below ``duration``, and ``retry_period`` well below ``renew_deadline``.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline < self.duration:
            raise ValueError(f"lease terms {self} are unsafe, expected retry_period < renew_deadline < duration")


TERMS = Terms()


class Change(enum.Enum):
    """What happened to a candidate's leadership."""

    LOST = "lost"
    """It is the leader no more."""
    TAKEN = "taken"
    """It leads; what the last leader began may still take effect."""
    HANDED_OVER = "handed over"
    """It leads; the last leader had settled everything before it gave the lease up."""


class Observer(Protocol):
    """Who is told of an election's news."""

    def changed(self, change: Change) -> None:
        """Leadership was won or lost."""

    def heard(self, trouble: str) -> None:
        """The lease was read, and taken or renewed where that was due; or ``trouble`` says why not."""


class Election:
    """One candidate for leadership. Start ``run`` as a task and ask ``leading`` before every act of a leader.

    Being told of a loss may come late (the process may have been stopped); ``seconds_left`` never lies: an act that
    ends within it is over before anybody else can begin. ``settled`` is asked at the end, whether everything that was
    begun as the leader is over.
    """

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseName,
        observer: Observer,
        *,
        settled: Callable[[], bool],
        terms: Terms = TERMS,
        clock: Clock = CLOCK,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._lease = lease
        self._observer = observer
        self._settled = settled
        self._terms = terms
        self._clock = clock
        self._wall = wall
        self._sighting = Sighting()
        self._held: Lease | None = None
        self._rival: Lease | None = None
        self._handed_over = False
        self._until = float("-inf")
        self._told = False
        self._in_trouble = False

    @property
    def leading(self) -> bool:
        """Whether this candidate is the leader at this moment."""
        return self.seconds_left() > 0

    @property
    def leader_url(self) -> str:
        """Where another candidate that leads is reached; empty if none is known to.

        One that has missed two renewals is as good as none: who is sent there may wait in vain.
        """
        if self._rival is None or self.leading:
            return ""
        silent = self._sighting.age_seconds(self._clock.now()) > self._terms.renew_deadline / 2
        return "" if silent else self._rival.holder_url

    def seconds_left(self) -> float:
        """For how long it will be the leader even if no renewal succeeds; 0 if it is not."""
        return max(0.0, self._until - self._clock.now())

    async def run(self) -> NoReturn:
        """Stand for election until cancelled; then, as the leader, give the lease up."""
        try:
            while True:
                await self._take_turn()
                await self._clock.sleep(self._pause())
        finally:
            await self._step_down()

    async def _take_turn(self) -> None:
        """Try once, and never for so long that the end of our leadership would go unnoticed."""
        self._tell()
        begun = self._clock.now()
        patience = min(self.seconds_left() or self._terms.renew_deadline, self._terms.renew_deadline / 2)
        trouble = ""
        try:
            async with asyncio.timeout(patience):
                self._held = await self._try_to_hold(patience)
        except TimeoutError:
            trouble = f"no answer within {patience:g} s"
        except ClusterError as error:
            trouble = _trouble(error)
        else:
            self._until = begun + self._terms.renew_deadline if self._held else float("-inf")
        self._hear(trouble)
        self._tell()

    async def _try_to_hold(self, timeout_seconds: float) -> Lease | None:
        """Read the lease, and take or renew it if that is ours to do; None if it is somebody else's."""
        seen = await self._look(timeout_seconds)
        if self._rival is not None:
            return None
        self._handed_over = seen is not None and not seen.holder
        if seen is None:
            request = create_lease(self._lease, duration_seconds=self._terms.duration, now=self._wall())
        else:
            request = claim_lease(self._lease, seen, duration_seconds=self._terms.duration, now=self._wall())
        try:
            return LEASES.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        except ApiError as error:
            if error.conflict and await self._look(timeout_seconds) and self._rival is not None:
                return None  # it was faster, and is known now
            raise

    async def _look(self, timeout_seconds: float) -> Lease | None:
        """Read the lease and find out who else leads, if anybody does."""
        seen = await self._read(timeout_seconds)
        now = self._clock.now()
        if seen is not None:
            self._sighting.see(seen, now)
        # A lease that was deleted under a living leader is that leader's to make anew, at its next turn.
        other = self._rival if seen is None else seen
        theirs = other is not None and not self._lease.holds(other) and not self._sighting.expired(other, now)
        self._rival = other if theirs else None
        return seen

    async def _read(self, timeout_seconds: float) -> Lease | None:
        """Return the lease as it is; None if there is none."""
        request = ApiRequest("GET", self._lease.path)
        try:
            return LEASES.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        except ApiError as error:
            if error.missing:
                return None
            raise

    def _pause(self) -> float:
        """Until the next turn, with jitter for candidates that failed at the same time.

        The leader's end is not slept through.
        """
        pause = self._terms.retry_period * (1 + self._clock.chance() / 5)
        return min(pause, self.seconds_left()) if self.leading else pause

    async def _step_down(self) -> None:
        self._until = float("-inf")
        self._tell()
        if self._held is not None:
            try:
                async with asyncio.timeout(self._terms.retry_period):
                    await self._give_up(self._held)
            except (ClusterError, TimeoutError) as error:
                log.info("the lease was not given up", extra={"lease": self._lease.name, "error": repr(error)})

    async def _give_up(self, held: Lease) -> None:
        try:
            await self._release(held)
        except ApiError as error:
            if not error.conflict:
                raise
            # Most likely our own renewal that the end cut short.
            seen = await self._read(self._terms.retry_period)
            if seen is not None and self._lease.holds(seen):
                await self._release(seen)

    async def _release(self, held: Lease) -> None:
        request = release_lease(self._lease, held, now=self._wall(), settled=self._settled())
        await send(self._api, request, timeout_seconds=self._terms.retry_period)

    def _hear(self, trouble: str) -> None:
        """Log the first trouble of a row, and its end."""
        fields = {"lease": f"{self._lease.namespace}/{self._lease.name}"}
        if trouble and not self._in_trouble:
            log.warning("the leader's lease cannot be read or written", extra={**fields, "error": trouble})
        elif self._in_trouble and not trouble:
            log.info("the leader's lease can be read and written again", extra=fields)
        self._in_trouble = bool(trouble)
        self._observer.heard(trouble)

    def _tell(self) -> None:
        if self.leading == self._told:
            return
        self._told = self.leading
        won = Change.HANDED_OVER if self._handed_over else Change.TAKEN
        change = won if self._told else Change.LOST
        log.info("leadership changed", extra={"lease": self._lease.name, "leadership": change.value})
        self._observer.changed(change)


def _trouble(error: ClusterError) -> str:
    """What to tell people; nothing of another candidate that was faster."""
    if isinstance(error, ApiError):
        if error.conflict:
            return ""
        if error.status in _NO_RIGHTS:
            return f"{error}; is this account allowed to get, create and patch it?"
    return str(error)
