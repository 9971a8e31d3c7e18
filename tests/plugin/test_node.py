"""The node's inputs: what a watcher replaces is in the next snapshot, and the kubelet's file is read when it is new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.kubelet import ContainerAllocation, PodDevices
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.container import ALLOCATION_KEY, reply_for
from neuron_plugin.plugin.inputs import LISTED_SECONDS, NodePods, PendingAnswer
from neuron_plugin.plugin.node import NODE_TIMES, LocalNode, NodeOptions
from neuron_plugin.plugin.settle import VANISHED_SECONDS
from neuron_plugin.topology import NO_CORES, Unit
from tests.plugin.desk import FakeCgroups, LoopClock, MemoryKubelet, a_desk
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    STATIC_UID,
    TRN1,
    FakeClock,
    app,
    assigned,
    devices,
    init,
    inventory,
    pod,
    uid_of,
)

A, B = uid_of("a"), uid_of("b")


@dataclass
class Bench:
    """A node whose clock a test sets."""

    kubelet: MemoryKubelet = field(default_factory=MemoryKubelet)
    cgroups: FakeCgroups = field(default_factory=FakeCgroups)
    clock: FakeClock = field(default_factory=FakeClock)
    options: NodeOptions = field(default_factory=NodeOptions)

    def __post_init__(self) -> None:
        self.node = LocalNode(self.kubelet.file, self.cgroups, self.options, self.clock)

    def started(self) -> LocalNode:
        self.node.see_inventory(inventory())
        return self.node


def reply(*ids: int, reply_id: str = "r") -> ContainerAllocation:
    return ContainerAllocation(
        {}, annotations={ALLOCATION_KEY: reply_for(inventory(), reply_id, devices(*ids)).annotation()}
    )


def pending(*ids: int, at: float = 1000.0, reply_id: str = "r", resource: Resource = NEURON) -> PendingAnswer:
    return PendingAnswer(reply_for(inventory(), reply_id, devices(*ids)), resource, ids, at)


def used(node: LocalNode) -> int:
    assert node.snapshot
    return node.snapshot.ledger.used_mask


# Start.


def test_before_the_first_device_there_is_no_snapshot_and_nothing_fails() -> None:
    node = Bench().node
    assert node.snapshot is None
    node.look_at_checkpoint()
    node.look_again()
    node.kubelet_restarted()
    node.see_pods(NodePods().with_pod(pod("a", app(1))))
    node.hold_down(A, devices(1), "why")
    node.see_offered(NEURON, [1])
    node.see_listed([], 0.0)
    node.answered(pending(1))
    node.advertise()
    assert not node.rewrite_is_due
    assert not node.recorded.entries


def test_p61_the_first_snapshot_knows_what_the_kubelet_has_recorded() -> None:
    bench = Bench()
    bench.kubelet.record(A, "app", NEURON, [3], reply(3))
    assert used(bench.started()) == devices(3)


def test_pods_that_were_seen_before_the_first_device_count() -> None:
    bench = Bench()
    bench.node.see_pods(NodePods().with_pod(pod("a", app(1))))
    snapshot = bench.started().snapshot
    assert snapshot
    assert [one.reference.name for one in snapshot.unassigned] == ["a"]


def test_a_snapshot_is_the_same_until_an_input_changes() -> None:
    node = Bench().started()
    before = node.snapshot
    node.changed.clear()
    node.see_inventory(inventory())
    node.look_at_checkpoint()
    node.look_again()
    assert node.snapshot is before
    assert not node.changed.is_set()
    node.see_inventory(inventory(unhealthy={3: "sick"}))
    assert node.changed.is_set()
    assert node.snapshot is not before


# The kubelet's file.


def test_a_file_is_read_only_when_its_version_is_another() -> None:
    bench = Bench()
    node = bench.started()
    reads = bench.kubelet.file.reads
    node.look_at_checkpoint()
    assert bench.kubelet.file.reads == reads
    bench.kubelet.record(A, "app", NEURON, [3], reply(3))
    node.look_at_checkpoint()
    node.look_at_checkpoint()
    assert bench.kubelet.file.reads == reads + 1
    assert used(node) == devices(3)


def test_a_file_that_is_lost_takes_nothing_from_a_live_pod() -> None:
    bench = Bench()
    bench.node.see_pods(NodePods().with_pod(pod("a", app(1))))
    bench.kubelet.record(A, "app", NEURON, [3], reply(3))
    node = bench.started()
    bench.kubelet.file.put(None)
    node.look_at_checkpoint()
    assert used(node) == devices(3)


def test_an_unreadable_file_is_logged_once_and_takes_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.kubelet.record(STATIC_UID, "app", NEURON, [3], reply(3))
    node = bench.started()
    caplog.clear()
    bench.kubelet.file.fault = "a future format"
    for _ in range(3):
        bench.kubelet.write()
        node.look_at_checkpoint()
    assert node.recorded.unreadable == "a future format"
    assert used(node) == devices(3)
    bench.kubelet.file.fault = ""
    bench.kubelet.write()
    node.look_at_checkpoint()
    assert not node.recorded.unreadable
    assert [record.message for record in caplog.records] == [
        "checkpoint not readable, asking PodResources instead",
        "checkpoint readable again",
    ]


def test_an_unreadable_file_is_not_read_again_before_it_is_another() -> None:
    bench = Bench()
    bench.kubelet.file.fault = "a future format"
    bench.kubelet.write()
    node = bench.started()
    reads = bench.kubelet.file.reads
    node.look_at_checkpoint()
    assert bench.kubelet.file.reads == reads


# PodResources in place of the file.


def listed(name: str, *ids: int, container: str = "app", resource: str = NEURON.value) -> PodDevices:
    return PodDevices("default", name, (ContainerDevices(container, resource, tuple(map(str, ids))),))


@pytest.fixture
def blind() -> Bench:
    bench = Bench()
    bench.kubelet.file.fault = "a future format"
    bench.kubelet.write()
    bench.node.see_pods(NodePods().with_pod(pod("a", init(2), app(2))))
    bench.started()
    return bench


def test_p61_a_pod_that_runs_and_that_the_kubelet_has_no_record_of_counts_by_its_annotation() -> None:
    bench = Bench()
    bench.node.see_pods(NodePods().with_pod(assigned("a", app(1), sets=[[3]], started=True)))
    assert used(bench.started()) == devices(3)


def test_p61_what_pod_resources_lists_counts_for_the_pod_of_that_name(blind: Bench) -> None:
    blind.node.see_listed([listed("a", 3), listed("static", 5), listed("b", 7, resource="nvidia.com/gpu")], 1000.0)
    assert blind.node.snapshot
    ledger = blind.node.snapshot.ledger
    assert ledger.mask_of(A) == devices(3)
    assert ledger.mask_of(PodUid("default/static")) == devices(5)
    assert ledger.used_mask == devices(3, 5)


def test_a_pod_that_pod_resources_no_longer_lists_is_over_where_no_api_server_says_that_it_lives(blind: Bench) -> None:
    blind.node.see_listed([listed("a", 3), listed("static", 5)], 1000.0)
    blind.clock.now = 1010.0
    blind.node.see_listed([], 1010.0)
    assert used(blind.node) == devices(3)


def test_what_was_given_is_known_from_our_own_answers_and_kept(blind: Bench) -> None:
    given_other = replace(pending(3), reply=reply_for(inventory(), "x", devices(2)))
    blind.node.answered(given_other)
    blind.node.see_listed([listed("a", 3)], 1000.0)
    assert used(blind.node) == devices(2)
    assert blind.node.snapshot
    assert not blind.node.snapshot.inputs.pending
    blind.node.see_listed([listed("a", 3)], 1001.0)
    assert used(blind.node) == devices(2)


def given(ids: int, *other: int, reply_id: str) -> PendingAnswer:
    """An answer that gave other devices than the kubelet's id."""
    return replace(pending(ids), reply=reply_for(inventory(), reply_id, devices(*other)))


