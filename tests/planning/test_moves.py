from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import ContainerKind, ContainerRequest, Resource
from neuron_plugin.planning import (
    MoveRules,
    NodeState,
    PlannedPod,
    Policy,
    Standing,
    after,
    best_node,
    cheapest_move,
    drain,
    how_many_more,
    parse_shape,
    prospects,
)
from neuron_plugin.topology import CoreMask
from tests.planning.clusters import (
    INF2,
    LINE,
    SHAPES,
    TRN1,
    cluster,
    clusters,
    devices,
    node,
    one_victim_moves,
    pod,
    sets_of,
)

ONE = MoveRules(most_victims=1)


def held_once(nodes: dict[str, NodeState]) -> bool:
    """No core is in two pods' sets, and each set is a valid one of its pod's request."""
    for state in nodes.values():
        if sum(each.mask.bit_count() for each in state.pods) != state.used_mask.bit_count():
            return False
        if any(each.mask not in sets_of(state.geometry, each.request) for each in state.pods):
            return False
    return True


def test_the_one_pod_on_an_otherwise_empty_node_makes_room_for_a_pod_of_the_whole_node() -> None:
    nodes = cluster(node("a", devices("small", 0)), node("b", devices("other", *range(8))))
    move = cheapest_move(nodes, pod("big", "neuron=16"), Policy())
    assert move is not None
    assert (move.node, move.mask) == ("a", TRN1.all_mask)
    assert [(each.pod.uid, each.source, each.target) for each in move.victims] == [("small", "a", "b")]
    assert after(nodes, move)["a"].free_mask == 0


def test_of_two_moves_the_one_that_loses_fewer_device_hours_is_proposed() -> None:
    young, old = devices("young", 0, 1, 2, 3, since=9.0), devices("old", 0, since=0.0)
    nodes = cluster(node("a", old), node("b", young), node("c", *(devices(f"c{i}", i) for i in range(5))))
    move = cheapest_move(nodes, pod("big", "neuron=16"), Policy(), now=9.5)
    assert move is not None
    assert ([each.pod.uid for each in move.victims], move.loss) == (["young"], 2.0)


def test_a_pod_that_fits_elsewhere_only_on_other_hardware_is_not_moved() -> None:
    nodes = cluster(node("a", devices("small", 0)), node("b", geometry=INF2))
    assert cheapest_move(nodes, pod("big", "neuron=16"), Policy()) is None


@pytest.mark.parametrize(
    ("victim", "priority", "rules", "moved"),
    [
        (devices("v", 0, movable=True), 0, MoveRules(), True),
        (devices("v", 0, movable=False), 100, MoveRules(), False),
        (devices("v", 0, movable=False), 100, MoveRules(by_priority=True), True),
        (devices("v", 0, movable=False), 0, MoveRules(by_priority=True), False),
        (replace(devices("v", 0), recreated=False), 100, MoveRules(by_priority=True), False),
    ],
)
def test_a_pod_is_moved_only_if_it_says_so_or_by_priority_and_if_a_controller_makes_it_again(
    victim: PlannedPod, priority: int, rules: MoveRules, *, moved: bool
) -> None:
    nodes = cluster(node("a", victim), node("b", replace(devices("o", 0, movable=False), priority=1000)))
    found = cheapest_move(nodes, pod("big", "neuron=16", priority=priority), Policy(), rules=rules)
    assert (found is not None) is moved


def test_no_set_is_opened_on_a_closed_node_and_no_pod_is_moved_to_one() -> None:
    small, waiting = devices("small", 0), pod("big", "neuron=16")
    assert (
        cheapest_move(cluster(node("a", small, is_open=False), node("b", devices("o", 1))), waiting, Policy()) is None
    )
    full = [devices(f"b{i}", i, movable=False) for i in range(15)]
    nodes = cluster(node("a", small), node("b", *full))
    assert cheapest_move(nodes, waiting, Policy()) is not None
    nodes["b"] = replace(nodes["b"], open=False)
    assert cheapest_move(nodes, waiting, Policy()) is None


def test_a_pod_of_two_containers_gets_room_for_both() -> None:
    row = ContainerRequest("a", ContainerKind.APP, Resource.NEURON, 4)
    waiting = replace(pod("two", "neuron=4"), request=(row, replace(row, container="b", count=8)))
    nodes = cluster(node("a", devices("x", 0), devices("y", 4)), node("b", devices("z", 0, movable=False)))
    nodes["b"] = nodes["b"].with_pod(devices("w", *range(8, 16), movable=False))
    move = cheapest_move(nodes, waiting, Policy())
    assert move is not None
    assert len(move.victims) == 1
    assert move.mask.bit_count() == 24
    state = after(nodes, move)["a"]
    assert sum(each.mask.bit_count() for each in state.pods) == state.used_mask.bit_count()


