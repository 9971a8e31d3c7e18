"""Gated pods are placed: what one write says, and who is left to kube-scheduler."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import (
    GATE,
    NODE_KEY,
    POD_UID_KEY,
    RELEASED_KEY,
)
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.placement.changes import MOST_CHANGES
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.placer import MANY_IN_FLIGHT, REST_SECONDS
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.simulation.api_server_kinds import (
    CLAIMS,
    NODES,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
)
from neuron_plugin.topology import CoreMask
from tests.placement.gates.bench import CORE, DOUBTFUL, EPOCH, JOB_KEY, NEURON, PATCH, TIMES, GatesBench, exclusive
from tests.support.api_server import Fault, Match
from tests.support.manifests import container


def container_with_memory(mib: int) -> AnyJson:
    found = container("main", CORE, 1)
    for quantities in found["resources"].values():
        quantities["neuron-plugin.io/memory"] = str(mib)
    return found


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
    assert [reason for reason, _ in gated.events("train")] == [EventReason.PLACEMENT_FORBIDDEN]


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
    assert event == EventReason.RELEASED_PLAINLY
    assert "resource claims of another driver" in note
    assert len(gated.state.history.released) == 1
    assert gated.metrics["extender_released_plainly_total"].get(()) == 1


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
    gated.pod("last", NEURON, 16)
    await gated.place_all()
    assert gated.gates("last") == [GATE], "the last linked set is the first's"


async def test_of_a_group_that_cannot_be_judged_each_pod_is_kept_off_where_it_may_go_and_has_no_set(
    gated: GatesBench,
) -> None:
    for name in ("a", "b", "c"):
        gated.labelled_node(name, host=name)
    term = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "host"}
    anti = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    for device in (0, 5, 10, 15):
        says = {"NEURON_DEVS": str(device)}
        gated.pod(f"small-{device}", NEURON, 1, gates=(), node="a", annotations=says, spec=anti)
    for app in ("first", "second"):
        gated.pod(app, NEURON, 8, group="job", size=2, labels={"app": app}, spec=DOUBTFUL)
    await gated.place_all()
    assert [gated.gates(app) for app in ("first", "second")] == [[], []]
    assert [gated.terms(app) for app in ("first", "second")] == [
        [],
        [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}],
    ]


async def test_many_pods_without_a_node_keep_others_only_off_what_kube_scheduler_may_give_them(
    gated: GatesBench,
) -> None:
    for name in ("a", "b", "c"):
        gated.node(name)
    for number in range(5):
        gated.pod(f"train-{number}", NEURON, 8, spec=DOUBTFUL)
    await gated.place_all()
    assert [gated.gates(f"train-{number}") for number in range(5)] == [[]] * 5
    assert all("affinity" not in gated.of(f"train-{number}")["spec"] for number in range(5)), "each may go to each node"
    gated.pod("one", NEURON, 4)
    gated.pod("two", NEURON, 8)
    await gated.place_all()
    assert [gated.place(name) for name in ("one", "two")] == ["a", ""], "one of six sets was left"


async def test_a_node_to_which_a_pod_without_a_node_may_not_go_is_not_left_to_it(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.node(name)
    for number, device in enumerate((0, 5, 10, 15)):
        gated.pod(f"small-{number}", NEURON, 1, gates=(), node="a", annotations={"NEURON_DEVS": str(device)})
    gated.pod("train", NEURON, 8, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == []
    gated.server.patch_node("a", {"metadata": {"labels": {"kubernetes.io/hostname": "a"}}})
    gated.world.show_node(gated.server.get(NODES, "a", ""))
    gated.pod("next", NEURON, 1, spec={"nodeSelector": {"kubernetes.io/hostname": "a"}})
    await gated.place_all()
    assert gated.place("next") == "a", "it has no linked set for the first anyway"
    gated.pod("more", NEURON, 8, spec=DOUBTFUL)
    gated.pod("same-step", NEURON, 1, spec={"nodeSelector": {"kubernetes.io/hostname": "a"}})
    await gated.step()
    assert gated.gates("more") == []
    assert gated.place("same-step") == "a", "what was handed over a moment ago may not go there either"


async def test_a_pod_that_cannot_be_judged_does_not_stand_in_its_own_way(gated: GatesBench) -> None:
    gated.node("a")
    held = [device for device in range(16) if device not in {0, 1, 2, 3, 4, 8, 9, 14}]
    gated.pod("held", NEURON, 8, gates=(), node="a", annotations={"NEURON_DEVS": ",".join(map(str, held))})
    gated.pod("train", NEURON, 4, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == [], "one set is enough, though kube-scheduler counts devices for two"


async def test_a_node_keeps_the_only_set_of_a_pod_without_a_node_though_another_node_has_one(
    gated: GatesBench,
) -> None:
    for name in ("a", "b"):
        gated.node(name)
    for device in ("0", "4"):
        gated.pod(f"small-{device}", NEURON, 1, gates=(), node="a", annotations={"NEURON_DEVS": device})
    gated.pod("train", NEURON, 8, spec=DOUBTFUL)
    await gated.place_all()
    gated.pod("next", NEURON, 4)
    await gated.place_all()
    assert gated.place("next") == "b", "kube-scheduler may send the first to a, and would count enough there"


async def test_a_pod_that_cannot_be_judged_may_go_where_room_was_made_for_it(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("train", NEURON, 16, spec=DOUBTFUL)
    gated.state.reserve(Reservation(gated.record("train").reference, "a", CoreMask(0xFFFF_FFFF)))
    await gated.place_all()
    assert gated.gates("train") == []


async def test_a_group_leaves_a_linked_set_to_a_pod_that_was_let_go(gated: GatesBench) -> None:
    """Its scheduler may send it to the node: the kubelet counts fewer cores only once the group has its devices."""
    gated.node("a")
    gated.pod("train", CORE, 2, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == []
    for number in range(2):
        gated.pod(f"job-{number}", NEURON, 8, group="job", size=2)
    await gated.place_all()
    assert [gated.place(f"job-{number}") for number in range(2)] == ["", ""]
    gated.node("b")
    await gated.place_all()
    assert "b" in {gated.place(f"job-{number}") for number in range(2)}
    gated.bind("train", "a")


async def test_nothing_is_left_to_a_pod_without_a_node_that_has_no_place_any_more(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.node(name)
    gated.pod("small", NEURON, 1, gates=(), node="b", annotations={"NEURON_DEVS": "0"})
    gated.pod("train", NEURON, 16, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.gates("train") == []
    gated.node("a", unhealthy={0: "reset"})
    gated.pod("next", NEURON, 4)
    gated.pod("doubtful", NEURON, 4, spec=DOUBTFUL)
    await gated.place_all()
    assert gated.place("next") == "b"
    assert gated.gates("doubtful") == [], "it is handed over, too"


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
    assert event == EventReason.RELEASED_PLAINLY
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


# A server that is too busy.


async def test_a_server_that_is_too_busy_is_asked_again_when_it_says(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("p")
    gated.server.fail(Fault(PATCH, status=429, retry_after_seconds=1))
    await gated.step()
    assert (gated.place("p"), gated.rested) == ("a", [1])


async def test_while_a_server_says_no_more_than_that_it_is_too_busy_it_is_asked_each_second(gated: GatesBench) -> None:
    gated.node("a")
    gated.pod("p")
    gated.server.fail(Fault(PATCH, times=2, status=429))
    await gated.step()
    await gated.step(after=TIMES.tick)
    assert gated.place("p") == ""
    await gated.step(after=TIMES.tick)
    assert gated.place("p") == "a"
