"""How the simulated kubelet finds device plugins, registers them, follows their streams and calls them.

Clients are kept by resource name, as in ``pkg/kubelet/cm/devicemanager/plugin/v1beta1`` of Kubernetes 1.36. So when an
old stream of a resource ends, the kubelet disconnects the *newer* client of that name. Error texts are the kubelet's,
because they end up in a pod's status. The plugin watcher finds the sockets of device plugins and DRA drivers in the
plugin registry (``pkg/kubelet/pluginmanager``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from neuron_plugin.kubelet import identity_of
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.socket_watch import SocketIdentity, channel_to
from neuron_plugin.simulation.api_server_rules import is_qualified
from neuron_plugin.simulation.kubelet_device_manager import (
    AllocationError,
    DeviceManager,
    ListedDevice,
    PluginCallError,
    Selection,
    replace_file,
)

INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 122.0
"""Timeouts of GetInfo and NotifyRegistrationStatus, and the pauses after a failed registration."""
VERSION = "v1beta1"
_GO_NAMES = {"CANCELLED": "Canceled", "OK": "OK"}
_Answer = TypeVar("_Answer")


# How plugins are found.


class PluginHandler(Protocol):
    """The part of the kubelet that handles one type of plugin."""

    async def register(self, info: watcher_pb.PluginInfo, socket: Path) -> None:
        """Register a plugin.

        Raises:
            PluginCallError: the plugin is refused; the text is the kubelet's.
        """

    async def deregister(self, name: str, socket: Path) -> None:
        """The plugin's socket was removed or replaced."""


class PluginWatcher:
    """Reconciles the registered plugins with the sockets in ``directory``.

    A removed or replaced socket is deregistered. A failed registration is retried after a pause that doubles. A lost
    connection is not noticed.
    """

    def __init__(self, directory: Path, handlers: Mapping[str, PluginHandler], *, seconds: float = 1.0) -> None:
        self._directory = directory
        self._handlers = handlers
        self._seconds = seconds
        self._registered: dict[Path, tuple[SocketIdentity, watcher_pb.PluginInfo]] = {}
        self._pauses: dict[Path, tuple[float, float]] = {}
        """Length and end of the pause of each socket."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            await self.reconcile()
            await asyncio.sleep(self._seconds)

    async def reconcile(self) -> None:
        """Deregister removed and replaced sockets, then register new ones."""
        found = dict(self._sockets())
        for path, (identity, info) in list(self._registered.items()):
            if found.get(path) != identity:
                del self._registered[path]
                await self._handlers[info.type].deregister(info.name, path)
        loop = asyncio.get_running_loop()
        for path, identity in found.items():
            seconds, until = self._pauses.get(path, (FIRST_PAUSE_SECONDS / 2, 0.0))
            if path in self._registered or loop.time() < until:
                continue
            try:
                self._registered[path] = identity, await self._register(path)
                self._pauses.pop(path, None)
            except PluginCallError:
                seconds = min(seconds * 2, LONGEST_PAUSE_SECONDS)
                self._pauses[path] = seconds, loop.time() + seconds

    def _sockets(self) -> Iterator[tuple[Path, SocketIdentity]]:
        """The sockets in the directory and below, except hidden ones."""
        for path in sorted(self._directory.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(self._directory).parts)
            if not hidden and (identity := identity_of(path)):
                yield path, identity

    async def _register(self, path: Path) -> watcher_pb.PluginInfo:
        async with channel_to(path) as channel:
            stub: watcher_grpc.RegistrationAsyncStub = watcher_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(watcher_pb.InfoRequest(), timeout=INFO_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(f"failed to get plugin info using RPC GetInfo at socket {path}") from error
            try:
                await self._handler(info.type).register(info, path)
            except PluginCallError as error:
                await _notify(stub, watcher_pb.RegistrationStatus(plugin_registered=False, error=str(error)))
                raise
            await _notify(stub, watcher_pb.RegistrationStatus(plugin_registered=True))
        return info

    def _handler(self, plugin_type: str) -> PluginHandler:
        if plugin_type not in self._handlers:
            raise PluginCallError(f"no handler registered for plugin type: {plugin_type}")
        return self._handlers[plugin_type]


async def _notify(stub: watcher_grpc.RegistrationAsyncStub, status: watcher_pb.RegistrationStatus) -> None:
    try:
        await stub.NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(f"failed to notify plugin of its registration: {error.details()}") from error


# Device plugins.


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """A resource in the node's status."""

    capacity: int
    allocatable: int


