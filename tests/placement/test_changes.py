"""The latest changes of a state, numbered: what watches of the monitor API and the queue of pods go by."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInfo
from neuron_plugin.placement import changes as changes_module
from tests.support.world import DEVICE, World

TRN1 = "trn1.32xlarge"


def test_changes_are_numbered_and_repetitions_are_none(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("pod", "node", DEVICE, "0")
    world.show(pod)
    world.gone(pod)
    world.gone(pod)

    changes = world.state.changes.after(0)
    assert [(type(each.after or each.before), each.before is not None, each.after is not None) for each in changes] == [
        (NodeInfo, False, True),
        (NodeInfo, True, True),
        (NeuronPod, False, True),
        (NodeInfo, True, True),
        (NeuronPod, True, False),
    ]


@pytest.fixture
def numbered() -> World:
    return World(version=100)


def test_versions_rise_by_one_with_every_change_and_belong_to_their_objects(numbered: World) -> None:
    changes = numbered.state.changes
    assert changes.version == 100
    numbered.node("node", TRN1)
    pod = numbered.held("pod", "node", DEVICE, "0")
    uid = pod["metadata"]["uid"]

    assert changes.version == 103
    assert changes.version_of("node") == 102
    assert changes.version_of(uid) == 103
    numbered.gone(pod)
    assert changes.version_of(uid) == 100


def test_changes_after_a_version_come_in_order_with_both_sides(numbered: World) -> None:
    numbered.node("a", TRN1)
    numbered.node("b", TRN1)
    numbered.state.remove_node("a", numbered.state.nodes["a"].node.uid)

    after = numbered.state.changes.after(100)

    assert [(change.version, change.before is None, change.after is None) for change in after] == [
        (101, True, False),
        (102, True, False),
        (103, False, True),
    ]
    assert numbered.state.changes.after(103) == []


@pytest.mark.parametrize(("version", "known"), [(99, False), (100, True), (102, True), (103, False)])
def test_a_version_of_another_process_is_not_known(numbered: World, version: int, *, known: bool) -> None:
    numbered.node("a", TRN1)
    numbered.node("b", TRN1)

    assert numbered.state.changes.knows(version) is known


def test_the_oldest_changes_are_forgotten_and_no_gap_goes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "MOST_CHANGES", 3)
    world = World()
    changes = world.state.changes
    for number in range(10):
        world.node(f"node-{number}", TRN1)
        for version in range(changes.version + 1):
            assert changes.knows(version) is (changes.version - version <= 3)
            if changes.knows(version):
                after = [change.version for change in changes.after(version)]
                assert after == list(range(version + 1, changes.version + 1))


async def test_a_change_wakes_every_waiter_and_silence_ends_by_the_clock(numbered: World) -> None:
    changes = numbered.state.changes
    waiters = [asyncio.create_task(changes.wait(100, within_seconds=10)) for _ in range(3)]
    await asyncio.sleep(0)

    numbered.node("node", TRN1)
    await asyncio.wait_for(asyncio.gather(*waiters), 1)
    await asyncio.wait_for(changes.wait(100, within_seconds=10), 1)
    await asyncio.wait_for(changes.wait(101, within_seconds=0.001), 1)


async def test_waking_without_a_change_lets_watchers_see_that_the_server_stops(numbered: World) -> None:
    changes = numbered.state.changes
    waiter = asyncio.create_task(changes.wait(100, within_seconds=10))
    await asyncio.sleep(0)

    changes.wake()

    await asyncio.wait_for(waiter, 1)
    assert changes.version == 100