def test_of_two_answers_for_the_same_ids_the_later_is_the_one_that_is_listed(blind: Bench) -> None:
    """The pod that got the first has ended meanwhile."""
    blind.node.answered(given(3, 2, reply_id="x"))
    blind.node.answered(given(3, 1, reply_id="y"))
    blind.node.see_listed([listed("a", 3)], 1000.0)
    assert blind.node.snapshot
    assert blind.node.snapshot.ledger.mask_of(A) == devices(1)


def test_a_new_answer_for_the_same_ids_takes_the_place_of_an_old_record(blind: Bench) -> None:
    blind.node.answered(given(3, 2, reply_id="x"))
    blind.node.see_listed([listed("static", 3)], 1000.0)
    assert used(blind.node) == devices(2)
    blind.node.answered(given(3, 1, reply_id="y"))
    blind.node.see_listed([listed("static", 3)], 1001.0)
    assert used(blind.node) == devices(1)


def test_what_was_given_for_other_ids_says_nothing_of_what_is_listed_now(blind: Bench) -> None:
    blind.node.answered(given(3, 2, reply_id="x"))
    blind.node.see_listed([listed("static", 3)], 1000.0)
    assert used(blind.node) == devices(2)
    blind.node.see_listed([listed("static", 5)], 1001.0)
    assert used(blind.node) == devices(5)


