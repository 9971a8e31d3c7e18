"""The allocator: what it asks, waits for, remembers and records."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.decision_log import Step
from neuron_plugin.kubelet import AllocationRefusedError
from neuron_plugin.plugin.container import ALLOCATION_KEY, read_reply
from neuron_plugin.plugin.writes import pod_events
from neuron_plugin.topology import Unit
from tests.plugin.desk import a_desk, tell
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    STATIC_UID,
    TRN1,
    devices,
    given_mask,
    inputs,
    inventory,
    pod_of,
    ref,
    uid_of,
)
from tests.support.stories import rows

A = uid_of("a")


SEVEN = (
    "Instance type trn1.32xlarge does not support requests for device: 7. "
    "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
)
BREAKS = "record a=0-7; alive a; start; breaks 3; sick -"
"""Of pod a's devices one has broken; the kubelet has seen the pod's end, and nobody else has."""
STORIES = rows(f"""
    p45 a refusal names all that it may be for:
        a app:1 | b app:1 | c app:1 => admit a=1; allocate 1 -> !wanted by pod default/b or pod default/c
    p45 a refusal to an unknown pod: a app:1 => admit a=1; allocate device:1 -> !wanted by a pod that is not known yet
    p45 before a refusal the kubelet writes its memory and the API server lists:
        a app:1 => admit a=1; asked 0/0; allocate device:1 -> !is in use; asked 1/1
    p59 a list shows that the pod in the way is gone:
        a app:1 => admit a=1; wait 1; list b app:device:1; allocate device:1; has ?=1
    p59 the kubelet forgot the static pod in the way: => admit static=1; wait 1; drop static; allocate device:1; has ?=1
    p60 the processes of an ended pod are waited for, for some time:
        a app:1 | alive a => admit a=1; killed a; allocate 1 -> !held down: processes of the pod with UID; took 4-4.3;
        later 2 dead; allocate 1; took 2-2.3
    p60 an unknown pod that was never recorded rests for the hold-down:
        => allocate 1; wait 0.5; allocate device:1 -> !the kubelet did not record the pod that was given it; pending 0;
        wait 30; allocate device:1; pending 1
    p60 of a known one the cgroup says when it has ended:
        a app:1=1 | alive a => allocate 1; wait 1.1; gone a; rewrite; held a=1+; wait 60; again; held a=1!; dead; again;
        held -
    p59 the end of a pod that the kubelet rejected is waited for:
        a app:1 | b app:device:1 => admit a=1; wait 1; forget a; later 1 pod a app:1 failed; allocate device:1;
        took 1-1.3; has ?=1
    an offer of a broken device is a sign that its pod has ended:
        a app:8 | b app:8 => {BREAKS}; prefer 8 of 8-15 -> 8-15; sick -; prefer 8 -> 8-15; sick 3
    what a pod has already is no offer: a app:8 | b app:8 => {BREAKS}; prefer 16 must 0-7; sick -
    a broken device that is drawn unasked is refused without a wait:
        a app:8 | b app:8 => {BREAKS}; allocate 0-7 -> !device 3: sick; asked 0/0; sick 3
    a kubelet that does not write is not waited for longer than that:
        a app:1 => allocate 1; mute; allocate device:1 -> !is in use; took 1-5.3
    p36 a pod that the watch has not shown is looked for once:
        => list a app:4=4-7; prefer 4 -> 4-7; asked 0/1; prefer 4 -> 4-7; asked 0/0
    a known pod without an assignment explains the call:
        a app:4 | b app:4 => prefer 4; admit a=0-3; prefer 4; asked 0/0; admit b=4-7; prefer 4; asked 0/1
    p33 a full node: a app:16 | b app:4 => admit a=0-15; prefer 4 of 4-7 -> 4-7
    p60 a hold-down that keeps the assigned set back:
        a app:1 | b app:4=0-3 | alive a => admit a=2; gone a; later 2.5 dead; prefer 4 -> 0-3
    p60 a hold-down that keeps every linked set back:
        inf2 | a app:2 | b app:3 | alive a => admit a=2,3; gone a; prefer 3 of 0-5 -> 0,1,4; dead;
        prefer 3 of 0-5 -> 0-2; held -
    p60 a hold-down of all that is left:
        a app:16 | b app:4 | alive a => admit a=0-15; killed a; later 2.5 dead; prefer 4 of 4-7 -> 4-7; took 2.5-5;
        allocate 4-7
    what must be included counts for the very next Allocate only:
        a init:1 app:4 => admit a/init=5; prefer 4 must 5 -> 4-7; admit a=4-7; has a=4,5,6,7; prefer 4 must 5;
        allocate core:0; allocate 4-7 -> !is in use
    p56 equal pods that are admitted in the other order swap their sets:
        a app:4=0-3 @1 | b app:4=4-7 @2 => prefer 4 -> 0-3; admit b=0-3; prefer 4 -> 4-7; admit a=4-7;
        has a=4,5,6,7 b=0,1,2,3
    p50 the same call again after a kubelet restart: a app:1 => allocate 1; restart; admit a=1; has a=1; pending 0
    p50 the same call again for a waiting assignment:
        a app:4=0-3 => allocate 0-3; restart; allocate 0-3; has a=0,1,2,3; pending 1
    p46 init container, sidecar and apps stay within the pod's own set:
        a init:3 sidecar:1 app.one:1 app.two:4 | b app:1 => prefer 3 -> 0-2; admit a/init=0-2; admit a/sidecar=2 -> 2;
        admit a/one=0 -> 0; prefer 4 must 1 -> 1,3-5; admit a/two=1,3-5; prefer 1 -> not 0-5; has a=0,1,2,3,4,5
    p47 a set that is not linked is refused in the vendor's words: required | a app:7 => allocate 0-6 -> !{SEVEN}; has -
    p47 cores that are not aligned:
        trn2 | required | a app:core:2 => allocate core:1,2 -> !No free aligned set of 2 Neuron cores; allocate core:2,3
    p47 a set that was assigned is taken as linked: required | a app:2=3,4 => allocate 3,4
    # What was seen on a real kubelet with the first version.
    a static pod keeps its cores over a kubelet restart with the API server away:
        unlisted => admit static=core:22,23; restart; rewrite; prefer 1 -> not 11; allocate 11 -> !{STATIC_UID}
    p60 processes of a force-deleted pod that have not opened the device yet:
        a app:4 | b app:4 | alive a => admit a=0-3; killed a; forget a; wait 3600; prefer 4 -> not 0-3;
        allocate 0-3 -> !held down
