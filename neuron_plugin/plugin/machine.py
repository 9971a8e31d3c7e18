"""The daemon's sources outside of it: the kubelet's files, the machine's processes, the way to the API server.

And its rhythm, as one value, so that a test or a benchmark hands in another.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from neuron_plugin.allocation.claims import DRA_DRIVERS
from neuron_plugin.backoff import steady_seconds
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.client import connect
from neuron_plugin.hardware import Process, device_processes, is_populated
from neuron_plugin.hardware.kernel_log import LogPeriods
from neuron_plugin.kubelet import Checkpoint, CheckpointFile, PodDevices, PodResourcesClient
from neuron_plugin.kubelet.checkpoint import RecordFile
from neuron_plugin.kubelet.dra_state import DraState, DraStateFile
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.plugin.claims import PrepareTimes
from neuron_plugin.plugin.node import NodeTimes, PodCgroups
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


@dataclass(frozen=True, slots=True)
class DaemonTimes:
    """All in seconds.

    ``turn``: between two looks at what changes without an event: cgroups, time, a checkpoint on a file system without
    inotify.

    ``quiet``: PodResources ``List`` makes the kubelet forget the reservations of an Allocate that is under way
    (kubernetes#137534). So it is called only after the kubelet has asked us nothing for this time. ``empty``: how long
    a pod's cgroup must be empty before the kubelet is asked whether it still knows the pod; ``blind``: between two such
    questions where cgroups cannot be seen.

    ``ask``: between two LISTs of pods that the watch does not explain. ``connect``: for loading the client and its
    settings, once; 0.3 s on an idle machine, 3 s seen on a busy one. ``connect_retry``: between two looks for usable
    settings of the API server; a service account's files may come late.

    ``start_look``: the longest wait for open devices, or for the kubelet's pods, before devices are offered: a node has
    to serve. ``start_poll``: between two looks for a kubelet that can say who has what; a pod that it admits before we
    register is rejected.

    ``read_node``: for reading the Node object before the first of the kubelet's calls is answered, once the client is
    loaded. If the API server is away longer, no pod comes from it either, and the kubelet's own pods need their
    devices.

    ``leave``: at the end, for closing the node and for admitting pods that are bound here already; the whole end takes
    less than two seconds. ``under_way``: until a binding that the extender sent before it heard of our end has reached
    us and the kubelet.

    ``not_ready``: how long the node must not be ready before its condition says so. Restarts of kubelet and plugin take
    less, and no rule is to add a taint for them. ``starts``: between two looks at how pods have started. ``cdi``:
    between two looks at the CDI specification.

    ``prepare``, ``node`` and ``kernel_log`` are the times of these parts.
    """

    turn: float = 0.25
    quiet: float = 1.0
    empty: float = 5.0
    blind: float = 30.0
    ask: float = 5.0
    connect: float = 10.0
    connect_retry: float = 10.0
    start_look: float = 5.0
    start_poll: float = 0.1
    read_node: float = 5.0
    leave: float = 1.6
    under_way: float = 0.3
    not_ready: float = 10.0
    starts: float = 5.0
    cdi: float = 5.0
    prepare: PrepareTimes = field(default_factory=PrepareTimes)
    node: NodeTimes = field(default_factory=NodeTimes)
    kernel_log: LogPeriods = field(default_factory=LogPeriods)
