"""A set for every requesting container of a pod, or why the pod does not fit.

Pure functions of geometry, free cores and request, so plugin and extender choose the same sets on the same node. Of the
sets that fit, the one that costs later pods least is chosen: it breaks the fewest free sets of its size or larger
(``cost``). Ties go to the lowest ids.

The kubelet walks a pod's containers in order. It re-uses the devices of plain init containers for later ones, per
resource name. A container that needs no more than these gets a part of them without a choice; one that needs more must
include them all (pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate). A placement follows the same walk, so
admission can follow the placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from neuron_plugin.allocation.constraints import Constraints
from neuron_plugin.allocation.cost import costs, most_disjoint
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.narrowing import (
    NO_FACTS,
    DeviceFacts,
    Left,
    Narrowing,
    devices_of,
    never_met,
    unconstrained,
    usable_mask,
)
from neuron_plugin.allocation.rejection import (
    SHARED_DEVICE,
    Rejection,
    amount_used,
    amount_used_together,
    disabled,
    fragmented,
    not_allowed,
    not_free,
    too_many,
    too_many_together,
    unhealthy,
    unsupported_count,
)
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry, Unit, valid_sets

_MEMO_SIZE = 16_384
"""Cached states (geometry, free mask, request), some 20 MB at most; a cluster has fewer at a time."""


def fitting(geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES) -> list[CoreMask]:
    """The valid sets of ``count`` inside ``free`` and around ``must_include``, lowest ids first."""
    return [
        mask
        for mask in valid_sets(geometry, unit, count)
        if mask & free == mask and mask & must_include == must_include
    ]


@lru_cache(maxsize=_MEMO_SIZE)
def candidates(
    geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES, *, usable: int | None = None
) -> tuple[CoreMask, ...]:
    """The same sets, best first: by their cost for later pods, then by lowest ids.

    They lie inside ``usable`` if it is given: the part of ``free`` that the pod may have.
    """
    sets = fitting(geometry, free if usable is None else usable, unit, count, must_include)
    if len(sets) <= 1:
        return tuple(sets)
    return tuple(mask for _, mask in sorted(zip(costs(geometry, free, sets), sets, strict=True)))


def choose(geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES) -> CoreMask | Rejection:
    """The best set of ``count`` devices or cores, or the reason there is none.

    ``free`` are the cores that are not in use, of devices that are present and healthy; ``must_include`` is part of it.
    Bits of ``free`` outside the geometry are ignored.
    """
    within = free & geometry.all_mask
    sets = candidates(geometry, within, unit, count, must_include)
    return sets[0] if sets else why_not(geometry, within, unit, count)


def why_not(geometry: Geometry, free: int, unit: Unit, count: int) -> Rejection:
    """The reason why no set of ``count`` lies in ``free``; only called if there is none."""
    whole = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    if count > whole:
        return too_many(geometry, unit, count)
    if not valid_sets(geometry, unit, count):
        return unsupported_count(geometry, unit, count)
    available = len(fitting(geometry, free, unit, 1))
    return not_free(unit, count) if available < count else fragmented(geometry, unit, count)


_DETOURS = 200
"""Steps that the search may take besides one for each container: some 20 ms on the largest node."""

MOST_CONTAINERS = 256
"""Requesting containers of a pod: more than a node has cores for, and far below Python's recursion limit."""


@dataclass(frozen=True, slots=True)
class ContainerSet:
    """The cores that one container of a pod gets for its request."""

    request: ContainerRequest
    mask: CoreMask


Placement = tuple[ContainerSet, ...]
"""One set per requesting container, in the order of the request."""