""")


@pytest.mark.parametrize(("begin", "steps"), STORIES)
@pytest.mark.looptime
async def test_what_the_kubelet_is_answered_and_when(begin: str, steps: str) -> None:
    await tell(begin, steps)


async def test_each_reply_says_what_was_given_under_a_fresh_id() -> None:
    async with a_desk() as desk:
        replies = [read_reply((await desk.allocate(f"core:{number}")).annotations[ALLOCATION_KEY]) for number in (2, 3)]
        assert [(one.devices, one.cores, one.lnc) for one in replies if one] == [((1,), (2,), 1), ((1,), (3,), 1)]
        assert len({one.id for one in replies if one}) == 2


async def test_p54_an_allocate_changes_who_has_what_and_nothing_else() -> None:
    async with a_desk("b app:1") as desk:
        before = desk.snapshot.inputs
        await desk.allocate("3")
        after = desk.snapshot.inputs
        assert replace(after, pending=(), now=before.now) == before
        assert len(after.pending) == 1


async def test_p44_an_allocate_is_answered_from_memory_and_one_stat() -> None:
    async with a_desk() as desk:
        desk.kubelet.write()
        desk.node.look_at_checkpoint()
        reads = desk.kubelet.file.reads
        answering = desk.allocator.allocate(NEURON.value, ["3"])
        with pytest.raises(StopIteration):
            answering.send(None)  # it never waits
        assert (desk.kubelet.file.reads, desk.kubelet.messages, desk.lister.lists) == (reads, 1, 0)


async def test_p44_an_allocate_takes_far_less_than_a_millisecond_on_a_full_node_of_a_hundred_pods() -> None:
    pods = " | ".join(f"p{number} app:core:1={number}" for number in range(64))
    async with a_desk(f"trn2 | {pods}") as desk:
        took = []
        for number in range(64):
            began = time.thread_time()
            await desk.allocator.allocate(CORE.value, [str(number)])
            took.append(time.thread_time() - began)
            await asyncio.sleep(0)
        assert sorted(took)[len(took) // 2] < 0.01  # about 0.3 ms: generous, machines are shared


async def test_before_any_device_was_found_nothing_is_given() -> None:
    async with a_desk() as desk:
        desk.node._inputs = desk.node._snapshot = None
        with pytest.raises(AllocationRefusedError, match="is the driver loaded"):
            await desk.allocator.allocate(DEVICE.value, ["0"])
        with pytest.raises(AllocationRefusedError, match="is the driver loaded"):
            await desk.allocator.preferred(DEVICE.value, ["0"], [], 1)


@pytest.mark.looptime
async def test_p45_a_refusal_names_both_pods_and_is_reported_on_the_pod_that_asked() -> None:
    async with a_desk("a app:core:1 | b app:1") as desk:
        await desk.admit("a=core:6")
        with pytest.raises(AllocationRefusedError) as refused:
            await desk.allocate("3")
        assert str(refused.value) == (
            "aws.amazon.com/neuron 3 is in use by pod default/a as aws.amazon.com/neuroncore; wanted by pod default/b"
        )
        (event,) = desk.allocator.events
        assert (event.pod, event.reason) == (ref("b"), "AllocationRefused")
        assert desk.snapshot.ledger.used_mask == TRN1.mask_of(Unit.CORE, (6,))
        assert desk.decisions[-1].step is Step.REFUSED


async def test_p55_a_preference_waits_while_pod_resources_is_listed_and_is_counted() -> None:
    async with a_desk("a app:4") as desk:
        assert desk.allocator.last_call == float("-inf")
        async with desk.node.listing:
            asking = asyncio.create_task(desk.prefer("4"))
            await asyncio.sleep(0.01)
            assert desk.allocator.calls_under_way == 1
        assert len(await asking) == 4
        assert desk.allocator.calls_under_way == 0
        assert desk.allocator.last_call <= desk.node.clock()


async def test_a_preference_that_came_too_late_still_says_which_ids_are_the_pods_own() -> None:
    async with a_desk("a init:1 app:4") as desk:
        await desk.admit("a/init=5")
        async with desk.node.listing:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await desk.prefer("4 must 5")
        assert given_mask(TRN1, await desk.allocate("4-7")) == devices(4, 5, 6, 7)


async def test_a_pod_without_an_assignment_is_led_to_the_devices_that_its_annotations_allow() -> None:
    async with a_desk("a app:1 deny-devices=0-10 prefer-devices=13") as desk:
        assert await desk.prefer("1") == (13,)


async def test_an_annotation_that_cannot_be_read_or_kept_here_stops_no_admission() -> None:
    for text in ("trn2", "?"):
        async with a_desk(f"a app:4 device-name={text}") as desk:
            assert len(await desk.prefer("4")) == 4
            await desk.admit("a=0,1,2,3")
            assert desk.snapshot.ledger.mask_of(A)


# Policies and requests that cannot be served.


async def test_p47_preferred_serves_it_and_says_so_on_the_pod_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_desk("a app:7") as desk:
        await desk.admit("a=0-6")
        assert [(one.pod, one.reason) for one in pod_events(desk.snapshot)] == [(ref("a"), "UnlinkedDevices")]
        assert SEVEN in desk.decisions[-1].reason
        desk.allocator.log.name_recorded(desk.snapshot)
    assert any(SEVEN in vars(record).get("reason", "") for record in caplog.records)


async def test_preferred_serves_cores_that_are_not_aligned_and_says_so_on_the_pod() -> None:
    async with a_desk("trn2 | a app:core:2") as desk:
        await desk.admit("a=core:1,2")
        (event,) = pod_events(desk.snapshot)
        assert event.text.startswith("aws.amazon.com/neuroncore ids 1, 2 of container app are not aligned: ")


async def test_where_only_a_pod_that_asks_for_two_resources_can_have_asked_it_is_refused() -> None:
    async with a_desk("bad both:app") as desk:
        with pytest.raises(AllocationRefusedError, match="one Neuron resource per container"):
            await desk.allocate("core:0")
        desk.node.see_pods(desk.node.pods.with_pod(pod_of("good app:core:1")))
        await desk.allocate("core:0")
        desk.node.kubelet_restarted()
        waiting = pod_of("waits app:core:1=8")
        desk.node.see_pods(desk.node.pods.without(uid_of("good"), stopped=True).with_pod(waiting))
        await desk.allocate("core:0")


ULTRASERVER = {"mode": "1,2,4", "serverId4": "u1", "nodeId4": "3"}


async def test_a_container_is_told_its_place_in_the_ultraserver_of_its_group() -> None:
    place = UltraServerPlace(4, 7, "train-0.train.ml.svc")
    grouped = replace(pod_of("a app:4=0-3"), ultraserver=place)
    async with a_desk(inputs(grouped, pod_of("b app:4"), node=inventory(ultraserver=ULTRASERVER))) as desk:
        given = await desk.allocate("0,1,2,3")
        assert given.envs.items() >= place.variables(ULTRASERVER).items()
        assert given.envs["NEURON_RT_ULTRASERVER_NODE_ID"] == "3"
        other = await desk.allocate("4,5,6,7")
        assert not [name for name in other.envs if "ULTRASERVER" in name or "TOPOID" in name]