def test_a_resource_that_is_not_offered_here_is_another_plugins() -> None:
    bench = Bench(options=NodeOptions(resources=(CORE,)))
    bench.started().see_listed([listed("a", 3)], 1000.0)
    assert used(bench.node) == NO_CORES


def test_what_a_plain_init_container_was_given_is_kept_though_pod_resources_does_not_list_it(blind: Bench) -> None:
    blind.node.answered(pending(4, 5))
    blind.clock.now = 2000.0
    blind.node.see_listed([listed("a", 4)], 2000.0)
    assert used(blind.node) == devices(4, 5)
    blind.node.see_pods(blind.node.pods.without(A, stopped=True))
    blind.node.see_listed([], 2001.0)
    assert used(blind.node) == NO_CORES


def test_when_the_file_can_be_read_again_it_takes_the_place_of_what_was_listed(blind: Bench) -> None:
    blind.node.see_listed([listed("static", 5)], 1000.0)
    blind.kubelet.file.fault = ""
    blind.kubelet.record(STATIC_UID, "app", NEURON, [5], reply(5))
    blind.node.look_at_checkpoint()
    assert blind.node.rewrite_is_due
    assert used(blind.node) == devices(5)


# Our own answers.


def test_a_second_answer_for_one_container_replaces_the_first() -> None:
    node = Bench().started()
    pod_a = pod("a", app(1)).reference
    node.answered(replace(pending(3, reply_id="x"), pod=pod_a, container="app"))
    node.answered(replace(pending(4, reply_id="y"), pod=pod_a, container="app"))
    assert used(node) == devices(4)


def test_a_new_kubelet_will_never_record_an_answer_that_its_file_lacks() -> None:
    bench = Bench()
    node = bench.started()
    node.answered(pending(3))
    node.answered(pending(4, reply_id="y"))
    bench.kubelet.record(A, "app", NEURON, [4], reply(4, reply_id="y"))
    node.kubelet_restarted()
    assert used(node) == devices(4)


def test_the_record_of_an_answer_is_awaited_for_a_moment() -> None:
    bench = Bench()
    node = bench.started()
    assert not node.record_is_awaited
    node.answered(pending(3))
    assert node.record_is_awaited
    bench.clock.now += 2 * NODE_TIMES.record
    assert not node.record_is_awaited


def test_an_answer_from_before_the_file_became_unreadable_may_have_been_shown_by_it() -> None:
    bench = Bench()
    node = bench.started()
    node.answered(pending(3))
    bench.kubelet.file.fault = "a future format"
    bench.kubelet.write()
    node.look_at_checkpoint()
    bench.kubelet.file.fault = ""
    bench.kubelet.write()
    node.kubelet_restarted()
    assert used(node) == devices(3)


def test_a_second_answer_for_another_container_of_the_pod_replaces_nothing() -> None:
    node = Bench().started()
    pod_a = pod("a", app(1), init(1)).reference
    node.answered(replace(pending(3, reply_id="x"), pod=pod_a, container="init"))
    node.answered(replace(pending(4, reply_id="y"), pod=pod_a, container="app"))
    assert used(node) == devices(3, 4)


