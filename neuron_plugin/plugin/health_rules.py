"""What each signal of a device's health means on this node, and for how long: the settings' section ``health:``."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.hardware import Signal

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_HOUR = 3600.0


class Action(enum.StrEnum):
    """What follows from a firing condition."""

    IGNORE = "ignore"
    WARN = "warn"
    """Reported in log, event, node condition and metric; the device is handed out."""
    UNHEALTHY = "unhealthy"
    """Not handed out; pods that have the device keep it."""


class Recovery(enum.StrEnum):
    """When a condition is resolved."""

    GONE = "gone"
    """Its cause has not been seen for the time to keep firing. For a counter: it is not above the baseline any more."""
    QUIET = "quiet"
    """Counters: there was no further error for the time to keep firing. What was counted is accepted then. For kernel
    messages ``gone`` means the same."""
    RELOAD = "driver-reload"
    """The device has gone and come back, as at a reload of the driver, or the machine was booted."""


class Baseline(enum.StrEnum):
    """Which errors of a counter are accepted from the start."""

    ZERO = "zero"
    """None: it counts from power-up."""
    FIRST_SIGHT = "first-sight"
    """Those that are there when this daemon sees the device for the first time."""


class SignalRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What one signal means.

    It fires once it has been seen for ``for_seconds``, and goes on for ``keep_firing_for_seconds``. ``threshold`` and
    ``baseline`` are for counters: the signal is seen from that many errors above the baseline on.
    """

    action: Action = Action.UNHEALTHY
    for_seconds: Seconds = 0.0
    threshold: Annotated[int, Meta(ge=1)] = 1
    baseline: Baseline = Baseline.ZERO
    recovery: Recovery = Recovery.GONE
    keep_firing_for_seconds: Seconds = 0.0


_RISING = SignalRule(baseline=Baseline.FIRST_SIGHT, recovery=Recovery.QUIET, keep_firing_for_seconds=_HOUR)
_RISING_WARNING = msgspec.structs.replace(_RISING, action=Action.WARN)


class HealthRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The section ``health:`` of the configuration file: a rule for each signal, and how flapping is damped.

        health:
          sram-ecc: {threshold: 5}
          hw-error: {action: unhealthy, keep-firing-for-seconds: 600}

    What is not named keeps its default. The defaults are strict with what the hardware reports, and careful with the
    kernel log, in which a pod that has any Neuron device can write about every device: a line that names a device stops
    new pods on that device for an hour; a line that names none is a warning, because one line must not empty a node.
    A device that is missing cannot be handed out, so there is no rule for that.

    A condition that returns within ``flapping_window_seconds`` keeps firing for at least ``first_hold_seconds`` after
    its cause has gone, twice as long each further time, up to ``longest_hold_seconds``: however fast a signal flaps,
    the number of transitions grows like the logarithm of time. A window of 0 turns that off. ``trust_user_messages``
    believes kernel log lines that processes have written, too.
    """

    node: SignalRule = SignalRule()
    reset_failed: SignalRule = SignalRule()
    components: SignalRule = SignalRule()
    sram_ecc: SignalRule = SignalRule()
    memory_ecc: SignalRule = SignalRule()
    hw_nc_ue_error: SignalRule = _RISING
    hw_hbm_ue_error: SignalRule = _RISING
    kernel_message: SignalRule = SignalRule(recovery=Recovery.QUIET, keep_firing_for_seconds=_HOUR)
    resetting: SignalRule = SignalRule(for_seconds=120.0)
    hw_dma_abort_error: SignalRule = _RISING_WARNING
    hw_error: SignalRule = _RISING_WARNING
    health_status: SignalRule = _RISING_WARNING
    repairable_ecc: SignalRule = SignalRule(action=Action.WARN)
    kernel_message_unnamed: SignalRule = SignalRule(
        action=Action.WARN, recovery=Recovery.QUIET, keep_firing_for_seconds=_HOUR
    )
    flapping_window_seconds: Seconds = 600.0
    first_hold_seconds: Seconds = 10.0
    longest_hold_seconds: Seconds = 900.0
    trust_user_messages: bool = False


KERNEL_SIGNALS = frozenset({Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED})


def rule_of(rules: HealthRules, signal: Signal) -> SignalRule:
    """What ``signal`` means."""
    if signal is Signal.MISSING:
        return SignalRule()
    rule: SignalRule = getattr(rules, signal.value.replace("-", "_"))
    if signal in KERNEL_SIGNALS and rule.recovery is Recovery.GONE:  # a message is never "still seen"
        return msgspec.structs.replace(rule, recovery=Recovery.QUIET)
    return rule


def reads_kernel_log(rules: HealthRules) -> bool:
    """Whether any rule needs the kernel log."""
    return any(rule_of(rules, signal).action is not Action.IGNORE for signal in KERNEL_SIGNALS)


def hold_seconds(rules: HealthRules, rule: SignalRule, times_fired: int) -> float:
    """How long a cause must be gone until its condition is resolved; ``times_fired``: how often it fired lately."""
    if times_fired <= 1:
        return rule.keep_firing_for_seconds
    first = max(rule.keep_firing_for_seconds, rules.first_hold_seconds)
    doubled = first * 2.0 ** min(times_fired - 2, 32)
    return max(rule.keep_firing_for_seconds, min(doubled, rules.longest_hold_seconds))
