"""The device manager of the simulated kubelet: who has which device, and which devices a container gets.

It follows ``pkg/kubelet/cm/devicemanager/manager.go`` of Kubernetes 1.36 step by step, faults included, because a
plugin has to live with them. It has no sockets, no clock and no tasks: its user makes the calls of `Plugins`, and may
do anything while one is under way. Everything that Go leaves to the order of a map is drawn from the given random
source.
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
from typing import Protocol, TypeVar

import msgspec

from neuron_plugin.allocation import ContainerKind

HEALTHY = "Healthy"
NO_TOPOLOGY = -1
"""The NUMA node of a device that says none (pkg/kubelet/cm/devicemanager/manager.go)."""

_Item = TypeVar("_Item", str, tuple[str, int])


class AllocationError(Exception):
    """The kubelet cannot allocate the devices of a container. The text is the kubelet's."""


class PluginCallError(AllocationError):
    """A call to a plugin failed."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One device of a ListAndWatch message. Any health other than ``Healthy`` counts as unhealthy."""

    id: str
    health: str = HEALTHY
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One entry: the ids of one resource in one container, and the serialised ``ContainerAllocateResponse``."""

    pod_uid: str
    container: str
    resource: str
    ids_by_node: Mapping[int, tuple[str, ...]]
    response: bytes

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all NUMA nodes."""
        return frozenset(device_id for ids in self.ids_by_node.values() for device_id in ids)


@dataclass(slots=True)
class Selection:
    """The devices of one container and resource while they are being chosen.

    With ``asks``, the plugin is to be asked for a preferred allocation of ``size`` among ``available``, which contains
    ``must_include``: the devices that are already taken.
    """

    resource: str
    size: int
    taken: list[str]
    available: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    asks: bool = False
    sources: tuple[frozenset[str], ...] = ()


class Plugins(Protocol):
    """The plugins, as the allocation for a container calls them. Either call may fail with a `PluginCallError`."""

    async def preferred(self, selection: Selection) -> Collection[str]:
        """The ids that the plugin of a resource prefers."""

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        """The serialised ``ContainerAllocateResponse`` for these ids."""


