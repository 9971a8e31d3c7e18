"""What people who run accelerators on Kubernetes have reported elsewhere, as it has to go here.

Each is a small story at the doors that it is about. Others of these reports are held where their subject is: claims in
``tests/placement/gates/test_claims.py``, files of samples in ``tests/simulation/commands/test_playground.py``, what a
pod is told while it waits in ``test_desks.py``.
"""

from __future__ import annotations

import pytest

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.simulation.api_server_kinds import LEADER_WORKER_SETS, STATEFUL_SETS
from tests.placement.doors import DOORS, Cluster
from tests.placement.gates.bench import NEURON, TIMES
from tests.support.api_server import StandInApiServer
from tests.support.manifests import container

ANY_DOOR = pytest.mark.parametrize("door", DOORS)
WHOLE = {"containers": [container("main", NEURON, 16)]}
LWS = "leaderworkerset.sigs.k8s.io/"
SPREAD_OUT = "0 5 10 15"
"""Pods of one device each that leave no linked set of four."""


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(StandInApiServer())


@ANY_DOOR
async def test_pods_that_would_rather_be_elsewhere_or_apart_are_where_they_fit(door: str, cluster: Cluster) -> None:
    """HAMi#2264, gpu-admission#15: all of them were on the first node."""
    cluster.nodes("a | b pool=reserved")
    assert await DOORS[door](cluster, "choosy", "neuron=4 prefers=pool:reserved*100") == "b"
    apart = {await DOORS[door](cluster, f"apart-{number}", "neuron=4 web apart=web*100") for number in range(2)}
    even = {await DOORS[door](cluster, f"even-{number}", "neuron=1 api evenly=api") for number in range(2)}
    assert apart == even == {"a", "b"}


# Groups of which some pods are made after others.


def stateful(cluster: Cluster, number: int) -> str:
    """A pod of a StatefulSet of two, which makes one after the other."""
    labels = {"app": "w", "apps.kubernetes.io/pod-index": str(number)}
    cluster.pod(f"w-{number}", NEURON, 16, group="w", size=2, labels=labels, owner="StatefulSet/w")
    return f"w-{number}"


async def test_the_first_pod_of_a_statefulset_goes_where_all_of_its_group_fit(cluster: Cluster) -> None:
    """kueue#3189, enhancements#6298: it waited for a second pod that is made once it runs."""
    template = {"metadata": {"labels": {"app": "w"}}, "spec": WHOLE}
    spec = {"replicas": 2, "template": template}
    cluster.server.create(STATEFUL_SETS, {"metadata": {"name": "w"}, "spec": spec}, "default")
    cluster.nodes("a | b 0")
    first = stateful(cluster, 0)
    for _ in range(3):
        await cluster.look(after=TIMES.leader)
    assert cluster.place(first) == "", "the second would not fit"
    cluster.nodes("c")
    await cluster.place_all()
    cluster.bind(first, cluster.place(first))
    cluster.pod("greedy", NEURON, 16)
    await cluster.place_all()
    second = stateful(cluster, 1)
    await cluster.place_all()
    assert {cluster.place(first), cluster.place(second)} == {"a", "c"}
    assert cluster.place("greedy") == ""


async def test_the_first_pod_of_a_group_goes_alone_with_a_word_where_nothing_says_what_comes(cluster: Cluster) -> None:
    cluster.nodes("a")
    first = stateful(cluster, 0)
    for _ in range(3):
        await cluster.look(after=TIMES.leader)
    assert cluster.place(first) == "a"
    assert [reason for reason, _ in cluster.events(first)] == [EventReason.GROUP_NOT_RESERVED]


def replicas(cluster: Cluster, size: str) -> None:
    """A LeaderWorkerSet of two replicas of two pods; its template may say that they are a group of some size."""
    said = {"neuron-plugin.io/group": "serve", "neuron-plugin.io/group-size": size} if size else {}
    template = {"size": 2, "workerTemplate": {"metadata": {"annotations": said}, "spec": WHOLE}}
    spec = {"replicas": 2, "leaderWorkerTemplate": template}
    cluster.server.create(LEADER_WORKER_SETS, {"metadata": {"name": "serve"}, "spec": spec}, "default")


