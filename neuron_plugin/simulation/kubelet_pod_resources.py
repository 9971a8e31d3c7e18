"""The PodResources service of the simulated kubelet.

True to the kubelet's shape, not only to its contents: one entry for each id, no plain init containers, no UID, and a
``List`` that frees devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_pods import KubeletPod


@dataclass(eq=False)
class PodResourcesService(pb_grpc.PodResourcesListerServicer):
    """What ``devices`` records of the ``pods``, which are by UID."""

    devices: DeviceManager
    pods: Mapping[str, KubeletPod]

    async def List(
        self,
        request: pb.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],
    ) -> pb.ListPodResourcesResponse:
        """Every active pod; forgets what ended pods had, which may lose a reservation under way."""
        self.devices.forget_pods(self.pods.keys())
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self.pods.values()])

    async def Get(
        self,
        request: pb.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse],
    ) -> pb.GetPodResourcesResponse:
        """Refuse, as a kubelet whose gate for it is off."""
        return await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")

    async def GetAllocatableResources(
        self,
        request: pb.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse],
    ) -> pb.AllocatableResourcesResponse:
        """The healthy devices, free or not."""
        resources = self.devices.resources()
        healthy = [
            self._entry(resource, device_id) for resource in resources for device_id in self.devices.healthy(resource)
        ]
        return pb.AllocatableResourcesResponse(devices=healthy)

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
