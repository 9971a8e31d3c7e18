"""The simulated kubelet with what happens to pods only in tests, and with writes of its checkpoint that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from neuron_plugin.kubelet import CHECKPOINT
from neuron_plugin.simulation import AllocationError, KubeletOptions, SimulatedKubelet
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_files import CheckpointFile


@dataclass(slots=True)
class WriteFault:
    """What happens to the next write of the checkpoint after an allocation or, with ``of_list``, after a device list.

    The kubelet takes the snapshot and writes it under different locks. So a write that is held back ``until`` an event
    can be overtaken, and an older snapshot then overwrites a newer one.
    """

    until: asyncio.Event | None = None
    fails: bool = False
    of_list: bool = False


class FailingCheckpointFile(CheckpointFile):
    """The checkpoint; ``faults`` are those of the writes to come."""

    def __init__(self, directory: Path, *, flat_ids: bool = False) -> None:
        super().__init__(directory, flat_ids=flat_ids)
        self.faults: list[WriteFault] = []
        self._process = 0

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

    def abandon_writes(self) -> None:
        """The kubelet has ended: a write that is held back never happens."""
        self._process += 1


class StandInKubelet(SimulatedKubelet):
    """See `SimulatedKubelet`; tests put faults into its ``checkpoint``."""

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        cgroup_root: Path | None = None,
    ) -> None:
        super().__init__(directory, pod_resources_directory, random=random, options=options, cgroup_root=cgroup_root)
        self.checkpoint: FailingCheckpointFile = FailingCheckpointFile(
            directory, flat_ids=self._options.flat_device_ids
        )
        self._registrations: Counter[str] = Counter()
        self._begin_process()

    async def stop(self) -> None:
        self.checkpoint.abandon_writes()
        clients = self._clients
        await super().stop()
        self._registrations.update(clients.registrations)

    def spoil_checkpoint(self, content: bytes | None = b"spoiled") -> None:
        """Put other content in the checkpoint's place; None removes the file.

        A kubelet that runs replaces it at its next write, one that starts cannot read what was allocated and goes on.
        """
        if content is None:
            self.checkpoint.path.unlink(missing_ok=True)
        else:
            self.checkpoint.replace(content)

    def registration_count(self, resource: str) -> int:
        """Accepted registrations of a resource since the beginning, over all restarts."""
        return self._registrations[resource] + self._clients.registrations[resource]

    async def connect(self, resource: str, socket: Path) -> None:
        """Register a plugin by its socket, as the plugin watcher does.

        Raises:
            PluginCallError: an impossible name, or the plugin does not answer.
        """
        await self._clients.connect(resource, socket)

    async def disconnect(self, resource: str) -> None:
        """Drop a live plugin for no reason it could know of, as the kubelet's book-keeping by name can."""
        await self._clients.disconnect(resource)

    async def resize(self, uid: str) -> None:
        """Admit a live pod again with other CPU or memory; no plugin is asked, and nothing a pod holds changes.

        Raises:
            PodRejectedError: it is not granted, and the pod runs on as it was.
        """
        async with self._admission:
            await self._allocate(self._pods[uid])

    def stop_container(self, uid: str, name: str) -> None:
        """A container of a live pod has died; what it holds stays its own."""
        self._pods[uid].running.discard(name)

    def remove_while_running(self, uid: str) -> None:
        """A pod is gone though its processes run on: force deletion, a lost Node object, a static manifest removed.

        The kubelet keeps its entry until the next cleaning of memory, and may offer its devices from then on. The
        processes run for ``termination_seconds``.
        """
        self._terminate(self._pods.pop(uid).pod)

    def device_health(self, uid: str, container: str) -> Mapping[str, str]:
        """The health of each id a container holds, as the pod's status shows it: an absent device looks Healthy."""
        return {
            each: device.health if (device := self.devices.devices(allocation.resource).get(each)) else "Healthy"
            for allocation in self.devices.of_container(uid, container)
            for each in allocation.ids
        }
