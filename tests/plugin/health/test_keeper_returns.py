"""Devices, drivers and daemons that go and come back, and what is known of them then."""

from __future__ import annotations

from typing import Any

from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.memory import MOST_DEVICES, DeviceMemory, Memory
from neuron_plugin.plugin.health.policy import Baseline, HealthSettings, Recovery, SignalPolicy
from neuron_plugin.plugin.health.status import Status

from neuron_plugin.hardware import MISSING, EccCounts, Inventory, ResetState, Signal, SkippedDevice
from neuron_plugin.hardware.device import CoreErrors, NodeState
from neuron_plugin.topology import DeviceId
from tests.plugin.health.world import HOUR, World, changed, device


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
