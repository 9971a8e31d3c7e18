"""What the log, the node's events and its condition say of health."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.report import HealthReport, condition_of
from neuron_plugin.plugin.health.status import Cause, DeviceHealth, Status

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.hardware import Signal

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def health(status: Status, text: str = "") -> DeviceHealth:
    return DeviceHealth(status, (Cause(Signal.NODE, status, text),) if text else ())


SOUND = {0: health(Status.HEALTHY), 1: health(Status.HEALTHY)}
BROKEN = {0: health(Status.HEALTHY), 1: health(Status.UNHEALTHY, "/dev/neuron1 is absent")}
FELL = Transition((1,), Status.HEALTHY, Status.UNHEALTHY, "/dev/neuron1 is absent")
ROSE = Transition((1,), Status.UNHEALTHY, Status.HEALTHY, "")
WARNED = Transition((0, 1), Status.HEALTHY, Status.WARNING, "2 hardware errors")
CALMED = Transition((0, 1), Status.WARNING, Status.HEALTHY, "")


class Api:
    """What was to be told, by subject and in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ApiRequest]] = []
        self.now = START

    def tell(self, subject: str, request: ApiRequest) -> None:
        self.told.append((subject, request))

    tell_of_node = tell

    def clock(self) -> datetime:
        return self.now

    def bodies(self, method: str) -> list[Any]:
        return [request.body for _, request in self.told if request.method == method]


@pytest.fixture
def api() -> Api:
    return Api()


def report(api: Api, condition: str = "") -> HealthReport:
    return HealthReport("worker-1", condition, api, api.clock)


@pytest.mark.parametrize(
    ("transition", "kind", "reason", "note"),
    [
        (FELL, "Warning", "NeuronDeviceUnhealthy", "neuron device 1 is not given to new pods: /dev/neuron1 is absent"),
        (ROSE, "Normal", "NeuronDeviceHealthy", "neuron device 1 is healthy again and given to new pods"),
        (
            WARNED,
            "Warning",
            "NeuronDeviceWarning",
            "neuron devices 0,1 are still given to pods, but: 2 hardware errors",
        ),
        (CALMED, "Normal", "NeuronDeviceHealthy", "nothing is wrong with neuron devices 0,1 any more"),
    ],
)
def test_p67_every_change_is_an_event_on_the_node(
    api: Api, transition: Transition, kind: str, reason: str, note: str
) -> None:
    report(api).judged(SOUND, [transition])
    (event,) = api.bodies("POST")
    assert (event["type"], event["reason"], event["note"]) == (kind, reason, note)
    assert event["regarding"] == {"kind": "Node", "name": "worker-1", "uid": "worker-1", "apiVersion": "v1"}
    assert event["metadata"]["namespace"] == "default"


def test_an_unsent_event_is_replaced_by_one_on_the_same_devices_only(api: Api) -> None:
    report(api).judged(SOUND, [FELL, ROSE, WARNED, CALMED])
    assert len({subject for subject, _ in api.told}) == 4
    report(api).judged(SOUND, [FELL])
    assert len({subject for subject, _ in api.told}) == 4


def test_every_change_is_logged_once(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    report(api).judged(SOUND, [FELL, ROSE])
    assert [(record.levelno, record.__dict__["devices"]) for record in caplog.records] == [
        (logging.WARNING, "1"),
        (logging.INFO, "1"),
    ]
    assert caplog.records[0].__dict__["reason"] == "/dev/neuron1 is absent"


def test_without_an_api_server_the_log_is_all_there_is(caplog: pytest.LogCaptureFixture) -> None:
    HealthReport("worker-1", "NeuronDevicesHealthy", None).judged(BROKEN, [FELL])
    assert len(caplog.records) == 1


def conditions(api: Api) -> list[Any]:
    return [body["status"]["conditions"][0] for body in api.bodies("PATCH")]


def test_no_condition_is_written_unless_one_is_named(api: Api) -> None:
    report(api).judged(BROKEN, [FELL])
    assert conditions(api) == []


def test_p67_the_condition_is_true_while_all_is_well_and_false_when_not(api: Api) -> None:
    told = report(api, "NeuronDevicesHealthy")
    told.judged(SOUND, [])
    api.now += timedelta(minutes=1)
    told.judged(BROKEN, [FELL])
    first, second = conditions(api)
    assert (first["type"], first["status"], first["reason"]) == ("NeuronDevicesHealthy", "True", "AllDevicesHealthy")
    assert (second["status"], second["reason"]) == ("False", "UnhealthyDevices")
    assert second["message"] == "neuron device 1: /dev/neuron1 is absent"
    assert (first["lastTransitionTime"], second["lastTransitionTime"]) == (
        "2026-11-21T12:00:00Z",
        "2026-11-21T12:01:00Z",
    )


def test_a_condition_that_says_the_same_is_not_written_again(api: Api) -> None:
    told = report(api, "NeuronDevicesHealthy")
    told.judged(BROKEN, [FELL])
    told.judged(BROKEN, [])
    assert len(conditions(api)) == 1


def test_a_condition_keeps_its_time_while_only_its_message_changes(api: Api) -> None:
    told = report(api, "NeuronDevicesHealthy")
    told.judged(BROKEN, [FELL])
    api.now += timedelta(minutes=1)
    told.judged({**BROKEN, 0: health(Status.UNHEALTHY, "a reset is under way")}, [])
    first, second = conditions(api)
    assert first["lastTransitionTime"] == second["lastTransitionTime"]
    assert second["lastHeartbeatTime"] == "2026-11-21T12:01:00Z"
    assert second["message"] == "neuron device 0: a reset is under way. neuron device 1: /dev/neuron1 is absent"


def test_a_condition_without_devices_is_unknown_and_one_with_warnings_true() -> None:
    assert condition_of({})[:2] == (None, "NoDevices")
    warned = condition_of({0: health(Status.WARNING, "x"), 1: health(Status.WARNING, "x"), 2: health(Status.HEALTHY)})
    assert warned == (True, "DevicesWithWarnings", "neuron devices 0,1: x")


def test_a_message_is_cut_to_what_a_condition_takes() -> None:
    many = {number: health(Status.UNHEALTHY, f"{number} " + "x" * 100) for number in range(64)}
    assert len(condition_of(many)[2]) == 1024
