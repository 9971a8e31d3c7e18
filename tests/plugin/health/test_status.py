"""What a device is, by its traces."""

from __future__ import annotations

from neuron_plugin.plugin.health.policy import Action, SignalPolicy
from neuron_plugin.plugin.health.status import Cause, DeviceHealth, Status, device_health
from neuron_plugin.plugin.health.trace import Stage, Trace

from neuron_plugin.hardware import Signal


def trace_of(signal: Signal, trace_stage: Stage = Stage.ACTING, text: str = "") -> Trace:
    return Trace(signal, trace_stage, text or signal.value, 0.0, 0.0)


UNHEALTHY, WARN = SignalPolicy(), SignalPolicy(action=Action.WARN)


def test_no_trace_is_health() -> None:
    assert device_health([]) == DeviceHealth()
    assert device_health([(trace_of(Signal.NODE, Stage.OVER), UNHEALTHY)]) == DeviceHealth()


def test_the_worst_signal_decides_and_is_named_first() -> None:
    health = device_health(
        [
            (trace_of(Signal.HW_ERROR), WARN),
            (trace_of(Signal.RESETTING, Stage.WATCHED), UNHEALTHY),
            (trace_of(Signal.SRAM_ECC), UNHEALTHY),
            (trace_of(Signal.NODE), UNHEALTHY),
        ]
    )
    assert health.status is Status.UNHEALTHY
    assert health.reason == "node; sram-ecc"
    assert [cause.status for cause in health.causes] == [
        Status.UNHEALTHY,
        Status.UNHEALTHY,
        Status.WAITING,
        Status.WARNING,
    ]


def test_what_may_pass_makes_a_device_wait_and_no_more() -> None:
    health = device_health([(trace_of(Signal.RESETTING, Stage.WATCHED), UNHEALTHY)])
    assert health == DeviceHealth(Status.WAITING, (Cause(Signal.RESETTING, Status.WAITING, "resetting"),))


def test_a_warning_that_does_not_act_yet_says_nothing() -> None:
    assert device_health([(trace_of(Signal.HW_ERROR, Stage.WATCHED), WARN)]) == DeviceHealth()
