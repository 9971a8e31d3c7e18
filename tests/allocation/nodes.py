"""Torn nodes and pods, for the properties of this room."""

from __future__ import annotations

from hypothesis import strategies as st

from neuron_plugin.allocation.narrowing import NO_FACTS, DeviceFacts
from neuron_plugin.allocation.node import Capacity
from neuron_plugin.allocation.placement import Placement
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import Resource, parse_ids
from neuron_plugin.topology import CoreMask, Geometry, Unit, sets_by_count
from tests.topology.oracle import INF1, INF2_LINE, TRN1, UNLINKED, distinct_geometries

SMALL = (INF1, INF2_LINE, UNLINKED, TRN1)
"""Geometries whose placements can be searched exhaustively."""
RESOURCES = {"neuron": Resource.NEURON, "core": Resource.NEURONCORE}


def any_geometry() -> st.SearchStrategy[Geometry]:
    return st.sampled_from(distinct_geometries())


@st.composite
def free_masks(draw: st.DrawFn, geometry: Geometry) -> int:
    """Free cores of a node: whole, torn by devices, torn by cores, or both."""
    devices = draw(st.sets(st.integers(0, geometry.device_count - 1)))
    cores = draw(st.sets(st.integers(0, geometry.core_count - 1), max_size=12))
    return geometry.all_mask & ~geometry.devices_mask(devices) & ~geometry.mask_of(Unit.CORE, cores)


@st.composite
def counts(draw: st.DrawFn, geometry: Geometry, unit: Unit) -> int:
    """Mostly counts that have a set, and some that have none."""
    valid = st.sampled_from(list(sets_by_count(geometry, unit)))
    return draw(st.one_of(valid, valid, valid, st.integers(1, geometry.core_count + 2)))


def device(count: int, name: str = "main", kind: ContainerKind = ContainerKind.APP) -> ContainerRequest:
    return ContainerRequest(name, kind, Resource.NEURONDEVICE, count)


def neuron(count: int, name: str = "main", kind: ContainerKind = ContainerKind.APP) -> ContainerRequest:
    return ContainerRequest(name, kind, Resource.NEURON, count)


def core(count: int, name: str = "main", kind: ContainerKind = ContainerKind.APP) -> ContainerRequest:
    return ContainerRequest(name, kind, Resource.NEURONCORE, count)


def request_of(text: str) -> PodRequest:
    """``init:4 core:2 sidecar:neuron:1``: of each container its kind (app), resource (neurondevice) and count."""
    made = []
    for index, word in enumerate(text.split()):
        *said, count = word.split(":")
        kind = next((kind for kind in ContainerKind if kind.name.lower() in said), ContainerKind.APP)
        resource = next((RESOURCES[name] for name in said if name in RESOURCES), Resource.NEURONDEVICE)
        made.append(ContainerRequest(f"c{index}", kind, resource, int(count)))
    return tuple(made)


def cores_of(geometry: Geometry, text: str) -> CoreMask:
    """``0-3`` or ``core:1-7``: those of devices, or cores by their own ids."""
    unit = Unit.CORE if text.startswith("core:") else Unit.DEVICE
    return geometry.mask_of(unit, parse_ids(text.removeprefix("core:")))


@st.composite
def pods(
    draw: st.DrawFn,
    geometry: Geometry,
    most: int = 4,
    kinds: tuple[ContainerKind, ...] = tuple(ContainerKind),
    resources: tuple[Resource, ...] = tuple(Resource),
) -> PodRequest:
    """Init and sidecar containers mixed, then apps."""
    drawn = draw(st.lists(st.tuples(st.sampled_from(kinds), st.sampled_from(resources)), min_size=1, max_size=most))
    ordered = sorted(drawn, key=lambda pair: pair[0] is ContainerKind.APP)
    return tuple(
        ContainerRequest(f"c{index}", kind, resource, draw(counts(geometry, resource.unit)))
        for index, (kind, resource) in enumerate(ordered)
    )


def place_on(
    geometry: Geometry, healthy: int, free: int, request: PodRequest, facts: DeviceFacts = NO_FACTS
) -> Placement | Rejection:
    """What a node with these healthy cores, of which some are free, has for a pod."""
    return Capacity(geometry, CoreMask(healthy), CoreMask(free & healthy), facts).place(request)
