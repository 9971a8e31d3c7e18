"""The cluster as plans see it, from the monitor API's objects: so a running extender, the API server and a file agree.

What is not known for certain is never promised: a node that is closed or cordoned takes no pod, cores that are
reserved for a waiting pod are no other's, and a pod that terminates, is constrained by more than counts, or that no
controller makes again stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerRequest,
    PodReference,
    PodRequest,
    PodUid,
    Resource,
    parse_ids,
)
from neuron_plugin.extender.neuron_node import shared_geometry
from neuron_plugin.extender.views import ContainerDemand, NodeView, PodView
from neuron_plugin.planning import NodeState, PlannedPod
from neuron_plugin.topology import BLOCKS, CoreMask, Geometry, Topology

SECONDS_AN_HOUR = 3600.0


@lru_cache(maxsize=4096)
def _request(containers: tuple[ContainerDemand, ...]) -> PodRequest:
    """Equal requests as one object, as ``shared_geometry`` does for nodes: plans then compare identities."""
    return tuple(
        ContainerRequest(each.name, ContainerKind(each.kind), Resource(each.resource), each.count)
        for each in containers
    )


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """The nodes with Neuron by name, the pods that wait, those of high priority first, and waiting pods left out.

    Constraints of a pod other than counts are not known here, so no set can be promised to such a pod.
    """

    nodes: dict[str, NodeState]
    waiting: list[PlannedPod]
    left_out: list[PodReference]


def planned(
    nodes: Iterable[NodeView], pods: Iterable[PodView], may_go_to: Mapping[PodUid, frozenset[str]] | None = None
) -> PlannedCluster:
    """The values of these objects; ``may_go_to`` has by UID the nodes of the pods of which these are known.

    Raises:
        ValueError: a count, an id or a name that no node or pod has.
    """
    views = list(pods)
    found = {pod.uid: replace(_pod(pod), nodes=(may_go_to or {}).get(PodUid(pod.uid))) for pod in views}
    states = {node.name: _node(node, found) for node in nodes if node.spec.devices and node.spec.cores_per_device}
    waits = [pod for pod in views if not pod.spec.node_name and not pod.status.problem and pod.spec.containers]
    held = {pod.uid for state in states.values() for pod in state.pods}
    waits = [pod for pod in waits if pod.uid not in held and pod.status.phase == "Waiting"]
    return PlannedCluster(
        states,
        sorted(
            (found[pod.uid] for pod in waits if not pod.spec.constrained),
            key=lambda pod: (-pod.priority, pod.reference.namespace, pod.reference.name),
        ),
        [found[pod.uid].reference for pod in waits if pod.spec.constrained],
    )


def _pod(pod: PodView) -> PlannedPod:
    spec = pod.spec
    can_move = bool(spec.controller) and not spec.constrained and pod.status.phase == "Bound" and bool(spec.containers)
    return PlannedPod(
        PodReference(PodUid(pod.uid), pod.metadata.namespace, pod.name),
        _request(spec.containers),
        priority=spec.priority,
        movable=spec.movable,
        recreated=can_move,
        since=spec.work_since / SECONDS_AN_HOUR,
    )


def _node(node: NodeView, pods: dict[str, PlannedPod]) -> NodeState:
    spec, status = node.spec, node.status
    topology = Topology(spec.topology)
    blocks = spec.block_sizes or BLOCKS.get(topology, ())
    geometry = shared_geometry(Geometry(spec.instance_type, topology, spec.devices, spec.cores_per_device, blocks))
    placed = []
    for holder in status.holders:
        reference = PodReference(PodUid(holder.uid), holder.namespace, holder.name)
        pod = pods.get(holder.uid) or PlannedPod(reference, ())
        placed.append(replace(pod, mask=geometry.cores_mask(_ids(holder.cores))))
    kept_back = (*map(int, status.unhealthy_devices), *_ids(status.missing_devices), *_ids(status.disabled_devices))
    offered = CoreMask(geometry.all_mask & ~geometry.devices_mask(kept_back))
    for cores in status.reserved:
        offered = CoreMask(offered & ~geometry.cores_mask(_ids(cores)))
    return NodeState(node.name, geometry, offered, tuple(placed), status.open and not status.cordoned)


def _ids(text: str) -> tuple[int, ...]:
    """A list of ids, which may be empty."""
    return parse_ids(text) if text else ()
