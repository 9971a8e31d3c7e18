"""How the stand-in kubelet talks to one registered plugin.

One connection for each registration, with the kubelet's own words when a call goes wrong: they end up in a pod's
status, and plugins are judged by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc

_Answer = TypeVar("_Answer")

_GO_NAMES = {"CANCELLED": "Canceled", "OK": "OK"}


class PluginCallError(Exception):
    """A call to a plugin failed; the text is what the kubelet would say."""


class PluginConnection:
    """A dialled plugin socket; made by `dial`."""

    def __init__(self, resource: str, channel: grpc.aio.Channel) -> None:
        self.resource = resource
        self.options = pb.DevicePluginOptions()
        self.stopped_at: float | None = None
        self._channel = channel
        self._stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)

    @classmethod
    async def dial(cls, resource: str, socket: Path, dial_seconds: float) -> PluginConnection:
        """Connect and ask for the options.

        Raises:
            PluginCallError: nobody answers, or the options call fails.
        """
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        connection = cls(resource, grpc.aio.insecure_channel(f"unix:{socket}", options=options))
        try:
            await connection._connect(dial_seconds)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self, dial_seconds: float) -> None:
        try:
            async with asyncio.timeout(dial_seconds):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise PluginCallError("failed to dial device plugin: context deadline exceeded") from error
        try:
            self.options = await _worded(self._stub.GetDevicePluginOptions(pb.Empty()))
        except PluginCallError as error:
            raise PluginCallError(f"failed to get device plugin options: {error}") from error

    async def follow(self, receive: Callable[[pb.ListAndWatchResponse], None]) -> None:
        """Hand on each message of ListAndWatch until the stream ends, for whatever reason. Never opened again."""
        call = self._stub.ListAndWatch(pb.Empty())
        try:
            async for message in call:
                receive(message)
        except grpc.aio.AioRpcError:
            return
        except asyncio.CancelledError:
            _raise_own_cancellation()
        finally:
            call.cancel()

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> set[str]:
        """Ask which devices the plugin would rather give; only the first answer counts. No deadline, as there."""
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            self._require_running()
            answer = await _worded(self._stub.GetPreferredAllocation(request))
        except PluginCallError as error:
            raise PluginCallError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return set(answer.container_responses[0].deviceIDs) if answer.container_responses else set()

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Allocate for one container. No deadline, as there."""
        self._require_running()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await _worded(self._stub.Allocate(request))

    async def pre_start(self, ids: Sequence[str], seconds: float) -> None:
        """Announce the start of a container, if the plugin asked for it."""
        if not self.options.pre_start_required:
            return
        try:
            self._require_running()
            request = pb.PreStartContainerRequest(devices_ids=ids)
            await _worded(self._stub.PreStartContainer(request, timeout=seconds))
        except PluginCallError as error:
            raise PluginCallError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    def _require_running(self) -> None:
        if self.stopped_at is not None:
            raise PluginCallError(f"endpoint {self.resource} has been stopped")


async def _worded(call: Awaitable[_Answer]) -> _Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(_go_text(error)) from error
    except asyncio.CancelledError:
        _raise_own_cancellation()
        raise PluginCallError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


def _go_text(error: grpc.aio.AioRpcError) -> str:
    name = error.code().name
    go_name = _GO_NAMES.get(name, "".join(part.capitalize() for part in name.split("_")))
    return f"rpc error: code = {go_name} desc = {error.details()}"


def _raise_own_cancellation() -> None:
    """Tell our task's cancellation from a call that was cancelled by closing its channel: both look the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
