"""Names that only the first version of ``plugin/`` uses. Delete this module together with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.kubelet.checkpoint import CheckpointError, CheckpointFile
from neuron_plugin.kubelet.device_plugin import RefusalError

_RESOURCES = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore")


class NotYetError(RefusalError):
    """A container has to wait for its devices."""


@dataclass(frozen=True, slots=True)
class RecordedDevices:
    """The ids of one resource in one container."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]


def read_checkpoint(path: Path) -> tuple[RecordedDevices, ...]:
    """Every entry of our resources; none of a file that cannot be read."""
    try:
        entries = CheckpointFile(path, _RESOURCES).read().entries
    except CheckpointError:
        return ()
    return tuple(RecordedDevices(each.pod_uid, each.container, each.resource, each.ids) for each in entries)
