from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import cores_asked
from neuron_plugin.planning import (
    MIXES,
    POLICIES,
    Arrival,
    MoveRules,
    NodeState,
    Outcome,
    Policy,
    arrivals,
    parse_shape,
    replay,
)
from tests.planning.clusters import LINE, SHAPES, TRN1, node, sets_of

ONE = MoveRules(most_victims=1)


def come(*pods: tuple[float, float, str]) -> list[Arrival]:
    return [Arrival(comes, stays, parse_shape(shape)) for comes, stays, shape in pods]


def run(
    nodes: list[NodeState], pods: list[Arrival], *, rules: MoveRules | None = None, waiting: bool = False
) -> Outcome:
    return replay(nodes, pods, Policy(), rules=rules, waiting=waiting)


def test_a_pod_that_fits_nowhere_is_refused_with_its_device_hours() -> None:
    found = run([node("a")], come((0, 2, "neuron=16"), (1, 3, "neuron=4"), (3, 1, "neuron=4")))
    assert (found.asked, found.refused_share) == (48.0, 12 / 48)
    assert found.by_request[parse_shape("neuron=4")].refused_pods == 1


def test_a_pod_that_waits_is_served_when_another_ends_and_its_waiting_is_counted() -> None:
    found = run([node("a")], come((0, 2, "neuron=16"), (1, 1, "neuron=4"), (1, 1, "neuron=16")), waiting=True)
    assert found.refused_share == 0
    assert found.mean_wait == (4 * 1 + 16 * 2) / (32 + 4 + 16)


def test_what_waits_in_the_end_are_the_refused_pods_that_would_still_run() -> None:
    found = run([node("a")], come((0, 9, "neuron=16"), (1, 1, "neuron=4"), (2, 5, "neuron=8"), (3, 1, "neuron=1")))
    assert [(each.uid, each.since) for each in found.waiting] == [("pod-2", 2.0), ("pod-3", 3.0)]


def test_a_pod_that_waits_for_ever_is_refused_in_the_end() -> None:
    found = run([node("a")], come((0, 1, "neuron=1"), (0, 2, "neuron=7")), waiting=True)
    assert found.by_request[parse_shape("neuron=7")].refused == 14


def test_a_pod_is_moved_to_make_room_and_goes_on_for_as_long_as_it_had_left() -> None:
    pods = come((0, 1, "neuron=8"), (0, 10, "neuron=8"), (0, 10, "neuron=1"), (2, 1, "neuron=16"), (4, 1, "neuron=16"))
    nodes = [node("a"), node("b")]
    refused, found = run(nodes, pods), run(nodes, pods, rules=ONE)
    assert refused.by_request[parse_shape("neuron=16")].refused_pods == 2
    assert (found.moves, found.moved_pods, found.lost, found.refused_share) == (1, 1, 2.0, 0.0)
    assert {each.uid for state in found.last.values() for each in state.pods} == {"pod-1", "pod-2", "pod-4"}


def test_each_pod_of_a_move_is_counted() -> None:
    pods = come((0, 1, "neuron=8"), (0, 9, "neuron=8"), (0, 9, "neuron=1"), (0, 9, "neuron=1"), (2, 1, "neuron=16"))
    found = run([node("a"), node("b")], pods, rules=MoveRules(most_victims=2))
    assert (found.moves, found.moved_pods) == (1, 2)


def test_means_over_time_weigh_states_by_how_long_they_last() -> None:
    found = run([node("a"), node("b")], come((0, 1, "neuron=16"), (4, 1, "neuron=1")))
    assert found.busy == 16 * 1 / 4
    assert found.empty == (1 * 1 + 2 * 3) / 4


@settings(max_examples=60)
@given(
    pods=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from(SHAPES)), max_size=30),
    policy=st.sampled_from(list(POLICIES)),
    rules=st.sampled_from([None, ONE, MoveRules(most_victims=3)]),
    waiting=st.booleans(),
)
def test_no_core_is_in_two_sets_whatever_comes(
    pods: list[tuple[int, int, str]], policy: str, rules: MoveRules | None, *, waiting: bool
) -> None:
    nodes = [node(name, geometry=LINE) for name in "ab"]
    found = replay(nodes, come(*sorted(pods)), Policy(policy, MIXES["infer"]), rules=rules, waiting=waiting)
    for state in found.last.values():
        assert sum(each.mask.bit_count() for each in state.pods) == state.used_mask.bit_count()
        assert all(each.mask in sets_of(LINE, each.request) for each in state.pods)
    assert 0 <= found.refused_share <= 1
    assert found.busy <= found.devices
    if pods:
        assert sum(each.pods for each in found.by_request.values()) == len(pods)


@given(st.lists(st.sampled_from(SHAPES), max_size=12))
def test_the_bound_serves_a_pod_whenever_some_packing_of_all_pods_exists(shapes: list[str]) -> None:
    cores, refused = list[int](), 0
    for shape in shapes:
        cores.append(sum(cores_asked(LINE, part) for part in parse_shape(shape)))
        on_one = {0}
        for each in cores:
            on_one |= {sum_before + each for sum_before in on_one}
        if not any(sum(cores) - LINE.core_count <= each <= LINE.core_count for each in on_one):
            refused += 1
            cores.pop()
    pods = come(*((float(number) / 100, 50, shape) for number, shape in enumerate(shapes)))
    found = replay([node(name, geometry=LINE) for name in "ab"], pods, None)
    assert sum(each.refused_pods for each in found.by_request.values()) == refused


@pytest.mark.parametrize("load", [0.7, 0.85])
def test_the_order_of_the_policies_is_the_one_on_the_page(load: float) -> None:
    nodes = [node(f"n{number:02}") for number in range(10)]
    pods = arrivals([TRN1] * 10, MIXES["train"], load, 3000)
    refused = {name: replay(nodes, pods, Policy(name, MIXES["train"])).refused_share for name in ("spread", "ours")}
    refused["moves"] = replay(nodes, pods, Policy(), rules=MoveRules()).refused_share
    refused["bound"] = replay(nodes, pods, None).refused_share
    assert refused["bound"] < refused["moves"] < refused["ours"] < refused["spread"]