@dataclass(frozen=True, slots=True)
class ContainerAssignment:
    """The ids assigned to one container, ascending, in the unit of its requested resource."""

    request: ContainerRequest
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A placement as ids, as written on a pod: one list for each requesting container, in the order of the request.

    ``alloc_time_ns`` is unix time. ``allocated``: the plugin has given the pod these ids.
    """

    containers: tuple[ContainerAssignment, ...]
    alloc_time_ns: int = 0
    allocated: bool = False


def assignment_of(geometry: Geometry, placement: Placement, alloc_time_ns: int) -> Assignment:
    """The ids of a placement on a node of this geometry."""
    parts = [
        (container.request, geometry.ids_of(container.request.resource.unit, container.mask)) for container in placement
    ]
    return Assignment(tuple(ContainerAssignment(*container) for container in parts), alloc_time_ns)


_Reusable = Mapping[Resource, CoreMask]
"""The cores of plain init containers that later containers re-use, by resource name."""


def placement_mask(placement: Placement) -> CoreMask:
    """Every core that a placement uses."""
    mask = 0
    for container in placement:
        mask |= container.mask
    return CoreMask(mask)


def is_constrained(request: PodRequest) -> bool:
    """Whether a request has constraints, amounts or attributes besides its counts."""
    return any(container.amounts or container.constraints or container.attributes for container in request)


def place(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts = NO_FACTS) -> Placement | Rejection:
    """Sets for all requesting containers out of ``free``, or why not; ``facts`` decide about constraints.

    Containers get the cheapest sets, one after another; if that fails, any sets that fit. The search is bounded: a pod
    of many unlike containers may be refused on a fragmented node although it would just fit.
    """
    if len(request) > MOST_CONTAINERS:
        return too_many_together(geometry)
    within = free & geometry.all_mask
    if is_constrained(request):
        return _place_constrained(geometry, within, request, facts)
    if len(request) == 1:  # nearly every pod: this takes half the time, and preemption asks thousands of times
        unit, count = request[0].resource.unit, request[0].count
        sets = candidates(geometry, within, unit, count)
        return (ContainerSet(request[0], sets[0]),) if sets else why_not(geometry, within, unit, count)
    masks = _search(geometry, within, request)
    if masks is None:
        return _why_not(geometry, within, request)
    return tuple(ContainerSet(container, mask) for container, mask in zip(request, masks, strict=True))


def why_not_ever(geometry: Geometry, healthy: int, request: PodRequest, facts: DeviceFacts) -> Rejection | None:
    """Why the end of other pods cannot help: hardware is missing, unhealthy or disabled. None if it could help.

    ``healthy`` are the cores that may be handed out.
    """
    if _has_room(geometry, healthy & geometry.all_mask, request, facts.unused):
        return None
    on_all = place(geometry, geometry.all_mask, request, facts.unused)
    if isinstance(on_all, Rejection):
        return replace(on_all, may_pass=False)
    without_pods = place(geometry, healthy, request, facts.unused)
    if isinstance(without_pods, Rejection) and _has_room(geometry, healthy, unconstrained(request), facts):
        return replace(without_pods, may_pass=False)
    largest = max(request, key=lambda container: cores_asked(geometry, container))
    enabled = healthy | facts.disabled_mask
    by_hand = facts.disabled_mask and not isinstance(place(geometry, enabled, request, facts.unused), Rejection)
    return (disabled if by_hand else unhealthy)(largest.resource.unit, largest.count)


def _place_constrained(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts) -> Placement | Rejection:
    if reason := never_met(geometry, request, facts):
        return reason
    narrowing = Narrowing(geometry, free, request, facts)
    if len(request) == 1:
        usable, (container,) = free & usable_mask(geometry, request[0], facts), request
        sets = candidates(geometry, free, container.resource.unit, container.count, usable=usable)
        masks = narrowing.options(0, sets, narrowing.start)[:1] or None
    else:
        masks = _search(geometry, free, request, narrowing)
    if masks is not None:
        return tuple(ContainerSet(container, mask) for container, mask in zip(request, masks, strict=True))
    plain = unconstrained(request)
    if _has_room(geometry, free, plain, facts):
        return _why_constrained(geometry, free, request, facts)
    return place(geometry, free, plain)


def _has_room(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts) -> bool:
    """Whether ``place`` finds sets for a request that ``never_met`` allows; faster for one container."""
    if len(request) != 1:
        narrowing = Narrowing(geometry, free, request, facts) if is_constrained(request) else None
        return _search(geometry, free, request, narrowing) is not None
    container = request[0]
    return bool(
        fitting(geometry, free & usable_mask(geometry, container, facts), container.resource.unit, container.count)
    )


def _why_constrained(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts) -> Rejection:
    """Names the first constraint that excludes all sets: allowed devices, then amounts, then a shared device."""
    constraints = request[0].constraints
    allowed = replace(constraints, same_device=()) if isinstance(constraints, Constraints) else constraints
    with_amounts = tuple(replace(container, constraints=allowed) for container in request)
    without = tuple(replace(container, amounts=()) for container in with_amounts)
    largest = max(request, key=lambda container: cores_asked(geometry, container))
    if not _has_room(geometry, free, without, facts):
        return not_allowed(largest.resource.unit, largest.count)
    if not _has_room(geometry, free, with_amounts, facts):
        return _why_amounts(geometry, free, with_amounts, facts)
    if _has_room(geometry, free, tuple(replace(container, amounts=()) for container in request), facts):
        name, _ = next(container.amounts[0] for container in request if container.amounts)
        return amount_used_together(PREFIX + name, on_one_device=True)
    return SHARED_DEVICE


def _why_amounts(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts) -> Rejection:
    """Names the amount that is too small for one container alone, else the one that is too small for all together."""
    named = [(container, name, amount) for container in request for name, amount in container.amounts]
    for container, name, amount in named:
        if not _has_room(geometry, free, (replace(container, amounts=((name, amount),)),), facts):
            return amount_used(PREFIX + name, amount // devices_of(geometry, container))
    return amount_used_together(PREFIX + named[0][1], on_one_device=False)


def _search(
    geometry: Geometry, free: int, request: PodRequest, narrowing: Narrowing | None = None
) -> tuple[CoreMask, ...] | None:
    lasting = [container for container in request if container.kind is not ContainerKind.INIT]
    if sum(cores_asked(geometry, container) for container in lasting) > free.bit_count():
        return None  # without a search, as most refusing nodes are full
    masks = _Walk(geometry, request, narrowing).solve(0, free, {}, narrowing.start if narrowing else None)
    if masks is not None or len(lasting) < len(request) or (narrowing and not narrowing.is_mask):
        return masks
    return pack(geometry, free & narrowing.usable_mask(0, narrowing.start) if narrowing else free, request)


class _Walk:
    """Depth-first over the containers as the kubelet walks them, best sets first; remembers dead ends."""

    def __init__(self, geometry: Geometry, request: PodRequest, narrowing: Narrowing | None) -> None:
        self._geometry = geometry
        self._request = request
        self._narrowing = narrowing
        self._steps = len(request) + _DETOURS
        self._dead: set[tuple[int, int, tuple[tuple[Resource, CoreMask], ...], Left | None]] = set()

    def solve(self, index: int, free: int, reusable: _Reusable, left: Left | None) -> tuple[CoreMask, ...] | None:
        """Sets for the containers from ``index`` on; ``left`` is the rest that constraints allow them."""
        if index == len(self._request):
            return ()
        state = (index, free, tuple(sorted(reusable.items())), left)
        if state in self._dead or self._steps <= 0:
            return None
        self._steps -= 1
        container = self._request[index]
        held = reusable.get(container.resource, NO_CORES)
        options = self._options(container, free, held)
        if self._narrowing and left:
            options = self._narrowing.options(index, options, left)
        for mask in options:
            then = self._narrowing.after(index, mask, left) if self._narrowing and left else None
            # Plain init containers leave their cores to later ones; sidecars and apps keep theirs.
            left_over = CoreMask(held | mask if container.kind is ContainerKind.INIT else held & ~mask)
            rest = self.solve(index + 1, free & ~mask, {**reusable, container.resource: left_over}, then)
            if rest is not None:
                return (mask, *rest)
        self._dead.add(state)
        return None

    def _options(self, container: ContainerRequest, free: int, held: CoreMask) -> tuple[CoreMask, ...]:
        unit = container.resource.unit
        if cores_asked(self._geometry, container) <= held.bit_count():
            return candidates(self._geometry, held, unit, container.count)
        return candidates(self._geometry, free | held, unit, container.count, held)


def _why_not(geometry: Geometry, free: int, request: PodRequest) -> Rejection:
    """The refusal of the first container that has no set alone, else the refusal of all together."""
    for container in request:
        alone = choose(geometry, free, container.resource.unit, container.count)
        if isinstance(alone, Rejection):
            return alone
    if free == geometry.all_mask:
        return too_many_together(geometry)
    lasting = [container for container in request if container.kind is not ContainerKind.INIT]
    unit, needed, available = (
        Unit.CORE,
        sum(cores_asked(geometry, container) for container in lasting),
        free.bit_count(),
    )
    if all(container.resource.unit is Unit.DEVICE for container in request):
        unit, needed = Unit.DEVICE, sum(container.count for container in lasting)
        available = len(geometry.whole_devices(free))
    if available < needed:
        return not_free(unit, needed)
    largest = max(request, key=lambda container: cores_asked(geometry, container))
    return fragmented(geometry, largest.resource.unit, largest.count)


# Disjoint sets for many containers.

_LOOKS = 100_000
"""Sets that the search may look at: some ten milliseconds."""


def pack(geometry: Geometry, free: int, request: PodRequest) -> tuple[CoreMask, ...] | None:
    """Disjoint valid sets inside ``free``, in the order of the containers; no plain init containers.

    None if there are none, or none was found within the bound.
    """
    ranks = [(-cores_asked(geometry, container), container.resource.unit) for container in request]
    order = sorted(range(len(request)), key=ranks.__getitem__)  # largest first, equal ones side by side
    masks = _Packing(geometry, [request[index] for index in order]).solve(0, free, 0)
    if masks is None:
        return None
    by_index = dict(zip(order, masks, strict=True))
    return tuple(by_index[index] for index in range(len(request)))


def cores_asked(geometry: Geometry, container: ContainerRequest) -> int:
    """How many cores a container asks for, whatever its unit."""
    return container.count * (geometry.cores_per_device if container.resource.unit is Unit.DEVICE else 1)


def lasting_cores(request: PodRequest, geometry: Geometry) -> int:
    """How many cores a pod has for its whole life, without the cores of plain init containers."""
    return sum(cores_asked(geometry, container) for container in request if container.kind is not ContainerKind.INIT)


class _Packing:
    """Depth-first over containers with equal ones side by side; remembers dead ends."""

    def __init__(self, geometry: Geometry, parts: list[ContainerRequest]) -> None:
        self._geometry = geometry
        self._demands = [(container.resource.unit, container.count) for container in parts]
        self._looks = _LOOKS
        self._dead: set[tuple[int, int, int]] = set()

    def solve(self, index: int, free: int, above: int) -> tuple[CoreMask, ...] | None:
        """Sets for the parts from ``index`` on; equal parts get theirs in ascending order, above ``above``."""
        if index == len(self._demands):
            return ()
        if (index, free, above) in self._dead:
            return None
        is_like_next = self._like_ahead(index) > 1
        for mask in self._options(index, free, above):
            rest = self.solve(index + 1, free & ~mask, mask if is_like_next else 0)
            if rest is not None:
                return (mask, *rest)
        self._dead.add((index, free, above))
        return None

    def _options(self, index: int, free: int, above: int) -> list[CoreMask]:
        """The remaining sets for a part; none if they are too few for all equal parts, or the bound is reached."""
        unit, count = self._demands[index]
        self._looks -= len(valid_sets(self._geometry, unit, count))
        if self._looks < 0:
            return []
        options = [mask for mask in fitting(self._geometry, free, unit, count) if mask > above]
        return options if most_disjoint(options) >= self._like_ahead(index) else []

    def _like_ahead(self, index: int) -> int:
        """How many parts from ``index`` on are equal; equal parts are side by side."""
        return self._demands[index:].count(self._demands[index])
