"""What is wrong with a device at one look: what is seen, and what it means for whoever asks once.

Nothing is remembered here. Who judges over time (errors that rise, hold times, flapping, accepted errors) takes the
observations and adds a memory and a clock; who looks once takes ``assess``, in which a counter that only means
something when it rises is worth a warning.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.hardware.records import Device, EccCounts, Inventory, NodeState
from neuron_plugin.topology import DeviceId


class Signal(enum.StrEnum):
    """What can be wrong with a device, worst first."""

    MISSING = "missing"
    """The driver does not list the device, or it cannot be known completely."""
    NODE = "node"
    RESET_FAILED = "reset-failed"
    COMPONENTS = "components"
    SRAM_ECC = "sram-ecc"
    MEMORY_ECC = "memory-ecc"
    NC_UNCORRECTABLE = "hw-nc-ue-error"
    HBM_UNCORRECTABLE = "hw-hbm-ue-error"
    KERNEL_MESSAGE = "kernel-message"
    """A hardware error in the kernel log that names the device."""
    RESETTING = "resetting"
    DMA_ABORT = "hw-dma-abort-error"
    HW_ERROR = "hw-error"
    HEALTH_STATUS = "health-status"
    """A counter that firmware keeps below ``health_status`` has risen."""
    REPAIRABLE_ECC = "repairable-ecc"
    KERNEL_MESSAGE_UNNAMED = "kernel-message-unnamed"
    """A hardware error in the kernel log that names no device: it may be any."""


class Severity(enum.IntEnum):
    """What a signal means for the device."""

    IGNORED = 0
    WARNING = 1
    """Worth telling; the device is handed out."""
    PASSING = 2
    """Ends by itself within seconds: a container has to wait, the device stays offered."""
    UNHEALTHY = 3
    """Not handed out until the cause is gone; whoever has it keeps it."""


_AT_ONE_LOOK: Mapping[Signal, Severity] = {
    Signal.RESETTING: Severity.PASSING,
    Signal.REPAIRABLE_ECC: Severity.WARNING,
    Signal.NC_UNCORRECTABLE: Severity.WARNING,
    Signal.HBM_UNCORRECTABLE: Severity.WARNING,
    Signal.DMA_ABORT: Severity.WARNING,
    Signal.HW_ERROR: Severity.WARNING,
    Signal.HEALTH_STATUS: Severity.WARNING,
}
"""What a single look can say; every other signal makes a device unhealthy. Counters of cores and of firmware may be as
old as the driver's start, so their mere height is a warning."""


HAS_ECC_COUNTERS = (2, 14, 5)
"""The first driver that prints ECC counts, of every product but Inf1."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One signal as it is seen now.

    ``part`` tells several of one signal apart (a component, a firmware counter). A counter has its ``count`` and is
    observed at 0, too; ``text`` then names one of what is counted, and ``where`` follows it. What is no counter is
    observed only while it is wrong.
    """

    signal: Signal
    text: str
    part: str = ""
    count: int | None = None
    where: str = ""

    def worded(self, accepted: int = 0) -> str:
        """In words for the operator; ``accepted`` errors are old ones."""
        if self.count is None:
            return self.text
        counted = f"{self.count} {self.text}{'' if self.count == 1 else 's'}{self.where}"
        return f"{counted}, {accepted} of them old" if accepted else counted


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a device, in words for the operator."""

    signal: Signal
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything found on one device, worst first. No finding: nothing is wrong."""

    findings: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the device may be offered."""
        return not any(finding.severity is Severity.UNHEALTHY for finding in self.findings)

    @property
    def reason(self) -> str:
        """All findings in one line; empty without one."""
        return "; ".join(finding.text for finding in self.findings)


def device_key(device: Device) -> str:
    """What a device's memory is kept under: the serial number, as a chip may be replaced; else the device's name."""
    return device.serial_number or f"neuron{device.id}"


def observe(device: Device) -> tuple[Observation, ...]:
    """All that one look tells of a device's health: every counter, and whatever else is wrong."""
    return (*_node(device), *_reset(device), *_components(device), *_ecc(device.health.ecc), *_counters(device))


