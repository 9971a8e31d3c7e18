"""Leases: saying that one is alive, and agreeing on one leader.

Nobody compares clocks here. A lease has run out when *its observer* has seen no change of it for the lease's duration,
on the observer's own clock; the times inside it are for people. Likewise a leader knows by its own clock when it must
stop: ``renew_deadline`` after it began its last successful renewal, which is before anybody else can have seen the
lease run out. So there is no moment with two leaders, even if the leader's process was stopped in between.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from neuron_plugin.cluster.api import MERGE_PATCH, ApiError, ApiRequest, ApiServer, ClusterError, JsonObject, send
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.timing import CLOCK, Clock
from neuron_plugin.cluster.writes import micro_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_plugin.cluster.records import Lease, ObjectReference

log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the wall clock's time, for people to read."""
    return datetime.now(UTC)


class Sighting:
    """When one lease was last seen to change, by the observer's clock."""

    def __init__(self) -> None:
        self._version = ""
        self._changed_at = 0.0

    def see(self, lease: Lease, now: float) -> None:
        """Take what was read or watched at ``now``."""
        if lease.resource_version != self._version:
            self._version = lease.resource_version
            self._changed_at = now

    def expired(self, lease: Lease, now: float) -> bool:
        """Whether it was left alone for its whole duration, or is held by nobody."""
        return not lease.holder or now - self._changed_at >= lease.duration_seconds


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which lease, and who writes it. ``owner`` (a node, say) takes the lease with it when it is deleted."""

    namespace: str
    name: str
    holder: str
    owner: ObjectReference | None = None

    @property
    def path(self) -> str:
        """The path of the lease."""
        return LEASES.item(self.name, self.namespace)


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


def create_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Make a lease that is held from the start."""
    metadata: JsonObject = {"name": lease.name, "namespace": lease.namespace}
    if lease.owner is not None:
        owner = lease.owner
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        ]
    body: JsonObject = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": _held(lease.holder, duration_seconds, now) | {"acquireTime": micro_timestamp(now)},
    }
    return ApiRequest("POST", LEASES.collection(lease.namespace), body=body)


def renew_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Say "still alive" without reading first: right where the holder is the only writer, as of a node's own lease."""
    spec = _held(lease.holder, duration_seconds, now)
    return ApiRequest("PATCH", lease.path, body={"spec": spec}, content_type=MERGE_PATCH)


def claim_lease(lease: LeaseName, seen: Lease, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Take or renew the lease as it was ``seen``: the version makes it a 409 if anybody else wrote since."""
    spec = _held(lease.holder, duration_seconds, now)
    if seen.holder != lease.holder:
        spec |= {"acquireTime": micro_timestamp(now), "leaseTransitions": seen.transitions + 1}
    return _guarded(lease, seen, spec)


def release_lease(lease: LeaseName, seen: Lease, *, now: datetime) -> ApiRequest:
    """Give the lease up, so that another need not wait it out."""
    return _guarded(lease, seen, _held("", 1, now))


def _held(holder: str, duration_seconds: float, now: datetime) -> JsonObject:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": round(duration_seconds),
        "renewTime": micro_timestamp(now),
    }


def _guarded(lease: LeaseName, seen: Lease, spec: JsonObject) -> ApiRequest:
    metadata: JsonObject = {"resourceVersion": seen.resource_version, "uid": seen.uid}
    return ApiRequest("PATCH", lease.path, body={"metadata": metadata, "spec": spec}, content_type=MERGE_PATCH)


class Election:
    """One candidate for leadership. Start ``run`` as a task and ask ``leading`` before every act of a leader.

    ``on_change`` is told True and False. Being told False may come late (the process may have been stopped);
    ``seconds_left`` never lies: an act that ends within it is over before anybody else can begin.
    """

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseName,
        *,
        terms: Terms = TERMS,
        on_change: Callable[[bool], None],
        clock: Clock = CLOCK,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._lease = lease
        self._terms = terms
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self._sighting = Sighting()
        self._held: Lease | None = None
        self._until = float("-inf")
        self._told = False

    @property
    def leading(self) -> bool:
        """Whether this candidate is the leader at this moment."""
        return self.seconds_left() > 0

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
        try:
            async with asyncio.timeout(patience):
                self._held = await self._try_to_hold(patience)
        except (ClusterError, TimeoutError) as error:
            log.info("the lease was not renewed or read", extra={"lease": self._lease.name, "error": repr(error)})
        else:
            self._until = begun + self._terms.renew_deadline if self._held else float("-inf")
        self._tell()

    async def _try_to_hold(self, timeout_seconds: float) -> Lease | None:
        """Read the lease, and take or renew it if that is ours to do; None if it is somebody else's."""
        try:
            seen = LEASES.decode(
                await send(self._api, ApiRequest("GET", self._lease.path), timeout_seconds=timeout_seconds)
            )
        except ApiError as error:
            if not error.missing:
                raise
            request = create_lease(self._lease, duration_seconds=self._terms.duration, now=self._wall())
        else:
            now = self._clock.now()
            self._sighting.see(seen, now)
            if seen.holder != self._lease.holder and not self._sighting.expired(seen, now):
                return None
            request = claim_lease(self._lease, seen, duration_seconds=self._terms.duration, now=self._wall())
        return LEASES.decode(await send(self._api, request, timeout_seconds=timeout_seconds))

    def _pause(self) -> float:
        """Until the next turn, with jitter for candidates that failed at the same time.

        The leader's end is not slept through.
        """
        pause = self._terms.retry_period * (1 + self._clock.chance() / 5)
        return min(pause, self.seconds_left()) if self.leading else pause

    async def _step_down(self) -> None:
        held, leading = self._held, self.leading
        self._until = float("-inf")
        self._tell()
        if held is not None and leading:
            request = release_lease(self._lease, held, now=self._wall())
            try:
                await send(self._api, request, timeout_seconds=self._terms.retry_period)
            except ClusterError as error:
                log.info("the lease was not given up", extra={"lease": self._lease.name, "error": str(error)})

    def _tell(self) -> None:
        if self.leading != self._told:
            self._told = self.leading
            log.info("leadership changed", extra={"lease": self._lease.name, "leading": self._told})
            self._on_change(self._told)
