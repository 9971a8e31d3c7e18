"""Drivers of claims as the simulated kubelet sees them: registration, the calls, the health of devices.

The plugin watcher finds a driver by its socket. While none of its sockets answers, the kubelet waits a while and then
deletes the node's slices of it; at its own start it deletes those of all drivers. Sources of 1.36.2:
``pkg/kubelet/cm/dra/manager.go`` and ``plugin/dra_plugin_manager.go``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2 as health_pb
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1.api_pb2 import PluginInfo
from neuron_plugin.kubelet.socket_watch import channel_to
from neuron_plugin.kubelet_files import DRA_STATE
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, RESOURCE_SLICES, AnyJson, Refusal
from neuron_plugin.simulation.kubelet_claims import ClaimInfo, ClaimMemory, DriverDevice, NotPreparedError
from neuron_plugin.simulation.kubelet_device_manager import PluginCallError, replace_file
from neuron_plugin.simulation.kubelet_plugins import worded
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod

PLUGIN_TYPE = "DRAPlugin"
SERVICE, HEALTH_SERVICE = "v1.DRAPlugin", "v1alpha1.DRAResourceHealth"
_HEALTHS = {health_pb.HEALTHY: "Healthy", health_pb.UNHEALTHY: "Unhealthy"}
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class DraManagerTimes:
    """Seconds, by default those of the real kubelet, which tries a refused Prepare again after 60 to 90 of them."""

    retry: float = 75.0
    call: float = 45.0
    watcher: float = 1.0
    wipe: float = 30.0
    health: float = 5.0
    reconcile: float = 60.0


@dataclass(eq=False)
class _Driver:
    """A registered driver, by one of its sockets."""

    name: str
    channel: grpc.aio.Channel
    health: asyncio.Task[None] | None = None


@dataclass
class DraManager:
    """The claims of the pods of ``node``; ``start`` and ``stop`` are those of the kubelet.

    ``directory`` is the kubelet's root, which has its file of claims. ``active`` are the UIDs of the kubelet's pods.
    """

    directory: Path
    api: SimulatedApiServer
    node: str
    times: DraManagerTimes = DraManagerTimes()
    active: Collection[str] = ()
    memory: ClaimMemory = field(default_factory=ClaimMemory)

    def __post_init__(self) -> None:
        self.health: dict[tuple[str, str, str], tuple[str, str]] = {}
        """Health and message by driver, pool and device."""
        self._drivers: dict[Path, _Driver] = {}
        self._lost_at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._calls = _Calls(self._channel, self.times.call)
        self.memory.write = self._write

    @property
    def path(self) -> Path:
        """The file of claims."""
        return self.directory / DRA_STATE

    @property
    def drivers(self) -> set[str]:
        """The drivers that are registered."""
        return {driver.name for driver in self._drivers.values()}

    async def start(self) -> None:
        """Read the file of claims, and delete the node's slices.

        Raises:
            KubeletStateError: the file cannot be read, and the kubelet does not start.
        """
        self.memory.load(self.path.read_bytes() if self.path.exists() else None)
        self._delete_slices("")
        self._tasks = [
            asyncio.create_task(job(), name=job.__name__) for job in (self._watch_connections, self._reconcile)
        ]

    async def stop(self) -> None:
        """End as a kubelet does: drivers are forgotten, streams end, calls are cut off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path, driver in list(self._drivers.items()):
            await self.deregister(driver.name, path)
        self._lost_at.clear()

    # Pods.

    async def prepare(self, pod: KubeletPod) -> None:
        """Have all claims of a pod prepared.

        Raises:
            NotPreparedError: the pod has to wait, and to be prepared again.
        """
        await self.memory.prepare([self._checked(pod, name) for name in pod.claims.values()], pod.uid, self._calls)

    async def unprepare(self, pod: KubeletPod) -> None:
        """Give up the claims of a pod whose containers have ended.

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        keys = [(pod.namespace, name) for name in pod.claims.values()]
        await self.memory.unprepare(keys, pod.uid, self._calls)

    def cdi_devices(self, pod: KubeletPod, container: KubeletContainer) -> tuple[str, ...]:
        """The CDI devices of a container, as the container runtime gets them.

        Raises:
            NotPreparedError: a claim of it was given up.
        """
        names: list[str] = []
        for claim, request in self._used(pod, container):
            names += [name for _, device in claim.devices(request) for name in device.cdi_ids]
        return tuple(names)

    def status(self, pod: KubeletPod, container: KubeletContainer) -> list[AnyJson]:
        """``allocatedResourcesStatus`` of a container: the health of its devices, each by its first CDI device."""
        shown: dict[str, list[AnyJson]] = {}
        for name, request in container.claims:
            claim = self.memory.claims.get((pod.namespace, pod.claims.get(name, "")))
            parts: dict[str, AnyJson] = {}
            for driver, device in claim.devices(request) if claim else ():
                health, message = self.health.get((driver, device.pool, device.name), ("Unknown", ""))
                resource_id = next(iter(device.cdi_ids), f"{driver}/{device.pool}/{device.name}")
                entry = {"resourceID": resource_id, "health": health} | ({"message": message} if message else {})
                parts.setdefault(resource_id, entry)
            if parts:
                shown[f"claim:{name}" + (f"/{request}" if request else "")] = list(parts.values())
        return [{"name": name, "resources": resources} for name, resources in shown.items()]

    # Inside.

    def _checked(self, pod: KubeletPod, name: str) -> AnyJson:
        """A claim that may be prepared for a pod, before anything is remembered of it."""
        try:
            claim = self.api.get(RESOURCE_CLAIMS, name, pod.namespace)
        except Refusal as refusal:
            raise NotPreparedError(f"fetch ResourceClaim {name}: {refusal}") from None
        status = claim.get("status") or {}
        if pod.uid not in {consumer["uid"] for consumer in status.get("reservedFor") or ()}:
            uid = claim["metadata"]["uid"]
            raise NotPreparedError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({uid})")
        for result in status["allocation"]["devices"].get("results") or ():
            self._channel(result["driver"])
        return claim

    def _used(self, pod: KubeletPod, container: KubeletContainer) -> Iterator[tuple[ClaimInfo, str]]:
        for name, request in container.claims:
            yield self.memory.known((pod.namespace, pod.claims.get(name, ""))), request

    def _write(self) -> None:
        replace_file(self.path, self.memory.state_bytes())

    async def _reconcile(self) -> None:
        """Give up the claims of pods that the kubelet no longer has."""
        while True:
            await asyncio.sleep(self.times.reconcile)
            for (_, uid), keys in self.memory.of_inactive(self.active).items():
                with contextlib.suppress(NotPreparedError):  # tried again at the next turn
                    await self.memory.unprepare(keys, uid, self._calls)

    # Drivers.

    def _channel(self, driver: str) -> grpc.aio.Channel:
        """The latest connection to a driver."""
        channels = [known.channel for known in self._drivers.values() if known.name == driver]
        if not channels:
            raise NotPreparedError(f"DRA driver {driver} is not registered")
        return channels[-1]

    async def register(self, info: PluginInfo, socket: Path) -> None:
        """See `PluginHandler`."""
        if SERVICE not in info.supported_versions:
            raise PluginCallError(f"none of services supported by the plugin are supported: {SERVICE}")
        if socket in self._drivers:  # which has not heard of its registration
            await self.deregister(info.name, socket)
        driver = self._drivers[socket] = _Driver(info.name, channel_to(socket))
        if HEALTH_SERVICE in info.supported_versions:
            driver.health = asyncio.create_task(self._follow_health(driver), name=f"health of {info.name}")

    async def deregister(self, name: str, socket: Path) -> None:
        """See `PluginHandler`."""
        driver = self._drivers.pop(socket)
        self._lost_at.setdefault(name, asyncio.get_running_loop().time())
        if driver.health:
            driver.health.cancel()
            await asyncio.gather(driver.health, return_exceptions=True)
        await driver.channel.close()

    async def _watch_connections(self) -> None:
        """Delete the slices of a driver that has had no connection for a while."""
        loop = asyncio.get_running_loop()
        while True:
            usable = {known.name for known in self._drivers.values() if _is_connected(known.channel)}
            for name in self._lost_at.keys() | self.drivers:
                if name in usable:
                    self._lost_at.pop(name, None)
                elif loop.time() - self._lost_at.setdefault(name, loop.time()) >= self.times.wipe:
                    self._lost_at[name] = float("inf")  # once, until it is back
                    self._delete_slices(name)
            await asyncio.sleep(self.times.watcher)

    def _delete_slices(self, driver: str) -> None:
        """Delete the slices of this node and driver, of all drivers with an empty name."""
        for resource_slice in self.api.objects(RESOURCE_SLICES):
            if resource_slice["spec"].get("nodeName") == self.node and driver in {"", resource_slice["spec"]["driver"]}:
                self.api.delete(RESOURCE_SLICES, resource_slice["metadata"]["name"])

    async def _follow_health(self, driver: _Driver) -> None:
        """Keep what a driver says of its devices while its stream lasts, and open the stream again when it ends."""
        stub: health_grpc.DRAResourceHealthAsyncStub = health_grpc.DRAResourceHealthStub(driver.channel)
        while True:
            try:
                async for message in stub.NodeWatchResources(health_pb.NodeWatchResourcesRequest()):
                    self._forget_health(driver.name)
                    for device in message.devices:
                        key = driver.name, device.device.pool_name, device.device.device_name
                        self.health[key] = _HEALTHS.get(device.health, "Unknown"), device.message
            except grpc.aio.AioRpcError:
                pass
            finally:
                self._forget_health(driver.name)
            await asyncio.sleep(self.times.health)

    def _forget_health(self, driver: str) -> None:
        self.health = {key: value for key, value in self.health.items() if key[0] != driver}


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of drivers over their sockets."""

    channel: Callable[[str], grpc.aio.Channel]
    timeout: float

    async def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, Sequence[DriverDevice] | str]:
        request = pb.NodePrepareResourcesRequest(claims=map(_claim, claims))
        call = self._stub(driver).NodePrepareResources(request, timeout=self.timeout)
        answer = await _answered(call, "NodePrepareResources: ")
        return {
            uid: prepared.error or [_device(device) for device in prepared.devices]
            for uid, prepared in answer.claims.items()
        }

    async def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        call = self._stub(driver).NodeUnprepareResources(request, timeout=self.timeout)
        answer = await _answered(call, "NodeUnprepareResources: ")
        for claim in claims:
            if claim.uid not in answer.claims or answer.claims[claim.uid].error:
                why = answer.claims[claim.uid].error or "skipped"
                raise NotPreparedError(f"NodeUnprepareResources failed for ResourceClaim {claim.key[1]}: {why}")

    def _stub(self, driver: str) -> pb_grpc.DRAPluginAsyncStub:
        return pb_grpc.DRAPluginStub(self.channel(driver))


def _device(device: pb.Device) -> DriverDevice:
    return DriverDevice(device.pool_name, device.device_name, tuple(device.request_names), tuple(device.cdi_device_ids))


def _claim(claim: ClaimInfo) -> pb.Claim:
    return pb.Claim(namespace=claim.key[0], name=claim.key[1], uid=claim.uid)


def _is_connected(channel: grpc.aio.Channel) -> bool:
    return channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY


async def _answered(call: Awaitable[_Answer], prefix: str) -> _Answer:
    try:
        return await worded(call, prefix)
    except PluginCallError as error:
        raise NotPreparedError(str(error)) from error
