"""Room for waiting pods: reservations, and evictions that make room.

A set is reserved first, in the same step that checks that the move is still possible, so nothing can take it while its
cores come free. Then the pods in its way are evicted, as many at a time as disruption budgets allow. A move that needs
more goes in stages: it holds the free cores, and goes on when the budget allows. After a while the cores are given
back, and pods of that kind then wait before another try. A move is not begun where its budget cannot recover.

``group_places`` keeps places for groups; their records are written here with the others, in one write for all.

Each record is written into an annotation of the leader's Lease, before the first eviction. Only the holder of the Lease
can write it, so the next leader knows the reservations. It does not continue a move that was cut off half way: it
reserves nothing for it and evicts nothing more.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError, LeaseName
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.writes import annotate_lease, evict_pod
from neuron_plugin.decision_log import LoggedDecision, Step
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.group_places import GroupPlaces
from neuron_plugin.placement.history import Cause
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.placement.reserves import (
    RECORDS_KEY,
    ReserveRecord,
    cores_text,
    is_sick,
    read_records,
    see_reserves,
    write_records,
)
from neuron_plugin.placement.writer import Outcome, Writer
from neuron_plugin.planning import PREEMPTION, RULES, Move, MoveRules, Relocation
from neuron_plugin.planning.population import PodKind

MOST_READS = 10
"""Reads of the records by a new leader: without them, half-placed groups may lose the rest of their places."""
READ_AGAIN_SECONDS = 1.0
_MINUTE = 60.0
_log = logging.getLogger(__name__)


class MoveEnding(enum.StrEnum):
    """How a move ended; the label of its metric."""

    PLACED = "placed"
    """The waiting pod was bound to the node where room was made."""
    ELSEWHERE = "placed-elsewhere"
    POD_ENDED = "pod-ended"
    """The waiting pod was gone before it was bound."""
    EXPIRED = "expired"
    """The set stayed unused, or a device of it got sick, or its budget did not allow the rest in time."""
    REFUSED = "refused-by-budget"
    """A disruption budget did not allow the first eviction."""
    FAILED = "failed"
    """The API server was away, the right to evict is missing, or another replica leads now."""


@dataclass
class _Staged:
    """A move under way, and the victims that are still to be evicted."""

    move: Move
    kind: PodKind
    left: deque[Relocation]
    said: str = ""


class Room:
    """The reserves and moves of one replica. Only the leader makes any.

    ``lease`` keeps the records; without it there is no election, nothing is written and no pod is evicted.
    ``evictions_per_minute`` bounds all moves together.
    """

    def __init__(
        self,
        context: Context,
        writer: Writer,
        *,
        lease: LeaseName | None = None,
        rules: MoveRules = RULES,
        evictions_per_minute: int = 4,
    ) -> None:
        self._context = context
        self._state = context.state
        self._writer = writer
        self._lease = lease
        self._rules = rules
        self._evictions_per_minute = evictions_per_minute
        self._records: dict[str, ReserveRecord] = {}
        self._staged: dict[PodUid, _Staged] = {}
        self._shown: dict[str, Reservation] = {}
        """The reservations of another leader, as its Lease says."""
        self._free_since: dict[str, float | None] = {}
        """By reservation for a pod: since when the set is free; None while a victim has some of it."""
        self._failed_until: dict[tuple[PodKind, bool], float] = {}
        """By kind of the waiting pod, and whether it was to preempt: when the next attempt is allowed."""
        self._left_alone_until: dict[str, float] = {}
        """By controller: until when its pods are not moved."""
        self._protected_until: dict[PodUid, float] = {}
        self._evictions: deque[float] = deque()
        self._writing = asyncio.Lock()
        self._written = ""
        """The records as they stand in the Lease; empty if unknown."""
        self._why_not_written = ""
        self.places = GroupPlaces(context)

    @property
    def may_evict(self) -> bool:
        """Whether this replica may evict at all."""
        return self._lease is not None

    # Taking over, and the end of reservations.

    async def take_over(self) -> None:
        """Read the last leader's reservations, and keep the sets that it opened."""
        for key, reservation in self._shown.items():
            if self._state.reserved.get(key) is reservation:
                self._state.release(key)
        self._shown.clear()
        self._forget()
        if self._lease is None:
            return
        records = await self._last_records(self._lease)
        now, times = self._context.unix_seconds(), self._context.times
        for record, reservation in records.items():
            for owner in record.owners:
                self._left_alone_until[owner] = self._context.clock.now() + times.moved - (now - record.at)
            if record.group:
                self.places.take_over(record)
                continue
            pod = self._state.pods.get(reservation.pod.uid)
            if pod is None or pod.place or now >= record.at + times.longest:
                continue
            self._records[record.uid] = record
            victims = (self._state.pods.get(PodUid(uid)) for uid in record.victims)
            if all(victim is None or victim.terminating for victim in victims):
                self._keep(record)

    async def _last_records(self, lease: LeaseName) -> dict[ReserveRecord, Reservation]:
        """The last leader's records; read again for a while if the API server does not answer."""
        reads = 0
        while True:
            try:
                written = LEASES.decode(await self._read_lease(lease)).annotations.get(RECORDS_KEY, "[]")
                records, self._written = read_records(written), written
            except (ClusterError, ValueError) as error:
                reads += 1
                may_answer = isinstance(error, ClusterError) and not (isinstance(error, ApiError) and error.withheld)
                if reads > MOST_READS or not may_answer:
                    fields = {"lease": lease.path, "error": str(error)}
                    _log.warning("the last leader's reserves are not known", extra=fields)
                    return {}
            else:
                return records
            await self._context.clock.sleep(READ_AGAIN_SECONDS)

    def _keep(self, record: ReserveRecord) -> None:
        self._records[record.uid] = record
        self._free_since[record.uid] = None
        self._state.reserve(record.reservation)

    async def tend(self) -> None:
        """End reservations that are used, not needed or useless; all of them once another replica leads.

        The other leader's reservations are shown then: people may ask any replica.
        """
        if self._context.ready.conditions.get(CONDITION):
            self._forget()
            election = self._context.election
            if election and (text := election.leader_annotation(RECORDS_KEY)) is not None:
                see_reserves(self._state, text)
                self._shown = dict(self._state.reserved)
            return
        await self.places.tend()
        now, unix_now = self._context.clock.now(), self._context.unix_seconds()
        self._failed_until = {key: until for key, until in self._failed_until.items() if until > now}
        self._left_alone_until = {owner: until for owner, until in self._left_alone_until.items() if until > now}
        self._protected_until = {uid: until for uid, until in self._protected_until.items() if until > now}
        for key, record in list(self._records.items()):
            pod, is_old = self._state.pods.get(PodUid(key)), unix_now >= record.at + self._longest(key)
            if key in self._free_since:
                if pod is None:
                    self._end(record, MoveEnding.POD_ENDED)
                elif pod.place:
                    self._end(record, MoveEnding.PLACED if pod.place == record.node else MoveEnding.ELSEWHERE)
                elif is_old or self._is_useless(record):
                    await self._give_back(record, pod)
                else:
                    await self._go_on(pod)
                    continue
            if pod is None or pod.place or is_old:
                self._records.pop(key, None)
        await self.record()

    def _longest(self, key: str) -> float:
        """How long a move may take: less while it waits for budgets than while victims end."""
        staged, times = self._staged.get(PodUid(key)), self._context.times
        return times.stages if staged and staged.left else times.longest

    def _is_useless(self, record: ReserveRecord) -> bool:
        """Whether a device of the reserved set got sick, or the set has been free and unused for too long."""
        info = self._state.nodes.get(record.node)
        if info is None or is_sick(self._state, record):
            return True
        if record.reservation.mask & info.used_mask:
            self._free_since[record.uid] = None
            return False
        now, since = self._context.clock.now(), self._free_since[record.uid]
        self._free_since[record.uid] = now if since is None else since
        return since is not None and now >= since + self._context.times.unused

    def _end(self, record: ReserveRecord, ending: MoveEnding) -> None:
        self._context.metrics.add("extender_moves_total", ending.value)
        fields = {"pod": f"{record.namespace}/{record.name}", "uid": record.uid, "node": record.node}
        _log.info("move ended", extra={**fields, "ending": ending.value})
        self._free_since.pop(record.uid, None)
        self._staged.pop(PodUid(record.uid), None)
        self._state.release(record.uid)

    def _forget(self) -> None:
        for key in [*self._free_since]:
            self._state.release(key)
        for table in (self._records, self._staged, self._free_since, self._left_alone_until, self._protected_until):
            table.clear()
        self._written = ""
        self.places.forget()

    # Which pods may be moved, and for which.

    def may_move_for(self, pod: NeuronPod, *, preempting: bool = False) -> bool:
        """Whether no room was made for this pod lately, and no attempt for its kind failed.

        It may preempt after a move.
        """
        record = self._records.get(pod.uid)
        is_first = record is None or (preempting and bool(record.owners))  # only moves have owners
        return is_first and (PodKind.of(pod), preempting) not in self._failed_until

    def left_alone(self, pods: Iterable[NeuronPod]) -> set[PodUid]:
        """The pods whose controller had a pod moved lately."""
        if not (known := self._left_alone_until):
            return set()
        return {pod.uid for pod in pods if pod.owner in known}

    @property
    def protected(self) -> frozenset[PodUid]:
        """The pods whose eviction the API server has refused lately, although no known budget forbids it."""
        return frozenset(self._protected_until)

    # Making room.

    async def make(self, move: Move) -> bool:
        """Reserve the set and evict the victims, as far as budgets allow now; gives whether the move is under way."""
        now, pod, kind = self._context.clock.now(), move.pod.reference, PodKind.of(move.pod)
        while self._evictions and self._evictions[0] <= now - _MINUTE:
            self._evictions.popleft()
        too_many = len(self._evictions) + len(move.victims) > self._evictions_per_minute and not move.preempts
        if self._lease is None or too_many or not self._is_possible(move):
            return False
        victims = [self._state.pods[victim.pod.uid] for victim in move.victims]
        record = ReserveRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=move.node,
            cores=cores_text(move.mask),
            victims=tuple(victim.uid for victim in victims),
            owners=() if move.preempts else tuple(sorted({victim.owner for victim in victims})),
            at=self._context.unix_seconds(),
        )
        self._keep(record)
        self._staged[pod.uid] = _Staged(move, kind, deque(move.victims))
        tried = await self._try_first(move)
        if tried is None and not await self.record():
            tried = MoveEnding.FAILED
        if tried:
            self._fail(record, tried, move)
            return False
        for owner in record.owners:
            self._left_alone_until[owner] = now + self._context.times.moved
        names = ", ".join(str(victim.pod.reference) for victim in move.victims)
        evicted = f"Evicting {names}: cores" if names else "Cores"
        note = f"{evicted} {record.cores} of node {move.node} are reserved for this pod."
        await self._context.report(pod, EventReason.ROOM_RESERVED, note, warning=False)
        if (info := self._state.nodes.get(move.node)) and info.inventory:
            opened = len(info.inventory.geometry.devices_touched(move.mask))
            self._context.metrics.add("extender_devices_opened_total", count=opened)
        await self._go_on(move.pod)
        return pod.uid in self._staged

    async def _try_first(self, move: Move) -> MoveEnding | None:
        """Try, as a dry run, the evictions that budgets allow now; gives how the move ends if they fail.

        A move in stages is begun only if some victim can be evicted at once.
        """
        later = {victim.uid for pods in self._beyond(move.victims).values() for victim in pods}
        refused, can_begin = list[PodUid](), not move.victims
        for victim in move.victims:
            attempt = await self._evict(victim, dry_run=True)
            if attempt is Outcome.UNKNOWN:
                return MoveEnding.FAILED
            can_begin |= attempt is Outcome.DONE
            if attempt is Outcome.REFUSED:
                refused.append(victim.pod.uid)
        if can_begin and later.issuperset(refused):
            return None
        until = self._context.clock.now() + self._context.times.retry
        self._protected_until.update(dict.fromkeys(refused, until))
        return MoveEnding.REFUSED

    def _beyond(self, victims: Iterable[Relocation]) -> dict[Budget, list[NeuronPod]]:
        pods = [known for victim in victims if (known := self._state.pods.get(victim.pod.uid))]
        return Budget.beyond(self._state.budgets.values(), pods)

    async def _go_on(self, pod: NeuronPod) -> None:
        """Evict the victims of a move that may be evicted now; the others wait for their budgets."""
        staged = self._staged.get(pod.uid)
        if staged is None or not staged.left:
            return
        for victim in list(staged.left):
            if pod.uid not in self._state.reserved:
                return
            known = self._state.pods.get(victim.pod.uid)
            if known and not known.terminating:
                attempt = await self._evict(victim)
                if attempt is not Outcome.DONE:
                    continue  # its budget, or the API server: looked at again with the next tick
                self._note_eviction(victim, staged.move)
                await self._report_eviction(victim, staged.move)
            staged.left.remove(victim)
        if staged.left and not staged.said:
            waiting = ", ".join(str(victim.pod.reference) for victim in staged.left)
            staged.said = f"The evictions of {waiting} wait for their disruption budgets; what is free is kept."
            await self._context.report(pod.reference, EventReason.ROOM_RESERVED, staged.said, warning=False)

    async def _give_back(self, record: ReserveRecord, pod: NeuronPod) -> None:
        """End a move that took too long, and let pods of that kind wait before another."""
        staged = self._staged.get(pod.uid)
        if staged:
            self._failed_until[staged.kind, staged.move.preempts] = (
                self._context.clock.now() + self._context.times.stages
            )
        self._end(record, MoveEnding.EXPIRED)
        left = [str(victim.pod.reference) for victim in staged.left] if staged else []
        why = f"disruption budgets did not allow the eviction of {', '.join(left)}" if left else "it was not used"
        note = f"Cores {record.cores} of node {record.node} are not reserved for this pod any more: {why}."
        await self._context.report(pod.reference, EventReason.ROOM_GIVEN_BACK, note)
        for victim in staged.move.victims if staged else ():
            if left and str(victim.pod.reference) not in left:
                text = f"The eviction of this pod did not make room for pod {pod.reference} after all: {why}."
                await self._context.report(victim.pod.reference, EventReason.ROOM_GIVEN_BACK, text)

    def _fail(self, record: ReserveRecord, ending: MoveEnding, move: Move) -> None:
        self._records.pop(record.uid, None)
        if ending is MoveEnding.FAILED:
            until = self._context.clock.now() + self._context.times.retry
            self._failed_until[PodKind.of(move.pod), move.preempts] = until
        self._end(record, ending)

    async def _evict(self, victim: Relocation, *, dry_run: bool = False) -> Outcome:
        """Evict a pod, or try it as a dry run. A pod that is gone already makes room, too."""
        pod = victim.pod.reference
        request = evict_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, dry_run=dry_run)
        attempt = await self._writer.send(request, timeout_seconds=self._context.times.request)
        error = attempt.error
        if isinstance(error, ApiError) and (error.missing or (error.conflict and "UID" in error.message)):
            return Outcome.DONE
        if error:
            _log.warning("not evicted", extra={"pod": str(pod), "uid": pod.uid, "error": str(error)})
        if attempt.status == HTTPStatus.TOO_MANY_REQUESTS:
            return Outcome.REFUSED
        return Outcome.DONE if attempt.done else Outcome.UNKNOWN

    def _note_eviction(self, victim: Relocation, move: Move) -> None:
        if not move.preempts:
            self._evictions.append(self._context.clock.now())
        self._context.metrics.add("extender_evictions_total")
        cause = Cause.MOVE if victim.target else Cause.PREEMPTION
        pod, waiting = victim.pod.reference, move.pod.reference
        self._state.history.evicted(cause, pod, victim.source, waiting, victim.target)
        if (info := self._state.nodes.get(victim.source)) and info.inventory:
            made = (self._context.unix_ns(), Step.EVICTED, info.name, info.inventory.geometry)
            why = f"makes room for pod {waiting}"
            for allocation in info.ledger.by_pod.get(pod.uid, ()):
                had = partial(int, allocation.mask)
                self._context.decisions.record(
                    LoggedDecision(*made, allocation.resource, allocation.mask, why, pod, allocation.container, had)
                )

    async def _report_eviction(self, victim: Relocation, move: Move) -> None:
        pod, waiting = victim.pod.reference, move.pod.reference
        fields = {"pod": str(pod), "uid": pod.uid, "node": victim.source, "for": str(waiting)}
        _log.warning("evicted to make room", extra=fields)
        reason, note = EventReason.PREEMPTED, f"Evicted to make room for pod {waiting} on node {move.node}."
        if victim.target:
            reason, note = EventReason.EVICTED_FOR_MOVE, f"{note} Node {victim.target} has a set for this one."
        await self._context.report(pod, reason, note, warning=False)

    def _is_possible(self, move: Move) -> bool:
        """Whether the move can still be made: it was found in a state of some tenths of a second ago."""
        waits = not self._state.bound_to(move.pod.uid) and move.pod.uid not in self._state.assumed
        alone = self.left_alone(victim.pod for victim in move.victims)
        cluster = replace(self._state.scene().cluster, left_alone=alone, protected=self.protected)
        return waits and move.is_possible(cluster, PREEMPTION if move.preempts else self._rules)

    # The records.

    async def record(self) -> bool:
        """Write all records into the Lease, if this replica holds it; gives whether they stand there."""
        if self._lease is None:
            return True
        async with self._writing:  # callers that wait here find their records already written
            text = write_records([*self._records.values(), *self.places.records.values()])
            if text == self._written:
                return True
            self._written = ""
            why_not = await self._write(self._lease, text)
            if why_not and why_not != self._why_not_written:  # it is tried again with each tick
                _log.warning("reserves not recorded", extra={"lease": self._lease.path, "error": why_not})
            self._why_not_written = why_not
            self._written = "" if why_not else text
            return not why_not

    async def _write(self, lease: LeaseName, text: str) -> str:
        """Write the records; empty, or why they may not stand there."""
        why_not = ""
        for _ in range(3):
            try:
                seen = LEASES.decode(await self._read_lease(lease))
            except ClusterError as error:
                return str(error)
            if not lease.holds(seen):
                return "this replica does not hold it"
            attempt = await self._writer.send(
                annotate_lease(lease, seen, {RECORDS_KEY: text}), timeout_seconds=self._context.times.request
            )
            why_not = str(attempt.error or "")
            if attempt.status != HTTPStatus.CONFLICT:  # else the Lease was renewed in between
                break
        return why_not

    async def _read_lease(self, lease: LeaseName) -> bytes:
        return await send(self._context.api, ApiRequest("GET", lease.path), timeout_seconds=self._context.times.request)
