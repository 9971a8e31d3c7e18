"""Placement by gates where everything goes wrong: no core twice, no group torn, nobody forgotten."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from neuron_plugin.allocation import Rejection
from neuron_plugin.allocation.keys import GATE
from tests.placement.gates.model import GROUP, RING, Model, gates_of

STEPS = int(os.environ.get("GATES_STEPS", "2500"))
SEEDS = 8


async def at_once(function: Callable[..., object], *arguments: object, **named: object) -> object:
    return function(*arguments, **named)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_core_is_promised_twice_and_nobody_waits_who_fits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    model = Model(seed)
    for _ in range(STEPS // SEEDS):
        await model.step()
    await model.settle()

    groups: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    replica = model.leader
    assert replica
    for name, pod in model.pods.items():
        if group := pod["metadata"].get("annotations", {}).get(GROUP):
            groups[group][bool(gates_of(pod))] += 1
        elif gates_of(pod):
            waiting = replica.state.pods[pod["metadata"]["uid"]]
            assert waiting.rules.gates == (GATE,)
            best = replica.state.scene().best(waiting)
            assert best is None, f"{name} fits {best} and waits"
            assert not isinstance(waiting.request, Rejection)
    for kept in replica.state.reserved.values():
        if kept.lent_below is not None:
            holders = replica.state.nodes[kept.node].ledger.by_pod
            lent_to = [replica.state.pods[uid] for uid in holders if uid in replica.state.pods]
            assert all(one.movable and not one.group and one.priority < kept.lent_below for one in lent_to), kept
    # A lost pod of the ring may wait by itself.
    torn = {group for group, states in groups.items() if group != RING and states[True] and states[False]}
    assert not {group for group in torn if is_torn(model, group)}
    assert not replica.state.assumed


def is_torn(model: Model, group: str) -> bool:
    """Whether a group is torn though all its members are there: deleted ones may leave it incomplete."""
    members = [pod for pod in model.pods.values() if pod["metadata"].get("annotations", {}).get(GROUP) == group]
    size = int(members[0]["metadata"]["annotations"][f"{GROUP}-size"])
    return len(members) >= size
