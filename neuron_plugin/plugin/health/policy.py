"""What each health signal means on this node, and for how long: the section ``health:`` of the configuration file.

    health:
      sram-ecc: {threshold: 5}
      hw-error: {action: unhealthy, recover-after-seconds: 600}
      kernel-message: {action: warn}

What is not named keeps its default. The defaults are strict with what the hardware says of itself, and careful with the
kernel log, in which a pod that has any Neuron device can write about every device: a line that names a device stops new
pods on that device for an hour; a line that names none is told and stops nothing, because one line must not empty a
node. Whoever trusts all pods of a cluster may say ``kernel-message-unnamed: {action: unhealthy}``.

A device that is missing cannot be given to anybody, so there is no setting for that; it is held back like the others
when it comes and goes.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.hardware import Signal

_HOUR = 3600.0
_MOST_SECONDS = 1e9

Seconds = Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]


class Action(enum.StrEnum):
    """What follows from a signal."""

    IGNORE = "ignore"
    WARN = "warn"
    """Told in log, event, condition and metric; the device is handed out."""
    UNHEALTHY = "unhealthy"
    """Not handed out; whoever has the device keeps it."""


class Recovery(enum.StrEnum):
    """When a signal is over."""

    GONE = "gone"
    """Its cause has not been seen for the time to recover. For a counter: it is not above the baseline any more."""
    QUIET = "quiet"
    """Counters: there was no further error for the time to recover. What was counted is accepted then. For kernel
    messages ``gone`` means the same."""
    RELOAD = "driver-reload"
    """The device has gone and come back, as at a reload of the driver, or the machine was booted."""


class Baseline(enum.StrEnum):
    """Which errors of a counter are accepted from the start."""

    ZERO = "zero"
    """None: it counts from power-up."""
    FIRST_SIGHT = "first-sight"
    """Those that are there when this daemon sees the device for the first time."""


class SignalPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What one signal means.

    It acts once it has been seen for ``after_seconds``. ``threshold`` and ``baseline`` are for counters: it is seen
    from that many errors above the baseline on.
    """

    action: Action = Action.UNHEALTHY
    after_seconds: Seconds = 0.0
    threshold: Annotated[int, Meta(ge=1)] = 1
    baseline: Baseline = Baseline.ZERO
    recovery: Recovery = Recovery.GONE
    recover_after_seconds: Seconds = 0.0


_RISING = SignalPolicy(baseline=Baseline.FIRST_SIGHT, recovery=Recovery.QUIET, recover_after_seconds=_HOUR)
_RISING_WARNING = msgspec.structs.replace(_RISING, action=Action.WARN)


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Policies by signal, and how a signal that comes and goes is damped.

    A signal that comes back within ``flapping_window_seconds`` of its end is held for at least ``first_hold_seconds``
    after its cause has gone, twice as long each further time, up to ``longest_hold_seconds``. So however fast it
    flaps, the cluster hears of it a number of times that grows like the logarithm of time, later twice in each
    longest hold. A window of 0 turns that off.

    ``trust_user_messages`` believes kernel log lines that processes have written, too.
    """

    node: SignalPolicy = SignalPolicy()
    reset_failed: SignalPolicy = SignalPolicy()
    components: SignalPolicy = SignalPolicy()
    sram_ecc: SignalPolicy = SignalPolicy()
    memory_ecc: SignalPolicy = SignalPolicy()
    hw_nc_ue_error: SignalPolicy = _RISING
    hw_hbm_ue_error: SignalPolicy = _RISING
    kernel_message: SignalPolicy = SignalPolicy(recovery=Recovery.QUIET, recover_after_seconds=_HOUR)
    resetting: SignalPolicy = SignalPolicy(after_seconds=120.0)
    hw_dma_abort_error: SignalPolicy = _RISING_WARNING
    hw_error: SignalPolicy = _RISING_WARNING
    health_status: SignalPolicy = _RISING_WARNING
    repairable_ecc: SignalPolicy = SignalPolicy(action=Action.WARN)
    kernel_message_unnamed: SignalPolicy = SignalPolicy(
        action=Action.WARN, recovery=Recovery.QUIET, recover_after_seconds=_HOUR
    )
    flapping_window_seconds: Seconds = 600.0
    first_hold_seconds: Seconds = 10.0
    longest_hold_seconds: Seconds = 900.0
    trust_user_messages: bool = False


KERNEL_SIGNALS = (Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED)

_MISSING = SignalPolicy()


def policy_of(settings: HealthSettings, signal: Signal) -> SignalPolicy:
    """What ``signal`` means."""
    return _policies(settings)[signal]


@lru_cache(maxsize=8)
def _policies(settings: HealthSettings) -> dict[Signal, SignalPolicy]:
    names = {signal: signal.value.replace("-", "_") for signal in Signal if signal is not Signal.MISSING}
    policies: dict[Signal, SignalPolicy] = {Signal.MISSING: _MISSING}
    policies.update({signal: getattr(settings, name) for signal, name in names.items()})
    for signal in KERNEL_SIGNALS:
        if policies[signal].recovery is Recovery.GONE:  # a message is never "still seen"
            policies[signal] = msgspec.structs.replace(policies[signal], recovery=Recovery.QUIET)
    return policies


def hold_seconds(settings: HealthSettings, policy: SignalPolicy, falls: int) -> float:
    """How long a signal's cause must be gone until the signal is over; ``falls``: how often it came lately."""
    if falls <= 1:
        return policy.recover_after_seconds
    first = max(policy.recover_after_seconds, settings.first_hold_seconds)
    doubled = first * 2.0 ** min(falls - 2, 32)
    return max(policy.recover_after_seconds, min(doubled, settings.longest_hold_seconds))
