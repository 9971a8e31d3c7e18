"""Health in words: log lines, events on the node, and the node condition."""

from __future__ import annotations

import logging

import pytest

from neuron_plugin.hardware.health_signals import Severity, Signal, Symptom, Verdict
from neuron_plugin.plugin.health import DeviceHealth, HealthState, Transition
from neuron_plugin.plugin.health_watch import health_event, log_transition, node_condition


def node(**verdicts: Verdict) -> HealthState:
    return HealthState(devices={int(name[1:]): DeviceHealth(name, verdict=one) for name, one in verdicts.items()})


def found(severity: Severity, text: str) -> Verdict:
    return Verdict((Symptom(Signal.NODE, severity, text),))


SOUND = Verdict()
FELL = Transition((1,), Severity.HEALTHY, Severity.UNHEALTHY, "/dev/neuron1 is absent")
ROSE = Transition((1,), Severity.UNHEALTHY, Severity.HEALTHY, "")
WARNED = Transition((0, 1), Severity.HEALTHY, Severity.WARNING, "2 hardware errors")
CALMED = Transition((0, 1), Severity.WARNING, Severity.HEALTHY, "")


@pytest.mark.parametrize(
    ("transition", "reason", "note"),
    [
        (FELL, "NeuronDeviceUnhealthy", "neuron device 1 is not given to new pods: /dev/neuron1 is absent"),
        (ROSE, "NeuronDeviceHealthy", "neuron device 1 is healthy again and given to new pods"),
        (
            WARNED,
            "NeuronDeviceWarning",
            "neuron devices 0,1 are still given to pods, with a warning: 2 hardware errors",
        ),
        (CALMED, "NeuronDeviceHealthy", "neuron devices 0,1 are healthy again, the warning is over"),
    ],
)
def test_p67_every_change_is_an_event_on_the_node(transition: Transition, reason: str, note: str) -> None:
    assert health_event(transition) == (reason, note)


def test_every_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for transition in (FELL, ROSE):
        log_transition(transition)
    assert [(record.levelno, record.__dict__["devices"]) for record in caplog.records] == [
        (logging.WARNING, "1"),
        (logging.INFO, "1"),
    ]
    assert caplog.records[0].__dict__["reason"] == "/dev/neuron1 is absent"
    assert (caplog.records[0].__dict__["was"], caplog.records[0].__dict__["is"]) == ("healthy", "unhealthy")


def test_p67_the_condition_is_true_while_all_is_well_and_false_when_not() -> None:
    assert node_condition(node(d0=SOUND, d1=SOUND))[:2] == (True, "AllDevicesHealthy")
    broken = node(d0=SOUND, d1=found(Severity.UNHEALTHY, "/dev/neuron1 is absent"))
    assert node_condition(broken) == (False, "UnhealthyDevices", "neuron device 1: /dev/neuron1 is absent")


def test_a_condition_names_every_reason_with_its_devices() -> None:
    first, second = found(Severity.UNHEALTHY, "a reset has failed"), found(Severity.UNHEALTHY, "/dev/neuron1 is absent")
    message = node_condition(node(d0=first, d1=second, d2=first))[2]
    assert message == "neuron devices 0,2: a reset has failed. neuron device 1: /dev/neuron1 is absent"


def test_a_condition_without_devices_is_unknown_and_one_with_warnings_true() -> None:
    assert node_condition(node())[:2] == (None, "NoDevices")
    warning = found(Severity.WARNING, "x")
    assert node_condition(node(d0=warning, d1=warning, d2=SOUND)) == (
        True,
        "DevicesWithWarnings",
        "neuron devices 0,1: x",
    )


def test_a_message_is_cut_to_what_a_condition_takes() -> None:
    many = {f"d{number}": found(Severity.UNHEALTHY, f"{number} " + "x" * 100) for number in range(64)}
    assert len(node_condition(node(**many))[2]) == 1024
