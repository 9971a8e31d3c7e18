"""What the kubelet is answered: which ids it should prefer, and what a container gets for its ids.

Allocate names no pod. So the ids are the token: a set that a scheduler assigned to one pod is given once, and the
kubelet is asked to draw exactly those ids. Two equal pods can at worst swap sets, never share one.

GetPreferredAllocation may wait for the API server, for the kubelet's record and for ended pods' processes. Allocate
answers from memory; it waits for the same only before it would refuse. A refusal ends its pod for good, and a
ReplicaSet replaces that pod at once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from neuron_plugin.allocation import (
    REMEMBERED,
    DecisionLog,
    LoggedDecision,
    NeuronPod,
    PodReference,
    PodUid,
    Rejection,
    Resource,
    Step,
    choose,
    format_ids,
    ids_of,
    is_constrained,
    mask_of,
    masks_by_id,
    place,
)
from neuron_plugin.kubelet import AllocationRefusedError, ContainerAllocation
from neuron_plugin.plugin.container import container_allocation, container_style
from neuron_plugin.plugin.counters import Counters, Latencies
from neuron_plugin.plugin.inputs import ALLOCATION_KEY, PendingAnswer, reply_for
from neuron_plugin.plugin.node import Node
from neuron_plugin.plugin.settings import PluginSettings, TopologyPolicy
from neuron_plugin.plugin.snapshot import PodEvent, PodWrite, Snapshot, WaitingAssignment, derive, named
from neuron_plugin.topology import NO_CORES, CoreMask

logger = logging.getLogger(__name__)

RECONSIDER_SECONDS = 3.0
"""How long a call may wait for ended pods' processes, after the kubelet and the API server were asked again."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class PreferenceRequest:
    """One container's demand as GetPreferredAllocation states it."""

    resource: Resource
    available: tuple[int, ...]
    must_include: tuple[int, ...]
    size: int

    def leads_to(self, resource: Resource, ids: Collection[int]) -> bool:
        """Whether an Allocate of ``ids`` may follow. No Allocate follows the call of a kubelet that has ended."""
        fits = (resource, len(ids)) == (self.resource, self.size)
        return fits and set(self.must_include) <= set(ids) <= set(self.available)


class Fit(enum.IntEnum):
    """How well ids serve a request; the lower, the better."""

    ASSIGNED = enum.auto()
    """The set that the scheduler assigned."""
    LINKED = enum.auto()
    UNLINKED = enum.auto()
    TAKEN = enum.auto()
    """Some of the ids are in use or held down."""


@dataclass(frozen=True, slots=True)
class Preference:
    """The ids to prefer, and how well they serve the request; ``waiting`` is the assignment that they fulfil."""

    ids: tuple[int, ...]
    fit: Fit
    waiting: WaitingAssignment | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Which cores a container gets, and whose it is as far as that is known."""

    mask: CoreMask
    reason: str
    pod: PodReference | None = None
    container: str = ""
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why ids cannot be given."""

    text: str


def preference_for(snapshot: Snapshot, request: PreferenceRequest) -> Preference:
    """The ids of the oldest waiting assignment that fits, else the best valid set, else the tightest ids there are.

    The first container of a pod without assignment gets a set that leaves linked sets for the pod's other containers.

    The answer always has the asked size, lies inside what the kubelet offers and includes what it must: the kubelet
    cuts or fills anything else at random (pkg/kubelet/cm/devicemanager/manager.go).
    """
    geometry, unit = snapshot.inventory.geometry, request.resource.unit
    offered = _mask(snapshot, request.resource, request.available)
    must = _mask(snapshot, request.resource, request.must_include)
    _, taken, left = _reused(snapshot, request.resource, must, request.size, None)
    available, must = CoreMask(offered & ~taken | left), CoreMask(must & ~taken | left)
    usable = (available & snapshot.offered_mask) | must

    def ids_for(mask: int) -> tuple[int, ...]:
        return ids_of(geometry, unit, mask & ~left | taken)

    for one in snapshot.waiting:
        fits = one.resource is request.resource and len(one.ids) == request.size
        if fits and one.mask & usable == one.mask and one.mask & must == must and bool(one.reused_mask) == bool(must):
            return Preference(ids_for(one.mask) if taken else one.ids, Fit.ASSIGNED, one)
    free = snapshot.free_mask
    if not request.must_include and (planned := _first_of_all(snapshot, request, available)):
        return Preference(planned, Fit.LINKED)
    found = choose(geometry, (available & free) | must, unit, request.size, must)
    if not isinstance(found, Rejection):
        return Preference(ids_for(found), Fit.LINKED)
    chosen: tuple[int, ...] = request.must_include
    unheld = snapshot.offered_mask & ~snapshot.ledger.used_mask
    # Then what unbound pods were promised, what bound ones wait for, and at last what is in use, which Allocate judges.
    for left_over in (free, snapshot.unassigned_mask, unheld):
        ids = ids_of(geometry, unit, offered & left_over)
        if len({*ids, *chosen}) >= request.size:
            return Preference(_tightest({*ids, *chosen}, chosen, request.size), Fit.UNLINKED)
        chosen = tuple({*ids, *chosen})
    rest = _tightest(set(request.available) - set(chosen), (), request.size - len(chosen))
    return Preference(tuple(sorted({*chosen, *rest})), Fit.TAKEN)


