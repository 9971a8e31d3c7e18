"""Signals in, verdicts and their changes out: faults, kernel messages, what goes and comes back, and settings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_plugin.hardware import Inventory, ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, HealthReadings, NodeState, SkippedDevice
from neuron_plugin.hardware.health_signals import Observation, Severity, Signal, Verdict
from neuron_plugin.hardware.kernel_log import KernelError
from neuron_plugin.plugin.health import (
    MOST_DEVICES,
    Action,
    Condition,
    HealthRules,
    Phase,
    Sighting,
    SignalRule,
    Transition,
    hold_seconds,
    judge_once,
    next_change,
    rule_of,
    step,
)
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError, as_yaml, load
from neuron_plugin.topology import DeviceId
from tests.plugin.health_world import HOUR, World, changed, device, device_of, error, machine
from tests.support.stories import rows

DEFAULTS = HealthRules()
OF_SRAM = {
    "sram-from-3": SignalRule(threshold=3),
    "sram-warns-after-30": SignalRule(action=Action.WARN, for_seconds=30),
    "sram-warns": SignalRule(action=Action.WARN),
    "sram-after-60": SignalRule(for_seconds=60),
    "sram-ignored": SignalRule(action=Action.IGNORE),
    "sram-only-new": SignalRule(only_new_errors=True),
}
RULES = {name: HealthRules(sram_ecc=one) for name, one in OF_SRAM.items()} | {
    "node-ignored": HealthRules(node=SignalRule(action=Action.IGNORE)),
    "processes-believed": HealthRules(trust_user_messages=True),
    "undamped": HealthRules(flapping_window_seconds=0),
}
MESSAGES: dict[str, KernelError] = {
    "message": error(1),
    "message-of-none": error(),
    "message-of-9": error(9),
    "hang": error(1, kind="HANG_ON_COLLECTIVES"),
    "by-a-process": error(1, by_kernel=False),
    "an-hour-ago": error(0, at=-HOUR),
    "100s-less-ago": error(1, at=100 - HOUR),
}
UE = "hw_nc_ue_error"
FAULTS = ("absent", "reset-failed", "sram=1", "memory=1", "component")
UNREAD = {"memory=1": "no-counters", "reset-failed": "no-reset", "component": "no-components"}
STORIES = [
    *rows("\n".join(f"p67 p68 {one}: sound; {one} -> 0 unhealthy; 5; sound -> 0 healthy; 0" for one in FAULTS)),
    *rows(
        "\n".join(
            f"p68 {one} cannot be read any more: {one} -> 0 unhealthy; {unread}; next never; 9999; sound -> 0 healthy"
            for one, unread in UNREAD.items()
        )
    ),
    *rows(f"""
    sound devices: sound; next never
    p67 uncorrectable errors of cores rise: {UE}=7; {UE}=8 -> 0 unhealthy; because 8 uncorrectable core errors
    p67 those of HBM: hw_hbm_ue_error=7; hw_hbm_ue_error=8 -> 0 unhealthy; because 8 uncorrectable HBM errors
    p67 other errors: hw_error=7; hw_error=8 -> 0 warning; because 8 hardware errors
    p67 aborted transfers: hw_dma_abort_error=7; hw_dma_abort_error=8 -> 0 warning; because 8 aborted DMA transfers
    p67 firmware's counters, each by itself:
        status=5; status=6 -> 0 warning; because 6 errors in health_status/b, 5 of them old
    p68 errors that stopped, and the next one:
        sound; {UE}=2 -> 0 unhealthy; next 3600; 3599; 1 -> 0 healthy; 3600; {UE}=3 -> 0 unhealthy;
        because 3 uncorrectable core errors on physical core 0, 2 of them old
    p67 a threshold: by sram-from-3; sram=2; sram=3 -> 0 unhealthy; because 3 uncorrected
    p68 a counter below its threshold:
        by sram-from-3; sram=5 -> 0 unhealthy; sram=2 -> 0 healthy; sram=3 -> 0 unhealthy; because 3 uncorrected
    errors at first sight are old: by sram-only-new; sram=2; sram=3 -> 0 unhealthy; because 3 uncorrected
    an ignored signal: by node-ignored; absent; next never; 3600
    p67 a reset that hangs: resetting; next 120; finds resetting passing; 119; 1 -> 0 unhealthy
    a warning that is pending: by sram-warns-after-30; sram=1; 29; 1 -> 0 warning; because 1 uncorrected
    p67 a message names a device: sound; message -> 1 unhealthy; 3599; 1 -> 1 healthy; 1
    p67 a message names none: sound; message-of-none -> 0,1 warning; 3600 -> 0,1 healthy
    p67 a device that is not here: sound; message-of-9 -> 0,1 warning; because kernel message
    p67 a hang: sound; hang -> 1 warning
    p67 a process wrote the line: sound; by-a-process
    p67 it is believed: by processes-believed; sound; by-a-process -> 1 unhealthy
    a message long before the daemon: sound; an-hour-ago
    a message before the daemon: sound; 100s-less-ago -> 1 unhealthy; 99; 1 -> 1 healthy
    p67 a message with a serial number stops that device:
        sound; message of {1:016x} -> 1 unhealthy; because1 kernel message NEURON_HW_ERR=DMA_ERROR
    p67 one with an unknown serial number stops none:
        sound; message of ff -> 0,1 warning; because1 kernel message NEURON_HW_ERR=DMA_ERROR
    p68 another chip in the same place: sram=1 -> 0 unhealthy; serial=ff -> 0 healthy
    p25 a node goes before its device:
        sound; absent -> 0 unhealthy; reload -> 0 unhealthy, 1 unhealthy; absent -> 0 unhealthy, 1 healthy;
        sound -> 0 healthy
    p25 errors outlive a driver reload:
        sound; {UE}=1 -> 0 unhealthy; reload -> 0 unhealthy, 1 unhealthy; {UE}=1 -> 0 unhealthy, 1 healthy;
        3600 -> 0 healthy
    p67 after a driver reload all errors are new:
        {UE}=7; reload -> 0,1 unhealthy; {UE}=2 -> 0 unhealthy, 1 healthy;
        because 2 uncorrectable core errors on physical core 0
    p68 errors after a reload, before it was quiet:
        sound; {UE}=5 -> 0 unhealthy; 1800; reload -> 0 unhealthy, 1 unhealthy; sound -> 0 unhealthy, 1 healthy; 900;
        {UE}=1 -> 0 unhealthy; 1800; 1800 -> 0 healthy
    p69 a device that comes and goes is held back as missing:
        sound; gone -> 0 unhealthy; sound -> 0 healthy; gone -> 0 unhealthy; 1; sound; because missing: the driver;
        10 -> 0 healthy
    p68 a power cycle takes counters and accepted errors back:
        accepted {0:016x} memory-ecc=4; memory=4; memory=0; memory=1 -> 0 unhealthy
    accepted errors survive a restart of the daemon: hw_error=5; restart; hw_error=6 -> 0 warning
    losing the memory costs no wrong verdict: {UE}=6 memory=1 -> 0 unhealthy; finds memory-ecc unhealthy
    p67 a baseline belongs to a serial number: accepted aa sram-ecc=2; sram=2 serial=bb / serial=aa -> 0 unhealthy
    p67 and counts for that: accepted aa sram-ecc=2; sram=2 serial=aa
    a serial number that two devices give is none:
        accepted aa sram-ecc=2; sram=2 serial=aa / sram=2 serial=aa -> 0,1 unhealthy; known aa neuron0 neuron1
    a serial number that cannot be read just now is no other chip: sound; {UE}=1 -> 0 unhealthy; {UE}=1 unnamed
    # Firmware may answer only after the first look.
    p67 a serial number that comes late brings what is known under it:
        accepted aa hw-nc-ue-error=3 sram-ecc=2; {UE}=4 sram=2 unnamed -> 0 unhealthy; {UE}=4 sram=2 serial=aa -> ?;
        because 4 uncorrectable core errors on physical core 0, 3 of them old
    p67 chips that come back under each other's numbers bring what is known of them:
        hw_error=5 serial=aa / serial=bb; reload -> 0,1 unhealthy; serial=bb / hw_error=6 serial=aa -> ?;
        because1 6 hardware errors on physical core 0, 5 of them old
    """),
]
"""What is seen of two devices, or how many seconds pass, and what is news then (``?``: whatever it is).

