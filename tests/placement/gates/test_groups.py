"""Groups are placed as a whole, near to each other, and keep their places."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import (
    GATE,
    MOVABLE_KEY,
    NODE_KEY,
    POD_UID_KEY,
    SPARES_KEY,
    ULTRASERVER_KEY,
)
from neuron_plugin.placement.gates.placer import MOST_IN_FLIGHT
from neuron_plugin.placement.group_places import MOST_RESERVED_GROUPS
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.simulation.api_server_kinds import (
    LEADER_WORKER_SETS,
    NODES,
    STATEFUL_SETS,
    AnyJson,
)
from tests.placement.gates.bench import (
    CORE,
    DOUBTFUL,
    EPOCH,
    JOB_KEY,
    LEASE,
    NEURON,
    PATCH,
    TIMES,
    GatesBench,
    exclusive,
)
from tests.support.api_server import Fault, Match
from tests.support.manifests import container


async def test_no_more_writes_are_under_way_than_do_good(gated: GatesBench) -> None:
    for number in range(3):
        gated.node(f"n{number}")
    for number in range(MOST_IN_FLIGHT + 6):
        gated.pod(f"worker-{number}", CORE, group="job", size=MOST_IN_FLIGHT + 6)
    answers = asyncio.Event()
    gated.server.fail(Fault(PATCH, gate=answers, times=99))
    for _ in range(40):
        gated.placer.step()
        await asyncio.sleep(0)
    assert gated.placer.under_way == MOST_IN_FLIGHT
    answers.set()
    await gated.place_all()
    assert all(gated.place(f"worker-{number}") for number in range(MOST_IN_FLIGHT + 6))


async def test_a_group_is_placed_beside_a_job_that_keeps_it_out_of_another_domain(gated: GatesBench) -> None:
    for name in ("a", "b", "c"):
        gated.labelled_node(name, rack="r1" if name == "a" else "r2")
    gated.pod("first-0", gates=(), node="a", labels={JOB_KEY: "first"}, spec=exclusive("first", "rack"))
    selector = {"nodeSelector": {"rack": "r2"}}  # of its own leader's domain
    for number in range(2):
        gated.pod(f"second-{number}", NEURON, 16, group="second", size=2, labels={JOB_KEY: "second"}, spec=selector)
    await gated.place_all()
    assert sorted(gated.place(f"second-{number}") for number in range(2)) == ["b", "c"]


async def test_a_lost_pod_of_a_job_is_placed_again_once_the_others_have_succeeded(gated: GatesBench) -> None:
    for name in ("a", "b", "c"):
        gated.node(name)
    for number in range(3):
        gated.pod(f"worker-{number}", NEURON, 16, group="job", size=3, owner="Job/train")
    await gated.place_all()
    for number in range(2):
        gated.server.set_pod_status("default", f"worker-{number}", {"phase": "Succeeded"})
    gated.server.delete_pod("default", "worker-2", grace_seconds=0)
    gated.pod("worker-2-again", NEURON, 16, group="job", size=3, owner="Job/train")
    await gated.place_all()
    assert gated.place("worker-2-again")

    gated.server.set_pod_status("default", "worker-2-again", {"phase": "Succeeded"})
    gated.pod("other-0", NEURON, 16, group="job", size=3, owner="Job/next")
    await gated.place_all()
    assert not gated.place("other-0"), "a later Job of the same group is another run of it"


async def test_a_group_is_placed_as_a_whole(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(3):
        gated.pod(f"worker-{number}", NEURON, 8, group="job", size=3)
    await gated.place_all()
    assert gated.requests() == 0  # two would fit
    gated.node("b")
    await gated.place_all()
    assert sorted(gated.place(f"worker-{number}") for number in range(3)) == ["a", "a", "b"]
    assert [gated.gates(f"worker-{number}") for number in range(3)] == [[], [], []]


async def test_a_group_with_a_pod_that_no_node_may_have_waits_as_a_whole(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("worker-0", group="job", size=2)
    gated.pod("worker-1", group="job", size=2, annotations={"neuron-plugin.io/placement": "spraed"})
    await gated.place_all()
    assert gated.requests() == 0
    gated.server.patch_pod("default", "worker-1", {"metadata": {"annotations": {"neuron-plugin.io/placement": None}}})
    await gated.place_all()
    assert [gated.place(f"worker-{number}") for number in range(2)] == ["a", "a"]


async def test_one_more_pod_of_a_group_that_is_placed_is_placed_alone(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(3):
        await gated.place_all()
        gated.pod(f"worker-{number}", NEURON, 4, group="job", size=2)
    await gated.place_all()
    assert [gated.place(f"worker-{number}") for number in range(3)] == ["a"] * 3
    assert [gated.gates(f"worker-{number}") for number in range(3)] == [[]] * 3


async def test_a_group_that_waits_is_looked_at_again_when_its_podgroup_needs_fewer(gated: GatesBench) -> None:
    gated.node("a")
    gated.state.set_min_count(("default", "job"), 3)
    for number in range(3):
        gated.pod(f"worker-{number}", NEURON, 8, spec={"schedulingGroup": {"podGroupName": "job"}})
    await gated.place_all()
    assert gated.requests() == 0
    gated.state.set_min_count(("default", "job"), 2)
    await gated.place_all()
    assert [gated.place(f"worker-{number}") for number in range(3)] == ["a", "a", ""]


async def test_an_incomplete_group_blocks_nobody(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("worker-0", NEURON, 8, group="job", size=2, priority=10)
    gated.pod("plain", NEURON, 16)
    await gated.place_all()
    assert (gated.place("plain"), gated.place("worker-0")) == ("a", "")


def two_workers(gated: GatesBench) -> list[str]:
    """A node, and a group of two that has it whole."""
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, group="job", size=2)
    return names


async def leading(gated: GatesBench, holder: str) -> GatesBench:
    """A process of this name leads, and knows what the watches show."""
    other = GatesBench(gated.server, gated.api, None, holder)
    other.now, other.created = gated.now, gated.created
    for node in gated.server.objects(NODES):
        other.world.show_node(node)
    other.sync()
    await other.room.take_over()
    return other


@pytest.mark.parametrize("lost", ["no answer", "a 500"])
async def test_a_group_cut_off_half_way_is_completed_by_the_next_leader(gated: GatesBench, lost: str) -> None:
    names = two_workers(gated)
    first = await leading(gated, "one")
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/worker-1$"), drop=True))
    await first.step()
    assert [first.gates(name) for name in names] == [[], [GATE]]
    gated.pod("urgent", NEURON, 8, spec={"priority": 10})
    refusal = {"drop": True} if lost == "no answer" else {"status": 500}
    gated.server.fail(Fault(Match(method="GET", path="/leases/"), **refusal))  # the new leader's first look at it
    second = await leading(gated, "two")
    await second.place_all()
    assert [second.gates(name) for name in names] == [[], []]
    assert second.place("urgent") == "", "the place of the other was kept"
    await second.room.tend()
    assert not second.state.reserved
    assert not second.room.places.records


async def test_no_pod_of_a_group_is_released_before_its_places_are_written_down(gated: GatesBench) -> None:
    names = two_workers(gated)
    leader = await leading(gated, "one")
    gated.server.fail(Fault(Match(method="PATCH", path="/leases/"), status=500))
    await leader.step()
    gated.pod("urgent", NEURON, 8, spec={"priority": 10})
    await leader.step()
    assert [leader.gates(name) for name in names] == [[GATE], [GATE]]
    assert (leader.place("urgent"), leader.requests()) == ("", 0), "they are kept all the same"
    await leader.step(after=TIMES.retry)
    assert [leader.place(name) for name in names] == ["a", "a"]


async def test_what_was_not_sent_for_a_moment_waits_no_longer_than_that(gated: GatesBench) -> None:
    """So while the Lease was not renewed lately."""
    names = [*two_workers(gated), "single"]
    gated.node("b")
    gated.pod("single", NEURON, 8)
    leader = await leading(gated, "one")
    leader.placer.step()
    leader.ready.unmet(CONDITION, "the lease may run out")
    await leader.placer.drain()
    await leader.step()
    assert [leader.place(name) for name in names] == ["", "", ""]
    leader.ready.met(CONDITION)
    await leader.step()
    assert all(leader.place(name) for name in names)


async def test_a_group_that_loses_a_pod_while_its_places_are_written_down_is_not_released(gated: GatesBench) -> None:
    names = two_workers(gated)
    leader, written = await leading(gated, "one"), asyncio.Event()
    gated.server.fail(Fault(Match(method="PATCH", path="/leases/"), gate=written))
    leader.placer.step()
    await asyncio.sleep(0)
    gated.server.delete_pod("default", "worker-1", grace_seconds=0)
    leader.sync()
    written.set()
    await leader.placer.drain()
    await leader.place_all()
    assert (leader.place("worker-0"), leader.gates("worker-0")) == ("", [GATE])
    gated.pod("worker-1", NEURON, 8, group="job", size=2)
    await leader.place_all()
    assert [leader.place(name) for name in names] == ["a", "a"]


async def test_what_an_earlier_version_has_planned_for_a_group_is_completed(gated: GatesBench) -> None:
    """It wrote each pod's place first, and then took the gates off."""
    gated.node("a")
    pods = [gated.pod(f"worker-{number}", NEURON, 8, group="job", size=2) for number in range(2)]
    planned = {NODE_KEY: "a", POD_UID_KEY: pods[0]["metadata"]["uid"], "NEURON_DEVS": "0,1,2,3,4,5,6,7"}
    gated.server.patch_pod("default", "worker-0", {"metadata": {"annotations": planned}})
    gated.pod("running", NEURON, 8, gates=(), node="a", annotations={"NEURON_DEVS": "8,9,10,11,12,13,14,15"})
    await gated.step()
    assert gated.gates("worker-0") == [GATE], "the group is not whole"
    await gated.place_all()
    assert gated.place("worker-0") == "", "others may need the room"
    gated.server.patch_pod("default", "worker-0", {"metadata": {"annotations": planned}})
    gated.server.delete_pod("default", "running", grace_seconds=0)
    await gated.place_all()
    assert [gated.gates(f"worker-{number}") for number in range(2)] == [[], []]
    assert gated.annotations("worker-0")["NEURON_DEVS"] == "0,1,2,3,4,5,6,7"


