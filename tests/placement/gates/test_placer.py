"""Gated pods are placed: what one write says, who is left to kube-scheduler, and what groups get."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.allocation.keys import (
    GATE,
    MOVABLE_KEY,
    NODE_KEY,
    POD_UID_KEY,
    RELEASED_KEY,
    SPARES_KEY,
    ULTRASERVER_KEY,
)
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.placement.changes import MOST_CHANGES
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.placer import (
    FORBIDDEN,
    MANY_IN_FLIGHT,
    MOST_IN_FLIGHT,
    RELEASED,
    REST_SECONDS,
    RESTART,
)
from neuron_plugin.placement.group_places import MOST_RESERVED_GROUPS, NO_RESERVE
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.simulation.api_server_kinds import (
    CLAIMS,
    LEADER_WORKER_SETS,
    NODES,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
)
from neuron_plugin.topology import CoreMask
from tests.placement.gates.bench import CORE, EPOCH, LEASE, NEURON, GatesBench
from tests.support.api_server import Fault, Match
from tests.support.manifests import container

TIMES = Times()


def container_with_memory(mib: int) -> AnyJson:
    found = container("main", CORE, 1)
    for quantities in found["resources"].values():
        quantities["neuron-plugin.io/memory"] = str(mib)
    return found


PATCH = Match(method="PATCH", path="/pods/")
OTHER_GATE = "kueue.x-k8s.io/admission"


async def test_a_pod_is_placed_by_one_patch(gated: GatesBench) -> None:
    gated.node("a")
    made = gated.pod("train", NEURON, 8)
    await gated.step()
    assert gated.requests() == 1
    assert gated.gates("train") == []
    assert gated.terms("train") == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    written = gated.annotations("train")
    assert written.pop("NEURON_DEVS") in {"0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"}
    assert written == {
        "NEURON_ALLOC_TIME": str(int(EPOCH * 1e9)),
        "NEURON_ALLOCATED": "false",
        NODE_KEY: "a",
        POD_UID_KEY: made["metadata"]["uid"],
    }
    assert gated.of("train")["metadata"]["labels"] == {NODE_KEY: "a"}
    assert not gated.state.assumed
    await gated.step(after=60)
    assert gated.requests() == 1


async def test_the_pin_is_added_to_each_term_that_was_there(gated: GatesBench) -> None:
    gated.node("a")
    zone = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["trn1.32xlarge"]}
    terms: list[AnyJson] = [
        {"matchExpressions": [zone]},
        {"matchExpressions": [{"key": "nosuch", "operator": "Exists"}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    gated.pod("train", spec={"affinity": {"nodeAffinity": required}})
    await gated.step()
    pin = [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
    assert gated.terms("train") == [{**term, "matchFields": pin} for term in terms]


async def test_pods_placed_in_one_step_share_nothing(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(4):
        gated.pod(f"train-{number}", NEURON, 8)
    await gated.step()
    assert sorted(gated.place(f"train-{number}") for number in range(4)) == ["", "", "a", "a"]
    first, second = (gated.annotations(name)["NEURON_DEVS"] for name in ("train-0", "train-1"))
    assert not set(first.split(",")) & set(second.split(","))


@pytest.mark.parametrize(("pods", "rest"), [(MANY_IN_FLIGHT, REST_SECONDS), (MANY_IN_FLIGHT - 1, TIMES.gather)])
async def test_while_the_api_server_is_behind_what_comes_is_gathered_in_a_moments_rest(
    gated: GatesBench, pods: int, rest: float
) -> None:
    gated.node("a")
    for number in range(pods):
        gated.pod(f"train-{number:02}", CORE)
    gated.server.fail(Fault(PATCH, gate=asyncio.Event(), times=pods))
    running = asyncio.create_task(gated.placer.run())
    while gated.placer.under_way < pods:
        await asyncio.sleep(0)
    gated.state.changes.wake()
    await asyncio.sleep(0.01)
    running.cancel()
    await gated.placer.drain()
    assert gated.rested[-1] == rest


async def test_no_more_writes_are_under_way_than_do_good(gated: GatesBench) -> None:
    for number in range(3):
        gated.node(f"n{number}")
    for number in range(MOST_IN_FLIGHT + 6):
        gated.pod(f"worker-{number}", CORE, group="job", size=MOST_IN_FLIGHT + 6)
    answers = asyncio.Event()
    gated.server.fail(Fault(PATCH, gate=answers, times=MOST_IN_FLIGHT))
    for _ in range(40):
        gated.placer.step()
        await asyncio.sleep(0)
    assert gated.placer.under_way == MOST_IN_FLIGHT
    answers.set()
    await gated.place_all()
    assert all(gated.place(f"worker-{number}") for number in range(MOST_IN_FLIGHT + 6))


async def test_a_pod_waits_while_others_hold_it_too(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("queued", gates=(GATE, OTHER_GATE))
    await gated.step()
    assert gated.requests() == 0
    gated.server.patch_pod("default", "queued", {"spec": {"schedulingGates": [{"name": GATE}]}})
    await gated.step()
    assert gated.place("queued") == "a"


async def test_no_write_while_nothing_fits_and_a_place_as_soon_as_something_does(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("first", NEURON, 16)
    await gated.step()
    gated.pod("second", NEURON, 16)
    await gated.step(after=5)
    assert gated.place("second") == ""
    assert gated.requests() == 1
    gated.server.delete_pod("default", "first", grace_seconds=0)
    await gated.step()
    assert gated.place("second") == "a"


async def test_a_pod_that_changed_meanwhile_is_read_again(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train")
    gated.server.patch_pod("default", "train", {"metadata": {"labels": {"edited": "yes"}}})
    gated.placer.step()
    await gated.placer.drain()
    assert gated.gates("train") == [GATE]  # 409: the version that was read is an old one
    gated.placer.step()
    await gated.placer.drain()
    assert gated.requests() == 1  # not before the watch shows what it is now
    await gated.step()
    assert gated.place("train") == "a"
    assert not gated.state.assumed


async def test_a_refused_write_is_tried_again_after_a_while(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train")
    gated.server.fail(Fault(PATCH, status=403, times=2))
    await gated.step()
    await gated.step(after=TIMES.refused / 2)
    assert gated.requests() == 1
    for _ in range(2):
        await gated.step(after=TIMES.refused + 1)
    assert gated.place("train") == "a"
    assert [reason for reason, _ in gated.events("train")] == [FORBIDDEN]


async def test_a_lost_answer_keeps_the_set_until_a_read_says_what_became_of_it(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16)
    gated.server.fail(Fault(PATCH, lose_answer=True))
    gated.placer.step()
    await gated.placer.drain()
    gated.placer.step()
    assert list(gated.state.assumed) == [gated.record("train").uid]
    assert gated.requests() == 1
    gated.now += 60
    await gated.writer.settle(())
    gated.sync()
    assert gated.place("train") == "a"
    assert not gated.state.assumed


async def test_nothing_is_written_by_a_replica_that_does_not_lead(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train")
    gated.ready.unmet(CONDITION, "another replica leads")
    await gated.step()
    assert gated.requests() == 0


async def test_priority_comes_before_age(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("old", NEURON, 16)
    gated.now += 10
    gated.pod("urgent", NEURON, 16, priority=10)
    await gated.step()
    assert (gated.place("urgent"), gated.place("old")) == ("a", "")


async def test_a_pod_that_no_scheduler_could_serve_keeps_its_gate(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("typo", annotations={"neuron-plugin.io/placement": "spraed"})
    await gated.step()
    assert gated.gates("typo") == [GATE]


async def test_cpu_is_counted_as_kube_scheduler_does(gated: GatesBench) -> None:
    gated.node("a", cpu="4")
    gated.node("b", cpu="16")
    gated.pod("first", cpu="10")
    gated.pod("second", cpu="10")
    await gated.step()
    assert {gated.place("first"), gated.place("second")} == {"b", ""}


@pytest.mark.parametrize(("cpu", "nominated"), [("6", False), ("15", True)])
async def test_a_pod_is_nominated_first_where_little_cpu_is_left(
    gated: GatesBench, cpu: str, *, nominated: bool
) -> None:
    gated.node("a", cpu="16")
    gated.pod("train", cpu=cpu)
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/train$"), status=403))
    await gated.step()
    assert gated.gates("train") == [GATE]
    assert gated.of("train")["status"].get("nominatedNodeName", "") == ("a" if nominated else "")
    await gated.step(after=TIMES.refused + 1)
    assert gated.place("train") == "a"
    assert gated.gates("train") == []


async def test_what_an_unanswered_patch_may_still_do_is_waited_for_from_its_own_start(gated: GatesBench) -> None:
    """Not from the choice: a nomination came in between."""
    gated.node("a", cpu="16")
    gated.pod("train", cpu="15")
    nominated = asyncio.Event()
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/train/status$"), gate=nominated))
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/train$"), drop=True))
    gated.placer.step()
    while not gated.requests():
        await asyncio.sleep(0)
    gated.now = 2.0
    nominated.set()
    await gated.placer.drain()
    for now, kept in ((TIMES.landing + 1, True), (2 + TIMES.landing + 1, False)):
        gated.now = now
        await gated.writer.settle()
        assert bool(gated.state.assumed) is kept


async def test_amounts_wait_where_kube_scheduler_knows_none(gated: GatesBench) -> None:
    """No node offers them, so kube-scheduler would never bind the pod; with an extender it leaves them to that."""
    gated.node("a")
    gated.pod("shares", containers=[container_with_memory(20_000)])
    await gated.step()
    assert gated.gates("shares") == [GATE]


async def test_amounts_that_nodes_offer_are_shared_by_the_pods_that_fit_a_device(gated: GatesBench) -> None:
    gated.node("a", offers={"neuron-plugin.io/memory": "524288"})
    for name in ("one", "two"):
        gated.pod(name, containers=[container_with_memory(20_000)], annotations={"neuron-plugin.io/allow-devices": "3"})
    await gated.step()
    assert sorted(gated.place(name) for name in ("one", "two")) == ["", "a"]


def required(kind: str, term: AnyJson) -> AnyJson:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


WEB, DB = {"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "db"}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB}
DOUBTFUL = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}


async def test_a_deployment_with_hard_rules_among_its_pods_gets_linked_devices(gated: GatesBench) -> None:
    for name, zone in (("a", "x"), ("b", "x"), ("c", "y")):
        gated.labelled_node(name, zone=zone)
    anti = required("podAntiAffinity", {"labelSelector": WEB, "topologyKey": "kubernetes.io/hostname"})
    for node in gated.server.objects(NODES):
        name = node["metadata"]["name"]
        gated.server.patch_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
    for node in gated.server.objects(NODES):
        gated.world.show_node(node)
    for number in range(3):
        gated.pod(
            f"web-{number}", NEURON, 4, labels={"app": "web"}, spec={**anti, "topologySpreadConstraints": [SPREAD]}
        )
    await gated.place_all()
    places = [gated.place(f"web-{number}") for number in range(3)]
    assert sorted(places) == ["a", "b", "c"]
    assert {"c"} < set(places[:2]), "the second goes to the other zone"


async def test_a_pod_that_needs_another_waits_until_that_one_is_bound(gated: GatesBench) -> None:
    """Its scheduler may take it up first, and finds no node then."""
    gated.labelled_node("a", zone="x")
    gated.pod("db", labels={"app": "db"})
    gated.pod("web", spec=required("podAffinity", {"labelSelector": DB, "topologyKey": "zone"}))
    await gated.place_all()
    assert (gated.place("db"), gated.place("web")) == ("a", "")
    gated.bind("db", "a")
    await gated.place_all()
    assert gated.place("web") == "a"


async def test_a_pod_goes_where_it_would_rather_be(gated: GatesBench) -> None:
    gated.labelled_node("a", disk="hdd")
    gated.labelled_node("b", disk="ssd")
    gated.pod("first", NEURON, 4, gates=(), node="a", annotations={"NEURON_DEVS": "0,1,2,3"})
    ssd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": ssd}]}
    gated.pod("train", NEURON, 4, spec={"affinity": {"nodeAffinity": preferred}})
    gated.pod("other", NEURON, 4)
    await gated.place_all()
    assert (gated.place("train"), gated.place("other")) == ("b", "a")


async def test_a_volume_that_waits_for_its_pod_is_bound_where_the_pod_is_placed(gated: GatesBench) -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["y"]}]}]
    waits = {"provisioner": "ebs", "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topologies}
    gated.server.create(STORAGE_CLASSES, {"metadata": {"name": "gp3"}, **waits}, "")
    gated.server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": {"storageClassName": "gp3"}}, "default")
    gated.labelled_node("a", zone="x")
    gated.labelled_node("b", zone="y")
    gated.pod("train", spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})
    await gated.place_all()
    assert gated.place("train") == "b"


async def test_a_pod_that_cannot_be_judged_is_kept_off_the_nodes_without_a_linked_set(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.node(name)
    for number, device in enumerate((0, 5, 10, 15)):  # of the twelve that are left no eight are linked in a ring
        gated.pod(f"small-{number}", NEURON, 1, gates=(), node="a", annotations={"NEURON_DEVS": str(device)})
    gated.pod("train", NEURON, 8, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == []
    assert gated.terms("train") == [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}]
    assert (gated.place("train"), gated.annotations("train")[RELEASED_KEY]) == ("", "excluded")
    ((event, note),) = gated.events("train")
    assert event == RELEASED
    assert "resource claims of another driver" in note
    assert len(gated.state.history.released) == 1
    assert gated.metrics.registry.get_sample_value("neuron_extender_released_plainly_total") == 1


async def test_as_many_pods_that_cannot_be_judged_are_let_go_as_linked_sets_are_left(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(3):
        gated.pod(f"train-{number}", NEURON, 8, spec=DOUBTFUL)
    gated.pod("judged", NEURON, 8)
    for _ in range(3):
        await gated.place_all()
    names = ["judged", *(f"train-{number}" for number in range(3))]
    assert sum(not gated.gates(name) for name in names) == 2
    gone = next(name for name in names if name != "judged" and not gated.gates(name))
    gated.server.delete_pod("default", gone, grace_seconds=0)
    await gated.place_all()
    assert sum(not gated.gates(name) for name in names if name != gone) == 2


async def test_a_pod_that_was_let_go_counts_as_a_promise_until_it_is_bound(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == []
    gated.pod("next", NEURON, 4)
    for _ in range(3):
        await gated.look(after=TIMES.patience)
    assert gated.gates("next") == [GATE]
    left = "0 of 1 Neuron node: 1 is left to a pod that was handed to its scheduler without a node"
    assert [note for _, note in gated.events("next")] == [f"{left}. In the way: default/train"]
    gated.node("b")
    await gated.place_all()
    assert gated.place("next") in {"a", "b"}, "one of the nodes is left to the first"


@pytest.mark.parametrize("limits", [{"aws.amazon.com/neuron-core": "1"}, {"cpu": "1"}, {}], ids=str)
@pytest.mark.parametrize("group", ["", "g"])
async def test_a_pod_with_the_gate_that_asks_for_no_neuron_is_let_go_and_told(
    gated: GatesBench, limits: dict[str, str], group: str
) -> None:
    gated.node("a")
    asked = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    gated.pod("wrong", containers=[asked], group=group, size=2)
    gated.pod("queued", containers=[asked], gates=(GATE, "kueue.x-k8s.io/admission"))
    await gated.place_all()
    assert (gated.gates("wrong"), gated.terms("wrong"), gated.place("wrong")) == ([], [], "")
    ((event, note),) = gated.events("wrong")
    assert event == RELEASED
    assert "asks for none of aws.amazon.com/neuron, aws.amazon.com/neurondevice, aws.amazon.com/neuroncore" in note
    assert note.endswith("Its scheduler chooses the node.")
    assert GATE in gated.gates("queued"), "the last gate is ours"
    assert not [pod for pod in gated.state.pods.values() if pod.reference.name == "wrong"]


async def test_a_pod_goes_where_its_bound_volume_is(gated: GatesBench) -> None:
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}}
    gated.server.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": affinity}}, "")
    gated.server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}}, "default")
    for name in ("a", "b"):
        gated.node(name)
        gated.server.patch_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
    for node in gated.server.objects(NODES):
        gated.world.show_node(node)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    gated.pod("train", spec={"volumes": [claim]})
    await gated.place_all()
    assert gated.place("train") == "b"


async def test_the_anti_affinity_of_pods_that_run_keeps_others_off(gated: GatesBench) -> None:
    gated.labelled_node("a", zone="z")
    term = {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    gated.pod("alone", gates=(), node="a", spec={"affinity": anti}, annotations={"NEURON_DEVS": "3"})
    gated.pod("train", labels={"app": "train"})
    gated.pod("other", labels={"app": "other"})
    await gated.place_all()
    assert gated.place("other") == "a"
    assert (gated.place("train"), gated.gates("train")) == ("", [GATE])


async def test_anti_affinity_is_kept_until_the_last_pod_that_has_it_is_gone(gated: GatesBench) -> None:
    gated.labelled_node("a", zone="z")
    term = {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for device in range(2):
        has = {"NEURON_DEVS": str(device)}
        gated.pod(f"alone-{device}", gates=(), node="a", spec={"affinity": anti}, annotations=has)
    placed = []
    for number in range(3):
        gated.pod(f"train-{number}", labels={"app": "train"})
        await gated.place_all()
        placed.append(gated.place(f"train-{number}"))
        if number < 2:
            gated.server.delete_pod("default", f"alone-{number}", grace_seconds=0)
    assert placed == ["", "", "a"]


JOB_KEY = "jobset.sigs.k8s.io/job-key"


def exclusive(job: str, topology_key: str) -> AnyJson:
    """The anti-affinity by which JobSet keeps the pods of other Jobs out of a Job's topology domain."""
    others = [{"key": JOB_KEY, "operator": "Exists"}, {"key": JOB_KEY, "operator": "NotIn", "values": [job]}]
    term = {"labelSelector": {"matchExpressions": others}, "topologyKey": topology_key}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def test_a_group_is_placed_beside_a_job_that_keeps_it_out_of_another_domain(gated: GatesBench) -> None:
    for name in ("a", "b", "c"):
        gated.labelled_node(name, rack="r1" if name == "a" else "r2")
    gated.pod("first-0", gates=(), node="a", labels={JOB_KEY: "first"}, spec=exclusive("first", "rack"))
    selector = {"nodeSelector": {"rack": "r2"}}  # of its own leader's domain
    for number in range(2):
        gated.pod(f"second-{number}", NEURON, 16, group="second", size=2, labels={JOB_KEY: "second"}, spec=selector)
    await gated.place_all()
    assert sorted(gated.place(f"second-{number}") for number in range(2)) == ["b", "c"]


