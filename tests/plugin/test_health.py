"""Signals in, verdicts and their changes out: faults, kernel messages, and what goes and comes back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.hardware import Inventory, ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState, SkippedDevice
from neuron_plugin.hardware.health_signals import Severity, Signal
from neuron_plugin.hardware.kernel_log import KernelError
from neuron_plugin.plugin.health import MOST_DEVICES, Action, HealthRules, SignalRule, Transition
from neuron_plugin.topology import DeviceId
from tests.plugin.health_world import HOUR, World, changed, device, error

FAULTS: dict[str, dict[str, Any]] = {
    "absent": {"node": NodeState.ABSENT},
    "reset-failed": {"reset": ResetState.FAILED},
    "sram=1": {"ecc": EccCounts(sram=1)},
    "memory=1": {"ecc": EccCounts(memory=1)},
    "component": {"unhealthy_components": frozenset({"link_host"})},
}
UNREAD: dict[str, dict[str, Any]] = {
    "memory=1": {"ecc": None},
    "reset-failed": {"reset": None},
    "component": {"unhealthy_components": None},
}
SEEN: dict[str, dict[str, Any] | KernelError | None] = {
    **FAULTS,
    **{f"{name}-unread": unread for name, unread in UNREAD.items()},
    "sound": {},
    "reload": None,
    "resetting": {"reset": ResetState.RESETTING},
    "another-chip": {"serial": "ff"},
    "message": error(1),
    "message-of-none": error(),
    "message-of-9": error(9),
    "hang": error(1, kind="HANG_ON_COLLECTIVES"),
    "by-a-process": error(1, by_kernel=False),
    "an-hour-ago": error(0, at=-HOUR),
    "100s-less-ago": error(1, at=100 - HOUR),
}
RULES = HealthRules()
ECC3 = HealthRules(sram_ecc=SignalRule(threshold=3))
ECC_LATER = HealthRules(sram_ecc=SignalRule(action=Action.WARN, for_seconds=30))
IGNORED, NEW_ECC = (
    HealthRules(node=SignalRule(action=Action.IGNORE)),
    HealthRules(sram_ecc=SignalRule(only_new_errors=True)),
)
UE, WARN = ("hw_nc_ue_error", "hw_hbm_ue_error"), ("hw_error", "hw_dma_abort_error")
STORIES = {
    "sound devices": (RULES, "sound", ""),
    **{f"p67 p68 {name}": (RULES, f"sound; {name} -> 0 unhealthy; 5; sound -> 0 healthy; 0", "") for name in FAULTS},
    **{
        f"p68 {name} cannot be read any more": (
            RULES,
            f"{name} -> 0 unhealthy; {name}-unread; 9999; sound -> 0 healthy",
            "",
        )
        for name in UNREAD
    },
    **{f"p67 {name} rises": (RULES, f"{name}=7; {name}=8 -> 0 unhealthy", "8 ") for name in UE},
    **{f"p67 {name} rises": (RULES, f"{name}=7; {name}=8 -> 0 warning", "8 ") for name in WARN},
    "p67 firmware's counters, each by itself": (
        RULES,
        "status=5; status=6 -> 0 warning",
        "6 errors in health_status/b, 5 of them old",
    ),
    "p68 errors that stopped, and the next one": (
        RULES,
        f"sound; {UE[0]}=2 -> 0 unhealthy; 3599; 1 -> 0 healthy; 3600; {UE[0]}=3 -> 0 unhealthy",
        "3 uncorrectable core errors on physical core 0, 2 of them old",
    ),
    "p67 a threshold": (ECC3, "sram=2; sram=3 -> 0 unhealthy", "3 "),
    "p68 a counter below its threshold": (
        ECC3,
        "sram=5 -> 0 unhealthy; sram=2 -> 0 healthy; sram=3 -> 0 unhealthy",
        "3 ",
    ),
    "errors at first sight are old": (NEW_ECC, "sram=2; sram=3 -> 0 unhealthy", "3 "),
    "an ignored signal": (IGNORED, "absent; 3600", ""),
    "p67 a reset that hangs": (RULES, "resetting; 119; 1 -> 0 unhealthy", ""),
    "a warning that is pending": (ECC_LATER, "sram=1; 29; 1 -> 0 warning", "1 "),
    "p67 a message names a device": (RULES, "sound; message -> 1 unhealthy; 3599; 1 -> 1 healthy; 1", ""),
    "p67 a message names none": (RULES, "sound; message-of-none -> 0,1 warning; 3600 -> 0,1 healthy", ""),
    "p67 a device that is not here": (RULES, "sound; message-of-9 -> 0,1 warning", "kernel message "),
    "p67 a hang": (RULES, "sound; hang -> 1 warning", ""),
    "p67 a process wrote the line": (RULES, "sound; by-a-process", ""),
    "p67 it is believed": (HealthRules(trust_user_messages=True), "sound; by-a-process -> 1 unhealthy", ""),
    "a message long before the daemon": (RULES, "sound; an-hour-ago", ""),
    "a message before the daemon": (RULES, "sound; 100s-less-ago -> 1 unhealthy; 99; 1 -> 1 healthy", ""),
    "p68 another chip in the same place": (RULES, "sram=1 -> 0 unhealthy; another-chip -> 0 healthy", ""),
    "p25 a node goes before its device": (
        RULES,
        (
            "sound; absent -> 0 unhealthy; reload -> 0 unhealthy, 1 unhealthy; absent -> 0 unhealthy, 1 healthy; "
            "sound -> 0 healthy"
        ),
        "",
    ),
    "p25 errors outlive a driver reload": (
        RULES,
        (
            f"sound; {UE[0]}=1 -> 0 unhealthy; reload -> 0 unhealthy, 1 unhealthy; "
            f"{UE[0]}=1 -> 0 unhealthy, 1 healthy; 3600 -> 0 healthy"
        ),
        "",
    ),
    "p67 after a driver reload all errors are new": (
        RULES,
        f"{UE[0]}=7; reload -> 0,1 unhealthy; {UE[0]}=2 -> 0 unhealthy, 1 healthy",
        "2 uncorrectable core errors on physical core 0",
    ),
    "p68 errors after a reload, before it was quiet": (
        RULES,
        (
            f"sound; {UE[0]}=5 -> 0 unhealthy; 1800; reload -> 0 unhealthy, 1 unhealthy; "
            f"sound -> 0 unhealthy, 1 healthy; 900; {UE[0]}=1 -> 0 unhealthy; 1800; 1800 -> 0 healthy"
        ),
        "",
    ),
}
"""What is seen of the first device, or how many seconds pass, and what is news then; at the end why it is unhealthy."""


def seen_as(what: str) -> dict[str, Any] | KernelError | None:
    name, _, count = what.partition("=")
    if what in SEEN:
        return SEEN[what]
    if name == "sram":
        return {"ecc": EccCounts(sram=int(count))}
    if name == "status":
        return {"status_counts": (("a", 1), ("b", int(count)))}
    return {"core_errors": (CoreErrors(0, **{name: int(count)}),)}


@pytest.mark.parametrize(("rules", "steps", "reason"), STORIES.values(), ids=STORIES)
def test_what_is_seen_and_what_is_news(rules: HealthRules, steps: str, reason: str) -> None:
    world = World(rules)
    for step in steps.split("; "):
        what, _, news = step.partition(" -> ")
        seen = None if what.isdecimal() else seen_as(what)
        if isinstance(seen, dict):
            found = world.see_first(**seen)
        elif isinstance(seen, KernelError):
            world.hear(replace(seen, at=world.now + seen.at))
            found = world.wait(0)
        else:
            found = world.wait(int(what)) if what.isdecimal() else world.see()
        assert ", ".join(f"{format_ids(devices)} {after}" for devices, after in changed(found)) == news, step
    verdict = world.state.devices[0].verdict
    assert verdict.reason.startswith(reason)
    assert bool(verdict.reason) == (verdict.severity in {Severity.UNHEALTHY, Severity.WARNING})


def test_when_to_look_again_is_known() -> None:
    world = World()
    world.see_first()
    assert world.state.next_change == math.inf
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=2),))
    assert world.state.next_change == world.now + HOUR
    world.see_first(reset=ResetState.RESETTING)
    assert world.state.next_change == world.now + 120
    assert world.state.devices[0].verdict.findings[-1].severity is Severity.PASSING
    for name, unread in UNREAD.items():
        broken = World()
        broken.see_first(**FAULTS[name])
        broken.see_first(**unread)
        assert broken.state.next_change == math.inf
    ignoring = World(IGNORED)
    ignoring.see_first(**FAULTS["absent"])
    assert ignoring.state.next_change == math.inf


def test_p68_a_power_cycle_takes_counters_and_accepted_errors_back() -> None:
    world = World(baseline={f"{0:016x}": {"memory-ecc": 4}})
    assert world.see_first(ecc=EccCounts(memory=4)) == ()
    assert world.see_first(ecc=EccCounts(memory=0)) == ()
    assert changed(world.see_first(ecc=EccCounts(memory=1))) == [((0,), "unhealthy")]


def test_a_further_fault_is_news_and_both_are_named() -> None:
    world = World()
    world.see_first(node=NodeState.ABSENT)
    transitions = world.see_first(node=NodeState.ABSENT, ecc=EccCounts(sram=1))
    assert transitions == (
        Transition((0,), Severity.UNHEALTHY, Severity.UNHEALTHY, "/dev/neuron0 is absent; 1 uncorrected SRAM error"),
    )


def test_p69_many_messages_are_little_news() -> None:
    world = World()
    world.see_first()
    news = 0
    for _ in range(200):
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


def test_a_serial_number_that_cannot_be_read_just_now_is_no_other_chip() -> None:
    world = World()
    world.see_first()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=1),))
    unnamed = replace(device(0, core_errors=(CoreErrors(0, hw_nc_ue_error=1),)), serial_number="")
    assert world.see(unnamed, device(1)) == ()
    assert list(world.state.unhealthy) == [0]


def test_p25_a_device_that_comes_back_unusable_says_why() -> None:
    world = World()
    world.see_first()
    skipped = SkippedDevice(DeviceId(1), "core_count reads 'x'")
    news = world.read(Inventory(devices=(device(0),), skipped=(skipped,)))
    assert [transition.reason for transition in news] == ["core_count reads 'x'"]


def test_accepted_errors_survive_a_restart_of_the_daemon() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_error=5),))
    restarted = World(baseline=world.state.baseline)
    assert changed(restarted.see_first(core_errors=(CoreErrors(0, hw_error=6),))) == [((0,), "warning")]


def test_losing_the_memory_costs_no_wrong_verdict() -> None:
    world = World()
    world.see_first(core_errors=(CoreErrors(0, hw_nc_ue_error=6),), ecc=EccCounts(memory=1))
    assert [finding.signal for finding in world.state.devices[0].verdict.findings] == [Signal.MEMORY_ECC]


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
