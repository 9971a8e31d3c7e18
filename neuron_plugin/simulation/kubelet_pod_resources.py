"""The PodResources service of the simulated kubelet.

True to the kubelet's shape, not only to its contents: one entry for each id, no plain init containers, no UID, and a
``List`` that frees devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_pods import KubeletPod

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class RateLimit:
    """A token bucket: ``per_second`` calls, ``burst`` at once; zero per second is no limit."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = 0.0

    def allows(self, now: float) -> bool:
        """Take a token, if there is one."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._per_second and self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(eq=False)
class PodResourcesService(pb_grpc.PodResourcesListerServicer):
    """What ``devices`` records of the ``pods``, which are by UID, without those that are ``unknown``.

    There is one rate limit for all clients. ``serves_get`` False is a kubelet whose gate for ``Get`` is off. Errors of
    the kubelet's own have the status UNKNOWN.
    """

    devices: DeviceManager
    pods: Mapping[str, KubeletPod]
    unknown: Collection[str] = ()
    limit: RateLimit = field(default_factory=lambda: RateLimit(0, 1))
    serves_get: bool = True

    async def List(
        self,
        request: pb.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],
    ) -> pb.ListPodResourcesResponse:
        """Every active pod; forgets what ended pods had, which may lose a reservation under way."""
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
        if not self.serves_get:
            return await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
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
