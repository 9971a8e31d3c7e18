"""Signals in, verdicts and their changes out: faults, kernel messages, and what goes and comes back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.hardware import Inventory, ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState, SkippedDevice
from neuron_plugin.hardware.health_signals import MISSING, Severity, Signal, Symptom, Verdict
from neuron_plugin.plugin.health import MOST_DEVICES, Action, HealthRules, SignalRule, Transition, health_after
from neuron_plugin.topology import DeviceId
from tests.plugin.health_world import HOUR, World, changed, device, error


def test_sound_devices_are_no_news() -> None:
    world = World()
    assert world.see_first() == ()
    assert world.state.unhealthy == {}
    assert {health.verdict.severity for health in world.state.devices.values()} == {Severity.HEALTHY}
    assert world.state.next_change == math.inf


LEVELS: dict[str, dict[str, Any]] = {
    "node": {"node": NodeState.ABSENT},
    "reset": {"reset": ResetState.FAILED},
    "sram": {"ecc": EccCounts(sram=1)},
    "memory": {"ecc": EccCounts(memory=1)},
    "component": {"unhealthy_components": frozenset({"link_host"})},
}


@pytest.mark.parametrize("fault", LEVELS.values(), ids=LEVELS.keys())
def test_p67_p68_a_fault_makes_its_device_unhealthy_at_once_and_its_end_healthy_again(fault: dict[str, Any]) -> None:
    world = World()
    world.see_first()
    assert changed(world.see_first(**fault)) == [((0,), "unhealthy")]
    assert list(world.state.unhealthy) == [0]
    world.now += 5
    assert changed(world.see_first()) == [((0,), "healthy")]
    assert world.state.unhealthy == {}


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("hw_nc_ue_error", Severity.UNHEALTHY),
        ("hw_hbm_ue_error", Severity.UNHEALTHY),
        ("hw_error", Severity.WARNING),
        ("hw_dma_abort_error", Severity.WARNING),
    ],
)
def test_p67_errors_of_a_core_count_when_they_rise(name: str, severity: Severity) -> None:
    world = World()
    assert world.see_first(core_errors=(CoreErrors(0, **{name: 7}),)) == ()
    assert changed(world.see_first(core_errors=(CoreErrors(0, **{name: 8}),))) == [((0,), severity.name.lower())]


def test_p67_firmwares_counters_warn_when_they_rise_each_by_itself() -> None:
    world = World()
    world.see_first(status_counts=(("a", 1), ("b", 5)))
    assert changed(world.see_first(status_counts=(("a", 1), ("b", 6)))) == [((0,), "warning")]
    assert world.state.devices[0].verdict.reason == "6 errors in health_status/b, 5 of them old"


def test_p68_errors_that_stopped_are_accepted_after_the_quiet_time_and_the_next_one_counts_again() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=2),))
    assert world.state.next_change == world.now + HOUR
    assert changed(world.wait(HOUR)) == [((0,), "healthy")]
    assert world.wait(HOUR) == ()
    assert changed(world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=3),))) == [((0,), "unhealthy")]
    assert world.state.devices[0].verdict.reason == "3 uncorrectable core errors on physical core 0, 2 of them old"


def test_p68_a_power_cycle_takes_counters_and_accepted_errors_back() -> None:
    known = {f"{0:016x}": {"memory-ecc": 4}}
    world = World(baseline=known)
    assert world.see_first(ecc=EccCounts(memory=4)) == ()
    assert world.see_first(ecc=EccCounts(memory=0)) == ()
    assert changed(world.see_first(ecc=EccCounts(memory=1))) == [((0,), "unhealthy")]


def test_p67_a_threshold_lets_some_errors_pass() -> None:
    world = World(HealthRules(sram_ecc=SignalRule(threshold=3)))
    assert world.see_first(ecc=EccCounts(sram=2)) == ()
    assert changed(world.see_first(ecc=EccCounts(sram=3))) == [((0,), "unhealthy")]


def test_p68_a_counter_that_fell_below_its_threshold_begins_again_from_its_baseline() -> None:
    world = World(HealthRules(sram_ecc=SignalRule(threshold=3)))
    news = [changed(world.see_first(ecc=EccCounts(sram=count))) for count in (5, 2, 3)]
    assert news[:2] == [[((0,), "unhealthy")], [((0,), "healthy")]]
    assert list(world.state.unhealthy) == [0]


def test_a_baseline_may_be_what_is_there_at_first_sight() -> None:
    world = World(HealthRules(sram_ecc=SignalRule(only_new_errors=True)))
    assert world.see_first(ecc=EccCounts(sram=2)) == ()
    assert changed(world.see_first(ecc=EccCounts(sram=3))) == [((0,), "unhealthy")]


def test_an_ignored_signal_says_nothing() -> None:
    world = World(HealthRules(node=SignalRule(action=Action.IGNORE)))
    assert world.see_first(node=NodeState.ABSENT) == ()
    assert world.state.next_change == math.inf


def test_p67_a_reset_under_way_is_waited_for_and_only_one_that_hangs_is_news() -> None:
    world = World()
    assert world.see_first(reset=ResetState.RESETTING) == ()
    assert world.state.devices[0].verdict.severity is Severity.PASSING
    assert world.state.next_change == world.now + 120
    assert world.wait(119) == ()
    assert changed(world.wait(1)) == [((0,), "unhealthy")]


@pytest.mark.parametrize(
    ("broken", "unknown"),
    [
        ({"ecc": EccCounts(memory=1)}, {"ecc": None}),
        ({"reset": ResetState.FAILED}, {"reset": None}),
        ({"unhealthy_components": frozenset({"hbm"})}, {"unhealthy_components": None}),
    ],
)
def test_p68_what_cannot_be_read_any_more_is_not_healed(broken: dict[str, Any], unknown: dict[str, Any]) -> None:
    world = World()
    world.see_first(**broken)
    assert world.see_first(**unknown) == ()
    assert list(world.state.unhealthy) == [0]
    assert world.state.next_change == math.inf
    assert changed(world.see_first()) == [((0,), "healthy")]


def test_a_further_fault_is_news_and_both_are_named() -> None:
    world = World()
    world.see_first(node=NodeState.ABSENT)
    transitions = world.see_first(node=NodeState.ABSENT, ecc=EccCounts(sram=1))
    assert transitions == (
        Transition((0,), Severity.UNHEALTHY, Severity.UNHEALTHY, "/dev/neuron0 is absent; 1 uncorrected SRAM error"),
    )


def test_p67_a_message_that_names_a_device_stops_that_device_for_an_hour() -> None:
    world = World()
    world.see_first()
    world.hear(error(1, at=world.now))
    assert changed(world.wait(0)) == [((1,), "unhealthy")]
    assert world.state.devices[1].verdict.reason == "kernel message NEURON_HW_ERR=DMA_ERROR"
    assert world.wait(HOUR - 1) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]
    assert world.wait(1) == ()


def test_p67_a_message_that_names_none_is_a_warning_on_all() -> None:
    world = World()
    world.see_first()
    world.hear(error(at=world.now))
    assert changed(world.wait(0)) == [((0, 1), "warning")]
    assert world.state.unhealthy == {}
    assert changed(world.wait(HOUR)) == [((0, 1), "healthy")]


def test_p67_a_device_that_is_not_here_is_as_good_as_none() -> None:
    world = World()
    world.see_first()
    world.hear(error(9, at=world.now))
    assert changed(world.wait(0)) == [((0, 1), "warning")]


def test_p67_a_hang_on_a_named_device_is_a_warning_on_that_device() -> None:
    world = World()
    world.see_first()
    world.hear(error(1, at=world.now, kind="HANG_ON_COLLECTIVES"))
    assert changed(world.wait(0)) == [((1,), "warning")]


def test_p67_a_line_that_a_process_wrote_is_believed_on_request_only() -> None:
    for trust, news in ((False, []), (True, [((1,), "unhealthy")])):
        world = World(HealthRules(trust_user_messages=trust))
        world.see_first()
        world.hear(error(1, at=world.now, by_kernel=False))
        assert changed(world.wait(0)) == news


def test_messages_from_before_the_daemon_count_as_if_it_had_been_there() -> None:
    world = World()
    world.see_first()
    world.hear(error(0, at=world.now - HOUR), error(1, at=world.now - HOUR + 100))
    assert changed(world.wait(0)) == [((1,), "unhealthy")]
    assert world.wait(99) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]


def test_p69_many_messages_are_little_news() -> None:
    world = World()
    world.see_first()
    news = 0
    for _ in range(2000):
        world.hear(error(1, at=world.now))
        news += len(world.wait(0))
        world.now += 1
    assert news == 1


@pytest.mark.parametrize(("serial", "unhealthy"), [(f"{1:016x}", [1]), ("ff", [])])
def test_p67_a_message_with_a_serial_number_stops_that_device_and_one_with_an_unknown_serial_number_none(
    serial: str, unhealthy: list[int]
) -> None:
    world = World()
    world.see_first()
    world.hear(replace(error(at=world.now), serial_number=serial))
    world.wait(0)
    assert list(world.state.unhealthy) == unhealthy
    assert world.state.devices[1].verdict.reason.startswith("kernel message NEURON_HW_ERR=DMA_ERROR")


def test_p67_a_baseline_belongs_to_a_serial_number() -> None:
    world = World(baseline={"aa": {"sram-ecc": 2}})
    assert changed(world.see(device(0, serial="bb", ecc=EccCounts(sram=2)), device(1, serial="aa"))) == [
        ((0,), "unhealthy")
    ]
    world = World(baseline={"aa": {"sram-ecc": 2}})
    assert world.see(device(0, serial="aa", ecc=EccCounts(sram=2)), device(1)) == ()


def test_a_serial_number_that_two_devices_give_is_none() -> None:
    world = World(baseline={"aa": {"sram-ecc": 2}})
    both = (device(0, serial="aa", ecc=EccCounts(sram=2)), device(1, serial="aa", ecc=EccCounts(sram=2)))
    assert changed(world.see(*both)) == [((0, 1), "unhealthy")]
    assert set(world.state.baseline) == {"aa", "neuron0", "neuron1"}


def test_p68_another_chip_in_the_same_place_begins_afresh() -> None:
    world = World()
    world.see_first(ecc=EccCounts(sram=1))
    assert changed(world.see(device(0, serial="ff"), device(1))) == [((0,), "healthy")]


def test_a_serial_number_that_cannot_be_read_just_now_is_no_other_chip() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    unnamed = replace(device(0, core_errors=(CoreErrors(0, hw_nc_ue_error=1),)), serial_number="")
    assert world.see(unnamed, device(1)) == ()
    assert list(world.state.unhealthy) == [0]


def test_p25_a_driver_reload_is_one_piece_of_news_each_way() -> None:
    world = World()
    world.see_first()
    assert world.see() == (Transition((0, 1), Severity.HEALTHY, Severity.UNHEALTHY, MISSING),)
    assert world.state.unhealthy == {0: MISSING, 1: MISSING}
    assert world.see_first() == (Transition((0, 1), Severity.UNHEALTHY, Severity.HEALTHY, ""),)


def test_p25_a_device_that_comes_back_unusable_says_why() -> None:
    world = World()
    world.see_first()
    skipped = SkippedDevice(DeviceId(1), "core_count reads 'x'")
    news = world.read(Inventory(devices=(device(0),), skipped=(skipped,)))
    assert [transition.reason for transition in news] == ["core_count reads 'x'"]


def test_p25_a_node_that_goes_and_comes_a_moment_apart_from_its_device_does_not_flap() -> None:
    world = World()
    world.see_first()
    world.see_first(node=NodeState.ABSENT)
    world.see(device(1))
    world.see_first(node=NodeState.ABSENT)
    assert changed(world.see_first()) == [((0,), "healthy")]


def test_p25_errors_that_are_counted_outlive_a_driver_reload_without_further_news() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    world.see()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    assert list(world.state.unhealthy) == [0]
    assert changed(world.wait(HOUR)) == [((0,), "healthy")]


def test_accepted_errors_survive_a_restart_of_the_daemon() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_error=5),))
    restarted = World(baseline=world.state.baseline)
    assert changed(restarted.see_first(core_errors=(CoreErrors(0, hw_error=6),))) == [((0,), "warning")]


def test_losing_the_memory_costs_no_wrong_verdict() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=6),), ecc=EccCounts(memory=1))
    assert [finding.signal for finding in world.state.devices[0].verdict.findings] == [Signal.MEMORY_ECC]


def test_p67_after_a_driver_reload_errors_count_from_zero_and_all_of_them_are_new() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=7),))
    world.see()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=2),))
    assert world.state.unhealthy == {0: "2 uncorrectable core errors on physical core 0"}


def test_p68_errors_after_a_driver_reload_hold_a_device_that_waits_for_quiet() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=5),))
    world.wait(HOUR / 2)
    world.see()
    world.see_first()
    world.wait(HOUR / 4)
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    world.wait(HOUR / 2)
    assert list(world.state.unhealthy) == [0]
    assert world.state.devices[0].verdict.reason == "1 uncorrectable core error on physical core 0"
    world.wait(HOUR / 2)
    assert world.state.unhealthy == {}


def test_p67_a_serial_number_that_comes_late_brings_what_is_known_under_it() -> None:
    """Firmware may answer only after the first look."""
    world = World(baseline={"aa": {"hw-nc-ue-error": 3, "sram-ecc": 2}})
    errors: dict[str, Any] = {"core_errors": (CoreErrors(0, hw_nc_ue_error=4),), "ecc": EccCounts(sram=2)}
    unnamed = replace(device(0, **errors), serial_number="")
    assert changed(world.see(unnamed, device(1))) == [((0,), "unhealthy")]
    world.see(device(0, serial="aa", **errors), device(1))
    assert world.state.devices[0].verdict.reason == "4 uncorrectable core errors on physical core 0, 3 of them old"


def test_p67_chips_that_come_back_under_each_others_numbers_bring_what_is_known_of_them() -> None:
    world = World()
    world.see(device(0, serial="aa", core_errors=(CoreErrors(0, hw_error=5),)), device(1, serial="bb"))
    world.see()
    world.see(device(0, serial="bb"), device(1, serial="aa", core_errors=(CoreErrors(0, hw_error=6),)))
    assert world.state.devices[1].verdict.reason == "6 hardware errors on physical core 0, 5 of them old"


def test_p83_serial_numbers_that_never_read_the_same_do_not_gather() -> None:
    world = World()
    for serial in range(MOST_DEVICES + 50):
        world.see(device(0, serial=f"{serial:x}", core_errors=(CoreErrors(0, hw_error=1),)))
    assert len(world.state.baseline) == MOST_DEVICES


def test_the_worst_signal_decides_and_is_named_first() -> None:
    world = World()
    world.see_first()
    world.see_first(
        core_errors=(CoreErrors(0, hw_error=1),),
        reset=ResetState.RESETTING,
        ecc=EccCounts(sram=1),
        node=NodeState.ABSENT,
    )
    verdict = world.state.devices[0].verdict
    assert verdict.severity is Severity.UNHEALTHY
    assert verdict.reason == "/dev/neuron0 is absent; 1 uncorrected SRAM error"
    assert [finding.severity for finding in verdict.findings] == [
        Severity.UNHEALTHY,
        Severity.UNHEALTHY,
        Severity.PASSING,
        Severity.WARNING,
    ]


def test_a_pending_condition_makes_a_device_wait_and_no_more() -> None:
    world = World()
    world.see_first(reset=ResetState.RESETTING)
    verdict = world.state.devices[0].verdict
    assert verdict == Verdict((Symptom(Signal.RESETTING, Severity.PASSING, "a reset is under way"),))
    assert verdict.healthy


def test_a_warning_that_is_only_pending_says_nothing() -> None:
    world = World(HealthRules(sram_ecc=SignalRule(action=Action.WARN, for_seconds=30)))
    assert world.see_first(ecc=EccCounts(sram=1)) == ()
    assert world.state.devices[0].verdict == Verdict()
    assert changed(world.wait(30)) == [((0,), "warning")]


def test_a_state_is_a_value_and_its_successor_leaves_it_alone() -> None:
    world = World()
    world.see_first()
    before = world.state
    devices = dict(before.devices)
    world.see_first(node=NodeState.ABSENT)
    assert before.unhealthy == {}
    assert before.devices == devices
    assert health_after(before, world.inventory, world.now, world.rules) == world.state
