"""Whether a device may be handed out, judged from one look at it.

A function of what is seen now, of the error counts that are accepted (the baseline) and of a policy; nothing is
remembered here. So a device recovers by the same rule by which it fails: when its cause is no longer seen. What
needs a memory (hold times, flapping) belongs to the caller, who has the last verdict and a clock.

When a cause goes: a node file, by being made again; a reset, by finishing; broken parts, when firmware no longer
names them; ECC counts, at a power cycle (they live in firmware and survive a module reload), or when the operator
accepts them into the baseline.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.records import Device, EccCounts, Inventory, NodeState
from neuron_plugin.topology.geometry import DeviceId


class Signal(enum.StrEnum):
    """What can be wrong with a device."""

    NODE = "node"
    RESETTING = "resetting"
    RESET_FAILED = "reset-failed"
    SRAM_ECC = "sram-ecc"
    MEMORY_ECC = "memory-ecc"
    REPAIRABLE_ECC = "repairable-ecc"
    COMPONENTS = "components"


class Severity(enum.IntEnum):
    """What a signal means for the device."""

    IGNORED = 0
    WARNING = 1
    """Worth telling; the device is handed out."""
    PASSING = 2
    """Ends by itself within seconds: a container has to wait, the device stays offered."""
    UNHEALTHY = 3
    """Not handed out until the cause is gone; whoever has it keeps it."""


DEFAULT_SEVERITIES: Mapping[Signal, Severity] = {
    Signal.NODE: Severity.UNHEALTHY,
    Signal.RESETTING: Severity.PASSING,
    Signal.RESET_FAILED: Severity.UNHEALTHY,
    Signal.SRAM_ECC: Severity.UNHEALTHY,
    Signal.MEMORY_ECC: Severity.UNHEALTHY,
    Signal.REPAIRABLE_ECC: Severity.WARNING,
    Signal.COMPONENTS: Severity.UNHEALTHY,
}


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What each signal means here. A signal that is not named has its default severity."""

    severities: Mapping[Signal, Severity] = field(default_factory=dict)

    def severity(self, signal: Signal) -> Severity:
        """What ``signal`` means."""
        return self.severities.get(signal, DEFAULT_SEVERITIES[signal])


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
    def passing(self) -> bool:
        """Whether something is under way that a container should wait for."""
        return any(finding.severity is Severity.PASSING for finding in self.findings)

    @property
    def reason(self) -> str:
        """All findings in one line; empty without one."""
        return "; ".join(finding.text for finding in self.findings)


NO_ERRORS = EccCounts()
"""The baseline of a device nobody has accepted errors of: counters start at zero at power-up, so any is news."""


def baseline_key(device: Device) -> str:
    """What an ECC baseline is kept under: the serial number, as a chip may be replaced; else the device's name."""
    return device.serial_number or f"neuron{device.id}"


def assess(device: Device, baseline: EccCounts = NO_ERRORS, policy: HealthPolicy | None = None) -> Verdict:
    """Judge one device. Counts up to those in ``baseline`` are accepted."""
    chosen = policy or HealthPolicy()
    signals = {**_node(device), **_reset(device), **_ecc(device, baseline), **_components(device)}
    findings = [Finding(signal, chosen.severity(signal), text) for signal, text in signals.items()]
    told = [finding for finding in findings if finding.severity is not Severity.IGNORED]
    return Verdict(tuple(sorted(told, key=lambda finding: -finding.severity)))


def assess_all(
    inventory: Inventory, baselines: Mapping[str, EccCounts] | None = None, policy: HealthPolicy | None = None
) -> dict[DeviceId, Verdict]:
    """Judge every known device; ``baselines`` by ``baseline_key``."""
    accepted = baselines or {}
    return {
        device.id: assess(device, accepted.get(baseline_key(device), NO_ERRORS), policy) for device in inventory.devices
    }


def _node(device: Device) -> dict[Signal, str]:
    if device.node is NodeState.PRESENT:
        return {}
    return {Signal.NODE: f"/dev/neuron{device.id} is {device.node}"}


def _reset(device: Device) -> dict[Signal, str]:
    match device.health.reset:
        case ResetState.RESETTING:
            return {Signal.RESETTING: "a reset is under way"}
        case ResetState.FAILED:
            return {Signal.RESET_FAILED: "its last reset failed: reset it again, reload the driver or reboot"}
        case _:
            return {}


def _ecc(device: Device, baseline: EccCounts) -> dict[Signal, str]:
    seen = device.health.ecc
    if seen is None:
        return {}
    kinds = (
        (Signal.SRAM_ECC, "uncorrected SRAM errors", seen.sram, baseline.sram),
        (Signal.MEMORY_ECC, "uncorrected memory errors", seen.memory, baseline.memory),
        (Signal.REPAIRABLE_ECC, "repairable memory errors", seen.repairable, baseline.repairable),
    )
    return {
        signal: f"{count} {name}" + (f", {accepted} accepted" if accepted else "")
        for signal, name, count, accepted in kinds
        if count > accepted
    }


def _components(device: Device) -> dict[Signal, str]:
    broken = sorted(device.health.unhealthy_components)
    return {Signal.COMPONENTS: f"firmware reports {', '.join(broken)} unhealthy"} if broken else {}
