"""The simulated kubelet's pods: what containers receive, their cgroups, and the PodResources API.

A pod has only what device allocation reads. CDI devices are resolved as by the CDI library of containerd and CRI-O,
which reads the directory again for each container. PodResources has the kubelet's quirks: one entry per device id, no
plain init containers, no UID, and a ``List`` that frees devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import DeviceNode, in_numeric_order
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_device_manager import DeviceEntry, DeviceManager

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


# CDI devices.


class UnresolvableError(Exception):
    """No file describes a CDI device, and the container is not created. The text is the runtime's."""


def resolve(directory: Path, names: Iterable[str]) -> tuple[tuple[DeviceNode, ...], dict[str, str]]:
    """The device nodes and variables of CDI devices. The last of two with the same path or name wins.

    Raises:
        UnresolvableError: no file describes one of the names.
    """
    known = dict(_described(directory))
    names = tuple(names)
    if missing := [name for name in names if name not in known]:
        raise UnresolvableError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    nodes: dict[str, DeviceNode] = {}
    envs: dict[str, str] = {}
    for name in names:
        for node in known[name].get("deviceNodes") or ():
            path = node["path"]
            nodes[path] = DeviceNode(node.get("hostPath") or path, path, node.get("permissions") or "rwm")
        envs.update(text.split("=", 1) for text in known[name].get("env") or ())
    return tuple(nodes.values()), envs


