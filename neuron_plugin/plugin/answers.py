"""The answers to the kubelet, as functions of one moment: the preferred ids, and the cores for drawn ids.

Allocate names no pod. So the ids are the token: a set that a scheduler assigned to one pod is given once, and the
kubelet is asked to draw exactly those ids. Two equal pods can at worst swap sets, never share one.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid, Rejection, Resource
from neuron_plugin.allocation.placement import choose, is_constrained, place
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.plugin.inputs import named
from neuron_plugin.plugin.snapshot import Snapshot, WaitingAssignment, derive
from neuron_plugin.topology import NO_CORES, CoreMask


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


@dataclass(frozen=True, slots=True)
class AllocateCall:
    """One Allocate: the ids that the kubelet drew, and what is known of their container.

    ``after`` is the GetPreferredAllocation that led to it. The kubelet makes no such call if the devices of the pod's
    init containers, or devices that a NUMA hint aligns, are enough. ``latest`` is the pod of our latest answer, by the
    kubelet's UID: its admission may be going on. It is None where that proves nothing.

    Example: an init container of pod train has devices 0-3, and its app container asks for 8. GetPreferredAllocation
    must include 0-3, and we prefer 0-7. Then ``AllocateCall(NEURON, (0, ..., 7), after, train)`` re-uses 0-3, which are
    in use by train itself, and is given 0-7 if 4-7 are free. For an app container that asks for 2 there is no
    GetPreferredAllocation: the kubelet draws any two of 0-3, as ``AllocateCall(NEURON, (0, 3), None, train)``, and the
    container gets a linked part of 0-3 in their place.
    """

    resource: Resource
    ids: tuple[int, ...]
    after: PreferenceRequest | None = None
    latest: PodUid | None = None


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a container takes over from its pod's init containers. It takes over nothing if ``pod`` is None.

    The kubelet counts in the cores ``recorded``; the pod was given the cores ``given`` for them. The two differ where a
    container was given a linked part in place of the kubelet's random one.
    """

    pod: PodReference | None = None
    recorded: CoreMask = NO_CORES
    given: CoreMask = NO_CORES

    def as_given(self, mask: CoreMask) -> CoreMask:
        """A set of the kubelet's in the cores that the pod has."""
        return CoreMask(mask & ~self.recorded | self.given)

    def as_recorded(self, mask: int) -> CoreMask:
        """A set in the cores that the kubelet counts in."""
        return CoreMask(mask & ~self.given | self.recorded)


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
    """The cores that a container gets, and its pod if that is known."""

    mask: CoreMask
    reason: str
    pod: PodReference | None = None
    container: str = ""
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why ids cannot be given. ``lasting``: no wait ends it."""

    text: str
    lasting: bool = False


def preference_for(snapshot: Snapshot, request: PreferenceRequest) -> Preference:
    """The ids of the first waiting assignment that fits, else the best valid set, else the tightest ids there are.

    The first container of a pod without assignment gets a set that leaves linked sets for the pod's other containers.

    The answer always has the asked size, lies inside the kubelet's offer and includes its ``must_include``: the kubelet
    cuts or fills anything else at random (pkg/kubelet/cm/devicemanager/manager.go).
    """
    geometry, unit = snapshot.inventory.geometry, request.resource.unit
    offered = snapshot.mask_of(request.resource, request.available)
    must = snapshot.mask_of(request.resource, request.must_include)
    reuse = _reuse(snapshot, request.resource, must, request.size, None)
    available, must = reuse.as_given(offered), reuse.as_given(must)
    usable = (available & snapshot.offered_mask) | must

    for assignment in snapshot.waiting:
        fits = assignment.resource is request.resource and len(assignment.ids) == request.size
        if (
            fits
            and assignment.mask & usable == assignment.mask
            and assignment.mask & must == must
            and bool(assignment.reused_mask) == bool(must)
        ):
            ids = geometry.ids_of(unit, reuse.as_recorded(assignment.mask)) if reuse.pod else assignment.ids
            return Preference(ids, Fit.ASSIGNED, assignment)
    free = snapshot.free_mask
    if not request.must_include and (planned := _first_of_all(snapshot, request, available)):
        return Preference(planned, Fit.LINKED)
    linked = choose(geometry, (available & free) | must, unit, request.size, must)
    if not isinstance(linked, Rejection):
        return Preference(geometry.ids_of(unit, reuse.as_recorded(linked)), Fit.LINKED)
    chosen: tuple[int, ...] = request.must_include
    unheld = snapshot.offered_mask & ~snapshot.ledger.used_mask
    # Then what unbound pods were promised, what bound ones wait for, and at last what is in use, which Allocate judges.
    for left_over in (free, snapshot.unassigned_mask, unheld):
        ids = geometry.ids_of(unit, offered & left_over)
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


def answer_for(snapshot: Snapshot, call: AllocateCall) -> Answer | Conflict:
    """The pod that an Allocate is for, and the cores that it gets."""
    resource, count = call.resource, len(call.ids)
    must = snapshot.mask_of(resource, call.after.must_include if call.after else ())
    reuse = _reuse(snapshot, resource, must, count, call.latest)
    pod, mask = reuse.pod, reuse.as_given(snapshot.mask_of(resource, call.ids))
    for assignment in snapshot.waiting:
        if (
            assignment.resource is resource
            and assignment.mask == mask
            and not mask & ~snapshot.offered_mask & ~assignment.reused_mask
        ):
            return Answer(
                mask, "a set that the scheduler assigned", assignment.pod, assignment.container, assigned=True
            )
    if call.after is None and (answer := _of_init_containers(snapshot, resource, mask, count, call.latest)):
        return answer
    if broken := snapshot.broken_text(mask & ~reuse.given):
        return Conflict(f"{resource.value} cannot be allocated: {broken}", lasting=True)
    texts = []
    for allocation in snapshot.ledger.overlapping(mask):
        if pod is None or (allocation.pod.uid, allocation.resource) != (pod.uid, resource):
            shared = format_ids(
                number for number in call.ids if snapshot.mask_of(resource, (number,)) & allocation.mask & mask
            )
            texts.append(
                f"{resource.value} {shared} is in use by {named(allocation.pod)} as {allocation.resource.value}"
            )
    if texts:
        return Conflict("; ".join(dict.fromkeys(texts)))
    if reasons := snapshot.kept_back(mask & ~reuse.given, snapshot.inputs.hold_downs):
        ids = format_ids(call.ids)
        return Conflict("; ".join(f"{resource.value} {ids} is held down: {reason}" for reason in reasons))
    if pod is None:
        return Answer(mask, "drawn by the kubelet and free")
    container = _next_container(snapshot, pod, resource, count)
    return Answer(mask, "the pod's init containers have some of them", pod, container)


def _reuse(snapshot: Snapshot, resource: Resource, must: CoreMask, count: int, latest: PodUid | None) -> Reuse:
    """The cores of ``must_include`` that belong to the caller's own init containers.

    ``must_include`` are the ids that, to the kubelet, init containers have left. With NUMA hints aligned devices are
    among them.
    """
    for allocation in snapshot.ledger.allocations if must else ():
        overlap = CoreMask(allocation.kubelet_mask & must)
        if not overlap or allocation.resource is not resource:
            continue
        known = snapshot.inputs.pods.pods.get(allocation.pod.uid)
        if known and _next_container(snapshot, allocation.pod, resource, count):
            recorded, given = snapshot.reusable_masks(known, resource)
            if recorded and not recorded & ~must and recorded.bit_count() == given.bit_count():
                return Reuse(allocation.pod, recorded, given)
        elif latest and known is None and allocation.pod == snapshot.inputs.reference(latest):
            return Reuse(allocation.pod, overlap, overlap)
    return Reuse()


def _of_init_containers(
    snapshot: Snapshot, resource: Resource, drawn: CoreMask, count: int, latest: PodUid | None
) -> Answer | None:
    """A later container's share of its init containers' cores. The kubelet draws it at random, and asks for none.

    The container gets the drawn cores, as PodResources shows them, if they are linked and leave later containers their
    assigned shares. Else it gets its own assigned share, or a linked part. The init containers of a pod are not known
    until the API server has shown the pod. Before that only the pod that is being admitted can be meant.
    """
    geometry, unit = snapshot.inventory.geometry, resource.unit
    for pod in snapshot.inputs.pods.asking:
        container = _next_container(snapshot, pod.reference, resource, count)
        reusable = snapshot.reusable_masks(pod, resource)[1] if container else NO_CORES
        if not reusable or not _counted(snapshot, pod.reference, resource, drawn):
            continue
        # Where the checkpoint cannot be read, PodResources does not say what was given in place of these ids.
        as_drawn = snapshot.inputs.recorded.unreadable or _may_have(snapshot, pod, container, resource, drawn)
        if as_drawn and drawn & reusable == drawn:
            return Answer(drawn, "a part of what the init containers have", pod.reference, container)
        waiting = next((assignment for assignment in snapshot.waiting if assignment.pod == pod.reference), None)
        if waiting and waiting.mask & reusable == waiting.mask:
            return Answer(
                waiting.mask, "its share of what the init containers have", pod.reference, container, assigned=True
            )
        chosen = choose(geometry, reusable, unit, count)
        if drawn & reusable == drawn and isinstance(chosen, Rejection):
            return Answer(drawn, "a part of what the init containers have", pod.reference, container)
        if isinstance(chosen, Rejection):  # the kubelet drew what a sidecar was given in place of other ids
            left = _tightest(geometry.ids_of(unit, reusable), (), count)
            chosen = geometry.mask_of(unit, left)
        return Answer(chosen, "a linked part of what the init containers have", pod.reference, container)
    if latest and latest not in snapshot.inputs.pods.by_kubelet_uid:
        being_admitted = PodReference(latest, "", "")
        if _counted(snapshot, being_admitted, resource, drawn):
            return Answer(drawn, "a part of what the pod being admitted has", being_admitted)
    return None


def _may_have(snapshot: Snapshot, pod: NeuronPod, container: str, resource: Resource, drawn: CoreMask) -> bool:
    """Whether a container of a pod may get what the kubelet drew for it in place of its assigned share."""
    assigned = assigned_allocations(pod, snapshot.inventory.geometry)
    chosen = () if isinstance(assigned, Rejection) else assigned
    names = [allocation.container for allocation in chosen]
    later = mask_union(chosen[names.index(container) + 1 :] if container in names else ())
    bound_to_share = chosen and is_constrained(pod.requests)
    return not (bound_to_share or drawn & later or snapshot.unlinked_text(resource, drawn))


def _counted(snapshot: Snapshot, pod: PodReference, resource: Resource, drawn: CoreMask) -> bool:
    """Whether the kubelet has all of these ids on its account for one pod, and no other pod has their cores."""
    own = NO_CORES
    for allocation in snapshot.ledger.of(pod.uid):
        if allocation.resource is resource:
            own = CoreMask(own | allocation.kubelet_mask)
    return drawn & own == drawn and all(
        allocation.pod.uid == pod.uid for allocation in snapshot.ledger.overlapping(drawn)
    )


def _next_container(snapshot: Snapshot, pod: PodReference, resource: Resource, count: int) -> str:
    """The container of a pod that is admitted next, if it asks for exactly this; empty otherwise."""
    known = snapshot.inputs.pods.pods.get(pod.uid)
    if known is None:
        return ""
    served = {allocation.container for allocation in snapshot.ledger.of(pod.uid)}
    container = next((container for container in known.requests if container.name not in served), None)
    return container.name if container and (container.resource, container.count) == (resource, count) else ""


def _first_of_all(snapshot: Snapshot, request: PreferenceRequest, available: int) -> tuple[int, ...] | None:
    """Where the first container of a pod without assignment goes if all are to get linked sets and keep constraints."""
    geometry = snapshot.inventory.geometry
    for pod in snapshot.unassigned:
        first = pod.requests[0]
        decides = len(pod.requests) > 1 or is_constrained(pod.requests)
        if decides and (first.resource, first.count) == (request.resource, request.size):
            placement = place(geometry, snapshot.free_mask & available, pod.requests, snapshot.device_facts)
            if not isinstance(placement, Rejection) and not snapshot.ledger.of(pod.uid):
                return geometry.ids_of(request.resource.unit, placement[0].mask)
    return None


def _tightest(available: Collection[int], must_include: Collection[int], size: int) -> tuple[int, ...]:
    """``size`` ids around ``must_include`` with the least distance between first and last; the lowest on a tie."""
    others = sorted(set(available) - set(must_include))
    missing = size - len(must_include)
    windows = [(*must_include, *others[start : start + missing]) for start in range(len(others) - missing + 1)]
    best = min(windows, key=lambda ids: (max(ids, default=0) - min(ids, default=0), ids), default=tuple(must_include))
    return tuple(sorted(best))
