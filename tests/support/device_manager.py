"""The device manager of a kubelet that starts again: it reads its checkpoint, and knows all its pods only later."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection
from contextlib import suppress
from random import Random

import msgspec

from neuron_plugin.simulation.kubelet_device_manager import (
    NO_TOPOLOGY,
    DeviceEntry,
    DeviceManager,
    Selection,
)


class StandInDeviceManager(DeviceManager):
    """The memory of one kubelet process.

    While ``sources_ready`` is False the kubelet does not know all its pods yet: it forgets none, and does not allocate
    for containers that already run, which ``running`` names by pod UID.
    """

    def __init__(self, random: Random, *, numa_affinity: frozenset[int] | None = None) -> None:
        super().__init__(random, numa_affinity=numa_affinity)
        self.sources_ready = True
        self.running: dict[str, set[str]] = {}

    def entries(self) -> tuple[DeviceEntry, ...]:
        """Everything that is recorded, also of ended pods until `forget_pods`."""
        return tuple(self._recorded.values())

    def forget_pods(self, active_uids: Collection[str]) -> None:
        if self.sources_ready:
            super().forget_pods(active_uids)

    def devices_to_allocate(self, pod_uid: str, container: str, resource: str, count: int) -> Selection | None:
        if container in self.running.get(pod_uid, ()) and not self.sources_ready:
            self._recorded_ids(pod_uid, container, resource, count)
            return None
        return super().devices_to_allocate(pod_uid, container, resource, count)

    def load(self, checkpoint: bytes | None) -> bool:
        """Begin with what a checkpoint holds; False, and an empty memory, if it is lost, corrupt or of another format.

        Resources that were registered are known from the beginning, without any device. DeviceIDs may be a flat list,
        as before Kubernetes 1.20.
        """
        self._recorded, self._devices, self._healthy = {}, {}, {}
        data = None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            file = msgspec.json.decode(checkpoint or b"", type=_File)
            if file.checksum == zlib.crc32(file.data):
                data = msgspec.json.decode(file.data, type=_Data)
        for entry in (data and data.pod_device_entries) or ():
            key = (entry.pod_uid, entry.container_name, entry.resource_name)
            ids = entry.device_ids if isinstance(entry.device_ids, dict) else {str(NO_TOPOLOGY): entry.device_ids}
            by_node = {int(node): tuple(each) for node, each in ids.items()}
            self._recorded[key] = DeviceEntry(*key, by_node, base64.b64decode(entry.alloc_resp))
        for resource in data.registered_devices if data else ():
            self.update_devices(resource, ())
        self.restore()
        return data is not None


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] | list[str] = msgspec.field(name="DeviceIDs")
    alloc_resp: str


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: list[_Entry] | None
    registered_devices: dict[str, list[str]]


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: msgspec.Raw
    checksum: int


def flat(checkpoint: bytes) -> bytes:
    """A checkpoint in the format before Kubernetes 1.20: the ids of an entry are one list."""
    data = msgspec.json.decode(checkpoint)["Data"]
    for entry in data["PodDeviceEntries"] or ():
        entry["DeviceIDs"] = sorted(each for ids in entry["DeviceIDs"].values() for each in ids)
    return msgspec.json.encode({"Data": data, "Checksum": zlib.crc32(msgspec.json.encode(data))})