``because text``: how the reason of the first device begins, ``because1`` that of the second; ``next 3600``: in how
many seconds it is to be judged again; ``finds``: signals and severities of the first device; ``known``: the baseline.
"""


@pytest.mark.parametrize("steps", STORIES)
def test_what_is_seen_and_what_is_news(steps: str) -> None:
    world = World()
    for text in steps.split("; "):
        what, _, news = text.partition(" -> ")
        verb, _, rest = what.partition(" ")
        if verb == "by":
            world.rules = RULES[rest]
        elif verb == "accepted":
            world = World(world.rules, {rest.split()[0]: counts_of(rest.split()[1:])})
        elif verb == "restart":
            world = World(world.rules, world.state.baseline)
        elif verb.startswith("because"):
            assert world.state.devices[int(verb.removeprefix("because") or 0)].verdict.reason.startswith(rest)
        elif verb == "next":
            assert world.state.next_change == (math.inf if rest == "never" else world.now + float(rest))
        elif verb == "finds":
            assert found_in(world.state.devices[0].verdict) == rest
        elif verb == "known":
            assert {*world.state.baseline} == {*rest.split()}
        else:
            if verb in MESSAGES:
                heard = replace(MESSAGES[verb], at=world.now + MESSAGES[verb].at)
                if serial := rest.removeprefix("of "):
                    heard = replace(heard, devices=frozenset(), serial_number=serial)
                world.hear(heard)
                found = world.wait(0)
            elif verb == "reload":
                found = world.see()
            else:
                found = world.wait(int(what)) if what.isdecimal() else world.looks(what)
            assert news in {changed(found), "?"}, text
    for health in world.state.devices.values():
        verdict = health.verdict
        assert bool(verdict.reason) == (verdict.severity in {Severity.UNHEALTHY, Severity.WARNING, Severity.PASSING})


def counts_of(words: list[str]) -> dict[str, int]:
    return {name: int(count) for name, count in (word.split("=") for word in words)}


def found_in(verdict: Verdict) -> str:
    return ", ".join(f"{one.signal.value} {one.severity.name.lower()}" for one in verdict.findings)


def test_a_further_fault_is_news_and_both_are_named() -> None:
    world = World()
    world.looks("absent")
    assert world.looks("absent sram=1") == (
        Transition((0,), Severity.UNHEALTHY, Severity.UNHEALTHY, "/dev/neuron0 is absent; 1 uncorrected SRAM error"),
    )


def test_p25_a_device_that_comes_back_unusable_says_why() -> None:
    world = World()
    world.looks("sound")
    skipped = SkippedDevice(DeviceId(1), "core_count reads 'x'")
    news = world.read(Inventory(devices=(device(0),), skipped=(skipped,)))
    assert [transition.reason for transition in news] == ["core_count reads 'x'"]


def test_p69_many_messages_are_little_news() -> None:
    world = World()
    world.looks("sound")
    news = 0
    for _ in range(200):
        world.hear(error(1, at=world.now))
        news += len(world.wait(0))
        world.now += 1
    assert news == 1


def test_p83_serial_numbers_that_never_read_the_same_do_not_gather() -> None:
    world = World()
    for serial in range(MOST_DEVICES + 50):
        world.see(device_of(0, f"hw_error=1 serial={serial:x}"))
    assert len(world.state.baseline) == MOST_DEVICES


# What comes and goes.


def test_p69_resets_that_come_and_go_are_no_news() -> None:
    world = World()
    for _ in range(100):
        assert world.looks("resetting") == ()
        world.now += 5
        assert world.looks("sound") == ()


@pytest.mark.parametrize(("period", "hours"), [(1.0, 0.5), (5.0, 2.0), (30.0, 24.0)])
def test_p69_a_node_that_flaps_for_long_is_reported_a_bounded_number_of_times(period: float, hours: float) -> None:
    world = World()
    world.looks("sound")
    news, end = 0, world.now + hours * HOUR
    while world.now < end:
        for state in ("absent", "sound"):
            news += len(world.looks(state))
            world.now += period
    assert news <= 2 * (8 + hours * HOUR / 900)


def test_p69_damping_can_be_turned_off() -> None:
    world = World(RULES["undamped"])
    world.looks("sound")
    for _ in range(5):
        assert changed(world.looks("absent")) == "0 unhealthy"
        assert changed(world.looks("sound")) == "0 healthy"


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
        self.reported: dict[int, Severity] = {}

    def note(self, transitions: tuple[Transition, ...]) -> None:
        for transition in transitions:
            for number in transition.devices:
                assert self.reported.get(number, Severity.HEALTHY) is transition.before
                self.reported[number] = transition.after

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
        self.world.hear(error(*numbers, at=self.world.now, kind=kind))
        self.note(self.world.wait(0))

    @rule()
    def restart(self) -> None:
        now = self.world.now
        self.world = World(baseline=self.world.state.baseline)
        self.world.now = now
        self.reported = {}

    @invariant()
    def what_was_reported_is_what_is(self) -> None:
        for number, health in self.world.state.devices.items():
            if health.verdict.severity is not Severity.PASSING:
                assert self.reported.get(number, Severity.HEALTHY) is health.verdict.severity

    @invariant()
    def the_next_judgement_is_not_due_already(self) -> None:
        due = self.world.state.next_change
        assert due > self.world.now

    def teardown(self) -> None:
        self.world.see(device(0), device(1))
        for _ in range(4):
            self.world.wait(HOUR)
        self.world.see(device(0), device(1))
        for number, health in self.world.state.devices.items():
            assert health.verdict.severity is Severity.HEALTHY, (number, health)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(max_examples=60, stateful_step_count=25)


# One signal over time, step by step.

BROKEN = "firmware reports hbm unhealthy"


def sighted(at: float = 0.0) -> Sighting:
    return Sighting(BROKEN, at)


def counted(count: int, at: float) -> Sighting:
    return Sighting(Observation(Signal.HW_ERROR, "hardware error", count=count).worded(), at, count)


QUIET = "only-new keep=100"
STEPS = rows(f"""
    what is not seen: => 0 - none; 1 - none
    p67 without a delay: => 0 seen firing 1
    a signal that lasts: for=30 => 0 seen pending; 29 seen pending; 30 seen firing 1
    a signal that did not last: for=30 => 0 seen pending; 10 - none; 20 seen pending; 49 seen pending; 50 seen firing 1
    p68 the cause is gone for its time: keep=60 => 0 seen firing; 10 seen firing; 69 - firing; 70 - resolved
    p68 without such a time: => 0 seen firing; 1 - resolved
    p69 back within the window, and held longer:
        => 0 seen firing; 1 - resolved; 2 seen firing 2; 3 - firing 2; 11.9 - firing; 12 - resolved
    p69 back after the window: => 0 seen firing; 1 - resolved; 601 seen firing 1
    forgotten after the window: => 0 seen firing; 1 - resolved; 600 - resolved; 601 - none
    watched again, and counted on:
        for=5 => 0 seen pending; 5 seen firing 1; 6 - resolved; 7 seen pending; 8 - resolved; 9 seen pending;
        14 seen firing 2
    p68 errors that stand still: {QUIET} => 0 3 firing; 99 3 firing; 100 3 resolved
    p68 a further error: {QUIET} => 0 3 firing; 90 4 firing; 189 4 firing; 190 4 resolved
    errors that stand still while they are watched: for=30 {QUIET} => 0 3 pending; 10 3 pending; 30 3 firing
    an old message counts from its own time: {QUIET} => 1000 1@950 firing; 1049 1@950 firing; 1050 1@950 resolved
