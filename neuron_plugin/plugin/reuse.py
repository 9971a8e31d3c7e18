"""What a later container gets of the silicon its pod's init containers had.

The kubelet gives a container that needs no more than plain init containers left a random part of it, unasked
(pkg/kubelet/cm/devicemanager, devicesToAllocate). The pod has it all, so we give a linked part of the same size
instead. Whoever was given another part than the kubelet thinks must not meet its neighbour on the same device:
everything here is counted in what we gave.
"""

from __future__ import annotations

from neuron_plugin.allocation.ledger import Holder
from neuron_plugin.allocation.requests import ContainerRequest, Kind
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.preference import preferred_ids
from neuron_plugin.topology.geometry import CoreMask, Geometry


def reusable_mask(pod: NodePod, holder: Holder, resource: Resource) -> CoreMask:
    """What plain init containers hold and no later container of the pod has been given."""
    kinds = {part.container: part.kind for part in pod.request}
    left = taken = 0
    for holding in holder.holdings:
        if holding.resource is resource and kinds.get(holding.container) is Kind.INIT:
            left |= holding.mask
        else:
            taken |= holding.mask
    return CoreMask(left & ~taken)


def held_as(holder: Holder, resource: Resource) -> CoreMask:
    """What a pod holds under one resource name."""
    mask = 0
    for holding in holder.holdings:
        if holding.resource is resource:
            mask |= holding.mask
    return CoreMask(mask)


def part_of(geometry: Geometry, pod: NodePod, part: ContainerRequest, reusable: CoreMask, drawn: CoreMask) -> CoreMask:
    """The part of ``reusable`` for a container for which the kubelet drew ``drawn``.

    What was decided if it is there, else the best linked set, else the tightest ids: never one that another container
    of the pod was given. Only when too little is left (the kubelet knows better, then) it is what was drawn.
    """
    unit = part.resource.unit
    left = ids_of(geometry, unit, reusable)
    if len(left) < part.count:
        return drawn
    decided = mask_of(geometry, unit, _decided_ids(pod, part))
    if decided and decided & ~reusable == 0:
        return decided
    ids = preferred_ids(geometry, unit, available=left, must_include=(), free=reusable, size=part.count)
    return mask_of(geometry, unit, ids)


def _decided_ids(pod: NodePod, part: ContainerRequest) -> tuple[int, ...]:
    containers = pod.decision.containers if pod.decision else ()
    return next((one.ids for one in containers if one.request == part), ())
