"""The node's inputs: what a watcher replaces is in the next snapshot, and the kubelet's file is read when it is new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from neuron_plugin.allocation import PodUid, Resource
from neuron_plugin.kubelet import PodDevices
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.node import NODE_TIMES, LocalNode, NodeOptions
from neuron_plugin.topology import NO_CORES
from tests.plugin.desk import FakeCgroups, LoopClock, MemoryKubelet, Story, a_desk, running, tell
from tests.plugin.world import CORE, DEVICE, NEURON, STATIC_UID, TRN1, app, devices, inputs, inventory, pod
from tests.support.model_kubelet import checkpoint_file
from tests.support.stories import rows


def used(node: LocalNode) -> int:
    assert node.snapshot
    return node.snapshot.ledger.used_mask


@pytest.mark.looptime
async def test_before_the_first_device_there_is_no_snapshot_and_nothing_fails() -> None:
    story = Story(inputs(), {"unlisted"})
    await story.play("look; again; restart; pod a app:1; unknown a=1; offered 1; listed; answer 1; due no")
    story.node.advertise()
    assert story.node.snapshot is None
    assert not story.node.recorded.entries


async def test_an_unreadable_file_is_logged_once_and_takes_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_desk() as desk:
        await desk.play("record static=3; blind; blind; blind; has static=3")
        assert desk.node.recorded.unreadable == "a future format"
        await desk.play("see; has static=3")
        assert not desk.node.recorded.unreadable
    assert [record.message for record in caplog.records] == [
        "checkpoint not readable, asking PodResources instead",
        "checkpoint readable again",
    ]


async def test_the_cgroup_of_a_pod_that_is_known_by_its_name_alone_cannot_be_seen() -> None:
    async with a_desk() as desk:
        assert desk.node.is_populated(PodUid("default/static")) is None
        assert desk.node.is_populated(STATIC_UID) is False


# What files, lists, answers and time lead to.

BLIND = "blind | a init:2 app:2"
STORIES = rows(f"""
    p61 the first snapshot knows what the kubelet has recorded: => record a=3; start; has a=3
    a snapshot is the same until an input changes:
        a app:1 => start; news yes; breaks; look; again; news no; breaks 3; news yes
    a file is read only when its version is another:
        => start; reads 1; look; reads 0; record a=3; look; reads 1; has a=3; blind; reads 1; look; reads 0
    a file that is lost takes nothing from a live pod: a app:1 => record a=3; lose; has a=3
    p61 a pod that runs without a record counts by its annotation: a app:1=3 started => has a=3
    # PodResources in place of the file.
    p61 what is listed counts for the pod of that name: {BLIND} => listed a=3 static=5 gpu=7; has a=3 static=5
    what is no longer listed is over, unless the API server says that it lives:
        {BLIND} => listed a=3 static=5; wait 10; listed; has a=3
    what was given is known from our own answers and kept:
        {BLIND} => answer 3>2; listed a=3; has a=2; pending 0; wait 1; listed a=3; has a=2
    of two answers for the same ids the later is listed: {BLIND} => answer 3>2; answer 3>1; listed a=3; has ?=2 a=1
    a new answer for the same ids takes the place of an old record:
        {BLIND} => answer 3>2; listed static=3; has static=2; answer 3>1; wait 1; listed static=3; has static=1
    what was given for other ids says nothing of what is listed now:
        {BLIND} => answer 3>2; listed static=3; has static=2; wait 1; listed static=5; has static=5
    what a plain init container was given is kept though it is not listed:
        {BLIND} => answer 4,5; wait 1000; listed a=4; has ?=4,5 a=4; stopped a; wait 1; listed; has -
    a file that can be read again takes the place of what was listed:
        {BLIND} => listed static=5; see; record static=5; due yes; has static=5 static=5
    # Our own answers.
    a second answer for one container replaces the first: a app:1 => answer a=3; answer a=4; has a=4
    one for another container replaces nothing: a init:1 app:1 => answer a/init=3; answer a=4; has a=3,4
    answers for unknown containers replace none of each other: => answer 3; answer 4; has ?=3 ?=4
    a new kubelet will never record an answer that its file lacks: => answer 3; answer 4; record a=4; restart; has a=4
    the record of an answer is awaited for a moment: => awaited no; answer 3; awaited yes; wait 0.1; awaited no
    p55 an answer that is not recorded is over a second later:
        => allocate 3; due no; wait 1.1; due yes; rewrite -> yes; has -
    a file may have shown an answer before it became unreadable: => answer 3; blind; see; restart; has ?=3
    also to a new kubelet, and for some time:
        {BLIND} => answer 3; see; restart; wait 10; due no; has ?=3; wait 20; due yes
    a new kubelet ends no answer while the file cannot be read: {BLIND} => answer 3; restart; has ?=3
    a new kubelet that does not list a pod yet ends nothing:
        {BLIND} => listed static=5; restart; wait 1; listed; has static=5; wait 30; listed; has -
    a pod that runs and was never recorded counts by its annotation at the next look:
        => answer a=3; pod a app:1=3 started; wait 1.1; rewrite; held a=3+; news yes; again; news yes; has a=3
    # Rewrites.
    a rewrite makes the kubelet write, and the new file is read:
        => record static=3; wait 1; drop static; has static=3; rewrite -> yes; has -
    a kubelet that does not write is waited for no longer than a second:
        => mute; record static=3; wait 1; drop static; rewrite -> no; took 0.9-1.1; write; has static=3; rewrite -> yes;
        has -
    an older file that is written late ends nothing:
        => record static=3; wait 1; write_empty; due yes; has static=3; rewrite -> yes; due no; has static=3
    # Hold-downs, and broken devices.
    p60 an unknown pod is held down for a time where cgroups cannot be seen:
        unseen => unknown b=4; held b=4; wait 30; again; held -
    p60 a hold-down ends without an event when the last process has:
        a app:1 | alive a => record a=3; killed a; news yes; held a=3+; wait 2; again; news no; wait 2; again; news yes;
        dead; again; news yes; held -
    p60 the kubelet sees a hold-down from its time on:
        alive a => unknown a=3; news yes; wait 9; again; news no; wait 1; again; news yes
    a broken device is shown as healthy while its pod lives: a app:2 | alive a => record a=0,1; start; breaks 1; sick -
    p71 or not where the settings say so: truthful | a app:2 | alive a => record a=0,1; start; breaks 1; sick 1
    # After a reboot the kubelet would start the pod's containers on it again, without asking.
    a broken device of a pod that was not seen alive at the start: a app:2 => record a=0,1; start; breaks 1; sick 1
    one of a pod that cannot be seen: unseen | a app:2 => record a=0,1; start; breaks 1; sick 1
    a broken device is unhealthy once the kubelet offers it:
        a app:2 | alive a => record a=0,1; start; breaks 1; sick -; news yes; offered 0,2,3; offered device:1; news no;
        sick -; offered 1,2; news yes; sick 1; breaks; sick -
