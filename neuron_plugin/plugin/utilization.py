"""How much each container uses its cores, from one reading of the driver's counters to the next: values, no I/O.

A container's busy share is the part of the last minutes that its cores executed. A container is idle once none of its
cores has executed anything for some time. Nothing follows from it here: it is shown, and no pod loses a device for it.

A counter that falls was zeroed by hand or with the driver: the counts since then are new. A counter that cannot be
read makes nothing up: the share is not known, and the container is not idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.utilization import ContainerUtilization, Utilization
from neuron_plugin.hardware.core_counters import CoreCounters, PhysicalCore
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import cores_in

WINDOW_SECONDS = 300.0
"""The window of a busy share: long enough for steps between which a job saves its work, short enough to be news."""
_MICROSECONDS = 1e6

PUBLISH_SECONDS = 300.0
"""The longest time until a value that has changed a little is published."""
MUCH_SECONDS, MUCH_PERCENT = 60.0, 20
"""A share that has changed by at least ``MUCH_PERCENT`` is published after ``MUCH_SECONDS``."""


@dataclass(frozen=True, slots=True)
class ContainerKey:
    """One container of one pod; the pod's UID is the API server's."""

    pod: PodReference
    container: str


CoreHolders = Mapping[ContainerKey, frozenset[PhysicalCore]]


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of cores, when they were read by the daemon's clock, and in unix seconds."""

    at: float
    unix: float
    cores: Mapping[PhysicalCore, CoreCounters]


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The memory of one container's use.

    ``counters`` are of the last reading. ``samples`` are times of the window, by the daemon's clock, each with the
    microseconds that the cores had executed until then since the first of them. ``active_at`` is when they were last
    seen to have executed something, or since when they are looked at, in unix seconds.
    """

    counters: Mapping[PhysicalCore, CoreCounters]
    samples: tuple[tuple[float, int], ...]
    active_at: float

    @property
    def known(self) -> bool:
        """Whether there is a share at all: it takes two readings of counters that count."""
        return len(self.samples) > 1

    @property
    def busy_share(self) -> float:
        """How much of the window the cores executed, from 0 to 1, on average over all of them."""
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return min(1.0, (last - first) / (_MICROSECONDS * (ended - began) * len(self.counters)))

    @property
    def memory_bytes(self) -> int | None:
        """Device memory allocated on the cores; None if it is not known for one of them."""
        parts = [core.memory_bytes for core in self.counters.values()]
        return None if None in parts else sum(filter(None, parts))

    @property
    def busy_seconds(self) -> int:
        """The driver's count over all of the cores."""
        return int(sum(core.busy_microseconds or 0 for core in self.counters.values()) / _MICROSECONDS)

    def idle_seconds(self, now_unix: float) -> float:
        """For how long nothing was executed, as far as that is known."""
        return max(0.0, now_unix - self.active_at) if self.known else 0.0


UseByContainer = Mapping[ContainerKey, ContainerUse]


def holders_of(snapshot: Snapshot) -> CoreHolders:
    """The physical cores of each container of the pods that the API server shows; of re-used ones, the later has them.

    A logical core is one or more physical cores in a row. The order within a device is the driver's. If a device had
    another order, the share of a container with a part of it could be its neighbour's.
    """
    per_device, size = snapshot.inventory.geometry.cores_per_device, snapshot.inventory.logical_core_size
    holders: dict[ContainerKey, frozenset[PhysicalCore]] = {}
    for allocation in snapshot.counted_once:
        key = ContainerKey(allocation.pod, allocation.user)
        placed = (divmod(core, per_device) for core in cores_in(allocation.mask))
        cores = frozenset((device, core * size + offset) for device, core in placed for offset in range(size))
        holders[key] = holders.get(key, frozenset()) | cores
    return holders


def use_after(before: UseByContainer, holders: CoreHolders, reading: Reading, restored: Utilization) -> UseByContainer:
    """The use after a reading. Containers without cores are forgotten; a new container starts with this reading.

    ``restored`` is what was published before the plugin was started again. A container whose cores have executed
    nothing since has been idle all the time.
    """
    after: dict[ContainerKey, ContainerUse] = {}
    for key, cores in holders.items():
        counters = {core: reading.cores.get(core, CoreCounters()) for core in sorted(cores)}
        known, last = all(core.busy_microseconds is not None for core in counters.values()), before.get(key)
        if last is None or last.counters.keys() != counters.keys():
            after[key] = _first(counters, reading, restored.get(key.pod.uid, {}).get(key.container), known=known)
            continue
        if not known or not last.samples:
            samples: tuple[tuple[float, int], ...] = ((reading.at, 0),) if known else ()
            after[key] = ContainerUse(counters, samples, reading.unix)
            continue
        executed = sum(_since(last.counters[core], now) for core, now in counters.items())
        total = last.samples[-1][1] + executed
        begun = [sample for sample in last.samples if sample[0] >= reading.at - WINDOW_SECONDS] or [last.samples[-1]]
        active_at = reading.unix if executed else last.active_at
        after[key] = ContainerUse(counters, (*begun, (reading.at, total)), active_at)
    return after


def _first(
    counters: Mapping[PhysicalCore, CoreCounters],
    reading: Reading,
    restored: ContainerUtilization | None,
    *,
    known: bool,
) -> ContainerUse:
    use = ContainerUse(counters, ((reading.at, 0),) if known else (), reading.unix)
    if known and restored and restored.idle_since and restored.busy_seconds == use.busy_seconds:
        return ContainerUse(counters, use.samples, min(reading.unix, restored.idle_since))
    return use


def _since(last: CoreCounters, now: CoreCounters) -> int:
    before, after = last.busy_microseconds or 0, now.busy_microseconds or 0
    return after - before if after >= before else after


def utilization_of(use: UseByContainer, now_unix: float, idle_after_seconds: float) -> Utilization:
    """The published use: whole percents, and idle only after ``idle_after_seconds``."""
    utilization: dict[PodUid, dict[str, ContainerUtilization]] = {}
    for key, container_use in use.items():
        if container_use.known:
            idle = container_use.idle_seconds(now_unix) >= idle_after_seconds
            utilization.setdefault(key.pod.uid, {})[key.container] = ContainerUtilization(
                round(100 * container_use.busy_share),
                container_use.memory_bytes or 0,
                int(container_use.active_at) if idle else 0,
                container_use.busy_seconds,
            )
    return utilization


def is_news(published: Utilization, now: Utilization, seconds: float) -> bool:
    """Whether to publish ``now``, ``seconds`` after the last time.

    At once where a container comes, goes, falls idle or works again. Each change is a change of the Lease's text and of
    the objects that the placement controller shows, so small ones are gathered.
    """
    if published == now:
        return False
    shapes = [
        {
            (uid, name): bool(container_use.idle_since)
            for uid, containers in values.items()
            for name, container_use in containers.items()
        }
        for values in (published, now)
    ]
    if shapes[0] != shapes[1] or seconds >= PUBLISH_SECONDS:
        return True
    moved = (
        abs(container_use.busy_percent - published[uid][name].busy_percent)
        for uid, containers in now.items()
        for name, container_use in containers.items()
    )
    return seconds >= MUCH_SECONDS and max(moved, default=0) >= MUCH_PERCENT


def idle_for(use: UseByContainer, now_unix: float, seconds: float) -> Iterable[ContainerKey]:
    """The containers that have executed nothing for ``seconds``."""
    return [
        key
        for key, container_use in use.items()
        if container_use.known and container_use.idle_seconds(now_unix) >= seconds
    ]
