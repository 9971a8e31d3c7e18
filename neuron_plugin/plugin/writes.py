"""The annotations, label and events that pods should have by a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import (
    Assignment,
    ContainerKind,
    ContainerSet,
    Dialect,
    NeuronPod,
    PodReference,
    Rejection,
)
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import ALLOC_TIME_KEY, ALLOCATED_KEY, ASSIGNMENT_KEYS, VENDOR_IDS_KEY
from neuron_plugin.allocation.narrowing import constraint_not_kept
from neuron_plugin.allocation.placement import assignment_of, is_constrained
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.allocation.rejection import set_kind
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.plugin.inputs import named
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import CoreMask


@dataclass(frozen=True, slots=True)
class PodWrite:
    """Annotations that a pod should have and has not; None removes one.

    ``correction`` is set where they differ from the assignment that the pod came with.
    """

    pod: PodReference
    annotations: Mapping[str, str | None]
    correction: str = ""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something that the owner of a pod should know."""

    pod: PodReference
    reason: str
    text: str


def pod_writes(snapshot: Snapshot) -> tuple[PodWrite, ...]:
    """Annotations to write, in this order.

    A pod that takes over another's set comes before that other, so that no two pods claim one set meanwhile.
    """
    handed_over = []
    for pod in snapshot.inputs.pods.asking:  # one that was not served takes over the set which another pod left
        assigned = () if snapshot.ledger.of(pod.uid) else snapshot.usable_assignment(pod)
        if assigned and assigned != assigned_allocations(pod, snapshot.inventory.geometry):
            handed_over.append(
                _assignment_write(snapshot, pod, [allocation.mask for allocation in assigned], allocated=False)
            )
    return (*handed_over, *(write for pod in snapshot.inputs.pods.asking if (write := _served(snapshot, pod))))


def pod_events(snapshot: Snapshot) -> tuple[PodEvent, ...]:
    """Events for the owners of this node's pods. Equal events of later snapshots are the same news."""
    events, geometry = [], snapshot.inventory.geometry
    for pod in snapshot.inputs.pods.pods.values():
        if isinstance(pod.request, Rejection):
            events.append(PodEvent(pod.reference, EventReason.INVALID_REQUEST, str(pod.request)))
        elif pod.request and pod.assignment is not None:
            assigned = assigned_allocations(pod, geometry)
            if isinstance(assigned, Rejection):
                events.append(PodEvent(pod.reference, EventReason.INVALID_ASSIGNMENT, str(assigned)))
        if is_constrained(pod.requests):
            constraints = pod.requests[0].constraints
            has = {allocation.container: allocation.mask for allocation in snapshot.ledger.of(pod.uid)}
            if isinstance(constraints, Rejection):
                events.append(PodEvent(pod.reference, EventReason.INVALID_CONSTRAINT, str(constraints)))
            elif text := constraint_not_kept(geometry, pod.requests, snapshot.device_facts, has):
                events.append(PodEvent(pod.reference, EventReason.CONSTRAINT_NOT_KEPT, text))
        if pod.life.privileged and pod.life.started and (text := _sees_more_text(snapshot, pod)):
            events.append(PodEvent(pod.reference, EventReason.PRIVILEGED, text))
    for entry in snapshot.inputs.recorded.entries.values():
        if entry.key.claim or (known := snapshot.inputs.pods.by_kubelet_uid.get(entry.key.uid)) is None:
            continue
        allocation, assigned = entry.on(snapshot.inventory, known.reference), assigned_allocations(known, geometry)
        chosen = () if isinstance(assigned, Rejection) else assigned
        as_chosen = any((other.container, other.mask) == (allocation.container, allocation.mask) for other in chosen)
        if not as_chosen and (why := snapshot.unlinked_text(allocation.resource, allocation.mask)):
            unit, resource = allocation.resource.unit, allocation.resource.value
            ids = ", ".join(map(str, geometry.ids_of(unit, allocation.mask)))
            what = f"{resource} ids {ids} of container {allocation.container}"
            text = f"{what} are not {set_kind(geometry, unit)}: {why}"
            events.append(PodEvent(known.reference, EventReason.UNLINKED, text))
    return tuple(events)