async def test_a_place_that_is_of_no_use_for_its_group_any_more_is_given_to_others(gated: GatesBench) -> None:
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, cpu="30", group="job", size=2)
    first = await leading(gated, "one")
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/worker-1$"), drop=True))
    await first.step()
    gated.node("a", cpu="40")
    gated.pod("small", NEURON, 8)
    second = await leading(gated, "two")
    await second.place_all()
    assert [second.place(name) for name in (*names, "small")] == ["a", "", "a"]
    assert not second.state.reserved


async def test_a_place_lasts_though_the_api_server_s_clock_is_ahead(gated: GatesBench) -> None:
    names = two_workers(gated)
    leader = await leading(gated, "one")
    leader.created |= {gated.of(name)["metadata"]["uid"]: EPOCH + 30 for name in names}
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/worker-"), drop=True, times=2))
    await leader.step()
    await leader.room.tend()
    assert len(leader.state.reserved) == 2


async def test_groups_that_are_on_their_way_count_as_nothing_kept_for_pods_to_come(gated: GatesBench) -> None:
    gated.server.create(LEADER_WORKER_SETS, worker_set(3, {"containers": [container("main", NEURON, 4)]}), "default")
    for number in range(MOST_RESERVED_GROUPS):
        gated.node(f"n{number}")
        for rank in range(2):
            gated.pod(f"worker-{number}-{rank}", NEURON, 4, group=f"job-{number}", size=2)
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/worker-"), drop=True, times=2 * MOST_RESERVED_GROUPS))
    await gated.step()
    gated.pod("serve-0", NEURON, 4, **lws(0))
    for _ in range(4):
        await gated.step(after=TIMES.leader)
    assert gated.place("serve-0")
    assert [key for key in gated.state.reserved if key.startswith("default/serve")], "for its workers"