""")
"""A rule; then at each time what is seen (``-``: nothing, a number: errors), and the phase, and how often it fired."""


def a_rule(text: str) -> SignalRule:
    times = {name: float(seconds) for name, _, seconds in (word.partition("=") for word in text.split()) if seconds}
    return SignalRule(
        only_new_errors="only-new" in text,
        for_seconds=times.get("for", 0.0),
        keep_firing_for_seconds=times.get("keep", 0.0),
    )


@pytest.mark.parametrize(("policy", "steps"), STEPS)
def test_one_signal_over_time(policy: str, steps: str) -> None:
    condition = None
    for text in steps.split("; "):
        now, what, phase, *fired = text.split(" ")
        count, _, since = what.partition("@")
        at = float(since or now)
        sight = None if what == "-" else sighted(at) if what == "seen" else counted(int(count), at)
        condition = step(condition, sight, a_rule(policy), DEFAULTS, float(now))
        assert (condition.phase.name.lower() if condition else "none") == phase, text
        assert not fired or (condition and condition.times_fired == int(fired[0])), text
        assert what != "seen" or (condition and condition.text == BROKEN), text


def test_p69_errors_that_go_on_are_news_when_they_have_doubled() -> None:
    texts = []
    condition = None
    for count in range(1, 1001):
        condition = step(condition, counted(count, count), SignalRule(), DEFAULTS, float(count))
        if condition and condition.text not in texts:
            texts.append(condition.text)
    assert texts == ["1 hardware error", *(f"{2**power} hardware errors" for power in range(1, 10))]


NEXT = rows(f"""
    it fires when it has lasted: PENDING seen => for=30 => 130
    it ends when the cause has been gone: FIRING gone => keep=50 => 150
    it does not end by itself: FIRING seen => keep=50 => inf
    errors that stand still end: FIRING seen => {QUIET} => 200
    nothing comes of what is over: RESOLVED gone => => inf
    # Such a signal is seen or not; with no time to recover its next change would be now, for ever.
    waiting for quiet without a count is no reason to look again at once: SEEN seen => only-new => inf
    it is one when the signal has gone: SEEN gone => only-new => 0
