"""Files of the simulated kubelet: its checkpoint, and the cgroups of its pods."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.kubelet import CHECKPOINT
from neuron_plugin.simulation.kubelet_device_manager import AllocationError, DeviceManager
from neuron_plugin.simulation.kubelet_pods import Pod


@dataclass(slots=True)
class WriteFault:
    """What happens to the next write of the checkpoint after an allocation or, with ``of_list``, after a device list.

    The kubelet takes the snapshot and writes it under different locks. So a write that is held back ``until`` an event
    can be overtaken, and an older snapshot then overwrites a newer one.
    """

    until: asyncio.Event | None = None
    fails: bool = False
    of_list: bool = False


class CheckpointFile:
    """``kubelet_internal_checkpoint``, replaced by rename as the kubelet does; but not synced to disk.

    ``faults`` are those of the writes to come. ``flat_ids`` writes the format of a kubelet before 1.20.
    """

    def __init__(self, directory: Path, *, flat_ids: bool = False) -> None:
        self.path = directory / CHECKPOINT
        self.faults: list[WriteFault] = []
        self._flat_ids = flat_ids
        self._process = 0

    def read(self) -> bytes | None:
        """The content; None if there is no file."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    async def write(self, devices: DeviceManager, *, of_list: bool = False) -> None:
        """Write the whole memory of the device manager.

        Raises:
            AllocationError: the write failed; memory keeps everything.
        """
        fault = next((each for each in self.faults if each.of_list == of_list), None)
        if fault is None:
            self.save(devices)
            return
        self.faults.remove(fault)
        snapshot, process = devices.checkpoint_bytes(flat_ids=self._flat_ids), self._process
        if fault.until:
            await fault.until.wait()
        if fault.fails or process != self._process:
            why = f"open {self.path}: {os.strerror(errno.ENOSPC).lower()}"
            raise AllocationError(f'failed to write checkpoint file "{CHECKPOINT}": {why}')
        self.replace(snapshot)

    def save(self, devices: DeviceManager) -> None:
        """Write the whole memory of the device manager without a fault."""
        self.replace(devices.checkpoint_bytes(flat_ids=self._flat_ids))

    def replace(self, content: bytes) -> None:
        """Put any content in place, through a temporary file ``.<random>`` beside it."""
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(self.path)

    def abandon_writes(self) -> None:
        """The kubelet has ended: a write that is held back never happens."""
        self._process += 1


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
        events = os.open(self.path(pod) / "cgroup.events", os.O_WRONLY | (os.O_CREAT if populated else 0), 0o444)
        try:
            os.write(events, f"populated {populated}\nfrozen 0\n".encode())
        finally:
            os.close(events)
