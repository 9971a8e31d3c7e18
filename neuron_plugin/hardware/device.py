"""One Neuron device as sysfs and /dev show it now: complete, skipped with a reason, or gone.

Cores, links and product of a device must be known before it may be offered. A missing attribute makes the device
incomplete; an unreadable one excludes this device only. Health attributes are optional: an unreadable one is reported,
and the device stays offered.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.hardware.sysfs import (
    HEALTH_STATUS,
    UNHEALTHY_COMPONENTS,
    DeviceTree,
    DriverVersion,
    ResetState,
    Sysfs,
    SysfsError,
    counts_errors,
    names_in,
    parse_components,
    parse_connected_devices,
    parse_core_count,
    parse_counter,
    parse_reset,
    parse_serial_number,
    parse_word,
    read_attribute,
    read_or,
)
from neuron_plugin.topology import MOST_DEVICES, DeviceId, InstanceType

SIMULATED_MARKER = ".neuron-simulated"
"""A file of this name in the directory of device nodes marks a simulated machine, where plain files are device nodes,
because only root can make character devices. A real /dev belongs to root, so no other user can put the marker there."""

ECC_COUNTERS = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")
"""Below ``stats/hardware``, since driver 2.14.5. Not on Inf1."""
CORE_ERROR_COUNTERS = ("hw_error", "hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")

HAS_CONNECTED_DEVICES = (2, 13, 4)
"""The first driver that prints links; an older driver may lack the attribute."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Generation:
    """One product by the driver's name. Cores are physical; a logical core size (LNC) is in physical cores.

    ``largest_logical_core_size`` is the runtime's limit.
    """

    device_name: str
    family: str
    device_arch: str
    core_arch: str
    cores_per_device: int
    default_logical_core_size: int = 1
    largest_logical_core_size: int = 1


GENERATIONS: Mapping[str, Generation] = {
    generation.device_name: generation
    for generation in (
        Generation("Inferentia", "Inf1", "NDv1", "NCv1", 4),
        Generation("Trainium1", "Trn1", "NDv2", "NCv2", 2),
        Generation("Inferentia2", "Inf2", "NDv3", "NCv2", 2),
        Generation("Trainium2", "Trn2", "NDv3", "NCv3", 8, 2, 2),
        Generation("Trainium3", "Trn3", "NDv4", "NCv4", 8, 2, 8),
    )
}
"""By ``device_name``: ``NDv3`` is two products, and the driver's ``instance_type`` is a family, not an EC2 type. A
missing name belongs to hardware that is newer than this package.

Source: Neuron driver 2.24.7 and 2.25.4, ``info/architecture/*``; SDK documentation to 2.32 for LNC."""


class NodeState(enum.StrEnum):
    """The state of ``/dev/neuronN``."""

    PRESENT = "present"
    ABSENT = "absent"
    NOT_A_DEVICE = "not a character device"
    STALE = "of another driver instance"
    """A character device without the driver's numbers, left from before a reload."""


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors in memory since the last power cycle (a module reload keeps them).

    ``repairable`` errors are repaired by the next reset. Before driver 2.28 some of them are counted as ``memory``.
    """

    sram: int = 0
    memory: int = 0
    repairable: int = 0


@dataclass(frozen=True, slots=True)
class CoreErrors:
    """Hardware errors of work on one physical core since the driver was loaded.

    Fields have the driver's names below ``neuron_coreK/stats/status``. Writing to such a file sets it to 0.
    ``reset_fail_count``, below ``other_info``, counts failed resets of the device, equal on all of its cores.
    """

    core: int
    hw_error: int = 0
    hw_nc_ue_error: int = 0
    hw_hbm_ue_error: int = 0
    hw_dma_abort_error: int = 0
    reset_fail_count: int = 0


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """A device's health attributes. None or empty: the attribute is missing or cannot be read now.

    ``status_counts`` are the counters below ``health_status`` (driver 2.28), by file name.
    """

    reset: ResetState | None = None
    ecc: EccCounts | None = None
    unhealthy_components: frozenset[str] | None = None
    core_errors: tuple[CoreErrors, ...] = ()
    status_counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device that is completely known.

    ``id`` is N of ``/dev/neuronN``. ``cores`` is physical. ``connected`` are the links that the driver prints: none for
    any device while a chip of the machine is missing. ``problems`` are attributes that could not be used.
    """

    id: DeviceId
    cores: int
    device_name: str
    architecture: str
    connected: frozenset[DeviceId]
    node: NodeState
    serial_number: str = ""
    health: HealthReadings = field(default_factory=HealthReadings)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedDevice:
    """A device that the driver lists and that is not offered. ``reason`` names the file and its text.

    ``incomplete``: the driver has not made all its attributes yet, so it should be read again soon.
    """

    id: DeviceId
    reason: str
    incomplete: bool = False


