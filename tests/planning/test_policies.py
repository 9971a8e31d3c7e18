from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Rejection, costs, place, placement_mask
from neuron_plugin.planning import MIXES, POLICIES, Board, NodeState, Policy, best_node, parse_shape
from neuron_plugin.topology import CoreMask
from tests.planning.clusters import INF2, LINE, SHAPES, cluster, clusters, devices, node, pod, sets_of


@pytest.mark.parametrize("name", POLICIES)
@given(free=st.integers(0, LINE.all_mask), shape=st.sampled_from(SHAPES))
def test_every_policy_chooses_a_free_valid_set_or_none_if_there_is_none(name: str, free: int, shape: str) -> None:
    request = parse_shape(shape)
    state = NodeState("a", LINE, CoreMask(free))
    chosen = Policy(name, MIXES["train"]).choose(state, request)
    options = [mask for mask in sets_of(LINE, request) if mask & free == mask]
    assert (chosen is None) == (not options)
    assert chosen is None or chosen[1] in options


@given(free=st.integers(0, LINE.all_mask), shape=st.sampled_from(SHAPES))
def test_ours_is_the_set_that_the_extender_would_give_and_its_cost(free: int, shape: str) -> None:
    request = parse_shape(shape)
    chosen, placed = Policy().choose(NodeState("a", LINE, CoreMask(free)), request), place(LINE, free, request)
    if isinstance(placed, Rejection):
        assert chosen is None
    else:
        assert chosen is not None
        assert chosen[1] == placement_mask(placed)
        assert chosen[0][0] == min(costs(LINE, free, [m for m in sets_of(LINE, request) if m & free == m]))


def chosen_node(name: str, nodes: dict[str, NodeState], shape: str) -> str:
    found = best_node(nodes, pod("waiting", shape), Policy(name, MIXES["train"]))
    assert found is not None
    return found[0]


def test_each_policy_goes_its_own_way() -> None:
    nodes = cluster(
        node("a"),
        node("b", devices("b", *range(4))),
        node("c", devices("c", *range(8)), devices("d", 8), devices("e", 9)),
    )
    where = {name: chosen_node(name, nodes, "neuron=1") for name in POLICIES}
    assert where == {
        "spread": "a",
        "first-fit": "a",
        "best-fit": "c",
        "fgd": "c",
        "fgd-ties": "c",
        "ours-any": "c",
        "ours": "c",
    }


def test_of_equal_tori_the_one_with_most_pods_is_taken_and_of_equal_lines_the_fullest() -> None:
    one, two = devices("x", 0, 1, 2, 3), [devices("y", 0), devices("z", 1), devices("u", 2), devices("v", 3)]
    assert chosen_node("ours", cluster(node("a", one), node("b", *two)), "neuron=4") == "b"
    few = pod("x", "neuron=1", INF2.device_mask(0))
    more = pod("y", "neuron=3", INF2.devices_mask((0, 1, 2)))
    chosen = [Policy().choose(node("a", each, geometry=INF2), parse_shape("neuron=1")) for each in (few, more)]
    assert [choice and choice[0][1] for choice in chosen] == [10, 6]


@given(clusters())
def test_fgd_adds_least_to_what_no_pod_of_the_mix_can_use(nodes: dict[str, NodeState]) -> None:
    mix = {parse_shape("neuron=1"): 1.0, parse_shape("neuron=2"): 1.0}

    def unusable(free: int) -> int:
        total = 0
        for request in mix:
            useful = 0
            for mask in sets_of(LINE, request):
                useful |= mask if mask & free == mask else 0
            total += (free & ~useful).bit_count()
        return total

    for state in nodes.values():
        chosen = Policy("fgd", mix).choose(state, parse_shape("neuroncore=1"))
        if chosen:
            free = int(state.free_mask)
            adds = {
                mask: unusable(free & ~mask) - unusable(free) for mask in sets_of(LINE, parse_shape("neuroncore=1"))
            }
            assert adds[chosen[1]] == min(add for mask, add in adds.items() if mask & free)


def test_between_unlike_hardware_the_devices_decide_that_later_pods_lose() -> None:
    """As the extender's filter does: four devices break a whole Inf2, and no more than a row of a Trn1 in rows."""
    rows = devices("x", *range(8)), devices("y", 8, 9, 10, 11)
    nodes = cluster(node("a-inf", geometry=INF2), node("b-trn", *rows))
    assert chosen_node("ours", nodes, "neuron=4") == "b-trn"
    whole = cluster(node("a-trn"), node("b-inf", pod("z", "neuron=2", INF2.devices_mask((0, 1))), geometry=INF2))
    assert chosen_node("ours", whole, "neuron=4") == "b-inf"


def test_a_simulation_of_unlike_nodes_goes_where_a_plan_would() -> None:
    nodes = [node("a-inf", geometry=INF2), node("b-trn", devices("x", *range(12)))]
    board = Board(nodes, Policy(), None)
    assert board.start("new", parse_shape("neuron=4"), 0.0)
    assert [each.uid for each in board.nodes["b-trn"].pods] == ["x", "new"]
