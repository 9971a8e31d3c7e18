"""One Register call to the kubelet.

The kubelet answers only after it has dialled our socket and asked for the options, for which it takes up to 10 s; so
the call's deadline lies beyond that, or the kubelet's own words would be lost. Its status is always UNKNOWN: the text
alone tells what was wrong.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.channels import channel_to, connection_fault
from neuron_plugin.kubelet.messages import API_VERSION

KUBELET_SOCKET = "kubelet.sock"
REGISTER_DEADLINE_SECONDS = 15.0


class RegistrationError(Exception):
    """The kubelet did not take the registration; the text is its own, or says why it could not be asked."""


async def announce(endpoint: Path, resource: str, options: pb.DevicePluginOptions) -> None:
    """Tell the kubelet of the directory that ``endpoint`` serves ``resource``.

    Raises:
        RegistrationError: refused, not answered in time, or nobody listens on kubelet.sock.
    """
    request = pb.RegisterRequest(version=API_VERSION, endpoint=endpoint.name, resource_name=resource, options=options)
    kubelet = endpoint.parent / KUBELET_SOCKET
    async with channel_to(kubelet) as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise RegistrationError(_reason(error, kubelet, resource)) from error


def _reason(error: grpc.aio.AioRpcError, kubelet: Path, resource: str) -> str:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return f"nobody answers on {kubelet} ({connection_fault(error)}): is the kubelet running?"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the kubelet did not answer within {REGISTER_DEADLINE_SECONDS:g} s when told of {resource}"
    return f"the kubelet refused {resource}: {details}"
