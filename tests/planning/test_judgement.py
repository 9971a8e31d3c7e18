"""What is said of a pod that waits: every reason with its count, who is in the way, what would help."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, PodUid, Resource
from neuron_plugin.allocation.keys import GATE, GROUP_KEY, GROUP_SIZE_KEY, MOVABLE_KEY, POD_UID_KEY, RELEASED_KEY
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.planning import Judgement, Scene, Standing, judge_all
from neuron_plugin.planning.judgement import judge
from neuron_plugin.topology import CoreMask
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest
from tests.support.world import World

NEURON, CORE, TRN1 = Resource.NEURON, Resource.NEURONCORE, "trn1.32xlarge"
SIXTEEN = ",".join(map(str, range(16)))


def offered(name: str, *, cpu: str = "64", pods: str = "110", **described: Any) -> dict[str, Any]:
    manifest = node_manifest(name, TRN1, **described)
    manifest["status"]["allocatable"] = {**manifest["status"]["allocatable"], "cpu": cpu, "pods": pods}
    return manifest


def cpu_node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}}


def of(world: World, name: str) -> NeuronPod:
    return next(pod for pod in world.state.pods.values() if pod.reference.name == name)


def judged(world: World, name: str, **more: Any) -> Judgement:
    return judge(world.state.scene(), of(world, name), **more)


def waiting(world: World, name: str, amount: int, resource: Resource = NEURON, **more: Any) -> dict[str, Any]:
    labels, owner, spec = more.pop("labels", {}), more.pop("owner", ""), more.pop("spec", {})
    manifest = pod_manifest(name, resource, amount, **more)
    manifest["metadata"]["labels"] = labels
    if owner:
        kind, _, made_by = owner.partition("/")
        manifest["metadata"]["ownerReferences"] = [{"kind": kind, "name": made_by, "controller": True}]
    manifest["spec"] |= spec
    world.show(manifest)
    return manifest


def test_nodes_with_neuron_come_first_and_each_reason_with_its_count(world: World) -> None:
    world.show_node(offered("trn"))
    for number in range(3):
        world.show_node(cpu_node(f"cpu-{number}"))
    world.held("first", "trn", NEURON, SIXTEEN)
    waiting(world, "second", 4)
    found = judged(world, "second")
    assert found.standing is Standing.SHORT
    assert found.text == (
        "0 of 1 Neuron node: 1 has 0 of 16 devices free; 3 nodes have no Neuron. In the way: default/first"
    )


def test_all_reasons_are_said_and_not_the_commonest_alone(world: World) -> None:
    world.show_node(offered("a", unhealthy={3: "ECC"}))
    world.show_node(offered("b", cpu="2"))
    tainted = offered("c")
    tainted["spec"] = {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
    world.show_node(tainted)
    waiting(world, "train", 16, containers=[_with_cpu("8")])
    assert judged(world, "train").sentence == (
        "0 of 3 Neuron nodes: 1 has 2 of cpu left, the pod asks for 8, 1 has the taint team=x:NoSchedule, which the "
        "pod does not tolerate, 1 lacks device 3"
    )


def _with_cpu(amount: str) -> dict[str, Any]:
    asked = container("main", NEURON, 16)
    asked["resources"]["requests"] = {**asked["resources"]["requests"], "cpu": amount}
    return asked


def test_a_cluster_without_neuron_says_so(world: World) -> None:
    world.show_node(cpu_node("cpu"))
    waiting(world, "train", 1)
    assert judged(world, "train").sentence == "No node has Neuron devices: 1 node has no Neuron"


def test_a_pod_that_no_scheduler_looks_at_says_by_whom_pods_are_served_here(world: World) -> None:
    world.show_node(offered("trn"))
    world.held("other", "trn", NEURON, "0")
    manifest = waiting(world, "sample", 2, CORE, spec={"schedulerName": "my-scheduler"})
    manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(manifest)
    found = judged(world, "sample", now=1.8e9)
    assert found.standing is Standing.NOBODY
    assert found.sentence == (
        "No scheduler has looked at it: schedulerName my-scheduler is served by nobody here; pods with Neuron run here "
        "under default-scheduler"
    )
    created = of(world, "sample").created
    assert judged(world, "sample", now=created + 1).standing is Standing.FITS, "not at once"
    past = pod_manifest("past-it", NEURON, 1, node="trn", annotations={"NEURON_DEVS": "5"})
    past["spec"]["schedulerName"] = "my-scheduler"  # by spec.nodeName
    world.show(past)
    assert judged(world, "sample", now=created + 60).standing is Standing.FITS, "its scheduler may be busy"
    assert judged(world, "sample", now=created + 600).sentence == (
        "No scheduler has looked at it: does the scheduler of schedulerName my-scheduler run? Pods with Neuron of that "
        "name are on nodes"
    )


def test_a_pod_that_was_handed_over_is_not_said_to_be_unseen_in_the_moment_before_its_scheduler_sees_it(
    world: World,
) -> None:
    world.show_node(offered("trn"))
    manifest = waiting(world, "served", 1)
    manifest["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
    manifest["metadata"]["annotations"] = {RELEASED_KEY: "excluded", POD_UID_KEY: manifest["metadata"]["uid"]}
    world.show(manifest)
    assert judged(world, "served", now=1.8e9).standing is Standing.FITS


OLD_PODS = "The old pods of the same Deployment hold it: with strategy.rollingUpdate.maxSurge 0 they end first"


def of_rollout(world: World, name: str, template: str, node: str = "", **more: Any) -> None:
    labels, says = {"app": "serve", "pod-template-hash": template}, more.pop("annotations", {})
    says |= {"NEURON_DEVS": SIXTEEN} if node else {}
    owner = f"ReplicaSet/serve-{template}"
    waiting(world, name, 16, labels=labels, owner=owner, node=node, annotations=says, **more)


@pytest.mark.parametrize("stranger_on", ["a", "z"])
def test_the_old_pod_of_a_deployment_is_in_the_way_of_the_new_one(world: World, stranger_on: str) -> None:
    for name in sorted(("trn", stranger_on)):
        world.show_node(offered(name))
    world.held("stranger", stranger_on, NEURON, SIXTEEN)
    of_rollout(world, "old", "aaaa", "trn")
    of_rollout(world, "new", "bbbb")
    found = judged(world, "new")
    assert ([str(pod) for pod in found.in_the_way], found.helps) == (["default/old"], OLD_PODS)


def test_the_old_pods_of_a_deployment_are_in_the_way_of_a_group_of_new_ones(world: World) -> None:
    for number in range(2):
        world.show_node(offered(f"trn-{number}"))
        of_rollout(world, f"old-{number}", "aaaa", f"trn-{number}")
        group = {GROUP_KEY: "serve", GROUP_SIZE_KEY: "2"}
        of_rollout(world, f"new-{number}", "bbbb", annotations=group, spec={"schedulingGates": [{"name": GATE}]})
    for found in judge_all(world.state.scene(), world.state.waiting()):
        assert (sorted(pod.name for pod in found.in_the_way), found.helps) == (["old-0", "old-1"], OLD_PODS)


def test_a_pod_with_all_devices_of_its_node_needs_no_annotation_to_be_in_the_way(world: World) -> None:
    world.show_node(offered("trn", inventory=False))
    world.pod("whole", NEURON, 16, node="trn")
    waiting(world, "next", 16)
    found = judged(world, "next")
    assert (found.standing, [str(pod) for pod in found.in_the_way]) == (Standing.SHORT, ["default/whole"])


def test_what_kube_scheduler_counts_is_part_of_it(world: World) -> None:
    """A device that a pod has and that broke is off the allocatable and counts as the pod's, too."""
    manifest = offered("trn", unhealthy={3: "ECC"})
    manifest["status"]["allocatable"]["aws.amazon.com/neuron"] = "8"
    world.show_node(manifest)
    world.held("has-it", "trn", NEURON, "3")
    waiting(world, "train", 8)
    found = judged(world, "train")
    assert found.standing is Standing.RULES
    assert found.sentence == (
        "0 of 1 Neuron node: 1 has 7 of aws.amazon.com/neuron left as kube-scheduler counts, the pod asks for 8; "
        "device 3, which default/has-it has, is broken and counts twice"
    )


