"""Which nodes can take a pod, and which is the best: what is remembered against a look at every node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import Capacity, PodRequest, Rejection, Resource
from neuron_plugin.allocation.cost import cost, devices_lost
from neuron_plugin.allocation.narrowing import device_facts
from neuron_plugin.allocation.node import capacity_of
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.rejection import STALE_PLUGIN
from neuron_plugin.planning import choice as module
from neuron_plugin.planning.choice import Choices, verdict
from neuron_plugin.topology import CoreMask
from tests.support.manifests import container, pod_manifest, shipped_geometry, with_memory
from tests.support.world import CORE, DEVICE, TYPES, World, record_of, request_of

TRN1, INF1, INF2 = "trn1.32xlarge", "inf1.6xlarge", "inf2.48xlarge"
PREFIX = "neuron-plugin.io/"


def asking(resource: Resource, amount: int, name: str = "main", **limits: str) -> PodRequest:
    keys = {PREFIX + key.replace("_", "-"): text for key, text in limits.items()}
    return request_of(record_of(pod_manifest("pod", containers=[container(name, resource, amount)], annotations=keys)))


def capacity(free: int, instance_type: str = TRN1, used: Sequence[int] = ()) -> Capacity:
    geometry = shipped_geometry(instance_type)
    facts = replace(device_facts("", instance_type, TYPES[instance_type]), used=(("memory", (*used,)),) * bool(used))
    return capacity_of(geometry, geometry.all_mask, CoreMask(free), facts)


# One node.


@settings(max_examples=200)
@given(
    free=st.integers(0, 2**16 - 1),
    used=st.lists(st.integers(0, 8192), min_size=4, max_size=4) | st.just([]),
    asked=st.tuples(st.integers(1, 9), st.integers(0, 8200)),
    limits=st.fixed_dictionaries(
        {},
        optional={
            "allow-devices": st.sampled_from(["0", "1-2", "3,0", "60"]),
            "prefer-devices": st.sampled_from(["2", "1,3"]),
            "balance": st.just("memory"),
            "device-name": st.sampled_from(["inf1", "trn1"]),
        },
    ),
)
def test_a_verdict_is_the_cost_of_the_set_that_a_bind_would_choose_or_why_there_is_none(
    free: int, used: list[int], asked: tuple[int, int], limits: dict[str, str]
) -> None:
    keys = {PREFIX + key: text for key, text in limits.items()}
    manifest = pod_manifest("new", containers=[with_memory("main", *asked)], annotations=keys)
    node, request = capacity(free, INF1, used), request_of(record_of(manifest))
    placed = node.place(request)

    if not isinstance(placed, Rejection):
        assert verdict(node, request) == cost(node.geometry, free, placement_mask(placed))
    else:
        assert verdict(node, request) == placed
        fits_empty = not isinstance(verdict(capacity(node.geometry.all_mask, INF1), request), Rejection)
        assert placed.may_pass is fits_empty


@given(st.integers(0, 2**32 - 1), st.sampled_from([(DEVICE, 1), (DEVICE, 4), (DEVICE, 8), (CORE, 1), (CORE, 8)]))
def test_a_verdict_on_a_torus_is_that_of_the_set_that_a_bind_would_choose(
    free: int, asked: tuple[Resource, int]
) -> None:
    node, request = capacity(free), asking(*asked)
    placed = node.place(request)

    expected = placed if isinstance(placed, Rejection) else cost(node.geometry, free, placement_mask(placed))
    assert verdict(node, request) == expected


def test_a_verdict_on_several_containers_is_that_of_their_best_placement() -> None:
    containers = [container("a", DEVICE, 1), container("b", CORE, 2)]
    free, request = capacity(2**32 - 1), request_of(record_of(pod_manifest("pod", containers=containers)))
    placed = free.place(request)
    assert not isinstance(placed, Rejection)

    assert verdict(free, request) == cost(free.geometry, free.free_mask, placement_mask(placed))
    assert verdict(STALE_PLUGIN, request) is STALE_PLUGIN
    assert isinstance(verdict(capacity(0), request), Rejection)


def test_equal_rejections_are_one_object() -> None:
    first, second = verdict(capacity(0b1), asking(DEVICE, 1)), verdict(capacity(0b1000), asking(DEVICE, 1))

    assert isinstance(first, Rejection)
    assert first is second


def test_the_line_of_inf1_is_judged_in_cores_across_devices() -> None:
    line = capacity(0xFF0F, INF1)

    assert not isinstance(verdict(line, asking(CORE, 8)), Rejection)
    assert isinstance(verdict(line, asking(CORE, 9)), Rejection)


# The best of several.


def best(world: World, resource: Resource, amount: int, *called: str) -> str:
    return world.state.choices.answers(asking(resource, amount)).best(called or list(world.state.nodes))


def test_among_equals_on_a_torus_the_node_with_the_most_pods_is_the_best_and_on_a_line_the_fullest(
    world: World,
) -> None:
    for name, instance_type in (("a", TRN1), ("b", TRN1), ("line", INF2), ("fuller-line", INF2)):
        world.node(name, instance_type)
    world.held("one", "a", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14")
    for device in range(3):
        world.held(f"few-{device}", "b", DEVICE, str(device))
    world.held("pods", "line", CORE, "0")
    world.held("pods-2", "line", CORE, "2")
    world.held("long", "fuller-line", DEVICE, "1,2,3,4,5,6,7,8,9,10")
    world.held("core", "fuller-line", CORE, "0")

    assert best(world, DEVICE, 1, "a", "b") == "b"
    assert best(world, CORE, 1, "line", "fuller-line") == "fuller-line"


def test_a_pod_takes_no_node_of_other_hardware_while_it_would_lose_more_there(world: World) -> None:
    world.node("inferentia", INF2)
    world.node("trainium", TRN1)
    assert best(world, DEVICE, 4) == "inferentia"

    world.held("most", "trainium", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11")
    assert best(world, DEVICE, 4) == "trainium"


def test_nodes_are_compared_by_the_set_that_a_preference_chooses(world: World) -> None:
    for name in ("used", "empty"):
        world.node(name, TRN1)
    world.held("holder", "used", DEVICE, "0")

    (plain,) = world.state.choices.answers(asking(DEVICE, 1)).values(["used"])
    on_used, on_empty = world.state.choices.answers(asking(DEVICE, 1, prefer_devices="15")).values(["used", "empty"])

    assert plain is not None
    assert on_used is not None
    assert on_empty is not None
    assert plain < on_used < on_empty


def best_of(world: World, request: PodRequest, called: list[str]) -> str:
    """By looking at every node: the best of each geometry, then the one that loses the fewest devices."""
    best: dict[str, tuple[int, int, str]] = {}
    for name in called:
        found = world.capacity(name)
        price = verdict(found, request)
        if isinstance(found, Rejection) or isinstance(price, Rejection):
            continue
        free, kind = found.free_mask.bit_count(), found.geometry.instance_type
        use = free if kind.startswith("inf") else -len(world.state.nodes[name].ledger.by_pod)
        best[kind] = min(best.get(kind, (price, use, name)), (price, use, name))

    def lost(key: tuple[int, int, str]) -> float:
        found = world.capacity(key[-1])
        placed = Rejection("", "") if isinstance(found, Rejection) else found.place(request)
        assert not isinstance(found, Rejection)
        assert not isinstance(placed, Rejection)
        return devices_lost(found.geometry, found.free_mask, placement_mask(placed))

    return min(best.values(), key=lambda key: (lost(key), key), default=(0, 0, ""))[-1]


def test_answers_follow_every_change_of_a_node(world: World) -> None:
    chance = random.Random(3)  # noqa: S311 - a reproducible history
    nodes = [f"node-{number}" for number in range(4)]
    held: dict[str, dict[str, object]] = {}
    for step in range(300):
        name, node = f"pod-{chance.randrange(20)}", chance.choice(nodes)
        match chance.randrange(4):
            case 0:
                world.node(node, chance.choice((TRN1, INF2)))
            case 1 if node in world.state.nodes:
                world.state.remove_node(node, world.state.nodes[node].node.uid)
            case 2 if name in held:
                world.gone(held.pop(name))
            case _ if name not in held:
                held[name] = world.held(name, node, DEVICE, str(chance.randrange(12)))
        request = asking(DEVICE, 1 + step % 4)
        answers = world.state.choices.answers(request)
        for each in nodes:
            now = verdict(world.capacity(each), request)
            refused = {reason for reason, names in answers.split([each])[1].items() if each in names}
            assert refused == ({now} if isinstance(now, Rejection) and each in world.state.nodes else set())
            assert (answers.values([each]) == [None]) is isinstance(now, Rejection)
        called = chance.sample([*nodes, "ghost"], 3)
        assert answers.best(called) == best_of(world, request, called)


def test_a_remembered_verdict_follows_the_amounts_on_its_node(world: World) -> None:
    world.node("node", "inf1.xlarge")
    request = request_of(record_of(pod_manifest("new", containers=[with_memory("main", 1, 5120)])))
    keys = {"NEURON_CORES": "3"}
    holder = pod_manifest("h", containers=[with_memory("main", 1, 4000)], node="node", annotations=keys)
    passed = []
    for change in (lambda _: None, world.show, world.gone):
        change(holder)
        passed.append(world.state.choices.answers(request).split(["node"])[0])

    assert passed == [["node"], [], ["node"]]


# What is remembered.


def test_nodes_in_one_state_are_judged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[object] = []

    def count(capacity: object, **_: object) -> int:
        judged.append(capacity)
        return 0

    monkeypatch.setattr(module, "verdict", count)
    for number in range(50):
        world.node(f"node-{number}", TRN1)

    world.state.choices.answers(asking(DEVICE, 4))

    assert len(judged) == 1


@pytest.mark.parametrize("amount", [4, 7], ids=["fits", "refused"])
def test_t06_a_name_that_comes_twice_has_one_verdict(world: World, amount: int) -> None:
    world.node("node", TRN1)

    passed, rejected = world.state.choices.answers(asking(DEVICE, amount)).split(["node", "node"])

    assert [set(passed), *rejected.values()].count({"node"}) == 1


def test_pods_whose_containers_have_other_names_share_their_answers(world: World) -> None:
    one, other = (world.state.choices.answers(asking(DEVICE, 4, name)) for name in ("a", "b"))

    assert one is other


def test_names_of_no_node_are_not_remembered(world: World) -> None:
    answers, ghosts = world.state.choices.answers(asking(DEVICE, 4)), [f"ghost-{number}" for number in range(100)]

    assert answers.split(ghosts) == ([], {})
    assert answers.values(ghosts) == [None] * 100
    assert (answers._rejected, answers._ranks) == ({}, {})


def test_nothing_is_left_of_a_verdict_that_no_node_has_any_more(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("holder", "node", DEVICE, "0,4,8,12")
    answers = world.state.choices.answers(asking(DEVICE, 4))
    assert answers._rejected

    world.gone(pod)

    assert world.state.choices.answers(asking(DEVICE, 4)) is answers
    assert answers._rejected == {}


def test_the_demand_that_was_asked_for_longest_ago_is_forgotten_when_there_are_too_many(world: World) -> None:
    memo = Choices(world.state.nodes)
    first, second = (memo.answers(asking(DEVICE, amount)) for amount in (1, 2))
    for amount in range(3, module.MOST_DEMANDS + 2):
        assert memo.answers(asking(DEVICE, 1)) is first
        memo.answers(asking(DEVICE, amount))

    assert memo.answers(asking(DEVICE, 1)) is first
    assert memo.answers(asking(DEVICE, 2)) is not second


def test_pods_with_ever_new_constraints_make_no_other_pods_verdicts_forgotten(world: World) -> None:
    world.node("node", TRN1)
    plain = world.state.choices.answers(asking(DEVICE, 4))
    for number in range(2 * module.MOST_DEMANDS):
        world.state.choices.answers(asking(DEVICE, 4, allow_devices=",".join(map(str, range(number % 63 + 1)))))

    assert world.state.choices.answers(asking(DEVICE, 4)) is plain
    assert len(world.state.choices._plain) + len(world.state.choices._constrained) <= 2 * module.MOST_DEMANDS


def rules(number: int, *, somewhere: bool) -> PodRules:
    """Of one of many workloads, each of which has a port of its own; some fit nowhere."""
    ports = frozenset({("10.0.0.1", "TCP", 1 + number)})
    return PodRules(ports=ports, node_selector=() if somewhere else (("pool", "none"),))


@pytest.mark.parametrize("somewhere", [True, False])
def test_the_nodes_of_many_workloads_are_remembered_as_long_as_they_are_few(world: World, *, somewhere: bool) -> None:
    for name in ("a", "b"):
        world.node(name, TRN1)
    choices, number = world.state.choices, 2 * module.MOST_DEMANDS
    first = []
    for each in range(number):
        first.append(choices.feasible(rules(each, somewhere=somewhere)))
        assert first[-1].of({"a", "b"}) == ({"a", "b"} if somewhere else set())
    assert (choices.feasible(rules(0, somewhere=somewhere)) is first[0]) is not somewhere
    assert choices.feasible(rules(number - 1, somewhere=somewhere)) is first[-1]
    assert sum(one.size for one in choices._feasible.values()) <= module.MOST_DEMANDS * 2
    for each in range(module.MOST_RULES + 1):
        choices.feasible(rules(each, somewhere=False))
    assert len(choices._feasible) <= module.MOST_RULES
