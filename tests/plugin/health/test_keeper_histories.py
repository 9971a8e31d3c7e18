"""What comes and goes, and whatever else may happen in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.policy import HealthSettings
from neuron_plugin.plugin.health.status import Status

from neuron_plugin.hardware import MISSING, EccCounts, ResetState
from neuron_plugin.hardware.device import CoreErrors, NodeState
from tests.plugin.health.world import HOUR, World, changed, device, error


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
    assert world.keeper.unhealthy == {0: MISSING}
    assert changed(world.wait(10)) == [((0,), "healthy")]


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