def unreadable(device: Device) -> frozenset[Signal]:
    """Signals that this look cannot tell anything about, which is not the same as that all is well."""
    readings = device.health
    unknown = {Signal.RESETTING, Signal.RESET_FAILED} if readings.reset is None else set[Signal]()
    return frozenset(unknown | ({Signal.COMPONENTS} if readings.unhealthy_components is None else set()))


def without_error_counters(inventory: Inventory) -> tuple[DeviceId, ...]:
    """Devices that tell no ECC counts, though their product has them and the driver is new enough to print them."""
    driver = inventory.driver_version
    if driver and not driver.at_least(*HAS_ECC_COUNTERS):
        return ()
    return tuple(device.id for device in inventory.devices if device.health.ecc is None and _has_ecc(device))


def _has_ecc(device: Device) -> bool:
    generation = GENERATIONS.get(device.device_name)
    return generation is not None and generation.device_arch != "NDv1"


def assess(device: Device) -> Verdict:
    """Judge one device by this look alone."""
    findings = [
        Finding(seen.signal, _AT_ONE_LOOK.get(seen.signal, Severity.UNHEALTHY), seen.worded())
        for seen in observe(device)
        if seen.count != 0
    ]
    return Verdict(tuple(sorted(findings, key=lambda finding: -finding.severity)))


def assess_all(inventory: Inventory) -> dict[DeviceId, Verdict]:
    """Judge every known device by this look alone."""
    return {device.id: assess(device) for device in inventory.devices}


def _node(device: Device) -> Iterator[Observation]:
    if device.node is not NodeState.PRESENT:
        yield Observation(Signal.NODE, f"/dev/neuron{device.id} is {device.node}", part=device.node.value)


def _reset(device: Device) -> Iterator[Observation]:
    match device.health.reset:
        case ResetState.RESETTING:
            yield Observation(Signal.RESETTING, "a reset is under way")
        case ResetState.FAILED:
            text = "its last reset failed (reset it again, reload the driver or reboot)"
            yield Observation(Signal.RESET_FAILED, text)


def _components(device: Device) -> Iterator[Observation]:
    for name in sorted(device.health.unhealthy_components or ()):
        yield Observation(Signal.COMPONENTS, f"firmware reports {name} unhealthy", part=name)


def _ecc(counts: EccCounts | None) -> Iterator[Observation]:
    """Since the last power cycle: firmware keeps them, a module reload does not clear them."""
    if counts:
        yield Observation(Signal.SRAM_ECC, "uncorrected SRAM error", count=counts.sram)
        yield Observation(Signal.MEMORY_ECC, "uncorrected memory error", count=counts.memory)
        yield Observation(Signal.REPAIRABLE_ECC, "repairable memory error", count=counts.repairable)


def _counters(device: Device) -> Iterator[Observation]:
    """Since the driver was loaded, added up over the device's cores."""
    cores = device.health.core_errors
    kinds = (
        (Signal.NC_UNCORRECTABLE, "uncorrectable core error", {one.core: one.hw_nc_ue_error for one in cores}),
        (Signal.HBM_UNCORRECTABLE, "uncorrectable HBM error", {one.core: one.hw_hbm_ue_error for one in cores}),
        (Signal.DMA_ABORT, "aborted DMA transfer", {one.core: one.hw_dma_abort_error for one in cores}),
        (Signal.HW_ERROR, "hardware error", {one.core: one.hw_error for one in cores}),
    )
    for signal, name, counts in kinds if cores else ():
        yield Observation(signal, name, count=sum(counts.values()), where=_on_cores(counts))
    for file, count in device.health.status_counts:
        yield Observation(Signal.HEALTH_STATUS, "error", part=file, count=count, where=f" in health_status/{file}")


def _on_cores(counts: Mapping[int, int]) -> str:
    cores = [str(core) for core, count in sorted(counts.items()) if count]
    return f" on physical core{'' if len(cores) == 1 else 's'} {', '.join(cores)}" if cores else ""
