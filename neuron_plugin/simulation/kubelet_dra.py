"""How the simulated kubelet prepares ResourceClaims, records them in its state file, and calls DRA drivers.

It follows ``pkg/kubelet/cm/dra`` of Kubernetes 1.36.2 including its bugs, because a driver has to live with them.
`ClaimMemory` has no sockets, clock or tasks: the caller passes `Drivers`, and other calls may come while a driver
answers. The kubelet deletes the node's ResourceSlices of a driver that does not answer for a while, and those of all
drivers when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
import msgspec

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2 as health_pb
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1.api_pb2 import PluginInfo
from neuron_plugin.kubelet.dra_state import API_VERSION
from neuron_plugin.kubelet.socket_watch import channel_to
from neuron_plugin.kubelet_files import DRA_STATE
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, RESOURCE_SLICES, AnyJson, Refusal
from neuron_plugin.simulation.kubelet_device_manager import PluginCallError, replace_file
from neuron_plugin.simulation.kubelet_plugins import worded
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod

PLUGIN_TYPE = "DRAPlugin"
SERVICE, HEALTH_SERVICE = "v1.DRAPlugin", "v1alpha1.DRAResourceHealth"
_HEALTHS = {health_pb.HEALTHY: "Healthy", health_pb.UNHEALTHY: "Unhealthy"}
ClaimKey = tuple[str, str]
"""Namespace and name: the kubelet identifies claims by name, not by UID."""


class KubeletStateError(Exception):
    """The claim state file cannot be loaded, and the kubelet does not start."""


class NotPreparedError(Exception):
    """A claim cannot be prepared or unprepared now. The kubelet tries again; the text is the kubelet's."""


class DriverDevice(msgspec.Struct, frozen=True):
    """A device in a driver's answer, with the field names of the state file."""

    pool: str = msgspec.field(name="PoolName")
    name: str = msgspec.field(name="DeviceName")
    requests: tuple[str, ...] = msgspec.field(name="RequestNames")
    cdi_ids: tuple[str, ...] = msgspec.field(name="CDIDeviceIDs")


@dataclass(slots=True)
class ClaimInfo:
    """A claim of pods on this node. ``prepared`` is not in the file: it is False after each start."""

    uid: str
    key: ClaimKey
    pods: set[str]
    drivers: dict[str, list[DriverDevice]]
    prepared: bool = False

    def devices(self, request: str) -> Iterator[tuple[str, DriverDevice]]:
        """Driver and device for each device of a request; an empty request means all."""
        for driver, devices in self.drivers.items():
            for device in devices:
                if not request or not device.requests or request in device.requests:
                    yield driver, device


class Drivers(Protocol):
    """The calls to DRA drivers. Both may fail with a `NotPreparedError`."""

    async def node_prepare(
        self, driver: str, claims: Sequence[ClaimInfo]
    ) -> Mapping[str, Sequence[DriverDevice] | str]:
        """By claim UID: the claim's devices, or the error text."""

    async def node_unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        """Unprepare claims."""


