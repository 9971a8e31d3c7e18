"""A machine of the tests' own making, and time in their hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuron_plugin.plugin.health.keeper import HealthKeeper, Transition
from neuron_plugin.plugin.health.memory import Memory
from neuron_plugin.plugin.health.policy import HealthSettings

from neuron_plugin.hardware import Device, EccCounts, Inventory, KernelError, ResetState
from neuron_plugin.hardware.device import CoreErrors, HealthReadings, NodeState
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


def changed(transitions: tuple[Transition, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(transition.devices, transition.after.value) for transition in transitions]


class World:
    """A keeper of two devices, and the clock."""

    def __init__(self, settings: HealthSettings | None = None, memory: Memory | None = None) -> None:
        self.now = 1000.0
        self.keeper = HealthKeeper(settings or HealthSettings(), memory or Memory(), lambda: self.now)

    def see(self, *devices: Device) -> tuple[Transition, ...]:
        """Look and judge; without devices there is no driver."""
        self.keeper.look(machine(*devices))
        return self.keeper.judge()

    def see_first(self, **health: Any) -> tuple[Transition, ...]:
        """Look at a machine whose first device is as given."""
        return self.see(device(0, **health), device(1))

    def wait(self, seconds: float) -> tuple[Transition, ...]:
        """Let time pass and judge."""
        self.now += seconds
        return self.keeper.judge()
