"""Leases: when a lease has expired, and the election of a leader by a lease.

Clocks of two machines are never compared. A lease has expired if *its observer* has seen no change of it for the
lease's duration, by the observer's own clock; the times in the lease are for people.

A leader stops by its own clock, ``renew_deadline`` after it began its last successful renewal. That is before any other
candidate can see the lease expire. So there are never two leaders, even if the leader's process or machine was
suspended.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn, Protocol

from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster.api import ApiError, ApiRequest, ApiServer, ClusterError, send
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName, claim_lease, create_lease, release_lease, utc_now

log = logging.getLogger(__name__)

LEADER_LEASE = "neuron-extender"
"""The Lease of the placement controller's leader."""
LEASE_PREFIX = "neuron-plugin-"
"""The name of the Lease of a node's plugin begins so; the node's name follows."""


MOST_TRIES = 5
"""Tries of one renewal if other writes come in between."""


class ObservedLease:
    """When one lease was last seen to change, by the observer's clock (client-go's ``observedTime``)."""

    def __init__(self) -> None:
        self._version = ""
        self._changed_at = 0.0

    def observe(self, lease: Lease, now: float) -> None:
        """Take the lease as it was read or watched at ``now``."""
        if lease.resource_version != self._version:
            self._version = lease.resource_version
            self._changed_at = now

    def age_seconds(self, now: float) -> float:
        """Seconds since the last seen change."""
        return now - self._changed_at

    def expired(self, lease: Lease, now: float) -> bool:
        """Whether the lease did not change for its whole duration, or has no holder."""
        return not lease.holder or self.age_seconds(now) >= lease.duration_seconds


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of an election, in seconds; the defaults are kube-scheduler's.

    ``renew_deadline`` must be below ``duration``, or two may lead; ``retry_period`` well below ``renew_deadline``.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0


TERMS = Terms()


class TermChange(enum.Enum):
    """What happened to a candidate's leadership."""

    LOST = "lost"
    """It is no longer the leader."""
    TAKEN = "taken"
    """It leads; writes of the last leader may still take effect."""
    HANDED_OVER = "handed over"
    """It leads; the last leader had finished all writes before it released the lease."""
    RESTARTED = "restarted"
    """It leads. The last leader was an earlier process of this holder. That process ended before this one began, and
    had led for longer than a term."""


class ElectionObserver(Protocol):
    """Follows an election."""

    def changed(self, change: TermChange) -> None:
        """Leadership was won or lost."""

    def heard(self, failure: str, leader: str) -> None:
        """The lease was read, and taken or renewed if due; ``failure`` is the error, or empty.

        ``leader`` is the other candidate that holds the lease, empty if none is known to lead.
        """


