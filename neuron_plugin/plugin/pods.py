"""The pods of this node that ask for Neuron, reduced to what serving them needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import (
    ASSIGNMENT_KEYS,
    Assignment,
    AssignmentError,
    ContainerRequest,
    ContainerSpec,
    HolderLedger,
    Holding,
    PodReference,
    PodRequest,
    PodUid,
    RequestError,
    Resource,
    ids_of,
    mask_of,
    pod_request,
    read_assignment,
)
from neuron_plugin.topology import Geometry, Unit


@dataclass(frozen=True, slots=True)
class NodePod:
    """A live pod on this node with a demand for Neuron.

    ``problem`` says why its request or its annotations cannot be followed; such a pod has no decision and is served,
    if at all, by the ids the kubelet names. ``refused`` are the demands of a request that cannot be served.
    ``assignment_keys`` are the annotations that say ids, whoever wrote them. ``ended``: it is terminal, so its
    containers have stopped; the kubelet says so of every pod that it ends in order.
    """

    pod: PodReference
    request: PodRequest
    decision: Assignment | None = None
    problem: str = ""
    refused: frozenset[tuple[Resource, str]] = frozenset()
    assignment_keys: frozenset[str] = frozenset()
    ended: bool = False


NodePods = Mapping[PodUid, NodePod]


def node_pod(pod: PodReference, containers: Iterable[ContainerSpec], annotations: Mapping[str, str]) -> NodePod | None:
    """What serving this pod needs, or None when it asks for no Neuron."""
    specs = tuple(containers)
    try:
        request = pod_request(specs)
    except RequestError as error:
        return NodePod(pod, (), problem=f"pod {pod}: {error}", refused=_demands(specs))
    if not request:
        return None
    keys = frozenset(key for key in ASSIGNMENT_KEYS if key in annotations)
    try:
        return NodePod(pod, request, read_assignment(str(pod), annotations, request), assignment_keys=keys)
    except AssignmentError as error:
        return NodePod(pod, request, problem=str(error), assignment_keys=keys)


def unserved(
    geometry: Geometry, pod: NodePod, ledger: HolderLedger, resource: Resource, mask: int
) -> ContainerRequest | None:
    """The first container of a pod that asks for as much as ``mask`` and holds nothing yet, in the kubelet's order."""
    holder, cores = ledger.holders.get(pod.pod.uid), mask.bit_count()
    served = {holding.container for holding in holder.holdings} if holder else set()
    asking = (one for one in pod.request if one.resource is resource and demanded_cores(geometry, one) == cores)
    return next((part for part in asking if part.container not in served), None)


def demanded_cores(geometry: Geometry, part: ContainerRequest) -> int:
    """How many cores a container asks for, in whatever unit it does."""
    return part.count * (1 if part.resource.unit is Unit.CORE else geometry.cores_per_device)


def annotated_holdings(geometry: Geometry, pod: NodePod) -> tuple[Holding, ...]:
    """What a pod says it was allocated; nothing when it does not, or names an id that this node does not have."""
    if not (pod.decision and pod.decision.allocated):
        return ()
    holdings = []
    for part in pod.decision.containers:
        unit = part.request.resource.unit
        mask = mask_of(geometry, unit, part.ids)
        if ids_of(geometry, unit, mask) != part.ids:
            return ()
        holdings.append(Holding(part.request.container, part.request.resource, mask))
    return tuple(holdings)


def _demands(containers: Iterable[ContainerSpec]) -> frozenset[tuple[Resource, str]]:
    """Everything asked for, as it stands in the spec: limits decide, requests stand in."""
    return frozenset(
        (resource, {**container.requests, **container.limits}[resource.value])
        for container in containers
        for resource in Resource
        if resource.value in {**container.requests, **container.limits}
    )