""")
"""The phase of a condition since 100, and whether it is seen; a rule; and when it changes next."""


@pytest.mark.parametrize(("is_in", "policy", "expected"), NEXT)
def test_the_time_of_the_next_change_is_known(is_in: str, policy: str, expected: str) -> None:
    phase, _, seen = is_in.partition(" ")
    condition = step(None, sighted(0), a_rule(policy), DEFAULTS, 0)
    if phase != "SEEN":
        condition = Condition(Phase[phase], "", since=100.0, last_seen=100.0, times_fired=1, count=1)
    assert condition
    assert next_change(condition, a_rule(policy), seen=seen == "seen") == float(expected)


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=400))
def test_p69_whatever_flaps_the_changes_are_bounded_by_the_logarithm_of_time(moments: list[tuple[float, bool]]) -> None:
    by, condition, now, changes = SignalRule(), None, 0.0, 0
    for pause, is_seen in moments:
        now += pause
        before = condition is not None and condition.phase is Phase.FIRING
        condition = step(condition, sighted(now) if is_seen else None, by, DEFAULTS, now)
        changes += before != (condition is not None and condition.phase is Phase.FIRING)
    lasted = max(now, 10.0)
    assert changes <= 2 * (3 + math.log2(lasted / 10.0) + lasted / 900.0)


# One reading, judged by a node's own rules and what its daemon has saved.

ONCE = rows(f"""
    what is wrong is named worst first:
        absent resetting repairable=1 => node unhealthy, resetting passing, repairable-ecc warning
    the default: sram=2 => sram-ecc unhealthy
    a warning: by sram-warns; sram=2 => sram-ecc warning
    what has to last: by sram-after-60; sram=2 => sram-ecc passing
    what is ignored: by sram-ignored; sram=2 =>
    too few: by sram-from-3; sram=2 =>
    p67 the node: absent => node unhealthy
    p67 a reset: reset-failed => reset-failed unhealthy
    p67 on-chip memory: sram=1 => sram-ecc unhealthy
    p67 memory: memory=1 => memory-ecc unhealthy
    p67 a component: component => components unhealthy
    p67 what can be repaired: repairable=1 => repairable-ecc warning
    # Errors that only count by rising may be old where no earlier count is known.
    p67 cores: {UE}=4 => hw-nc-ue-error warning which may be old
    p67 HBM: hw_hbm_ue_error=2 => hw-hbm-ue-error warning which may be old
    p67 transfers: hw_dma_abort_error=2 => hw-dma-abort-error warning which may be old
    p67 others: hw_error=2 => hw-error warning which may be old
    p67 resets: reset_fail_count=2 => reset-failures warning which may be old
    p67 firmware: status=4 => health-status warning, health-status warning which may be old
    p67 a reset under way: resetting => resetting passing
    what the daemon has accepted is no error: accepted hw-nc-ue-error=4; {UE}=4 =>
    and what came after is: accepted hw-nc-ue-error=3; {UE}=4 => hw-nc-ue-error unhealthy
