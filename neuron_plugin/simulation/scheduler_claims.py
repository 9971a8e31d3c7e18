"""What kube-scheduler does about the claims of a pod, beside what it does about nodes.

A claim that is allocated is taken as it is and ties its pod to its node; the others are allocated on the node that is
chosen. Both are reserved for the pod before it is bound. Source, also of the reasons' words:
``pkg/scheduler/framework/plugins/dynamicresources`` of 1.36.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuron_plugin.cluster.claims import FINALIZER
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_claims import MOST_RESERVED, claim_node
from neuron_plugin.simulation.api_server_kinds import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AnyJson,
    Refusal,
)
from neuron_plugin.simulation.api_server_pods import now_text
from neuron_plugin.simulation.claim_allocator import (
    NotAllocatedError,
    allocate,
    allocation,
    offered_devices,
    taken_devices,
)
from neuron_plugin.simulation.claim_controller import claim_names, consumer


def claims_of(api: SimulatedApiServer, pod: AnyJson) -> list[AnyJson]:
    """The claims of a pod, before any node is looked at.

    Raises:
        NotAllocatedError: one of them is not there, goes, or is full.
    """
    metadata, claims = pod["metadata"], []
    for name in claim_names(pod).values():
        if not name:
            raise NotAllocatedError(f'pod "{metadata["namespace"]}/{metadata["name"]}": ResourceClaim not created yet')
        try:
            claim = api.get(RESOURCE_CLAIMS, name, metadata["namespace"])
        except Refusal as refusal:
            raise NotAllocatedError(str(refusal)) from None
        status = claim.get("status") or {}
        if claim["metadata"].get("deletionTimestamp"):
            raise NotAllocatedError(f'resourceclaim "{name}" is being deleted')
        reserved = status.get("reservedFor") or ()
        if len(reserved) >= MOST_RESERVED and metadata["uid"] not in {consumer["uid"] for consumer in reserved}:
            raise NotAllocatedError("resourceclaim in use")
        claims.append(claim)
    return claims


def allocations_on(api: SimulatedApiServer, claims: Sequence[AnyJson], node: str) -> list[AnyJson]:
    """The allocation of each claim on a node.

    Raises:
        NotAllocatedError: the node has not the devices, or a claim is allocated elsewhere.
    """
    classes = {device_class["metadata"]["name"]: device_class for device_class in api.objects(DEVICE_CLASSES)}
    devices, taken = offered_devices(api.objects(RESOURCE_SLICES), node), taken_devices(api.objects(RESOURCE_CLAIMS))
    allocations: list[AnyJson] = []
    for claim in claims:
        allocated = (claim.get("status") or {}).get("allocation")
        if allocated and claim_node(claim) not in {"", node}:
            raise NotAllocatedError("resourceclaim not available on the node")
        if not allocated:
            allocated = allocation(allocate(claim, classes, devices, taken), node, now_text())
            taken |= taken_devices([{"status": {"allocation": allocated}}])
        allocations.append(allocated)
    return allocations


def reserve(api: SimulatedApiServer, pod: AnyJson, claims: Sequence[AnyJson], allocations: Sequence[AnyJson]) -> None:
    """Write the allocations of claims that had none, and that all of them are for the pod.

    An allocation by somebody else without a time is given one, as the real scheduler does.

    Raises:
        Refusal: 422, that is a change of an allocation; 404 or 409, the claim has changed.
    """
    user = consumer(pod)
    for claim, allocated in zip(claims, allocations, strict=True):
        metadata, reserved = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or []
        if user in reserved:
            continue
        name, namespace, finalizers = metadata["name"], metadata["namespace"], metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            api.change(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}, namespace)
        status = {"allocation": {"allocationTimestamp": now_text(), **allocated}, "reservedFor": [*reserved, user]}
        api.change(RESOURCE_CLAIMS, name, {"status": status}, namespace, "status")