def may_improve(snapshot: Snapshot, request: PreferenceRequest, preference: Preference) -> bool:
    """Whether it helps to wait: ids are in use, or better ones are only held down, and offered as healthy."""
    if preference.fit is Fit.TAKEN or not snapshot.inputs.hold_downs:
        return preference.fit is Fit.TAKEN
    without_hold_downs = derive(replace(snapshot.inputs, hold_downs=()))
    return preference_for(without_hold_downs, request).fit < preference.fit


def answer_for(
    snapshot: Snapshot,
    resource: Resource,
    ids: Sequence[int],
    own_ids: Sequence[int] = (),
    latest: PodUid | None = None,
    *,
    preferred: bool = False,
) -> Answer | Conflict:
    """Whose call an Allocate for ``ids`` is, and what it gets.

    ``own_ids`` are those that the GetPreferredAllocation just before said must be included: what the pod's init
    containers have and, with NUMA hints, what is aligned. ``preferred``: there was such a call. The kubelet does not
    make it where the init containers, or aligned devices, are enough. ``latest`` is the pod of our latest answer.
    """
    count = len(ids)
    pod, taken, own = _reused(snapshot, resource, _mask(snapshot, resource, own_ids), count, latest)
    mask = CoreMask(_mask(snapshot, resource, ids) & ~taken | own)
    for one in snapshot.waiting:
        if one.resource is resource and one.mask == mask and not mask & ~snapshot.offered_mask & ~one.reused_mask:
            return Answer(mask, "a set that the scheduler assigned", one.pod, one.container, assigned=True)
    if not preferred and (found := _of_init_containers(snapshot, resource, mask, count, latest)):
        return found
    container = _next_container(snapshot, pod, resource, count) if pod else ""
    texts = []
    for each in snapshot.ledger.overlapping(mask):
        if pod is None or (each.pod.uid, each.resource) != (pod.uid, resource):
            shared = format_ids(number for number in ids if _mask(snapshot, resource, (number,)) & each.mask & mask)
            texts.append(f"{resource.value} {shared} is in use by {named(each.pod)} as {each.resource.value}")
    if texts:
        return Conflict("; ".join(dict.fromkeys(texts)))
    if reasons := snapshot.kept_back(mask & ~own, snapshot.inputs.hold_downs):
        return Conflict("; ".join(f"{resource.value} {format_ids(ids)} is held down: {reason}" for reason in reasons))
    reason = "the pod's init containers have some of them" if pod else "drawn by the kubelet and free"
    return Answer(mask, reason, pod, container)


def _reused(
    snapshot: Snapshot, resource: Resource, must: CoreMask, count: int, latest: PodUid | None
) -> tuple[PodReference | None, CoreMask, CoreMask]:
    """Whose init containers have what must be included, which part of it, and the cores that stand for that part.

    The kubelet takes what it thinks init containers have left. Where a container was given another part of that than
    the kubelet's random one, other cores are left.
    """
    for one in snapshot.ledger.allocations if must else ():
        part = CoreMask(one.kubelet_mask & must)
        if not part or one.resource is not resource:
            continue
        known = snapshot.inputs.pods.pods.get(one.pod.uid)
        if known and _next_container(snapshot, one.pod, resource, count):
            taken, left = snapshot.reusable_masks(known, resource)
            if taken and not taken & ~must and taken.bit_count() == left.bit_count():
                return one.pod, taken, left
        elif latest and known is None and one.pod == snapshot.inputs.reference(latest):
            return one.pod, part, part
    return None, NO_CORES, NO_CORES