""")


@pytest.mark.parametrize(("begin", "steps"), STORIES)
@pytest.mark.looptime
async def test_who_has_what_and_what_the_kubelet_is_shown(begin: str, steps: str) -> None:
    await tell(begin, steps)


def test_a_resource_that_is_not_offered_here_is_another_plugins() -> None:
    node = LocalNode(checkpoint_file(), FakeCgroups(), NodeOptions(resources=(CORE,)))
    node.see_inventory(inventory())
    node.see_listed([PodDevices("default", "a", (ContainerDevices("app", NEURON.value, ("3",)),))], 1000.0)
    assert used(node) == NO_CORES


@pytest.mark.looptime
async def test_p60_what_an_unknown_pod_has_open_is_held_down_also_where_the_file_shows_another_pod(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await tell("alive b", "record a=3; unknown b=3,4; unknown b=3,4; unknown a=3; held b=3,4; dead; again; held -")
    assert [record.message for record in caplog.records] == ["holding down", "no longer holding down"]


# What goes to the kubelet.


async def test_p16_p57_the_kubelet_hears_once_of_what_changed_and_only_under_the_other_names() -> None:
    def versions() -> dict[Resource, int]:
        desk.node.advertise()
        return {resource: one.latest.version for resource, one in desk.node.advertisements.items()}

    async with a_desk() as desk:
        before = versions()
        assert versions() == before
        desk.answer("3")
        assert versions() == {NEURON: before[NEURON], DEVICE: before[DEVICE] + 1, CORE: before[CORE] + 1}


@asynccontextmanager
async def following(*resources: Resource) -> AsyncIterator[tuple[LocalNode, MemoryKubelet]]:
    """A node whose kubelet follows these resources."""
    kubelet = MemoryKubelet()
    node = LocalNode(kubelet.file, FakeCgroups(), clock=LoopClock())
    node.see_inventory(inventory())
    async with running(*(kubelet.follow(node.advertisements[resource]) for resource in resources)):
        await asyncio.sleep(0.02)
        yield node, kubelet


@pytest.mark.looptime
async def test_rewrites_that_are_wanted_together_share_one_message() -> None:
    async with following(NEURON, DEVICE, CORE) as (node, kubelet):
        messages = kubelet.messages
        assert await asyncio.gather(*(node.rewrite() for _ in range(5))) == [True] * 5
        assert kubelet.messages == messages + 1


@pytest.mark.looptime
async def test_p14_a_rewrite_goes_out_by_any_stream_that_is_open() -> None:
    async with following(CORE) as (node, _):
        assert await node.rewrite()


@pytest.mark.looptime
async def test_without_a_stream_there_is_no_kubelet_to_write_and_nothing_is_waited_for() -> None:
    async with following() as (node, _):
        began = asyncio.get_running_loop().time()
        assert not await node.rewrite()
        assert asyncio.get_running_loop().time() == began


@pytest.mark.looptime
async def test_a_kubelet_that_cannot_write_is_asked_ever_less_often_and_a_new_one_at_once() -> None:
    async with following(NEURON) as (node, kubelet):
        clock = asyncio.get_running_loop().time

        async def asked_within(seconds: float) -> int:
            kubelet.forget(write=False)
            before, ends = kubelet.messages, clock() + seconds
            while clock() < ends:
                if node.rewrite_is_due:
                    await node.rewrite()
                await asyncio.sleep(0.25)
            return kubelet.messages - before

        def lose(device: int) -> None:
            kubelet.record(STATIC_UID, "app", NEURON, [device])
            node.look_at_checkpoint()
            kubelet.writes = False
            kubelet.write_empty()
            node.look_at_checkpoint()

        lose(3)
        assert 5 < await asked_within(120) < 20
        kubelet.writes = True
        assert await asked_within(NODE_TIMES.longest_pause) == 1
        lose(4)
        assert await asked_within(10) >= 4, "it could write meanwhile"
        await asked_within(120)
        assert 1 <= await asked_within(2 * NODE_TIMES.longest_pause) <= 4
        await node.rewrite()
        assert not node.rewrite_is_due
        node.kubelet_restarted()
        kubelet.writes = True
        assert await asked_within(1) == 1
        assert used(node) == NO_CORES


@pytest.mark.looptime
async def test_an_older_file_that_lands_while_a_rewrite_is_asked_for_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following(NEURON) as (node, kubelet):
        kubelet.record(STATIC_UID, "app", NEURON, [3])
        node.look_at_checkpoint()
        await asyncio.sleep(1)
        kubelet.writes = False
        seen = [kubelet.file.version()]  # by the look before the request
        now, recorded = kubelet.file.version, kubelet.file.data

        def version() -> tuple[int, int, int] | None:
            if seen:
                return seen.pop()
            if kubelet.file.data == recorded:
                kubelet.write_empty()
            return now()

        monkeypatch.setattr(kubelet.file, "version", version)
        assert not await node.rewrite()
        assert kubelet.file.data != recorded
        assert used(node) == devices(3)


@pytest.mark.looptime
async def test_p64_two_hundred_pods_that_come_and_go_leave_nothing_behind() -> None:
    async with a_desk() as desk:
        for number in range(200):
            one = pod(f"p{number}", app(1))
            desk.node.see_pods(desk.node.pods.with_pod(one))
            await desk.prefer("1")
            await desk.admit(f"p{number}=0")
            desk.node.see_pods(desk.node.pods.with_pod(replace(one, phase="Succeeded")))
            desk.kubelet.forget(one.uid)
            desk.node.look_at_checkpoint()
        inputs = desk.snapshot.inputs
        assert not inputs.recorded.entries
        assert not inputs.recorded.over
        assert not inputs.pending
        assert not inputs.hold_downs
        assert desk.snapshot.free_mask == TRN1.all_mask
