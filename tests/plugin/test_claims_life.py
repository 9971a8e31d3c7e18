"""Random lives of a node with claims; see ``test_node_life``, whose variable also says how many steps these take."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.life_claims import live
from tests.plugin.life_cluster import VirtualLoop

STEPS = int(os.environ.get("NODE_LIFE_STEPS", "6000"))
STEPS_OF_A_LIFE = 2_000
LAGS = (0.02, 0.3, 1.0)
EVENTS = {"bound", "deleted by force", "prepared", "waited", "half-failed", "kubelet restart", "plugin kill"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log lines of so many steps are of no use."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(max(1, STEPS // STEPS_OF_A_LIFE)), ids=lambda seed: f"life-{seed}-")
def test_no_core_belongs_to_two_claims_of_live_pods(seed: int, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        life = runner.run(live(seed, tmp_path, STEPS_OF_A_LIFE, LAGS[seed % len(LAGS)]))

    assert set(life.seen) >= EVENTS, "a life in which nothing happens shows nothing"
