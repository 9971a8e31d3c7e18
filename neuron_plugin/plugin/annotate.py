"""The annotations a pod gets once it is certain what it holds, or what is left for it."""

from __future__ import annotations

from neuron_plugin.allocation import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    VENDOR_IDS_KEY,
    Assignment,
    ContainerSet,
    Dialect,
    Holding,
    Placement,
    ids_of,
    mask_of,
    write_assignment,
)
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology import Geometry

Annotations = dict[str, str | None]
"""Keys to write; None removes one."""


def confirmed_annotations(geometry: Geometry, pod: NodePod, holdings: tuple[Holding, ...], now_ns: int) -> Annotations:
    """What to write on the pod; nothing when it says so already.

    A decision that came true is only marked as allocated. One that came otherwise (the kubelet admitted two equal
    pods in the other order) and a pod without one get the ids they really hold. Nothing is written while a container's
    ids are unknown: half an assignment would be read as a malformed one.
    """
    if pod.decision and _came_true(geometry, pod.decision, holdings):
        return {} if pod.decision.allocated else {ALLOCATED_KEY: "true"}
    by_container = {holding.container: holding.mask for holding in holdings}
    if any(part.container not in by_container for part in pod.request):
        return {}
    placement = tuple(ContainerSet(part, by_container[part.container]) for part in pod.request)
    decided_ns = pod.decision.alloc_time_ns if pod.decision else now_ns
    return _assignment(geometry, pod, placement, decided_ns) | {ALLOCATED_KEY: "true"}


def inherited_annotations(geometry: Geometry, heir: NodePod, giver: NodePod) -> Annotations:
    """What to write on a pod whose decided sets ``giver`` was given: it is to get those of ``giver`` in exchange."""
    if not (heir.decision and giver.decision):
        return {}
    sets = (mask_of(geometry, part.request.resource.unit, part.ids) for part in giver.decision.containers)
    placement = tuple(ContainerSet(part, mask) for part, mask in zip(heir.request, sets, strict=True))
    return _assignment(geometry, heir, placement, heir.decision.alloc_time_ns)


def _came_true(geometry: Geometry, decision: Assignment, holdings: tuple[Holding, ...]) -> bool:
    """Whether a pod holds what was decided for it, as far as that is known."""
    held = {one.container: ids_of(geometry, one.resource.unit, one.mask) for one in holdings}
    return all(part.ids == held.get(part.request.container, part.ids) for part in decision.containers)


def _assignment(geometry: Geometry, pod: NodePod, placement: Placement, alloc_time_ns: int) -> Annotations:
    """The placement in the dialects the pod has, in place of every assignment it had."""
    dialects = {Dialect.NEURON_PLUGIN} | ({Dialect.VENDOR} if VENDOR_IDS_KEY in pod.assignment_keys else set())
    before: Annotations = dict.fromkeys(pod.assignment_keys)
    return (
        before | write_assignment(geometry, placement, alloc_time_ns, dialects) | {ALLOC_TIME_KEY: str(alloc_time_ns)}
    )
