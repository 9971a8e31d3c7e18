"""What one look says of devices' health, by a node's own policies and what its daemon remembers.

The daemon's judgement without its time: what has to last before it acts is only passing here, and errors that nobody
has counted before may be old or new. For the command line; the daemon has its keeper.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.hardware import Device, Finding, Inventory, Observation, Severity, Verdict, device_key, observe
from neuron_plugin.plugin.health.keeper import HealthKeeper
from neuron_plugin.plugin.health.memory import Memory
from neuron_plugin.plugin.health.policy import Action, Baseline, HealthSettings, policy_of
from neuron_plugin.plugin.health.record import memory_name
from neuron_plugin.plugin.health.status import DeviceHealth, Status
from neuron_plugin.topology import DeviceId

_SEVERITIES = {
    Status.UNHEALTHY: Severity.UNHEALTHY,
    Status.WAITING: Severity.PASSING,
    Status.WARNING: Severity.WARNING,
}


def judge_once(inventory: Inventory, settings: HealthSettings, memory: Memory) -> dict[DeviceId, Verdict]:
    """Judge every known device; ``memory`` is what the daemon has written down, if that is known."""
    keeper = HealthKeeper(settings, memory, clock=lambda: 0.0)
    keeper.look(inventory)
    keeper.judge()
    return {
        device.id: _verdict(keeper.devices[int(device.id)], _of_unknown_age(device, settings, memory))
        for device in inventory.devices
    }


def _verdict(health: DeviceHealth, unknown: Iterator[Finding]) -> Verdict:
    judged = (Finding(cause.signal, _SEVERITIES[cause.status], cause.text) for cause in health.causes)
    return Verdict(tuple(sorted((*judged, *unknown), key=lambda finding: -finding.severity)))


def _of_unknown_age(device: Device, settings: HealthSettings, memory: Memory) -> Iterator[Finding]:
    """Errors of which only the rise would tell something, where nobody knows how many there were before."""
    accepted = memory.of(device_key(device)).accepted
    for seen in observe(device):
        policy = policy_of(settings, seen.signal)
        counts = policy.baseline is Baseline.FIRST_SIGHT and policy.action is not Action.IGNORE
        if counts and seen.count and memory_name((seen.signal, seen.part)) not in accepted:
            yield Finding(seen.signal, Severity.WARNING, _worded(seen))


def _worded(seen: Observation) -> str:
    return f"{seen.worded()}, which may be old"
