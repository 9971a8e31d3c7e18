"""Calling our own socket as the kubelet does, which is the only proof that it could.

A server may be up in every variable of this process and be out of reach all the same: its file removed, its thread
stuck, its queue full. So a liveness probe dials.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.channels import channel_to, connection_fault


async def dial(socket: Path, timeout_seconds: float) -> str | None:
    """Ask the device plugin on ``socket`` for its options; None when it answers, else why it does not."""
    async with channel_to(socket) as channel:
        try:
            await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {timeout_seconds:g} s"
            return connection_fault(error)
    return None
