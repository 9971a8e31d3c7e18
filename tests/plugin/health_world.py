"""A machine that a test describes, a clock that it sets, and the health state that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def machine(*devices: Device) -> Inventory:
    return Inventory(devices=devices)


def error(*devices: int, at: float = 0.0, kind: str = "DMA_ERROR", by_kernel: bool = True) -> KernelError:
    return KernelError(at, kind, frozenset(DeviceId(number) for number in devices), by_kernel)


def changed(found: tuple[Transition, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(transition.devices, transition.after.name.lower()) for transition in found]


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

    def see_first(self, **health: Any) -> tuple[Transition, ...]:
        """Read a machine whose first device is as given."""
        return self.see(device(0, **health), device(1))

    def wait(self, seconds: float) -> tuple[Transition, ...]:
        """Let time pass; what has changed since the last time."""
        self.now += seconds
        self.hear()
        before, self._reported = self._reported, self.state
        return transitions(before, self.state)

    def hear(self, *errors: KernelError) -> None:
        """Take in errors of the kernel log."""
        self.state = health_after(self.state, self.inventory, self.now, self.rules, errors)
