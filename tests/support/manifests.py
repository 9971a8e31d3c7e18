"""Nodes and pods with Neuron, as JSON for the simulated API server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count

from neuron_plugin.allocation import ContainerKind, NodeInventory, Resource
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import GATE, INVENTORY_KEY, NODE_KEY, POD_UID_KEY, PREFIX
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.topology import Geometry, catalogue

_uids = count(1)


def shipped_geometry(instance_type: str) -> Geometry:
    """The geometry of a complete node of a shipped type, with its default logical core size."""
    return catalogue()[instance_type].geometry


def node_manifest(
    name: str,
    instance_type: str,
    *,
    unhealthy: Mapping[int, str] | None = None,
    missing: Sequence[int] = (),
    disabled: Sequence[int] = (),
    held_down: Sequence[int] = (),
    inventory: bool = True,
    claim_driver: str = "",
    ultraserver: Mapping[str, str] | None = None,
) -> AnyJson:
    """A node as its kubelet and plugin describe it; without ``inventory`` as the vendor's plugin leaves it.

    With a ``claim_driver`` its devices are given by claims, and the kubelet counts none.
    """
    geometry = shipped_geometry(instance_type)
    present = tuple(device for device in range(geometry.device_count) if device not in missing)
    counts = {
        Resource.NEURON.value: str(len(present)),
        Resource.NEURONDEVICE.value: str(len(present)),
        Resource.NEURONCORE.value: str(len(present) * geometry.cores_per_device),
    }
    if claim_driver:
        counts = {}
    found = NodeInventory(
        geometry,
        present,
        unhealthy or {},
        disabled=tuple(disabled),
        held_down=tuple(held_down),
        claim_driver=claim_driver,
        ultraserver=ultraserver or {},
    )
    text = write_inventory(found)
    return {
        "metadata": {
            "name": name,
            "uid": f"node-{next(_uids)}",
            "labels": {"node.kubernetes.io/instance-type": instance_type},
            "annotations": {INVENTORY_KEY: text} if inventory else {},
        },
        "status": {"capacity": counts, "allocatable": counts},
    }


def pod_manifest(
    name: str,
    resource: Resource = Resource.NEURONCORE,
    amount: int = 0,
    *,
    containers: Sequence[AnyJson] | None = None,
    init_containers: Sequence[AnyJson] = (),
    annotations: Mapping[str, str] | None = None,
    node: str = "",
    priority: int = 0,
) -> AnyJson:
    """A pod of one container that asks for ``amount`` of a resource, or of the containers given."""
    spec: AnyJson = {
        "priority": priority,
        "containers": list(containers or [container("main", resource, amount)]),
        "initContainers": list(init_containers),
    }
    if node:
        spec["nodeName"] = node
    metadata: AnyJson = {
        "name": name,
        "namespace": "default",
        "uid": f"pod-{next(_uids)}",
        "annotations": dict(annotations or {}),
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def gated_manifest(
    name: str, resource: Resource, amount: int, *, promised: tuple[str, str] = ("", ""), gates: Sequence[str] = (GATE,)
) -> AnyJson:
    """A pod that ``gates`` hold back; ``promised`` is where it was placed, and with which ids."""
    manifest = pod_manifest(name, resource, amount)
    manifest["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    node, ids = promised
    key = "NEURON_CORES" if resource is Resource.NEURONCORE else "NEURON_DEVS"
    if node:
        says = {NODE_KEY: node, POD_UID_KEY: manifest["metadata"]["uid"], key: ids}
        manifest["metadata"]["annotations"] = says
    return manifest


def container(name: str, resource: Resource | str, amount: int | str, *, sidecar: bool = False) -> AnyJson:
    """A container with one extended resource, in limits and requests as the API server's defaulting leaves it."""
    quantities = {str(resource): str(amount)} if amount else {}
    found: AnyJson = {"name": name, "image": "neuron", "resources": {"limits": quantities, "requests": quantities}}
    return {**found, "restartPolicy": "Always"} if sidecar else found


def with_memory(name: str, cores: int, mib: int | str) -> AnyJson:
    """A container that asks for cores and for so much memory of their devices, shared evenly."""
    found = container(name, Resource.NEURONCORE, cores)
    for quantities in found["resources"].values():
        quantities[f"{PREFIX}memory"] = str(mib)
    return found


def static_pod(namespace: str, name: str, node: str, *containers: KubeletContainer) -> KubeletPod:
    """A pod from a manifest file of a node. The same manifest always gives the same UID (``config/common.go``)."""
    manifest = repr((namespace, name, node, containers))
    return KubeletPod(hashlib.md5(manifest.encode(), usedforsecurity=False).hexdigest(), namespace, name, containers)


def mirror_manifest(pod: KubeletPod, node: str) -> AnyJson:
    """The pod that a kubelet creates at the API server for an admitted static pod, which may also never happen."""
    parts: dict[bool, list[AnyJson]] = {True: [], False: []}
    for one in pod.containers:
        limits = {name: str(amount) for name, amount in one.limits.items()}
        made: AnyJson = {"name": one.name, "image": "neuron", "resources": {"limits": limits, "requests": limits}}
        sidecar = {"restartPolicy": "Always"} if one.kind is ContainerKind.SIDECAR else {}
        parts[one.kind is ContainerKind.APP].append(made | sidecar)
    annotations = {
        "kubernetes.io/config.hash": pod.uid,
        "kubernetes.io/config.mirror": pod.uid,
        "kubernetes.io/config.seen": "2026-01-01T00:00:00Z",
        "kubernetes.io/config.source": "file",
    }
    return {
        "metadata": {"name": f"{pod.name}-{node}", "namespace": pod.namespace, "annotations": annotations},
        "spec": {"nodeName": node, "containers": parts[True], "initContainers": parts[False]},
        "status": {"phase": "Running"},
    }
