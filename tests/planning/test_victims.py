from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import (
    Constraints,
    ContainerKind,
    ContainerRequest,
    NeuronPod,
    PodReference,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.group import GroupMember, TopologyWish, spare_key
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.node_rules import (
    NodeRules,
    NodeSelectorTerm,
    NodeUse,
    PodRules,
    PodSelector,
    PodTerm,
    Requirement,
    Taint,
    pod_labels,
)
from neuron_plugin.allocation.shapes import parse_shape
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.allocation.volumes import Claim, Volume
from neuron_plugin.planning import (
    PREEMPTION,
    Cluster,
    Judgement,
    MoveRules,
    Scene,
    Standing,
    cheapest_move,
    drain,
    how_many_fit,
)
from neuron_plugin.planning.choice import NodeUses
from neuron_plugin.planning.judgement import HELD_UNDER_ANOTHER_NAME, judge_all
from neuron_plugin.planning.volumes import Storage
from neuron_plugin.topology import CoreMask, Geometry, Topology
from tests.planning.clusters import (
    HOUR,
    INF2,
    LINE,
    NOW,
    SHAPES,
    TRN1,
    Held,
    OnNode,
    cluster,
    clusters,
    devices,
    held,
    held_once,
    judged,
    node,
    one_victim_moves,
    pod,
    sets_of,
    with_move,
    with_pod,
)

GANG = GroupMember(("ml", "gang"))
ONE = MoveRules(most_victims=1)
BIG = pod("big", "neuron=16")


def test_the_one_pod_on_an_otherwise_empty_node_makes_room_for_a_pod_of_the_whole_node() -> None:
    before = cluster(node("a", devices("small", 0)), node("b", devices("other", *range(8))))
    move = cheapest_move(Scene(before), BIG)
    assert move is not None
    assert (move.node, move.mask) == ("a", TRN1.all_mask)
    assert [(victim.pod.uid, victim.source, victim.target) for victim in move.victims] == [("small", "a", "b")]
    assert with_move(before, move).nodes["a"].free_mask == 0


def test_of_two_moves_the_one_that_loses_fewer_device_hours_is_proposed() -> None:
    young, old = devices("young", 0, 1, 2, 3, since=9.0), devices("old", 0, since=0.0)
    before = cluster(node("a", old), node("b", young), node("c", *(devices(f"c{i}", i) for i in range(5))))
    move = cheapest_move(Scene(before), BIG, now=9.5 * HOUR)
    assert move is not None
    assert ([victim.pod.uid for victim in move.victims], move.loss) == (["young"], 2.0)


@pytest.mark.parametrize(
    ("idle_since", "goes"),
    [({}, "young"), ({"old": 1}, "old"), ({"old": 1, "young": 1}, "young"), ({"old": 0, "young": 1}, "young")],
)
def test_a_pod_that_is_known_to_be_idle_goes_first_however_old_it_is(idle_since: dict[str, int], goes: str) -> None:
    young, old = devices("young", 0, since=9.0), devices("old", 0, since=0.0)
    before = cluster(node("a", young), node("b", old), node("c", *(devices(f"c{i}", i) for i in (0, 1))))
    used = {
        on: {PodUid(name): {"main": ContainerUtilization(0, 0, idle_since[name])}}
        for on, name in (("a", "young"), ("b", "old"))
        if name in idle_since
    }
    move = cheapest_move(Scene(replace(before, utilization=used)), BIG, now=9.5 * HOUR)
    assert move is not None
    assert [victim.pod.uid for victim in move.victims] == [goes]


@pytest.mark.parametrize(("priority", "goes"), [(19, True), (20, False)])
def test_only_pods_of_lower_priority_are_preempted(priority: int, goes: bool) -> None:  # noqa: FBT001 - a table
    before = cluster(node("a", devices("held", *range(16), priority=priority)))
    assert (cheapest_move(Scene(before), pod("new", "neuron=4", priority=20), rules=PREEMPTION) is not None) is goes


def test_the_pods_of_the_lowest_priorities_go_for_a_pod_of_several_containers() -> None:
    geometry = Geometry("ring", Topology.RING, 12, 1)
    ids = {1: (0, 1, 2), 10: (3, 4, 5), 2: (6, 7, 8), 3: (9, 10, 11)}
    holders = [devices(f"p{each}", *own, geometry=geometry, priority=each) for each, own in ids.items()]
    parts = ContainerRequest("first", ContainerKind.INIT, Resource.NEURON, 6), parse_shape("neuron=6")[0]
    move = cheapest_move(
        Scene(cluster(node("a", *holders, geometry=geometry))),
        pod("new", "", request=parts, priority=20),
        rules=PREEMPTION,
    )
    assert move is not None
    assert sorted(victim.pod.priority for victim in move.victims) == [2, 3]


def test_many_pods_are_preempted_for_several_containers_though_not_every_group_can_be_looked_at() -> None:
    holders = [devices(f"p{number}", number, priority=number) for number in range(16)]
    parts = tuple(ContainerRequest(name, ContainerKind.APP, Resource.NEURON, 4) for name in ("a", "b"))
    full = cluster(node("a", *holders))
    move = cheapest_move(Scene(full), pod("new", "", request=parts, priority=20), rules=PREEMPTION)
    assert move is not None
    assert sorted(victim.pod.priority for victim in move.victims) == list(range(8))
    assert cheapest_move(Scene(full), pod("new", "", request=parts, priority=7), rules=PREEMPTION) is None


def test_a_pod_that_fits_elsewhere_only_on_other_hardware_is_not_moved() -> None:
    assert cheapest_move(Scene(cluster(node("a", devices("small", 0)), node("b", geometry=INF2))), BIG) is None


STAYS = devices("v", 0, movable=False)
ORPHAN = Held(replace(devices("v", 0).pod, controller=""), TRN1.device_mask(0))
GROUPED = Held(replace(devices("v", 0).pod, member=GANG), TRN1.device_mask(0))
LEAVING = Held(replace(devices("v", 0).pod, terminating=True), TRN1.device_mask(0))
SILENT = devices("v", 0, movable=None)


@pytest.mark.parametrize(
    ("victim", "priority", "rules", "moved"),
    [
        (devices("v", 0), 0, MoveRules(), True),
        (STAYS, 100, MoveRules(), False),
        (STAYS, 100, MoveRules(by_priority=True), True),
        (STAYS, 0, MoveRules(by_priority=True), False),
        (ORPHAN, 100, MoveRules(by_priority=True), False),
        (GROUPED, 100, MoveRules(by_priority=True), False),
        (LEAVING, 100, MoveRules(by_priority=True), False),
        (SILENT, 0, MoveRules(), False),
    ],
)
def test_a_pod_is_moved_only_if_it_says_so_or_by_priority_and_if_a_controller_makes_it_again(
    victim: Held, priority: int, rules: MoveRules, *, moved: bool
) -> None:
    before = cluster(node("a", victim), node("b", devices("o", 0, movable=False, priority=1000)))
    move = cheapest_move(Scene(before), pod("big", "neuron=16", priority=priority), rules=rules)
    assert (move is not None) is moved


def test_a_namespace_speaks_for_its_pods_and_a_pod_that_is_left_alone_stays() -> None:
    before = cluster(node("a", SILENT), node("b", devices("o", 0, movable=False)))
    assert cheapest_move(Scene(replace(before, movable_namespaces={"ml"})), BIG) is not None
    assert cheapest_move(Scene(replace(before, movable_namespaces={"web"})), BIG) is None
    assert cheapest_move(Scene(replace(before, movable_namespaces={"ml"}, left_alone={SILENT.pod.uid})), BIG) is None


def test_whom_moves_leave_alone_may_be_preempted_unless_a_budget_protects_it() -> None:
    before = cluster(node("a", devices("v", 0)))
    (victim,) = before.pods
    waiting = pod("new", "neuron=16", priority=20)
    assert cheapest_move(Scene(replace(before, left_alone={victim})), waiting, rules=PREEMPTION) is not None
    assert cheapest_move(Scene(replace(before, protected={victim})), waiting, rules=PREEMPTION) is None
    assert cheapest_move(Scene(replace(before, protected={victim})), waiting, rules=MoveRules(by_priority=True)) is None


def test_no_set_is_opened_on_a_closed_node_and_no_pod_is_moved_to_one() -> None:
    small = devices("small", 0)
    assert cheapest_move(Scene(cluster(node("a", small, is_open=False), node("b", devices("o", 1)))), BIG) is None
    full = [devices(f"b{i}", i, movable=False) for i in range(15)]
    assert cheapest_move(Scene(cluster(node("a", small), node("b", *full))), BIG) is not None
    assert cheapest_move(Scene(cluster(node("a", small), node("b", *full, is_open=False))), BIG) is None


def test_a_pod_of_two_containers_gets_room_for_both() -> None:
    row = ContainerRequest("a", ContainerKind.APP, Resource.NEURON, 4)
    waiting = pod("two", "", request=(row, replace(row, name="b", count=8)))
    pinned = devices("w", *range(8, 16), movable=False)
    before = cluster(node("a", devices("x", 0), devices("y", 4)), node("b", devices("z", 0, movable=False), pinned))
    move = cheapest_move(Scene(before), waiting)
    assert move is not None
    assert len(move.victims) == 1
    assert move.mask.bit_count() == 24
    info = with_move(before, move).nodes["a"]
    assert sum(one.mask.bit_count() for one in info.ledger.allocations) == info.used_mask.bit_count()


@given(clusters(), st.sampled_from(SHAPES))
def test_a_move_of_one_pod_is_found_whenever_there_is_one_and_it_is_the_cheapest(before: Cluster, shape: str) -> None:
    waiting = pod("waiting", shape)
    (expected,) = judged(before, [waiting], now=NOW * HOUR, rules=ONE)
    if expected.standing is Standing.FITS:
        return
    move = cheapest_move(Scene(before), waiting, now=NOW * HOUR, rules=ONE)
    possible = list(one_victim_moves(before, waiting))
    assert (move is None) == (not possible)
    if move:
        assert move.loss == min(possible)[0]
        assert (move.loss, move.victims[0].pod.uid) in possible
        made = with_move(before, move)
        assert held_once(made.nodes, made.pods)


@given(clusters(), st.lists(st.sampled_from(SHAPES), max_size=4))
def test_what_is_promised_to_several_waiting_pods_can_be_had_by_all(before: Cluster, shapes: list[str]) -> None:
    waiting = [pod(f"w{number}", shape) for number, shape in enumerate(shapes)]
    now = before
    for expected in judged(before, waiting, rules=MoveRules(most_victims=3)):
        if expected.place:
            assert expected.standing is Standing.FITS
            now = with_pod(now, expected.place[0], expected.pod, expected.place[1])
        elif expected.move:
            assert all(victim.pod.movable for victim in expected.move.victims)
            now = with_move(now, expected.move)
        assert held_once(now.nodes, now.pods)
    assert now.pods.keys() >= before.pods.keys()


def located(prospect: Judgement) -> Judgement:
    """Each victim's record on the node that it is moved from: a plan keeps the records of its beginning."""
    if prospect.move is None:
        return prospect
    victims = tuple(replace(each, pod=replace(each.pod, node=each.source)) for each in prospect.move.victims)
    return replace(prospect, move=replace(prospect.move, victims=victims))


@given(clusters(), st.sampled_from(SHAPES))
def test_equal_pods_are_planned_for_as_if_each_were_looked_at_alone(before: Cluster, shape: str) -> None:
    now = before
    # They stay: one that has its sets could be moved by the time that the next one is looked at alone.
    for expected in judged(before, [pod(f"w{number}", shape, movable=False) for number in range(3)]):
        (alone,) = judged(now, [expected.pod])
        assert located(expected) == located(alone)
        if expected.place:
            now = with_pod(now, expected.place[0], expected.pod, expected.place[1])
        now = with_move(now, expected.move) if expected.move else now


def test_a_pod_that_is_moved_for_two_goes_from_where_the_first_move_put_it() -> None:
    # "x" goes from device 0 to device 2, and from there to the other node.
    x, y = (Held(pod(name, "neuroncore=1"), CoreMask(1 << core)) for name, core in (("x", 0), ("y", 4)))
    pinned = Held(pod("z", "neuroncore=1", movable=False), CoreMask(1))
    before = cluster(node("a", x, y, geometry=LINE), node("b", pinned, geometry=LINE))
    expected = judged(before, [pod(name, "neuron=2", movable=False) for name in ("first", "second", "third")])
    ways = [each for prospect in expected if prospect.move for each in prospect.move.victims if each.pod.uid == "x"]
    assert [(way.source, way.had_mask, way.target) for way in ways] == [("a", 1, "a"), ("a", 1 << 5, "b")]


def test_two_equal_pods_get_room_on_different_nodes() -> None:
    small = [node(name, devices(f"on-{name}", 0)) for name in ("a", "b")]
    before = cluster(*small, node("c", devices("row", 0, 1, 2, 3, movable=False)))
    expected = judged(before, [pod("first", "neuron=16"), pod("second", "neuron=16")])
    assert [prospect.move.node for prospect in expected if prospect.move] == ["a", "b"]


@pytest.mark.parametrize(
    ("shape", "standing", "reason"),
    [
        ("neuron=1", "fits", ""),
        ("neuron=4", "short", "0 of 1 Neuron node: 1 has 4 of 16 devices free, but no linked set of 4"),
        ("neuron=8", "short", "0 of 1 Neuron node: 1 has 4 of 16 devices free"),
        (
            "neuron=7",
            "never",
            "0 of 1 Neuron node: 1: Instance type trn1.32xlarge does not support requests for device",
        ),
    ],
)
def test_how_a_waiting_pod_stands_and_why(shape: str, standing: str, reason: str) -> None:
    full = [devices(str(i), i, movable=False) for i in range(16) if i % 4]
    (expected,) = judged(cluster(node("a", *full)), [pod("w", shape)])
    assert expected.standing.value == standing
    assert expected.sentence.startswith(reason)


def test_a_pod_that_no_node_may_have_hears_what_all_of_them_object() -> None:
    labels = {"a": {}, "b": {}, "c": {"pool": "other"}}
    nodes = [with_rules(node(name), labels=known) for name, known in labels.items()]
    wants = pod("w", "neuron=4")
    wants = replace(wants, rules=replace(wants.rules, node_selector=(("pool", "mine"),)))
    (expected,) = judged(cluster(*nodes, waiting=(wants,)), [wants])
    why = "2 have no label pool, the pod's nodeSelector wants mine, 1 has pool=other, the pod's nodeSelector wants mine"
    assert (expected.standing, expected.sentence) == (Standing.RULES, f"0 of 3 Neuron nodes: {why}")


def test_a_drain_names_the_pods_that_fit_nowhere_else() -> None:
    holes = [devices(f"b{i}", i) for i in range(16) if i % 4]
    before = cluster(node("a", devices("row", 0, 1, 2, 3), devices("one", 4)), node("b", *holes))
    found = drain(before, "a")
    assert [(relocation.pod.uid, relocation.target) for relocation in found.moved] == [("one", "b")]
    assert [(stuck.uid, why) for stuck, why in found.stuck] == [("row", "fits on no other node now")]
    assert found.warnings == ()


def in_gang(name: str, rank: int, size: int) -> Held:
    """A pod of the group that has the device of its rank."""
    one = devices(name, rank)
    return replace(one, pod=replace(one.pod, member=GroupMember(GANG.group, size, (rank,))))


@pytest.mark.parametrize(
    ("size", "others", "warning"),
    [
        (4, 0, "group ml/gang breaks without w1, w2 (ranks 1, 2 of 4): its framework must restart it"),
        (0, 1, "group ml/gang breaks without w1, w2 (ranks 1, 2 of 3): its framework must restart it"),
    ],
)
def test_a_drain_says_which_group_breaks_by_it(size: int, others: int, warning: str) -> None:
    def members(*ranks: int) -> list[Held]:
        return [in_gang(f"w{rank}", rank, size) for rank in ranks]

    before = cluster(node("a", *members(1, 2), devices("alone", 4)), node("b", *members(*range(3, 3 + others))))
    assert drain(before, "a").warnings == (warning,)
    assert drain(before, "a", {4}).warnings == ()


def test_a_drain_leaves_the_pods_of_daemon_sets_and_names_those_with_local_storage() -> None:
    full, agent, scratch = devices("full", *range(1, 16)), devices("agent", 0), devices("scratch", 1)
    agent = replace(agent, pod=replace(agent.pod, controller="DaemonSet/agent"))
    scratch = replace(scratch, pod=replace(scratch.pod, local_storage=True))
    before = cluster(node("a", agent, scratch), node("b", full))
    found = drain(before, "a")
    assert ([relocation.pod.uid for relocation in found.moved], found.stuck) == (["scratch"], ())
    assert found.warnings[-1] == (
        "ml/scratch has emptyDir volumes: kubectl drain needs --delete-emptydir-data, and what is in them is lost"
    )
    assert [relocation.pod.uid for relocation in drain(before, "a", {0}).moved] == ["agent"], "a repair takes it, too"


def test_a_pod_that_is_its_whole_group_breaks_none() -> None:
    before = cluster(node("a", in_gang("w0", 0, 1)), node("b"))
    assert drain(before, "a").warnings == ()


def test_of_a_drained_device_only_its_pods_go_and_they_may_stay_on_the_node() -> None:
    full = [devices(f"b{i}", i) for i in range(16)]
    row, one = devices("row", 0, 1, 2, 3), devices("one", 4)
    found = drain(cluster(node("a", row, one, sick=(3,)), node("b", *full)), "a", {3})
    assert [(relocation.pod.uid, relocation.target) for relocation in found.moved] == [("row", "a")]
    (moved,) = found.moved
    assert moved.mask & moved.had_mask == 0
    holes = [devices(f"a{i}", i) for i in (4, 8, 12)]
    crowded = drain(cluster(node("a", row, *holes, sick=(3,)), node("b", *full)), "a", {3})
    assert [(stuck.uid, why) for stuck, why in crowded.stuck] == [("row", "fits nowhere else now")]


@given(clusters(), st.sampled_from(SHAPES))
def test_so_many_more_pods_fit_as_can_be_placed_one_after_the_other_and_not_one_more(
    before: Cluster, shape: str
) -> None:
    request = parse_shape(shape)
    for name, info in before.nodes.items():
        best = 0
        stack = [(int(info.free_mask), 0)]
        seen = set()
        while stack:
            free, count = stack.pop()
            best = max(best, count)
            for mask in sets_of(LINE, request):
                if mask & free == mask and free & ~mask not in seen:
                    seen.add(free & ~mask)
                    stack.append((free & ~mask, count + 1))
        assert how_many_fit(before, pod("new", shape)).get(name) == (best or None)


def test_halves_of_devices_are_pieces_that_a_move_puts_together() -> None:
    half = held(pod("one", "neuroncore=1"), 0b01), held(pod("two", "neuroncore=1"), 0b0100)
    before = cluster(node("a", *half, geometry=replace(LINE, device_count=2)))
    (expected,) = judged(before, [pod("waiting", "neuron=1")])
    assert expected.standing is Standing.LINKS
    assert expected.move is not None


# Constraints of a pod, and what kube-scheduler looks at.


def constrained(waiting: NeuronPod, constraints: Constraints | Rejection | None = None, memory: int = 0) -> NeuronPod:
    amounts = (("memory", memory),) if memory else ()
    (part,) = waiting.requests
    return replace(waiting, request=(replace(part, constraints=constraints, amounts=amounts),))


def with_rules(on: OnNode, **rules: object) -> OnNode:
    """The same node under other rules of kube-scheduler."""
    neuron_node = replace(on.info.node, rules=NodeRules(**rules))  # type: ignore[arg-type]  # a test's keywords
    return OnNode(replace(on.info, node=neuron_node), on.held)


def with_memory(on: OnNode, each: int) -> OnNode:
    """The same node, each of whose devices has so much memory."""
    facts = replace(on.info.node.facts, amounts=(("memory", each),))
    info = OnNode(replace(on.info, node=replace(on.info.node, facts=facts)), on.held).info.without(set())
    return OnNode(info, on.held)


def test_a_drain_keeps_amounts_and_device_lists() -> None:
    first_row = Constraints(allowed_devices=0b1111)
    listed = held(constrained(pod("listed", "neuron=4"), first_row), TRN1.devices_mask(range(4)))
    greedy = held(constrained(pod("greedy", "neuroncore=1"), memory=30_000), TRN1.device_mask(4) & 0b1_0000_0000)
    there = held(constrained(pod("there", "neuroncore=1"), memory=20_000), 0b1)
    nodes = [node("a", listed, greedy), node("b", there), node("c", devices("row", 0, 1, 2, 3))]
    before = cluster(*(with_memory(on, 32_768) for on in nodes))
    found = drain(before, "a")
    assert [stuck.uid for stuck, _ in found.stuck] == ["listed"]
    ((relocation,),) = [[one for one in found.moved if one.pod.uid == "greedy"]]
    assert relocation.target == "b"
    assert not relocation.mask & TRN1.device_mask(0)


def test_a_pod_that_asks_for_a_product_is_planned_for() -> None:
    waiting = constrained(BIG, Constraints(products=frozenset({"trainium1"})))
    made = node("a", devices("small", 0))
    facts = replace(made.info.node.facts, names=frozenset({"trainium1", "trn1"}))
    named = OnNode(replace(made.info, node=replace(made.info.node, facts=facts)).without(set()), made.held)
    (expected,) = judged(cluster(named, node("b")), [waiting])
    assert expected.move is not None
    assert expected.move.node == "a"


@pytest.mark.parametrize(
    ("rules", "node_rules"),
    [
        (PodRules(), {"cordoned": True}),
        (PodRules(), {"taints": (Taint("team", "NoSchedule", "ml"),)}),
        (PodRules(node_selector=(("zone", "b"),)), {"labels": {"zone": "a"}}),
        (PodRules(terms=(NodeSelectorTerm((Requirement("zone", "In", ("b",)),)),)), {"labels": {"zone": "a"}}),
        (PodRules(needs=(("cpu", 2000),)), {"allocatable": (("cpu", 1000),)}),
    ],
)
def test_nothing_is_promised_on_a_node_that_kube_scheduler_leaves_out(
    rules: PodRules, node_rules: dict[str, object]
) -> None:
    waiting = replace(BIG, rules=rules)
    (expected,) = judged(cluster(with_rules(node("a"), **node_rules)), [waiting])
    assert expected.standing is not Standing.FITS
    assert expected.move is None


def test_a_volume_keeps_its_pod_where_it_can_be_used() -> None:
    before = cluster(with_rules(node("a"), labels={"zone": "a"}), with_rules(node("b"), labels={"zone": "b"}))
    local = Volume("local", (NodeSelectorTerm((Requirement("zone", "In", ("b",)),)),))
    storage = Storage({("ml", "data"): Claim("local")}, {"local": local})
    waiting = replace(BIG, rules=PodRules(claims=("data",)))
    (expected,) = judged(replace(before, storage=storage), [waiting])
    assert expected.place is not None
    assert expected.place[0] == "b"
    (waits,) = judged(before, [waiting])
    assert (waits.standing, waits.sentence) == (Standing.RULES, "PersistentVolumeClaim data does not exist")


def test_what_victims_free_and_what_moved_pods_take_is_counted() -> None:
    needs = PodRules(needs=(("cpu", 3000),))
    victim = Held(replace(devices("small", 0).pod, rules=needs), TRN1.device_mask(0))
    waiting = replace(BIG, rules=needs)
    has = {"allocatable": (("cpu", 4000),)}
    kept = devices("kept", 5, movable=False)
    before = cluster(with_rules(node("a", victim), **has), with_rules(node("b", kept), **has))
    uses = NodeUses({"a": NodeUse({"cpu": 3000}), "b": NodeUse({"cpu": 1000})})
    assert cheapest_move(Scene(replace(before, uses=uses)), waiting) is not None
    uses["b"] = NodeUse({"cpu": 1001})
    assert cheapest_move(Scene(replace(before, uses=uses)), waiting) is None


def test_a_pod_that_cannot_be_judged_is_listed_with_its_own_reason() -> None:
    pods = [
        replace(BIG, rules=PodRules(resource_claims=True)),
        replace(BIG, rules=PodRules(gates=("kueue.x-k8s.io/admission",))),
        constrained(BIG, Rejection("invalid", "it cannot be read")),
    ]
    expected = judged(cluster(node("a")), pods)
    assert [prospect.standing for prospect in expected] == [Standing.UNKNOWN, Standing.GATE, Standing.NEVER]
    reasons = [prospect.sentence for prospect in expected]
    assert reasons[0] == "Where it can run cannot be judged here, because it has resource claims of another driver"
    assert reasons[1] == "Waits for its scheduling gate to be lifted: kueue.x-k8s.io/admission"
    assert reasons[2] == "it cannot be read"


# Groups.


def gang(count: int, shape: str, least: int, *nodes: OnNode) -> tuple[Cluster, list[NeuronPod]]:
    members = [replace(pod(f"g{number}", shape), member=GANG) for number in range(count)]
    return replace(cluster(*nodes, waiting=tuple(members)), min_counts={("ml", "gang"): least}), members


def test_a_group_fits_as_a_whole_or_none_of_it_does() -> None:
    before, members = gang(8, "neuron=4", 8, node("a"), node("b"))
    expected = judged(before, members)
    assert {prospect.standing for prospect in expected} == {Standing.FITS}
    before, members = gang(9, "neuron=4", 9, node("a"), node("b"))
    expected = judged(before, members)
    assert Standing.FITS not in {prospect.standing for prospect in expected}
    text = "Its group gang does not fit as a whole: there is room together for 8 of 9 waiting pods, at least 9 need it"
    assert {prospect.sentence for prospect in expected} == {text}
    (alone,) = judged(before, [*members, pod("single", "neuron=16")])[-1:]
    assert alone.standing is Standing.FITS


def in_zone(on: OnNode, zone: str) -> OnNode:
    rules = replace(on.info.node.rules, labels={"topology.kubernetes.io/zone": zone})
    return replace(on, info=replace(on.info, node=replace(on.info.node, rules=rules)))


def test_room_is_made_for_a_group_in_one_domain_of_the_level_that_it_requires() -> None:
    small = held(pod("small", "neuron=1"), TRN1.devices_mask([3]))
    many = [held(pod(f"many-{device}", "neuron=1"), TRN1.devices_mask([device])) for device in (0, 5)]
    nodes = (
        in_zone(node("a"), "z1"),
        in_zone(node("b", small), "z1"),
        in_zone(node("c"), "z2"),
        in_zone(node("d", *many), "z2"),
    )
    spare = in_zone(node("e", geometry=INF2), "z3")
    before, members = gang(2, "neuron=16", 2, *nodes, spare)
    members = [replace(member, member=replace(GANG, wish=TopologyWish(required="zone"))) for member in members]
    known = replace(before, pods={**before.pods, **{member.uid: member for member in members}})
    found = judged(known, members)
    assert [one.place and one.place[0] for one in found] == ["a", None]
    assert found[1].move is not None
    assert [(victim.pod.uid, victim.source) for victim in found[1].move.victims] == [("small", "b")]
    assert "z1 has 1" in found[1].text
    assert "a move of ml/small from node b" in found[1].text


def test_a_group_preempts_only_where_it_would_fit_as_a_whole() -> None:
    low = [held(pod(f"low-{name}", "neuron=16"), TRN1.all_mask) for name in "bd"]
    nodes = in_zone(node("a"), "z1"), in_zone(node("b", low[0]), "z1"), in_zone(node("d", low[1]), "z2")
    before, members = gang(2, "neuron=16", 2, *nodes)
    wish = TopologyWish(required="zone")
    members = [replace(one, priority=5, member=replace(GANG, wish=wish)) for one in members]
    known = replace(before, pods={**before.pods, **{member.uid: member for member in members}})
    uids = {member.uid for member in members}
    found = judge_all(Scene(known), members, now=NOW, rules=None, preempting=uids)
    assert [one.place and one.place[0] for one in found] == ["a", None]
    assert found[1].move is not None
    assert [victim.pod.uid for victim in found[1].move.victims] == ["low-b"]
    three = [replace(members[0], reference=replace(members[0].reference, uid=PodUid("g3"), name="g3")), *members]
    more = replace(known, pods={**known.pods, PodUid("g3"): three[0]}, min_counts={("ml", "gang"): 3})
    found = judge_all(Scene(more), three, now=NOW, rules=None, preempting={*uids, PodUid("g3")})
    assert [one.move for one in found] == [None, None, None]


def test_room_is_made_for_a_group_whose_pods_need_each_other() -> None:
    low = [held(pod(f"low-{name}", "neuron=16"), TRN1.all_mask) for name in "ab"]
    before, members = gang(2, "neuron=16", 2, in_zone(node("a", low[0]), "z1"), in_zone(node("b", low[1]), "z1"))
    near = PodTerm(PodSelector(("ml",), (Requirement("app", "In", ("ring",)),)), "topology.kubernetes.io/zone")
    labels = pod_labels("ml", {"app": "ring"})
    members = [replace(one, priority=5, labels=labels, rules=replace(one.rules, affinity=(near,))) for one in members]
    known = replace(before, pods={**before.pods, **{one.uid: one for one in members}})
    found = judge_all(Scene(known), members, now=NOW, rules=None, preempting={one.uid for one in members})
    moves = [one.move for one in found if one.move]
    assert {move.node for move in moves} == {"a", "b"}
    assert all(move.is_possible(known, PREEMPTION) for move in moves)


def two_low_nodes() -> tuple[Cluster, list[NeuronPod]]:
    """Two full nodes with a pod of low priority each, and a group of two that would take both."""
    pods = (pod(f"low-{name}", "neuron=16") for name in "ab")
    low = [held(replace(one, running=True, ready=True, labels=pod_labels("ml", {})), TRN1.all_mask) for one in pods]
    before, members = gang(2, "neuron=16", 2, node("a", low[0]), node("b", low[1]))
    members = [replace(one, priority=5) for one in members]
    return replace(before, pods={**before.pods, **{one.uid: one for one in members}}), members


@pytest.mark.parametrize(("recovers", "victims"), [(True, 2), (False, 0)])
def test_budgets_are_summed_over_the_victims_of_a_whole_group(*, recovers: bool, victims: int) -> None:
    before, members = two_low_nodes()
    web = Budget("ml", "web", (), allowed=1, recovers=recovers)
    known = replace(before, budgets=(web,))
    found = judge_all(Scene(known), members, now=NOW, rules=None, preempting={one.uid for one in members})
    assert sum(len(one.move.victims) for one in found if one.move) == victims


@pytest.mark.parametrize("shape", ["neuron=16", "neuron=8"])
def test_a_group_preempts_pods_that_hold_its_devices_under_another_name(shape: str) -> None:
    """The kubelet offers none of the group's name yet, while the victims have all."""
    before, members = two_low_nodes()
    number = int(shape.removeprefix("neuron="))
    asks, cores = {"aws.amazon.com/neuron": number * 1000}, {"aws.amazon.com/neuroncore": 32_000}
    offers = NodeRules(neuron=tuple({"aws.amazon.com/neuron": 0, **cores}.items()))
    wants = PodRules(neuron=tuple(asks.items()))
    members = [replace(one, request=parse_shape(shape), rules=wants) for one in members]
    lows = {
        uid: replace(one, rules=PodRules(neuron=tuple(cores.items()))) for uid, one in before.pods.items() if one.node
    }
    nodes = {name: replace(info, node=replace(info.node, rules=offers)) for name, info in before.nodes.items()}
    known = replace(
        before,
        nodes=nodes,
        uses={name: NodeUse(cores) for name in nodes},
        pods={**lows, **{one.uid: one for one in members}},
    )
    found = judge_all(Scene(known), members, now=NOW, rules=None, preempting={one.uid for one in members})
    assert {one.standing for one in found if one.move} == {Standing.LINKS}


def test_where_no_eviction_helps_the_budgets_say_what_they_allow_of_all_that_are_needed() -> None:
    own = pod_labels("ml", {})
    web = [replace(pod(f"w-{n}", "neuron=8"), running=True, ready=True, labels=own) for n in (0, 1)]
    holding = [held(one, TRN1.devices_mask(range(n * 8, n * 8 + 8))) for n, one in enumerate(web)]
    before = replace(cluster(node("a", *holding)), budgets=(Budget("ml", "web", (), allowed=1),))
    big = pod("big", "neuron=16")
    (found,) = judge_all(Scene(replace(before, pods={**before.pods, big.uid: big})), [big], now=NOW)
    assert found.text.endswith(
        "In the way: ml/w-0, ml/w-1. PodDisruptionBudget ml/web allows 1 disruption now, 2 are needed"
    )


def test_room_is_made_for_as_many_of_a_group_as_are_missing_though_not_for_all() -> None:
    before, members = two_low_nodes()
    third = replace(members[0], reference=replace(members[0].reference, uid=PodUid("g0a"), name="g0a"))
    known = replace(before, pods={**before.pods, third.uid: third})
    uids = {one.uid for one in members}
    found = judge_all(Scene(known), [*members, third], now=NOW, rules=None, preempting=uids)
    assert [one.pod.uid for one in found if one.move] == ["g0", "g1"]


def test_a_group_whose_pods_are_not_all_there_waits() -> None:
    before, members = gang(2, "neuron=4", 3, node("a"))
    assert {prospect.sentence for prospect in judged(before, members)} == {
        "2 of the 3 pods of its group gang are there"
    }


def test_a_group_of_which_some_are_placed_needs_room_for_the_others_only() -> None:
    placed = replace(pod("g2", "neuron=4"), member=GANG)
    before, members = gang(2, "neuron=4", 3, node("a", held(placed, TRN1.devices_mask(range(4)))))
    assert {prospect.standing for prospect in judged(before, members)} == {Standing.FITS}


def test_pods_of_a_group_that_need_not_be_placed_together_are_looked_at_one_by_one() -> None:
    before, members = gang(3, "neuron=8", 0, node("a"))
    for known in (before, replace(before, min_counts={})):
        standings = [prospect.standing for prospect in judged(known, members)]
        assert standings == [Standing.FITS, Standing.FITS, Standing.SHORT]


def test_what_each_member_of_a_group_needs_besides_neuron_is_counted() -> None:
    before, members = gang(3, "neuron=1", 3, with_rules(node("a"), allocatable=(("cpu", 5000),)))
    needy = [replace(member, rules=PodRules(needs=(("cpu", 2000),))) for member in members]
    known = replace(before, pods={member.uid: member for member in needy}, uses=NodeUses())
    assert Standing.FITS not in {prospect.standing for prospect in judged(known, needy)}
    two = replace(known, min_counts={("ml", "gang"): 2})
    assert [prospect.standing for prospect in judged(two, needy)].count(Standing.FITS) == 2


# Checks before a move is made, and other names.


def test_a_move_that_was_found_is_possible_until_something_of_it_changes() -> None:
    small, other = devices("small", 0), devices("other", *range(8))
    before = cluster(node("a", small), node("b", other), waiting=(BIG,))
    move = cheapest_move(Scene(before), BIG)
    assert move is not None
    assert move.is_possible(before, MoveRules())
    grown = cluster(node("a", small, devices("new", 5)), node("b", other), waiting=(BIG,))
    assert not move.is_possible(grown, MoveRules())
    fixed = cluster(node("a", devices("small", 0, movable=False)), node("b", other), waiting=(BIG,))
    assert not move.is_possible(fixed, MoveRules())
    elsewhere = cluster(node("a", devices("small", 1)), node("b", other), waiting=(BIG,))
    assert not move.is_possible(elsewhere, MoveRules())
    closed = cluster(node("a", small), node("b", other, is_open=False), waiting=(BIG,))
    assert not move.is_possible(closed, MoveRules())
    assert not move.is_possible(cluster(node("a", small), node("b", other)), MoveRules())


def test_a_move_is_not_possible_any_more_once_the_victim_lacks_cpu_where_it_was_to_go() -> None:
    victim = Held(replace(devices("small", 0).pod, rules=PodRules(needs=(("cpu", 3000),))), TRN1.device_mask(0))
    target = with_rules(node("b", devices("other", *range(8))), allocatable=(("cpu", 4000),))
    before = cluster(node("a", victim), target, waiting=(BIG,))
    for used, is_possible in ((1000, True), (1001, False)):
        known = replace(before, uses=NodeUses({"b": NodeUse({"cpu": used})}))
        move = cheapest_move(Scene(replace(before, uses=NodeUses())), BIG)
        assert move is not None
        assert move.is_possible(known, MoveRules()) is is_possible


def test_devices_that_pods_of_lower_priority_hold_under_another_name_are_named() -> None:
    asked = pod("high", "neurondevice=4", priority=10)
    others = [devices(f"p{number}", number, movable=False) for number in range(16)]
    cases = {
        asked: True,
        pod("high", "neuron=4", priority=10): False,
        pod("low", "neurondevice=4"): False,
        replace(asked, preempts=False): False,
    }
    for waiting, is_crossed in cases.items():
        (expected,) = judged(cluster(node("a", *others)), [waiting])
        assert (expected.helps == HELD_UNDER_ANOTHER_NAME) is is_crossed


def test_the_mask_of_a_placement_is_all_that_it_uses() -> None:
    move = cheapest_move(Scene(cluster(node("a", devices("small", 0)), node("b"))), BIG)
    assert move is not None
    assert move.victims[0].had_mask == CoreMask(0b11)
    assert move.victims[0].mask.bit_count() == 2


def test_a_spare_node_is_taken_back_from_whoever_has_it_before_others_go_for_a_lost_member() -> None:
    low = {name: held(pod(f"low-{name}", "neuron=16", movable=True), TRN1.all_mask) for name in "bc"}
    cheap = held(pod("cheap", "neuron=16", priority=-5), TRN1.all_mask)
    member = GroupMember(("ml", "gang"), 2, (0,), spares=1)
    lives = replace(held(replace(pod("g0", "neuron=16", priority=5), member=member), TRN1.all_mask))
    before = cluster(node("a", lives), node("b", low["b"]), node("c", low["c"]), node("d", cheap))
    lost = replace(pod("g1", "neuron=16", priority=5), member=replace(member, rank=(1,)))
    key = spare_key(("ml", "gang"), 1)
    spare = Reservation(PodReference(PodUid(key), "ml", "gang spare 1"), "c", TRN1.all_mask, lent_below=5)
    nodes = {**before.nodes, "c": replace(before.nodes["c"], reservations=(spare,))}
    known = replace(
        before, nodes=nodes, kept={key: spare}, pods={**before.pods, lost.uid: lost}, min_counts={("ml", "gang"): 2}
    )
    (found,) = judge_all(Scene(known), [lost], now=NOW, rules=None, preempting={lost.uid})
    assert found.move is not None
    assert [(victim.pod.uid, found.move.node) for victim in found.move.victims] == [("low-c", "c")]
    assert found.move.is_possible(known, PREEMPTION)
