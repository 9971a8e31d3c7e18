"""What the daemon is given from outside: the kubelet's files, the machine's processes, the way to the API server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from neuron_plugin.allocation.claims import DRA_DRIVERS
from neuron_plugin.backoff import steady_seconds
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.client import connect
from neuron_plugin.hardware import Process, device_processes, is_populated
from neuron_plugin.kubelet import Checkpoint, CheckpointFile, PodDevices, PodResourcesClient
from neuron_plugin.kubelet.checkpoint import RecordFile
from neuron_plugin.kubelet.dra_state import DraState, DraStateFile
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.plugin.node import PodCgroups
from neuron_plugin.plugin.settings import PluginSettings


class PodResources(Protocol):
    """The kubelet's PodResources API."""

    async def list(self) -> Sequence[PodDevices]:
        """The devices of the kubelet's pods, or raise PodResourcesError."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The sources of one daemon. ``clock`` is monotonic, in seconds; ``now_ns`` is unix time.

    ``processes`` says which processes have the given device nodes open, by the ``/proc`` given.
    """

    checkpoint: RecordFile[Checkpoint]
    cgroups: PodCgroups
    pod_resources: PodResources
    dra_state: RecordFile[DraState] | None = None
    processes: Callable[[list[Path], Path], Mapping[Path, tuple[Process, ...]]] = device_processes
    connect: Callable[[Path | None], Awaitable[KubernetesApi]] = connect
    clock: Callable[[], float] = steady_seconds
    now_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The pods' cgroups under one root."""

    root: Path

    def is_populated(self, uid: str) -> bool | None:
        """Whether a process of the pod lives; None where cgroups cannot be seen."""
        return is_populated(self.root, uid)


def machine_of(settings: PluginSettings) -> Machine:
    """The machine that the settings describe."""
    resources = [name.resource.value for name in settings.resources]
    return Machine(
        CheckpointFile(settings.kubelet_dir / CHECKPOINT, resources),
        CgroupTree(settings.cgroup),
        PodResourcesClient(settings.pod_resources_socket),
        DraStateFile(settings.dra_state_file, {settings.dra_driver, *DRA_DRIVERS}),
    )
