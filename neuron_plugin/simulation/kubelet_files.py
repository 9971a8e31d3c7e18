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
    """``kubelet_internal_checkpoint``, replaced by rename as the kubelet does; but not synced to disk."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / CHECKPOINT

    async def write(self, devices: DeviceManager, *, of_list: bool = False) -> None:  # noqa: ARG002 - for one that fails
        """Write the whole memory of the device manager, after an allocation or, with ``of_list``, a device list.

        Raises:
            AllocationError: the write failed; memory keeps everything.
        """
        self.replace(devices.checkpoint_bytes())

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
        """The slice of a pod; its QoS class is a level of its own, here always that of a pod without CPU and memory."""
        name = f"kubepods-besteffort-pod{pod.uid.replace('-', '_')}.slice"
        return self.root / "kubepods.slice" / "kubepods-besteffort.slice" / name

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