async def test_many_groups_are_written_down_at_once(gated: GatesBench) -> None:
    for number in range(4):
        gated.node(f"n{number}")
    for number in range(8):
        gated.pod(f"worker-{number}", NEURON, 8, group=f"job-{number // 2}", size=2)
    leader = await leading(gated, "one")
    before = len(leader.server.requests)
    await leader.step()
    assert all(leader.place(f"worker-{number}") for number in range(8))
    writes_of_leases = [seen for seen in leader.server.requests[before:] if seen.path.endswith(f"/leases/{LEASE}")]
    assert [seen.method for seen in writes_of_leases] == ["GET", "PATCH"]


def worker_set(size: int, workers: AnyJson, *, replicas: int = 1) -> AnyJson:
    template = {"size": size, "workerTemplate": {"spec": workers}}
    return {"metadata": {"name": "serve"}, "spec": {"replicas": replicas, "leaderWorkerTemplate": template}}


def lws(index: int, replica: int = 0, size: int = 3) -> AnyJson:
    """What LeaderWorkerSet writes on the pods of a replica."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    labels = {f"{prefix}name": "serve", f"{prefix}group-index": str(replica), f"{prefix}worker-index": str(index)}
    return {"labels": labels, "annotations": {f"{prefix}size": str(size)}}


async def test_a_worker_gets_its_place_back_though_its_group_spans_replicas_and_another_one_waits(
    gated: GatesBench,
) -> None:
    """As in kueue#8801: a new replica took the place of a worker that was made again."""

    def replica_pods(*ranks: tuple[int, int]) -> list[str]:
        for replica, index in ranks:
            gated.pod(f"serve-{replica}-{index}", NEURON, 8, group="serve", size=4, **lws(index, replica))
        return [f"serve-{replica}-{index}" for replica, index in ranks]

    for name in ("a", "b"):
        gated.node(name)
    names = replica_pods((0, 0), (0, 1), (1, 0), (1, 1))
    await gated.place_all()
    before = {name: gated.place(name) for name in names}
    for name, node in before.items():
        gated.bind(name, node)
    surge = replica_pods((2, 0), (2, 1))
    gated.server.delete_pod("default", "serve-1-1", grace_seconds=0)
    await gated.place_all()
    replica_pods((1, 1))
    await gated.place_all()
    assert gated.place("serve-1-1") == before["serve-1-1"]
    assert [gated.place(name) for name in surge] == ["", ""]


