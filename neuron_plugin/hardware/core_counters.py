"""The driver's counters of each core's work, read often and therefore cheaply.

Two counters below ``neuron_coreK/stats`` say whether a core is used. ``other_info/nc_time_in_use/total`` adds up the
microseconds of all executions. ``memory_usage/device_mem/total`` is the device memory allocated now (``present`` is the
size of the last allocation). Source: Neuron driver 2.24.7, ``neuron_sysfs_metrics.c``, and the sysfs guide of SDK 2.32.

Before driver 2.30.2 the time is added only when a process ends (``nsysfsmetric_nds_aggregate``, called from
``neuron_ds_release_entry``): a job that trains for a week looks idle. So the time counts as unknown with an older
driver. Memory is exact with any driver.

Attributes that driver 2.31 has moved are looked up once, by their name below the core.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.hardware.sysfs import DriverVersion, by_name

HAS_LIVE_TIME = (2, 30, 2)
"""The first driver whose ``nc_time_in_use`` counts while a process runs (release notes of SDK 2.32)."""

_LONGEST_COUNT = 21
"""Bytes of a 64-bit number and a newline; a longer text is no count."""

TIME_IN_USE = "other_info/nc_time_in_use"
DEVICE_MEMORY = "memory_usage/device_mem"


@dataclass(frozen=True, slots=True)
class CoreCounters:
    """The counters of one physical core. None: the driver does not have the counter, or it cannot be read now."""

    busy_microseconds: int | None = None
    memory_bytes: int | None = None


PhysicalCore = tuple[int, int]
"""A device, and one of its cores as sysfs numbers them."""


_MEMORY_TURNS = 4
"""Memory changes seldom, so each time only one core in so many is read."""


class CoreCounterReader:
    """Reads the counters of one machine's cores.

    Files are opened each time: a descriptor would survive a reload of the driver. A core's memory is from one of the
    last four reads.
    """

    def __init__(self, sysfs: Path) -> None:
        self._class_dir = sysfs / "class/neuron_device"
        self._paths: dict[tuple[PhysicalCore, str], str] = {}
        self._memory: dict[PhysicalCore, int | None] = {}
        self._turn = 0

    def read(self, cores: Iterable[PhysicalCore], driver: DriverVersion | None) -> dict[PhysicalCore, CoreCounters]:
        """The counters of these cores now; blocks for some microseconds each."""
        live = driver is not None and driver.at_least(*HAS_LIVE_TIME)
        self._turn = (self._turn + 1) % _MEMORY_TURNS
        known, self._memory, counters = self._memory, {}, {}
        for core in cores:
            time = self._count(core, TIME_IN_USE) if live else None
            fresh = known.get(core) is None or sum(core) % _MEMORY_TURNS == self._turn
            memory = self._memory[core] = self._count(core, DEVICE_MEMORY) if fresh else known[core]
            counters[core] = CoreCounters(time, memory)
        return counters

    def _count(self, core: PhysicalCore, name: str) -> int | None:
        return _read_count(self._paths.get((core, name)) or self._located(core, name))

    def _located(self, core: PhysicalCore, name: str) -> str:
        """The path of the counter, cached once the core exists; the usual path if it is not found."""
        root = f"{self._class_dir}/neuron{core[0]}/neuron_core{core[1]}"
        path = f"{root}/stats/{name}/total"
        if not os.path.lexists(path):
            if not os.path.isdir(root):  # noqa: PTH112 - Path.is_dir raises on EACCES
                return path  # the device is gone, or not complete yet
            moved = by_name(Path(root)).get(name.rpartition("/")[2])
            path = f"{moved}/total" if moved else path
        self._paths[core, name] = path
        return path


def _read_count(path: str) -> int | None:
    """A counter's value. There are hundreds, so no ``Path``, file object or pattern is made."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _LONGEST_COUNT)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    digits = text.removesuffix(b"\n")
    return int(digits) if digits.isdigit() else None