@dataclass
class ClaimMemory:
    """The claims of one kubelet process; ``write`` replaces the state file."""

    claims: dict[ClaimKey, ClaimInfo] = field(default_factory=dict)
    write: Callable[[], None] = lambda: None

    async def prepare(self, claims: Iterable[AnyJson], pod_uid: str, drivers: Drivers) -> None:
        """Prepare all claims of a pod with one call to each driver.

        The file is written before the calls, and after all of them succeeded. A failed call undoes nothing: each retry
        appends its devices to those of earlier answers (kubernetes#140955).

        Raises:
            NotPreparedError: the pod must wait; prepare it again.
        """
        known: list[ClaimInfo] = []
        by_driver: dict[str, list[ClaimInfo]] = {}
        for claim in claims:
            known.append(info := self._added(claim, pod_uid))
            self.write()
            for driver in () if info.prepared else info.drivers:
                by_driver.setdefault(driver, []).append(info)
        for driver, asked in by_driver.items():
            answer = await drivers.node_prepare(driver, asked)
            for info in asked:
                if info.uid not in answer:
                    raise NotPreparedError(f"NodePrepareResources skipped {len(asked) - len(answer)} ResourceClaims")
                devices = answer[info.uid]
                if isinstance(devices, str):
                    text = f"NodePrepareResources failed for ResourceClaim {info.key[1]}: {devices}"
                    raise NotPreparedError(text)
                for device in devices:
                    self.known(info.key).drivers.setdefault(driver, []).append(device)
        for info in known:
            self.known(info.key).prepared = True
        self.write()

    async def unprepare(self, keys: Iterable[ClaimKey], pod_uid: str, drivers: Drivers) -> None:
        """Unprepare the claims of an ended pod. A claim shared with other pods only loses this pod.

        The kubelet counts a claim's pods without checking which they are. So a second call for one pod unprepares the
        claim of another (kubernetes#140212).

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        asked: dict[str, list[ClaimInfo]] = {}
        for claim in filter(None, map(self.claims.get, keys)):
            if len(claim.pods) > 1:
                claim.pods.discard(pod_uid)
                continue
            for driver in claim.drivers:
                asked.setdefault(driver, []).append(claim)
        for driver, claims in asked.items():
            await drivers.node_unprepare(driver, claims)
        for claim in (claim for claims in asked.values() for claim in claims):
            self.claims.pop(claim.key, None)
        self.write()

    def of_inactive(self, active: Collection[str]) -> dict[str, list[ClaimKey]]:
        """Claims of inactive pods, by pod UID."""
        keys: dict[str, list[ClaimKey]] = {}
        for claim in self.claims.values():
            for uid in claim.pods.difference(active):
                keys.setdefault(uid, []).append(claim.key)
        return keys

    def known(self, key: ClaimKey) -> ClaimInfo:
        """The claim of this name.

        Raises:
            NotPreparedError: it was unprepared.
        """
        claim = self.claims.get(key)
        if claim is None:
            text = f"unable to get claim info for ResourceClaim {key[1]} in namespace {key[0]}"
            raise NotPreparedError(f"internal error: {text}")
        return claim

    def _added(self, claim: AnyJson, pod_uid: str) -> ClaimInfo:
        """Record that a pod uses an allocated claim."""
        metadata = claim["metadata"]
        key = metadata["namespace"], metadata["name"]
        known = self.claims.get(key)
        if known is None:
            results = claim["status"]["allocation"]["devices"].get("results") or ()
            drivers: dict[str, list[DriverDevice]] = {result["driver"]: [] for result in results}
            known = self.claims[key] = ClaimInfo(metadata["uid"], key, set(), drivers)
        elif known.uid != metadata["uid"]:
            raise NotPreparedError(
                f"old ResourceClaim with same name {key[1]} and different UID {known.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        known.pods.add(pod_uid)
        return known

    # The file.

    def state_bytes(self) -> bytes:
        """The content of ``dra_manager_state``."""
        entries = [
            {
                "ClaimUID": claim.uid,
                "ClaimName": claim.key[1],
                "Namespace": claim.key[0],
                "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
                "DriverState": {driver: {"Devices": devices or None} for driver, devices in claim.drivers.items()},
            }
            for claim in self.claims.values()
        ]
        data = {"ClaimInfoStateList": entries, "kind": "DRACheckpoint", "apiVersion": API_VERSION}
        text = msgspec.json.encode(data)
        return msgspec.json.encode({"Data": text.decode(), "Checksum": zlib.crc32(text)})

    def load(self, content: bytes | None) -> None:
        """Load the file of an earlier process; None means no file.

        Raises:
            KubeletStateError: it is unreadable, or its checksum is wrong.
        """
        self.claims.clear()
        if content is None:
            return
        try:
            file = msgspec.json.decode(content)
            data = msgspec.json.decode(file["Data"])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise KubeletStateError(f"please drain node and remove DRA state file: {error!r}") from error
        if zlib.crc32(file["Data"].encode()) != file["Checksum"]:
            raise KubeletStateError("checkpoint is corrupted: please drain node and remove DRA state file")
        for claim in data["ClaimInfoStateList"]:
            states = {driver: state["Devices"] or [] for driver, state in claim["DriverState"].items()}
            drivers = msgspec.convert(states, dict[str, list[DriverDevice]])
            key = claim["Namespace"], claim["ClaimName"]
            self.claims[key] = ClaimInfo(claim["ClaimUID"], key, set(claim["PodUIDs"]), drivers)


# Drivers.


@dataclass(frozen=True, slots=True)
class DraManagerTimes:
    """Seconds, by default as in a real kubelet. A real kubelet retries a failed Prepare after 60 to 90 s."""

    retry: float = 75.0
    call: float = 45.0
    watcher: float = 1.0
    wipe: float = 30.0
    health: float = 5.0
    reconcile: float = 60.0


@dataclass(eq=False)
class _Driver:
    """A registered socket of a driver."""

    name: str
    channel: grpc.aio.Channel
    health: asyncio.Task[None] | None = None


@dataclass
class DraManager:
    """Prepares the claims of pods on ``node``. It starts and stops with the kubelet.

    ``directory`` is the kubelet's root directory. ``active`` are the UIDs of the kubelet's pods.
    """

    directory: Path
    api: SimulatedApiServer
    node: str
    times: DraManagerTimes = DraManagerTimes()
    active: Collection[str] = ()
    memory: ClaimMemory = field(default_factory=ClaimMemory)

    def __post_init__(self) -> None:
        self.path = self.directory / DRA_STATE
        self.health: dict[tuple[str, str, str], tuple[str, str]] = {}
        """Health and message, by driver, pool and device."""
        self._drivers: dict[Path, _Driver] = {}
        self._lost_at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.memory.write = lambda: replace_file(self.path, self.memory.state_bytes())

    @property
    def drivers(self) -> set[str]:
        """Names of the registered drivers."""
        return {driver.name for driver in self._drivers.values()}

    async def start(self) -> None:
        """Load the state file, and delete the node's ResourceSlices.

        Raises:
            KubeletStateError: the file cannot be read, and the kubelet does not start.
        """
        self.memory.load(self.path.read_bytes() if self.path.exists() else None)
        self._delete_slices("")
        self._tasks = [
            asyncio.create_task(job(), name=job.__name__) for job in (self._watch_connections, self._reconcile)
        ]

    async def stop(self) -> None:
        """Stop like a kubelet: end streams and calls, and forget the drivers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path, driver in list(self._drivers.items()):
            await self.deregister(driver.name, path)
        self._lost_at.clear()

    # Pods.

    async def prepare(self, pod: KubeletPod) -> None:
        """Prepare all claims of a pod.

        Raises:
            NotPreparedError: the pod must wait; prepare it again.
        """
        await self.memory.prepare([self._checked(pod, name) for name in pod.claims.values()], pod.uid, self)

    async def unprepare(self, pod: KubeletPod) -> None:
        """Unprepare the claims of a pod whose containers have ended.

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        keys = [(pod.namespace, name) for name in pod.claims.values()]
        await self.memory.unprepare(keys, pod.uid, self)

    def cdi_devices(self, pod: KubeletPod, container: KubeletContainer) -> tuple[str, ...]:
        """Names of a container's CDI devices.

        Raises:
            NotPreparedError: a claim was unprepared.
        """
        names: list[str] = []
        for name, request in container.claims:
            claim = self.memory.known((pod.namespace, pod.claims.get(name, "")))
            names += [cdi_id for _, device in claim.devices(request) for cdi_id in device.cdi_ids]
        return tuple(names)

    def status(self, pod: KubeletPod, container: KubeletContainer) -> list[AnyJson]:
        """``allocatedResourcesStatus`` of a container: the health of each device, named by its first CDI device."""
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

    def _checked(self, pod: KubeletPod, name: str) -> AnyJson:
        """The claim, if it may be prepared for the pod; nothing is recorded yet."""
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

    async def _reconcile(self) -> None:
        """Unprepare the claims of inactive pods."""
        while True:
            await asyncio.sleep(self.times.reconcile)
            for uid, keys in self.memory.of_inactive(self.active).items():
                with contextlib.suppress(NotPreparedError):  # tried again at the next turn
                    await self.memory.unprepare(keys, uid, self)

    # Drivers.

    async def node_prepare(
        self, driver: str, claims: Sequence[ClaimInfo]
    ) -> Mapping[str, Sequence[DriverDevice] | str]:
        """See `Drivers`."""
        stub: pb_grpc.DRAPluginAsyncStub = pb_grpc.DRAPluginStub(self._channel(driver))
        request = pb.NodePrepareResourcesRequest(claims=map(_claim, claims))
        call = stub.NodePrepareResources(request, timeout=self.times.call)
        answer = await worded(call, "NodePrepareResources: ", NotPreparedError)
        return {
            uid: prepared.error
            or [
                DriverDevice(each.pool_name, each.device_name, tuple(each.request_names), tuple(each.cdi_device_ids))
                for each in prepared.devices
            ]
            for uid, prepared in answer.claims.items()
        }

    async def node_unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        """See `Drivers`."""
        stub: pb_grpc.DRAPluginAsyncStub = pb_grpc.DRAPluginStub(self._channel(driver))
        request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        call = stub.NodeUnprepareResources(request, timeout=self.times.call)
        answer = await worded(call, "NodeUnprepareResources: ", NotPreparedError)
        for claim in claims:
            if claim.uid not in answer.claims or answer.claims[claim.uid].error:
                why = answer.claims[claim.uid].error or "skipped"
                raise NotPreparedError(f"NodeUnprepareResources failed for ResourceClaim {claim.key[1]}: {why}")

    def _channel(self, driver: str) -> grpc.aio.Channel:
        """The newest connection to a driver."""
        channels = [known.channel for known in self._drivers.values() if known.name == driver]
        if not channels:
            raise NotPreparedError(f"DRA driver {driver} is not registered")
        return channels[-1]

    async def register(self, info: PluginInfo, socket: Path) -> None:
        """See `PluginHandler`."""
        if SERVICE not in info.supported_versions:
            raise PluginCallError(f"none of services supported by the plugin are supported: {SERVICE}")
        if socket in self._drivers:  # the driver was not told about its registration
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
        """Delete the slices of a driver that has been disconnected for a while."""
        loop = asyncio.get_running_loop()
        while True:
            states = {known: known.channel.get_state(try_to_connect=True) for known in self._drivers.values()}
            usable = {known.name for known, state in states.items() if state is grpc.ChannelConnectivity.READY}
            for name in self._lost_at.keys() | self.drivers:
                if name in usable:
                    self._lost_at.pop(name, None)
                elif loop.time() - self._lost_at.setdefault(name, loop.time()) >= self.times.wipe:
                    self._lost_at[name] = float("inf")  # once, until it is back
                    self._delete_slices(name)
            await asyncio.sleep(self.times.watcher)

    def _delete_slices(self, driver: str) -> None:
        """Delete the node's slices of a driver; an empty name means all drivers."""
        for resource_slice in self.api.objects(RESOURCE_SLICES):
            if resource_slice["spec"].get("nodeName") == self.node and driver in {"", resource_slice["spec"]["driver"]}:
                self.api.delete(RESOURCE_SLICES, resource_slice["metadata"]["name"])

    async def _follow_health(self, driver: _Driver) -> None:
        """Record the device health that a driver streams, and reopen the stream when it ends."""
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


def _claim(claim: ClaimInfo) -> pb.Claim:
    return pb.Claim(namespace=claim.key[0], name=claim.key[1], uid=claim.uid)
