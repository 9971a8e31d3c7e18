"""Making a move: a set is reserved for a waiting pod, then the pods that are in its way are evicted.

The set is reserved first, in the same step that checks that the move is still possible, so nothing can take it while
its cores come free. The reservation ends when the pod is bound or gone, when the set stays unused, or when a device of
it gets sick. All evictions are tried without effect before the first one is made, because a move that a disruption
budget stops half way has cost a pod its work for nothing.

Each move is written into an annotation of the leader's Lease before its first eviction, and only the holder of the
Lease can write it. So the next leader knows what is reserved and for which pods a move was made lately. A move that was
cut off half way it does not go on with: it reserves nothing for it and evicts nothing more.
"""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.resources import parse_ids, ranges
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, Lease, LeaseName
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.writes import annotate_lease, evict_pod
from neuron_plugin.decision_log import DecisionLog, LoggedDecision, Step
from neuron_plugin.planning import PREEMPTION, Move, MoveRules, Relocation, still_possible
from neuron_plugin.scheduling.events import about_pod, write_event
from neuron_plugin.scheduling.history import Cause
from neuron_plugin.scheduling.leadership import CONDITION, Readiness
from neuron_plugin.scheduling.metrics import ExtenderMetrics
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.topology import CoreMask, cores_in

MOVES_KEY = "neuron-plugin.io/moves"
"""Annotation of the leader's Lease: the latest moves, as JSON."""

LONGEST_SECONDS = 1800.0
"""How long after its evictions a move is remembered: no second one for the same pod, and no longer reservation."""
UNUSED_SECONDS = 300.0
"""How long a set stays reserved once the pods that had it are gone."""
OWNER_SECONDS = 600.0
"""How long the pods of a controller are left alone after one of them was moved."""
REFUSED_SECONDS = 300.0
"""How long a pod is left alone after a budget has refused its eviction, and a waiting pod after a failed move."""
PREEMPT_AGAIN_SECONDS = 10.0
"""As the latter, of a pod that preempts: kube-scheduler's longest back-off (podMaxBackoffSeconds)."""

EVICTED_REASON = "NeuronEvictedForMove"
PREEMPTED_REASON = "NeuronPreempted"
RESERVED_REASON = "NeuronRoomReserved"

_TRIES = 3
"""Of a write that conflicts or fails."""
_PAUSE_SECONDS = 1.0
"""Between two tries."""
_MINUTE = 60.0
_TO_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
"""Statuses of an API server that is busy or starting."""
_log = logging.getLogger(__name__)


class MoveEnding(enum.StrEnum):
    """How a move ended; the label of its metric."""

    PLACED = "placed"
    """The waiting pod was bound to the node where room was made."""
    ELSEWHERE = "placed-elsewhere"
    POD_ENDED = "pod-ended"
    """The waiting pod was gone before it was bound."""
    EXPIRED = "expired"
    """The set stayed unused, or a device of it got sick."""
    REFUSED = "refused-by-budget"
    """A disruption budget did not allow an eviction."""
    FAILED = "failed"
    """The API server was away, the right to evict is missing, or another replica leads now."""


class MoveRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A move as the next leader finds it. ``cores`` are reserved on ``node``; ``at`` is in unix seconds.

    ``victims`` are UIDs. ``owners`` are their controllers, as NAMESPACE/KIND/NAME, unless they were preempted.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cores: str
    victims: tuple[str, ...]
    owners: tuple[str, ...]
    at: float

    @property
    def reservation(self) -> Reservation:
        """What is kept for the waiting pod."""
        mask = sum(1 << core for core in parse_ids(self.cores))
        return Reservation(PodReference(PodUid(self.uid), self.namespace, self.name), self.node, CoreMask(mask))


