"""The PodResources service of the stand-in kubelet.

True to the kubelet's shape, not only to its contents: one entry for each id, no plain init containers, no UID, plain
errors with the status UNKNOWN, one rate limit for everybody, and a `List` that frees devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_devices import DeviceManager
from neuron_plugin.simulation.kubelet_memory import Memory
from neuron_plugin.simulation.kubelet_pods import Container, Pod

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class RateLimit:
    """A token bucket: ``per_second`` calls, ``burst`` at once; zero per second means no limit."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def allows(self) -> bool:
        """Take a token, if there is one."""
        if not self._per_second:
            return True
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResourcesService(pb_grpc.PodResourcesListerServicer):
    """Serves what ``memory`` records of the ``active`` pods. ``serves_get`` False is a kubelet whose gate is off."""

    def __init__(
        self,
        memory: Memory,
        devices: DeviceManager,
        *,
        active: Callable[[], Iterable[Pod]],
        limit: RateLimit,
        serves_get: bool = True,
    ) -> None:
        self._memory = memory
        self._devices = devices
        self._active = active
        self._limit = limit
        self._serves_get = serves_get

    async def List(  # noqa: N802 - the API's name
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],
    ) -> pb.ListPodResourcesResponse:
        """Every active pod; frees what ended pods held, which may lose a reservation under way."""
        await self._admit(context)
        self._devices.free_ended()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active()])

    async def Get(  # noqa: N802 - the API's name
        self,
        request: pb.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse],
    ) -> pb.GetPodResourcesResponse:
        """One active pod."""
        await self._admit(context)
        if not self._serves_get:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self._active():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def GetAllocatableResources(  # noqa: N802 - the API's name
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse],
    ) -> pb.AllocatableResourcesResponse:
        """The healthy devices, free or not."""
        await self._admit(context)
        return pb.AllocatableResourcesResponse(
            devices=[
                self._entry(resource, each)
                for resource in self._devices.resources()
                for each in self._devices.healthy(resource)
            ]
        )

    async def _admit(self, context: grpc.aio.ServicerContext[_Request, _Response]) -> None:
        if not self._limit.allows():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: Pod) -> pb.PodResources:
        shown = [each for each in pod.containers if each.kind is not ContainerKind.INIT]
        return pb.PodResources(
            name=pod.name, namespace=pod.namespace, containers=[self._container(pod, each) for each in shown]
        )

    def _container(self, pod: Pod, container: Container) -> pb.ContainerResources:
        entries = [
            self._entry(allocation.resource, each)
            for allocation in self._memory.of_container(pod.uid, container.name)
            for each in allocation.ids
        ]
        return pb.ContainerResources(name=container.name, devices=entries)

    def _entry(self, resource: str, device_id: str) -> pb.ContainerDevices:
        entry = pb.ContainerDevices(resource_name=resource, device_ids=[device_id])
        device = self._devices.devices(resource).get(device_id)
        if device is not None and device.HasField("topology"):
            entry.topology.nodes.extend(pb.NUMANode(ID=node.ID) for node in device.topology.nodes)
        return entry
