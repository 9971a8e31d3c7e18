"""Signals of a device's health in one read of the hardware, in words for the operator.

Nothing is remembered or decided here. The plugin's health rules add memory and time to these observations (rising
errors, hold times, flapping, accepted errors), and define the consequence of each signal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from neuron_plugin.hardware.device import GENERATIONS, Device, NodeState
from neuron_plugin.hardware.inventory import Inventory
from neuron_plugin.hardware.sysfs import ResetState

MISSING = "missing: the driver does not list it"

HAS_ECC_COUNTERS = (2, 14, 5)
"""The first driver that prints ECC counts."""
_HAVE_ECC_COUNTERS = frozenset(GENERATIONS) - {"Inferentia"}


class Signal(enum.StrEnum):
    """What can be wrong with a device, worst first.

    ``meaning`` is for the reference of settings. A ``counted`` signal is a counter, in sysfs or of pods. While it
    cannot be read, its condition does not change.
    """

    meaning: str
    counted: bool

    def __new__(cls, value: str, meaning: str = "", counted: bool = False) -> Self:  # noqa: FBT001, FBT002 - members
        """Make a signal; ``value`` is its name in settings, metrics and records."""
        signal = str.__new__(cls, value)
        signal._value_, signal.meaning, signal.counted = value, meaning, counted
        return signal

    MISSING = "missing", "the driver does not list the device, or it cannot be known completely"
    NODE = "node", "the device node is missing, or is none of the driver's"
    RESET_FAILED = "reset-failed", "a reset has failed"
    COMPONENTS = "components", "parts that firmware reports unhealthy"
    SRAM_ECC = "sram-ecc", "uncorrected errors of on-chip memory", True
    MEMORY_ECC = "memory-ecc", "uncorrected errors of device memory", True
    NC_UNCORRECTABLE = "hw-nc-ue-error", "`hw_nc_ue_error` of each core", True
    HBM_UNCORRECTABLE = "hw-hbm-ue-error", "`hw_hbm_ue_error` of each core", True
    KERNEL_MESSAGE = "kernel-message", "a hardware error in the kernel log that names the device"
    FAILED_STARTS = (
        "failed-starts",
        "pods in a row that fail to start ([what counts](troubleshooting.md#a-device-on-which-every-pod-fails))",
        True,
    )
    RESET_FAILURES = "reset-failures", "`reset_fail_count` of each core", True
    RESETTING = "resetting", "a reset is under way"
    DMA_ABORT = "hw-dma-abort-error", "`hw_dma_abort_error` of each core", True
    HW_ERROR = "hw-error", "`hw_error` of each core", True
    HEALTH_STATUS = "health-status", "errors that firmware counts below `health_status`", True
    REPAIRABLE_ECC = "repairable-ecc", "uncorrected errors of device memory that can be repaired", True
    KERNEL_MESSAGE_UNNAMED = "kernel-message-unnamed", "a hardware error in the kernel log that names no device"


_CORE_ERRORS = (
    (Signal.NC_UNCORRECTABLE, "uncorrectable core error", "hw_nc_ue_error"),
    (Signal.HBM_UNCORRECTABLE, "uncorrectable HBM error", "hw_hbm_ue_error"),
    (Signal.DMA_ABORT, "aborted DMA transfer", "hw_dma_abort_error"),
    (Signal.HW_ERROR, "hardware error", "hw_error"),
)


class Severity(enum.IntEnum):
    """The consequence of a signal for its device."""

    HEALTHY = 0
    WARNING = 1
    """Reported; the device is handed out."""
    PASSING = 2
    """Seen, but not yet for long enough: a container has to wait, the device stays offered."""
    UNHEALTHY = 3
    """Not handed out until the cause is gone; pods that have the device keep it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One signal as it is observed now.

    ``part`` distinguishes several observations of one signal (a component, a firmware counter). A counter has a
    ``count`` and is observed at 0, too; its ``text`` names one counted error, and ``where`` follows it. Other signals
    are observed only while something is wrong.
    """

    signal: Signal
    text: str
    part: str = ""
    count: int | None = None
    where: str = ""

    @property
    def label(self) -> str:
        """The key under which the signal is remembered."""
        return f"{self.signal.value}/{self.part}" if self.part else self.signal.value

    def worded(self, accepted: int = 0) -> str:
        """The observation in words for the operator; ``accepted`` is the number of old errors."""
        if self.count is None:
            return self.text
        counted = f"{self.count} {self.text}{'' if self.count == 1 else 's'}{self.where}"
        return f"{counted}, {accepted} of them old" if accepted else counted


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that is wrong with a device, in words for the operator."""

    signal: Signal
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings on one device, worst first; empty if nothing is wrong."""

    findings: tuple[Symptom, ...] = ()

    @property
    def severity(self) -> Severity:
        """The worst of all findings."""
        return max((finding.severity for finding in self.findings), default=Severity.HEALTHY)

    @property
    def lasting(self) -> Verdict:
        """The verdict without findings that pass by themselves."""
        return Verdict(tuple(finding for finding in self.findings if finding.severity is not Severity.PASSING))

    @property
    def healthy(self) -> bool:
        """Whether the device may be offered."""
        return self.severity is not Severity.UNHEALTHY

    @property
    def reason(self) -> str:
        """The worst findings in one line; empty without any."""
        return "; ".join(finding.text for finding in self.findings if finding.severity is self.severity)


def observe(device: Device) -> Iterator[Observation]:
    """All observations in one read of a device: every counter, and every fault."""
    readings = device.health
    if device.node is not NodeState.PRESENT:
        yield Observation(Signal.NODE, f"/dev/neuron{device.id} is {device.node}", part=device.node.value)
    if readings.reset is ResetState.RESETTING:
        yield Observation(Signal.RESETTING, "a reset is under way")
    if readings.reset is ResetState.FAILED:
        text = "its last reset failed (reset it again, reload the driver or reboot)"
        yield Observation(Signal.RESET_FAILED, text)
    for name in sorted(readings.unhealthy_components or ()):
        yield Observation(Signal.COMPONENTS, f"firmware reports {name} unhealthy", part=name)
    if ecc := readings.ecc:  # since the last power cycle: firmware keeps them over a module reload
        yield Observation(Signal.SRAM_ECC, "uncorrected SRAM error", count=ecc.sram)
        yield Observation(Signal.MEMORY_ECC, "uncorrected memory error", count=ecc.memory)
        yield Observation(Signal.REPAIRABLE_ECC, "repairable memory error", count=ecc.repairable)
    for signal, text, name in _CORE_ERRORS if readings.core_errors else ():  # since the driver was loaded
        counts = {errors.core: getattr(errors, name) for errors in readings.core_errors}
        cores = [str(core) for core, count in sorted(counts.items()) if count]
        where = f" on physical core{'' if len(cores) == 1 else 's'} {', '.join(cores)}" if cores else ""
        yield Observation(signal, text, count=sum(counts.values()), where=where)
    if readings.core_errors:  # counted on every core of the device that a reset fails on
        failures = max(errors.reset_fail_count for errors in readings.core_errors)
        yield Observation(Signal.RESET_FAILURES, "failed reset", count=failures)
    for file, count in readings.status_counts:
        yield Observation(Signal.HEALTH_STATUS, "error", part=file, count=count, where=f" in health_status/{file}")


def unreadable(device: Device) -> frozenset[Signal]:
    """Signals that could not be read, which does not mean that all is well."""
    readings = device.health
    unknown = {Signal.RESETTING, Signal.RESET_FAILED} if readings.reset is None else set[Signal]()
    return frozenset(unknown | ({Signal.COMPONENTS} if readings.unhealthy_components is None else set()))


def blind_spots(inventory: Inventory) -> str:
    """Attributes that every driver shows to root and these devices do not, as text; empty if all are there."""
    driver, problems = inventory.driver_version, []
    if blind := [f"neuron{device.id}" for device in inventory.devices if device.health.reset is None]:
        problems.append(f"the reset state of {', '.join(blind)} cannot be read: it takes root")
    if driver is None or driver.at_least(*HAS_ECC_COUNTERS):
        uncounted = [
            f"neuron{device.id}"
            for device in inventory.devices
            if device.health.ecc is None and device.device_name in _HAVE_ECC_COUNTERS
        ]
        if uncounted:
            problems.append(
                f"{', '.join(uncounted)} without counters of memory errors: see 'neuron-plugin doctor sysfs'"
            )
    return "; ".join(problems)
