"""Random lives of a node, with the orders, repetitions, restarts and outages that a real one sees.

``NODE_LIFE_STEPS`` says how many steps in all (`nox -s soak` takes a million); each life has its own seed, and a
violation names it: `NODE_LIFE_STEPS=1000000 pytest tests/plugin/test_node_life.py -k 'life-17-'` lives that one again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.plugin.life_base import Mode
from tests.plugin.node_life import live
from tests.plugin.world import INF2, LINE, TRN1

STEPS = int(os.environ.get("NODE_LIFE_STEPS", "100000"))
STEPS_OF_A_LIFE = 12_500

MODES = (
    Mode(TRN1, extender=True),
    Mode(LINE),
    Mode(INF2, extender=True, lag=0.2),
    Mode(LINE, cluster=False),
    Mode(LINE, extender=True, sees_processes=False),
    Mode(TRN1, lag=0.2),
    Mode(INF2, cluster=False, lag=0.2),
    Mode(LINE, extender=True, reads_records=False),
)

EVENTS = {"admitted", "deleted by force", "health flip", "kubelet restart", "outage", "plugin kill"}
OF_AN_EXTENDER = {"bind bound", "got its set"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A hundred thousand steps log a hundred thousand lines, and nobody reads them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(STEPS // STEPS_OF_A_LIFE), ids=lambda seed: f"life-{seed}-")
async def test_p45_p57_to_p66_no_core_has_two_live_holders_and_at_rest_everybody_says_the_same(seed: int) -> None:
    mode = MODES[seed % len(MODES)]

    life = await live(mode, seed, STEPS_OF_A_LIFE)

    expected = EVENTS | (OF_AN_EXTENDER if mode.extender else set())
    assert expected <= set(life.seen), "a life in which nothing happens shows nothing"
    assert life.seen["admitted"] > 200
