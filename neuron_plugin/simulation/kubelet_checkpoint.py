"""The file by which the stand-in kubelet remembers allocations across its restarts, in the kubelet's own form.

It is written after each container's allocations and each ListAndWatch message, and not when devices come free: what an
ended pod had stays in it until then (``dm/manager.go``). One that cannot be read is passed over: the kubelet then
believes that nobody holds anything. The checksum is of Go's printing and is not made up here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from neuron_plugin.kubelet import CHECKPOINT
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_memory import Allocation, Memory

_NO_TOPOLOGY = "-1"


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")
    alloc_resp: str


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None
    registered_devices: dict[str, list[str]] = {}


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: _Data = _Data()
    checksum: int = 0


def write_memory(directory: Path, memory: Memory, healthy: Mapping[str, Iterable[str]]) -> None:
    """Keep the allocations, and the healthy ids of each resource, whole or not at all."""
    entries = [_entry(each) for each in memory.allocations.values()]
    data = _Data(entries or None, {resource: sorted(ids) for resource, ids in healthy.items()})
    aside = directory / f".{CHECKPOINT}"
    aside.write_bytes(msgspec.json.encode(_File(data)))
    aside.replace(directory / CHECKPOINT)


def read_memory(directory: Path) -> Memory:
    """What was kept; nothing if there is no file, or none that makes sense."""
    try:
        data = msgspec.json.decode((directory / CHECKPOINT).read_bytes(), type=_File).data
        allocations = [_allocation(entry) for entry in data.pod_device_entries or []]
    except (OSError, ValueError, DecodeError):
        return Memory()
    memory = Memory(resources=set(data.registered_devices))
    for each in allocations:
        memory.record(each)
    return memory


def _entry(allocation: Allocation) -> _Entry:
    response = base64.b64encode(allocation.response.SerializeToString()).decode()
    ids = {_NO_TOPOLOGY: sorted(allocation.ids)}
    return _Entry(allocation.uid, allocation.container, allocation.resource, ids, response)


def _allocation(entry: _Entry) -> Allocation:
    ids = frozenset(each for node in entry.device_ids.values() for each in node)
    response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.alloc_resp))
    return Allocation(entry.pod_uid, entry.container_name, entry.resource_name, ids, response)
