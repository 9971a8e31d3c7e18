"""The device manager of the simulated kubelet: who has which device, and which devices a container gets.

It follows ``pkg/kubelet/cm/devicemanager/manager.go`` of Kubernetes 1.36 step by step, including its bugs, because a
plugin has to live with them. It has no sockets, clock or tasks: the caller passes `Plugins`, and other calls may come
while a plugin answers. Where Go iterates over a map, the given random source chooses the order.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from neuron_plugin.allocation import ContainerKind

HEALTHY = "Healthy"
NO_TOPOLOGY = -1
"""The NUMA node of a device without topology (manager.go)."""

_Item = TypeVar("_Item", str, tuple[str, int])


class AllocationError(Exception):
    """The kubelet cannot allocate a container's devices. The text is the kubelet's."""


class PluginCallError(AllocationError):
    """A call to a plugin failed."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device of a ListAndWatch message. Any other health than ``Healthy`` means unhealthy."""

    id: str
    health: str = HEALTHY
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """An allocation: one resource of one container, and the serialised ``ContainerAllocateResponse``."""

    pod_uid: str
    container: str
    resource: str
    ids_by_node: Mapping[int, tuple[str, ...]]
    response: bytes

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all NUMA nodes."""
        return frozenset(device_id for ids in self.ids_by_node.values() for device_id in ids)


@dataclass(frozen=True, slots=True)
class Selection:
    """A preference request: ``size`` ids of ``available`` that include ``must_include``."""

    resource: str
    size: int
    available: tuple[str, ...]
    must_include: tuple[str, ...]


class Plugins(Protocol):
    """The calls to plugins during an allocation. Both may fail with a `PluginCallError`."""

    async def preferred(self, selection: Selection) -> Collection[str]:
        """The ids that the plugin prefers."""

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        """The serialised ``ContainerAllocateResponse`` for these ids."""


class DeviceManager:
    """The allocations of one kubelet process.

    ``numa_affinity`` is the topology manager's hint; None is its policy "none". While ``sources_ready`` is False the
    kubelet does not know all its pods: it forgets none, and does not allocate for the containers in ``running`` (names
    by pod UID).
    """

    def __init__(self, random: Random, *, numa_affinity: frozenset[int] | None = None) -> None:
        self.sources_ready = True
        self.running: Mapping[str, Collection[str]] = {}
        self._random = random
        self._numa_affinity = numa_affinity
        self._devices: dict[str, dict[str, ListedDevice]] = {}
        self._healthy: dict[str, set[str]] = {}
        self._recorded: dict[tuple[str, str, str], DeviceEntry] = {}
        self._allocated: dict[str, set[str]] = {}
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})

    # The lists of the plugins. The kubelet writes the checkpoint after each of these.

    def update_devices(self, resource: str, devices: Iterable[ListedDevice]) -> None:
        """Replace a resource's devices with those of a ListAndWatch message."""
        self._devices[resource] = {device.id: device for device in devices}
        self._healthy[resource] = {device.id for device in self._devices[resource].values() if device.health == HEALTHY}

    def mark_unhealthy(self, resource: str) -> None:
        """Mark a resource's devices unhealthy: its plugin has disconnected."""
        known = self._devices.get(resource, {}).values()
        self.update_devices(resource, [ListedDevice(device.id, "Unhealthy", device.numa_nodes) for device in known])

    def remove_resource(self, resource: str) -> None:
        """Remove a resource whose plugin has been away for too long. Its allocations stay."""
        self._devices.pop(resource, None)
        self._healthy.pop(resource, None)

    def devices(self, resource: str) -> Mapping[str, ListedDevice]:
        """The devices that the last message listed, by id."""
        return self._devices.get(resource, {})

    def healthy(self, resource: str) -> frozenset[str]:
        """The healthy ids of the last message."""
        return frozenset(self._healthy.get(resource, ()))

    def resources(self) -> list[str]:
        """The resources registered now or before the kubelet restarted."""
        return sorted(self._devices)

    # Allocation.

    async def allocate(
        self, pod_uid: str, container: str, limits: Mapping[str, int], active_uids: Collection[str], plugins: Plugins
    ) -> bool:
        """Allocate all resources of a container; True if the checkpoint must be written. Call `offer_for_reuse` next.

        Raises:
            AllocationError: reject the pod. Reserved devices are released only if a plugin call failed.
        """
        recorded, wanted = False, self.wanted(limits)
        if wanted:
            self.forget_pods(active_uids)
        for resource, count in wanted:
            if self._has_all(pod_uid, container, resource, count):
                continue
            ids = await self._choose(pod_uid, resource, count, plugins)
            try:
                response = await plugins.allocate(resource, ids)
            except PluginCallError:
                self.restore()
                raise
            self.record(pod_uid, container, resource, ids, response)
            recorded = True
        return recorded

    def wanted(self, limits: Mapping[str, int]) -> list[tuple[str, int]]:
        """The limits of registered resources, in random order. Others are ignored: the container runs without."""
        known = self._devices.keys() | self._allocated.keys()
        return self._shuffled((resource, count) for resource, count in limits.items() if resource in known)

    def restore(self) -> None:
        """Release reservations without a recorded allocation, as after a failed Allocate."""
        self._allocated = {}
        for allocation in self._recorded.values():
            self._allocated.setdefault(allocation.resource, set()).update(allocation.ids)

    def record(self, pod_uid: str, container: str, resource: str, ids: Iterable[str], response: bytes) -> None:
        """Record an answered Allocate. A reservation that was lost meanwhile stays lost."""
        by_node: dict[int, tuple[str, ...]] = {}
        for device_id in ids:
            device = self._devices.get(resource, {}).get(device_id)
            for node in (device.numa_nodes if device else ()) or (NO_TOPOLOGY,):
                by_node[node] = (*by_node.get(node, ()), device_id)
        self._recorded[pod_uid, container, resource] = DeviceEntry(pod_uid, container, resource, by_node, response)

    def offer_for_reuse(self, pod_uid: str, container: str, kind: ContainerKind) -> None:
        """Let later containers of the pod take the devices of an init container."""
        reusable = self._reusable_by(pod_uid)
        for allocation in self.of_container(pod_uid, container):
            if kind is ContainerKind.INIT:
                reusable.setdefault(allocation.resource, set()).update(allocation.ids)
            else:
                reusable.setdefault(allocation.resource, set()).difference_update(allocation.ids)

    # Memory.

    def forget_pods(self, active_uids: Collection[str]) -> None:
        """Forget the allocations of inactive pods. Nothing else frees devices.

        The kubelet does this before each allocation and in PodResources ``List``, without writing the checkpoint. The
        reservation of a running Allocate is lost (kubernetes/kubernetes#137534).
        """
        gone = [key for key in self._recorded if self.sources_ready and key[0] not in active_uids]
        for key in gone:
            del self._recorded[key]
        if gone:
            self.restore()

    def entries(self) -> tuple[DeviceEntry, ...]:
        """All allocations, including those of ended pods until `forget_pods`."""
        return tuple(self._recorded.values())

    def of_container(self, pod_uid: str, container: str) -> Iterator[DeviceEntry]:
        """The allocations of one container."""
        return (
            allocation
            for allocation in self._recorded.values()
            if (allocation.pod_uid, allocation.container) == (pod_uid, container)
        )

    def checkpoint_bytes(self) -> bytes:
        """The content of ``kubelet_internal_checkpoint``. The checksum is a CRC-32, not the kubelet's hash."""
        entries = [
            {
                "PodUID": allocation.pod_uid,
                "ContainerName": allocation.container,
                "ResourceName": allocation.resource,
                "DeviceIDs": {str(node): ids for node, ids in allocation.ids_by_node.items()},
                "AllocResp": base64.b64encode(allocation.response).decode(),
            }
            for allocation in self._recorded.values()
        ]
        registered = {resource: sorted(ids) for resource, ids in self._healthy.items()}
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
        return msgspec.json.encode({"Data": data, "Checksum": zlib.crc32(msgspec.json.encode(data))})

    def load(self, checkpoint: bytes | None) -> bool:
        """Load a checkpoint; False, and no allocations, if it is missing, corrupt or of another format.

        Registered resources are known again, without devices.
        """
        self._recorded, self._devices, self._healthy = {}, {}, {}
        data: dict[str, Any] = {}
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            file = msgspec.json.decode(checkpoint or b"")
            if file["Checksum"] == zlib.crc32(msgspec.json.encode(file["Data"])):
                data = file["Data"]
        for entry in data.get("PodDeviceEntries") or ():
            key = (entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
            by_node = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
            self._recorded[key] = DeviceEntry(*key, by_node, base64.b64decode(entry["AllocResp"]))
        for resource in data.get("RegisteredDevices") or ():
            self.update_devices(resource, ())
        self.restore()
        return bool(data)

    # Choosing.

    def _has_all(self, pod_uid: str, container: str, resource: str, count: int) -> bool:
        """Whether the allocation is complete, or the container runs while not all pods are known.

        Raises:
            AllocationError: reject the pod.
        """
        entry = self._recorded.get((pod_uid, container, resource))
        recorded = entry.ids if entry else frozenset()
        if entry and len(recorded) != count:
            raise AllocationError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(recorded)} to {count}"
            )
        if container in self.running.get(pod_uid, ()) and not self.sources_ready:
            return True
        healthy, why = self._healthy.get(resource), f"cannot allocate unhealthy devices {resource}"
        if healthy is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationError(f"no healthy devices present; {why}")
        if not recorded <= healthy:
            raise AllocationError(f"previously allocated devices are no longer healthy; {why}")
        return len(recorded) == count  # maybe none

    async def _choose(self, pod_uid: str, resource: str, count: int, plugins: Plugins) -> tuple[str, ...]:
        """Reserve ``count`` devices: reusable ones first, then available ones that the plugin prefers, then any.

        Raises:
            AllocationError: reject the pod.
        """
        taken: list[str] = []

        def take(source: Collection[str]) -> bool:
            """Reserve random devices of the source until ``count`` is reached; whether it is."""
            chosen = self._shuffled(set(source).difference(taken))[: count - len(taken)]
            taken.extend(chosen)
            self._allocated.setdefault(resource, set()).update(chosen)
            return len(taken) == count

        if take(self._reusable_by(pod_uid).get(resource, set())):
            return tuple(self._shuffled(taken))
        available = frozenset(self._healthy[resource] - self._allocated[resource])
        if len(available) < (needed := count - len(taken)):
            text = f"requested number of devices unavailable for {resource}. Requested: {needed}"
            raise AllocationError(f"{text}, Available: {len(available)}")
        devices, affinity = self._devices[resource], self._numa_affinity or frozenset()
        with_topology = frozenset(each for each in available if affinity and devices[each].numa_nodes)
        aligned = frozenset(each for each in with_topology if affinity.intersection(devices[each].numa_nodes))
        sources: tuple[frozenset[str], ...] = (aligned,)
        if needed >= len(aligned):
            if take(aligned):
                return tuple(self._shuffled(taken))
            sources = (with_topology, available)
        candidates, kept = self._shuffled(sources[-1].union(taken)), self._shuffled(taken)
        preferred = await plugins.preferred(Selection(resource, count, tuple(candidates), tuple(kept)))
        take(set(candidates).intersection(preferred))
        for source in sources:
            take(source)
        return tuple(self._shuffled(taken))

    def _reusable_by(self, pod_uid: str) -> dict[str, set[str]]:
        """The reusable devices of the pod's init containers. Those of an earlier pod are forgotten."""
        if self._reusable[0] != pod_uid:
            self._reusable = (pod_uid, {})
        return self._reusable[1]

    def _shuffled(self, items: Iterable[_Item]) -> list[_Item]:
        ordered = sorted(items)
        self._random.shuffle(ordered)
        return ordered


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file like the kubelet: rename a temporary file beside it, without fsync."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
