"""Narrows a node's free cores by a pod's constraints and amounts, container by container.

Constraints become masks, and amounts become the rest on each device. Both only exclude sets before the usual choice;
preferences order the remaining sets. The cost of a set still counts all free cores. Like cores, amounts are held by
pods: the rest follows from the pods on the node and is not stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

from neuron_plugin.allocation.claims import Attributes, devices_with
from neuron_plugin.allocation.constraints import ANY_DEVICE, Constraints
from neuron_plugin.allocation.keys import ALLOW_KEY, DENY_KEY, DEVICE_NAME_KEY, PREFIX, SAME_DEVICE_KEY
from neuron_plugin.allocation.rejection import (
    TOO_LARGE_TO_SHARE,
    UNKNOWN_PRODUCT,
    WRONG_ATTRIBUTES,
    WRONG_PRODUCT,
    Rejection,
    amount_not_divisible,
    amount_too_large,
    amount_unknown,
)
from neuron_plugin.allocation.requests import Amounts, ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.topology import MOST_SHAPES, NO_CORES, CoreMask, Geometry, InstanceType, Unit, family_of

ByDevice = tuple[tuple[str, tuple[int, ...]], ...]
"""Amounts by name, each with a number for every device."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts about a node's devices that constraints need. All devices of a node are of one product.

    ``names`` are the product and its family in lower case. ``amounts`` are those of each device. ``used`` are the
    amounts that pods have, empty if no pod on the node asked for any. ``disabled_mask`` are cores that could be handed
    out if an operator had not disabled their devices.
    """

    names: frozenset[str] = frozenset()
    numa_nodes: tuple[int, ...] = ()
    amounts: Amounts = ()
    used: ByDevice = ()
    disabled_mask: CoreMask = NO_CORES

    @property
    def unused(self) -> DeviceFacts:
        """The facts of the node without its pods."""
        return replace(self, used=()) if self.used else self


NO_FACTS = DeviceFacts()

_REMEMBERED = 4_096
"""Cached answers by geometry, request and facts: a cluster has few of each, and they do not depend on free cores."""


@lru_cache(maxsize=MOST_SHAPES)
def device_facts(device_name: str, instance_type: str, known: InstanceType | None) -> DeviceFacts:
    """The facts of a node, from its plugin and from the catalogue's entry for its type, if any."""
    product = device_name or (known.device_name if known else "")
    names = frozenset(filter(None, (product.lower(), family_of(instance_type) if product else "")))
    return DeviceFacts(names, known.numa_nodes, known.device_amounts) if known else DeviceFacts(names)


def unconstrained(request: PodRequest) -> PodRequest:
    """The request with its counts alone."""
    return tuple(replace(container, amounts=(), constraints=None, attributes=()) for container in request)


@lru_cache(maxsize=_REMEMBERED)
def never_met(geometry: Geometry, request: PodRequest, facts: DeviceFacts) -> Rejection | None:
    """Why a node like this can never meet a request, whatever is free; None if nothing speaks against it."""
    constraints = request[0].constraints
    if isinstance(constraints, Rejection):
        return constraints
    if constraints and constraints.products:
        if not facts.names:
            return UNKNOWN_PRODUCT
        if not constraints.products & facts.names:
            return WRONG_PRODUCT
    has = dict(facts.amounts)
    for container in request:
        devices = devices_of(geometry, container)
        if container.attributes and len(devices_with(geometry, container.attributes)) < devices:
            return WRONG_ATTRIBUTES
        for name, amount in container.amounts:
            per_device, rest = divmod(amount, devices)
            if rest:
                return amount_not_divisible(PREFIX + name, amount, devices)
            if name not in has:
                return amount_unknown(PREFIX + name)
            if per_device > has[name]:
                return amount_too_large(PREFIX + name, per_device, has[name])
    sharing = [request[place] for place in constraints.same_device] if constraints else []
    if _lasting(sharing) > geometry.cores_per_device or any(
        devices_of(geometry, container) > 1 for container in sharing
    ):
        return TOO_LARGE_TO_SHARE
    totals: defaultdict[str, int] = defaultdict(int)
    for container in sharing:
        for name, amount in container.amounts if container.kind is not ContainerKind.INIT else ():
            totals[name] += amount
    for name, amount in totals.items():
        if amount > has[name]:
            return amount_too_large(PREFIX + name, amount, has[name])
    return None


def usable_mask(geometry: Geometry, container: ContainerRequest, facts: DeviceFacts) -> int:
    """The cores that constraints and amounts allow a container by itself, used or not; all bits without any."""
    narrows = container.amounts or container.constraints or container.attributes
    return _usable_mask(geometry, container, facts) if narrows else -1


@lru_cache(maxsize=_REMEMBERED)
def _usable_mask(geometry: Geometry, container: ContainerRequest, facts: DeviceFacts) -> CoreMask:
    if isinstance(container.constraints, Constraints):
        container = replace(container, constraints=replace(container.constraints, same_device=()))
    if never_met(geometry, (container,), facts):
        return NO_CORES
    narrowing = Narrowing(geometry, geometry.all_mask, (container,), facts)
    return narrowing.usable_mask(0, narrowing.start)