@pytest.mark.parametrize(("movable", "standing"), [("true", Standing.LINKS), ("false", Standing.SHORT)])
def test_links_are_what_is_lacking_only_where_a_move_would_help(world: World, movable: str, standing: Standing) -> None:
    for name in ("a", "b"):
        world.show_node(offered(name))
        annotations = {"NEURON_DEVS": "3", MOVABLE_KEY: movable if name == "a" else "false"}
        waiting(world, f"small-{name}", 1, owner="ReplicaSet/web", node=name, annotations=annotations)
    waiting(world, "big", 16)
    found = judged(world, "big")
    assert found.standing is standing
    assert bool(found.move) is (standing is Standing.LINKS)


def test_a_set_that_no_node_could_ever_give_is_never(world: World) -> None:
    world.show_node(offered("trn"))
    waiting(world, "seven", 7)
    assert judged(world, "seven").standing is Standing.NEVER


def test_a_gate_of_another_is_named(world: World) -> None:
    world.show_node(offered("trn"))
    waiting(world, "queued", 1, spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    found = judged(world, "queued")
    assert (found.standing, found.sentence) == (
        Standing.GATE,
        "Waits for its scheduling gate to be lifted: kueue.x-k8s.io/admission",
    )


def test_what_is_promised_to_one_is_not_promised_to_the_next(world: World) -> None:
    world.show_node(offered("trn"))
    for number in range(3):
        waiting(world, f"half-{number}", 8)
    pods = [of(world, f"half-{number}") for number in range(3)]
    assert [one.standing for one in judge_all(world.state.scene(), pods)] == [
        Standing.FITS,
        Standing.FITS,
        Standing.SHORT,
    ]


def test_in_the_way_of_a_group_is_who_keeps_the_pods_that_have_no_room(world: World) -> None:
    for node in ("full", "trn"):
        world.show_node(offered(node))
    world.held("all", "full", NEURON, ",".join(map(str, range(16))))
    world.held("two-rows", "trn", NEURON, "8,9,10,11,12,13,14,15")
    world.held("small", "trn", NEURON, "4")
    for number in range(2):
        says = {"neuron-plugin.io/group": "job", "neuron-plugin.io/group-size": "2"}
        waiting(world, f"w-{number}", 4, annotations=says, spec={"schedulingGates": [{"name": GATE}]})
    found = judge_all(world.state.scene(), [of(world, "w-0")], rules=None)[0]
    assert ([pod.name for pod in found.in_the_way], found.lacks) == (["small"], 1)


def test_a_group_says_what_it_lacks_and_who_is_in_its_way(world: World) -> None:
    world.show_node(offered("trn"))
    world.held("other", "trn", NEURON, "0,1,2,3")
    for number in range(2):
        says = {"neuron-plugin.io/group": "job", "neuron-plugin.io/group-size": "2"}
        waiting(world, f"w-{number}", 16, annotations=says, spec={"schedulingGates": [{"name": GATE}]})
    found = judge_all(world.state.scene(), [of(world, "w-0")])[0]
    assert (found.standing, found.lacks) == (Standing.GROUP, 2)
    assert found.text == (
        "Its group job does not fit as a whole: there is room together for 0 of 2 waiting pods, at least 2 need it. "
        "0 of 1 Neuron node: 1 has 12 of 16 devices free. In the way: default/other"
    )


@pytest.mark.parametrize("who", ["promised", "kept"])
def test_in_the_way_of_a_group_is_who_was_promised_devices_or_for_whom_some_are_kept(world: World, who: str) -> None:
    world.show_node(offered("trn"))
    if who == "promised":
        world.show(gated_manifest(who, NEURON, 16, promised=("trn", SIXTEEN), gates=()))
    else:
        waiting(world, who, 16)
        world.state.reserve(Reservation(of(world, who).reference, "trn", CoreMask(0xFFFFFFFF)))
    for number in range(2):
        says = {GROUP_KEY: "job", GROUP_SIZE_KEY: "2"}
        waiting(world, f"w-{number}", 8, annotations=says, spec={"schedulingGates": [{"name": GATE}]})
    (found, *_) = judge_all(world.state.scene(), [of(world, "w-0")], rules=None)
    assert [pod.name for pod in found.in_the_way] == [who]


def test_a_group_is_counted_on_nodes_of_one_type_and_who_is_in_its_way_is_there(world: World) -> None:
    world.show_node(offered("trn"))
    world.held("on-trn", "trn", NEURON, "0,1,2,3,4,5,6,7,8,9,10,11")
    inf = node_manifest("inf", "inf2.48xlarge")
    inf["status"]["allocatable"] = {**inf["status"]["allocatable"], "cpu": "64", "pods": "110"}
    world.show_node(inf)
    world.held("on-inf", "inf", NEURON, "8,9,10,11")
    for number in range(3):
        says = {GROUP_KEY: "job", GROUP_SIZE_KEY: "3"}
        waiting(world, f"w-{number}", 4, annotations=says, spec={"schedulingGates": [{"name": GATE}]})
    found = judge_all(world.state.scene(), world.state.waiting())[0]
    assert found.text == (
        "Its group job does not fit as a whole: there is room together, on nodes of one type, for 2 of 3 waiting pods, "
        "at least 3 need it. In the way: default/on-inf"
    )


def test_a_claim_that_is_not_there_is_what_the_pod_waits_for_and_nobody_is_in_its_way(world: World) -> None:
    world.show_node(offered("trn"))
    world.held("other", "trn", NEURON, "0")
    waiting(world, "train", 16, spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]})
    found = judged(world, "train")
    assert (found.standing, found.text) == (Standing.RULES, "PersistentVolumeClaim data does not exist")