class Election:
    """One candidate for leadership. Start ``run`` as a task and ask ``leading`` before every act of a leader.

    The observer may be called late for a loss, as the process may have been suspended. ``seconds_left`` is always
    right: an act that ends within it is over before any other candidate can begin. At the end, ``settled`` says whether
    all acts of this leader are over.
    """

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseName,
        observer: ElectionObserver,
        *,
        settled: Callable[[], bool],
        terms: Terms = TERMS,
        clock: Clock = CLOCK,
        utc: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._lease = lease
        self._observer = observer
        self._settled = settled
        self._terms = terms
        self._clock = clock
        self._utc = utc
        self._observed = ObservedLease()
        self._other_leader: Lease | None = None
        self._change = TermChange.TAKEN
        self._has_led = False
        self._until = float("-inf")
        self._was_leading = False
        self._failing = False

    @property
    def leading(self) -> bool:
        """Whether this candidate is the leader at this moment."""
        return self.seconds_left() > 0

    def leader_annotation(self, key: str) -> str | None:
        """An annotation of the lease, as last read, if another candidate holds it; else None."""
        return None if self._other_leader is None or self.leading else self._other_leader.annotations.get(key, "")

    @property
    def leader_url(self) -> str:
        """The URL of another candidate that leads; empty if none is known to lead.

        Empty, too, for a leader that has missed two renewals: a redirected caller might wait in vain.
        """
        if self._other_leader is None or self.leading:
            return ""
        silent = self._observed.age_seconds(self._clock.now()) > self._terms.renew_deadline / 2
        return "" if silent else self._other_leader.holder_url

    def seconds_left(self) -> float:
        """How long it remains the leader if no renewal succeeds; 0 if it is not the leader."""
        return max(0.0, self._until - self._clock.now())

    async def run(self) -> NoReturn:
        """Take part in the election until cancelled; then release the lease if it is the leader."""
        try:
            while True:
                await self._take_turn()
                # Jitter for candidates that failed at the same time. A leader does not sleep through its own end.
                pause = self._terms.retry_period * (1 + self._clock.chance() / 5)
                await self._clock.sleep(min(pause, self.seconds_left()) if self.leading else pause)
        finally:
            self._until = float("-inf")
            self._notice_change()
            await self._give_up()

    async def _take_turn(self) -> None:
        """Try once, and end the try before our leadership ends."""
        self._notice_change()
        begun = self._clock.now()
        deadline = min(self.seconds_left() or self._terms.renew_deadline, self._terms.renew_deadline / 2)
        failure = ""
        try:
            async with asyncio.timeout(deadline):
                held = await self._hold(deadline)
            self._until = begun + self._terms.renew_deadline if held else float("-inf")
        except TimeoutError:
            failure = f"no answer within {deadline:g} s"
        except ClusterError as error:
            if not (isinstance(error, ApiError) and error.conflict):  # a conflict is none: another was faster
                failure = str(error)
        if bool(failure) != self._failing:
            self._failing = bool(failure)
            fields = {"lease": f"{self._lease.namespace}/{self._lease.name}"}
            if failure:
                log.warning("the leader's lease cannot be read or written", extra={**fields, "error": failure})
            else:
                log.info("the leader's lease can be read and written again", extra=fields)
        self._observer.heard(failure, self._other_leader.holder if self._other_leader else "")
        self._notice_change()

    async def _hold(self, timeout_seconds: float) -> bool:
        """Try to hold the lease; repeat if another write came in between.

        A leader also writes other parts of its Lease between renewals, many times a second while many groups arrive.
        """
        for _ in range(MOST_TRIES - 1):
            try:
                return await self._try_to_hold(timeout_seconds)
            except ApiError as error:
                if not error.conflict:
                    raise
        return await self._try_to_hold(timeout_seconds)

    async def _try_to_hold(self, timeout_seconds: float) -> bool:
        """Read the lease, and take or renew it if we may; whether we hold it now."""
        lease = await self._read(timeout_seconds)
        now = self._clock.now()
        if lease is not None:
            self._observed.observe(lease, now)
        # If the lease was deleted, only a living leader creates it again, at its next turn.
        other = lease or self._other_leader
        theirs = other is not None and not self._lease.holds(other) and not self._observed.expired(other, now)
        self._other_leader = other if theirs else None
        if theirs:
            return False
        self._change = self._term_change(lease)
        if lease is None:
            request = create_lease(self._lease, duration_seconds=self._terms.duration, now=self._utc())
        else:
            request = claim_lease(self._lease, lease, duration_seconds=self._terms.duration, now=self._utc())
        await send(self._api, request, timeout_seconds=timeout_seconds)
        return True

    def _term_change(self, lease: Lease | None) -> TermChange:
        """How leadership is won by taking ``lease``.

        All processes of one holder use the clock of one machine, so the time at which an earlier one acquired the lease
        can be compared.
        """
        if lease is not None and not lease.holder:
            return TermChange.HANDED_OVER
        if lease is None or self._has_led:
            return TermChange.TAKEN
        try:
            held = self._utc() - datetime.fromisoformat(lease.acquired_at)
        except (ValueError, TypeError):  # no time, or one without a zone: not written by us
            return TermChange.TAKEN
        is_restart = self._lease.holds(lease) and held.total_seconds() > self._terms.renew_deadline
        return TermChange.RESTARTED if is_restart else TermChange.TAKEN

    async def _read(self, timeout_seconds: float) -> Lease | None:
        """Read the lease; None if there is none."""
        request = ApiRequest("GET", self._lease.path)
        try:
            return LEASES.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def _give_up(self) -> None:
        """Release the lease if it is ours; repeat once if a cancelled renewal came in between."""
        seconds = self._terms.retry_period
        try:
            async with asyncio.timeout(seconds):
                while (lease := await self._read(seconds)) and self._lease.holds(lease):
                    request = release_lease(self._lease, lease, now=self._utc(), settled=self._settled())
                    try:
                        await send(self._api, request, timeout_seconds=seconds)
                    except ApiError as error:
                        if not error.conflict:
                            raise
                    else:
                        return
        except (ClusterError, TimeoutError) as error:
            log.info("the lease was not given up", extra={"lease": self._lease.name, "error": repr(error)})

    def _notice_change(self) -> None:
        """Report if leadership was won or lost since the last look."""
        if self.leading == self._was_leading:
            return
        self._was_leading = self.leading
        self._has_led |= self._was_leading
        change = self._change if self._was_leading else TermChange.LOST
        log.info("leadership changed", extra={"lease": self._lease.name, "leadership": change.value})
        self._observer.changed(change)
