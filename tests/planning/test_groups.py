"""Groups: few nodes, near each other, ranks in order, the same sets on every node; with an oracle on small trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from neuron_plugin.allocation import NeuronPod, NodeInfo
from neuron_plugin.allocation.group import GroupMember, TopologyWish, rank_key
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.node_rules import (
    NodeSelectorTerm,
    PodSelector,
    PodTerm,
    Preferences,
    Requirement,
    Spread,
    Taint,
    pod_labels,
)
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.planning import Cluster, Scene
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.planning.domains import common_depth
from neuron_plugin.planning.groups import MOST_DOMAINS, Anchor, GroupPlan, GroupShort, place_group
from neuron_plugin.planning.scene import Place
from neuron_plugin.topology import CoreMask, Geometry
from tests.planning.clusters import INF2, LINE, TRN1, OnNode, cluster, devices, node, pod, sets_of

ZONE, LEAF = "topology.kubernetes.io/zone", "topology.k8s.aws/network-node-layer-1"
GROUP = ("ml", "job")


def members(number: int, shape: str = "neuron=16") -> list[NeuronPod]:
    """So many pods of one group, with ranks."""
    return [replace(pod(f"w{rank}", shape), member=GroupMember(GROUP, number, (rank,))) for rank in range(number)]


def at(on: OnNode, **labels: str) -> OnNode:
    """A node with labels, of which ``zone`` and ``leaf`` are levels of the network."""
    keys = {"zone": ZONE, "leaf": LEAF}
    known = {keys.get(name, name): value for name, value in labels.items()}
    rules = replace(on.info.node.rules, labels=known)
    return replace(on, info=replace(on.info, node=replace(on.info.node, rules=rules)))


def scene(*nodes: OnNode) -> Scene:
    return Scene(cluster(*nodes))


def planned(before: Scene, pods: Sequence[NeuronPod], **more: object) -> dict[str, str]:
    """The node of each pod, by their names."""
    plan = place_group(before, pods, **more)  # type: ignore[arg-type]
    assert isinstance(plan, GroupPlan), plan
    return {str(uid): name for uid, (name, _) in sorted(plan.places.items())}


# Few nodes, of one product.


def test_four_eights_on_two_empty_nodes_leave_the_half_used_one() -> None:
    used = node("c", devices("other", *range(8)))
    assert Counter(planned(scene(node("a"), node("b"), used), members(4, "neuron=8")).values()) == {"a": 2, "b": 2}


def test_a_group_that_fits_one_node_takes_the_one_that_is_used_most() -> None:
    nodes = node("a"), node("b", devices("x", 0, 1, 2, 3)), node("c", devices("y", *range(12)))
    assert set(planned(scene(*nodes), members(2, "neuron=4")).values()) == {"b"}


def test_a_group_is_never_on_two_products() -> None:
    short = place_group(scene(node("trn"), node("inf", geometry=INF2)), members(2, "neuron=4"))
    assert isinstance(short, GroupPlan), "both fit one Trn1"
    short = place_group(
        scene(node("trn", devices("x", *range(12))), node("inf", geometry=INF2)), members(3, "neuron=4")
    )
    assert isinstance(short, GroupShort)


def test_pods_that_are_there_draw_the_others_to_their_product() -> None:
    before = scene(node("trn"), node("inf", devices("w9", 0, geometry=INF2), geometry=INF2))
    anchors = [Anchor("inf", INF2.devices_mask([0]))]
    wish = TopologyWish(any_window=True)
    assert planned(before, members(1, "neuron=1"), anchors=anchors, wish=wish) == {"w0": "inf"}


# Near each other.


def test_the_tightest_of_the_lowest_domains_that_hold_the_group_is_taken() -> None:
    nodes = [
        at(node(f"{leaf}{number}"), zone="z", leaf=leaf)
        for leaf, size in (("x", 4), ("y", 2))
        for number in range(size)
    ]
    assert set(planned(scene(*nodes), members(2)).values()) == {"y0", "y1"}
    assert {name[0] for name in planned(scene(*nodes), members(3)).values()} == {"x"}


def test_a_group_that_no_leaf_holds_fills_one_before_the_next_in_the_order_of_its_ranks() -> None:
    nodes = [at(node(f"{leaf}{number}"), zone="z", leaf=leaf) for leaf in "xyz" for number in range(3)]
    places = planned(scene(*nodes), members(5))
    leaves = [places[f"w{rank}"][0] for rank in range(5)]
    assert [leaf for leaf, _ in groupby(leaves)] == sorted(set(leaves))
    assert sorted(Counter(leaves).values()) == [2, 3]


def test_a_required_level_is_kept_and_the_reason_says_what_its_domains_have() -> None:
    nodes = [at(node(f"{leaf}{number}"), leaf=leaf) for leaf, size in (("x", 3), ("y", 2)) for number in range(size)]
    wish = TopologyWish(required="leaf")
    short = place_group(scene(*nodes), members(4), wish=wish)
    assert short == GroupShort("it needs room for 4 pods in one leaf; x has 3, y has 2", 3)
    assert {name[0] for name in planned(scene(*nodes), members(3), wish=wish).values()} == {"x"}


def test_a_lost_pod_waits_for_the_domain_of_the_others_and_says_so() -> None:
    nodes = [at(node("a", devices("w0", *range(16))), leaf="l1"), at(node("b", devices("x", 0)), leaf="l1")]
    before, wish = scene(*nodes, at(node("c"), leaf="l2")), TopologyWish(required="leaf")
    short = place_group(before, members(2)[1:], wish=wish, anchors=[Anchor("a", TRN1.all_mask)])
    assert short == GroupShort("it needs room for 1 pod in one leaf, that of its other pods; l2 has 1")


def liking(zone: str, pods: Sequence[NeuronPod]) -> list[NeuronPod]:
    """Pods that would rather go to a zone."""
    liked = Preferences(((100, NodeSelectorTerm((Requirement(ZONE, "In", (zone,)),))),))
    return [replace(one, rules=replace(one.rules, preferences=liked)) for one in pods]


def test_nodes_that_the_pods_prefer_come_before_nearer_ones_and_all_others_if_they_are_too_few() -> None:
    nodes = [at(node(f"{zone}{leaf}"), zone=zone, leaf=f"{zone}{leaf // 2}") for zone in "xy" for leaf in range(4)]
    soft = replace(nodes[0].info.node.rules, taints=(Taint("old", "PreferNoSchedule"),))
    nodes[0] = replace(nodes[0], info=replace(nodes[0].info, node=replace(nodes[0].info.node, rules=soft)))
    before = scene(*nodes, *(at(node(f"z{leaf}"), zone="z", leaf=f"z{leaf}") for leaf in range(2)))
    assert set(planned(before, members(2)).values()) == {"x2", "x3"}, "x0 is tainted"
    assert {name[0] for name in planned(before, liking("y", members(4))).values()} == {"y"}
    assert set(planned(before, liking("z", members(2))).values()) == {"z0", "z1"}, "though others have two in one leaf"
    assert {name[0] for name in planned(before, liking("z", members(3))).values()} == {"x"}, "z has two nodes"
    ties = Scene(replace(before.cluster, preferences=PreferenceOrder.TIES))
    assert set(planned(ties, liking("z", members(2))).values()) == {"x0", "x1"}
    there, lost = liking("z", members(2))
    before.put(there, "x1", before.place(there, "x1") or ())
    assert planned(before, [lost], anchors=[Anchor("x1", TRN1.all_mask)]) == {"w1": "x0"}, "near the pod that is there"


def test_a_level_that_no_node_has_is_named_with_those_that_there_are() -> None:
    short = place_group(scene(at(node("a"), zone="z")), members(1), wish=TopologyWish(required="ultraserver"))
    assert short == GroupShort("no node has the topology level ultraserver; there are zone, node")


def test_a_label_that_is_no_level_can_be_required() -> None:
    nodes = [at(node(f"{rack}{number}"), rack=rack) for rack, size in (("x", 1), ("y", 2)) for number in range(size)]
    assert set(planned(scene(*nodes, node("z")), members(2), wish=TopologyWish(required="rack")).values()) == {
        "y0",
        "y1",
    }
    assert isinstance(place_group(scene(*nodes), members(3), wish=TopologyWish(required="rack")), GroupShort)


def test_slices_are_each_in_one_domain() -> None:
    nodes = [at(node(f"{leaf}{number}"), zone="z", leaf=leaf) for leaf in "xyz" for number in range(3)]
    places = planned(scene(*nodes), members(4), wish=TopologyWish(slice_size=2, slice_level="leaf"))
    for first in (0, 2):
        assert places[f"w{first}"][0] == places[f"w{first + 1}"][0]


def test_a_group_that_may_be_anywhere_takes_the_nodes_that_are_used_most() -> None:
    used = [at(node(f"u{zone}", devices(f"p{zone}", *range(8))), zone=zone) for zone in "xy"]
    empty = [at(node(f"e{number}"), zone="z") for number in range(2)]
    wish = TopologyWish(anywhere=True)
    pods = members(2, "neuron=8")
    one_each = [replace(one, rules=replace(one.rules, ports=frozenset({("", "TCP", 80)}))) for one in pods]
    assert len(set(planned(scene(*used, *empty), pods, wish=wish).values())) == 1
    assert one_each


# The same sets on every node.


def windows(plan: GroupPlan) -> dict[str, set[CoreMask]]:
    found: dict[str, set[CoreMask]] = {}
    for name, placement in plan.places.values():
        found.setdefault(name, set()).add(placement_mask(placement))
    return found


def test_every_node_gives_the_same_sets_in_the_same_order() -> None:
    before = scene(node("a", devices("x", 0, 1, 2, 3)), node("b", devices("y", 12, 13, 14, 15)), node("c"))
    plan = place_group(before, members(5, "neuron=4"))
    assert isinstance(plan, GroupPlan)
    found = windows(plan)
    assert len(found) > 1
    assert all(given <= max(found.values(), key=len) for given in found.values())
    by_rank = [placement_mask(plan.places[one.uid][1]) for one in members(5, "neuron=4")]
    names = [plan.places[one.uid][0] for one in members(5, "neuron=4")]
    for _, ranks in groupby(range(5), key=names.__getitem__):
        masks = [by_rank[rank] for rank in ranks]
        assert masks == sorted(masks)


def test_the_rest_of_a_group_fills_the_node_that_is_begun_and_has_the_same_sets_on_the_next() -> None:
    before, first = scene(node("a", devices("w0", *range(8))), node("b")), TRN1.devices_mask(range(8))
    plan = place_group(before, members(4, "neuron=8")[1:], anchors=[Anchor("a", first)])
    assert isinstance(plan, GroupPlan), plan
    second = TRN1.devices_mask(range(8, 16))
    places = [(name, placement_mask(placement)) for name, placement in plan.places.values()]
    assert places == [("a", second), ("b", first), ("b", second)]


def test_a_node_that_is_begun_and_cannot_give_the_rest_keeps_the_group_to_the_sets_that_it_has() -> None:
    before, first = (
        scene(node("a", devices("w0", *range(8)), devices("x", 8)), node("b"), node("c")),
        TRN1.devices_mask(range(8)),
    )
    assert planned(before, members(3, "neuron=8")[1:], anchors=[Anchor("a", first)]) == {"w1": "b", "w2": "c"}


def test_without_a_common_set_a_group_waits_unless_it_takes_any() -> None:
    before = scene(node("a", devices("x", *range(8))), node("b", devices("y", *range(8, 16))))
    assert isinstance(place_group(before, members(2, "neuron=8")), GroupShort)
    wish = TopologyWish(any_window=True)
    assert set(planned(before, members(2, "neuron=8"), wish=wish).values()) == {"a", "b"}


# Least numbers, places that are kept, unlike pods.


def test_pods_beyond_the_least_number_are_left_out_the_last_first() -> None:
    assert set(planned(scene(node("a"), node("b")), members(3), least=2)) == {"w0", "w1"}


def test_what_is_kept_for_a_rank_is_its_place_and_nobody_elses() -> None:
    kept = Reservation(replace(pod("w1", "neuron=16").reference, uid=rank_key(GROUP, (1,))), "b", TRN1.all_mask)  # type: ignore[arg-type]
    nodes = [node(name) for name in "abc"]
    before = cluster(*nodes)
    held = replace(before.nodes["b"], reservations=(kept,))
    before = replace(before, nodes={**before.nodes, "b": held}, kept={kept.pod.uid: kept})
    assert planned(Scene(before), members(2))["w1"] == "b"


def test_pods_that_are_unlike_are_placed_in_one_domain_too() -> None:
    launcher = replace(pod("w0", "neuron=1"), member=GroupMember(GROUP, 3, (0,)))
    nodes = [at(node(f"{leaf}{number}"), leaf=leaf) for leaf in "xy" for number in range(3)]
    places = planned(scene(*nodes), [launcher, *members(3)[1:]])
    assert len({name[0] for name in places.values()}) == 1


def near_its_own(key: str, *pods: NeuronPod) -> list[NeuronPod]:
    """Pods that each want to be in one domain with a pod of their own application, as the first may be by itself."""
    selector = PodSelector(("ml",), (Requirement("app", "In", ("ring",)),))
    labels = pod_labels("ml", {"app": "ring"})
    rules = [replace(one.rules, affinity=(PodTerm(selector, key),)) for one in pods]
    return [replace(one, rules=own, labels=labels) for one, own in zip(pods, rules, strict=True)]


def test_pods_that_need_each_other_are_placed_together() -> None:
    """Whichever kube-scheduler takes up first is the first of them, and the others then find it."""
    nodes = [at(node(f"{zone}{number}"), zone=zone) for zone in "xy" for number in range(3)]
    assert {name[0] for name in planned(scene(*nodes), near_its_own(ZONE, *members(3))).values()} == {"x"}
    short = place_group(scene(*nodes), near_its_own(ZONE, *members(4)))
    assert short == GroupShort("", 3), "no zone holds four"
    others = [replace(one, member=None) for one in near_its_own(ZONE, *members(2))]
    before = scene(*nodes)
    before.put(others[0], *before.best(others[0]) or ("", ()))
    assert before.best(others[1]) is None, "a pod of no group waits until the other one is bound"


def test_a_group_for_which_too_little_is_free_is_tried_on_only_to_say_how_many_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pod by pod a group of 512 takes 0.2 s, and the controller asks after each change of some node."""
    best, tried = Scene.best, list[NeuronPod]()

    def noted(self: Scene, one: NeuronPod, **more: Any) -> Place | None:
        tried.append(one)
        return best(self, one, **more)

    monkeypatch.setattr(Scene, "best", noted)
    nodes = [at(node(f"{zone}{number}"), zone=zone) for zone in "xy" for number in range(2)]
    pods = near_its_own(ZONE, *members(5))
    assert isinstance(place_group(scene(*nodes), pods, says_most=False), GroupShort)
    assert not tried
    assert place_group(scene(*nodes), pods) == GroupShort("", 2), "no zone holds more, though four nodes are free"


