"""The stand-in kubelet's plugin watcher: sockets in ``plugins_registry`` instead of calls to kubelet.sock.

Follows ``pkg/kubelet/pluginmanager`` of Kubernetes 1.36 where a device plugin feels it: what lies in the directory is
compared with what is registered once a second; a socket that is gone or was made anew is deregistered, by the name of
its resource; a failed registration is tried again after a pause that doubles. A lost stream is not noticed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from neuron_plugin.kubelet import SocketIdentity, channel_to, identity_of
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_plugins import PluginCallError
from neuron_plugin.simulation.kubelet_registration import PluginClients

INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 122.0

_DEVICE_PLUGIN = "DevicePlugin"
_VERSION = "v1beta1"


@dataclass(frozen=True, slots=True)
class _Registered:
    identity: SocketIdentity
    resource: str


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    seconds: float


class PluginWatcher:
    """Registers what it finds in ``directory`` with ``clients``. ``troubles`` counts what went wrong, by its text."""

    def __init__(self, directory: Path, clients: PluginClients, *, reconcile_seconds: float = 1.0) -> None:
        self.troubles: Counter[str] = Counter()
        self._directory = directory
        self._clients = clients
        self._reconcile_seconds = reconcile_seconds
        self._registered: dict[Path, _Registered] = {}
        self._pauses: dict[Path, _Pause] = {}

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            await self.reconcile()
            await asyncio.sleep(self._reconcile_seconds)

    async def reconcile(self) -> None:
        """Deregister what is gone or new under its name, then register what is not yet."""
        found = dict(self._sockets())
        for path, registered in list(self._registered.items()):
            if found.get(path) != registered.identity:
                del self._registered[path]
                await self._clients.disconnect(registered.resource)
        now = asyncio.get_running_loop().time()
        for path, identity in found.items():
            if path not in self._registered and now >= self._pause(path).until:
                await self._try(path, identity)

    def _pause(self, path: Path) -> _Pause:
        return self._pauses.get(path, _Pause(0.0, FIRST_PAUSE_SECONDS / 2))

    async def _try(self, path: Path, identity: SocketIdentity) -> None:
        try:
            resource = await self._register(path)
        except PluginCallError as error:
            self.troubles[str(error)] += 1
            seconds = min(self._pause(path).seconds * 2, LONGEST_PAUSE_SECONDS)
            self._pauses[path] = _Pause(asyncio.get_running_loop().time() + seconds, seconds)
            return
        self._pauses.pop(path, None)
        self._registered[path] = _Registered(identity, resource)

    async def _register(self, path: Path) -> str:
        async with channel_to(path) as channel:
            stub = pb_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(pb.InfoRequest(), timeout=INFO_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(f"failed to get plugin info using RPC GetInfo at socket {path}") from error
            try:
                _check(info)
                await self._clients.connect(info.name, Path(info.endpoint) if info.endpoint else path)
            except PluginCallError as error:
                await _notify(stub, pb.RegistrationStatus(plugin_registered=False, error=str(error)))
                raise
            await _notify(stub, pb.RegistrationStatus(plugin_registered=True))
        return info.name

    def _sockets(self) -> Iterator[tuple[Path, SocketIdentity]]:
        """The sockets in the directory and below; names with a leading dot are passed over."""
        for path in sorted(self._directory.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(self._directory).parts)
            identity = None if hidden else identity_of(path)
            if identity:
                yield path, identity


def _check(info: pb.PluginInfo) -> None:
    if info.type != _DEVICE_PLUGIN:
        raise PluginCallError(f"no handler registered for plugin type: {info.type}")
    if _VERSION not in info.supported_versions:
        raise PluginCallError(f"manager for {info.name} does not support any of {list(info.supported_versions)}")


async def _notify(stub: pb_grpc.RegistrationAsyncStub, status: pb.RegistrationStatus) -> None:
    try:
        await stub.NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(f"failed to notify plugin of its registration: {error.details()}") from error
