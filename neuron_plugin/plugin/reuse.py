"""What a later container gets of the silicon its pod's init containers had.

The kubelet gives a container that needs no more than plain init containers left a random part of it, unasked
(pkg/kubelet/cm/devicemanager, devicesToAllocate). The pod has it all, so we give a linked part of the same size
instead. Whoever was given another part than the kubelet thinks must not meet its neighbour on the same device:
everything here is counted in what we gave.

Of a pod that nobody has named yet not even the kinds of its containers are known, so nor is what a sidecar keeps. There
the kubelet's ids and ours are kept one to one: containers that share nothing in its account share nothing in ours,
whatever they are. Only where nothing would remember a first such swap is none made: without an API server the pod gets
no annotation, and a plugin that restarts would believe the kubelet; with NUMA hints ids that come unasked may be new
ones, of another pod.
"""

from __future__ import annotations

from collections.abc import Iterable

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerRequest,
    Holder,
    Holding,
    Resource,
    ids_of,
    mask_of,
    union_of,
)
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.preference import preferred_ids
from neuron_plugin.topology import CoreMask, Geometry, cores_in, valid_sets


def reusable_mask(pod: NodePod, holder: Holder, resource: Resource) -> CoreMask:
    """What plain init containers hold and no later container of the pod has been given."""
    kinds = {part.container: part.kind for part in pod.request}
    left = [
        one for one in holder.holdings if one.resource is resource and kinds.get(one.container) is ContainerKind.INIT
    ]
    return CoreMask(union_of(left) & ~union_of(one for one in holder.holdings if one not in left))


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


def part_for_unknown(
    geometry: Geometry, held: Iterable[Holding], resource: Resource, drawn: CoreMask, *, swaps: bool
) -> CoreMask:
    """What a later container of a pod that nobody has named is given, for which the kubelet drew ``drawn``.

    ``held`` is what the pod had before. A linked set if one keeps the kubelet's ids and ours one to one; ids that are
    new to the pod stay what they are. Where a repeated call has broken the order, at least nothing that was given for
    other ids. ``swaps``: a first swap may be made. One that was made binds all that follow.
    """
    held = [one for one in held if one.resource is resource]
    pairs = [(one.on_account, one.mask) for one in held]
    if not swaps and all(theirs == ours for theirs, ours in pairs):
        return drawn
    before = sum(theirs for theirs, _ in _cells(pairs))
    cells = _cells([*pairs, (drawn & ~before, drawn & ~before)])
    if any(theirs.bit_count() != ours.bit_count() for theirs, ours in cells):
        new = drawn & ~before
        left = sum(ours for _, ours in cells) & ~new & ~given_apart(held, resource, drawn)
        cells = [(drawn & new, new), (drawn & ~new, left)]
    if any(ours.bit_count() < (theirs & drawn).bit_count() for theirs, ours in cells):
        return drawn
    wanted = [(ours, (theirs & drawn).bit_count()) for theirs, ours in cells]
    sets = valid_sets(geometry, resource.unit, len(ids_of(geometry, resource.unit, drawn)))
    choices = [drawn, *sets] if drawn in sets else [*sets, drawn]
    fitting = (one for one in choices if _takes(one, wanted))
    return CoreMask(next(fitting, _lowest(wanted)))


def given_apart(held: Iterable[Holding], resource: Resource, drawn: CoreMask) -> CoreMask:
    """What was given to containers that share nothing with this one in the kubelet's account."""
    return union_of(one for one in held if one.resource is resource and not one.on_account & drawn)


def _cells(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The least parts that the pairs tell apart, on both sides."""
    cells: list[tuple[int, int]] = []
    for pair in pairs:
        rest, split = pair, []
        for cell in cells:
            split += [_common(cell, pair), _beyond(cell, pair)]
            rest = _beyond(rest, cell)
        cells = [each for each in (*split, rest) if any(each)]
    return cells


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] & other[0], one[1] & other[1]


def _beyond(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] & ~other[0], one[1] & ~other[1]


def _takes(mask: int, wanted: Iterable[tuple[int, int]]) -> bool:
    """Whether a set has as many cores of each part as are wanted, and no others."""
    for part, cores in wanted:
        if (mask & part).bit_count() != cores:
            return False
        mask &= ~part
    return not mask


def _lowest(wanted: Iterable[tuple[int, int]]) -> int:
    """The lowest cores of each part; of whole devices whole devices."""
    return sum(1 << core for part, cores in wanted for core in cores_in(part)[:cores])


def _decided_ids(pod: NodePod, part: ContainerRequest) -> tuple[int, ...]:
    containers = pod.decision.containers if pod.decision else ()
    return next((one.ids for one in containers if one.request == part), ())
