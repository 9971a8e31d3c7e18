"""A cluster in a file: Kubernetes objects, as ``kubectl get nodes,pods -A -o json`` prints them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from neuron_plugin.allocation import ContainerSet, NeuronPod, NodeInfo, PodUid, Resource
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY, LAST_CHECKPOINT_KEY, MOVABLE_KEY
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.cli.command import UsageError
from neuron_plugin.cluster import DecodeError
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.placement.informers import surveyed
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue, CoreMask, Unit

_SECONDS_AN_HOUR = 3600.0


class _Kind(msgspec.Struct):
    kind: str = ""


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def read_cluster(path: Path, types: Catalogue) -> ClusterState:
    """The state of a cluster in a file.

    Raises:
        UsageError: the file has none.
    """
    try:
        items = msgspec.json.decode(path.read_bytes(), type=_List).items
        by_kind: dict[str, list[msgspec.Raw]] = {"Node": [], "Pod": []}
        for item in items:
            by_kind.setdefault(msgspec.json.decode(item, type=_Kind).kind, []).append(item)
        return surveyed(map(NODES.decode, by_kind["Node"]), map(PODS.decode, by_kind["Pod"]), types)
    except (msgspec.MsgspecError, UnicodeDecodeError, DecodeError) as error:
        text = "expected a List of nodes and pods, as 'kubectl get nodes,pods -A -o json' prints it"
        raise UsageError(f"--cluster {path} is no cluster: {error}; {text}") from None


def write_cluster(
    path: Path,
    nodes: Mapping[str, NodeInfo],
    pods: Mapping[PodUid, NeuronPod],
    waiting: Iterable[NeuronPod],
    hours: float,
) -> None:
    """Save a simulated cluster whose clock is at ``hours``, with that time as now."""
    began = time.time() - hours * _SECONDS_AN_HOUR
    items: list[object] = [_node(info) for info in nodes.values()]
    items += [_pod(pod, began, nodes[pod.node]) for pod in pods.values()]
    items += [_pod(pod, began) for pod in waiting]
    document = {"apiVersion": "v1", "kind": "List", "items": items}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _node(info: NodeInfo) -> object:
    annotations = {INVENTORY_KEY: write_inventory(info.inventory)} if info.inventory else {}
    metadata = {"name": info.name, "uid": info.node.uid, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": _offered(info)}}


def _offered(info: NodeInfo) -> dict[str, str]:
    """The allocatable counts by resource name for kube-scheduler, without devices that pods have by another name."""
    if info.inventory is None:
        return {}
    geometry, counts = info.inventory.geometry, dict[str, str]()
    for resource in Resource:
        by_others = mask_union(held for held in info.ledger.allocations if held.resource is not resource)
        mask = CoreMask(info.inventory.healthy_mask & ~by_others)
        whole = len(geometry.whole_devices(mask))
        counts[resource.value] = str(whole if resource.unit is Unit.DEVICE else mask.bit_count())
    return counts


def _pod(pod: NeuronPod, began: float, info: NodeInfo | None = None) -> object:
    since = datetime.fromtimestamp(began + pod.last_checkpoint, UTC)
    annotations = {MOVABLE_KEY: "true", LAST_CHECKPOINT_KEY: since.isoformat(timespec="seconds")}
    if info and info.inventory:
        sets = zip(pod.requests, info.ledger.of(pod.uid), strict=True)
        placement = tuple(ContainerSet(container, allocation.mask) for container, allocation in sets)
        annotations |= write_assignment(assignment_of(info.inventory.geometry, placement, 0))
    kind, _, name = pod.controller.partition("/")
    metadata = {
        "name": pod.reference.name,
        "namespace": pod.reference.namespace,
        "uid": pod.uid,
        "annotations": annotations,
        "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": True}],
    }
    containers = [
        {"name": container.name, "resources": {"limits": {container.resource.value: str(container.count)}}}
        for container in pod.requests
    ]
    spec = {"containers": containers, "priority": pod.priority} | ({"nodeName": pod.node} if info else {})
    status = {"phase": "Running" if info else "Pending"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