async def test_a_pod_whose_placement_is_taken_off_keeps_its_index_as_its_rank(gated: GatesBench) -> None:
    gated.node("a")
    index = {"batch.kubernetes.io/job-completion-index": "0", "jobset.sigs.k8s.io/job-index": "1"}
    gated.pod("train", NEURON, 8, group="train", size=1, labels=index)
    await gated.place_all()
    assert (gated.annotations("train")["neuron-plugin.io/rank"], gated.place("train")) == ("0", "a")
    await gated.writer.withdraw(gated.record("train"), read_first=True)
    gated.sync()
    assert gated.place("train") == ""
    member = gated.record("train").member
    assert member
    assert member.rank == (1, 0)


async def test_a_replica_of_a_leader_worker_set_is_a_group_without_a_word_of_ours(gated: GatesBench) -> None:
    gated.node("a")
    for index in range(3):
        gated.pod(f"serve-0-{index}", NEURON, 8, **lws(index))
    await gated.place_all()
    assert gated.requests() == 0, "two of three would fit"
    gated.node("b")
    await gated.place_all()
    assert sorted(gated.place(f"serve-0-{index}") for index in range(3)) == ["a", "a", "b"]


async def test_a_leader_is_placed_where_its_workers_fit_too_and_their_place_is_kept(gated: GatesBench) -> None:
    workers = {"containers": [container("main", NEURON, 8)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(3, workers), "default")
    gated.node("a")
    gated.pod("serve-0", NEURON, 8, **lws(0))
    for _ in range(3):
        await gated.step(after=TIMES.leader)
    assert gated.place("serve-0") == "", "the workers would not fit"
    gated.node("b")
    await gated.place_all()
    assert gated.place("serve-0")
    assert len(gated.state.reserved) == 2
    gated.pod("other", NEURON, 16)
    await gated.place_all()
    assert gated.place("other") == ""
    for index in (1, 2):
        gated.pod(f"serve-0-{index}", NEURON, 8, **lws(index))
    await gated.place_all()
    await gated.room.tend()
    places = [gated.place("serve-0"), *(gated.place(f"serve-0-{index}") for index in (1, 2))]
    assert sorted(places) in (["a", "a", "b"], ["a", "b", "b"])
    assert not gated.state.reserved


async def test_of_a_group_that_is_not_all_there_who_is_there_has_room_as_well_as_who_comes(gated: GatesBench) -> None:
    """A quota, for example, lets its controller make one worker of two."""
    workers = {"containers": [container("main", NEURON, 8)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(3, workers), "default")
    gated.node("a")
    for index in (0, 1):
        gated.pod(f"serve-0-{index}", NEURON, 8, **lws(index))
    for _ in range(3):
        await gated.look(after=TIMES.leader)
    assert [gated.place(f"serve-0-{index}") for index in (0, 1)] == ["", ""], "there is room for two of three"
    for index in (0, 1):
        ((_, note),) = gated.events(f"serve-0-{index}")
        assert note.endswith("there is room together for 2 of 3 waiting pods, at least 3 need it"), "and for no other"
    gated.node("b")
    await gated.place_all()
    gated.pod("greedy", NEURON, 8)
    gated.pod("greedier", NEURON, 8)
    gated.pod("serve-0-2", NEURON, 8, **lws(2))
    await gated.place_all()
    assert sorted(gated.place(f"serve-0-{index}") for index in range(3)) in (["a", "a", "b"], ["a", "b", "b"])


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ("", "nothing that is known makes them"),
        ("StatefulSet/w", "w does not make 2 pods together"),
        ("StatefulSet/gone", "404"),
    ],
)
async def test_a_leader_that_goes_alone_says_why(gated: GatesBench, owner: str, why: str) -> None:
    gated.server.create(STATEFUL_SETS, {"metadata": {"name": "w"}, "spec": {"replicas": 1}}, "default")
    gated.node("a")
    labels = {"apps.kubernetes.io/pod-index": "0"} if owner else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    gated.pod("w-0", group="w", size=2, labels=labels, owner=owner)
    for _ in range(3):
        await gated.step(after=TIMES.leader)
    assert gated.place("w-0") == "a"
    ((reason, note),) = gated.events("w-0")
    assert reason == EventReason.GROUP_NOT_RESERVED
    assert note.startswith("Nothing is kept for the other pods of group w: ")
    assert why in note


