"""A set for every requesting container of a pod, or why the pod does not fit.

The kubelet walks a pod's containers in order and gives later containers what plain init containers had, per resource
name: a container that needs no more than that gets a part of it unasked, one that needs more must include all of it
(pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate). A placement follows the same walk, so what it promises
is what admission will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuron_plugin.allocation.choice import candidates, choose, why_not
from neuron_plugin.allocation.refusals import Refusal, unhealthy
from neuron_plugin.allocation.requests import ContainerRequest, Kind, PodRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology.geometry import NO_CORES, CoreMask, Geometry

_STEPS = 5_000
"""Bound of the search over a pod's containers; a pod of 16 containers on a torus needs some dozens."""


@dataclass(frozen=True, slots=True)
class ContainerSet:
    """The cores one container of a pod gets under the resource it asked for."""

    request: ContainerRequest
    mask: CoreMask


Placement = tuple[ContainerSet, ...]
"""One set per requesting container, in the order of the request."""


def placement_mask(placement: Placement) -> CoreMask:
    """Every core a placement uses."""
    mask = 0
    for part in placement:
        mask |= part.mask
    return CoreMask(mask)


def place(geometry: Geometry, free: int, request: PodRequest) -> Placement | Refusal:
    """Sets for all requesting containers out of ``free``, or the refusal of the first that cannot be met."""
    search = _Search(geometry, request)
    found = search.solve(0, free, {})
    return found if found is not None else search.refusal(free)


def place_healthy(geometry: Geometry, healthy: int, free: int, request: PodRequest) -> Placement | Refusal:
    """Like ``place``, and told apart when no pod's end could help because hardware is missing or unhealthy."""
    found = place(geometry, free, request)
    if not isinstance(found, Refusal) or not found.can_pass:
        return found
    if not isinstance(place(geometry, healthy, request), Refusal):
        return found
    on_all = place(geometry, geometry.all_mask, request)
    if isinstance(on_all, Refusal):
        return on_all
    largest = max(request, key=lambda part: part.count)
    return unhealthy(largest.resource.unit, largest.count)


class _Search:
    """Depth-first over the containers, best sets first; remembers dead ends and gives up after ``_STEPS``."""

    def __init__(self, geometry: Geometry, request: PodRequest) -> None:
        self._geometry = geometry
        self._request = request
        self._dead: set[tuple[int, int, tuple[tuple[Resource, int], ...]]] = set()
        self._steps = _STEPS
        self._furthest = 0

    def solve(self, index: int, free: int, reusable: dict[Resource, int]) -> Placement | None:
        """Sets for the containers from ``index`` on; ``reusable`` is what plain init containers left, by resource."""
        if index == len(self._request):
            return ()
        state = (index, free, tuple(sorted(reusable.items())))
        if state in self._dead or self._steps <= 0:
            return None
        self._steps -= 1
        self._furthest = max(self._furthest, index)
        for mask in self._options(self._request[index], free, reusable):
            rest = self.solve(index + 1, free & ~mask, self._after(self._request[index], mask, reusable))
            if rest is not None:
                return (ContainerSet(self._request[index], mask), *rest)
        self._dead.add(state)
        return None

    def refusal(self, free: int) -> Refusal:
        """Why: the container that can never fit, else the one that stopped the search."""
        for part in self._request:
            alone = choose(self._geometry, free, part.resource.unit, part.count)
            if isinstance(alone, Refusal):
                return alone
        stuck = self._request[self._furthest]
        return why_not(self._geometry, NO_CORES, stuck.resource.unit, stuck.count)

    def _options(self, part: ContainerRequest, free: int, reusable: dict[Resource, int]) -> Iterator[CoreMask]:
        unit, held = part.resource.unit, reusable.get(part.resource, 0)
        fits_in_held = held and part.count <= held.bit_count() // self._cores_of_one(part)
        if fits_in_held:
            yield from candidates(self._geometry, held, unit, part.count)
        else:
            yield from candidates(self._geometry, free | held, unit, part.count, CoreMask(held))

    def _after(self, part: ContainerRequest, mask: int, reusable: dict[Resource, int]) -> dict[Resource, int]:
        """Plain init containers leave what they had to later ones; sidecars and apps keep theirs."""
        held = reusable.get(part.resource, 0)
        left = held | mask if part.kind is Kind.INIT else held & ~mask
        return {**reusable, part.resource: left}

    def _cores_of_one(self, part: ContainerRequest) -> int:
        return self._geometry.device_mask(0).bit_count() if part.resource is not Resource.NEURONCORE else 1
