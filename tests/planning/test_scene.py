"""The best place of one pod: nodes that would rather not have it, and what is left to pods without a node."""

from __future__ import annotations

from random import Random

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.node_rules import PodSelector
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import DEVICE, World, record_of

TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
LACKING = {
    "nobody comes": (TRN1, "0", (), False),
    "one that fits": (TRN1, "0,4", (8,), False),
    "one that would have no linked set": (TRN1, "0,8", (8,), True),
    "one that kube-scheduler would not send there": (TRN1, "0,1,2,3,4,5,8,9,10", (8,), False),
    "as many as there are sets": (TRN1, "", (8, 8), False),
    "more than can come at once": (TRN1, "", (8, 8, 8, 16), False),
    "a small one that finds no row beside the large one": (TRN1, "1,3,4,6", (8, 4, 4), True),
    "two small ones that find no windows": (INF2, "4,7,8,9,10,11", (4, 3, 3), True),
}


@pytest.mark.parametrize(("kind", "held", "coming", "lacks"), LACKING.values(), ids=LACKING)
def test_a_node_lacks_sets_where_those_that_may_come_by_count_do_not_all_find_one(
    world: World, kind: str, held: str, coming: tuple[int, ...], *, lacks: bool
) -> None:
    world.node("a", kind)
    for device in filter(None, held.split(",")):
        world.held(f"held-{device}", "a", DEVICE, device)
    roaming = [record_of(gated_manifest(f"p{number}", DEVICE, count)) for number, count in enumerate(coming)]
    assert world.state.scene().lacking_sets(["a"], roaming) == (["a"] if lacks else [])


def test_nodes_with_the_same_free_devices_are_told_apart_by_what_kube_scheduler_counts(world: World) -> None:
    for name, resource in (("a", Resource.NEURON), ("b", Resource.NEURONDEVICE)):
        world.node(name, TRN1)
        world.held(f"on-{name}", name, resource, "0,1,2,3,4,5,6,7")
    roaming = [record_of(gated_manifest(f"p{number}", Resource.NEURON, count)) for number, count in enumerate((8, 4))]
    assert world.state.scene().lacking_sets(["a", "b"], roaming) == ["b"], "until the kubelet offers less of neuron"


def tainted_world(*soft: str) -> World:
    """Three nodes, of which the first is the best for a pod of four devices, then the second."""
    world = World()
    for name, devices in {"a": "0,1,2,3,4,5,6,7,8,9,10,11", "b": "0,1,2,3", "c": ""}.items():
        manifest = node_manifest(name, TRN1)
        if name in soft:
            manifest["spec"] = {
                "taints": [{"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"}]
            }
        world.show_node(manifest)
        for device in filter(None, devices.split(",")):
            world.held(f"{name}-{device}", name, DEVICE, device)
    return world


@pytest.mark.parametrize(("soft", "best"), [("", "a"), ("a", "b"), ("ab", "c"), ("abc", "a"), ("c", "a")])
def test_nodes_that_would_rather_not_have_a_pod_come_last(soft: str, best: str) -> None:
    found = tainted_world(*soft).state.scene().best(record_of(gated_manifest("new", DEVICE, 4)))
    assert found
    assert found[0] == best


def test_a_pod_that_tolerates_the_taint_or_prefers_a_node_is_not_kept_off_by_it() -> None:
    tolerant = gated_manifest("tolerant", DEVICE, 4)
    tolerant["spec"]["tolerations"] = [{"operator": "Exists"}]
    choosy = gated_manifest("choosy", DEVICE, 4)
    in_a = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    liked = [{"weight": 100, "preference": in_a}]
    choosy["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": liked}}
    scene = tainted_world("a").state.scene()
    found = [scene.best(record_of(pod)) for pod in (tolerant, choosy)]
    assert [place and place[0] for place in found] == ["a", "b"], "the taint weighs 3 and the affinity 2"


