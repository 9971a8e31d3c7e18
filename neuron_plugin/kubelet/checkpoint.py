"""What the kubelet has written down for itself of the devices it gave out.

Its file knows two things that PodResources does not tell: the pod's UID, and what plain init containers hold. It is an
internal format and lags behind: pods that are gone stay in it until the next Allocate or ListAndWatch message
(``UpdateAllocatedDevices`` in ``dm/manager.go`` writes nothing). So it is read as a supplement, never written, nothing
may depend on it, and it never says that a pod lives.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

CHECKPOINT = "kubelet_internal_checkpoint"
"""In the device plugin directory (``pkg/kubelet/cm/devicemanager/types.go``)."""
MOST_BYTES = 16 * 1024 * 1024
"""A node's file has some 100 KB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedDevices:
    """The ids of one resource in one container."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    """One entry; ids by NUMA node, or (kubelets before 1.20) all in one list."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: list[msgspec.Raw] | None = None


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    """The checksum is not checked: it is of Go's printing of the kubelet's own types."""

    data: _Data


_file_decoder = msgspec.json.Decoder(_File)
_entry_decoder = msgspec.json.Decoder(_Entry)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_checkpoint(path: Path) -> tuple[RecordedDevices, ...]:
    """Every entry that can be read; none of a file that is missing or makes no sense."""
    try:
        with path.open("rb") as file:
            return parse_checkpoint(file.read(MOST_BYTES))
    except OSError as error:
        _log.debug("no checkpoint of the kubelet's", extra={"path": str(path), "why": str(error)})
        return ()


def parse_checkpoint(text: bytes) -> tuple[RecordedDevices, ...]:
    """Every entry of a checkpoint's text that makes sense; whatever the text is, this raises nothing."""
    try:
        entries = _file_decoder.decode(text).data.pod_device_entries or []
    except _UNREADABLE as error:
        _log.debug("the kubelet's checkpoint makes no sense", extra={"why": str(error)})
        return ()
    return tuple(found for entry in entries if (found := _recorded(entry)))


def _recorded(raw: msgspec.Raw) -> RecordedDevices | None:
    try:
        entry = _entry_decoder.decode(raw)
    except _UNREADABLE:
        return None
    by_node = entry.device_ids.values() if isinstance(entry.device_ids, dict) else [entry.device_ids]
    ids = frozenset(each for node in by_node for each in node or ())
    if not (ids and entry.pod_uid):
        return None
    return RecordedDevices(entry.pod_uid, entry.container_name, entry.resource_name, ids)
