"""A cluster in a file: the monitor API's objects, which ``simulate cluster --save`` writes and ``plan`` reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from neuron_plugin.allocation import format_ids
from neuron_plugin.cli.command import UsageError
from neuron_plugin.extender.planned import SECONDS_AN_HOUR
from neuron_plugin.extender.views import (
    ContainerDemand,
    Holder,
    NodeSpec,
    NodeStatus,
    NodeView,
    PodSpec,
    PodStatus,
    PodView,
    ViewMetadata,
)
from neuron_plugin.planning import NodeState, PlannedPod
from neuron_plugin.topology import cores_in


class ClusterFile(msgspec.Struct, frozen=True):
    """The nodes and pods of a cluster, and the time in unix seconds at which they were so."""

    nodes: tuple[NodeView, ...]
    pods: tuple[PodView, ...]
    time: float = 0.0


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster from a file.

    Raises:
        UsageError: the file has none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = "expected NeuronNodes and NeuronPods, as 'neuron-plugin simulate cluster --save' writes them"
        raise UsageError(f"--cluster {path} is no cluster: {error}; {text}") from None


def write_cluster(path: Path, nodes: Iterable[NodeState], waiting: Sequence[PlannedPod], hours: float) -> None:
    """Save a simulated cluster whose clock reads ``hours``, as if that were now."""
    states, now = list(nodes), time.time()
    began = now - hours * SECONDS_AN_HOUR
    pods = [_pod_view(pod, node.name, began) for node in states for pod in node.pods]
    pods += [_pod_view(pod, "", began) for pod in waiting]
    document = ClusterFile(tuple(map(_node_view, states)), tuple(pods), now)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _node_view(node: NodeState) -> NodeView:
    geometry = node.geometry
    spec = NodeSpec(
        instance_type=geometry.instance_type,
        topology=geometry.topology.value,
        devices=geometry.device_count,
        cores_per_device=geometry.cores_per_device,
        block_sizes=geometry.block_sizes,
    )
    holders = tuple(
        Holder(
            pod.reference.namespace,
            pod.reference.name,
            pod.uid,
            format_ids(cores_in(pod.mask)),
            format_ids(geometry.devices_touched(pod.mask)),
        )
        for pod in node.pods
    )
    return NodeView(metadata=ViewMetadata(node.name), spec=spec, status=NodeStatus(open=node.open, holders=holders))


def _pod_view(pod: PlannedPod, node: str, began: float) -> PodView:
    reference = pod.reference
    spec = PodSpec(
        node,
        pod.priority,
        tuple(
            ContainerDemand(each.container, each.kind.value, each.resource.value, each.count) for each in pod.request
        ),
        controller="Simulation/simulated",
        movable=pod.movable,
        work_since=began + pod.since * SECONDS_AN_HOUR,
    )
    return PodView(
        metadata=ViewMetadata(reference.name, reference.namespace, reference.uid),
        spec=spec,
        status=PodStatus("Bound" if node else "Waiting"),
    )
