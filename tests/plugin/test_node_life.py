"""Random lives of a node, by counts and by claims, with the orders, restarts and outages that a real one sees.

``NODE_LIFE_STEPS`` says how many steps in all (`nox -s soak` takes a million). Each life has its own seed, and a
violation names it. `NODE_LIFE_STEPS=1000000 pytest tests/plugin/test_node_life.py -k 'two_live_pods and life-17-'`
lives that one again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin import life_claims
from tests.plugin.life import live
from tests.plugin.life_cluster import VirtualLoop
from tests.plugin.life_plugin import Mode
from tests.plugin.world import INF2, LINE, TRN1, TRN2

STEPS = int(os.environ.get("NODE_LIFE_STEPS", "10000"))
STEPS_OF_A_LIFE = 2_000 if "NODE_LIFE_STEPS" in os.environ else 1_000

MODES = (
    Mode(TRN1),
    Mode(LINE, extender=False),
    Mode(INF2, lag_seconds=0.3),
    Mode(LINE, cluster=False, extender=False),
    Mode(LINE, sees_cgroups=False),
    Mode(TRN2, logical_core_size=2, lag_seconds=0.1),
    Mode(INF2, cluster=False, extender=False, inotify=False),
    Mode(LINE, sees_processes=False, lag_seconds=0.1),
    Mode(INF2, numa=True, extender=False),
    Mode(LINE, lag_seconds=1.0),
)

EVENTS = {"bound", "given", "static", "deleted by force", "kubelet restart", "plugin kill", "broken and counted"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log lines of so many steps are of no use."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(max(1, STEPS // STEPS_OF_A_LIFE)), ids=lambda seed: f"life-{seed}-")
def test_p45_p57_to_p66_no_core_is_in_two_live_pods_and_at_rest_everything_says_the_same(seed: int) -> None:
    mode = MODES[seed % len(MODES)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        life = runner.run(live(mode, seed, STEPS_OF_A_LIFE))

    assert set(life.seen) >= EVENTS, "a life in which nothing happens shows nothing"
    assert life.seen["rest"] > 0, "a life that never comes to rest compares nothing"


CLAIM_STEPS = int(os.environ.get("NODE_LIFE_STEPS", "6000"))
CLAIM_STEPS_OF_A_LIFE = 2_000
LAGS = (0.02, 0.3, 1.0)
CLAIM_EVENTS = {"bound", "deleted by force", "prepared", "waited", "half-failed", "kubelet restart", "plugin kill"}


@pytest.mark.parametrize("seed", range(max(1, CLAIM_STEPS // CLAIM_STEPS_OF_A_LIFE)), ids=lambda seed: f"life-{seed}-")
def test_no_core_belongs_to_two_claims_of_live_pods(seed: int, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        life = runner.run(life_claims.live(seed, tmp_path, CLAIM_STEPS_OF_A_LIFE, LAGS[seed % len(LAGS)]))

    assert set(life.seen) >= CLAIM_EVENTS, "a life in which nothing happens shows nothing"