class Mover:
    """The moves of one replica: those under way, and those made lately. Only the leader makes any.

    ``instance`` is this replica's name. ``evictions_per_minute`` bounds what all moves together may do.
    ``unix_seconds`` is the time in records.
    """

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        readiness: Readiness,
        metrics: ExtenderMetrics,
        decisions: DecisionLog,
        *,
        lease: LeaseName,
        instance: str,
        rules: MoveRules,
        evictions_per_minute: int,
        clock: Clock = CLOCK,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._decisions = decisions
        self._lease = lease
        self._instance = instance
        self._rules = rules
        self._evictions_per_minute = evictions_per_minute
        self._clock = clock
        self._unix_seconds = unix_seconds
        self._records: dict[PodUid, MoveRecord] = {}
        self._free_since: dict[PodUid, float | None] = {}
        """Of the moves under way: since when the set is free; None while a victim has some of it."""
        self._failed_until: dict[tuple[PodUid, bool], float] = {}
        """By the waiting pod, and whether it was to preempt."""
        self._left_alone_until: dict[str, float] = {}
        """By controller."""
        self._protected_until: dict[PodUid, float] = {}
        self._evictions: deque[float] = deque()

    async def take_over(self) -> None:
        """Read what the last leader has moved, and go on reserving what it opened."""
        self._forget()
        try:
            lease = await self._read_lease()
            text = lease.annotations.get(MOVES_KEY, "[]")
            records = {record: record.reservation for record in msgspec.json.decode(text, type=tuple[MoveRecord, ...])}
        except (ClusterError, msgspec.MsgspecError, ValueError) as error:
            fields = {"lease": self._lease.path, "error": str(error)}
            _log.warning("what the last leader has reserved is not known", extra=fields)
            return
        now = self._unix_seconds()
        for record, reservation in records.items():
            for owner in record.owners:
                self._left_alone_until[owner] = self._clock.now() + OWNER_SECONDS - (now - record.at)
            pod = self._state.pods.get(reservation.pod.uid)
            if pod is None or pod.place or now >= record.at + LONGEST_SECONDS:
                continue
            self._records[pod.uid] = record
            victims = (self._state.pods.get(PodUid(uid)) for uid in record.victims)
            if all(victim is None or victim.terminating for victim in victims):
                self._free_since[pod.uid] = None
                self._state.reserve(reservation)

    def tend(self) -> None:
        """End the reservations that are used, not needed or useless; all of them once another replica leads."""
        if self._readiness.conditions[CONDITION]:
            self._forget()
            return
        now, unix_now = self._clock.now(), self._unix_seconds()
        self._failed_until = {attempt: until for attempt, until in self._failed_until.items() if until > now}
        self._left_alone_until = {owner: until for owner, until in self._left_alone_until.items() if until > now}
        self._protected_until = {uid: until for uid, until in self._protected_until.items() if until > now}
        for uid, record in list(self._records.items()):
            pod, is_old = self._state.pods.get(uid), unix_now >= record.at + LONGEST_SECONDS
            if uid in self._free_since:
                if pod is None:
                    self._end(record, MoveEnding.POD_ENDED)
                elif pod.place:
                    self._end(record, MoveEnding.PLACED if pod.place == record.node else MoveEnding.ELSEWHERE)
                elif is_old or self._is_useless(record):
                    self._end(record, MoveEnding.EXPIRED)
                else:
                    continue
            if pod is None or pod.place or is_old:
                del self._records[uid]

    def may_move_for(self, uid: PodUid, *, preempting: bool = False) -> bool:
        """Whether no room was made for this pod lately, and no attempt has failed; it may preempt after a move."""
        record = self._records.get(uid)
        is_first = record is None or (preempting and bool(record.owners))  # only moves have owners
        return is_first and (uid, preempting) not in self._failed_until

    def left_alone(self, pods: Iterable[NeuronPod]) -> set[PodUid]:
        """Those of some pods of whose controller a pod was moved lately."""
        if not (known := self._left_alone_until):
            return set()
        return {pod.uid for pod in pods if owner_of(pod) in known}

    @property
    def protected(self) -> frozenset[PodUid]:
        """The pods whose eviction a budget has refused lately."""
        return frozenset(self._protected_until)

    async def make(self, move: Move) -> bool:
        """Reserve the set and evict the victims; whether all of them go."""
        now, pod = self._clock.now(), move.pod.reference
        while self._evictions and self._evictions[0] <= now - _MINUTE:
            self._evictions.popleft()
        too_many = len(self._evictions) + len(move.victims) > self._evictions_per_minute and not move.preempts
        if too_many or not self._is_possible(move):
            return False
        self._state.reserve(Reservation(pod, move.node, move.mask))
        victims = [self._state.pods[victim.pod.uid] for victim in move.victims]
        record = MoveRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=move.node,
            cores=ranges(cores_in(move.mask)),
            victims=tuple(victim.uid for victim in victims),
            owners=() if move.preempts else tuple(sorted(set(map(owner_of, victims)))),
            at=self._unix_seconds(),
        )
        self._free_since[pod.uid] = None
        self._records[pod.uid] = record
        failure = await self._evict_all(move, dry_run=True) or await self._write_records()
        may_try_again = move.preempts or failure is not None  # of a move that was begun there is no second one
        if not failure:
            for owner in record.owners:
                self._left_alone_until[owner] = now + OWNER_SECONDS
            failure = await self._evict_all(move)
        if failure:
            if may_try_again:
                self._records.pop(pod.uid, None)
                if failure is MoveEnding.FAILED:
                    pause = PREEMPT_AGAIN_SECONDS if move.preempts else REFUSED_SECONDS
                    self._failed_until[pod.uid, move.preempts] = self._clock.now() + pause
            self._end(record, failure)
            return False
        if (info := self._state.nodes.get(move.node)) and info.inventory:
            self._metrics.devices_opened.inc(len(info.inventory.geometry.devices_touched(move.mask)))
        names = ", ".join(str(victim.pod.reference) for victim in move.victims)
        evicted = f"Evicted {names}: cores" if names else "Cores"
        note = f"{evicted} {record.cores} of node {move.node} are reserved for this pod."
        await write_event(self._api, about_pod(pod), RESERVED_REASON, note, self._instance, warning=False)
        return True

    async def _evict_all(self, move: Move, *, dry_run: bool = False) -> MoveEnding | None:
        """Evict the victims; how the move ends if one of them stays."""
        for victim in move.victims:
            if failure := await self._evict(victim, move, dry_run=dry_run):
                if failure is MoveEnding.REFUSED:
                    self._protected_until[victim.pod.uid] = self._clock.now() + REFUSED_SECONDS
                return failure
        return None

    async def _evict(self, victim: Relocation, move: Move, *, dry_run: bool = False) -> MoveEnding | None:
        """Evict a pod, or try it without effect. One that is gone already makes room, too."""
        pod = victim.pod.reference
        request = evict_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, dry_run=dry_run)
        for _ in range(_TRIES):
            # Not once another replica leads, nor once the waiting pod has been bound or has ended.
            if self._readiness.why_not or move.pod.uid not in self._state.reserved:
                return MoveEnding.FAILED
            try:
                await send(self._api, request, timeout_seconds=REQUEST_SECONDS)
            except ClusterError as error:
                if isinstance(error, ApiError) and (error.missing or (error.conflict and "UID" in error.message)):
                    return None
                fields = {"pod": str(pod), "uid": pod.uid, "for": str(move.pod.reference), "error": str(error)}
                _log.warning("not evicted", extra=fields)
                if isinstance(error, ApiError):
                    if "disruption" in error.message.lower():
                        return MoveEnding.REFUSED
                    if not error.conflict and error.status not in _TO_TRY_AGAIN:
                        return MoveEnding.FAILED
                await self._clock.sleep(_PAUSE_SECONDS)
            else:
                if not dry_run:
                    if not move.preempts:
                        self._evictions.append(self._clock.now())
                    await self._report_eviction(victim, move)
                return None
        return MoveEnding.FAILED

    async def _report_eviction(self, victim: Relocation, move: Move) -> None:
        pod, waiting = victim.pod.reference, move.pod.reference
        fields = {"pod": str(pod), "uid": pod.uid, "node": victim.source, "for": str(waiting)}
        _log.warning("evicted to make room", extra=fields)
        self._metrics.evictions.inc()
        cause = Cause.MOVE if victim.target else Cause.PREEMPTION
        self._state.history.evicted(cause, pod, victim.source, waiting, victim.target)
        reason, note = EVICTED_REASON, f"Evicted to make room for pod {waiting} on node {move.node}."
        if victim.target:
            note = f"{note} Node {victim.target} has a set for this one."
        else:
            reason = PREEMPTED_REASON
        await write_event(self._api, about_pod(pod), reason, note, self._instance, warning=False)
        if (info := self._state.nodes.get(victim.source)) and info.inventory:
            made = (round(self._unix_seconds() * 1e9), Step.EVICTED, info.name, info.inventory.geometry)
            why = f"makes room for pod {waiting}"
            for allocation in info.ledger.by_pod.get(pod.uid, ()):
                had = partial(int, allocation.mask)
                self._decisions.record(
                    LoggedDecision(*made, allocation.resource, allocation.mask, why, pod, allocation.container, had)
                )

    async def _write_records(self) -> MoveEnding | None:
        """Write all records into the Lease, if this replica holds it."""
        text = msgspec.json.encode(list(self._records.values())).decode()
        for _ in range(_TRIES):
            try:
                lease = await self._read_lease()
                if not self._lease.holds(lease):
                    return MoveEnding.FAILED
                request = annotate_lease(self._lease, lease, {MOVES_KEY: text})
                await send(self._api, request, timeout_seconds=REQUEST_SECONDS)
            except ClusterError as error:
                if not (isinstance(error, ApiError) and error.conflict):  # the Lease was renewed in between
                    _log.warning(
                        "no move: it cannot be recorded", extra={"lease": self._lease.path, "error": str(error)}
                    )
                    return MoveEnding.FAILED
            else:
                return None
        return MoveEnding.FAILED

    async def _read_lease(self) -> Lease:
        return LEASES.decode(
            await send(self._api, ApiRequest("GET", self._lease.path), timeout_seconds=REQUEST_SECONDS)
        )

    def _is_possible(self, move: Move) -> bool:
        """Whether the move can still be made: it was found in a state of some tenths of a second ago."""
        waits = not self._state.bound_to(move.pod.uid) and move.pod.uid not in self._state.assumed
        alone = self.left_alone(victim.pod for victim in move.victims)
        cluster = self._state.cluster(left_alone=alone, protected=self.protected)
        return waits and still_possible(cluster, move, PREEMPTION if move.preempts else self._rules)

    def _is_useless(self, record: MoveRecord) -> bool:
        """Whether a device of the reserved set got sick, or the set has been free and unused for too long."""
        uid, info = PodUid(record.uid), self._state.nodes.get(record.node)
        mask = record.reservation.mask
        if info is None or info.inventory is None or mask & ~info.inventory.healthy_mask:
            return True
        if mask & info.used_mask:
            self._free_since[uid] = None
            return False
        now, since = self._clock.now(), self._free_since[uid]
        self._free_since[uid] = now if since is None else since
        return since is not None and now >= since + UNUSED_SECONDS

    def _end(self, record: MoveRecord, ending: MoveEnding) -> None:
        uid = PodUid(record.uid)
        self._metrics.moves.labels(ending.value).inc()
        fields = {"pod": f"{record.namespace}/{record.name}", "uid": uid, "node": record.node, "ending": ending.value}
        _log.info("move ended", extra=fields)
        self._free_since.pop(uid, None)
        self._state.release(uid)

    def _forget(self) -> None:
        for uid in self._free_since:
            self._state.release(uid)
        self._records.clear()
        self._free_since.clear()
        self._left_alone_until.clear()
        self._protected_until.clear()


def owner_of(pod: NeuronPod) -> str:
    """The pod's controller, as NAMESPACE/KIND/NAME."""
    return f"{pod.reference.namespace}/{pod.controller}"
