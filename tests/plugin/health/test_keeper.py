"""The keeper of verdicts: signals in, verdicts and their changes out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.memory import DeviceMemory, Memory
from neuron_plugin.plugin.health.policy import Action, Baseline, HealthSettings, SignalPolicy
from neuron_plugin.plugin.health.status import Status

from neuron_plugin.hardware import EccCounts, ResetState
from neuron_plugin.hardware.device import CoreErrors, NodeState
from tests.plugin.health.world import HOUR, World, changed


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


def test_p67_a_threshold_lets_some_errors_pass() -> None:
    world = World(HealthSettings(sram_ecc=SignalPolicy(threshold=3)))
    assert world.see_first(ecc=EccCounts(sram=2)) == ()
    assert changed(world.see_first(ecc=EccCounts(sram=3))) == [((0,), "unhealthy")]


def test_p68_a_counter_that_fell_below_its_threshold_begins_anew_from_its_baseline() -> None:
    world = World(HealthSettings(sram_ecc=SignalPolicy(threshold=3)))
    news = [changed(world.see_first(ecc=EccCounts(sram=count))) for count in (5, 2, 3)]
    assert news[:2] == [[((0,), "unhealthy")], [((0,), "healthy")]]
    assert list(world.keeper.unhealthy) == [0]


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


def test_a_further_fault_is_news_and_both_are_named() -> None:
    world = World()
    world.see_first(node=NodeState.ABSENT)
    transitions = world.see_first(node=NodeState.ABSENT, ecc=EccCounts(sram=1))
    assert transitions == (
        Transition((0,), Status.UNHEALTHY, Status.UNHEALTHY, "/dev/neuron0 is absent; 1 uncorrected SRAM error"),
    )
