"""Random lives of a node, with the orders, repetitions and restarts that a real one sees."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from neuron_plugin.topology.geometry import Geometry
from tests.plugin.node_life import SHAPES, NodeLife
from tests.plugin.world import INF2, LINE, TRN1

GEOMETRIES = [TRN1, INF2, LINE]


class NodeLives(RuleBasedStateMachine):
    """What may happen, in any order."""

    life: NodeLife

    @initialize(geometry=st.sampled_from(GEOMETRIES), seed=st.integers(0, 2**16))
    def begin(self, geometry: Geometry, seed: int) -> None:
        self.life = NodeLife(geometry, seed)

    @rule(shape=st.integers(0, len(SHAPES) - 1), by_extender=st.booleans())
    def bind(self, shape: int, by_extender: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        self.life.bind(SHAPES[shape], by_extender=by_extender)

    @rule(shape=st.integers(0, len(SHAPES) - 1), count=st.integers(2, 3))
    def bind_equal_ones(self, shape: int, count: int) -> None:
        for _ in range(count):
            self.life.bind(SHAPES[shape], by_extender=True)

    @precondition(lambda self: any(not live.admitted for live in self.life.pods.values()))
    @rule(data=st.data(), cut_off=st.sampled_from([False, False, False, True]), settle=st.booleans())
    def admit(self, data: st.DataObject, cut_off: bool, settle: bool) -> None:  # noqa: FBT001 - as above
        waiting = [name for name, live in self.life.pods.items() if not live.admitted]
        self.life.admit(data.draw(st.sampled_from(waiting)), cut_off=cut_off)
        if settle:
            self.life.confirm()

    @precondition(lambda self: self.life.pods)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.life.end(data.draw(st.sampled_from(list(self.life.pods))))

    @rule()
    def confirm(self) -> None:
        self.life.confirm()

    @precondition(lambda self: self.life.can_restart)
    @rule(list_first=st.booleans())
    def restart_plugin(self, list_first: bool) -> None:  # noqa: FBT001 - as above
        self.life.restart_plugin(list_first=list_first)

    @invariant()
    def no_silicon_is_shared_and_all_is_on_the_books(self) -> None:
        self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.finish()


NodeLives.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestNodeLives = NodeLives.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_long_lives_share_no_silicon_and_leave_nothing_behind(seed: int) -> None:
    live_long(seed, steps=150)


def live_long(seed: int, steps: int) -> None:
    chance = Random(seed)  # noqa: S311 - a test's choice
    life = NodeLife(GEOMETRIES[seed % len(GEOMETRIES)], seed)
    for _ in range(steps):
        step(life, chance)
        life.check()
    life.finish()


def step(life: NodeLife, chance: Random) -> None:
    waiting = [name for name, live in life.pods.items() if not live.admitted]
    match chance.randrange(12):
        case 0 | 1 | 2:
            life.bind(chance.choice(SHAPES), by_extender=chance.random() < 0.7)
        case 3:
            shape = chance.choice(SHAPES)
            for _ in range(2):
                life.bind(shape, by_extender=True)
        case 4 | 5 | 6 | 7 if waiting:
            life.admit(chance.choice(waiting), cut_off=chance.random() < 0.15)
        case 8 | 9 if life.pods:
            life.end(chance.choice(list(life.pods)))
        case 10 if life.can_restart and chance.random() < 0.4:
            life.restart_plugin(list_first=chance.random() < 0.5)
        case _:
            life.confirm()
