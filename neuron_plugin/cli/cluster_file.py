"""A cluster as a document: the objects of the extender's monitor API, from there or from a file, as planning's values.

So one reader serves a running extender, what was saved of one (``curl``), and a simulated cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerRequest,
    PodReference,
    PodUid,
    Resource,
    format_ids,
    parse_ids,
)
from neuron_plugin.cli.command import CommandError
from neuron_plugin.planning import NodeState, PlannedPod
from neuron_plugin.topology import BLOCKS, CoreMask, Geometry, Topology, cores_in

SECONDS_AN_HOUR = 3600.0


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Names as in the monitor API; keys that are not needed here are passed over."""


class _Metadata(_Wire, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""


class _NodeSpec(_Wire, frozen=True):
    instance_type: str = ""
    topology: Topology = Topology.UNLINKED
    devices: int = 0
    cores_per_device: int = 0
    block_sizes: tuple[int, ...] | None = None


class _Holder(_Wire, frozen=True):
    namespace: str
    name: str
    uid: str
    cores: str


class _NodeStatus(_Wire, frozen=True):
    open: bool
    unhealthy_devices: dict[str, str] = {}
    missing_devices: str = ""
    holders: tuple[_Holder, ...] = ()


class NodeObject(_Wire, frozen=True):
    """A NeuronNode."""

    metadata: _Metadata
    spec: _NodeSpec
    status: _NodeStatus


class _Container(_Wire, frozen=True):
    name: str
    kind: ContainerKind
    resource: Resource
    count: int


class _PodSpec(_Wire, frozen=True):
    node_name: str = ""
    priority: int = 0
    containers: tuple[_Container, ...] = ()
    movable: bool = False
    recreated: bool = False
    since: datetime | None = None


class PodObject(_Wire, frozen=True):
    """A NeuronPod."""

    metadata: _Metadata
    spec: _PodSpec


class ClusterDocument(_Wire, frozen=True):
    """A cluster at one time."""

    nodes: tuple[NodeObject, ...]
    pods: tuple[PodObject, ...]
    time: datetime


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """A cluster as values: its nodes by name, the pods that wait, and the time in hours."""

    nodes: dict[str, NodeState]
    waiting: list[PlannedPod]
    now: float


def write_cluster(path: Path, nodes: Iterable[NodeState], waiting: Sequence[PlannedPod], hours: float) -> None:
    """Save a simulated cluster, whose clock reads ``hours``."""
    states = list(nodes)
    placed = [(pod, node.name) for node in states for pod in node.pods]
    base = time.time() - hours * SECONDS_AN_HOUR
    pods = tuple(_pod_object(pod, name, base) for pod, name in [*placed, *((pod, "") for pod in waiting)])
    at = datetime.fromtimestamp(base + hours * SECONDS_AN_HOUR, UTC)
    document = ClusterDocument(tuple(map(_node_object, states)), pods, at)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def read_cluster(path: Path) -> PlannedCluster:
    """Read a cluster from a file.

    Raises:
        CommandError: it is none.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=ClusterDocument)
        return planned(document.nodes, document.pods, document.time)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CommandError(f"{path} is no cluster: {error}; expected what 'simulate cluster --save' writes") from None


def planned(nodes: Iterable[NodeObject], pods: Iterable[PodObject], at: datetime) -> PlannedCluster:
    """The values of these objects.

    Raises:
        ValueError: ids or counts that no node can have.
    """
    found = {pod.metadata.uid: _planned_pod(pod) for pod in pods}
    states: dict[str, NodeState] = {}
    for node in nodes:
        states[node.metadata.name] = _node_state(node, found)
    bound = {pod.uid for state in states.values() for pod in state.pods}
    objects = {pod.metadata.uid: pod for pod in pods}
    waiting = [pod for uid, pod in found.items() if uid not in bound and not objects[uid].spec.node_name]
    return PlannedCluster(states, waiting, at.timestamp() / SECONDS_AN_HOUR)


def _node_state(node: NodeObject, pods: dict[str, PlannedPod]) -> NodeState:
    spec, status = node.spec, node.status
    blocks = BLOCKS.get(spec.topology, ()) if spec.block_sizes is None else spec.block_sizes
    geometry = Geometry(spec.instance_type, spec.topology, spec.devices, spec.cores_per_device, blocks)
    bad = {int(device) for device in status.unhealthy_devices} | set(_ids(status.missing_devices))
    has = []
    for holder in status.holders:
        reference = PodReference(PodUid(holder.uid), holder.namespace, holder.name)
        pod = pods.get(holder.uid) or PlannedPod(reference, ())
        has.append(replace(pod, mask=geometry.cores_mask(_ids(holder.cores))))
    offered = CoreMask(geometry.all_mask & ~geometry.devices_mask(bad))
    return NodeState(node.metadata.name, geometry, offered, tuple(has), status.open)


def _planned_pod(pod: PodObject) -> PlannedPod:
    spec, named = pod.spec, pod.metadata
    return PlannedPod(
        PodReference(PodUid(named.uid), named.namespace, named.name),
        tuple(ContainerRequest(each.name, each.kind, each.resource, each.count) for each in spec.containers),
        priority=spec.priority,
        movable=spec.movable,
        recreated=spec.recreated,
        since=spec.since.timestamp() / SECONDS_AN_HOUR if spec.since else 0.0,
    )


def _ids(text: str) -> tuple[int, ...]:
    """Ids as they stand in a document; the empty text is none."""
    return parse_ids(text) if text else ()


def _node_object(node: NodeState) -> NodeObject:
    geometry = node.geometry
    spec = _NodeSpec(
        geometry.instance_type,
        geometry.topology,
        geometry.device_count,
        geometry.cores_per_device,
        geometry.block_sizes,
    )
    holders = tuple(
        _Holder(pod.reference.namespace, pod.reference.name, pod.uid, format_ids(cores_in(pod.mask)))
        for pod in node.pods
    )
    return NodeObject(_Metadata(node.name), spec, _NodeStatus(node.open, holders=holders))


def _pod_object(pod: PlannedPod, node: str, base: float) -> PodObject:
    reference = pod.reference
    spec = _PodSpec(
        node,
        pod.priority,
        tuple(_Container(part.container, part.kind, part.resource, part.count) for part in pod.request),
        pod.movable,
        pod.recreated,
        datetime.fromtimestamp(base + pod.since * SECONDS_AN_HOUR, UTC),
    )
    return PodObject(_Metadata(reference.name, reference.namespace, reference.uid), spec)