@settings(max_examples=150)
@given(clusters(), st.sampled_from(SHAPES))
def test_a_move_of_one_pod_is_found_whenever_there_is_one_and_it_is_the_cheapest(
    nodes: dict[str, NodeState], shape: str
) -> None:
    waiting = pod("waiting", shape)
    if best_node(nodes, waiting, Policy()):
        return
    move = cheapest_move(nodes, waiting, Policy(), rules=ONE)
    possible = list(one_victim_moves(nodes, waiting))
    assert (move is None) == (not possible)
    if move:
        assert move.loss == min(possible)[0]
        assert (move.loss, move.victims[0].pod.uid) in possible
        assert held_once(after(nodes, move))


@settings(max_examples=100)
@given(clusters(), st.lists(st.sampled_from(SHAPES), max_size=4))
def test_what_is_promised_to_several_waiting_pods_can_be_had_by_all(
    nodes: dict[str, NodeState], shapes: list[str]
) -> None:
    waiting = [pod(f"w{number}", shape) for number, shape in enumerate(shapes)]
    states = dict(nodes)
    for each in prospects(nodes, waiting, Policy(), rules=MoveRules(most_victims=3)):
        if each.standing is Standing.FITS:
            states[each.node] = states[each.node].with_pod(replace(each.pod, mask=each.mask))
        elif each.move:
            assert all(victim.pod.movable for victim in each.move.victims)
            states = after(states, each.move)
        assert held_once(states)
    gone = sum(len(state.pods) for state in nodes.values()) - sum(len(state.pods) for state in states.values())
    assert gone <= 0


@given(clusters(), st.sampled_from(SHAPES))
def test_equal_pods_are_planned_for_as_if_each_were_looked_at_alone(nodes: dict[str, NodeState], shape: str) -> None:
    states = nodes
    for each in prospects(nodes, [pod(f"w{number}", shape) for number in range(3)], Policy()):
        assert [each] == prospects(states, [each.pod], Policy())
        if each.node:
            states = {**states, each.node: states[each.node].with_pod(replace(each.pod, mask=each.mask))}
        states = after(states, each.move) if each.move else states


def test_two_equal_pods_get_room_on_different_nodes() -> None:
    small = [node(name, devices(f"on-{name}", 0)) for name in ("a", "b")]
    nodes = cluster(*small, node("c", devices("row", 0, 1, 2, 3, movable=False)))
    found = prospects(nodes, [pod("first", "neuron=16"), pod("second", "neuron=16")], Policy())
    assert [each.move.node for each in found if each.move] == ["a", "b"]


@pytest.mark.parametrize(
    ("shape", "standing"), [("neuron=1", "fits"), ("neuron=4", "pieces"), ("neuron=8", "short"), ("neuron=7", "never")]
)
def test_how_a_waiting_pod_stands(shape: str, standing: str) -> None:
    held = [devices(str(i), i, movable=False) for i in range(16) if i % 4]
    (found,) = prospects(cluster(node("a", *held)), [pod("w", shape)], Policy())
    assert found.standing.value == standing


def test_a_drain_names_the_pods_that_fit_nowhere_else() -> None:
    nodes = cluster(node("a", devices("row", 0, 1, 2, 3), devices("one", 4)), node("b", *_holes()))
    found = drain(nodes, "a", Policy())
    assert [(each.pod.uid, each.target) for each in found.moved] == [("one", "b")]
    assert [each.uid for each in found.stuck] == ["row"]


def _holes() -> list[PlannedPod]:
    return [devices(f"b{i}", i) for i in range(16) if i % 4]


@given(clusters(), st.sampled_from(SHAPES))
def test_so_many_more_pods_fit_as_can_be_placed_one_after_the_other_and_not_one_more(
    nodes: dict[str, NodeState], shape: str
) -> None:
    request = parse_shape(shape)
    for name, state in nodes.items():
        best = 0
        stack = [(int(state.free_mask), 0)]
        seen = set()
        while stack:
            free, count = stack.pop()
            best = max(best, count)
            for mask in sets_of(LINE, request):
                if mask & free == mask and free & ~mask not in seen:
                    seen.add(free & ~mask)
                    stack.append((free & ~mask, count + 1))
        assert how_many_more(nodes, request).get(name) == (best or None)


def test_halves_of_devices_are_pieces_that_a_move_puts_together() -> None:
    half = pod("one", "neuroncore=1", 0b01), pod("two", "neuroncore=1", 0b0100)
    nodes = cluster(NodeState("a", LINE, CoreMask(0b1111), half))
    (found,) = prospects(nodes, [pod("waiting", "neuron=1")], Policy())
    assert found.standing is Standing.PIECES
    assert found.move is not None