def test_answers_for_unknown_containers_replace_none_of_each_other() -> None:
    node = Bench().started()
    unknown = PodReference(PodUid("pending-r"), "", "")
    node.answered(replace(pending(3, reply_id="x"), pod=unknown))
    node.answered(replace(pending(4, reply_id="y"), pod=unknown))
    assert used(node) == devices(3, 4)


def test_an_answer_that_a_file_may_have_shown_unread_outlives_a_new_kubelet_and_the_next_files(blind: Bench) -> None:
    blind.node.answered(pending(3))
    blind.kubelet.file.fault = ""
    blind.kubelet.write()
    blind.node.kubelet_restarted()
    blind.clock.now += 10.0
    assert not blind.node.rewrite_is_due
    assert used(blind.node) == devices(3)
    blind.clock.now += LISTED_SECONDS
    assert blind.node.rewrite_is_due


def test_a_new_kubelet_that_does_not_list_a_pod_yet_ends_nothing(blind: Bench) -> None:
    blind.node.see_listed([listed("static", 5)], 1000.0)
    blind.node.kubelet_restarted()
    blind.clock.now += 1.0
    blind.node.see_listed([], blind.clock.now)
    assert used(blind.node) == devices(5)
    blind.clock.now += LISTED_SECONDS
    blind.node.see_listed([], blind.clock.now)
    assert used(blind.node) == NO_CORES


def test_the_cgroup_of_a_pod_that_is_known_by_its_name_alone_cannot_be_seen() -> None:
    node = Bench().started()
    assert node.is_populated(PodUid("default/static")) is None
    assert node.is_populated(STATIC_UID) is False


def test_while_the_file_cannot_be_read_a_new_kubelet_ends_no_answer(blind: Bench) -> None:
    blind.node.answered(pending(3))
    blind.node.kubelet_restarted()
    assert used(blind.node) == devices(3)


# Hold-downs.


def test_p60_a_hold_down_ends_without_an_event_and_both_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(cgroups=FakeCgroups({A}))
    bench.kubelet.record(A, "app", NEURON, [3], reply(3))
    node = bench.started()
    bench.node.see_pods(NodePods().without(A, stopped=False))
    assert node.snapshot
    assert node.snapshot.inputs.held_down_mask == devices(3)
    bench.clock.now += VANISHED_SECONDS
    node.changed.clear()
    node.look_again()
    assert not node.changed.is_set()
    bench.cgroups.alive = set()
    node.look_again()
    assert node.changed.is_set()
    assert node.snapshot.inputs.held_down_mask == NO_CORES
    assert [record.message for record in caplog.records] == ["holding down", "no longer holding down"]


def test_p60_the_kubelet_sees_a_hold_down_from_its_time_on() -> None:
    bench = Bench(cgroups=FakeCgroups({A}))
    node = bench.started()
    node.hold_down(A, devices(3), "processes of the unknown pod use it")
    node.changed.clear()
    bench.clock.now += NODE_TIMES.unknown - 1
    node.look_again()
    assert not node.changed.is_set()
    bench.clock.now += 1
    node.look_again()
    assert node.changed.is_set()