""")
NOT_OF_A_DEVICE = {Signal.MISSING, Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED, Signal.FAILED_STARTS}
"""Signals that are not seen on a device the driver lists."""


@pytest.mark.parametrize(("text", "expected"), ONCE)
def test_p67_each_signal_is_found_alone_and_with_its_severity(text: str, expected: str) -> None:
    *said, seen = text.split("; ")
    rules = next((RULES[one[3:]] for one in said if one.startswith("by ")), DEFAULTS)
    accepted = {f"{0:016x}": counts_of(one.split()[1:]) for one in said if one.startswith("accepted")}
    verdict = judge_once(machine(device_of(0, seen)), rules, accepted)[DeviceId(0)]
    may_be_old = bool(verdict.findings) and verdict.findings[0].text.endswith(", which may be old")
    assert found_in(verdict) + " which may be old" * may_be_old == expected
    assert verdict.healthy is ("unhealthy" not in expected)
    assert bool(verdict.reason) == bool(expected)


def test_every_signal_of_a_device_has_a_row_here_that_shows_it() -> None:
    shown = {str(row.values[1]).split(" ")[0] for row in ONCE if str(row.id).startswith("p67 ")}
    assert shown | NOT_OF_A_DEVICE == set(Signal)


def test_a_product_without_health_attributes_is_sound() -> None:
    bare = replace(device(3), health=HealthReadings())
    assert judge_once(machine(bare), DEFAULTS, {})[DeviceId(3)] == Verdict()


# What signals mean by default and in a file.


def of_file(directory: Path, text: str) -> PluginSettings:
    (directory / "plugin.yaml").write_text(text)
    return load(PluginSettings, {}, {}, directory / "plugin.yaml")


@pytest.mark.parametrize("signal", sorted(set(Signal) - {Signal.MISSING}))
def test_p67_every_signal_but_a_missing_device_can_be_set_by_its_name(tmp_path: Path, signal: Signal) -> None:
    settings = of_file(tmp_path, f"health: {{{signal.value}: {{action: ignore}}}}\n").health
    assert rule_of(settings, signal).action is Action.IGNORE
    assert rule_of(settings, Signal.MISSING) == rule_of(DEFAULTS, Signal.MISSING)


def test_a_missing_device_cannot_be_called_healthy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown field `missing`"):
        of_file(tmp_path, "health: {missing: {action: ignore}}\n")
    assert rule_of(DEFAULTS, Signal.MISSING).action is Action.UNHEALTHY


def test_a_threshold_alone_leaves_the_rest_of_a_policy(tmp_path: Path) -> None:
    rules = of_file(tmp_path, "health: {hw-nc-ue-error: {threshold: 3}}\n").health
    policy = rule_of(rules, Signal.NC_UNCORRECTABLE)
    assert policy == msgspec.structs.replace(rule_of(DEFAULTS, Signal.NC_UNCORRECTABLE), threshold=3)
    assert policy.only_new_errors


def test_the_printed_policies_read_back(tmp_path: Path) -> None:
    assert of_file(tmp_path, as_yaml(PluginSettings())) == PluginSettings()


def test_p67_a_line_that_names_no_device_does_not_take_a_node_out_by_default() -> None:
    assert rule_of(DEFAULTS, Signal.KERNEL_MESSAGE_UNNAMED).action is Action.WARN
    assert rule_of(DEFAULTS, Signal.KERNEL_MESSAGE).action is Action.UNHEALTHY
    assert not DEFAULTS.trust_user_messages


def test_a_message_fires_at_once_whatever_the_file_says() -> None:
    settings = HealthRules(kernel_message=SignalRule(for_seconds=30, keep_firing_for_seconds=60))
    policy = rule_of(settings, Signal.KERNEL_MESSAGE)
    assert (policy.for_seconds, policy.keep_firing_for_seconds) == (0, 60)


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [(0, [0, 10, 20, 40, 80, 160, 320, 640, 900, 900]), (60, [60, 60, 120, 240, 480]), (3600, [3600, 3600, 3600])],
)
def test_p69_a_signal_that_comes_back_is_held_twice_as_long_each_time_up_to_a_limit(
    seconds: float, holds: list[float]
) -> None:
    rule = SignalRule(keep_firing_for_seconds=seconds)
    assert [hold_seconds(rule, falls) for falls in range(1, len(holds) + 1)] == holds
    assert hold_seconds(rule, 10**9) == max(900, seconds)


@pytest.mark.parametrize(
    "name", ["NeuronHealth", "Ready", "MemoryPressure", "NetworkUnavailable", "AcceleratedHardwareReady"]
)
def test_a_node_condition_that_somebody_else_writes_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"node-condition is '{name}', which .* writes: choose another name"):
        check(PluginSettings(node_condition=name))
    with pytest.raises(SettingsError, match=f"ready-condition is '{name}', which .* writes: choose another name"):
        check(PluginSettings(ready_condition=name))


def test_one_condition_cannot_say_two_things() -> None:
    with pytest.raises(SettingsError, match="node-condition and ready-condition are both 'Neuron': expected two names"):
        check(PluginSettings(node_condition="Neuron", ready_condition="Neuron"))


def test_no_node_condition_is_kept_by_default() -> None:
    assert PluginSettings().node_condition == PluginSettings().ready_condition == ""
    check(PluginSettings(node_condition="NeuronDevicesHealthy", ready_condition="NeuronDevicesReady"))