def _of_init_containers(
    snapshot: Snapshot, resource: Resource, drawn: CoreMask, count: int, latest: PodUid | None
) -> Answer | None:
    """A later container's share of what its pod's init containers have: the kubelet draws that at random, unasked.

    The container gets its assigned share, or a linked part where the kubelet drew one that is not. Of a pod that the
    API server has not shown, it is not known which containers are init containers: it has to be the pod that is being
    admitted.
    """
    geometry, unit = snapshot.inventory.geometry, resource.unit
    for pod in snapshot.inputs.pods.asking:
        container = _next_container(snapshot, pod.reference, resource, count)
        reusable = snapshot.reusable_masks(pod, resource)[1] if container else NO_CORES
        if not reusable or not _counted(snapshot, pod.reference, resource, drawn):
            continue
        if snapshot.inputs.recorded.unreadable and drawn & reusable == drawn:
            # PodResources does not say what was given in place of these ids.
            return Answer(drawn, "a part of what the init containers have", pod.reference, container)
        waiting = next((one for one in snapshot.waiting if one.pod == pod.reference), None)
        if waiting and waiting.mask & reusable == waiting.mask:
            return Answer(
                waiting.mask, "its share of what the init containers have", pod.reference, container, assigned=True
            )
        part = choose(geometry, reusable, unit, count)
        if drawn & reusable == drawn and (isinstance(part, Rejection) or not snapshot.unlinked_text(resource, drawn)):
            return Answer(drawn, "a part of what the init containers have", pod.reference, container)
        if isinstance(part, Rejection):  # the kubelet drew what a sidecar was given in place of other ids
            left = _tightest(ids_of(geometry, unit, reusable), (), count)
            part = mask_of(geometry, unit, left)
        return Answer(part, "a linked part of what the init containers have", pod.reference, container)
    if latest and latest not in snapshot.inputs.pods.by_kubelet_uid:
        being_admitted = PodReference(latest, "", "")
        if _counted(snapshot, being_admitted, resource, drawn):
            return Answer(drawn, "a part of what the pod being admitted has", being_admitted)
    return None


def _counted(snapshot: Snapshot, pod: PodReference, resource: Resource, drawn: CoreMask) -> bool:
    """Whether the kubelet has all of these ids on its account for one pod, and no other pod has their cores."""
    own = NO_CORES
    for one in snapshot.ledger.of(pod.uid):
        if one.resource is resource:
            own = CoreMask(own | one.kubelet_mask)
    return drawn & own == drawn and all(one.pod.uid == pod.uid for one in snapshot.ledger.overlapping(drawn))


def _next_container(snapshot: Snapshot, pod: PodReference, resource: Resource, count: int) -> str:
    """The container of a pod that is admitted next, if it asks for exactly this; empty otherwise."""
    known = snapshot.inputs.pods.pods.get(pod.uid)
    if known is None:
        return ""
    served = {one.container for one in snapshot.ledger.of(pod.uid)}
    part = next((part for part in known.requests if part.container not in served), None)
    return part.container if part and (part.resource, part.count) == (resource, count) else ""


def _first_of_all(snapshot: Snapshot, request: PreferenceRequest, available: int) -> tuple[int, ...] | None:
    """Where the first container of a pod without assignment goes if all are to get linked sets and keep constraints."""
    geometry = snapshot.inventory.geometry
    for pod in snapshot.unassigned:
        first = pod.requests[0]
        decides = len(pod.requests) > 1 or is_constrained(pod.requests)
        if decides and (first.resource, first.count) == (request.resource, request.size):
            placement = place(geometry, snapshot.free_mask & available, pod.requests, snapshot.device_facts)
            if not isinstance(placement, Rejection) and not snapshot.ledger.of(pod.uid):
                return ids_of(geometry, request.resource.unit, placement[0].mask)
    return None


def _mask(snapshot: Snapshot, resource: Resource, ids: Sequence[int]) -> CoreMask:
    """The cores behind ids; ids that the node does not have add nothing."""
    masks, mask = masks_by_id(snapshot.inventory.geometry, resource.unit), 0
    for number in ids:
        mask |= masks[number] if number < len(masks) else 0
    return CoreMask(mask)


