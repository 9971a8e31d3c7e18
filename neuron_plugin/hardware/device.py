"""One device as sysfs and /dev show it at this moment: known completely, skipped with a reason, or gone.

What a device *is* (cores, links, product) must be known before it may be offered: a missing attribute makes it
incomplete, an unreadable one takes this device out and no other. What its health attributes say is taken as far as
it goes: one that cannot be read is reported and does not take the device away from its users.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.hardware.records import Device, EccCounts, HealthReadings, NodeState, SkippedDevice
from neuron_plugin.hardware.sysfs import AttributeMissingError, DeviceTree, Sysfs, SysfsError, SysfsFormatError
from neuron_plugin.topology.geometry import DeviceId
from neuron_plugin.topology.instances import InstanceType

SIMULATED_MARKER = ".neuron-simulated"
"""A file of this name in the directory of device nodes says that plain files stand for them there. Making character
devices takes root; a real /dev is root's, so nobody else can pretend with it."""

ECC_COUNTERS = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DeviceReader:
    """Reads devices of one machine. ``known`` is its instance type, if that is a known one."""

    sysfs: Sysfs
    dev: Path
    known: InstanceType | None

    def read(self, device: DeviceId, *, settled: bool) -> Device | SkippedDevice | None:
        """The device, or why it is skipped, or None where it vanished meanwhile.

        ``settled``: missing attributes are waited for no longer, see ``read_inventory``.
        """
        tree = self.sysfs.device(device)
        attributes = _Attributes(tree, settled=settled, known=self.known)
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

    def __init__(self, tree: DeviceTree, *, settled: bool, known: InstanceType | None) -> None:
        self.tree = tree
        self.settled = settled
        self.known = known
        self.problems: list[str] = []

    def device(self, device: DeviceId, node: NodeState) -> Device:
        """All of it.

        Raises:
            SysfsError: something that the device cannot be offered without is missing or unreadable.
        """
        cores = self._needed(self.tree.core_count, self.known.cores_per_device if self.known else None)
        connected = self._needed(self.tree.connected_devices, frozenset[DeviceId]())
        device_name = self._needed(self.tree.device_name, self.known.device_name if self.known else "")
        generation = GENERATIONS.get(device_name)
        architecture = self._needed(self.tree.architecture, generation.device_arch if generation else "")
        health = self._health()
        self._note_masked_cores(cores)
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

    def _health(self) -> HealthReadings:
        return HealthReadings(
            reset=self._reset(),
            ecc=self._ecc(),
            unhealthy_components=self._said(self.tree.unhealthy_components) or frozenset(),
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
        counts = [self._said(partial(self.tree.hardware_counter, name)) for name in ECC_COUNTERS]
        if counts == [None] * len(ECC_COUNTERS):
            return None
        return EccCounts(*(count or 0 for count in counts))

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

    def _note_masked_cores(self, cores: int) -> None:
        seen = self._said(self.tree.core_ids)
        masked = sorted(set(range(cores)) - seen) if seen else []
        if masked:
            names = ", ".join(f"neuron_core{core}" for core in masked)
            self.problems.append(f"{self.tree.path} has no {names}: masked by the module parameter dev_nc_map?")


def _is_missing(error: SysfsError) -> bool:
    """Not there, or there and still without text: both are how a new device looks for a moment."""
    return isinstance(error, AttributeMissingError) or (
        isinstance(error, SysfsFormatError) and not error.text.strip("\n")
    )
