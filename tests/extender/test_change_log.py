from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.extender import change_log
from neuron_plugin.extender.change_log import ChangeLog
from tests.extender.world import DEVICE, World


def observed(world: World, start: int = 100) -> ChangeLog:
    log = ChangeLog(start)
    world.state.observe(log)
    return log


def test_versions_rise_by_one_with_every_change_and_belong_to_their_objects(world: World) -> None:
    log = observed(world)
    assert log.version == 100
    world.node("node", "trn1.32xlarge")
    pod = world.held("pod", "node", DEVICE, "0")
    uid = pod["metadata"]["uid"]

    assert log.version == 103
    assert log.version_of("node") == 102
    assert log.version_of(uid) == 103
    world.gone(pod)
    assert log.version_of(uid) == 100


def test_changes_after_a_version_are_told_in_order_with_both_sides(world: World) -> None:
    log = observed(world)
    world.node("a", "trn1.32xlarge")
    world.node("b", "trn1.32xlarge")
    world.state.remove_node("a", world.state.nodes["a"].facts.uid)

    told = [(change.version, change.before is None, change.after is None) for change in log.after(100)]

    assert told == [(101, True, False), (102, True, False), (103, False, True)]
    assert log.after(103) == []


@pytest.mark.parametrize(("version", "known"), [(99, False), (100, True), (102, True), (103, False)])
def test_a_version_of_another_process_is_not_known(world: World, version: int, *, known: bool) -> None:
    log = observed(world)
    world.node("a", "trn1.32xlarge")
    world.node("b", "trn1.32xlarge")

    assert log.knows(version) is known


def test_the_oldest_changes_are_forgotten_and_no_gap_goes_unnoticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "MOST_CHANGES", 3)
    log = observed(world, start=0)
    for number in range(10):
        world.node(f"node-{number}", "trn1.32xlarge")
        for version in range(log.version + 1):
            assert log.knows(version) is (log.version - version <= 3)
            if log.knows(version):
                told = [change.version for change in log.after(version)]
                assert told == list(range(version + 1, log.version + 1))


async def test_news_wake_every_waiter_and_silence_ends_by_the_clock(world: World) -> None:
    log = observed(world)
    waiters = [asyncio.create_task(log.news(100, within_seconds=10)) for _ in range(3)]
    await asyncio.sleep(0)

    world.node("node", "trn1.32xlarge")
    await asyncio.wait_for(asyncio.gather(*waiters), 1)
    await asyncio.wait_for(log.news(100, within_seconds=10), 1)
    await asyncio.wait_for(log.news(101, within_seconds=0.001), 1)


async def test_waking_without_news_lets_watchers_see_that_the_server_stops(world: World) -> None:
    log = observed(world)
    waiter = asyncio.create_task(log.news(100, within_seconds=10))
    await asyncio.sleep(0)

    log.wake()

    await asyncio.wait_for(waiter, 1)
    assert log.version == 100
