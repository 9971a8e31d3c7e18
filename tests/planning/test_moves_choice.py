"""Which of several moves is proposed, and what is no move at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import ContainerKind, ContainerRequest, Resource
from neuron_plugin.planning import MoveRules, PlannedPod, Policy, Standing, cheapest_move, drain, prospects
from neuron_plugin.topology import CoreMask
from tests.planning.clusters import INF2, LINE, TRN1, cluster, devices, node, pod

TOGETHER = replace(
    pod("two", "neuron=1"),
    request=tuple(ContainerRequest(name, ContainerKind.APP, Resource.NEURON, 1) for name in ("a", "b")),
)
"""A pod of two containers that ask for one device each."""


def full(name: str, *movable: PlannedPod) -> list[PlannedPod]:
    """The pods of a full node: these, and one on each other device that stays where it is."""
    used = 0
    for each in movable:
        used |= each.mask
    free = TRN1.whole_devices(TRN1.all_mask & ~used)
    return [*movable, *(devices(f"{name}-{number}", number, movable=False) for number in free)]


def test_of_moves_that_lose_the_same_the_one_of_fewest_pods_is_proposed_and_of_those_the_smallest() -> None:
    singles = [devices(f"single{number}", number) for number in range(2)]
    kept = [each for each in full("a", *singles) if each.uid not in {"a-2", "a-3"}]
    nodes = cluster(node("a", *kept), node("b", *full("b", devices("row", 0, 1, 2, 3))), node("z"))
    move = cheapest_move(nodes, pod("waiting", "neuron=4"), Policy())
    assert move is not None
    assert [each.pod.uid for each in move.victims] == ["row"]

    kept = [each for each in full("c", devices("alone", 5)) if each.uid not in {"c-4", "c-6", "c-7"}]
    move = cheapest_move({**nodes, "c": node("c", *kept)}, pod("waiting", "neuron=4"), Policy())
    assert move is not None
    assert [each.pod.uid for each in move.victims] == ["alone"]


def test_a_pod_whose_work_begins_in_the_future_loses_nothing_and_no_less_than_nothing() -> None:
    nodes = cluster(
        node("a", *full("a", devices("now", 0))), node("b", *full("b", devices("later", 0, since=9.0))), node("z")
    )
    move = cheapest_move(nodes, pod("waiting", "neuron=1"), Policy())
    assert move is not None
    assert (move.victims[0].pod.uid, move.loss) == ("now", 0.0)


def test_a_set_of_a_closed_node_is_not_opened_even_if_its_pod_fits_elsewhere() -> None:
    nodes = cluster(node("a", *full("a", devices("one", 0)), is_open=False), node("z"))
    assert cheapest_move(nodes, pod("waiting", "neuron=1"), Policy()) is None


def test_what_is_free_is_no_move() -> None:
    assert cheapest_move(cluster(node("a", devices("one", 0)), node("z")), pod("w", "neuron=8"), Policy()) is not None
    assert cheapest_move(cluster(node("a"), node("z")), pod("w", "neuron=8"), Policy()) is None


@pytest.mark.parametrize("waiting", [pod("row", "neuron=4"), TOGETHER], ids=["one-set", "two-containers"])
def test_no_more_pods_are_moved_than_the_rules_allow(waiting: PlannedPod) -> None:
    victims = [devices("x", 0), devices("y", 1)]
    kept = [each for each in full("a", *victims) if waiting is TOGETHER or each.uid not in {"a-2", "a-3"}]
    nodes = cluster(node("a", *kept), node("b", *full("b", devices("free", 0, 1))[1:]))
    assert cheapest_move(nodes, waiting, Policy(), rules=MoveRules(most_victims=1)) is None
    move = cheapest_move(nodes, waiting, Policy(), rules=MoveRules(most_victims=2))
    assert move is not None
    assert {each.pod.uid for each in move.victims} == {"x", "y"}


@pytest.mark.parametrize("waiting", [pod("single", "neuron=1"), TOGETHER], ids=["one-set", "two-containers"])
def test_a_device_out_of_service_is_not_given_to_the_waiting_pod_when_its_pod_goes(waiting: PlannedPod) -> None:
    state = node("a", *[each for each in full("a", devices("sick", 0)) if waiting is not TOGETHER or each.uid != "a-1"])
    nodes = cluster(state, node("z"))
    assert cheapest_move(nodes, waiting, Policy()) is not None
    nodes["a"] = replace(state, offered_mask=CoreMask(TRN1.all_mask & ~TRN1.device_mask(0)))
    assert cheapest_move(nodes, waiting, Policy()) is None


def test_the_largest_pod_finds_its_place_first_because_a_small_one_would_take_half_of_it() -> None:
    line = replace(LINE, device_count=12)
    pods = (devices(name, *ids, geometry=line) for name, ids in (("one", (0,)), ("two", (1, 2)), ("pair", (3, 4))))
    kept = (devices(f"b{each}", each, geometry=line, movable=False) for each in (0, 1, 5, 6, 7, 8, 9))
    found = drain(cluster(node("a", *pods, geometry=line), node("b", *kept, geometry=line)), "a", Policy())
    assert [each.pod.uid for each in found.moved] == ["two", "pair", "one"]
    assert found.stuck == ()


def test_a_pod_that_no_open_node_could_take_empty_never_fits_and_free_devices_of_unlike_nodes_do_not_add_up() -> None:
    held = [devices(str(number), number, movable=False) for number in range(2, 16)]
    inf = node("b", *(devices(f"b{number}", number, geometry=INF2) for number in range(2, 6)), geometry=INF2)
    sick = replace(node("a"), offered_mask=CoreMask(TRN1.all_mask & ~TRN1.device_mask(0)))
    cases = (
        ("neuron=1", cluster(node("a", is_open=False)), Standing.NEVER),
        ("neuron=16", cluster(sick), Standing.NEVER),
        ("neuron=4", cluster(node("a", *held), inf), Standing.SHORT),
    )
    for shape, nodes, standing in cases:
        (found,) = prospects(nodes, [pod("w", shape)], Policy())
        assert found.standing is standing
