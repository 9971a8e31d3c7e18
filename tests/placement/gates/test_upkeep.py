"""What becomes of gated pods that wait, and of placements that turn out wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.preflight import CheckScope
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement.context import PAUSE_FACTOR, Times
from neuron_plugin.placement.gates.upkeep import MOST_EVENTS, MOST_RELEASED
from neuron_plugin.planning import Judgement, Scene
from neuron_plugin.planning.judgement import HELD_BY_OLD_PODS
from neuron_plugin.simulation.api_server_kinds import CLAIMS, PODS, VOLUMES
from neuron_plugin.topology import CoreMask
from tests.placement.gates.bench import CORE, NEURON, GatesBench
from tests.support.api_server import Fault, Match, StandInApiServer

TIMES = Times()


async def test_an_event_says_why_a_pod_waits_once(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("big", NEURON, 16)
    await gated.step()
    gated.pod("train", NEURON, 16)
    for _ in range(4):
        await gated.look(after=TIMES.again)
    ((reason, note),) = gated.events("train")
    assert reason == EventReason.WAITING
    assert "1 node" in note or "devices" in note


async def test_many_pods_that_begin_to_wait_are_told_in_several_looks(gated: GatesBench) -> None:
    gated.node("a")
    names = [f"train-{number}" for number in range(MOST_EVENTS + 1)]
    for name in names:
        gated.pod(name, NEURON, 16, cpu="80")
    await gated.look()
    told = []
    for _ in range(2):
        await gated.look(after=TIMES.patience)
        told.append(sum(len(gated.events(name)) for name in names))
    assert told == [MOST_EVENTS, MOST_EVENTS + 1]


async def test_reasons_that_take_long_to_work_out_are_worked_out_less_often(
    gated: GatesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16, cpu="80")
    judge, judged = gated.upkeep._judge, list[float]()

    def slow(scene: Scene, pods: Iterable[NeuronPod]) -> list[Judgement]:
        judged.append(gated.now)
        gated.now += 3.0
        return judge(scene, pods)

    monkeypatch.setattr(gated.upkeep, "_judge", slow)
    for _ in range(60):
        await gated.look(after=1.0)
    assert len(judged) == 2
    assert judged[1] - judged[0] >= 3.0 * PAUSE_FACTOR
    gated.pod("other", NEURON, 16, cpu="90")
    for _ in range(3):
        await gated.look(after=1.0)
    assert len(judged) == 3, "the reason of a new one does not wait"


async def test_of_pods_of_one_kind_those_of_another_deployment_are_not_told_what_helps_the_first(
    gated: GatesBench,
) -> None:
    gated.node("a")
    old = {"pod-template-hash": "1"}
    gated.pod(
        "old",
        NEURON,
        16,
        gates=(),
        node="a",
        annotations={"NEURON_DEVS": ",".join(map(str, range(16)))},
        labels=old,
        owner="ReplicaSet/web-1",
    )
    gated.pod("new", NEURON, 16, labels={"pod-template-hash": "2"}, owner="ReplicaSet/web-2")
    gated.pod("other", NEURON, 16, labels={"pod-template-hash": "3"}, owner="ReplicaSet/batch-3")
    for _ in range(2):
        await gated.look(after=TIMES.again)
    ((_, told),) = gated.events("new")
    ((_, other),) = gated.events("other")
    assert told == f"{other}. {HELD_BY_OLD_PODS}"


async def test_another_reason_is_told_too(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16, cpu="80")
    for _ in range(2):
        await gated.look(after=TIMES.again)
    gated.node("a", cpu="96", unhealthy={3: "ECC"})
    for _ in range(3):
        await gated.look(after=TIMES.again)
    notes = [note for _, note in gated.events("train")]
    assert len(notes) == 2
    assert notes[0] != notes[1]


async def test_members_of_a_group_hear_that_it_does_not_fit_as_a_whole(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(3):
        gated.pod(f"worker-{number}", NEURON, 8, group="job", size=3)
    for _ in range(2):
        await gated.look(after=TIMES.again)
    for number in range(3):
        ((_, note),) = gated.events(f"worker-{number}")
        assert "Its group job does not fit as a whole: there is room together for 2 of 3" in note


async def test_the_reason_keeps_to_the_nodes_that_the_pods_volume_leaves(gated: GatesBench) -> None:
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}}
    gated.server.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": affinity}}, "")
    gated.server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}}, "default")
    gated.node("a")
    gated.labelled_node("b", **{"kubernetes.io/hostname": "b"})
    gated.pod("holder", NEURON, 16, gates=(), node="b", annotations={"NEURON_DEVS": ",".join(map(str, range(16)))})
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    gated.pod("train", NEURON, 8, spec={"volumes": [claim]})
    for _ in range(3):
        await gated.look(after=TIMES.again)
    ((_, note),) = gated.events("train")
    assert note == (
        "0 of 2 Neuron nodes: 1 cannot use the volume disk, 1 has 0 of 16 devices free. In the way: default/holder"
    )


async def test_members_of_a_group_hear_that_others_are_missing(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("worker-0", NEURON, 8, group="job", size=2)
    for _ in range(2):
        await gated.look(after=TIMES.again)
    ((_, note),) = gated.events("worker-0")
    assert "1 of the 2 pods of its group job are there" in note


async def test_a_pod_that_no_scheduler_could_serve_hears_what_was_expected(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("typo", annotations={"neuron-plugin.io/placement": "spraed"})
    for _ in range(2):
        await gated.look(after=TIMES.again)
    ((_, note),) = gated.events("typo")
    assert "spraed" in note
    assert "pack or spread" in note


@pytest.mark.parametrize(
    ("setting", "path", "released"),
    [
        (3.0, "", True),
        (None, "", False),
        ("auto", "", False),
        ("auto", "/apis/karpenter.sh", True),
        ("auto", "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status", True),
    ],
)
async def test_a_pod_that_fits_nowhere_by_count_is_released_for_an_autoscaler(
    server: StandInApiServer, api: KubernetesApi, setting: float | str | None, path: str, *, released: bool
) -> None:
    if path:
        server.fail(Fault(Match(method="GET", path=path), body=b"{}", times=100))
    gated = GatesBench(server, api, release_when_full=setting)
    gated.node("a")
    gated.pod("first", NEURON, 16)
    await gated.step()
    gated.bind("first", "a")
    gated.pod("second", NEURON, 16)
    await gated.look()
    assert gated.gates("second") == [GATE]
    for _ in range(3):
        await gated.look(after=TIMES.full)
    assert gated.gates("second") == ([] if released else [GATE])
    assert gated.terms("second") == []
    assert (EventReason.RELEASED_PLAINLY in [reason for reason, _ in gated.events("second")]) is released


async def test_a_pod_for_which_room_was_made_waits_for_it_and_for_no_autoscaler(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    gated = GatesBench(server, api, release_when_full=3.0)
    gated.node("a")
    gated.pod("first", NEURON, 16)
    await gated.step()
    gated.bind("first", "a")
    gated.pod("urgent", NEURON, 16)
    gated.state.reserve(Reservation(gated.record("urgent").reference, "a", CoreMask(2**32 - 1)))
    for _ in range(3):
        await gated.look(after=TIMES.full)
    assert (gated.gates("urgent"), gated.events("urgent")) == ([GATE], [])
    gated.state.release(gated.record("urgent").uid)
    await gated.look(after=TIMES.full)
    await gated.look(after=TIMES.full)
    assert gated.gates("urgent") == []


@pytest.mark.parametrize("checked", [True, False])
async def test_a_pod_is_not_released_onto_a_node_that_has_not_passed_its_check(
    server: StandInApiServer, api: KubernetesApi, *, checked: bool
) -> None:
    """Its scheduler counts free devices there. A node that is cordoned is not counted, so the autoscaler makes one."""
    gated = GatesBench(server, api, release_when_full=3.0)
    gated.node("a")
    if checked:
        gated.state.check(CheckScope("kube-system"))
    else:
        gated.node("a", offers={"aws.amazon.com/neuron": "0"})
    gated.pod("train", NEURON, 16)
    for _ in range(3):
        await gated.look(after=TIMES.full)
    assert gated.gates("train") == ([GATE] if checked else [])


async def test_a_pod_waits_for_the_bind_of_the_pod_that_it_wants_to_be_near_and_for_no_autoscaler(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    gated = GatesBench(server, api, release_when_full=3.0)
    gated.labelled_node("a", zone="east")
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    gated.pod("cache", NEURON, 4, labels={"app": "cache"})
    await gated.place_all()
    gated.pod("web", NEURON, 4, spec={"affinity": near})
    for _ in range(4):
        await gated.look(after=3.0)
    assert gated.gates("web") == [GATE], "an autoscaler's node would be of no use"
    gated.bind("cache", "a")
    await gated.place_all()
    assert gated.place("web") == "a"


async def test_an_autoscaler_is_not_taken_for_gone_while_the_server_cannot_answer(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(Match(method="GET", path="/apis/karpenter.sh"), body=b"{}"))
    gated = GatesBench(server, api, release_when_full="auto")
    await gated.look()
    server.fail(Fault(Match(method="GET", path="karpenter.sh|cluster-autoscaler-status"), status=503, times=100))
    await gated.look(after=TIMES.autoscaler)
    assert gated.upkeep.has_autoscaler
    server.forgive()
    await gated.look(after=TIMES.autoscaler)
    assert not gated.upkeep.has_autoscaler


async def test_many_pods_are_released_for_an_autoscaler_in_several_looks(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    gated = GatesBench(server, api, release_when_full=3.0)
    gated.node("a")
    gated.pod("first", NEURON, 16, node="a", gates=(), annotations={"NEURON_DEVS": "0-15"})
    names = [f"train-{number}" for number in range(MOST_RELEASED + 2)]
    for number, name in enumerate(names):
        gated.pod(name, NEURON, 16, cpu=str(1 + number // 2))  # two of a kind
    released = []
    for _ in range(3):
        await gated.look(after=3.0)
        released.append(sum(not gated.gates(name) for name in names))
    assert released == [0, MOST_RELEASED, MOST_RELEASED + 2]


async def test_a_pod_that_only_lacks_links_keeps_its_gate(server: StandInApiServer, api: KubernetesApi) -> None:
    gated = GatesBench(server, api, release_when_full=3.0)
    gated.node("a")
    for number, device in enumerate((0, 5, 10, 15)):
        annotations = {"NEURON_DEVS": str(device)}
        gated.pod(f"small-{number}", NEURON, 1, gates=(), node="a", annotations=annotations)
    gated.pod("train", NEURON, 8)
    for _ in range(3):
        await gated.look(after=10)
    assert gated.gates("train") == [GATE]


async def test_a_promise_over_a_device_that_got_sick_is_taken_off(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16)
    await gated.step()
    gated.node("a", unhealthy={3: "ECC"})
    gated.pod("next", CORE, 1)
    gated.placer.step()
    await gated.placer.drain()
    assert gated.place("next") == ""  # the first may yet be bound with what it was promised
    await gated.look()
    assert gated.place("train") == ""
    assert gated.annotations("train").keys().isdisjoint({"NEURON_DEVS", "NEURON_ALLOC_TIME"})
    assert "neuron-plugin.io/node" not in gated.of("train")["metadata"].get("labels", {})
    assert gated.terms("train"), "the pin cannot be taken back"
    await gated.step()
    assert gated.place("next") == "a"


async def test_a_promise_on_a_node_that_is_gone_is_taken_off(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train")
    await gated.step()
    gated.server.delete_node("a")
    gated.state.remove_node("a", gated.state.nodes["a"].node.uid)
    await gated.look()
    assert gated.place("train") == ""


@pytest.mark.parametrize("lost", ["its node", "a device"])
async def test_a_pod_that_is_made_again_is_deleted_if_it_loses_its_place_before_it_is_bound(
    gated: GatesBench, lost: str
) -> None:
    """Its affinity binds it to the node for good, and maybe nothing of it is free there, or it never comes back."""
    gated.node("a")
    gated.pod("train", NEURON, 16, owner="ReplicaSet/web")
    await gated.step()
    if lost == "its node":
        gated.server.delete_node("a")
        gated.state.remove_node("a", gated.state.nodes["a"].node.uid)
    else:
        gated.node("a", unhealthy={3: "ECC"})
    gated.server.fail(Fault(Match(method="DELETE", path="/pods/train$"), status=409))  # its scheduler wrote on it
    await gated.look()
    assert gated.place("train") == "a"
    await gated.look()
    assert not is_there(gated, "train")


async def placed_and_stuck(gated: GatesBench, owner: str) -> None:
    gated.node("a")
    gated.pod("train", owner=owner)
    await gated.step(after=TIMES.stuck)
    gated.unschedulable("train")
    await gated.look()
    await gated.look(after=TIMES.stuck - 1)
    assert gated.place("train") == "a"
    await gated.look(after=2)


def is_there(gated: GatesBench, name: str) -> bool:
    pods = [pod["metadata"] for pod in gated.server.objects(PODS)]
    return any(pod["name"] == name and not pod.get("deletionTimestamp") for pod in pods)


@pytest.mark.parametrize("owner", ["ReplicaSet/web", "StatefulSet/db"])
async def test_a_pod_that_is_made_again_is_deleted_and_keeps_off_that_node(gated: GatesBench, owner: str) -> None:
    await placed_and_stuck(gated, owner)
    assert not is_there(gated, "train")
    assert [reason for reason, _ in gated.events("train")] == [EventReason.PLACEMENT_FAILED]
    gated.node("b")
    gated.pod("again", owner=owner)
    await gated.step()
    assert gated.place("again") == "b"


@pytest.mark.parametrize(("owner", "write"), [("ReplicaSet/web", "DELETE"), ("Job/train", "POST")])
async def test_a_pod_that_was_bound_before_it_could_be_deleted_stays(gated: GatesBench, owner: str, write: str) -> None:
    gated.server.fail(Fault(Match(method="GET", path="/jobs/train$"), body=msgspec.json.encode(job(IGNORES)), times=10))
    gated.node("a")
    gated.pod("train", owner=owner)
    await gated.step(after=TIMES.stuck)
    gated.unschedulable("train")
    await gated.look()
    bound = asyncio.Event()
    gated.server.fail(Fault(Match(method=write, path="/pods/train(/eviction)?$"), gate=bound))
    gated.now += TIMES.stuck + 1
    looking = asyncio.create_task(gated.upkeep.look())
    while not any(seen.method == write and "/pods/train" in seen.path for seen in gated.server.requests):
        await asyncio.sleep(0)
    gated.server.bind("default", "train", node="a")
    bound.set()
    await looking
    assert is_there(gated, "train")


async def test_a_bare_pod_stays_and_is_told(gated: GatesBench) -> None:
    await placed_and_stuck(gated, "")
    assert is_there(gated, "train")
    assert gated.place("train") == ""
    ((reason, note),) = gated.events("train")
    assert reason == EventReason.PLACEMENT_FAILED
    assert "node a" in note


def job(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"podFailurePolicy": {"rules": list(rules)}}}


IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
COUNTS = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(("manifest", "stays"), [(job(IGNORES), False), (job(COUNTS), True), ({}, True)])
async def test_a_pod_of_a_job_goes_only_if_its_end_is_no_failure(
    gated: GatesBench, manifest: dict[str, Any], *, stays: bool
) -> None:
    body = msgspec.json.encode(manifest)
    gated.server.fail(Fault(Match(method="GET", path="/jobs/train$"), body=body, times=10))
    await placed_and_stuck(gated, "Job/train")
    assert is_there(gated, "train") is stays


async def test_a_pod_for_which_its_scheduler_makes_room_is_left_alone(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", owner="ReplicaSet/web")
    await gated.step()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    gated.server.set_pod_status("default", "train", {"conditions": [condition], "nominatedNodeName": "a"})
    for _ in range(3):
        await gated.look(after=TIMES.stuck)
    assert gated.place("train") == "a"
