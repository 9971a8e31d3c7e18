"""A set for every requesting container of a pod, or why the pod does not fit.

The kubelet walks a pod's containers in order and gives later containers what plain init containers had, per resource
name: a container that needs no more than that gets a part of it unasked, one that needs more must include all of it
(pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate). A placement follows the same walk, so what it promises
is what admission will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuron_plugin.allocation.choice import candidates, choose
from neuron_plugin.allocation.packing import cores_asked, pack
from neuron_plugin.allocation.refusals import Refusal, crowded, fragmented, not_free, unhealthy
from neuron_plugin.allocation.requests import ContainerRequest, Kind, PodRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry, Unit

_DETOURS = 200
"""Steps the search may take beyond one per container: some 20 ms on the largest node."""

MOST_CONTAINERS = 256
"""Requesting containers a pod may have: more than a node has cores for, and far from Python's recursion limit."""


@dataclass(frozen=True, slots=True)
class ContainerSet:
    """The cores one container of a pod gets under the resource it asked for."""

    request: ContainerRequest
    mask: CoreMask


Placement = tuple[ContainerSet, ...]
"""One set per requesting container, in the order of the request."""

_Reusable = Mapping[Resource, CoreMask]
"""What plain init containers left for later containers, by resource name."""


def placement_mask(placement: Placement) -> CoreMask:
    """Every core a placement uses."""
    mask = 0
    for part in placement:
        mask |= part.mask
    return CoreMask(mask)


def place(geometry: Geometry, free: int, request: PodRequest) -> Placement | Refusal:
    """Sets for all requesting containers out of ``free``, or why not.

    The cheapest sets first, container by container; where that leads into a dead end, any sets that fit. The search is
    bounded: for a pod of many unlike containers on a torn node it may refuse what would just have fitted.
    """
    if len(request) > MOST_CONTAINERS:
        return crowded(geometry)
    within = free & geometry.all_mask
    if len(request) == 1:  # nearly every pod: half the time, and preemption asks thousands of times
        return _place_one(geometry, within, request[0])
    masks = _search(geometry, within, request)
    if masks is None:
        return _why_not(geometry, within, request)
    return tuple(ContainerSet(part, mask) for part, mask in zip(request, masks, strict=True))


def place_healthy(geometry: Geometry, healthy: int, free: int, request: PodRequest) -> Placement | Refusal:
    """Like ``place``, and told apart when no pod's end could help because hardware is missing or unhealthy."""
    found = place(geometry, free & healthy, request)
    if not isinstance(found, Refusal) or not found.can_pass:
        return found
    if not isinstance(place(geometry, healthy, request), Refusal):
        return found
    on_all = place(geometry, geometry.all_mask, request)
    if isinstance(on_all, Refusal):
        return on_all
    largest = max(request, key=lambda part: cores_asked(geometry, part))
    return unhealthy(largest.resource.unit, largest.count)


def _search(geometry: Geometry, free: int, request: PodRequest) -> tuple[CoreMask, ...] | None:
    lasting = [part for part in request if part.kind is not Kind.INIT]
    if sum(cores_asked(geometry, part) for part in lasting) > free.bit_count():
        return None  # seen without a search: a full node is the commonest of all
    masks = _Walk(geometry, request).solve(0, free, {})
    return pack(geometry, free, request) if masks is None and len(lasting) == len(request) else masks


class _Walk:
    """Depth-first over the containers as the kubelet walks them, best sets first; remembers dead ends."""

    def __init__(self, geometry: Geometry, request: PodRequest) -> None:
        self._geometry = geometry
        self._request = request
        self._steps = len(request) + _DETOURS
        self._dead: set[tuple[int, int, tuple[tuple[Resource, CoreMask], ...]]] = set()

    def solve(self, index: int, free: int, reusable: _Reusable) -> tuple[CoreMask, ...] | None:
        """Sets for the containers from ``index`` on."""
        if index == len(self._request):
            return ()
        state = (index, free, tuple(sorted(reusable.items())))
        if state in self._dead or self._steps <= 0:
            return None
        self._steps -= 1
        part = self._request[index]
        for mask in self._options(part, free, reusable.get(part.resource, NO_CORES)):
            rest = self.solve(index + 1, free & ~mask, _left(part, mask, reusable))
            if rest is not None:
                return (mask, *rest)
        self._dead.add(state)
        return None

    def _options(self, part: ContainerRequest, free: int, held: CoreMask) -> tuple[CoreMask, ...]:
        unit = part.resource.unit
        if cores_asked(self._geometry, part) <= held.bit_count():
            return candidates(self._geometry, held, unit, part.count)
        return candidates(self._geometry, free | held, unit, part.count, held)


def _left(part: ContainerRequest, mask: CoreMask, reusable: _Reusable) -> _Reusable:
    """Plain init containers leave what they had to later ones; sidecars and apps keep theirs."""
    held = reusable.get(part.resource, NO_CORES)
    left = held | mask if part.kind is Kind.INIT else held & ~mask
    return {**reusable, part.resource: CoreMask(left)}


def _place_one(geometry: Geometry, free: int, part: ContainerRequest) -> Placement | Refusal:
    chosen = choose(geometry, free, part.resource.unit, part.count)
    return chosen if isinstance(chosen, Refusal) else (ContainerSet(part, chosen),)


def _why_not(geometry: Geometry, free: int, request: PodRequest) -> Refusal:
    """The refusal of the first container that has no set of its own, else of all of them together."""
    for part in request:
        alone = choose(geometry, free, part.resource.unit, part.count)
        if isinstance(alone, Refusal):
            return alone
    if free == geometry.all_mask:
        return crowded(geometry)
    unit, needed, available = _together(geometry, free, request)
    if available < needed:
        return not_free(unit, needed)
    largest = max(request, key=lambda part: cores_asked(geometry, part))
    return fragmented(largest.resource.unit, largest.count)


def _together(geometry: Geometry, free: int, request: PodRequest) -> tuple[Unit, int, int]:
    """What sidecars and apps need together, and what is free of it; in devices where all ask for these."""
    lasting = [part for part in request if part.kind is not Kind.INIT]
    if all(part.resource.unit is Unit.DEVICE for part in request):
        return Unit.DEVICE, sum(part.count for part in lasting), len(geometry.whole_devices(free))
    return Unit.CORE, sum(cores_asked(geometry, part) for part in lasting), free.bit_count()
