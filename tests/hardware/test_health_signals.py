"""P67: what one reading of a device shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.hardware import Device, Inventory, ResetState, parse_driver_version
from neuron_plugin.hardware.device import CoreErrors, EccCounts, HealthReadings, NodeState
from neuron_plugin.hardware.health_signals import Observation, Signal, blind_spots, observe, unreadable
from neuron_plugin.topology import DeviceId

SOUND = Device(
    id=DeviceId(3),
    cores=2,
    device_name="Trainium1",
    architecture="NDv2",
    connected=frozenset(),
    node=NodeState.PRESENT,
    serial_number="00000b1c2d3e4f53",
    health=HealthReadings(
        reset=ResetState.READY,
        ecc=EccCounts(),
        unhealthy_components=frozenset(),
        core_errors=(CoreErrors(0), CoreErrors(1)),
        status_counts=(("hw_error_events", 0),),
    ),
)


def with_health(**fields: Any) -> Device:
    return replace(SOUND, health=replace(SOUND.health, **fields))


def test_counters_are_observed_at_zero_so_that_a_rise_has_a_beginning() -> None:
    counts = {(seen.signal, seen.part): seen.count for seen in observe(SOUND)}
    assert set(counts.values()) == {0}
    of_pods = {Signal.FAILED_STARTS}
    assert {signal for signal, _ in counts} == {signal for signal in Signal if signal.counted} - of_pods
    assert (Signal.HEALTH_STATUS, "hw_error_events") in counts


def test_errors_of_cores_are_added_up_and_the_cores_named() -> None:
    errors = (CoreErrors(0, hw_error=2), CoreErrors(1), CoreErrors(5, hw_error=3))
    (seen,) = [one for one in observe(with_health(core_errors=errors)) if one.signal is Signal.HW_ERROR]
    assert seen.worded() == "5 hardware errors on physical cores 0, 5"


def test_a_failed_reset_is_counted_on_every_core_and_shown_once() -> None:
    errors = (CoreErrors(0, reset_fail_count=3), CoreErrors(1, reset_fail_count=3))
    (seen,) = [one for one in observe(with_health(core_errors=errors)) if one.signal is Signal.RESET_FAILURES]
    assert seen.worded() == "3 failed resets"


def test_accepted_errors_are_named_apart() -> None:
    seen = Observation(Signal.MEMORY_ECC, "uncorrected memory error", count=5, where=" there")
    assert seen.worded() == "5 uncorrected memory errors there"
    assert seen.worded(accepted=4) == "5 uncorrected memory errors there, 4 of them old"


def test_components_are_observed_one_by_one() -> None:
    seen = list(observe(with_health(unhealthy_components=frozenset({"sram", "hbm"}))))
    assert [(one.part, one.text) for one in seen if one.signal is Signal.COMPONENTS] == [
        ("hbm", "firmware reports hbm unhealthy"),
        ("sram", "firmware reports sram unhealthy"),
    ]


def test_what_cannot_be_read_is_no_sign_of_health() -> None:
    assert unreadable(SOUND) == frozenset()
    assert unreadable(with_health(reset=None)) == {Signal.RESETTING, Signal.RESET_FAILED}
    assert unreadable(with_health(unhealthy_components=None)) == {Signal.COMPONENTS}


@pytest.mark.parametrize("node", [NodeState.ABSENT, NodeState.NOT_A_DEVICE, NodeState.STALE])
def test_p67_a_node_that_cannot_be_opened_is_named_with_its_state(node: NodeState) -> None:
    (seen,) = [one for one in observe(replace(SOUND, node=node)) if one.count is None]
    assert (seen.signal, seen.text) == (Signal.NODE, f"/dev/neuron3 is {node}")


def test_p70_what_a_driver_shows_to_root_and_a_device_does_not_is_named() -> None:
    blind = replace(with_health(reset=None), id=DeviceId(0))
    inventory = Inventory(devices=(blind, with_health(ecc=None)))
    assert blind_spots(inventory) == (
        "the reset state of neuron0 cannot be read: it takes root; "
        "neuron3 without counters of memory errors: see 'neuron-plugin doctor sysfs'"
    )
    old = replace(inventory, driver_version=parse_driver_version("2.14.4.0"))
    assert blind_spots(old) == "the reset state of neuron0 cannot be read: it takes root"
    assert blind_spots(Inventory(devices=(SOUND,))) == ""