def constraint_not_kept(
    geometry: Geometry, request: PodRequest, facts: DeviceFacts, has: Mapping[str, CoreMask]
) -> str:
    """Which constraint a pod's cores break, ``has`` by container; empty if they keep all.

    Without the extender, the scheduler only counts devices, and the kubelet does not know annotations of pods.
    """
    constraints = request[0].constraints
    if not isinstance(constraints, Constraints) or not has:
        return ""
    if constraints.products and not constraints.products & facts.names:
        product = " or ".join(sorted(facts.names)) or "of an unknown product"
        return (
            f"{DEVICE_NAME_KEY} is {','.join(sorted(constraints.products))}, and the devices of this node are {product}"
        )
    allowed = _cores_of(geometry, constraints.allowed_devices)
    if outside := geometry.devices_touched(reduce(or_, has.values(), 0) & ~allowed):
        return f"device {format_ids(outside)} is not among those that {ALLOW_KEY} and {DENY_KEY} leave"
    names = [request[place].name for place in constraints.same_device if request[place].name in has]
    shared = geometry.devices_touched(reduce(or_, (has[name] for name in names), 0))
    if len(shared) > 1:
        return f"{SAME_DEVICE_KEY} names containers {', '.join(names)}, and they have devices {format_ids(shared)}"
    return ""


class Left(NamedTuple):
    """The rest after the containers placed so far: the cores of the shared device, and amounts by device."""

    shared_mask: int
    amounts: ByDevice


class Narrowing:
    """The constraints of one request on one node; ``never_met`` must not have refused ``request``."""

    def __init__(self, geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts) -> None:
        constraints = request[0].constraints
        self._constraints = constraints if isinstance(constraints, Constraints) else Constraints()
        self._geometry = geometry
        self._request = request
        self._facts = facts
        self._allowed_mask = _cores_of(geometry, self._constraints.allowed_devices)
        shared = [request[place] for place in self._constraints.same_device]
        eligible = geometry.all_mask
        if shared:
            usable, asked = free & self._allowed_mask, _lasting(shared)
            devices = range(geometry.device_count)
            eligible = geometry.devices_mask(
                device for device in devices if (geometry.device_mask(device) & usable).bit_count() >= asked
            )
        balanced = {self._constraints.balance} - {""}
        names = balanced.union(name for container in request for name, _ in container.amounts)
        used = dict(facts.used)
        none = (0,) * geometry.device_count
        amounts = tuple(
            (name, tuple(has - amount for amount in used.get(name, none)))
            for name, has in facts.amounts
            if name in names
        )
        self.start = Left(eligible, amounts)

    @property
    def is_mask(self) -> bool:
        """Whether all containers may have the same cores, however many of them are placed."""
        differ = any(container.attributes != self._request[0].attributes for container in self._request)
        return not (self._constraints.same_device or differ or any(container.amounts for container in self._request))

    def options(self, place: int, sets: Sequence[CoreMask], left: Left) -> tuple[CoreMask, ...]:
        """The sets that a container may have, preferred ones first and otherwise in the given order."""
        usable = self.usable_mask(place, left)
        usable_sets = [mask for mask in sets if mask & usable == mask]
        if self._constraints.has_preference:
            row = dict(left.amounts).get(self._constraints.balance, ())
            usable_sets.sort(key=lambda mask: self._rank(mask, row))
        return tuple(usable_sets)

    def usable_mask(self, place: int, left: Left) -> CoreMask:
        """The cores that a container may have, used or not."""
        usable, rows = int(self._allowed_mask), dict(left.amounts)
        usable &= _cores_with(self._geometry, self._request[place].attributes)
        if place in self._constraints.same_device:
            usable &= left.shared_mask
        for name, need in self._needs(self._request[place]):
            usable &= self._geometry.devices_mask(device for device, has in enumerate(rows[name]) if has >= need)
        return CoreMask(usable)

    def after(self, place: int, mask: CoreMask, left: Left) -> Left:
        """The rest once a container has these cores. The amounts of plain init containers are free again."""
        container, devices = self._request[place], self._geometry.devices_touched(mask)
        shared_mask, amounts = left
        if place in self._constraints.same_device:
            shared_mask = self._geometry.devices_mask(devices)
        if container.amounts and container.kind is not ContainerKind.INIT:
            needs = dict(self._needs(container))
            amounts = tuple(
                (name, tuple(has - needs.get(name, 0) * (device in devices) for device, has in enumerate(row)))
                for name, row in amounts
            )
        return Left(shared_mask, amounts)

    def _needs(self, container: ContainerRequest) -> Amounts:
        devices = devices_of(self._geometry, container)
        return tuple((name, amount // devices) for name, amount in container.amounts)

    def _rank(self, mask: CoreMask, row: tuple[int, ...]) -> tuple[int, int, int]:
        """Sort key: devices that are not preferred, NUMA nodes, and minus the smallest rest of the balanced amount."""
        devices, preferred = self._geometry.devices_touched(mask), self._constraints.preferred_devices
        others = sum(not preferred >> device & 1 for device in devices) if preferred else 0
        nodes = {self._facts.numa_nodes[device] for device in devices if device < len(self._facts.numa_nodes)}
        least = min((row[device] for device in devices), default=0) if row else 0
        return others, len(nodes) if self._constraints.prefer_numa else 0, -least


def devices_of(geometry: Geometry, container: ContainerRequest) -> int:
    """How many devices each valid set of a container's count touches."""
    if container.resource.unit is Unit.DEVICE:
        return container.count
    return -(-container.count // max(geometry.cores_per_device, 1))


def _lasting(parts: Iterable[ContainerRequest]) -> int:
    """The cores of the containers that run at the same time."""
    return sum(container.count for container in parts if container.kind is not ContainerKind.INIT)


@lru_cache(maxsize=1024)
def _cores_with(geometry: Geometry, attributes: Attributes) -> CoreMask:
    return geometry.devices_mask(devices_with(geometry, attributes)) if attributes else geometry.all_mask


@lru_cache(maxsize=1024)
def _cores_of(geometry: Geometry, devices: int) -> CoreMask:
    if devices == ANY_DEVICE:
        return geometry.all_mask
    return geometry.devices_mask(device for device in range(geometry.device_count) if devices >> device & 1)