def is_extended_resource_name(name: str) -> bool:
    """Whether the kubelet accepts this resource name (``IsExtendedResourceName`` in ``pkg/apis/core/v1/helper``)."""
    is_native = "/" not in name or "kubernetes.io/" in name
    return not (is_native or name.startswith("requests.")) and is_qualified(f"requests.{name}")


class PluginConnection:
    """The connection of one registration, made by `dial`. Calls have no deadline."""

    def __init__(self, resource: str, channel: grpc.aio.Channel) -> None:
        self.resource = resource
        self.options = pb.DevicePluginOptions()
        self.stopped_at: float | None = None
        self._channel = channel
        self._stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)

    @classmethod
    async def dial(cls, resource: str, socket: Path, dial_seconds: float) -> PluginConnection:
        """Connect and get the options.

        Raises:
            PluginCallError: the connection or the options call fails.
        """
        connection = cls(resource, channel_to(socket))
        try:
            async with asyncio.timeout(dial_seconds):
                await connection._channel.channel_ready()
            connection.options = await worded(
                connection._stub.GetDevicePluginOptions(pb.Empty()), "failed to get device plugin options: "
            )
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                raise PluginCallError("failed to dial device plugin: context deadline exceeded") from error
            raise
        return connection

    async def messages(self) -> AsyncGenerator[pb.ListAndWatchResponse, None]:
        """The messages of ListAndWatch until the stream ends. The kubelet never opens it again."""
        call = self._stub.ListAndWatch(pb.Empty())
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError:
            return
        except asyncio.CancelledError:
            _raise_own_cancellation()
        finally:
            call.cancel()

    async def preferred(self, selection: Selection) -> Sequence[str]:
        """Get the preferred devices, if the plugin offers that; only the first container response counts."""
        if not self.options.get_preferred_allocation_available:
            return ()
        prefix = "device plugin GetPreferredAllocation rpc failed with err: "
        self._require_running(prefix)
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=selection.available,
            must_include_deviceIDs=selection.must_include,
            allocation_size=selection.size,
        )
        call = self._stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        answer = await worded(call, prefix)
        return answer.container_responses[0].deviceIDs if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Allocate for one container."""
        self._require_running()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await worded(self._stub.Allocate(request))

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    def _require_running(self, prefix: str = "") -> None:
        if self.stopped_at is not None:
            raise PluginCallError(f"{prefix}endpoint {self.resource} has been stopped")


@dataclass(eq=False)
class PluginClients(pb_grpc.RegistrationServicer):
    """Registers plugins and follows their streams in tasks, which `close` ends.

    ``changed`` is set whenever a capacity may have changed. ``registrations`` counts accepted registrations. A resource
    stays in the node's capacity for ``grace_seconds`` after its stream ended.
    """

    directory: Path
    devices: DeviceManager
    checkpoint: Path
    registrations: Counter[str]
    dial_seconds: float = 10.0
    grace_seconds: float = 300.0

    def __post_init__(self) -> None:
        self.endpoints: dict[str, PluginConnection] = {}
        self.changed = asyncio.Event()
        self._clients: dict[str, PluginConnection] = {}
        self._open: set[PluginConnection] = set()
        self._followers: set[asyncio.Task[None]] = set()

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Check the request, dial the plugin, get its options and answer; then open the stream.

        Refusals have the status UNKNOWN, as plain Go errors do.
        """
        if request.version != VERSION:
            text = f'requested API version "{request.version}" is not supported by kubelet. '
            await context.abort(grpc.StatusCode.UNKNOWN, f'{text}Supported version is ["{VERSION}"]')
        try:
            # A path joined the way Go does it: an absolute endpoint ends up below the directory, and is not there.
            await self.connect(request.resource_name, self.directory / request.endpoint.lstrip("/"))
        except PluginCallError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()

    async def connect(self, resource: str, socket: Path) -> None:
        """Dial a plugin and follow its stream, in place of any earlier plugin of the resource.

        Raises:
            PluginCallError: an invalid name, or the plugin does not answer.
        """
        if not is_extended_resource_name(resource):
            raise PluginCallError(f'the ResourceName "{resource}" is invalid')
        try:
            connection = await PluginConnection.dial(resource, socket, self.dial_seconds)
        except PluginCallError:
            self._clients.pop(resource, None)  # even if it is the client of another, live plugin
            raise
        self._clients[resource] = self.endpoints[resource] = connection
        self._open.add(connection)
        follower = asyncio.create_task(self._follow(connection), name=f"ListAndWatch of {resource}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        self.registrations[resource] += 1

    async def register(self, info: watcher_pb.PluginInfo, socket: Path) -> None:
        """See `PluginHandler`."""
        if VERSION not in info.supported_versions:
            raise PluginCallError(f"manager for {info.name} does not support any of {list(info.supported_versions)}")
        await self.connect(info.name, Path(info.endpoint) if info.endpoint else socket)

    async def deregister(self, name: str, socket: Path) -> None:
        """See `PluginHandler`."""
        await self.disconnect(name)

    async def disconnect(self, resource: str) -> None:
        """Disconnect the current client of this name. Its devices stay, unhealthy, for the grace period."""
        connection = self._clients.pop(resource, None)
        if connection is None:
            return
        if (endpoint := self.endpoints.get(resource)) is not None:
            endpoint.stopped_at = asyncio.get_running_loop().time()
        self.devices.mark_unhealthy(resource)
        self.changed.set()
        self._open.discard(connection)
        await connection.close()

    async def close(self) -> None:
        """End every stream and connection."""
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for connection in tuple(self._open):
            await connection.close()
        self._open.clear()

    async def preferred(self, selection: Selection) -> Sequence[str]:
        """See `Plugins`."""
        return await self.endpoints[selection.resource].preferred(selection)

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        """See `Plugins`. The plugin may have changed since `preferred`."""
        answer = await self.endpoints[resource].allocate(ids)
        if not answer.container_responses:
            # The ids stay reserved until another pod with devices is removed.
            raise AllocationError("no containers return in allocation response &AllocateResponse{}")
        return answer.container_responses[0].SerializeToString()

    def capacity(self, resource: str) -> ResourceCapacity:
        """The resource in the next node status."""
        endpoint = self.endpoints.get(resource)
        stopped_at = endpoint.stopped_at if endpoint is not None else None
        if stopped_at is not None and asyncio.get_running_loop().time() - stopped_at > self.grace_seconds:
            del self.endpoints[resource]
            self.devices.remove_resource(resource)
            replace_file(self.checkpoint, self.devices.checkpoint_bytes())
        return ResourceCapacity(len(self.devices.devices(resource)), len(self.devices.healthy(resource)))

    async def _follow(self, connection: PluginConnection) -> None:
        resource = connection.resource
        async with aclosing(connection.messages()) as messages:
            async for message in messages:
                devices = [
                    ListedDevice(device.ID, device.health, tuple(node.ID for node in device.topology.nodes))
                    for device in message.devices
                ]
                self.devices.update_devices(resource, devices)
                self.changed.set()
                replace_file(self.checkpoint, self.devices.checkpoint_bytes())
        await self.disconnect(resource)  # by name: this may be another, newer client


async def worded(call: Awaitable[_Answer], prefix: str = "", failure: type[Exception] = PluginCallError) -> _Answer:
    """The answer of a plugin or driver. If the call fails, raise ``failure`` with ``prefix`` and Go's error text."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        name = error.code().name
        go_name = _GO_NAMES.get(name, "".join(word.capitalize() for word in name.split("_")))
        raise failure(f"{prefix}rpc error: code = {go_name} desc = {error.details()}") from error
    except asyncio.CancelledError:
        _raise_own_cancellation()
        text = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise failure(f"{prefix}{text}") from None


def _raise_own_cancellation() -> None:
    """Raise if our own task is cancelled. A call whose channel was closed looks the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
