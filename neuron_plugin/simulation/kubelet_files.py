"""Files of the simulated kubelet: its checkpoint, and the cgroups of its pods."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from neuron_plugin.kubelet import CHECKPOINT
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_pods import Pod


class CheckpointFile:
    """``kubelet_internal_checkpoint``, replaced by rename as the kubelet does; but not synced to disk.

    ``flat_ids`` writes the format of a kubelet before 1.20.
    """

    def __init__(self, directory: Path, *, flat_ids: bool = False) -> None:
        self.path = directory / CHECKPOINT
        self._flat_ids = flat_ids

    def read(self) -> bytes | None:
        """The content; None if there is no file."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    async def write(self, devices: DeviceManager, *, of_list: bool = False) -> None:  # noqa: ARG002 - for one that fails
        """Write the whole memory of the device manager, after an allocation or, with ``of_list``, a device list.

        Raises:
            AllocationError: the write failed; memory keeps everything.
        """
        self.save(devices)

    def save(self, devices: DeviceManager) -> None:
        """Write the whole memory of the device manager."""
        self.replace(devices.checkpoint_bytes(flat_ids=self._flat_ids))

    def replace(self, content: bytes) -> None:
        """Put any content in place, through a temporary file ``.<random>`` beside it."""
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(self.path)


class PodCgroups:
    """A directory like ``/sys/fs/cgroup`` (version 2, named by systemd), with a slice for each pod that has processes.

    The process of the pod's sandbox keeps a slice populated between the starts of containers.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in (root, root / "kubepods.slice"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    def path(self, pod: Pod) -> Path:
        """The slice of a pod: its QoS class, except guaranteed, is a level of its own."""
        uid = pod.uid.replace("-", "_")
        parent = self.root / "kubepods.slice"
        if not pod.qos:
            return parent / f"kubepods-pod{uid}.slice"
        return parent / f"kubepods-{pod.qos}.slice" / f"kubepods-{pod.qos}-pod{uid}.slice"

    def populate(self, pod: Pod) -> None:
        """The pod has processes."""
        self.path(pod).mkdir(parents=True, exist_ok=True)
        self._write_events(pod, 1)

    def remove(self, pod: Pod) -> None:
        """The processes of the pod have ended, and the kubelet removes its slice."""
        with contextlib.suppress(FileNotFoundError):
            self._write_events(pod, 0)
            shutil.rmtree(self.path(pod))

    def _write_events(self, pod: Pod, populated: int) -> None:
        """In place and in one write, as the kernel changes this file: a reader never sees a part of it."""
        events = os.open(self.path(pod) / "cgroup.events", os.O_WRONLY | (os.O_CREAT if populated else 0), 0o644)
        try:
            os.write(events, f"populated {populated}\nfrozen 0\n".encode())
        finally:
            os.close(events)
