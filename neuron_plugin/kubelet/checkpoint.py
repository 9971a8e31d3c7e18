"""Which container has which device ids, read from the kubelet's own checkpoint file.

The kubelet records each Allocate reply under pod UID, container and resource, and writes the file before it asks for
the next container. The reply is part of the entry, so what we put into it comes back with the pod's UID. The format is
internal to the kubelet (``pkg/kubelet/cm/devicemanager/checkpoint``, 1.36). So an unknown shape is an error and never
an empty list: an empty list would mean that all devices are free. Never write this file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb

MOST_BYTES = 64 << 20
"""1000 containers of 16 devices take 1.6 MB."""

Version = tuple[int, int, int]
_CANNOT_STAT: Version = (0, 0, 0)
_NEVER_READ = object()


class FileContent(Protocol):
    """The content of one version of a file; ``version`` is None while there is no file."""

    @property
    def version(self) -> Version | None:
        """The version of the file."""


Content = TypeVar("Content", bound=FileContent)
Content_co = TypeVar("Content_co", bound=FileContent, covariant=True)


class CheckpointError(Exception):
    """The file cannot be read; the text says which file, what is in it and what was expected."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The device ids of one resource in one container, and what our reply to that Allocate said.

    ``device_paths`` are the device nodes of the reply as host paths.
    """

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    annotations: Mapping[str, str] = field(hash=False)
    device_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version of the file. ``version`` is None while there is no file: the kubelet has written nothing yet."""

    entries: tuple[CheckpointEntry, ...]
    version: Version | None


@dataclass(frozen=True, slots=True)
class KubeletFile(ABC, Generic[Content]):
    """A file that the kubelet writes at ``path``. ``what`` names it in errors."""

    path: Path
    what: ClassVar[str]

    @abstractmethod
    def content(self, data: bytes | None, version: Version | None) -> Content:
        """What the file says; both are None while there is no file."""

    def version(self) -> Version | None:
        """Modification time in nanoseconds, size and inode of the file now, by one stat; None if there is no file.

        (0, 0, 0) if the stat fails for another reason: that is no version of any file, so `read` is called and raises.
        """
        try:
            return _version_of(os.stat(self.path))  # noqa: PTH116 - half the time of Path.stat, in every Allocate
        except FileNotFoundError:
            return None
        except OSError:
            return _CANNOT_STAT

    def read(self) -> Content:
        """Read the whole file. Its version is the read file's own, also if the file is replaced meanwhile.

        Raises:
            CheckpointError: the file cannot be opened, is larger than 64 MiB, or has an unknown shape.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise CheckpointError(f"more than {MOST_BYTES} bytes, expected less")  # noqa: TRY301 - named below
            return self.content(data, _version_of(status))
        except FileNotFoundError:
            return self.content(None, None)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"cannot read the kubelet's {self.what} {self.path}: {error}") from error


def _version_of(status: os.stat_result) -> Version:
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(frozen=True, slots=True)
class CheckpointFile(KubeletFile[Checkpoint]):
    """The kubelet's checkpoint; `read` returns the entries of ``resources`` only."""

    resources: Collection[str]
    what: ClassVar[str] = "checkpoint"

    def content(self, data: bytes | None, version: Version | None) -> Checkpoint:
        """The entries of the file."""
        return Checkpoint(() if data is None else parse_checkpoint(data, self.resources), version)


class RecordFile(Protocol[Content_co]):
    """The kubelet's file of allocations, or a stand-in for it."""

    def version(self) -> Version | None:
        """The file's version, by one stat; it differs between two versions."""

    def read(self) -> Content_co:
        """Read the file, or raise CheckpointError."""


class FollowedFile(Generic[Content_co]):
    """A file that is read when it has changed. ``unreadable`` says why the last version could not be read."""

    def __init__(self, source: RecordFile[Content_co]) -> None:
        self.source = source
        self.unreadable = ""
        self._version: object = _NEVER_READ

    def news(self) -> Content_co | None:
        """The content of the file, if it has changed and can be read: one stat if it has not changed."""
        version = self.source.version()
        if version == self._version:
            return None
        try:
            content = self.source.read()
        except CheckpointError as error:
            self._version, self.unreadable = version, str(error)
            return None
        self._version, self.unreadable = content.version, ""
        return content


class _ResourceName(msgspec.Struct, frozen=True):
    """All that is read of an entry of another plugin."""

    name: str = msgspec.field(name="ResourceName")


class _Entry(msgspec.Struct, frozen=True):
    """Ids by NUMA node, "-1" without topology; before Kubernetes 1.20 one flat list."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    ids: dict[str, list[str] | None] | list[str] = msgspec.field(name="DeviceIDs")
    reply: bytes = msgspec.field(name="AllocResp")  # base64 in JSON


class _Data(msgspec.Struct, frozen=True):
    """A kubelet always writes the key, with null for no entries: without it the shape is unknown."""

    entries: list[msgspec.Raw] | None = msgspec.field(name="PodDeviceEntries")


class _File(msgspec.Struct, frozen=True):
    """The checksum is not checked: it is a hash of how Go prints the kubelet's own types."""

    data: _Data = msgspec.field(name="Data")


_decode_file = msgspec.json.Decoder(_File).decode
_decode_resource_name = msgspec.json.Decoder(_ResourceName).decode
_decode_entry = msgspec.json.Decoder(_Entry).decode
_MALFORMED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse_checkpoint(data: bytes, resources: Collection[str]) -> tuple[CheckpointEntry, ...]:
    """The entries of ``resources`` in the text of a checkpoint; of other entries only the resource name is read.

    Raises:
        CheckpointError: the text is no checkpoint, or an entry of ``resources`` lacks a field or has one of an unknown
            type. A null ``PodDeviceEntries`` is an empty list: a new kubelet writes it so.
    """
    try:
        raw_entries = _decode_file(data).data.entries or ()
    except _MALFORMED_JSON as error:
        raise CheckpointError(f"expected a JSON object with Data.PodDeviceEntries: {error}") from error
    entries = []
    for index, raw in enumerate(raw_entries):
        try:
            if _decode_resource_name(raw).name in resources:
                entries.append(_parse_entry(bytes(raw)))
        except (*_MALFORMED_JSON, ValueError, DecodeError) as error:
            raise CheckpointError(f"entry {index} of Data.PodDeviceEntries: {error}") from error
    return tuple(entries)


@lru_cache(maxsize=1024)  # a file repeats most entries of the last one; a node has some hundred
def _parse_entry(raw: bytes) -> CheckpointEntry:
    entry = _decode_entry(raw)
    if not (entry.pod_uid and entry.container):
        raise ValueError(f"PodUID is {entry.pod_uid!r} and ContainerName {entry.container!r}, expected both to be set")
    by_numa_node = entry.ids.values() if isinstance(entry.ids, dict) else (entry.ids,)
    reply = pb.ContainerAllocateResponse.FromString(entry.reply)
    return CheckpointEntry(
        entry.pod_uid,
        entry.container,
        entry.resource,
        frozenset().union(*filter(None, by_numa_node)),
        MappingProxyType(dict(reply.annotations)),
        tuple(device.host_path for device in reply.devices),
    )