def wrongly_labelled(snapshot: Snapshot) -> tuple[NeuronPod, ...]:
    """The pods that should have the label of an unhealthy device and have not, or the reverse."""
    pods, sick = snapshot.inputs.pods.pods.values(), snapshot.unhealthy_devices
    return tuple(pod for pod in pods if pod.life.labelled_unhealthy != (pod.reference in sick))


def _sees_more_text(snapshot: Snapshot, pod: NeuronPod) -> str:
    """The privileged containers of a pod that see devices of others, in words; empty without any."""
    has, claims = snapshot.ledger.of(pod.uid), {claim.claim: claim.users for claim in pod.claims}
    users = {name for one in has for name, _ in claims.get(one.claim, ()) or ((one.container, ""),)}
    names = [name for name in pod.life.privileged if name in users]
    devices = snapshot.inventory.geometry.devices_touched(snapshot.ledger.mask_of(pod.uid))
    if not names or set(snapshot.inventory.present) <= set(devices):
        return ""
    return (
        f"container {', '.join(names)} is privileged: it sees every Neuron device of the node, and only "
        f"{format_ids(devices)} of them are the pod's"
    )


def _served(snapshot: Snapshot, pod: NeuronPod) -> PodWrite | None:
    """The annotations of a pod whose containers are all in the kubelet's record.

    Half an assignment would be read as a malformed one, so nothing is written before. PodResources does not list
    plain init containers: without the checkpoint an assignment that the others confirm is only marked.
    """
    recorded = {
        key.container: entry.on(snapshot.inventory, pod.reference).mask
        for key, entry in snapshot.inputs.recorded.entries.items()
        if key.uid == pod.kubelet_uid
    }
    assigned = assigned_allocations(pod, snapshot.inventory.geometry)
    missing = [container for container in pod.requests if container.name not in recorded]
    if not isinstance(assigned, Rejection) and recorded:
        unlisted = bool(snapshot.inputs.recorded.unreadable) and all(
            container.kind is ContainerKind.INIT for container in missing
        )
        as_assigned = all(
            recorded.get(allocation.container, allocation.mask) == allocation.mask for allocation in assigned
        )
        if as_assigned and (not missing or unlisted):
            done = isinstance(pod.assignment, Assignment) and pod.assignment.allocated
            return None if done else PodWrite(pod.reference, {ALLOCATED_KEY: "true"})
    if missing:
        return None
    return _assignment_write(snapshot, pod, [recorded[container.name] for container in pod.requests], allocated=True)


def _assignment_write(snapshot: Snapshot, pod: NeuronPod, masks: Sequence[CoreMask], *, allocated: bool) -> PodWrite:
    """The sets in the dialects that the pod has, in place of every assignment that it had.

    The time of an assignment is kept; 0 stands for the time of the write.
    """
    dialects = {Dialect.NEURON_PLUGIN} | ({Dialect.VENDOR} if VENDOR_IDS_KEY in pod.life.assignment_keys else set())
    placement = tuple(ContainerSet(container, mask) for container, mask in zip(pod.requests, masks, strict=True))
    time_ns = pod.assignment.alloc_time_ns if isinstance(pod.assignment, Assignment) else 0
    annotations: dict[str, str | None] = dict.fromkeys(pod.life.assignment_keys)
    annotations |= write_assignment(assignment_of(snapshot.inventory.geometry, placement, time_ns), dialects)
    annotations |= {ALLOC_TIME_KEY: str(time_ns), ALLOCATED_KEY: "true" if allocated else "false"}
    ids = ", ".join(f"{key}={annotations[key]}" for key in ASSIGNMENT_KEYS if annotations.get(key))
    was_assigned = bool(pod.life.assignment_keys) and not isinstance(pod.assignment, Rejection)
    correction = f"{named(pod.reference)} got another set than it was assigned: {ids}" if was_assigned else ""
    return PodWrite(pod.reference, annotations, correction)
