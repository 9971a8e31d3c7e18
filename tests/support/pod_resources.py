"""The PodResources call that the plugin does without: one pod."""

from __future__ import annotations

from pathlib import Path

import grpc

from neuron_plugin.kubelet import PodDevices
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.pod_resources import _pod_devices
from neuron_plugin.kubelet.socket_watch import channel_to


async def get_pod(socket: Path, namespace: str, name: str) -> PodDevices | None:
    """What the kubelet on ``socket`` answers to Get; None if it knows no active pod of that name."""
    request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
    async with channel_to(socket) as channel:
        try:
            answer = await pb_grpc.PodResourcesListerStub(channel).Get(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            if (error.details() or "").endswith(" not found"):  # with the status UNKNOWN
                return None
            raise
    return _pod_devices(answer.pod_resources)