class DeviceManager:
    """The memory of one kubelet process.

    ``numa_affinity`` is the hint of the topology manager; None is its policy "none". While ``sources_ready`` is False
    the kubelet does not know all its pods yet: it forgets none, and does not allocate for containers that already run,
    which ``running`` names by pod UID.
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
        """Replace the devices of a resource, as each ListAndWatch message does."""
        self._devices[resource] = {device.id: device for device in devices}
        self._healthy[resource] = {device.id for device in self._devices[resource].values() if device.health == HEALTHY}

    def mark_unhealthy(self, resource: str) -> None:
        """Keep the devices of a resource, as unhealthy ones: its plugin has disconnected."""
        known = self._devices.get(resource, {}).values()
        self.update_devices(resource, [ListedDevice(device.id, "Unhealthy", device.numa_nodes) for device in known])

    def remove_resource(self, resource: str) -> None:
        """Drop a resource whose plugin has been away for too long. Its recorded allocations stay."""
        self._devices.pop(resource, None)
        self._healthy.pop(resource, None)

    def devices(self, resource: str) -> Mapping[str, ListedDevice]:
        """The devices that the last message listed, by id."""
        return self._devices.get(resource, {})

    def healthy(self, resource: str) -> frozenset[str]:
        """The ids that the last message called Healthy."""
        return frozenset(self._healthy.get(resource, ()))

    def resources(self) -> list[str]:
        """The resources that a plugin has registered, also before a restart of the kubelet."""
        return sorted(self._devices)

    # Allocation.

    async def allocate(
        self, pod_uid: str, container: str, limits: Mapping[str, int], active_uids: Collection[str], plugins: Plugins
    ) -> bool:
        """Allocate all that a container asks for; True if the checkpoint is to be written now, once per container.

        Afterwards `offer_for_reuse`. An error rejects the pod, and only that of a plugin gives reserved devices back.

        Raises:
            AllocationError: the pod is to be rejected.
        """
        recorded, wanted = False, self.wanted(limits)
        if wanted:
            self.forget_pods(active_uids)
        for resource, count in wanted:
            selection = self.devices_to_allocate(pod_uid, container, resource, count)
            if selection is None:
                continue  # recorded already
            preferred = await plugins.preferred(selection) if selection.asks else ()
            ids = self.complete(selection, preferred)
            try:
                response = await plugins.allocate(resource, ids)
            except PluginCallError:
                self.restore()
                raise
            self.record(pod_uid, container, resource, ids, response)
            recorded = True
        return recorded

    def wanted(self, limits: Mapping[str, int]) -> list[tuple[str, int]]:
        """The limits that the device manager looks at, in random order.

        A resource that no plugin ever registered is ignored: its container runs without devices.
        """
        known = self._devices.keys() | self._allocated.keys()
        return self._shuffled((resource, count) for resource, count in limits.items() if resource in known)

    def devices_to_allocate(self, pod_uid: str, container: str, resource: str, count: int) -> Selection | None:
        """Begin to choose ``count`` devices, and reserve those that need no preference of the plugin.

        None if the plugin need not be called. Devices of the pod's earlier init containers are taken first.

        Raises:
            AllocationError: the pod is to be rejected.
        """
        recorded_ids = self._recorded_ids(pod_uid, container, resource, count)
        if container in self.running.get(pod_uid, ()) and not self.sources_ready:
            return None
        healthy = self._healthy.get(resource)
        if healthy is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not recorded_ids <= healthy:
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        if len(recorded_ids) == count:  # maybe none
            return None
        selection = Selection(resource, count, [])
        self._take(selection, self._reusable_by(pod_uid).get(resource, set()))
        if len(selection.taken) < count:
            self._offer(selection, frozenset(healthy - self._allocated.get(resource, set())))
        return selection

    def complete(self, selection: Selection, preferred: Collection[str] = ()) -> tuple[str, ...]:
        """Choose the rest: from ``preferred`` where it is available, then at random. The ids come in random order."""
        self._take(selection, set(selection.available).intersection(preferred).difference(selection.must_include))
        for source in selection.sources:
            self._take(selection, source)
        return tuple(self._shuffled(selection.taken))

    def restore(self) -> None:
        """Give back what is reserved and not recorded, as after a failed Allocate."""
        self._allocated = {}
        for allocation in self._recorded.values():
            self._allocated.setdefault(allocation.resource, set()).update(allocation.ids)

    def record(self, pod_uid: str, container: str, resource: str, ids: Iterable[str], response: bytes) -> None:
        """Remember an Allocate that was answered. This does not repair a reservation that was lost meanwhile."""
        by_node: dict[int, tuple[str, ...]] = {}
        for device_id in ids:
            device = self._devices.get(resource, {}).get(device_id)
            for node in (device.numa_nodes if device else ()) or (NO_TOPOLOGY,):
                by_node[node] = (*by_node.get(node, ()), device_id)
        self._recorded[pod_uid, container, resource] = DeviceEntry(pod_uid, container, resource, by_node, response)

    def offer_for_reuse(self, pod_uid: str, container: str, kind: ContainerKind) -> None:
        """After a container's allocations: later containers of the pod may take the devices of an init container."""
        reusable = self._reusable_by(pod_uid)
        for allocation in self.of_container(pod_uid, container):
            if kind is ContainerKind.INIT:
                reusable.setdefault(allocation.resource, set()).update(allocation.ids)
            else:
                reusable.setdefault(allocation.resource, set()).difference_update(allocation.ids)

    # Memory.

    def forget_pods(self, active_uids: Collection[str]) -> None:
        """Forget the entries of pods that are not active.

        Devices come free nowhere else. The kubelet does this before it allocates and in PodResources ``List``, never
        writes the checkpoint for it, and rebuilds the allocated devices from the recorded ones: a reservation whose
        Allocate is under way is lost (kubernetes/kubernetes#137534).
        """
        gone = [key for key in self._recorded if self.sources_ready and key[0] not in active_uids]
        for key in gone:
            del self._recorded[key]
        if gone:
            self.restore()

    def entries(self) -> tuple[DeviceEntry, ...]:
        """Everything that is recorded, also of ended pods until `forget_pods`."""
        return tuple(self._recorded.values())

    def of_container(self, pod_uid: str, container: str) -> Iterator[DeviceEntry]:
        """The entries of one container."""
        return (
            allocation
            for allocation in self._recorded.values()
            if (allocation.pod_uid, allocation.container) == (pod_uid, container)
        )

    def checkpoint_bytes(self) -> bytes:
        """The whole memory as ``kubelet_internal_checkpoint``.

        The kubelet's checksum is a hash of Go's printing of the data; here it is a CRC-32 of the JSON.
        """
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
        """Begin with what a checkpoint holds; False, and an empty memory, if it is lost, corrupt or of another format.

        Resources that were registered are known from the beginning, without any device.
        """
        self._recorded, self._devices, self._healthy = {}, {}, {}
        data = None
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            file = msgspec.json.decode(checkpoint or b"", type=_File)
            if file.checksum == zlib.crc32(file.data):
                data = msgspec.json.decode(file.data, type=_Data)
        for entry in (data and data.pod_device_entries) or ():
            key = (entry.pod_uid, entry.container_name, entry.resource_name)
            by_node = {int(node): tuple(ids) for node, ids in entry.device_ids.items()}
            self._recorded[key] = DeviceEntry(*key, by_node, base64.b64decode(entry.alloc_resp))
        for resource in data.registered_devices if data else ():
            self.update_devices(resource, ())
        self.restore()
        return data is not None

    # Choosing.

    def _recorded_ids(self, pod_uid: str, container: str, resource: str, count: int) -> frozenset[str]:
        """The ids that are recorded, as many as are asked for, or none."""
        recorded = self._recorded.get((pod_uid, container, resource))
        if recorded and len(recorded.ids) != count:
            raise AllocationError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(recorded.ids)} to {count}"
            )
        return recorded.ids if recorded else frozenset()

    def _offer(self, selection: Selection, available: frozenset[str]) -> None:
        """Say what the plugin is to be asked, and where the rest comes from."""
        needed = selection.size - len(selection.taken)
        if len(available) < needed:
            raise AllocationError(
                f"requested number of devices unavailable for {selection.resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        devices, affinity = self._devices[selection.resource], self._numa_affinity or frozenset()
        with_topology = frozenset(device_id for device_id in available if affinity and devices[device_id].numa_nodes)
        aligned = frozenset(
            device_id for device_id in with_topology if affinity.intersection(devices[device_id].numa_nodes)
        )
        if needed < len(aligned):
            candidates, selection.sources = aligned, (aligned,)
        else:
            if self._take(selection, aligned):
                return
            candidates, selection.sources = available, (with_topology, available)
        selection.available = tuple(self._shuffled(candidates.union(selection.taken)))
        selection.must_include = tuple(self._shuffled(selection.taken))
        selection.asks = True

    def _take(self, selection: Selection, source: Collection[str]) -> bool:
        """Reserve at random from ``source`` what is still needed. True if that was enough."""
        chosen = self._shuffled(set(source).difference(selection.taken))[: selection.size - len(selection.taken)]
        selection.taken += chosen
        self._allocated.setdefault(selection.resource, set()).update(chosen)
        return len(selection.taken) == selection.size

    def _reusable_by(self, pod_uid: str) -> dict[str, set[str]]:
        """What init containers of the pod under admission have left; another pod's are forgotten."""
        if self._reusable[0] != pod_uid:
            self._reusable = (pod_uid, {})
        return self._reusable[1]

    def _shuffled(self, items: Iterable[_Item]) -> list[_Item]:
        ordered = sorted(items)
        self._random.shuffle(ordered)
        return ordered


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")
    alloc_resp: str


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: list[_Entry] | None
    registered_devices: dict[str, list[str]]


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: msgspec.Raw
    checksum: int


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by rename as the kubelet does, through ``.<random>`` beside it; without a sync to disk."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