_DEVICE = re.compile(r"\bneuron(\d+)\b")


def joined_by_device(texts: Iterable[str]) -> list[str]:
    """Joins texts that differ only in the device, with ids as ranges: ``neuron0-3 is skipped``."""
    by_text: dict[str, set[int]] = {}
    for text in texts:
        ids = set(map(int, _DEVICE.findall(text)))
        alike = _DEVICE.sub("neuron{}", text) if len(ids) == 1 else text
        by_text.setdefault(alike, set()).update(ids)
    return [alike.replace("neuron{}", f"neuron{ranges(ids)}") for alike, ids in by_text.items()]


def read_device(
    sysfs: Sysfs,
    dev: Path,
    device: DeviceId,
    *,
    settled: bool,
    known: InstanceType | None,
    driver: DriverVersion | None = None,
) -> Device | SkippedDevice | None:
    """The device, or why it is skipped, or None if it vanished meanwhile.

    ``known`` is the machine's instance type, if known, and ``driver`` the driver's version, if readable. Attributes
    that this version does not have may be missing. ``settled``: see ``read_inventory``.
    """
    tree = sysfs.device(device)
    if device >= MOST_DEVICES:
        return SkippedDevice(device, f"{tree.path} is beyond the {MOST_DEVICES} devices that the runtime looks for")
    node = node_state(sysfs, dev, device)
    try:
        reading: Device | SkippedDevice = _Reading(tree, settled=settled).device(device, node, known, driver)
    except SysfsError as error:
        incomplete = (error.missing or error.empty) and not settled
        reason = f"{error}; the driver is still making its attributes" if incomplete else str(error)
        reading = SkippedDevice(device, reason, incomplete=incomplete)
    # Checked last: the driver may have removed the device between listing and reading.
    return reading if os.path.isdir(tree.path) else None  # noqa: PTH112 - Path.is_dir raises on EACCES


def node_state(sysfs: Sysfs, dev: Path, device: DeviceId) -> NodeState:
    """The state of ``dev/neuronN``, by its kind and numbers; never opened, because that would wait for a reset."""
    try:
        node = (dev / f"neuron{device}").stat()
    except OSError:
        return NodeState.ABSENT
    if not stat.S_ISCHR(node.st_mode):
        simulated = stat.S_ISREG(node.st_mode) and os.path.exists(dev / SIMULATED_MARKER)  # noqa: PTH110 - as above
        return NodeState.PRESENT if simulated else NodeState.NOT_A_DEVICE
    try:
        numbers = sysfs.numbers(device)
    except SysfsError:
        return NodeState.PRESENT  # kind and name are right, numbers cannot be compared
    return NodeState.PRESENT if numbers == (os.major(node.st_rdev), os.minor(node.st_rdev)) else NodeState.STALE


