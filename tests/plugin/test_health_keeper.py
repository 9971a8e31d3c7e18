"""The keeper of verdicts: signals in, verdicts and their changes out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.health import Signal
from neuron_plugin.hardware.records import CoreErrors, EccCounts, Inventory, NodeState, SkippedDevice
from neuron_plugin.plugin.health import Status
from neuron_plugin.plugin.health_keeper import Transition
from neuron_plugin.plugin.health_memory import MOST_DEVICES, DeviceMemory, Memory
from neuron_plugin.plugin.health_policy import Action, Baseline, HealthSettings, Recovery, SignalPolicy
from neuron_plugin.plugin.machine import MISSING
from neuron_plugin.topology.geometry import DeviceId
from tests.plugin.health_world import World, device, error

HOUR = 3600.0


def changed(transitions: tuple[Transition, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(transition.devices, transition.after.value) for transition in transitions]


def test_sound_devices_are_no_news() -> None:
    world = World()
    assert world.see_first() == ()
    assert world.keeper.unhealthy == {}
    assert {health.status for health in world.keeper.devices.values()} == {Status.HEALTHY}
    assert world.keeper.next_change == math.inf


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
    assert list(world.keeper.unhealthy) == [0]
    world.now += 5
    assert changed(world.see_first()) == [((0,), "healthy")]
    assert world.keeper.unhealthy == {}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("hw_nc_ue_error", Status.UNHEALTHY),
        ("hw_hbm_ue_error", Status.UNHEALTHY),
        ("hw_error", Status.WARNING),
        ("hw_dma_abort_error", Status.WARNING),
    ],
)
def test_p67_errors_of_a_core_count_when_they_rise(name: str, status: Status) -> None:
    world = World()
    assert world.see_first(core_errors=(CoreErrors(0, **{name: 7}),)) == ()
    assert changed(world.see_first(core_errors=(CoreErrors(0, **{name: 8}),))) == [((0,), status.value)]


def test_p67_firmwares_counters_warn_when_they_rise_each_by_itself() -> None:
    world = World()
    world.see_first(status_counts=(("a", 1), ("b", 5)))
    assert changed(world.see_first(status_counts=(("a", 1), ("b", 6)))) == [((0,), "warning")]
    assert world.keeper.devices[0].reason == "6 errors in health_status/b, 5 of them old"


def test_p68_errors_that_stopped_are_accepted_after_the_quiet_time_and_the_next_one_counts_again() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=2),))
    assert world.keeper.next_change == world.now + HOUR
    assert changed(world.wait(HOUR)) == [((0,), "healthy")]
    assert world.wait(HOUR) == ()
    assert changed(world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=3),))) == [((0,), "unhealthy")]
    assert world.keeper.devices[0].reason == "3 uncorrectable core errors on physical core 0, 2 of them old"


def test_p68_a_power_cycle_takes_counters_and_accepted_errors_back() -> None:
    known = Memory({f"{0:016x}": DeviceMemory(accepted={"memory-ecc": 4})})
    world = World(memory=known)
    assert world.see_first(ecc=EccCounts(memory=4)) == ()
    assert world.see_first(ecc=EccCounts(memory=0)) == ()
    assert changed(world.see_first(ecc=EccCounts(memory=1))) == [((0,), "unhealthy")]


def test_p67_a_baseline_belongs_to_a_serial_number() -> None:
    world = World(memory=Memory({"aa": DeviceMemory(accepted={"sram-ecc": 2})}))
    assert changed(world.see(device(0, serial="bb", ecc=EccCounts(sram=2)), device(1, serial="aa"))) == [
        ((0,), "unhealthy")
    ]
    world = World(memory=Memory({"aa": DeviceMemory(accepted={"sram-ecc": 2})}))
    assert world.see(device(0, serial="aa", ecc=EccCounts(sram=2)), device(1)) == ()


def test_a_serial_number_that_two_devices_give_is_none() -> None:
    world = World(memory=Memory({"aa": DeviceMemory(accepted={"sram-ecc": 2})}))
    both = (device(0, serial="aa", ecc=EccCounts(sram=2)), device(1, serial="aa", ecc=EccCounts(sram=2)))
    assert changed(world.see(*both)) == [((0, 1), "unhealthy")]
    assert set(world.keeper.memory.devices) == {"aa", "neuron0", "neuron1"}


def test_p68_another_chip_in_the_same_place_begins_anew() -> None:
    world = World()
    world.see_first(ecc=EccCounts(sram=1))
    assert changed(world.see(device(0, serial="ff"), device(1))) == [((0,), "healthy")]


def test_a_serial_number_that_cannot_be_read_just_now_is_no_other_chip() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    assert world.see(device(0, serial="neuron0", core_errors=(CoreErrors(0, hw_nc_ue_error=1),)), device(1)) == ()
    assert list(world.keeper.unhealthy) == [0]


def test_p67_a_threshold_lets_some_errors_pass() -> None:
    world = World(HealthSettings(sram_ecc=SignalPolicy(threshold=3)))
    assert world.see_first(ecc=EccCounts(sram=2)) == ()
    assert changed(world.see_first(ecc=EccCounts(sram=3))) == [((0,), "unhealthy")]


def test_a_baseline_may_be_what_is_there_at_first_sight() -> None:
    world = World(HealthSettings(sram_ecc=SignalPolicy(baseline=Baseline.FIRST_SIGHT)))
    assert world.see_first(ecc=EccCounts(sram=2)) == ()
    assert changed(world.see_first(ecc=EccCounts(sram=3))) == [((0,), "unhealthy")]


def test_an_ignored_signal_says_nothing() -> None:
    world = World(HealthSettings(node=SignalPolicy(action=Action.IGNORE)))
    assert world.see_first(node=NodeState.ABSENT) == ()
    assert world.keeper.next_change == math.inf


def test_p67_a_reset_under_way_is_waited_for_and_only_one_that_hangs_is_told() -> None:
    world = World()
    assert world.see_first(reset=ResetState.RESETTING) == ()
    assert world.keeper.devices[0].status is Status.WAITING
    assert world.keeper.next_change == world.now + 120
    assert world.wait(119) == ()
    assert changed(world.wait(1)) == [((0,), "unhealthy")]


def test_p69_resets_that_come_and_go_are_no_news() -> None:
    world = World()
    for _ in range(100):
        assert world.see_first(reset=ResetState.RESETTING) == ()
        world.now += 5
        assert world.see_first() == ()


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
    assert list(world.keeper.unhealthy) == [0]
    assert world.keeper.next_change == math.inf
    assert changed(world.see_first()) == [((0,), "healthy")]


def test_p25_a_driver_reload_is_one_piece_of_news_each_way() -> None:
    world = World()
    world.see_first()
    assert world.see() == (Transition((0, 1), Status.HEALTHY, Status.UNHEALTHY, MISSING),)
    assert world.keeper.unhealthy == {0: MISSING, 1: MISSING}
    assert world.see_first() == (Transition((0, 1), Status.UNHEALTHY, Status.HEALTHY, ""),)


def test_p25_a_device_that_comes_back_unusable_says_why() -> None:
    world = World()
    world.see_first()
    skipped = SkippedDevice(DeviceId(1), "core_count reads 'x'")
    world.keeper.look(Inventory(devices=(device(0),), skipped=(skipped,)))
    assert [transition.reason for transition in world.keeper.judge()] == ["core_count reads 'x'"]


def test_p69_a_device_that_comes_and_goes_is_held_back_as_missing() -> None:
    world = World()
    world.see_first()
    world.see(device(1))
    assert changed(world.see_first()) == [((0,), "healthy")]
    world.see(device(1))
    world.now += 1
    assert world.see_first() == ()
    assert world.keeper.unhealthy == {0: MISSING}
    assert changed(world.wait(10)) == [((0,), "healthy")]


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
    assert list(world.keeper.unhealthy) == [0]
    assert changed(world.wait(HOUR)) == [((0,), "healthy")]


LATCHED = HealthSettings(
    hw_nc_ue_error=SignalPolicy(baseline=Baseline.FIRST_SIGHT, recovery=Recovery.RELOAD),
    reset_failed=SignalPolicy(recovery=Recovery.RELOAD),
)


def test_p68_what_waits_for_a_reload_is_over_when_the_device_has_gone_and_come_back() -> None:
    world = World(LATCHED)
    world.see_first()
    world.see_first(reset=ResetState.FAILED, core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    world.wait(10 * HOUR)
    assert list(world.keeper.unhealthy) == [0]
    world.see(device(1))
    assert changed(world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))) == [((0,), "healthy")]


def test_p68_what_waits_for_a_reload_survives_a_restart_of_the_daemon() -> None:
    world = World(LATCHED)
    world.see_first(reset=ResetState.FAILED)
    restarted = World(LATCHED, world.keeper.memory)
    assert changed(restarted.see_first()) == [((0,), "unhealthy")]
    restarted.see(device(1))
    assert changed(restarted.see_first()) == [((0,), "healthy")]


def test_accepted_errors_survive_a_restart_of_the_daemon() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_error=5),))
    restarted = World(memory=world.keeper.memory)
    assert changed(restarted.see_first(core_errors=(CoreErrors(0, hw_error=6),))) == [((0,), "warning")]


def test_losing_the_memory_costs_no_wrong_verdict() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=6),), ecc=EccCounts(memory=1))
    assert [cause.signal for cause in world.keeper.devices[0].causes] == [Signal.MEMORY_ECC]


def test_a_memory_of_what_no_policy_latches_any_more_is_passed_over() -> None:
    known = {f"{0:016x}": DeviceMemory(latched={"node/absent": "x", "no-such-signal": "y"})}
    assert World(memory=Memory(known)).see_first() == ()


def test_p67_a_message_that_names_a_device_stops_that_device_for_an_hour() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(1, at=world.now))
    assert changed(world.keeper.judge()) == [((1,), "unhealthy")]
    assert world.keeper.devices[1].reason == "1 kernel message of NEURON_HW_ERR=DMA_ERROR"
    assert world.wait(HOUR - 1) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]


def test_p67_a_message_that_names_none_is_a_warning_on_all() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(at=world.now))
    assert changed(world.keeper.judge()) == [((0, 1), "warning")]
    assert world.keeper.unhealthy == {}
    assert changed(world.wait(HOUR)) == [((0, 1), "healthy")]


def test_p67_a_device_that_is_not_here_is_as_good_as_none() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(9, at=world.now))
    assert changed(world.keeper.judge()) == [((0, 1), "warning")]


def test_p67_a_hang_on_a_named_device_is_a_warning_on_that_device() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(1, at=world.now, kind="HANG_ON_COLLECTIVES"))
    assert changed(world.keeper.judge()) == [((1,), "warning")]


def test_p67_a_line_that_a_process_wrote_is_believed_on_request_only() -> None:
    for trust, news in ((False, []), (True, [((1,), "unhealthy")])):
        world = World(HealthSettings(trust_user_messages=trust))
        world.see_first()
        world.keeper.kernel_error(error(1, at=world.now, by_kernel=False))
        assert changed(world.keeper.judge()) == news


def test_messages_from_before_the_daemon_count_as_if_it_had_been_there() -> None:
    world = World()
    world.keeper.kernel_error(error(0, at=world.now - HOUR))
    world.keeper.kernel_error(error(1, at=world.now - HOUR + 100))
    assert changed(world.see_first()) == [((1,), "unhealthy")]
    assert world.wait(99) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]


def test_messages_wait_for_the_first_device_and_not_for_the_first_look() -> None:
    world = World()
    world.keeper.kernel_error(error(1, at=world.now))
    assert world.see() == ()
    assert changed(world.see_first()) == [((1,), "unhealthy")]


def test_old_messages_do_not_latch_again_what_a_reload_has_ended() -> None:
    policy = SignalPolicy(recovery=Recovery.RELOAD)
    world = World(HealthSettings(kernel_message=policy))
    world.keeper.kernel_error(error(1, at=world.now - 1))
    assert world.see_first() == ()


def test_messages_count_towards_a_threshold_while_they_come_close_together() -> None:
    policy = SignalPolicy(threshold=2, recovery=Recovery.QUIET, recover_after_seconds=60)
    world = World(HealthSettings(kernel_message=policy))
    world.see_first()
    for pause, news in ((0, []), (61, []), (59, [((1,), "unhealthy")])):
        world.now += pause
        world.keeper.kernel_error(error(1, at=world.now))
        assert changed(world.keeper.judge()) == news


def test_p69_many_messages_are_little_news() -> None:
    world = World()
    world.see_first()
    news = 0
    for _ in range(2000):
        world.keeper.kernel_error(error(1, at=world.now))
        news += len(world.keeper.judge())
        world.now += 1
    assert news <= 12  # told when the count has doubled


@pytest.mark.parametrize(("period", "hours"), [(1.0, 0.5), (5.0, 2.0), (30.0, 24.0)])
def test_p69_a_node_that_flaps_for_long_is_told_a_bounded_number_of_times(period: float, hours: float) -> None:
    world = World()
    world.see_first()
    news = 0
    end = world.now + hours * HOUR
    while world.now < end:
        news += len(world.see_first(node=NodeState.ABSENT))
        world.now += period
        news += len(world.see_first())
        world.now += period
    assert news <= 2 * (8 + hours * HOUR / 900)


def test_p69_damping_can_be_turned_off() -> None:
    world = World(HealthSettings(flapping_window_seconds=0))
    world.see_first()
    for _ in range(5):
        assert changed(world.see_first(node=NodeState.ABSENT)) == [((0,), "unhealthy")]
        assert changed(world.see_first()) == [((0,), "healthy")]


def test_a_further_fault_is_news_and_both_are_named() -> None:
    world = World()
    world.see_first(node=NodeState.ABSENT)
    transitions = world.see_first(node=NodeState.ABSENT, ecc=EccCounts(sram=1))
    assert transitions == (
        Transition((0,), Status.UNHEALTHY, Status.UNHEALTHY, "/dev/neuron0 is absent; 1 uncorrected SRAM error"),
    )


faults = st.fixed_dictionaries(
    {},
    optional={
        "node": st.sampled_from([NodeState.ABSENT, NodeState.STALE, NodeState.PRESENT]),
        "reset": st.sampled_from([None, *ResetState]),
        "ecc": st.one_of(st.none(), st.builds(EccCounts, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))),
        "unhealthy_components": st.sampled_from([None, frozenset(), frozenset({"hbm"}), frozenset({"hbm", "sram"})]),
        "core_errors": st.sampled_from([(), (CoreErrors(0, 1),), (CoreErrors(0, 1, 2),), (CoreErrors(0),)]),
        "serial": st.sampled_from(["aa", "bb", ""]),
    },
)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order: verdicts follow, and in the end everything heals by its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.told: dict[int, Status] = {}

    def note(self, transitions: tuple[Transition, ...]) -> None:
        for transition in transitions:
            for number in transition.devices:
                assert self.told.get(number, Status.HEALTHY) is transition.before
                self.told[number] = transition.after

    @rule(first=faults, both=st.booleans())
    def look(self, first: dict[str, Any], both: bool) -> None:  # noqa: FBT001 - drawn
        self.note(self.world.see(device(0, **first), *([device(1)] if both else [])))

    @rule()
    def unload(self) -> None:
        self.note(self.world.see())

    @rule(seconds=st.floats(0.1, 5000))
    def wait(self, seconds: float) -> None:
        self.note(self.world.wait(seconds))

    @rule(numbers=st.sets(st.integers(0, 2)), kind=st.sampled_from(["DMA_ERROR", "HANG_ON_COLLECTIVES"]))
    def message(self, numbers: set[int], kind: str) -> None:
        self.world.keeper.kernel_error(error(*numbers, at=self.world.now, kind=kind))
        self.note(self.world.keeper.judge())

    @rule()
    def restart(self) -> None:
        now = self.world.now
        self.world = World(memory=self.world.keeper.memory)
        self.world.now = now
        self.told = {}

    @invariant()
    def what_was_told_is_what_is(self) -> None:
        for number, health in self.world.keeper.devices.items():
            if health.status is not Status.WAITING:
                assert self.told.get(number, Status.HEALTHY) is health.status

    @invariant()
    def the_next_judgement_is_not_due_already(self) -> None:
        assert self.world.keeper.next_change > self.world.now

    def teardown(self) -> None:
        self.world.see(device(0), device(1))
        for _ in range(4):
            self.world.wait(HOUR)
        self.world.see(device(0), device(1))
        for number, health in self.world.keeper.devices.items():
            assert health.status is Status.HEALTHY, (number, health)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(deadline=None, max_examples=60, stateful_step_count=25)


def test_p67_after_a_driver_reload_errors_count_from_zero_and_all_of_them_are_new() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=7),))
    world.see()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=2),))
    assert world.keeper.unhealthy == {0: "2 uncorrectable core errors on physical core 0"}


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
    assert list(world.keeper.unhealthy) == [0]
    assert world.keeper.devices[0].reason == "1 uncorrectable core error on physical core 0"
    world.wait(HOUR / 2)
    assert world.keeper.unhealthy == {}


def test_p67_a_serial_number_that_comes_late_brings_what_is_known_under_it() -> None:
    """Firmware may answer only after the first look."""
    known = DeviceMemory(accepted={"hw-nc-ue-error": 3, "sram-ecc": 2})
    world = World(memory=Memory({"aa": known}))
    errors: dict[str, Any] = {"core_errors": (CoreErrors(0, hw_nc_ue_error=4),), "ecc": EccCounts(sram=2)}
    assert changed(world.see(device(0, serial="neuron0", **errors), device(1))) == [((0,), "unhealthy")]
    world.see(device(0, serial="aa", **errors), device(1))
    assert world.keeper.devices[0].reason == "4 uncorrectable core errors on physical core 0, 3 of them old"
    assert "aa" in world.keeper.memory.devices
    assert "neuron0" not in world.keeper.memory.devices


def test_p67_what_waits_for_a_reload_is_taken_up_under_a_serial_number_that_comes_late() -> None:
    settings = HealthSettings(reset_failed=SignalPolicy(recovery=Recovery.RELOAD))
    world = World(settings, Memory({"aa": DeviceMemory(latched={"reset-failed": "it failed"})}))
    world.see(device(0, serial="neuron0"), device(1))
    assert changed(world.see(device(0, serial="aa"), device(1))) == [((0,), "unhealthy")]


def test_p67_chips_that_come_back_under_each_others_numbers_bring_what_is_known_of_them() -> None:
    world = World()
    world.see(device(0, serial="aa", core_errors=(CoreErrors(0, hw_error=5),)), device(1, serial="bb"))
    world.see()
    world.see(device(0, serial="bb"), device(1, serial="aa", core_errors=(CoreErrors(0, hw_error=6),)))
    assert world.keeper.devices[1].reason == "6 hardware errors on physical core 0, 5 of them old"


def test_p83_serial_numbers_that_never_read_the_same_do_not_gather() -> None:
    world = World()
    for serial in range(MOST_DEVICES + 50):
        world.see(device(0, serial=f"{serial:x}", core_errors=(CoreErrors(0, hw_error=1),)))
    assert len(world.keeper.memory.devices) == MOST_DEVICES


@pytest.mark.parametrize(("serial", "unhealthy"), [(f"{1:016x}", [1]), ("ff", [])])
def test_p67_a_message_with_a_serial_number_stops_that_device_and_one_with_a_strangers_none(
    serial: str, unhealthy: list[int]
) -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(replace(error(at=world.now), serial_number=serial))
    world.keeper.judge()
    assert list(world.keeper.unhealthy) == unhealthy
    assert world.keeper.devices[1].reason.startswith("1 kernel message of NEURON_HW_ERR=DMA_ERROR")
