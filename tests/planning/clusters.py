"""Small clusters on paper, and an oracle that tries everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from hypothesis import strategies as st

from neuron_plugin.allocation import PodReference, PodRequest, PodUid
from neuron_plugin.planning import NodeState, PlannedPod, parse_shape
from neuron_plugin.topology import CoreMask, Geometry, Topology, valid_sets
from tests.support.manifests import shipped_geometry

TRN1 = shipped_geometry("trn1.32xlarge")
INF2 = shipped_geometry("inf2.24xlarge")
LINE = Geometry("small", Topology.LINE, 4, 2)


def pod(
    name: str, shape: str, mask: int = 0, *, movable: bool = True, priority: int = 0, since: float = 0.0
) -> PlannedPod:
    reference = PodReference(PodUid(name), "ml", name)
    return PlannedPod(reference, parse_shape(shape), CoreMask(mask), priority, movable, recreated=True, since=since)


def devices(name: str, *ids: int, geometry: Geometry = TRN1, movable: bool = True, since: float = 0.0) -> PlannedPod:
    """A pod that has these devices."""
    return pod(name, f"neuron={len(ids)}", geometry.devices_mask(ids), movable=movable, since=since)


def node(name: str, *pods: PlannedPod, geometry: Geometry = TRN1, is_open: bool = True) -> NodeState:
    return NodeState(name, geometry, geometry.all_mask, pods, is_open)


def cluster(*nodes: NodeState) -> dict[str, NodeState]:
    return {each.name: each for each in nodes}


def sets_of(geometry: Geometry, request: PodRequest) -> tuple[CoreMask, ...]:
    return valid_sets(geometry, request[0].resource.unit, request[0].count)


SHAPES = ("neuroncore=1", "neuron=1", "neuron=2", "neuron=3", "neuron=4")


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, NodeState]:
    """Two or three nodes of four devices in a line, with pods in random valid places, some of them not movable."""
    states = {}
    for number in range(draw(st.integers(2, 3))):
        state, name = node(f"n{number}", geometry=LINE), f"n{number}"
        for shape in draw(st.lists(st.sampled_from(SHAPES[:4]), max_size=5)):
            free = [mask for mask in sets_of(LINE, parse_shape(shape)) if not mask & state.used_mask]
            if free:
                mask, uid = draw(st.sampled_from(free)), f"{name}-{len(state.pods)}"
                age = draw(st.integers(0, 5))
                state = state.with_pod(pod(uid, shape, mask, movable=draw(st.booleans()), since=-age))
        states[name] = state
    return states


def one_victim_moves(nodes: Mapping[str, NodeState], waiting: PlannedPod) -> Iterator[tuple[float, str]]:
    """Every way to serve a pod by moving one other: what it loses by now (0), and who goes. Tries everything."""
    for source in nodes.values():
        for victim in source.pods:
            if not victim.movable:
                continue
            without = {**nodes, source.name: source.without({victim.uid})}
            places = product(without, sets_of(LINE, waiting.request), without, sets_of(LINE, victim.request))
            for name, mask, home, home_mask in places:
                if mask & without[name].used_mask or home_mask & without[home].used_mask:
                    continue
                if name == home and mask & home_mask:
                    continue
                yield victim.mask.bit_count() / LINE.cores_per_device * -victim.since, victim.uid
