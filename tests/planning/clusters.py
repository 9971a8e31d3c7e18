"""Small clusters on paper, and an oracle that tries everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from neuron_plugin.allocation import (
    ContainerSet,
    NeuronNode,
    NeuronPod,
    NodeInfo,
    NodeInventory,
    Placement,
    PodReference,
    PodRequest,
    PodUid,
)
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.shapes import parse_shape
from neuron_plugin.planning import Cluster, Judgement, Move, Scene, judge_all
from neuron_plugin.topology import CoreMask, Geometry, Topology, valid_sets
from tests.support.manifests import shipped_geometry

TRN1 = shipped_geometry("trn1.32xlarge")
INF2 = shipped_geometry("inf2.24xlarge")
LINE = Geometry("small", Topology.LINE, 4, 2)
HOUR = 3600.0


@dataclass(frozen=True)
class Held:
    """A pod, and the cores that it has on its node."""

    pod: NeuronPod
    mask: CoreMask

    @property
    def placement(self) -> Placement:
        return (ContainerSet(self.pod.requests[0], self.mask),)


@dataclass(frozen=True)
class OnNode:
    """A node and its pods."""

    info: NodeInfo
    held: tuple[Held, ...]


def pod(
    name: str,
    shape: str,
    *,
    movable: bool | None = True,
    priority: int = 0,
    since: float = 0.0,
    controller: str = "ReplicaSet/web",
    request: PodRequest = (),
) -> NeuronPod:
    """A pod that works since some hours."""
    return NeuronPod(
        PodReference(PodUid(name), "ml", name),
        request or parse_shape(shape),
        priority=priority,
        movable=movable,
        controller=controller,
        last_checkpoint=since * HOUR,
    )


def held(waiting: NeuronPod, mask: int) -> Held:
    return Held(waiting, CoreMask(mask))


def devices(name: str, *ids: int, geometry: Geometry = TRN1, movable: bool | None = True, **more: float) -> Held:
    """A pod that has these devices."""
    fields = {"priority": int(more.get("priority", 0)), "since": more.get("since", 0.0)}
    made = pod(name, f"neuron={len(ids)}", movable=movable, since=fields["since"], priority=int(fields["priority"]))
    return held(made, geometry.devices_mask(ids))


def node(name: str, *pods: Held, geometry: Geometry = TRN1, is_open: bool = True, sick: tuple[int, ...] = ()) -> OnNode:
    """A node with these pods; one that is not open has a plugin that is silent."""
    present = tuple(range(geometry.device_count))
    inventory = NodeInventory(geometry, present, unhealthy=dict.fromkeys(sick, "ECC"))
    info = node_info(NeuronNode(name, name, inventory), (), stale=not is_open)
    for one in pods:
        info = info.with_pod(one.pod.reference, one.placement)
    return OnNode(info, pods)


def cluster(*nodes: OnNode, waiting: tuple[NeuronPod, ...] = ()) -> Cluster:
    placed = [replace(one.pod, node=on.info.name) for on in nodes for one in on.held]
    return Cluster({on.info.name: on.info for on in nodes}, {one.uid: one for one in (*placed, *waiting)})


def judged(before: Cluster, waiting: Iterable[NeuronPod], **more: Any) -> list[Judgement]:
    return judge_all(Scene(before), waiting, **more)


def with_pod(before: Cluster, name: str, waiting: NeuronPod, placement: Placement) -> Cluster:
    """The cluster with one more pod on a node."""
    nodes = {**before.nodes, name: before.nodes[name].with_pod(waiting.reference, placement)}
    return replace(before, nodes=nodes, pods={**before.pods, waiting.uid: replace(waiting, node=name)})


def with_move(before: Cluster, move: Move) -> Cluster:
    """The cluster with a move made."""
    pods = {victim.pod.uid: replace(victim.pod, node=victim.target) for victim in move.victims}
    pods[move.pod.uid] = replace(move.pod, node=move.node)
    return replace(before, nodes={**before.nodes, **move.made_on(before.nodes)}, pods={**before.pods, **pods})


def sets_of(geometry: Geometry, request: PodRequest) -> tuple[CoreMask, ...]:
    return valid_sets(geometry, request[0].resource.unit, request[0].count)


SHAPES = ("neuroncore=1", "neuron=1", "neuron=2", "neuron=3", "neuron=4")
NOW = 10.0


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Two or three nodes of four devices in a line, with pods in random valid places, some of them not movable."""
    nodes = []
    for number in range(draw(st.integers(2, 3))):
        pods, used, name = list[Held](), 0, f"n{number}"
        for shape in draw(st.lists(st.sampled_from(SHAPES[:4]), max_size=5)):
            free = [mask for mask in sets_of(LINE, parse_shape(shape)) if not mask & used]
            if free:
                mask, uid = draw(st.sampled_from(free)), f"{name}-{len(pods)}"
                age = draw(st.integers(0, 5))
                pods.append(held(pod(uid, shape, movable=draw(st.booleans()), since=NOW - age), mask))
                used |= mask
        nodes.append(node(name, *pods, geometry=LINE))
    return cluster(*nodes)


def one_victim_moves(before: Cluster, waiting: NeuronPod) -> Iterator[tuple[float, str]]:
    """Every way to serve a pod by moving one other: what it loses by now, and who goes. Tries everything."""
    for source, info in before.nodes.items():
        for uid in info.ledger.by_pod:
            victim, mask_before = before.pods[uid], info.ledger.mask_of(uid)
            if not victim.movable:
                continue
            used = {name: other.used_mask for name, other in before.nodes.items()}
            used[source] = CoreMask(used[source] & ~mask_before)
            places = product(used, sets_of(LINE, waiting.requests), used, sets_of(LINE, victim.requests))
            for name, mask, home, home_mask in places:
                if mask & used[name] or home_mask & used[home] or (name == home and mask & home_mask):
                    continue
                age = NOW - victim.last_checkpoint / HOUR
                yield mask_before.bit_count() / LINE.cores_per_device * age, victim.uid


def held_once(nodes: Mapping[str, NodeInfo], pods: Mapping[PodUid, NeuronPod]) -> bool:
    """No core is in two pods' sets, and each set is a valid one of its pod's request."""
    for info in nodes.values():
        if sum(one.mask.bit_count() for one in info.ledger.allocations) != info.used_mask.bit_count():
            return False
        geometry = info.inventory.geometry if info.inventory else LINE
        for uid, allocations in info.ledger.by_pod.items():
            if any(one.mask not in sets_of(geometry, pods[uid].requests) for one in allocations):
                return False
    return True