async def test_a_pod_goes_where_no_running_job_keeps_it_off(gated: GatesBench) -> None:
    gated.labelled_node("a", rack="r1")
    gated.labelled_node("b", rack="r2")
    gated.pod("first-0", gates=(), node="a", labels={JOB_KEY: "first"}, spec=exclusive("first", "rack"))
    gated.pod("second", labels={JOB_KEY: "second"})
    gated.pod("third", labels={JOB_KEY: "third"}, spec={"nodeSelector": {"rack": "r2"}})
    await gated.place_all()
    assert (gated.place("second"), gated.place("third")) == ("b", "b")


async def test_a_node_without_the_label_of_an_anti_affinity_keeps_nobody_off(gated: GatesBench) -> None:
    gated.node("a")
    spec, has = exclusive("first", "rack"), {"NEURON_DEVS": "3"}
    gated.pod("first-0", gates=(), node="a", labels={JOB_KEY: "first"}, spec=spec, annotations=has)
    gated.pod("second", labels={JOB_KEY: "second"})
    await gated.place_all()
    assert gated.place("second") == "a"


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


async def test_a_pod_whose_placing_fails_for_a_fault_of_ours_is_tried_again_later_and_ends_nothing(
    gated: GatesBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> ApiRequest:
        raise ValueError("a fault of ours")

    gated.node("a")
    gated.pod("train")
    with monkeypatch.context() as patched:
        patched.setattr(writes, "place", broken)
        for _ in range(3):
            await gated.step(after=1)
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == ["placing failed"]
    assert not gated.state.assumed
    await gated.step(after=TIMES.refused)
    assert gated.place("train") == "a"


async def test_a_placer_that_has_missed_changes_looks_at_all_pods_again(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("big", NEURON, 16)
    gated.pod("late", NEURON, 16)
    await gated.step()
    gated.server.delete_pod("default", "big", grace_seconds=0)
    for _ in range(MOST_CHANGES + 1):
        gated.state.changes.add("other", None, None)
    await gated.step()
    assert gated.place("late") == "a"


async def test_a_pod_that_asks_for_two_resources_is_placed(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", containers=[container("one", NEURON, 4), container("two", CORE, 2)])
    await gated.step()
    assert gated.place("train") == "a"


async def test_one_more_pod_of_a_group_that_is_placed_is_placed_alone(gated: GatesBench) -> None:
    gated.node("a")
    for number in range(3):
        await gated.place_all()
        gated.pod(f"worker-{number}", NEURON, 4, group="job", size=2)
    await gated.place_all()
    assert [gated.place(f"worker-{number}") for number in range(3)] == ["a"] * 3
    assert [gated.gates(f"worker-{number}") for number in range(3)] == [[]] * 3


async def test_what_pods_without_neuron_ask_for_counts_from_the_moment_that_they_are_there(gated: GatesBench) -> None:
    gated.node("a", cpu="16")
    gated.pod("first", cpu="1")
    await gated.step()
    other = gated.pod("other", amount=0, gates=(), node="a")
    other["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "12"}
    gated.world.show(other)
    gated.pod("second", cpu="8")
    await gated.step()
    assert (gated.place("first"), gated.place("second")) == ("a", "")
    gated.server.delete_pod("default", "other", grace_seconds=0)
    gated.world.gone(other)
    await gated.step()
    assert gated.place("second") == "a"


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


async def leading(gated: GatesBench, holder: str) -> GatesBench:
    """A process of this name leads, and knows what the watches show."""
    other = GatesBench(gated.server, gated.api, None, holder)
    for node in gated.server.objects(NODES):
        other.world.show_node(node)
    other.sync()
    await other.room.take_over()
    return other


@pytest.mark.parametrize("lost", ["no answer", "a 500"])
async def test_a_group_cut_off_half_way_is_completed_by_the_next_leader(gated: GatesBench, lost: str) -> None:
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, group="job", size=2)
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
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, group="job", size=2)
    leader = await leading(gated, "one")
    gated.server.fail(Fault(Match(method="PATCH", path="/leases/"), status=500))
    await leader.step()
    gated.pod("urgent", NEURON, 8, spec={"priority": 10})
    await leader.step()
    assert [leader.gates(name) for name in names] == [[GATE], [GATE]]
    assert (leader.place("urgent"), leader.requests()) == ("", 0), "they are kept all the same"
    await leader.step(after=TIMES.retry)
    assert [leader.place(name) for name in names] == ["a", "a"]


async def test_a_group_that_loses_a_pod_while_its_places_are_written_down_is_not_released(gated: GatesBench) -> None:
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, group="job", size=2)
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
    gated.node("a")
    names = [f"worker-{number}" for number in range(2)]
    for name in names:
        gated.pod(name, NEURON, 8, group="job", size=2)
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


def lws(index: int) -> AnyJson:
    """What LeaderWorkerSet writes on the pods of its replica 0."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    labels = {f"{prefix}name": "serve", f"{prefix}group-index": "0", f"{prefix}worker-index": str(index)}
    return {"labels": labels, "annotations": {f"{prefix}size": "3"}}


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


async def test_a_leader_goes_alone_where_it_cannot_be_read_what_its_workers_ask_for(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("serve-0", NEURON, 8, **lws(0))
    await gated.step()
    assert gated.place("serve-0") == ""
    for _ in range(2):
        await gated.step(after=TIMES.leader)
    assert gated.place("serve-0") == "a"
    assert [reason for reason, _ in gated.events("serve-0")] == [NO_RESERVE]


async def test_the_leader_of_a_job_of_its_own_rack_is_placed_where_the_job_fits(gated: GatesBench) -> None:
    """A JobSet makes the other pods of such a Job once its first has a node."""
    gated.server.fail(Fault(Match(method="GET", path="/jobs/set$"), body=b'{"spec": {"parallelism": 3}}', times=9))
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2")):
        gated.labelled_node(name, rack=rack)
    gated.pod("used", NEURON, 8, gates=(), node="a", annotations={"NEURON_DEVS": "0,1,2,3,4,5,6,7"})
    says = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack", "batch.kubernetes.io/job-completion-index": "0"}
    labels = {JOB_KEY: "set", "jobset.sigs.k8s.io/global-replicas": "1"}
    own: AnyJson = {"labels": labels, "spec": exclusive("set", "rack"), "owner": "Job/set"}
    gated.pod("leader", NEURON, 8, group="set", size=3, annotations=says, **own)
    for _ in range(3):
        await gated.step(after=TIMES.leader)
    assert gated.place("leader") in {"b", "c"}
    assert {kept.node for kept in gated.state.reserved.values()} <= {"b", "c"}
    assert len(gated.state.reserved) == 2


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


async def test_pods_of_an_owner_keep_off_a_node_that_did_not_take_one(gated: GatesBench) -> None:
    gated.node("a")
    gated.node("b")
    gated.state.avoid("default/ReplicaSet/web", "a", until=100.0)
    gated.state.avoid("default/ReplicaSet/web", "b", until=10.0)
    gated.pod("web-1", owner="ReplicaSet/web")
    gated.pod("bare")
    await gated.step()
    assert (gated.place("web-1"), gated.place("bare")) == ("", "a")
    for _ in range(2):
        await gated.look(after=TIMES.patience)
    ((_, note),) = gated.events("web-1")
    assert note == "0 of 2 Neuron nodes: 2 have not taken a pod of the same controller lately"
    await gated.step(after=20)
    assert gated.place("web-1") == "b"


async def test_a_pod_goes_elsewhere_where_the_node_with_room_made_for_it_is_not_good_any_more(
    gated: GatesBench,
) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 4, cpu="2")
    gated.state.reserve(Reservation(gated.record("train").reference, "a", CoreMask(0xFF)))
    gated.node("a", cpu="1")
    await gated.step()
    assert gated.place("train") == ""
    gated.node("b")
    await gated.step()
    assert gated.place("train") == "b"


# UltraServers.


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
    assert reason == RESTART
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