def test_p60_what_an_unknown_pod_has_open_is_held_down_also_where_the_file_shows_another_pod(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(cgroups=FakeCgroups({B}))
    bench.kubelet.record(A, "app", NEURON, [3], reply(3))
    node = bench.started()
    for _ in range(2):
        node.hold_down(B, devices(3, 4), "why")
    node.hold_down(A, devices(3), "why")
    assert node.snapshot
    assert [one.mask for one in node.snapshot.inputs.hold_downs] == [devices(3, 4)]
    bench.cgroups.alive = set()
    node.look_again()
    assert [record.message for record in caplog.records] == ["holding down", "no longer holding down"]


def test_p60_an_unknown_pod_is_held_down_for_a_time_where_cgroups_cannot_be_seen() -> None:
    bench = Bench(cgroups=FakeCgroups(None))
    node = bench.started()
    node.hold_down(B, devices(4), "why")
    bench.clock.now += node.options.hold_down_seconds
    node.look_again()
    assert node.snapshot
    assert not node.snapshot.inputs.hold_downs


def test_p28_a_change_of_lnc_is_taken_in_at_once() -> None:
    bench = Bench(cgroups=FakeCgroups({B}))
    node = bench.started()
    node.hold_down(B, TRN1.mask_of(Unit.CORE, (3,)), "why")
    node.see_inventory(inventory(replace(TRN1, cores_per_device=1), logical_core_size=2))
    assert node.snapshot
    assert node.snapshot.inputs.held_down_mask == 1 << 1
    assert len(node.snapshot.advertised(CORE)) == 16


# What goes to the kubelet.


def test_p16_p57_the_kubelet_hears_once_of_what_changed_and_only_under_the_other_names() -> None:
    bench = Bench()
    node = bench.started()
    node.advertise()
    versions = {resource: one.latest.version for resource, one in node.advertisements.items()}
    node.advertise()
    assert {resource: one.latest.version for resource, one in node.advertisements.items()} == versions
    node.answered(pending(3))
    node.advertise()
    after = {resource: one.latest.version for resource, one in node.advertisements.items()}
    assert after == {NEURON: versions[NEURON], DEVICE: versions[DEVICE] + 1, CORE: versions[CORE] + 1}


def shown_unhealthy(node: LocalNode) -> set[str]:
    node.advertise()
    return {device.id for device in node.advertisements[NEURON].latest.devices if not device.healthy}


BREAKS = inventory(unhealthy={1: "sick"})


def held_by_a(*, alive: bool | None = True, options: NodeOptions | None = None) -> LocalNode:
    """A node on which device 1 of pod a breaks."""
    bench = Bench(options=options or NodeOptions())
    bench.cgroups.alive = None if alive is None else {A} if alive else set()
    bench.kubelet.record(A, "app", NEURON, [0, 1], reply(0, 1))
    bench.node.see_pods(NodePods().with_pod(pod("a", app(2))))
    node = bench.started()
    node.see_inventory(BREAKS)
    return node


def test_a_broken_device_is_shown_as_healthy_while_its_pod_lives() -> None:
    assert shown_unhealthy(held_by_a()) == set()


def test_p71_or_not_where_the_settings_say_so() -> None:
    assert shown_unhealthy(held_by_a(options=NodeOptions(unhealthy_in_use=True))) == {"1"}


@pytest.mark.parametrize("alive", [False, None])
def test_a_broken_device_of_a_pod_that_was_not_seen_alive_at_the_start_is_unhealthy(*, alive: bool | None) -> None:
    """After a reboot the kubelet would start the pod's containers on it again, without asking."""
    assert shown_unhealthy(held_by_a(alive=alive)) == {"1"}


def test_a_broken_device_is_unhealthy_once_the_kubelet_offers_it() -> None:
    node = held_by_a()
    node.changed.clear()
    node.see_offered(NEURON, [0, 2, 3])
    node.see_offered(DEVICE, [1])
    assert not node.changed.is_set()
    assert shown_unhealthy(node) == set()
    node.see_offered(NEURON, [1, 2])
    assert node.changed.is_set()
    assert shown_unhealthy(node) == {"1"}
    node.see_inventory(inventory())
    assert shown_unhealthy(node) == set()


def test_p15_before_any_hardware_is_seen_nothing_is_advertised() -> None:
    node = Bench().node
    node.advertise()
    assert {one.latest.devices for one in node.advertisements.values()} == {()}


def test_p21_numa_nodes_are_advertised_where_they_are_wanted() -> None:
    node = Bench().started()
    node.numa_nodes = (1, 0)
    node.advertise()
    found = node.advertisements[NEURON].latest.devices
    assert [one.numa_nodes for one in found[:3]] == [(1,), (0,), ()]


@asynccontextmanager
async def following(*resources: Resource) -> AsyncIterator[tuple[LocalNode, MemoryKubelet]]:
    """A node whose kubelet follows these resources."""
    kubelet = MemoryKubelet()
    node = LocalNode(kubelet.file, FakeCgroups(), clock=LoopClock())
    node.see_inventory(inventory())
    streams = [asyncio.create_task(kubelet.follow(node.advertisements[resource])) for resource in resources]
    await asyncio.sleep(0.02)
    try:
        yield node, kubelet
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.looptime
async def test_a_rewrite_makes_the_kubelet_write_and_reads_the_new_file() -> None:
    async with following(NEURON) as (node, kubelet):
        kubelet.record(STATIC_UID, "app", NEURON, [3], reply(3))
        node.look_at_checkpoint()
        await asyncio.sleep(1)
        kubelet.forget(STATIC_UID, write=False)
        assert used(node) == devices(3)
        assert await node.rewrite()
        assert used(node) == NO_CORES


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
async def test_a_kubelet_that_does_not_write_is_waited_for_no_longer_than_a_second() -> None:
    async with following(NEURON) as (node, kubelet):
        kubelet.writes = False
        kubelet.record(STATIC_UID, "app", NEURON, [3], reply(3))
        node.look_at_checkpoint()
        await asyncio.sleep(1)
        kubelet.forget(write=False)
        began = asyncio.get_running_loop().time()
        assert not await node.rewrite()
        assert asyncio.get_running_loop().time() - began == pytest.approx(NODE_TIMES.rewrite, abs=0.1)
        kubelet.write()  # a file of its own accord, which proves nothing
        node.look_at_checkpoint()
        assert used(node) == devices(3)
        kubelet.writes = True
        assert await node.rewrite()
        assert used(node) == NO_CORES


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
            kubelet.record(STATIC_UID, "app", NEURON, [device], reply(device))
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
        assert not node.rewrite_is_due
        node.kubelet_restarted()
        kubelet.writes = True
        assert await asked_within(1) == 1
        assert used(node) == NO_CORES


@pytest.mark.looptime
async def test_an_older_file_that_is_written_late_ends_nothing() -> None:
    async with following(NEURON) as (node, kubelet):
        kubelet.record(STATIC_UID, "app", NEURON, [3], reply(3))
        node.look_at_checkpoint()
        await asyncio.sleep(1)
        kubelet.write_empty()
        node.look_at_checkpoint()
        assert node.rewrite_is_due
        assert used(node) == devices(3)
        await node.rewrite()
        assert not node.rewrite_is_due
        assert used(node) == devices(3)


@pytest.mark.looptime
async def test_an_older_file_that_lands_while_a_rewrite_is_asked_for_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following(NEURON) as (node, kubelet):
        kubelet.record(STATIC_UID, "app", NEURON, [3], reply(3))
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
async def test_an_answer_whose_pod_the_kubelet_dropped_is_over_a_second_later() -> None:
    async with a_desk() as desk:
        await desk.allocate(NEURON, 3)
        assert not desk.node.rewrite_is_due
        await asyncio.sleep(1.1)
        assert desk.node.rewrite_is_due
        await desk.node.rewrite()
        assert desk.snapshot.ledger.used_mask == NO_CORES


@pytest.mark.looptime
async def test_a_pod_that_runs_and_whose_answer_was_never_recorded_counts_by_its_annotation_at_the_next_look() -> None:
    async with following(NEURON) as (node, _):
        running = assigned("a", app(1), sets=[[3]], started=True)
        node.see_pods(NodePods().with_pod(running))
        node.answered(replace(pending(3, at=node.clock()), pod=running.reference, container="app"))
        await asyncio.sleep(1.1)
        await node.rewrite()
        assert node.snapshot
        assert node.snapshot.inputs.hold_downs
        node.changed.clear()
        node.look_again()
        assert node.changed.is_set()
        assert used(node) == devices(3)


@pytest.mark.looptime
async def test_p64_two_hundred_pods_that_come_and_go_leave_nothing_behind() -> None:
    async with a_desk() as desk:
        for number in range(200):
            one = pod(f"p{number}", app(1))
            desk.node.see_pods(desk.node.pods.with_pod(one))
            await desk.admit(one.uid, "app", NEURON, *await desk.prefer(NEURON, 1))
            desk.node.see_pods(desk.node.pods.with_pod(replace(one, phase="Succeeded")))
            desk.kubelet.forget(one.uid)
            desk.node.look_at_checkpoint()
        inputs = desk.snapshot.inputs
        assert not inputs.recorded.entries
        assert not inputs.recorded.over
        assert not inputs.pending
        assert not inputs.hold_downs
        assert desk.snapshot.free_mask == TRN1.all_mask
