"""The rules are those of kube-scheduler: what a real one has left to pods in random small clusters, or has chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planning.verdicts import compare, worlds

RECORDED = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "number"),
    [("verdicts", 2080), ("volumes-and-resources", 320), ("preferences", 320)],
    ids=["filters", "attach limits, ReadWriteOncePod and pod-level resources", "what pods prefer"],
)
def test_every_verdict_of_a_real_kube_scheduler_is_ours(name: str, number: int) -> None:
    recorded = worlds(RECORDED / f"scheduler-{name}.json.gz")
    assert [str(disagreement) for disagreement in compare(recorded)] == []
    assert sum(len(world["cases"]) for world in recorded["worlds"]) == number