def in_order(cluster: Cluster, index: int, size: str) -> list[str]:
    """Its controllers make all leaders, and then the workers of each."""
    said = {"neuron-plugin.io/group": "serve", "neuron-plugin.io/group-size": size} if size else {}
    names = []
    for replica in range(2):
        labels = {f"{LWS}name": "serve", f"{LWS}group-index": str(replica), f"{LWS}worker-index": str(index)}
        names.append(f"serve-{replica}" + (f"-{index}" if index else ""))
        cluster.pod(names[-1], NEURON, 16, labels=labels, annotations={f"{LWS}size": "2", **said})
    return names


@pytest.mark.parametrize("size", ["", "2"], ids=["no word of ours", "the size of a replica"])
async def test_of_two_replicas_for_which_there_is_no_room_one_is_placed_whole(cluster: Cluster, size: str) -> None:
    """lws#167, lws#407, lws#979: the leaders had a node each, and the workers waited for ever."""
    replicas(cluster, size)
    cluster.nodes("a | b")
    leaders = in_order(cluster, 0, size)
    for _ in range(3):
        await cluster.look(after=TIMES.leader)
    assert [bool(cluster.place(name)) for name in leaders] == [True, False]
    workers = in_order(cluster, 1, size)
    await cluster.place_all()
    first, second = zip(leaders, workers, strict=True)
    assert {cluster.place(name) for name in first} == {"a", "b"}
    assert [cluster.place(name) for name in second] == ["", ""]
    cluster.server.delete(LEADER_WORKER_SETS, "serve", "default")
    for name in first:
        cluster.server.delete_pod("default", name, grace_seconds=0)
    await cluster.place_all()
    assert {cluster.place(name) for name in second} == {"a", "b"}, "once there is room"


async def test_a_group_of_all_replicas_is_placed_when_all_of_it_fits_workers_to_come_as_well(cluster: Cluster) -> None:
    """lws#407: the leaders took the room of the workers that are made once they run."""
    replicas(cluster, "4")
    cluster.nodes("a | b | c")
    leaders = in_order(cluster, 0, "4")
    for _ in range(3):
        await cluster.look(after=TIMES.leader)
    assert [cluster.place(name) for name in leaders] == ["", ""]
    ((_, note),) = cluster.events("serve-0")
    assert note == (
        "Its group serve does not fit as a whole: there is room together for 3 of 4 waiting pods, at least 4 need it"
    )
    cluster.nodes("d")
    await cluster.place_all()
    cluster.pod("greedy", NEURON, 16)
    await cluster.place_all()
    workers = in_order(cluster, 1, "4")
    await cluster.place_all()
    assert {cluster.place(name) for name in (*leaders, *workers)} == {"a", "b", "c", "d"}
    assert cluster.place("greedy") == ""


# Rules of which a part cannot be judged, or that hold among pods.


@ANY_DOOR
@pytest.mark.parametrize(
    "rule",
    ["must-evenly=s@zone", "evenly=s@zone", "must-apart=s"],
    ids=["a spread that has to hold", "a spread that may be broken", "anti-affinity"],
)
async def test_a_pod_with_rules_among_pods_gets_linked_devices_or_waits(door: str, cluster: Cluster, rule: str) -> None:
    """k8s#129762, volcano#5751: it was given up, and got devices of the first node that are not linked."""
    cluster.nodes(f"a zone=z {SPREAD_OUT} | b zone=z")
    assert await DOORS[door](cluster, "first", f"neuron=4 s {rule}") == "b"
    second = await DOORS[door](cluster, "second", f"neuron=8 s {rule}")
    assert second == ("" if rule == "must-apart=s" else "b")
    assert await DOORS[door](cluster, "third", f"neuron=8 s {rule}") == "", "no linked set is left"


@ANY_DOOR
async def test_a_volume_that_nobody_has_made_keeps_its_pod_waiting(door: str, cluster: Cluster) -> None:
    cluster.nodes("a")
    assert await DOORS[door](cluster, "waits", "neuron=4 volume=not-bound-yet") == ""
