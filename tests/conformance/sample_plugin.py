"""A device plugin that fails as upstream's sample does in ``device_plugin_failures_test.go``.

What a kubelet does then is the ground our own plugin stands on, so stand-in and real kubelet have to agree on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import channel_to

SERVICE = "v1beta1.DevicePlugin"
ENDPOINT = "np-conformance-sample.sock"
REGISTER_SECONDS = 15.0


class SamplePlugin:
    """Offers ``devices`` ids until it is told to `fail`; ``options_error`` is what it says instead of its options."""

    def __init__(self, kubelet_dir: Path, *, devices: int = 2, options_error: str = "") -> None:
        self.streams = 0
        self._kubelet_dir = kubelet_dir
        self._devices = devices
        self._options_error = options_error
        self._failed = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[SamplePlugin]:
        """Answer on the socket while the block lasts."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        server.add_insecure_port(f"unix:{self._kubelet_dir / ENDPOINT}")
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    async def register(self, resource: str) -> None:
        """Register as ``resource``; raises grpc.aio.AioRpcError with the kubelet's words."""
        request = pb.RegisterRequest(version="v1beta1", endpoint=ENDPOINT, resource_name=resource)
        async with channel_to(self._kubelet_dir / "kubelet.sock") as channel:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_SECONDS)

    def fail(self) -> None:
        """End the stream, or the next one at once, with an error."""
        self._failed.set()

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """It lives too short for anybody to allocate."""
        empty = pb.Empty.FromString
        return {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._options, empty, pb.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch, empty, pb.ListAndWatchResponse.SerializeToString
            ),
        }

    async def _options(
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        """None, or the error."""
        del request
        if self._options_error:
            await context.abort(grpc.StatusCode.INTERNAL, self._options_error)
        return pb.DevicePluginOptions()

    async def _list_and_watch(
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All devices, once; then the failure."""
        del request
        self.streams += 1
        if not self._failed.is_set():
            ids = (f"sample-{number}" for number in range(self._devices))
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=each, health="Healthy") for each in ids])
        await self._failed.wait()
        await context.abort(grpc.StatusCode.INTERNAL, "the sample fails")