def test_of_pods_of_one_kind_each_has_its_own_reason(world: World) -> None:
    world.show_node(offered("trn"))
    for name in ("a", "b"):
        waiting(world, name, 1, annotations={"neuron-plugin.io/allow-devices": f"{name}"})
    texts = [judged(world, name).sentence for name in ("a", "b")]
    assert texts[0] != texts[1]


def test_a_pod_is_judged_without_itself(world: World) -> None:
    world.show_node(offered("trn"))
    waiting(world, "train", 16)
    found = judged(world, "train")
    assert found.place is not None
    assert found.place[0] == "trn"
    assert PodUid(of(world, "train").uid) not in world.state.nodes["trn"].ledger.by_pod


def test_pods_that_the_anti_affinity_of_another_tells_apart_are_judged_apart(world: World) -> None:
    node = offered("a")
    node["metadata"]["labels"]["host"] = "a"
    world.show_node(node)
    term = {"labelSelector": {"matchLabels": {"app": "b"}}, "topologyKey": "host"}
    holder = pod_manifest("holder", NEURON, 4, node="a", annotations={"NEURON_DEVS": "0,1,2,3"})
    holder["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.show(holder)
    for app in "ab":
        waiting(world, app, 16, labels={"app": app})
    first, second = judge_all(Scene(world.state.snapshot()), world.state.waiting())
    assert first.sentence == "0 of 1 Neuron node: 1 has 12 of 16 devices free"
    assert "is in host=a, where the anti-affinity of another pod keeps the pod off" in second.sentence


def test_in_the_way_of_a_group_whose_pods_need_each_other_is_who_holds_what_they_lack(world: World) -> None:
    for name in ("a", "b"):
        node = offered(name)
        node["metadata"]["labels"]["zone"] = "z"
        world.show_node(node)
    world.held("holder", "b", NEURON, SIXTEEN)
    term = {"labelSelector": {"matchLabels": {"app": "ring"}}, "topologyKey": "zone"}
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    says = {GROUP_KEY: "ring", GROUP_SIZE_KEY: "2"}
    for number in range(2):
        gated = {**near, "schedulingGates": [{"name": GATE}]}
        waiting(world, f"w{number}", 16, labels={"app": "ring"}, annotations=says, spec=gated)
    found = judge_all(Scene(world.state.snapshot()), world.state.waiting())
    assert [str(holder) for holder in found[0].in_the_way] == ["default/holder"]


@pytest.mark.parametrize("seed", range(60))
def test_many_pods_are_judged_as_each_is_by_itself_one_after_the_other(world: World, seed: int) -> None:
    chance = Random(seed)  # noqa: S311 - repeats a test's chance, guards nothing
    for number in range(3):
        node = offered(f"n{number}", cpu="8")
        node["metadata"]["labels"]["kubernetes.io/hostname"] = f"n{number}"
        world.show_node(node)
        for device in chance.sample(range(16), chance.randrange(10)):
            movable = {MOVABLE_KEY: "true"} if chance.random() < 0.5 else {}
            owner = {"ownerReferences": [{"kind": "ReplicaSet", "name": "old-1", "controller": True}]}
            held = pod_manifest(f"h{number}-{device}", NEURON, 1, node=f"n{number}", annotations=movable)
            held["metadata"] |= owner | {"labels": {"pod-template-hash": "1", "app": chance.choice("ab")}}
            held["metadata"]["annotations"] = {**movable, "NEURON_DEVS": str(device)}
            world.show(held)
    for number in range(12):
        app, hash_ = chance.choice("ab"), chance.choice("12")
        term = {"labelSelector": {"matchLabels": {"app": "b"}}, "topologyKey": "kubernetes.io/hostname"}
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        waiting(
            world,
            f"w{number}",
            chance.choice((1, 4, 4, 8, 8, 16)),
            labels={"app": app, "pod-template-hash": hash_},
            owner=chance.choice(("", f"ReplicaSet/old-{hash_}")),
            spec={"affinity": anti} if chance.random() < 0.2 else {},
            priority=chance.choice((0, 0, 5)),
            annotations={GROUP_KEY: "loose"} if chance.random() < 0.3 else {},
        )
        if chance.random() < 0.2:
            kept = chance.choice((0xFF, 0xFFFF)) << 8 * chance.randrange(3)
            world.state.reserve(Reservation(of(world, f"w{number}").reference, "n0", CoreMask(kept)))
    pods, preempting = world.state.waiting(), {pod.uid for pod in world.state.pods.values()}
    together = judge_all(Scene(world.state.snapshot()), pods, preempting=preempting)
    scene = Scene(world.state.snapshot())
    assert together == [judge_all(scene, [pod], preempting=preempting)[0] for pod in pods]
