"""What comes and goes, and whatever else may happen in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_plugin.hardware import ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState
from neuron_plugin.hardware.health_signals import MISSING, Severity
from neuron_plugin.plugin.health import HealthRules, Transition
from tests.plugin.health_world import HOUR, World, changed, device, error


def test_p69_resets_that_come_and_go_are_no_news() -> None:
    world = World()
    for _ in range(100):
        assert world.see_first(reset=ResetState.RESETTING) == ()
        world.now += 5
        assert world.see_first() == ()


def test_p69_a_device_that_comes_and_goes_is_held_back_as_missing() -> None:
    world = World()
    world.see_first()
    world.see(device(1))
    assert changed(world.see_first()) == [((0,), "healthy")]
    world.see(device(1))
    world.now += 1
    assert world.see_first() == ()
    assert world.state.unhealthy == {0: MISSING}
    assert changed(world.wait(10)) == [((0,), "healthy")]


@pytest.mark.parametrize(("period", "hours"), [(1.0, 0.5), (5.0, 2.0), (30.0, 24.0)])
def test_p69_a_node_that_flaps_for_long_is_reported_a_bounded_number_of_times(period: float, hours: float) -> None:
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
    world = World(HealthRules(flapping_window_seconds=0))
    world.see_first()
    for _ in range(5):
        assert changed(world.see_first(node=NodeState.ABSENT)) == [((0,), "unhealthy")]
        assert changed(world.see_first()) == [((0,), "healthy")]


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