def _tightest(available: Collection[int], must_include: Collection[int], size: int) -> tuple[int, ...]:
    """``size`` ids around ``must_include`` with the least distance between first and last; the lowest on a tie."""
    others = sorted(set(available) - set(must_include))
    missing = size - len(must_include)
    windows = [(*must_include, *others[start : start + missing]) for start in range(len(others) - missing + 1)]
    best = min(windows, key=lambda ids: (max(ids, default=0) - min(ids, default=0), ids), default=tuple(must_include))
    return tuple(sorted(best))


class PodLister(Protocol):
    """The API server, asked for this node's pods when the watch may lag behind the kubelet."""

    async def list_pods(self) -> None:
        """Take in a consistent LIST, under a deadline; never raises."""


class Allocator:
    """Answers the kubelet for all resources of the node.

    ``events`` are those of refused calls, for the publisher. ``last_call`` is when the kubelet last asked for
    something, on the node's clock: PodResources is never listed while a call is under way.
    """

    def __init__(self, node: Node, settings: PluginSettings, pods: PodLister | None, counters: Counters) -> None:
        """Without ``pods`` there is no API server."""
        self.decisions = DecisionLog()
        self.events: deque[PodEvent] = deque(maxlen=256)
        self.last_call = float("-inf")
        self.calls_under_way = 0
        self._node = node
        self._settings = settings
        self._pods = pods
        self._counters = counters
        self._last_preference: tuple[PreferenceRequest, tuple[int, ...]] | None = None
        self._latest_reply = ""
        self._unrecorded: dict[str, tuple[list[LoggedDecision], dict[str, object]]] = {}
        """By reply id, the decisions on a call and its log line, until the kubelet's record says whose call it was."""
        self._preferred: LoggedDecision | None = None

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose the ids that the next Allocate should carry."""
        request = PreferenceRequest(Resource(resource), _parsed(available), _parsed(must_include), size)
        with self._counted(self._counters.preference_seconds, resource):
            self._last_preference = request, ()  # the caller may give up while this waits
            await self._node.orders_known.wait()
            async with self._node.listing:
                self._node.look_at_checkpoint()
            preference = preference_for(self._snapshot(), request)
            if preference.waiting is None and self._pods:
                callers, unassigned = self._candidates(request.resource, request.size), self._snapshot().unassigned
                if not any(pod in unassigned for pod in callers):  # else a LIST would show nothing new
                    await self._pods.list_pods()
                    preference = preference_for(self._snapshot(), request)
            if may_improve(self._snapshot(), request, preference):
                async for snapshot in self._reconsidered():
                    preference = preference_for(snapshot, request)
                    if not may_improve(snapshot, request, preference):
                        break
            self._last_preference = request, preference.ids
        asyncio.get_running_loop().call_soon(self._log_preference, self._snapshot(), request, preference)
        return [str(number) for number in preference.ids]

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Give a container its devices for exactly these ids.

        Raises:
            AllocationRefusedError: another pod has some of them or its processes still use them, they are not linked
                and must be, or only a pod whose request cannot be served can have asked.
        """
        with self._counted(self._counters.allocate_seconds, resource):
            await self._node.orders_known.wait()  # at the start of the daemon only
            name, numbers = Resource(resource), _parsed(ids)
            last, self._last_preference = self._last_preference, None
            began = self._node.clock()
            self._node.look_at_checkpoint()
            answer = self._answer(name, numbers, last, began)
            if isinstance(answer, Conflict):
                async for _ in self._reconsidered():
                    answer = self._answer(name, numbers, last, began)
                    if isinstance(answer, Answer):
                        break
            if isinstance(answer, Conflict):
                callers = sorted(named(pod.reference) for pod in self._candidates(name, len(numbers)))
                text = f"{answer.text}; wanted by {' or '.join(callers) or 'a pod that is not known yet'}"
                raise self._refused(name, numbers, text)
            return self._give(name, numbers, answer)

    def log_correction(self, write: PodWrite) -> None:
        """Remember that a pod's assignment was corrected to what it was given."""
        snapshot = self._snapshot()
        for one in snapshot.ledger.of(write.pod.uid):
            what = (one.resource, one.mask, write.correction)
            self._record(snapshot, Step.CORRECTED, *what, pod=write.pod, container=one.container, usable=NO_CORES)

    def name_decisions(self) -> None:
        """Log the answers that the kubelet has recorded by now, and put their pods into the decisions.

        Two equal pods may have swapped their sets, so before that not even the pod of an assigned set is certain.
        """
        snapshot = self._node.snapshot
        if snapshot is None or not self._unrecorded:
            return
        inputs = snapshot.inputs
        pending = {one.reply.id for one in inputs.pending}
        recorded = {
            entry.reply.id: key
            for entries in (inputs.recorded.over, inputs.recorded.entries)
            for key, entry in entries.items()
            if entry.reply
        }
        for reply_id in [one for one in self._unrecorded if one in recorded or one not in pending]:
            decisions, fields = self._unrecorded[reply_id]
            key = recorded.get(reply_id)
            pod = inputs.reference(key.uid) if key else None
            for index, decision in enumerate(decisions):
                decisions[index] = decision._replace(pod=pod, container=key.container if key else "")
                self.decisions.replace(decision, decisions[index])
            if fields:
                who = named(pod) if pod else "the kubelet did not record it"
                logger.info("allocated", extra={**fields, "pod": who, "container": key.container if key else ""})
            self._unrecorded[reply_id] = decisions, {}
            if not pod or pod.name:
                del self._unrecorded[reply_id]

    def _answer(
        self,
        resource: Resource,
        ids: tuple[int, ...],
        last: tuple[PreferenceRequest, tuple[int, ...]] | None,
        began: float,
    ) -> Answer | Conflict:
        """The answer to an Allocate; ``last`` is the GetPreferredAllocation before it, and its answer.

        With NUMA hints the kubelet may draw ids unasked that it has just taken from a static pod. Whether it still has
        them on that pod's account shows only a file that was written since the call ``began``.
        """
        snapshot, latest = self._snapshot(), None
        preferred = last is not None and last[0].leads_to(resource, ids)
        for key, entry in snapshot.inputs.recorded.entries.items():
            if entry.reply and entry.reply.id == self._latest_reply:
                latest = key.uid
        for one in snapshot.inputs.pending:
            if one.reply.id == self._latest_reply:
                latest = snapshot.inputs.uid_of(one)
        if self._node.numa_nodes and snapshot.inputs.recorded.rewritten_at < began:
            latest = None
        own = last[0].must_include if last and preferred else ()
        return answer_for(snapshot, resource, ids, own, latest, preferred=preferred)

    def _give(self, resource: Resource, ids: tuple[int, ...], answer: Answer) -> ContainerAllocation:
        snapshot = self._snapshot()
        if answer.pod is None and not self._candidates(resource, len(ids)):
            for pod in snapshot.inputs.pods.pods.values():
                if (resource, len(ids)) in pod.refused_demands:
                    raise self._refused(resource, ids, str(pod.request))
        unlinked = "" if answer.assigned else snapshot.unlinked_text(resource, answer.mask)
        if unlinked and self._settings.topology_policy is TopologyPolicy.REQUIRED:
            raise self._refused(resource, ids, unlinked)
        reply = reply_for(snapshot.inventory, secrets.token_hex(8), answer.mask)
        has = snapshot.inventory
        style = container_style(self._settings, has.driver_version, has.device_name, has.logical_core_size)
        allocation = container_allocation(has.geometry, resource, answer.mask, style)
        self._node.answered(PendingAnswer(reply, resource, ids, self._node.clock(), answer.pod, answer.container))
        self._latest_reply = reply.id
        self._counters.allocations[resource.value] += 1
        if unlinked:
            answer = replace(answer, reason=f"{answer.reason}; not linked: {unlinked}")
        what = (snapshot, resource, ids, answer, allocation, reply.id)
        asyncio.get_running_loop().call_soon(self._log_allocation, *what)
        return replace(allocation, annotations={ALLOCATION_KEY: reply.annotation()})

    async def _reconsidered(self) -> AsyncIterator[Snapshot]:
        """What is known after asking each that can settle a conflict: the kubelet's whole memory, the API server, time.

        Time ends hold-downs, and answers that the kubelet has never recorded. A pod that the kubelet has rejected is
        soon shown as failed.
        """
        await self._node.rewrite()
        yield self._snapshot()
        if self._pods:
            await self._pods.list_pods()
            yield self._snapshot()
        loop = asyncio.get_running_loop()
        until = loop.time() + RECONSIDER_SECONDS
        while loop.time() < until:
            inputs = self._snapshot().inputs
            forgotten = any(entry.missing for entry in inputs.recorded.entries.values())
            if not (inputs.hold_downs or inputs.pending or forgotten):
                return
            if not (self._node.rewrite_is_due and await self._node.rewrite()):
                await asyncio.sleep(POLL_SECONDS)
                self._node.look_again()
            yield self._snapshot()

    def _snapshot(self) -> Snapshot:
        snapshot = self._node.snapshot
        if snapshot is None:
            raise AllocationRefusedError("no Neuron device has been found on this node yet: is the driver loaded?")
        return snapshot

    def _candidates(self, resource: Resource, count: int) -> list[NeuronPod]:
        """The pods that may have made a call."""
        snapshot = self._snapshot()
        waiting = {one.pod.uid for one in snapshot.waiting}
        return [
            pod
            for pod in snapshot.inputs.pods.asking
            if (pod.uid in waiting or pod in snapshot.unassigned)
            and any((part.resource, part.count) == (resource, count) for part in pod.requests)
        ]

    def _refused(self, resource: Resource, ids: tuple[int, ...], text: str) -> AllocationRefusedError:
        """Record a refusal. It reaches the pod's status by the kubelet, and an event where the pod is certain."""
        snapshot, candidates = self._snapshot(), self._candidates(resource, len(ids))
        if len(candidates) == 1:
            self.events.append(PodEvent(candidates[0].reference, "AllocationRefused", text))
        mask = mask_of(snapshot.inventory.geometry, resource.unit, ids)
        self._record(snapshot, Step.REFUSED, resource, mask, text, ids)
        return AllocationRefusedError(text)

    @contextmanager
    def _counted(self, latencies: dict[str, Latencies], resource: str) -> Iterator[None]:
        started = time.perf_counter()
        self.calls_under_way += 1
        try:
            yield
        finally:
            self.calls_under_way -= 1
            self.last_call = self._node.clock()
            asyncio.get_running_loop().call_soon(latencies[resource].observe, time.perf_counter() - started)

    # What can be explained later, worked out once the kubelet has its answer.

    def _log_preference(self, snapshot: Snapshot, request: PreferenceRequest, preference: Preference) -> None:
        one, resource = preference.waiting, request.resource
        chosen, must = _mask(snapshot, resource, preference.ids), _mask(snapshot, resource, request.must_include)
        reason = (
            "the oldest waiting assignment of this size" if one else "no assignment fits: the best set that is free"
        )
        free = snapshot.offered_mask & ~snapshot.ledger.used_mask if one else snapshot.free_mask
        self._preferred = self._record(
            snapshot,
            Step.PREFERRED,
            resource,
            chosen,
            reason,
            request.available,
            pod=one.pod if one else None,
            container=one.container if one else "",
            usable=_mask(snapshot, resource, request.available) & free | must,
            must_include=must,
        )

    def _log_allocation(
        self,
        snapshot: Snapshot,
        resource: Resource,
        ids: tuple[int, ...],
        answer: Answer,
        given: ContainerAllocation,
        reply_id: str,
    ) -> None:
        what = (resource, answer.mask, answer.reason, ids)
        decision = self._record(snapshot, Step.ALLOCATED, *what, pod=answer.pod, container=answer.container)
        asked, self._preferred = self._preferred, None
        same_call = asked and (asked.resource, asked.chosen) == (resource, decision.offered)
        fields: dict[str, object] = {
            "resource": resource.value,
            "ids": format_ids(ids),
            "reason": answer.reason,
            "devices": " ".join(f"{node.host_path}:{node.container_path}" for node in given.devices),
            "cdi": " ".join(given.cdi_devices),
            "env": dict(given.envs),
        }
        self._unrecorded[reply_id] = [asked, decision] if asked and same_call else [decision], fields
        if len(self._unrecorded) > REMEMBERED:
            del self._unrecorded[next(iter(self._unrecorded))]

    def _record(
        self,
        snapshot: Snapshot,
        step: Step,
        resource: Resource,
        chosen: int,
        reason: str,
        offered: Sequence[int] = (),
        *,
        pod: PodReference | None = None,
        container: str = "",
        usable: int | None = None,
        must_include: int = NO_CORES,
    ) -> LoggedDecision:
        free = snapshot.offered_mask & ~snapshot.ledger.used_mask if usable is None else usable
        decision = LoggedDecision(
            time.time_ns(),
            step,
            self._settings.node_name,
            snapshot.inventory.geometry,
            resource,
            chosen,
            reason,
            pod,
            container,
            partial(int, free),
            _mask(snapshot, resource, offered),
            must_include,
        )
        self.decisions.record(decision)
        return decision


def _parsed(ids: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(map(int, ids)))
