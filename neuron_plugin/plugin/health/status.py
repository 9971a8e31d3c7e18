"""What a device is, all the traces of its signals considered, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neuron_plugin.hardware import Signal
from neuron_plugin.plugin.health.policy import Action, SignalPolicy
from neuron_plugin.plugin.health.trace import Stage, Trace


class Status(enum.StrEnum):
    """What a device is, all its signals considered."""

    HEALTHY = "healthy"
    WARNING = "warning"
    """Handed out; something is to be looked at."""
    WAITING = "waiting"
    """Handed out; something is wrong that may pass by itself, such as a reset under way."""
    UNHEALTHY = "unhealthy"
    """Not handed out."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One signal that says something about a device now."""

    signal: Signal
    status: Status
    text: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A device's status, and the signals behind it, worst first."""

    status: Status = Status.HEALTHY
    causes: tuple[Cause, ...] = ()

    @property
    def reason(self) -> str:
        """Why the status is what it is, in one line; empty for a healthy device."""
        return "; ".join(cause.text for cause in self.causes if cause.status is self.status)


_WORST_FIRST = (Status.UNHEALTHY, Status.WAITING, Status.WARNING)
_SIGNAL_ORDER = {signal: number for number, signal in enumerate(Signal)}


def device_health(traces: list[tuple[Trace, SignalPolicy]]) -> DeviceHealth:
    """The health that follows from a device's traces."""
    causes = [Cause(trace.signal, status, trace.text) for trace, policy in traces if (status := _status(trace, policy))]
    causes.sort(key=lambda cause: (_WORST_FIRST.index(cause.status), _SIGNAL_ORDER[cause.signal], cause.text))
    return DeviceHealth(causes[0].status, tuple(causes)) if causes else DeviceHealth()


def _status(trace: Trace, policy: SignalPolicy) -> Status | None:
    match trace.stage, policy.action:
        case Stage.ACTING, Action.UNHEALTHY:
            return Status.UNHEALTHY
        case Stage.ACTING, Action.WARN:
            return Status.WARNING
        case Stage.WATCHED, Action.UNHEALTHY:
            return Status.WAITING
        case _:
            return None
