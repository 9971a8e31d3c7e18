"""The rules are those of kube-scheduler: what a real one has left to pods in random small clusters."""

from __future__ import annotations

from pathlib import Path

from tests.planning.verdicts import compare, worlds

RECORDED = Path(__file__).parent / "data" / "scheduler-verdicts.json.gz"


def test_every_verdict_of_a_real_kube_scheduler_is_ours() -> None:
    recorded = worlds(RECORDED)
    assert [str(disagreement) for disagreement in compare(recorded)] == []
    assert sum(len(world["cases"]) for world in recorded["worlds"]) == 2080
