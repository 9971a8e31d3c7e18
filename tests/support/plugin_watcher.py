"""The kubelet's plugin watcher: sockets in ``plugins_registry`` instead of calls to kubelet.sock.

Follows ``pkg/kubelet/pluginmanager`` of Kubernetes 1.36 where a device plugin feels it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc

from neuron_plugin.kubelet import identity_of
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import SocketIdentity, channel_to
from neuron_plugin.simulation import PluginCallError
from neuron_plugin.simulation.kubelet_dra import PLUGIN_TYPE, DraManager
from tests.support.kubelet import KubeletOptions, StandInKubelet

INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 122.0

_DEVICE_PLUGIN = "DevicePlugin"
_VERSION = "v1beta1"


class WatchingKubelet(StandInKubelet):
    """A kubelet that also registers the plugins whose sockets lie in ``plugins_registry``."""

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        plugins_registry: Path,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        reconcile_seconds: float = 1.0,
        cgroup_root: Path | None = None,
        dra: DraManager | None = None,
        cdi_dir: Path | None = None,
    ) -> None:
        super().__init__(
            directory,
            pod_resources_directory,
            random=random,
            options=options,
            cgroup_root=cgroup_root,
            dra=dra,
            cdi_dir=cdi_dir,
        )
        self._plugins_registry = plugins_registry
        self._reconcile_seconds = reconcile_seconds
        self._watching: asyncio.Task[None] | None = None

    async def start(self, *, api_reachable: bool = True) -> None:
        watcher = PluginWatcher(self._plugins_registry, self, reconcile_seconds=self._reconcile_seconds)
        self._watching = asyncio.create_task(watcher.run(), name="plugin watcher")
        await super().start(api_reachable=api_reachable)

    async def stop(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await super().stop()


@dataclass(frozen=True, slots=True)
class _Registered:
    identity: SocketIdentity
    resource: str


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float = 0.0
    seconds: float = FIRST_PAUSE_SECONDS / 2


class PluginWatcher:
    """Compares what lies in ``directory`` with what is registered, once a second.

    A socket that is gone, or was made again, is deregistered by the name of its resource. A failed registration is
    tried again after a pause that doubles; ``errors`` counts them. A lost stream is not noticed.
    """

    def __init__(self, directory: Path, kubelet: StandInKubelet, *, reconcile_seconds: float = 1.0) -> None:
        self.errors: Counter[str] = Counter()
        self._directory = directory
        self._kubelet = kubelet
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
                if registered.resource:
                    await self._kubelet.disconnect(registered.resource)
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

    async def _register(self, path: Path) -> str:
        """The resource that is registered now; empty for a driver of claims, which is another manager's."""
        async with channel_to(path) as channel:
            stub = pb_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(pb.InfoRequest(), timeout=INFO_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(f"failed to get plugin info using RPC GetInfo at socket {path}") from error
            if info.type == PLUGIN_TYPE and self._kubelet.dra:
                return ""
            try:
                _check(info)
                await self._kubelet.connect(info.name, Path(info.endpoint) if info.endpoint else path)
            except PluginCallError as error:
                await _notify(stub, pb.RegistrationStatus(plugin_registered=False, error=str(error)))
                raise
            await _notify(stub, pb.RegistrationStatus(plugin_registered=True))
        return info.name


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