def test_a_node_that_is_liked_is_taken_in_spite_of_one_taint_where_others_have_two(world: World) -> None:
    """A taint counts in proportion to the most that a node has: 150 of 300 here, and the affinity 200."""
    for name, taints in (("liked", 1), ("plain", 0), ("worst", 2)):
        manifest = node_manifest(name, TRN1)
        manifest["spec"] = {
            "taints": [{"key": f"old-{number}", "effect": "PreferNoSchedule"} for number in range(taints)]
        }
        world.show_node(manifest)
    choosy = gated_manifest("choosy", DEVICE, 4)
    liked = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["liked"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": liked}]}
    choosy["spec"]["affinity"] = {"nodeAffinity": preferred}
    found = world.state.scene().best(record_of(choosy))
    assert found
    assert found[0] == "liked"


def test_what_comes_on_trial_is_not_seen_outside(world: World) -> None:
    for name in ("a", "b"):
        world.node(name, TRN1)
    pods = [record_of(gated_manifest(f"p{number}", DEVICE, 4)) for number in range(3)]
    scene, everything = world.state.scene().fork(), (PodSelector(("default",), ()),)
    scene.put(pods[0], *scene.best(pods[0]) or ("", ()))
    assert sum(counts.placed for counts in scene.population.tally(everything).values()) == 1
    trial = scene.fork()
    trial.put(pods[1], *trial.best(pods[1]) or ("", ()))
    trial.put(pods[2], *trial.best(pods[2]) or ("", ()))
    seen = [sum(counts.placed for counts in one.population.tally(everything).values()) for one in (scene, trial)]
    assert seen == [1, 3]


HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def spread_over(key: str, skew: int) -> AnyJson:
    serving = {"matchLabels": {"app": "serving"}}
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": serving}


def random_preferences(draw: Random) -> AnyJson:
    """What a pod prefers of zones and nodes, with and without pods of its application."""
    terms = [
        {
            "weight": draw.choice([1, 50, 100]),
            "podAffinityTerm": {
                "labelSelector": {"matchLabels": {"app": draw.choice(["serving", "other"])}},
                "topologyKey": draw.choice([HOSTNAME, HOSTNAME, ZONE]),
            },
        }
        for _ in range(draw.choice([1, 1, 2]))
    ]
    liked = [
        {"weight": draw.choice([1, 50, 100]), "preference": {"matchExpressions": [{"key": key, "operator": operator}]}}
        for key, operator in draw.sample([(ZONE, "Exists"), ("fast", "Exists"), ("fast", "DoesNotExist")], 2)
    ]
    affinity = draw.choice(["", "podAffinity", "podAntiAffinity", "podAntiAffinity"])
    keys = draw.choice([[], [ZONE], [HOSTNAME], [ZONE, HOSTNAME]])
    preferred = {affinity: terms, "nodeAffinity": liked if draw.random() < 0.4 else []}
    return {
        "affinity": {
            key: {"preferredDuringSchedulingIgnoredDuringExecution": of} for key, of in preferred.items() if of and key
        },
        "topologySpreadConstraints": [spread_over(key, draw.choice([1, 2])) for key in keys],
    }


@pytest.mark.parametrize("seed", range(150))
def test_the_best_node_is_one_that_has_the_highest_score(world: World, seed: int) -> None:
    """Most pods are placed without scores: a node that nothing is better than in any way has the highest one."""
    draw = Random(seed)  # noqa: S311
    for number in range(draw.randint(2, 6)):
        manifest = node_manifest(name := f"n{number}", TRN1)
        labels = {HOSTNAME: name, ZONE: draw.choice("xyz"), "fast": "" if draw.random() < 0.5 else "very"}
        manifest["metadata"]["labels"] |= {key: value for key, value in labels.items() if draw.random() < 0.95}
        if draw.random() < 0.2:
            manifest["spec"] = {"taints": [{"key": "old", "effect": "PreferNoSchedule"}]}
        world.show_node(manifest)
        for device in draw.sample(range(0, 16, 4), draw.randint(0, 3)):
            ids = ",".join(str(device + one) for one in range(4))
            held = pod_manifest(f"{name}-{device}", DEVICE, 4, node=name, annotations={"NEURON_DEVS": ids})
            held["metadata"]["labels"] = {"app": draw.choice(["serving", "other"])}
            world.show(held)
    manifest = gated_manifest("new", DEVICE, 4)
    manifest["metadata"]["labels"] = {"app": "serving"}
    manifest["spec"] |= random_preferences(draw)
    pod = record_of(manifest)
    for _ in range(2):
        scene = world.state.scene()
        allowed = scene.allowed(pod)
        fitting = [name for name in world.state.nodes if name in allowed and scene.place(pod, name)]
        scores = allowed.scores(fitting)
        liked = [name for name in fitting if scores[name] == max(scores.values())]
        best = scene.choices.answers(pod.requests).best(liked, choices=scene.choices)
        found = scene.best(pod)
        assert (found[0] if found else "") == best, (scores, manifest["spec"])
        changed = node_manifest(best or "n0", TRN1)  # it loses its labels
        changed["metadata"]["labels"] |= {HOSTNAME: best or "n0", "fast": "now"}
        world.show_node(changed)