def _described(directory: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All described devices by full name. A file that describes a name twice is ignored."""
    for path in sorted(directory.glob("*.json")):
        try:
            spec = msgspec.json.decode(path.read_bytes())
            devices = [(f"{spec['kind']}={device['name']}", device["containerEdits"]) for device in spec["devices"]]
        except (OSError, msgspec.DecodeError, KeyError, TypeError):
            continue
        if len(dict(devices)) == len(devices):
            yield from devices


# Pods.


@dataclass(frozen=True, slots=True)
class KubeletContainer:
    """A container: its extended-resource limits, and the claims it uses.

    ``claims`` are pairs of the pod's name for a claim and a request; an empty request means all of them.
    """

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP
    claims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """A pod. ``containers`` are in the order of admission: init containers and sidecars first.

    ``claims`` maps the pod's names for its claims to the names of ResourceClaims.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[KubeletContainer, ...]
    claims: Mapping[str, str] = field(default_factory=dict)

    def container(self, name: str) -> KubeletContainer:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


@dataclass(frozen=True, slots=True)
class AdmittedContainer:
    """What a container received at its last start, or in ``waiting`` why it did not start.

    ``ids`` are the device ids by resource, in numeric order. If two resources set the same key, one value is drawn at
    each start, as by a kubelet.
    """

    name: str
    kind: ContainerKind
    ids: Mapping[str, tuple[str, ...]]
    envs: Mapping[str, str]
    devices: tuple[DeviceNode, ...]
    cdi_devices: tuple[str, ...]
    waiting: str | None = None


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """An admitted pod, and what its containers received, in spec order."""

    pod: KubeletPod
    containers: tuple[AdmittedContainer, ...]

    def container(self, name: str) -> AdmittedContainer:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


class PodGoneError(Exception):
    """The pod was deleted, or the kubelet stopped, before the pod was admitted. A restarted kubelet admits it again."""


class PodRejectedError(Exception):
    """The kubelet failed the pod for good. The text is the message in the pod's status."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, pod: KubeletPod, cause: str) -> None:
        super().__init__(f"Pod was rejected: Allocate failed due to {cause}, which is unexpected")
        self.pod = pod


def received(container: KubeletContainer, allocations: Sequence[DeviceEntry], waiting: str | None) -> AdmittedContainer:
    """What a container receives from its ``allocations``. The first answer to set a key wins (``pod_devices.go``)."""
    envs: dict[str, str] = {}
    nodes: dict[str, DeviceNode] = {}
    cdi_devices: dict[str, None] = {}
    for allocation in allocations:
        answer = ContainerAllocateResponse.FromString(allocation.response)
        for name, value in answer.envs.items():
            envs.setdefault(name, value)
        for device in answer.devices:
            node = DeviceNode(device.host_path, device.container_path, device.permissions)
            nodes.setdefault(node.container_path, node)
        cdi_devices |= dict.fromkeys(device.name for device in answer.cdi_devices)
    ids = {allocation.resource: tuple(in_numeric_order(allocation.ids)) for allocation in allocations}
    return AdmittedContainer(
        container.name, container.kind, ids, envs, tuple(nodes.values()), tuple(cdi_devices), waiting
    )


class SimulatedCgroups:
    """A directory like ``/sys/fs/cgroup`` (version 2, systemd names), with a slice for each pod that has processes.

    The sandbox process keeps the slice populated while containers restart.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in (root, root / "kubepods.slice"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    def path(self, pod: KubeletPod) -> Path:
        """The pod's slice. All pods are of QoS class BestEffort here."""
        name = f"kubepods-besteffort-pod{pod.uid.replace('-', '_')}.slice"
        return self.root / "kubepods.slice" / "kubepods-besteffort.slice" / name

    def populate(self, pod: KubeletPod) -> None:
        """The pod has processes."""
        self.path(pod).mkdir(parents=True, exist_ok=True)
        self._write_events(pod, 1)

    def remove(self, pod: KubeletPod) -> None:
        """The pod's processes have ended, and the kubelet removes the slice."""
        with contextlib.suppress(FileNotFoundError):
            self._write_events(pod, 0)
            shutil.rmtree(self.path(pod))

    def _write_events(self, pod: KubeletPod, populated: int) -> None:
        """Write in place and at once, like the kernel: a reader never sees half a file."""
        events = os.open(self.path(pod) / "cgroup.events", os.O_WRONLY | (os.O_CREAT if populated else 0), 0o644)
        try:
            os.write(events, f"populated {populated}\nfrozen 0\n".encode())
        finally:
            os.close(events)


# PodResources.


class RateLimit:
    """A token bucket of the kubelet's size: ``per_second`` calls, ``burst`` at once."""

    def __init__(self, per_second: float = 100.0, burst: int = 10) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = 0.0

    def allows(self, now: float) -> bool:
        """Take a token, if there is one."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(eq=False)
class PodResourcesService(pb_grpc.PodResourcesListerServicer):
    """Serves the allocations in ``devices`` of ``pods`` (by UID), except pods that are ``unknown``.

    All clients share one rate limit. The kubelet's own errors have the status UNKNOWN.
    """

    devices: DeviceManager
    pods: Mapping[str, KubeletPod]
    unknown: Collection[str] = ()
    limit: RateLimit = field(default_factory=RateLimit)

    async def List(
        self,
        request: pb.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],
    ) -> pb.ListPodResourcesResponse:
        """Every active pod. Forgets ended pods, which can lose the reservation of a running Allocate."""
        await self._admit(context)
        self.devices.forget_pods(self.pods.keys())
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active()])

    async def Get(
        self,
        request: pb.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse],
    ) -> pb.GetPodResourcesResponse:
        """One active pod."""
        await self._admit(context)
        for pod in self._active():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def GetAllocatableResources(
        self,
        request: pb.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse],
    ) -> pb.AllocatableResourcesResponse:
        """The healthy devices, free or not."""
        await self._admit(context)
        resources = self.devices.resources()
        healthy = [
            self._entry(resource, device_id) for resource in resources for device_id in self.devices.healthy(resource)
        ]
        return pb.AllocatableResourcesResponse(devices=healthy)

    def _active(self) -> list[KubeletPod]:
        return [pod for uid, pod in self.pods.items() if uid not in self.unknown]

    async def _admit(self, context: grpc.aio.ServicerContext[_Request, _Response]) -> None:
        if not self.limit.allows(asyncio.get_running_loop().time()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: KubeletPod) -> pb.PodResources:
        containers = [
            pb.ContainerResources(
                name=container.name,
                devices=[
                    self._entry(allocation.resource, device_id)
                    for allocation in self.devices.of_container(pod.uid, container.name)
                    for device_id in allocation.ids
                ],
                dynamic_resources=[
                    pb.DynamicResource(claim_name=claim, claim_namespace=pod.namespace)
                    for name, _ in container.claims
                    if (claim := pod.claims.get(name))
                ],
            )
            for container in pod.containers
            if container.kind is not ContainerKind.INIT
        ]
        return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)

    def _entry(self, resource: str, device_id: str) -> pb.ContainerDevices:
        entry = pb.ContainerDevices(resource_name=resource, device_ids=[device_id])
        device = self.devices.devices(resource).get(device_id)
        if device and device.numa_nodes:
            entry.topology.nodes.extend(pb.NUMANode(ID=node) for node in device.numa_nodes)
        return entry
