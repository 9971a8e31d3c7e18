"""The allocator: what it asks, waits for, remembers and records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.decision_log import Step
from neuron_plugin.kubelet import AllocationRefusedError
from neuron_plugin.plugin.allocator import RECONSIDER_SECONDS
from neuron_plugin.plugin.container import ALLOCATION_KEY, read_reply
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.plugin.writes import pod_events, pod_writes
from neuron_plugin.topology import NO_CORES, Unit
from tests.plugin.desk import Desk, FakeCgroups, MemoryKubelet, a_desk
from tests.plugin.world import (
    CORE,
    DEVICE,
    INF2,
    NEURON,
    STATIC_UID,
    TRN1,
    TRN2,
    app,
    assigned,
    devices,
    given_mask,
    init,
    inventory,
    pod,
    ref,
    sidecar,
    uid_of,
)

A, B = uid_of("a"), uid_of("b")
ROW0, ROW1 = (0, 1, 2, 3), (4, 5, 6, 7)


# The allocator: what it asks, remembers and records.


async def test_the_next_pod_is_given_what_no_other_pod_has() -> None:
    async with a_desk(pod("a", app(4)), pod("b", app(4))) as desk:
        first = await desk.prefer(NEURON, 4)
        await desk.admit(A, "app", NEURON, *first)
        second = await desk.prefer(NEURON, 4)
        assert len({*first, *second}) == 8
        await desk.admit(B, "app", NEURON, *second)
        assert desk.snapshot.ledger.mask_of(A) == devices(*first)
        assert desk.snapshot.ledger.mask_of(B) == devices(*second)


async def test_each_reply_says_what_was_given_under_a_fresh_id() -> None:
    async with a_desk() as desk:
        replies = [read_reply((await desk.allocate(CORE, number)).annotations[ALLOCATION_KEY]) for number in (2, 3)]
        assert [(one.devices, one.cores, one.lnc) for one in replies if one] == [((1,), (2,), 1), ((1,), (3,), 1)]
        assert len({one.id for one in replies if one}) == 2


async def test_p54_an_allocate_changes_who_has_what_and_nothing_else() -> None:
    async with a_desk(pod("b", app(1))) as desk:
        before = desk.snapshot.inputs
        await desk.allocate(NEURON, 3)
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
    node = inventory(TRN2)
    pods = [assigned(f"p{number}", app(1, CORE), sets=[[number]], geometry=TRN2) for number in range(64)]
    async with a_desk(*pods, node=node) as desk:
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


async def test_p55_the_file_names_the_pod_of_an_answer() -> None:
    async with a_desk(pod("a", app(2))) as desk:
        answer = await desk.allocate(NEURON, 2, 3)
        assert desk.snapshot.inputs.pending
        desk.kubelet.record(A, "app", NEURON, (2, 3), answer)
        desk.node.look_at_checkpoint()
        assert not desk.snapshot.inputs.pending
        assert [str(one.pod) for one in desk.snapshot.ledger.allocations] == ["default/a"]


@pytest.mark.looptime
async def test_p45_a_refusal_names_both_pods_and_is_reported_on_the_pod_that_asked() -> None:
    async with a_desk(pod("a", app(1, CORE)), pod("b", app(1))) as desk:
        await desk.admit(A, "app", CORE, 6)
        with pytest.raises(AllocationRefusedError) as refused:
            await desk.allocate(NEURON, 3)
        assert str(refused.value) == (
            "aws.amazon.com/neuron 3 is in use by pod default/a as aws.amazon.com/neuroncore; wanted by pod default/b"
        )
        (event,) = desk.allocator.events
        assert (event.pod, event.reason) == (ref("b"), "AllocationRefused")
        assert desk.snapshot.ledger.used_mask == TRN1.mask_of(Unit.CORE, (6,))
        assert desk.decisions[-1].step is Step.REFUSED


@pytest.mark.looptime
async def test_a_refusal_whose_caller_is_not_certain_names_all_it_may_be_and_is_reported_on_none() -> None:
    async with a_desk(pod("a", app(1)), pod("b", app(1)), pod("c", app(1))) as desk:
        await desk.admit(A, "app", NEURON, 1)
        with pytest.raises(AllocationRefusedError, match="wanted by pod default/b or pod default/c"):
            await desk.allocate(NEURON, 1)
        assert not desk.allocator.events


@pytest.mark.looptime
async def test_a_refusal_to_an_unknown_pod_says_so() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.admit(A, "app", NEURON, 1)
        with pytest.raises(AllocationRefusedError, match="wanted by a pod that is not known yet"):
            await desk.allocate(DEVICE, 1)


@pytest.mark.looptime
async def test_before_a_refusal_the_kubelet_writes_its_memory_and_the_api_server_lists() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.admit(A, "app", NEURON, 1)
        messages = desk.kubelet.messages
        with pytest.raises(AllocationRefusedError):
            await desk.allocate(DEVICE, 1)
        assert desk.kubelet.messages == messages + 1
        assert desk.lister.lists == 1


@pytest.mark.looptime
async def test_a_conflict_with_a_pod_that_a_list_shows_to_be_gone_is_none() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.admit(A, "app", NEURON, 1)
        await asyncio.sleep(1)
        desk.lister.pods = [pod("b", app(1, DEVICE))]
        await desk.allocate(DEVICE, 1)
        assert desk.snapshot.ledger.used_mask == devices(1)


@pytest.mark.looptime
async def test_a_conflict_with_a_static_pod_that_the_kubelet_forgot_is_none() -> None:
    async with a_desk() as desk:
        await desk.admit(STATIC_UID, "app", NEURON, 1)
        await asyncio.sleep(1)
        desk.kubelet.forget(STATIC_UID, write=False)
        await desk.allocate(DEVICE, 1)
        assert not desk.snapshot.inputs.recorded.entries


@pytest.mark.looptime
async def test_p60_an_allocate_waits_for_the_processes_of_an_ended_pod_within_its_time() -> None:
    async with a_desk(pod("a", app(1)), cgroups=FakeCgroups({A})) as desk:
        await desk.admit(A, "app", NEURON, 1)
        desk.node.see_pods(desk.node.pods.without(A, stopped=False))
        with pytest.raises(AllocationRefusedError, match="held down: processes of the pod with UID"):
            await desk.allocate(NEURON, 1)
        loop = asyncio.get_running_loop()
        loop.call_later(RECONSIDER_SECONDS / 2, desk.cgroups.alive.discard, A)  # type: ignore[union-attr]  # a set here
        began = loop.time()
        await desk.allocate(NEURON, 1)
        assert RECONSIDER_SECONDS / 2 <= loop.time() - began < RECONSIDER_SECONDS


@pytest.mark.looptime
async def test_p60_what_an_unknown_pod_was_given_that_was_never_recorded_rests_for_the_hold_down_and_no_longer() -> (
    None
):
    async with a_desk() as desk:
        await desk.allocate(NEURON, 1)
        await asyncio.sleep(0.5)
        with pytest.raises(AllocationRefusedError, match="the kubelet did not record the pod that was given it"):
            await desk.allocate(DEVICE, 1)
        assert not desk.snapshot.inputs.pending
        await asyncio.sleep(desk.node.options.hold_down_seconds)
        await desk.allocate(DEVICE, 1)
        assert [one.resource for one in desk.snapshot.inputs.pending] == [DEVICE]


@pytest.mark.looptime
async def test_p60_of_a_known_pod_that_was_never_recorded_the_cgroup_says_when_it_has_ended() -> None:
    cgroups = FakeCgroups({A})
    async with a_desk(assigned("a", app(1), sets=[[1]]), cgroups=cgroups) as desk:
        await desk.allocate(NEURON, 1)
        await asyncio.sleep(1.1)
        desk.node.see_pods(desk.node.pods.without(A))
        await desk.node.rewrite()
        assert desk.snapshot.inputs.hold_downs
        await asyncio.sleep(60)
        desk.node.look_again()
        assert [one.mask for one in desk.snapshot.inputs.hold_downs] == [devices(1)]
        cgroups.alive = set()
        desk.node.look_again()
        assert not desk.snapshot.inputs.hold_downs


@pytest.mark.looptime
async def test_p59_a_pod_that_the_kubelet_rejected_is_waited_for_until_the_api_server_shows_its_end() -> None:
    async with a_desk(pod("a", app(1)), pod("b", app(1, DEVICE))) as desk:
        await desk.admit(A, "app", NEURON, 1)
        await asyncio.sleep(1)
        desk.kubelet.forget(A)
        failed = pod("a", app(1), phase="Failed")
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, lambda: desk.node.see_pods(desk.node.pods.with_pod(failed)))
        await desk.allocate(DEVICE, 1)
        assert desk.snapshot.ledger.used_mask == devices(1)


@pytest.mark.looptime
def unhealthy(desk: Desk) -> set[str]:
    desk.node.advertise()
    return {device.id for device in desk.node.advertisements[NEURON].latest.devices if not device.healthy}


@asynccontextmanager
async def a_desk_with_a_broken_device() -> AsyncIterator[Desk]:
    """Pod a has 0-7, of which 3 has broken; the kubelet has seen its end, and nobody else has."""
    kubelet, half = MemoryKubelet(), tuple(range(8))
    kubelet.record(A, "app", NEURON, half)
    async with a_desk(pod("a", app(8)), pod("b", app(8)), kubelet=kubelet, cgroups=FakeCgroups({A})) as desk:
        desk.node.see_inventory(inventory(unhealthy={3: "gone"}))
        assert unhealthy(desk) == set()
        yield desk


async def test_an_offer_of_a_broken_device_is_a_sign_that_its_pod_has_ended() -> None:
    async with a_desk_with_a_broken_device() as desk:
        assert await desk.prefer(NEURON, 8, range(8, 16)) == tuple(range(8, 16))
        assert unhealthy(desk) == set()
        assert await desk.prefer(NEURON, 8) == tuple(range(8, 16))
        assert unhealthy(desk) == {"3"}


async def test_what_a_pod_has_already_is_no_offer() -> None:
    async with a_desk_with_a_broken_device() as desk:
        await desk.prefer(NEURON, 16, must=range(8))
        assert unhealthy(desk) == set()


async def test_a_broken_device_that_the_kubelet_draws_unasked_is_refused_without_a_wait() -> None:
    async with a_desk_with_a_broken_device() as desk:
        messages = desk.kubelet.messages
        with pytest.raises(AllocationRefusedError, match="device 3: gone; wanted by pod default/b"):
            await desk.allocate(NEURON, *range(8))
        assert (desk.lister.lists, desk.kubelet.messages) == (0, messages)
        assert unhealthy(desk) == {"3"}


async def test_a_kubelet_that_does_not_write_does_not_keep_the_event_loop() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.allocate(NEURON, 1)
        desk.kubelet.writes = False
        with pytest.raises(AllocationRefusedError):
            await desk.allocate(DEVICE, 1)


@pytest.mark.looptime
async def test_p36_a_pod_that_the_watch_has_not_shown_is_looked_for_once_and_followed() -> None:
    async with a_desk() as desk:
        desk.lister.pods = [assigned("a", app(4), sets=[ROW1])]
        assert await desk.prefer(NEURON, 4) == ROW1
        assert desk.lister.lists == 1
        assert await desk.prefer(NEURON, 4) == ROW1
        assert desk.lister.lists == 1


@pytest.mark.looptime
async def test_a_known_pod_without_an_assignment_explains_the_call_so_no_list_is_made() -> None:
    async with a_desk(pod("a", app(4)), pod("b", app(4))) as desk:
        await desk.admit(A, "app", NEURON, *await desk.prefer(NEURON, 4))
        await desk.prefer(NEURON, 4)
        assert desk.lister.lists == 0
        await desk.admit(B, "app", NEURON, *await desk.prefer(NEURON, 4))
        await desk.prefer(NEURON, 4)
        assert desk.lister.lists == 1


@pytest.mark.looptime
async def test_p33_a_full_node_still_gets_an_answer_of_the_right_size() -> None:
    async with a_desk(pod("a", app(16)), pod("b", app(4))) as desk:
        await desk.admit(A, "app", NEURON, *range(16))
        assert await desk.prefer(NEURON, 4, ROW1) == ROW1
        assert desk.lister.lists == 1


@pytest.mark.looptime
async def test_p60_a_preference_waits_for_a_hold_down_that_keeps_the_assigned_set_back() -> None:
    waits = assigned("b", app(4), sets=[ROW0])
    async with a_desk(pod("a", app(1)), waits, cgroups=FakeCgroups({A})) as desk:
        await desk.admit(A, "app", NEURON, 2)
        desk.node.see_pods(desk.node.pods.without(A))
        asyncio.get_running_loop().call_later(2.5, desk.cgroups.alive.clear)  # type: ignore[union-attr]  # a set here
        assert await desk.prefer(NEURON, 4) == ROW0


@pytest.mark.looptime
async def test_p60_a_preference_waits_for_a_hold_down_that_keeps_every_linked_set_back() -> None:
    async with a_desk(pod("a", app(2)), pod("b", app(3)), node=inventory(INF2), cgroups=FakeCgroups({A})) as desk:
        await desk.admit(A, "app", NEURON, 2, 3)
        desk.node.see_pods(desk.node.pods.without(A))
        offered = range(6)
        assert await desk.prefer(NEURON, 3, offered) == (0, 1, 4)  # the hold-down has not ended in time
        desk.cgroups.alive = set()
        assert await desk.prefer(NEURON, 3, offered) == (0, 1, 2)
        assert not desk.snapshot.inputs.hold_downs


@pytest.mark.looptime
async def test_p60_a_preference_waits_for_held_down_cores_where_nothing_else_is_left() -> None:
    async with a_desk(pod("a", app(16)), pod("b", app(4)), cgroups=FakeCgroups({A})) as desk:
        await desk.admit(A, "app", NEURON, *range(16))
        desk.node.see_pods(desk.node.pods.without(A, stopped=False))
        loop = asyncio.get_running_loop()
        loop.call_later(2.5, desk.cgroups.alive.clear)  # type: ignore[union-attr]  # a set here
        assert await desk.prefer(NEURON, 4, ROW1) == ROW1
        await desk.allocate(NEURON, *ROW1)
        assert loop.time() < RECONSIDER_SECONDS + 1


async def test_p55_a_preference_waits_while_pod_resources_is_listed() -> None:
    async with a_desk(pod("a", app(4))) as desk:
        async with desk.node.listing:
            asking = asyncio.create_task(desk.prefer(NEURON, 4))
            await asyncio.sleep(0.02)
            assert not asking.done()
        assert len(await asking) == 4


async def test_a_call_that_is_under_way_is_counted_and_the_last_one_remembered() -> None:
    async with a_desk(pod("a", app(4))) as desk:
        assert desk.allocator.last_call == float("-inf")
        async with desk.node.listing:
            asking = asyncio.create_task(desk.prefer(NEURON, 4))
            await asyncio.sleep(0.01)
            assert desk.allocator.calls_under_way == 1
        await asking
        assert desk.allocator.calls_under_way == 0
        assert desk.allocator.last_call <= desk.node.clock()


async def test_what_must_be_included_counts_for_the_very_next_allocate_only() -> None:
    async with a_desk(pod("a", init(1), app(4))) as desk:
        await desk.admit(A, "init", NEURON, 5)
        assert await desk.prefer(NEURON, 4, must=[5]) == ROW1
        assert await desk.admit(A, "app", NEURON, *ROW1) == devices(*ROW1)
        assert desk.snapshot.ledger.mask_of(A) == devices(*ROW1)
        await desk.prefer(NEURON, 4, must=[5])
        await desk.allocate(CORE, 0)
        with pytest.raises(AllocationRefusedError):
            await desk.allocate(NEURON, *ROW1)


async def test_a_preference_that_came_too_late_still_says_which_ids_are_the_pods_own() -> None:
    async with a_desk(pod("a", init(1), app(4))) as desk:
        await desk.admit(A, "init", NEURON, 5)
        async with desk.node.listing:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await desk.prefer(NEURON, 4, must=[5])
        assert given_mask(TRN1, await desk.allocate(NEURON, *ROW1)) == devices(*ROW1)


async def test_p56_equal_pods_that_are_admitted_in_the_other_order_swap_their_sets() -> None:
    first, second = assigned("a", app(4), sets=[ROW0], time=1), assigned("b", app(4), sets=[ROW1], time=2)
    async with a_desk(first, second) as desk:
        assert await desk.prefer(NEURON, 4) == ROW0
        await desk.admit(B, "app", NEURON, *ROW0)
        assert await desk.prefer(NEURON, 4) == ROW1
        await desk.admit(A, "app", NEURON, *ROW1)
        assert desk.snapshot.ledger.mask_of(A) == devices(*ROW1)
        written = {one.pod.name: one.annotations["NEURON_DEVS"] for one in pod_writes(desk.snapshot)}
        assert written == {"a": "4,5,6,7", "b": "0,1,2,3"}


async def test_p50_the_same_call_again_after_a_kubelet_restart_is_served_again_and_counts_once() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.allocate(NEURON, 1)
        desk.node.kubelet_restarted()
        assert await desk.admit(A, "app", NEURON, 1) == devices(1)
        assert len(desk.snapshot.ledger.allocations) == 1


async def test_p50_the_same_call_again_for_a_waiting_assignment_counts_once() -> None:
    async with a_desk(assigned("a", app(4), sets=[ROW0])) as desk:
        await desk.allocate(NEURON, *ROW0)
        desk.node.kubelet_restarted()
        await desk.allocate(NEURON, *ROW0)
        assert len(desk.snapshot.ledger.allocations) == 1


async def test_p46_through_init_container_sidecar_and_app_containers_nothing_leaves_the_pods_own_set() -> None:
    whole = pod("a", init(3), sidecar(1), app(1, name="one"), app(4, name="two"))
    async with a_desk(whole, pod("b", app(1))) as desk:
        three = await desk.prefer(NEURON, 3)
        await desk.admit(A, "init", NEURON, *three)
        first, second, third = three
        side = await desk.admit(A, "sidecar", NEURON, third)
        one = await desk.admit(A, "one", NEURON, first)
        assert not side & one
        left = devices(*three) & ~side & ~one
        four = await desk.prefer(NEURON, 4, must=[second])
        two = await desk.admit(A, "two", NEURON, *four)
        assert left & two == left
        assert not two & (side | one)
        assert not devices(*await desk.prefer(NEURON, 1)) & desk.snapshot.ledger.mask_of(A)


async def test_a_pod_without_an_assignment_is_led_to_the_devices_that_its_annotations_allow() -> None:
    annotations = {"neuron-plugin.io/deny-devices": "0-10", "neuron-plugin.io/prefer-devices": "13"}
    async with a_desk(pod("a", app(1), annotations=annotations)) as desk:
        assert await desk.prefer(NEURON, 1) == (13,)


async def test_an_annotation_that_cannot_be_read_or_kept_here_stops_no_admission() -> None:
    for text in ("trn2", "?"):
        async with a_desk(pod("a", app(4), annotations={"neuron-plugin.io/device-name": text})) as desk:
            assert len(await desk.prefer(NEURON, 4)) == 4
            await desk.admit(A, "app", NEURON, 0, 1, 2, 3)
            assert desk.snapshot.ledger.mask_of(A)


# Policies and requests that cannot be served.

SEVEN = (
    "Instance type trn1.32xlarge does not support requests for device: 7. "
    "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
)


async def test_p47_required_refuses_a_set_that_is_not_linked_in_the_vendors_words() -> None:
    async with a_desk(pod("a", app(7)), topology_policy=TopologyPolicy.REQUIRED) as desk:
        with pytest.raises(AllocationRefusedError) as refused:
            await desk.allocate(NEURON, *range(7))
        assert str(refused.value) == SEVEN
        assert desk.snapshot.ledger.used_mask == NO_CORES


async def test_p47_preferred_serves_it_and_says_so_on_the_pod_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_desk(pod("a", app(7))) as desk:
        await desk.admit(A, "app", NEURON, *range(7))
        assert [(one.pod, one.reason) for one in pod_events(desk.snapshot)] == [(ref("a"), "UnlinkedDevices")]
        assert SEVEN in desk.decisions[-1].reason
        desk.allocator.log.name_recorded(desk.snapshot)
    assert any(SEVEN in vars(record).get("reason", "") for record in caplog.records)


async def test_required_refuses_cores_that_are_not_aligned() -> None:
    one = pod("a", app(2, CORE))
    async with a_desk(one, node=inventory(TRN2), topology_policy=TopologyPolicy.REQUIRED) as desk:
        with pytest.raises(AllocationRefusedError, match="No free aligned set of 2 Neuron cores"):
            await desk.allocate(CORE, 1, 2)
        await desk.allocate(CORE, 2, 3)


async def test_preferred_serves_cores_that_are_not_aligned_and_says_so_on_the_pod() -> None:
    async with a_desk(pod("a", app(2, CORE)), node=inventory(TRN2)) as desk:
        await desk.admit(A, "app", CORE, 1, 2)
        (event,) = pod_events(desk.snapshot)
        assert event.text.startswith("aws.amazon.com/neuroncore ids 1, 2 of container app are not aligned: ")


async def test_p47_a_set_that_was_assigned_is_taken_as_linked() -> None:
    async with a_desk(assigned("a", app(2), sets=[[3, 4]]), topology_policy=TopologyPolicy.REQUIRED) as desk:
        assert given_mask(TRN1, await desk.allocate(NEURON, 3, 4)) == devices(3, 4)


async def test_where_only_a_pod_that_asks_for_two_resources_can_have_asked_it_is_refused() -> None:
    bad = pod("bad", replace(app(1), limits={NEURON.value: "1", CORE.value: "2"}))
    async with a_desk(bad) as desk:
        with pytest.raises(AllocationRefusedError, match="one Neuron resource per container"):
            await desk.allocate(CORE, 0, 1)
        desk.node.see_pods(desk.node.pods.with_pod(pod("good", app(2, CORE))))
        await desk.allocate(CORE, 0, 1)
        desk.node.kubelet_restarted()
        waiting = assigned("waits", app(2, CORE), sets=[[8, 9]])
        desk.node.see_pods(desk.node.pods.without(uid_of("good"), stopped=True).with_pod(waiting))
        await desk.allocate(CORE, 0, 1)


# What was seen on a real kubelet with the first version.


@pytest.mark.looptime
async def test_after_a_restart_with_the_api_server_away_a_pod_that_has_all_devices_keeps_them() -> None:
    kubelet = MemoryKubelet()
    async with a_desk(pod("a", app(16)), kubelet=kubelet) as desk:
        await desk.admit(A, "app", NEURON, *range(16))
    async with a_desk(kubelet=kubelet, listed=False) as desk:
        assert not [one for one in desk.snapshot.advertised(CORE) if one.healthy]
        with pytest.raises(AllocationRefusedError, match=f"in use by the pod with UID {A}"):
            await desk.allocate(CORE, 0)


@pytest.mark.looptime
async def test_with_the_api_server_away_a_static_pod_keeps_its_cores_over_a_kubelet_restart() -> None:
    async with a_desk(listed=False) as desk:
        await desk.admit(STATIC_UID, "app", CORE, 22, 23)
        desk.node.kubelet_restarted()
        await desk.node.rewrite()
        assert 11 not in await desk.prefer(NEURON, 1)
        with pytest.raises(AllocationRefusedError, match=STATIC_UID):
            await desk.allocate(NEURON, 11)


@pytest.mark.looptime
async def test_p60_processes_of_a_force_deleted_pod_that_have_not_opened_the_device_yet_keep_its_cores() -> None:
    async with a_desk(pod("a", app(4)), pod("b", app(4)), cgroups=FakeCgroups({A})) as desk:
        await desk.admit(A, "app", NEURON, *ROW0)
        desk.node.see_pods(desk.node.pods.without(A, stopped=False))
        desk.kubelet.forget(A)
        await asyncio.sleep(3600)
        assert not set(await desk.prefer(NEURON, 4)) & set(ROW0)
        with pytest.raises(AllocationRefusedError):
            await desk.allocate(NEURON, *ROW0)


async def test_decisions_name_a_pod_that_came_without_an_assignment_once_the_kubelet_has_recorded_it() -> None:
    async with a_desk(pod("a", app(4))) as desk:
        ids = await desk.prefer(NEURON, 4)
        answer = await desk.allocate(NEURON, *ids)
        assert [one.pod for one in desk.decisions] == [None, None]
        desk.kubelet.record(A, "app", NEURON, ids, answer)
        desk.node.look_at_checkpoint()
        desk.allocator.log.name_recorded(desk.snapshot)
        assert [(one.step, one.pod, one.container) for one in desk.decisions] == [
            (Step.PREFERRED, ref("a"), "app"),
            (Step.ALLOCATED, ref("a"), "app"),
        ]
        assert not desk.allocator.log._unrecorded


async def test_decisions_name_the_uid_of_a_pod_until_the_api_server_shows_its_name() -> None:
    async with a_desk(listed=False) as desk:
        await desk.admit(A, "app", NEURON, 3)
        desk.allocator.log.name_recorded(desk.snapshot)
        (decision,) = desk.decisions
        assert decision.pod == replace(ref("a"), namespace="", name="")
        desk.node.see_pods(desk.node.pods.with_pod(pod("a", app(1))))
        desk.allocator.log.name_recorded(desk.snapshot)
        assert desk.decisions[0].pod == ref("a")


ULTRASERVER = {"mode": "1,2,4", "serverId4": "u1", "nodeId4": "3"}


async def test_a_container_is_told_its_place_in_the_ultraserver_of_its_group() -> None:
    place = UltraServerPlace(4, 7, "train-0.train.ml.svc")
    grouped = replace(assigned("a", app(4), sets=[(0, 1, 2, 3)]), ultraserver=place)
    async with a_desk(grouped, pod("b", app(4)), node=inventory(ultraserver=ULTRASERVER)) as desk:
        given = await desk.allocate(NEURON, 0, 1, 2, 3)
        assert given.envs.items() >= place.variables(ULTRASERVER).items()
        assert given.envs["NEURON_RT_ULTRASERVER_NODE_ID"] == "3"
        other = await desk.allocate(NEURON, 4, 5, 6, 7)
        assert not [name for name in other.envs if "ULTRASERVER" in name or "TOPOID" in name]
