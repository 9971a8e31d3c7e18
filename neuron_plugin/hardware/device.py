"""One device as sysfs and /dev show it at this moment: known completely, skipped with a reason, or gone.

What a device *is* (cores, links, product) must be known before it may be offered: a missing attribute makes it
incomplete, an unreadable one takes this device out and no other. What its health attributes say is taken as far as
it goes: one that cannot be read is reported and does not take the device away from its users.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuron_plugin.hardware.attributes import DriverVersion, ResetState
from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.hardware.records import CoreErrors, Device, EccCounts, HealthReadings, NodeState, SkippedDevice
from neuron_plugin.hardware.sysfs import (
    UNHEALTHY_COMPONENTS,
    AttributeMissingError,
    DeviceTree,
    Sysfs,
    SysfsError,
    SysfsFormatError,
    tells_of_errors,
)
from neuron_plugin.topology import MOST_DEVICES, DeviceId, InstanceType

SIMULATED_MARKER = ".neuron-simulated"
"""A file of this name in the directory of device nodes says that plain files stand for them there. Making character
devices takes root; a real /dev is root's, so nobody else can pretend with it."""

ECC_COUNTERS = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")

CORE_ERROR_COUNTERS = ("hw_error", "hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")

HAS_CONNECTED_DEVICES = (2, 13, 4)
"""The first driver that prints links: an older one is not waited for."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DeviceReader:
    """Reads devices of one machine. ``known`` is its instance type, if that is a known one.

    ``driver`` is the driver's version where it tells: an attribute that it cannot have is not missing.
    """

    sysfs: Sysfs
    dev: Path
    known: InstanceType | None
    driver: DriverVersion | None = None

    def read(self, device: DeviceId, *, settled: bool) -> Device | SkippedDevice | None:
        """The device, or why it is skipped, or None where it vanished meanwhile.

        ``settled``: missing attributes are waited for no longer, see ``read_inventory``.
        """
        tree = self.sysfs.device(device)
        if device >= MOST_DEVICES:
            return SkippedDevice(device, f"{tree.path} is beyond the {MOST_DEVICES} devices that the runtime looks for")
        links = self.driver is None or self.driver.at_least(*HAS_CONNECTED_DEVICES)
        attributes = _Attributes(tree, settled=settled, known=self.known, links=links)
        try:
            found: Device | SkippedDevice = attributes.device(device, node_state(self.dev, device, tree))
        except SysfsError as error:
            incomplete = _is_missing(error) and not settled
            reason = f"{error}; the driver is still making its attributes" if incomplete else str(error)
            found = SkippedDevice(device, reason, incomplete=incomplete)
        # Asked last: between listing and reading the driver may have taken the device away.
        return found if os.path.isdir(tree.path) else None  # noqa: PTH112 - Path.is_dir raises on EACCES


def node_state(dev: Path, device: DeviceId, tree: DeviceTree) -> NodeState:
    """What stands at ``dev/neuronN``, by its kind and numbers; it is never opened (that would wait for a reset)."""
    try:
        node = (dev / f"neuron{device}").stat()
    except OSError:
        return NodeState.ABSENT
    if not stat.S_ISCHR(node.st_mode):
        simulated = stat.S_ISREG(node.st_mode) and os.path.exists(dev / SIMULATED_MARKER)  # noqa: PTH110 - as above
        return NodeState.PRESENT if simulated else NodeState.NOT_A_DEVICE
    try:
        numbers = tree.numbers()
    except SysfsError:
        return NodeState.PRESENT  # a node of the right kind and name; nothing to compare it with
    return NodeState.PRESENT if numbers == (os.major(node.st_rdev), os.minor(node.st_rdev)) else NodeState.STALE


class _Attributes:
    """One pass over a device's attributes, noting on the way what could not be used."""

    def __init__(self, tree: DeviceTree, *, settled: bool, known: InstanceType | None, links: bool) -> None:
        self.tree = tree
        self.settled = settled
        self.known = known
        self.links = links
        self.problems: list[str] = []

    def device(self, device: DeviceId, node: NodeState) -> Device:
        """All of it.

        Raises:
            SysfsError: something that the device cannot be offered without is missing or unreadable.
        """
        cores = self._needed(self.tree.core_count, self.known.cores_per_device if self.known else None)
        none = frozenset[DeviceId]()
        connected = self._needed(self.tree.connected_devices, none) if self.links else none
        device_name = self._needed(self.tree.device_name, self.known.device_name if self.known else "")
        generation = GENERATIONS.get(device_name)
        architecture = self._needed(self.tree.architecture, generation.device_arch if generation else "")
        core_ids = self._said(self.tree.core_ids) or frozenset()
        health = self._health(core_ids)
        self._note_masked_cores(cores, core_ids)
        return Device(
            id=device,
            cores=cores,
            device_name=device_name,
            architecture=architecture,
            connected=connected - {device},
            node=node,
            serial_number=self._said(self.tree.serial_number) or "",
            health=health,
            problems=tuple(self.problems),
        )

    def _health(self, core_ids: frozenset[int]) -> HealthReadings:
        return HealthReadings(
            reset=self._reset(),
            ecc=self._ecc(),
            unhealthy_components=self._said(self.tree.unhealthy_components),
            core_errors=self._all_core_errors(core_ids),
            status_counts=tuple(self._status_counts()),
        )

    def _reset(self) -> ResetState | None:
        """Made together with the attributes that are needed, so its absence means that they are not all there."""
        try:
            return self.tree.reset()
        except AttributeMissingError:
            if not self.settled:
                raise
        except SysfsError as error:
            self.problems.append(str(error))
        return None

    def _ecc(self) -> EccCounts | None:
        counts = self._counts([partial(self.tree.hardware_counter, name) for name in ECC_COUNTERS])
        return EccCounts(*counts) if counts else None

    def _all_core_errors(self, core_ids: frozenset[int]) -> tuple[CoreErrors, ...]:
        """Of every core, or of none where one fails just now: they are added up, and the sum must not fall for that."""
        known = len(self.problems)
        found = tuple(errors for core in sorted(core_ids) if (errors := self._core_errors(core)))
        return found if len(self.problems) == known else ()

    def _core_errors(self, core: int) -> CoreErrors | None:
        counts = self._counts([partial(self.tree.core_error_count, core, name) for name in CORE_ERROR_COUNTERS])
        return CoreErrors(core, *counts) if counts else None

    def _counts(self, reads: list[Callable[[], int]]) -> list[int]:
        """Counters that belong together: 0 for one this driver does not have, none at all if one fails just now."""
        known = len(self.problems)
        counts = [self._said(read) for read in reads]
        if len(self.problems) > known or all(count is None for count in counts):
            return []
        return [count or 0 for count in counts]

    def _status_counts(self) -> Iterator[tuple[str, int]]:
        """Whatever counts errors there. The names are unpublished: what reads as something else is passed over."""
        for name in self._said(self.tree.health_status_names) or ():
            if name != UNHEALTHY_COMPONENTS and tells_of_errors(name):
                try:
                    yield name, self.tree.health_status_count(name)
                except SysfsError:
                    continue

    def _needed(self, read: Callable[[], Value], otherwise: Value | None) -> Value:
        """An attribute that the device cannot be offered without; ``otherwise`` stands in once it is settled."""
        try:
            return read()
        except SysfsError as error:
            if not (self.settled and _is_missing(error)) or otherwise is None:
                raise
            self.problems.append(f"{error}; {otherwise or 'nothing'} is assumed")
            return otherwise

    def _said(self, read: Callable[[], Value]) -> Value | None:
        """An attribute that not every product or driver has."""
        try:
            return read()
        except AttributeMissingError:
            return None
        except SysfsError as error:
            self.problems.append(str(error))
            return None

    def _note_masked_cores(self, cores: int, seen: frozenset[int]) -> None:
        masked = sorted(set(range(cores)) - seen) if seen else []
        if masked:
            names = ", ".join(f"neuron_core{core}" for core in masked)
            self.problems.append(f"{self.tree.path} has no {names}: masked by the module parameter dev_nc_map?")


def _is_missing(error: SysfsError) -> bool:
    """Not there, or there and still without text: both are how a new device looks for a moment."""
    return isinstance(error, AttributeMissingError) or (
        isinstance(error, SysfsFormatError) and not error.text.strip("\n")
    )