async def test_a_leader_goes_alone_where_it_cannot_be_read_what_its_workers_ask_for(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("serve-0", NEURON, 8, **lws(0))
    await gated.step()
    assert gated.place("serve-0") == ""
    for _ in range(2):
        await gated.step(after=TIMES.leader)
    assert gated.place("serve-0") == "a"
    assert [reason for reason, _ in gated.events("serve-0")] == [EventReason.GROUP_NOT_RESERVED]


async def test_the_leader_of_a_job_of_its_own_rack_is_placed_where_the_job_fits(gated: GatesBench) -> None:
    """A JobSet makes the other pods of such a Job once its first has a node."""
    gated.server.fail(Fault(Match(method="GET", path="/jobs/set$"), body=b'{"spec": {"parallelism": 3}}', times=9))
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2")):
        gated.labelled_node(name, rack=rack)
    gated.pod("used", NEURON, 8, gates=(), node="a", annotations={"NEURON_DEVS": "0,1,2,3,4,5,6,7"})
    says = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack", "batch.kubernetes.io/job-completion-index": "0"}
    labels = {JOB_KEY: "set", "jobset.sigs.k8s.io/global-replicas": "1", "jobset.sigs.k8s.io/job-index": "0"}
    own: AnyJson = {"labels": labels, "spec": exclusive("set", "rack"), "owner": "Job/set"}
    gated.pod("leader", NEURON, 8, group="set", size=3, annotations=says, **own)
    for _ in range(3):
        await gated.step(after=TIMES.leader)
    assert gated.place("leader") in {"b", "c"}
    kept = [kept.node for kept in gated.state.reserved.values()]
    assert sorted([*kept, gated.place("leader")]) in (["b", "b", "c"], ["b", "c", "c"])
    gated.pod("greedy", NEURON, 16)
    gated.pod("greedier", NEURON, 8)
    for index in ("1", "2"):
        says["batch.kubernetes.io/job-completion-index"] = index
        gated.pod(f"worker-{index}", NEURON, 8, group="set", size=3, annotations=says, **own)
    await gated.place_all()
    assert sorted(gated.place(f"worker-{index}") for index in ("1", "2")) == sorted(kept)


async def test_each_job_of_a_group_has_a_domain_of_its_own_where_it_is_to_be_alone(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.labelled_node(name, rack=name)
    topology = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    index, job_index = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"
    labels = {"jobset.sigs.k8s.io/global-replicas": "2"}
    for job in ("0", "1"):
        own: AnyJson = {"labels": {**labels, JOB_KEY: job, job_index: job}, "owner": f"Job/{job}"}
        says = {**topology, index: "0"}
        gated.pod(f"leader-{job}", NEURON, 8, group="s", size=4, annotations=says, spec=exclusive(job, "rack"), **own)
    for _ in range(3):
        await gated.step(after=TIMES.leader)
    racks = {job: gated.place(f"leader-{job}") for job in ("0", "1")}
    assert sorted(racks.values()) == ["a", "b"]
    for job, rack in racks.items():
        own = {"labels": {**labels, JOB_KEY: job, job_index: job}, "owner": f"Job/{job}"}
        says, where = {**topology, index: "1"}, {"nodeSelector": {"rack": rack}}
        gated.pod(f"other-{job}", NEURON, 8, group="s", size=4, annotations=says, spec=where, **own)
    await gated.place_all()
    assert {job: gated.place(f"other-{job}") for job in ("0", "1")} == racks


@pytest.mark.parametrize("left", ["nothing", "fewer replicas"])
async def test_the_places_of_a_replica_that_nobody_makes_again_are_free_at_once(gated: GatesBench, left: str) -> None:
    workers = {"containers": [container("main", NEURON, 4)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(3, workers), "default")
    gated.node("a")
    names = ["serve-0", "serve-0-1", "serve-0-2"]
    for index, name in enumerate(names):
        gated.pod(name, NEURON, 4, **lws(index))
    await gated.place_all()
    for name in names:
        gated.bind(name, "a")
    await gated.step()
    gated.server.delete(LEADER_WORKER_SETS, "serve", "default")
    if left == "fewer replicas":
        gated.server.create(LEADER_WORKER_SETS, worker_set(3, workers, replicas=0), "default")
    for name in names:
        gated.server.delete_pod("default", name, grace_seconds=0)
    gated.pod("next", NEURON, 16)
    await gated.step()
    await gated.room.tend()
    await gated.place_all()
    assert gated.place("next") == "a"


async def test_nothing_is_kept_of_a_group_for_another_one_of_its_name(gated: GatesBench) -> None:
    rank = {"batch.kubernetes.io/job-completion-index": "0"}
    gated.node("a")
    gated.pod("old", NEURON, 8, group="job", size=2, annotations=rank)
    gated.pod("old-1", NEURON, 8, group="job", size=2, annotations={next(iter(rank)): "1"})
    await gated.place_all()
    for name in ("old", "old-1"):
        gated.bind(name, "a")
    await gated.step(after=10)
    gated.server.delete_pod("default", "old", grace_seconds=0)
    await gated.step()
    assert gated.state.reserved
    gated.server.delete_pod("default", "old-1", grace_seconds=0)
    await gated.step(after=10)
    gated.pod("new", NEURON, 16, group="job", size=2)
    await gated.step(after=1)
    await gated.room.tend()
    assert not gated.state.reserved


async def test_a_group_that_is_made_again_gets_its_places_back(gated: GatesBench) -> None:
    workers = {"containers": [container("main", NEURON, 8)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(3, workers), "default")
    for name in ("a", "b"):
        gated.node(name)
    names = ["serve-0", "serve-0-1", "serve-0-2"]
    for index, name in enumerate(names):
        gated.pod(name, NEURON, 8, **lws(index))
    await gated.place_all()
    before = {name: (gated.place(name), gated.annotations(name)["NEURON_DEVS"]) for name in names}
    for name in names:
        gated.bind(name, before[name][0])
    await gated.step()
    gated.pod("greedy", NEURON, 8)
    gated.pod("greedier", NEURON, 8)
    for name in names:
        gated.server.delete_pod("default", name, grace_seconds=0)
    await gated.place_all()
    for index, name in enumerate(names):
        gated.pod(name, NEURON, 8, **lws(index))
    await gated.place_all()
    assert {name: (gated.place(name), gated.annotations(name)["NEURON_DEVS"]) for name in names} == before


async def test_a_replica_whose_pods_are_all_gone_gets_its_places_back_from_the_next_leader(gated: GatesBench) -> None:
    workers = {"containers": [container("main", NEURON, 8)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(2, workers), "default")
    gated.node("a")
    names = ["serve-0", "serve-0-1"]
    first = await leading(gated, "one")
    for index, name in enumerate(names):
        gated.pod(name, NEURON, 8, **lws(index, size=2))
    await first.place_all()
    for name in names:
        first.bind(name, "a")
    await first.step()
    for name in names:
        gated.server.delete_pod("default", name, grace_seconds=0)
    await first.step()
    await first.room.tend()
    second = await leading(gated, "two")
    await second.room.tend()
    gated.pod("greedy", NEURON, 8)
    await second.place_all()
    for index, name in enumerate(names):
        gated.pod(name, NEURON, 8, **lws(index, size=2))
    await second.place_all()
    assert [second.place(name) for name in ("greedy", *names)] == ["", "a", "a"]


async def test_no_place_is_kept_for_a_rank_that_another_pod_has_by_now(gated: GatesBench) -> None:
    """A pod on a lost node ends long after its replacement was placed elsewhere."""
    for name in ("a", "b"):
        gated.node(name)
    rank = {"batch.kubernetes.io/job-completion-index": "0"}
    old = gated.pod("old", NEURON, 16, group="job", size=1, annotations=rank)
    await gated.place_all()
    lost = gated.place("old")
    gated.bind("old", lost)
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
    gated.server.patch_node(lost, {"spec": {"taints": [taint]}})
    gated.world.show_node(gated.server.get(NODES, lost, ""))
    gated.server.delete_pod("default", "old", grace_seconds=30)
    gated.pod("new", NEURON, 16, group="job", size=1, annotations=rank)
    await gated.place_all()
    assert gated.place("new") == ({"a", "b"} - {lost}).pop()
    gated.bind("new", gated.place("new"))
    await gated.step()
    gated.server.delete_pod("default", "old", grace_seconds=0)
    await gated.step()
    assert old["metadata"]["uid"] not in gated.state.pods
    assert not gated.state.reserved


def ultraserver_nodes(gated: GatesBench, number: int) -> None:
    """So many nodes, each four of which are an UltraServer."""
    for place in range(number):
        ids = {"mode": "1,2,4"} | {f"serverId{size}": f"us{size}-{place // size}" for size in (2, 4)}
        ids |= {f"nodeId{size}": str(place % size) for size in (2, 4)}
        gated.node(f"n{place}", ultraserver=ids)
        says = {f"neuron-plugin.io/ultraserver-server-id-{size}": ids[f"serverId{size}"] for size in (2, 4)}
        says |= {f"neuron-plugin.io/ultraserver-node-id-{size}": ids[f"nodeId{size}"] for size in (2, 4)}
        gated.server.patch_node(f"n{place}", {"metadata": {"labels": says}})
        shown = next(node for node in gated.server.objects(NODES) if node["metadata"]["name"] == f"n{place}")
        gated.world.show_node(shown)


def worker(gated: GatesBench, rank: int, *, hostname: bool = True) -> str:
    """A pod of an Indexed Job of four behind a headless Service."""
    spec = {"hostname": f"train-{rank}", "subdomain": "train"} if hostname else {}
    index = {"batch.kubernetes.io/job-completion-index": str(rank)}
    gated.pod(f"train-{rank}", NEURON, 16, group="train", size=4, annotations=index, spec=spec)
    return f"train-{rank}"


async def test_a_group_that_has_an_ultraserver_whole_is_told_its_places(gated: GatesBench) -> None:
    ultraserver_nodes(gated, 4)
    names = [worker(gated, rank) for rank in range(4)]
    await gated.place_all()
    assert [gated.place(name) for name in names] == ["n0", "n1", "n2", "n3"]
    said = [gated.annotations(name)[ULTRASERVER_KEY] for name in names]
    assert said == [f"nodes=4,index={index},first=train-0.train.default.svc" for index in range(4)]


async def test_a_group_without_host_names_is_told_none(gated: GatesBench) -> None:
    ultraserver_nodes(gated, 4)
    names = [worker(gated, rank, hostname=False) for rank in range(4)]
    await gated.place_all()
    assert all(gated.place(name) and ULTRASERVER_KEY not in gated.annotations(name) for name in names)


async def test_a_lost_pod_that_comes_back_to_its_place_has_its_values_again(gated: GatesBench) -> None:
    ultraserver_nodes(gated, 8)
    names = [worker(gated, rank) for rank in range(4)]
    await gated.place_all()
    before = gated.annotations("train-2")[ULTRASERVER_KEY]
    for name in names:
        gated.bind(name, gated.place(name))
    gated.server.delete_pod("default", "train-2", grace_seconds=0)
    await gated.step()
    worker(gated, 2)
    await gated.place_all()
    assert gated.annotations("train-2")[ULTRASERVER_KEY] == before
    assert gated.events("train-0") == []


async def test_a_replacement_that_makes_variables_untrue_has_an_event_say_so(gated: GatesBench) -> None:
    ultraserver_nodes(gated, 8)
    names = [worker(gated, rank) for rank in range(4)]
    await gated.place_all()
    for name in names:
        gated.bind(name, gated.place(name))
    lost = gated.place("train-2")
    gated.server.delete_pod("default", "train-2", grace_seconds=0)
    gated.server.patch_node(lost, {"spec": {"unschedulable": True}})
    gated.world.show_node(next(node for node in gated.server.objects(NODES) if node["metadata"]["name"] == lost))
    await gated.step()
    worker(gated, 2)
    for _ in range(3):
        await gated.step(after=TIMES.reserve + 1)
    assert gated.place("train-2") not in {"", lost}
    assert ULTRASERVER_KEY not in gated.annotations("train-2")
    ((reason, note),) = gated.events("train-0")
    assert reason == EventReason.GROUP_MUST_RESTART
    assert "With train-2 placed" in note
    assert "3 running pods of its group: restart the whole group" in note


# Spare nodes.


def member(gated: GatesBench, rank: int, *, spares: int = 1, generation: int = 0) -> str:
    """A pod for a whole node, of a group of two."""
    says = {"batch.kubernetes.io/job-completion-index": str(rank), SPARES_KEY: str(spares)}
    name = f"ring-{rank}-{generation}"
    gated.pod(name, NEURON, 16, group="ring", size=2, annotations=says, spec={"priority": 10})
    return name


async def with_spare(gated: GatesBench) -> dict[str, str]:
    """A group of two on one of two racks of three nodes; by rank its node, and the node that is spare."""
    for rack in "ab":
        for number in range(3):
            gated.labelled_node(f"{rack}{number}", **{"topology.k8s.aws/network-node-layer-1": rack})
    names = [member(gated, rank) for rank in range(2)]
    await gated.place_all()
    for name in names:
        gated.bind(name, gated.place(name))
    await gated.step()
    await gated.room.tend()
    ((_, kept),) = gated.state.reserved.items()
    assert str(kept.pod) == "default/ring spare 1"
    return {**{name: gated.place(name) for name in names}, "spare": kept.node}


async def test_the_last_linked_set_of_a_pod_without_a_node_is_no_spare_node(gated: GatesBench) -> None:
    for name in "abc":
        gated.node(name)
    for rank in range(2):
        member(gated, rank)
    await gated.place_all()
    gated.pod("doubtful", NEURON, 16, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("doubtful") == []
    for rank in range(2):
        gated.bind(f"ring-{rank}-0", gated.place(f"ring-{rank}-0"))
    await gated.step()
    await gated.room.tend()
    assert not gated.state.reserved

    gated.node("d")
    await gated.step(after=TIMES.retry)
    await gated.room.tend()
    assert len(gated.state.reserved) == 1


async def test_a_spare_node_of_the_group_s_domain_is_kept_and_given_to_a_lost_member_and_another_is_kept(
    gated: GatesBench,
) -> None:
    before = await with_spare(gated)
    assert {node[0] for node in before.values()} == {before["spare"][0]}, "all are in one rack"
    lost = before["ring-1-0"]
    gated.server.delete_node(lost)
    gated.state.remove_node(lost, gated.state.nodes[lost].node.uid)
    gated.server.delete_pod("default", "ring-1-0", grace_seconds=0)
    await gated.step()
    await gated.room.tend()
    gated.pod("other", NEURON, 16)
    again = member(gated, 1, generation=1)
    await gated.place_all()
    assert gated.place(again) == before["spare"]
    assert gated.place("other")[0] != before["spare"][0], "the other rack has room"
    gated.bind(again, gated.place(again))
    await gated.step()
    await gated.room.tend()
    ((key, kept),) = gated.state.reserved.items()
    assert (key, kept.node[0] != before["spare"][0]) == ("default/ring#spare.1", True), "its rack has none left"
    for name in ("ring-0-0", again):
        gated.server.delete_pod("default", name, grace_seconds=0)
    await gated.step()
    await gated.room.tend()
    assert not [key for key in gated.state.reserved if "spare" in key], "nothing of the group is left"


async def test_a_lost_member_whose_own_place_is_well_comes_back_to_it_and_not_to_the_spare_node(
    gated: GatesBench,
) -> None:
    before = await with_spare(gated)
    gated.server.delete_pod("default", "ring-1-0", grace_seconds=0)
    await gated.step()
    again = member(gated, 1, generation=1)
    await gated.place_all()
    assert gated.place(again) == before["ring-1-0"]
    assert "default/ring#spare.1" in gated.state.reserved


async def test_a_spare_node_is_lent_to_pods_that_may_be_moved_where_they_fit_nowhere_else(gated: GatesBench) -> None:
    before = await with_spare(gated)
    for number in range(3):
        gated.pod(f"fill-{number}", NEURON, 16)
    await gated.place_all()
    movable: AnyJson = {"annotations": {MOVABLE_KEY: "true"}, "owner": "ReplicaSet/web"}
    gated.pod("urgent", NEURON, 16, **movable, spec={"priority": 10})
    gated.pod("nobody-s", NEURON, 16, annotations=movable["annotations"])
    gated.pod("stays", NEURON, 16, owner="ReplicaSet/web")
    gated.pod("lent", NEURON, 16, **movable)
    await gated.place_all()
    assert [gated.place(name) for name in ("urgent", "nobody-s", "stays", "lent")] == ["", "", "", before["spare"]]
    assert "default/ring#spare.1" in gated.state.reserved, "it is lent, and kept still"


async def test_the_places_of_a_group_last_under_the_next_leader_from_when_it_came_on(gated: GatesBench) -> None:
    workers = {"containers": [container("main", NEURON, 16)]}
    gated.server.create(LEADER_WORKER_SETS, worker_set(2, workers), "default")
    first = await leading(gated, "one")
    for name in ("a", "b"):
        first.node(name)
    first.pod("serve-0", NEURON, 16, **lws(0, size=2))
    for _ in range(3):
        await first.step(after=TIMES.leader)
    await first.step(after=TIMES.reserve - 60)
    first.bind("serve-0", first.place("serve-0"))
    await first.step(after=120)
    await first.room.tend()
    second = await leading(first, "two")
    await second.room.tend()
    second.pod("greedy", NEURON, 16)
    await second.place_all()
    second.pod("serve-0-1", NEURON, 16, **lws(1, size=2))
    await second.place_all()
    assert (second.place("greedy"), bool(second.place("serve-0-1"))) == ("", True)


async def test_pods_of_a_statefulset_that_come_one_by_one_are_placed_where_all_fit(gated: GatesBench) -> None:
    """By default each of its pods is made once the one before is ready."""
    body = msgspec.json.encode({"spec": {"replicas": 3}})
    gated.server.fail(Fault(Match(method="GET", path="/statefulsets/db$"), body=body))
    gated.node("a")
    for index in range(3):
        number = {"apps.kubernetes.io/pod-index": str(index)}
        gated.pod(f"db-{index}", NEURON, 4, group="db", size=3, labels=number, owner="StatefulSet/db")
        for _ in range(3):
            await gated.step(after=TIMES.leader)
        assert gated.place(f"db-{index}") == "a"
        assert gated.annotations(f"db-{index}")["neuron-plugin.io/rank"] == str(index)
        gated.bind(f"db-{index}", "a")
        if index == 0:
            gated.pod("greedy", NEURON, 8)
    await gated.room.tend()
    assert not gated.state.reserved
    await gated.place_all()
    assert gated.place("greedy") == ""
