"""A machine that a test describes, a clock that it sets, and the health state that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.hardware import Device, Inventory, ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, HealthReadings, NodeState
from neuron_plugin.hardware.kernel_log import KernelError
from neuron_plugin.plugin.health import Baseline, HealthRules, HealthState, Transition, health_after, transitions
from neuron_plugin.topology import DeviceId

HOUR = 3600.0
SOUND = HealthReadings(
    reset=ResetState.READY,
    ecc=EccCounts(),
    unhealthy_components=frozenset(),
    core_errors=(CoreErrors(0), CoreErrors(1)),
    status_counts=(("hw_error_events", 0),),
)


def device(number: int, *, node: NodeState = NodeState.PRESENT, serial: str = "", **health: Any) -> Device:
    return Device(
        id=DeviceId(number),
        cores=2,
        device_name="Inferentia2",
        architecture="NDv3",
        connected=frozenset(),
        node=node,
        serial_number=serial or f"{number:016x}",
        health=replace(SOUND, **health),
    )


STATES: dict[str, dict[str, Any]] = {
    "sound": {},
    "absent": {"node": NodeState.ABSENT},
    "reset-failed": {"reset": ResetState.FAILED},
    "resetting": {"reset": ResetState.RESETTING},
    "no-reset": {"reset": None},
    "no-counters": {"ecc": None},
    "component": {"unhealthy_components": frozenset({"link_host"})},
    "no-components": {"unhealthy_components": None},
}


def device_of(number: int, text: str) -> Device:
    """``absent sram=1 hw_error=5 serial=aa``: a device where it is not sound; ``unnamed`` is one without a serial."""
    fields: dict[str, Any] = {}
    ecc, core = dict[str, int](), dict[str, int]()
    for word in text.split():
        name, equals, count = word.partition("=")
        if name == "serial":
            fields["serial"] = count
        elif name == "status":
            fields["status_counts"] = (("a", 1), ("b", int(count)))
        elif equals:
            (ecc if name in {"sram", "memory", "repairable"} else core)[name] = int(count)
        elif word != "unnamed":
            fields |= STATES[word]
    fields |= {"ecc": EccCounts(**ecc)} if ecc else {}
    fields |= {"core_errors": (CoreErrors(0, **core),)} if core else {}
    made = device(number, **fields)
    return replace(made, serial_number="") if "unnamed" in text.split() else made


def devices_of(text: str) -> list[Device]:
    """``absent / sram=1``: the first device and the second, which is sound if nothing is said of it, or ``gone``."""
    parts = [*text.split(" / "), "sound"][:2]
    return [device_of(number, part) for number, part in enumerate(parts) if part != "gone"]


def machine(*devices: Device) -> Inventory:
    return Inventory(devices=devices)


def error(*devices: int, at: float = 0.0, kind: str = "DMA_ERROR", by_kernel: bool = True) -> KernelError:
    return KernelError(at, kind, frozenset(DeviceId(number) for number in devices), by_kernel)


def changed(found: tuple[Transition, ...]) -> str:
    """``0 unhealthy, 1 healthy``: which devices are how now."""
    return ", ".join(f"{format_ids(one.devices)} {one.after.name.lower()}" for one in found)


class World:
    """The health of a node, and the clock."""

    def __init__(self, rules: HealthRules | None = None, baseline: Baseline | None = None) -> None:
        self.now = 1000.0
        self.rules = rules or HealthRules()
        self.state = HealthState(baseline or {})
        self.inventory = Inventory()
        self._reported = self.state

    def see(self, *devices: Device) -> tuple[Transition, ...]:
        """Read the hardware; without devices there is no driver."""
        return self.read(machine(*devices))

    def read(self, inventory: Inventory) -> tuple[Transition, ...]:
        self.inventory = inventory
        return self.wait(0)

    def looks(self, text: str) -> tuple[Transition, ...]:
        """Read two devices, as `devices_of` describes them."""
        return self.see(*devices_of(text))

    def wait(self, seconds: float) -> tuple[Transition, ...]:
        """Let time pass; what has changed since the last time."""
        self.now += seconds
        self.hear()
        before, self._reported = self._reported, self.state
        return transitions(before, self.state)

    def hear(self, *errors: KernelError) -> None:
        """Take in errors of the kernel log."""
        self.state = health_after(self.state, self.inventory, self.now, self.rules, errors)