def test_a_group_that_spreads_is_placed_though_many_small_domains_cannot_have_it() -> None:
    numbers = range(4 * MOST_DOMAINS + 8)
    nodes = [at(node(f"n{number:03}"), zone="xy"[number // 4 % 2], leaf=f"l{number // 4}") for number in numbers]
    spread, labels = Spread(ZONE, (Requirement("app", "In", ("ring",)),)), pod_labels("ml", {"app": "ring"})
    pods = [replace(one, labels=labels, rules=replace(one.rules, spread=(spread,))) for one in members(4, "neuron=16")]
    assert Counter(int(name[1:]) // 4 % 2 for name in planned(scene(*nodes), pods).values()) == {0: 2, 1: 2}


def test_a_domain_that_cannot_have_the_largest_pod_counts_where_it_may_be_left_out() -> None:
    apart = PodTerm(PodSelector(("ml",), (Requirement("app", "In", ("w",)),)), "kubernetes.io/hostname")
    pods = [*members(3, "neuron=4"), replace(pod("w3", "neuron=16"), member=GroupMember(GROUP, 4, (3,)))]
    labels = pod_labels("ml", {"app": "w"})
    pods = [replace(one, labels=labels, rules=replace(one.rules, anti_affinity=(apart,))) for one in pods]
    wide = [node("x0"), node("x1"), node("x2", devices("used", *range(14)))]
    half = [node(f"y{number}", devices(f"used-{number}", *range(7, 16))) for number in range(4)]
    nodes = [at(one, leaf=one.info.name[0], **{"kubernetes.io/hostname": one.info.name}) for one in (*wide, *half)]
    places = planned(scene(*nodes), pods, least=3, wish=TopologyWish(required="leaf"))
    assert {name[0] for name in places.values()} == {"y"}
    assert sorted(places) == ["w0", "w1", "w2"]


def test_a_rule_among_the_pods_themselves_is_kept() -> None:
    apart = PodTerm(PodSelector(("ml",), (Requirement("app", "In", ("w",)),)), "kubernetes.io/hostname")
    pods = [
        replace(one, labels=pod_labels("ml", {"app": "w"}), rules=replace(one.rules, anti_affinity=(apart,)))
        for one in members(2, "neuron=4")
    ]
    nodes = [at(node(name), **{"kubernetes.io/hostname": name}) for name in "ab"]
    assert set(planned(scene(*nodes), pods).values()) == {"a", "b"}
    assert isinstance(place_group(scene(nodes[0]), pods), GroupShort)


# An oracle.

Tree = list[tuple[str, str, list[int]]]
"""Of each node its zone, its leaf, and which of its four devices are free."""
TREES = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from("xyz"), st.lists(st.sampled_from(range(4)), unique=True)),
    min_size=1,
    max_size=4,
)


def of_tree(tree: Tree) -> tuple[Scene, dict[str, tuple[str, ...]]]:
    nodes, paths = list[OnNode](), dict[str, tuple[str, ...]]()
    for number, (zone, leaf, free) in enumerate(tree):
        name = f"n{number}"
        used = [device for device in range(4) if device not in free]
        held = [devices(f"{name}-{device}", device, geometry=LINE) for device in used]
        nodes.append(at(node(name, *held, geometry=LINE), zone=zone, leaf=f"{zone}{leaf}"))
        paths[name] = zone, f"{zone}{leaf}", name
    return scene(*nodes), paths


def arrangements(infos: Mapping[str, NodeInfo], shape: str, wanted: int) -> Iterator[dict[str, int]]:
    """Every way to put so many alike pods on nodes so that all nodes have sets of one pattern: pods by node."""
    sets = sets_of(LINE, pod("probe", shape).requests)
    patterns = [
        pattern
        for size in range(1, wanted + 1)
        for pattern in combinations(sets, size)
        if sum(mask.bit_count() for mask in pattern) == _union(pattern).bit_count()
    ]
    for pattern in patterns:
        having = [name for name, info in infos.items() if _union(pattern) & ~info.free_mask == 0]
        needed = -(-wanted // len(pattern))
        for names in combinations(having, needed):
            yield {name: min(len(pattern), wanted - number * len(pattern)) for number, name in enumerate(names)}


def _union(masks: Sequence[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


@given(
    tree=TREES, shape=st.sampled_from(["neuron=1", "neuron=2", "neuron=4", "neuroncore=2"]), wanted=st.integers(1, 4)
)
@example(tree=[("p", "x", [0, 1]), ("p", "x", [2, 3])], shape="neuron=1", wanted=4)
def test_a_group_is_placed_where_it_can_be_as_near_and_on_as_few_nodes_as_it_can(
    tree: Tree, shape: str, wanted: int
) -> None:
    before, paths = of_tree(tree)
    possible = list(arrangements(before.cluster.nodes, shape, wanted))
    plan = place_group(before, members(wanted, shape))
    if not possible:
        assert isinstance(plan, GroupShort)
        return
    assert isinstance(plan, GroupPlan), "it fits"
    used = {name for name, _ in plan.places.values()}
    depth = max(common_depth(paths[name] for name in names) for names in possible)
    assert common_depth(paths[name] for name in used) == len(plan.domain) == depth
    near = [names for names in possible if common_depth(paths[name] for name in names) == depth]
    assert len(used) == min(map(len, near))
    taken = Counter[tuple[str, int]]()
    for name, placement in plan.places.values():
        mask = placement_mask(placement)
        assert mask & ~before.cluster.nodes[name].free_mask == 0
        taken.update((name, core) for core in range(mask.bit_length()) if mask >> core & 1)
    assert max(taken.values()) == 1


@given(tree=TREES, wanted=st.integers(2, 4), level=st.sampled_from(["zone", "leaf"]))
def test_a_required_level_is_never_broken(tree: Tree, wanted: int, level: str) -> None:
    before, paths = of_tree(tree)
    least = {"zone": 1, "leaf": 2}[level]
    possible = [
        names
        for names in arrangements(before.cluster.nodes, "neuron=2", wanted)
        if common_depth(paths[name] for name in names) >= least
    ]
    plan = place_group(before, members(wanted, "neuron=2"), wish=TopologyWish(required=level))
    assert isinstance(plan, GroupPlan) is bool(possible)
    if isinstance(plan, GroupPlan):
        assert common_depth(paths[name] for name, _ in plan.places.values()) >= least


@given(tree=TREES, wanted=st.integers(1, 3))
def test_pods_that_come_later_are_near_those_that_are_there(tree: Tree, wanted: int) -> None:
    before, _ = of_tree(tree)
    plan = place_group(before, members(wanted + 1, "neuron=1"))
    assume(isinstance(plan, GroupPlan))
    assert isinstance(plan, GroupPlan)
    first, *rest = members(wanted + 1, "neuron=1")
    name, placement = plan.places[first.uid]
    after = before.fork()
    after.put(first, name, placement)
    later = place_group(after, rest, anchors=[Anchor(name, placement_mask(placement))])
    if isinstance(later, GroupPlan):
        elsewhere = {placement_mask(one) for where, one in later.places.values() if where != name}
        beside = {placement_mask(one) for where, one in later.places.values() if where == name}
        assert elsewhere <= {placement_mask(placement), *beside}


@pytest.mark.parametrize("geometry", [TRN1, INF2])
def test_a_group_of_one_is_like_a_single_pod(geometry: Geometry) -> None:
    before = scene(node("a", devices("x", 0, geometry=geometry), geometry=geometry), node("b", geometry=geometry))
    (one,) = members(1, "neuron=4")
    best = before.best(one)
    plan = place_group(before, [one])
    assert isinstance(plan, GroupPlan)
    assert best is not None
    assert plan.places[one.uid][0] == best[0]


def test_cluster_is_not_changed() -> None:
    before = scene(node("a"), node("b"))
    known: Cluster = before.cluster
    place_group(before, members(2))
    assert (before.changed, before.cluster) == ({}, known)


# What is broken already comes first, so that larger domains stay whole.

ULTRASERVER = "neuron-plugin.io/ultraserver-server-id-4"
PAIR = "neuron-plugin.io/ultraserver-server-id-2"


def two_ultraservers(*used: str) -> list[OnNode]:
    """Nodes a to d and e to h are an UltraServer each, every two of them a pair; those ``used`` have a pod."""
    pods = {name: (devices(f"on-{name}", *range(16)),) for name in used}
    nodes = [node(name, *pods.get(name, ())) for name in "abcdefgh"]
    return [at(on, **{ULTRASERVER: f"u{number // 4}", PAIR: f"p{number // 2}"}) for number, on in enumerate(nodes)]


def test_a_group_of_two_takes_the_pair_of_the_ultraserver_that_is_broken() -> None:
    assert set(planned(scene(*two_ultraservers("g", "h")), members(2)).values()) == {"e", "f"}


def test_a_group_on_one_node_leaves_an_ultraserver_whole() -> None:
    assert set(planned(scene(*two_ultraservers("h")), members(2, "neuron=8")).values()) == {"g"}


def test_a_single_pod_leaves_an_ultraserver_whole() -> None:
    before = scene(*two_ultraservers("h"))
    place = before.best(pod("single", "neuron=16"))
    assert place
    assert place[0] == "g"
    place = scene(*two_ultraservers()).best(pod("single", "neuron=16"))
    assert place
    assert place[0] == "a", "of equals the lowest name"


def test_packing_comes_before_the_network() -> None:
    used = devices("four", 0, 1, 2, 3)
    nodes = two_ultraservers("g", "h")
    nodes[0] = at(node("a", used), **{ULTRASERVER: "u0", PAIR: "p0"})
    place = scene(*nodes).best(pod("single", "neuron=4"))
    assert place
    assert place[0] == "a"
