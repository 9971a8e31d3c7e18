"""The simulated kubelet's plugin watcher: sockets in ``plugins_registry`` instead of calls to kubelet.sock.

It knows device plugins and drivers of claims. Source: ``pkg/kubelet/pluginmanager`` of Kubernetes 1.36.2.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from neuron_plugin.kubelet import identity_of
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import SocketIdentity, channel_to
from neuron_plugin.simulation.kubelet_device_manager import PluginCallError

INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 122.0
"""How long a plugin may take to say what it is and to hear of its registration, and pauses after a failed one."""


class PluginHandler(Protocol):
    """The part of the kubelet that plugins of one type are for."""

    async def register(self, info: pb.PluginInfo, socket: Path) -> None:
        """Use a plugin from now on.

        Raises:
            PluginCallError: it cannot be used; the text is the kubelet's.
        """

    async def deregister(self, name: str, socket: Path) -> None:
        """Its socket is gone, or was made again."""


@dataclass(frozen=True, slots=True)
class _Registered:
    identity: SocketIdentity
    info: pb.PluginInfo


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float = 0.0
    seconds: float = FIRST_PAUSE_SECONDS / 2


class PluginWatcher:
    """Compares what lies in ``directory`` with what is registered, time and again.

    A socket that is gone, or was made again, is deregistered. A failed registration is tried again after a pause that
    doubles; ``errors`` counts them. A lost connection is not noticed.
    """

    def __init__(self, directory: Path, handlers: Mapping[str, PluginHandler], *, seconds: float = 1.0) -> None:
        self.errors: Counter[str] = Counter()
        self._directory = directory
        self._handlers = handlers
        self._seconds = seconds
        self._registered: dict[Path, _Registered] = {}
        self._pauses: dict[Path, _Pause] = {}

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            await self.reconcile()
            await asyncio.sleep(self._seconds)

    async def reconcile(self) -> None:
        """Deregister what is gone or new under its name, then register what is not yet."""
        found = dict(self._sockets())
        for path, registered in list(self._registered.items()):
            if found.get(path) != registered.identity:
                del self._registered[path]
                await self._handlers[registered.info.type].deregister(registered.info.name, path)
        now = asyncio.get_running_loop().time()
        for path, identity in found.items():
            pause = self._pauses.get(path, _Pause())
            if path in self._registered or now < pause.until:
                continue
            try:
                self._registered[path] = _Registered(identity, await self._register(path))
                self._pauses.pop(path, None)
            except PluginCallError as error:
                self.errors[str(error)] += 1
                seconds = min(pause.seconds * 2, LONGEST_PAUSE_SECONDS)
                self._pauses[path] = _Pause(asyncio.get_running_loop().time() + seconds, seconds)

    def _sockets(self) -> Iterator[tuple[Path, SocketIdentity]]:
        """The sockets in the directory and below; names with a leading dot are ignored."""
        for path in sorted(self._directory.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(self._directory).parts)
            if not hidden and (identity := identity_of(path)):
                yield path, identity

    async def _register(self, path: Path) -> pb.PluginInfo:
        async with channel_to(path) as channel:
            stub: pb_grpc.RegistrationAsyncStub = pb_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(pb.InfoRequest(), timeout=INFO_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(f"failed to get plugin info using RPC GetInfo at socket {path}") from error
            try:
                await self._handler(info.type).register(info, path)
            except PluginCallError as error:
                await _notify(stub, pb.RegistrationStatus(plugin_registered=False, error=str(error)))
                raise
            await _notify(stub, pb.RegistrationStatus(plugin_registered=True))
        return info

    def _handler(self, plugin_type: str) -> PluginHandler:
        if plugin_type not in self._handlers:
            raise PluginCallError(f"no handler registered for plugin type: {plugin_type}")
        return self._handlers[plugin_type]


async def _notify(stub: pb_grpc.RegistrationAsyncStub, status: pb.RegistrationStatus) -> None:
    try:
        await stub.NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PluginCallError(f"failed to notify plugin of its registration: {error.details()}") from error