class _Reading:
    """One pass over a device's attributes; ``problems`` collects unusable ones."""

    def __init__(self, tree: DeviceTree, *, settled: bool) -> None:
        self.tree = tree
        self.settled = settled
        self.problems: list[str] = []

    def device(
        self, device: DeviceId, node: NodeState, known: InstanceType | None, driver: DriverVersion | None
    ) -> Device:
        """The whole device.

        Raises:
            SysfsError: an attribute that the device cannot be offered without is missing or unreadable.
        """
        cores = self.required("core_count", parse_core_count, known.cores_per_device if known else None)
        connected = none = frozenset[DeviceId]()
        if driver is None or driver.at_least(*HAS_CONNECTED_DEVICES):
            connected = self.required("connected_devices", parse_connected_devices, none)
        device_name = self.required("info/architecture/device_name", parse_word, known.device_name if known else "")
        generation = GENERATIONS.get(device_name)
        assumed = generation.device_arch if generation else ""
        architecture = self.required("info/architecture/arch_type", parse_word, assumed)
        made = [core for core in range(cores) if os.path.lexists(self.tree.located(f"neuron_core{core}"))]
        health = self.health(made)
        if made and (masked := [f"neuron_core{core}" for core in range(cores) if core not in made]):
            names = ", ".join(masked)
            self.problems.append(f"{self.tree.path} has no {names}: masked by the module parameter dev_nc_map?")
        return Device(
            id=device,
            cores=cores,
            device_name=device_name,
            architecture=architecture,
            connected=connected - {device},
            node=node,
            serial_number=read_or(lambda: self.tree.read("info/serial_number", parse_serial_number), "", self.problems),
            health=health,
            problems=tuple(self.problems),
        )

    def health(self, cores: Sequence[int]) -> HealthReadings:
        """All health attributes.

        The driver makes ``reset`` with the required ones, so without it the device is incomplete.
        """
        try:
            reset = self.tree.read("reset", parse_reset)
        except SysfsError as error:
            if error.missing and not self.settled:
                raise
            reset = None
            if not error.missing:
                self.problems.append(str(error))
        ecc = self.counts([self.tree.located(f"stats/hardware/{name}") for name in ECC_COUNTERS])
        problems, core_errors = len(self.problems), list[CoreErrors]()
        for core in cores:
            stats = self.tree.located(f"neuron_core{core}") / "stats"
            names = (*(f"status/{name}" for name in CORE_ERROR_COUNTERS), "other_info/reset_fail_count")
            if counts := self.counts([stats / name / "total" for name in names]):
                by_name = zip((*CORE_ERROR_COUNTERS, "reset_fail_count"), counts, strict=True)
                core_errors.append(CoreErrors(core, **dict(by_name)))
        if len(self.problems) > problems:
            core_errors = []  # they are summed, and the sum must not fall because one is unreadable for a moment
        components = f"{HEALTH_STATUS}/{UNHEALTHY_COMPONENTS}"  # since driver 2.30.2
        return HealthReadings(
            reset=reset,
            ecc=EccCounts(*ecc) if ecc else None,
            unhealthy_components=read_or(lambda: self.tree.read(components, parse_components), None, self.problems),
            core_errors=tuple(core_errors),
            status_counts=tuple(self.status_counts()),
        )

    def counts(self, paths: Sequence[Path]) -> list[int]:
        """Counters that belong together: 0 for one that the driver does not have, empty if one is unreadable now."""
        problems = len(self.problems)
        counts = [read_or(partial(read_attribute, path, parse_counter), None, self.problems) for path in paths]
        if len(self.problems) > problems or all(count is None for count in counts):
            return []
        return [count or 0 for count in counts]

    def status_counts(self) -> Iterator[tuple[str, int]]:
        """Error counters of ``health_status``. Names are unpublished, so files that are no counters are skipped."""
        directory = self.tree.located(HEALTH_STATUS)
        for name in read_or(partial(names_in, directory), list[str](), self.problems):
            if name != UNHEALTHY_COMPONENTS and counts_errors(name):
                try:
                    yield name, read_attribute(directory / name, parse_counter)
                except SysfsError:
                    continue

    def required(self, usual: str, parse: Callable[[str], Value], assumed: Value | None) -> Value:
        """An attribute that an offered device must have; once settled, ``assumed`` replaces a missing one."""
        try:
            return self.tree.read(usual, parse)
        except SysfsError as error:
            if not self.settled or not (error.missing or error.empty) or assumed is None:
                raise
            self.problems.append(f"{error}; {assumed or 'nothing'} is assumed")
            return assumed
