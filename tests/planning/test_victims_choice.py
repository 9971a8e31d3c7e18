"""Which of several moves is proposed, and what is no move at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import ContainerKind, ContainerRequest, NeuronPod, Resource
from neuron_plugin.planning import MoveRules, Scene, Standing, cheapest_move, drain
from tests.planning.clusters import INF2, LINE, TRN1, Held, cluster, devices, judged, node, pod

TOGETHER = pod(
    "two", "", request=tuple(ContainerRequest(name, ContainerKind.APP, Resource.NEURON, 1) for name in ("a", "b"))
)
"""A pod of two containers that ask for one device each."""


def full(name: str, *movable: Held, free: tuple[int, ...] = ()) -> list[Held]:
    """The pods of a node: these, and one that stays where it is on each other device but the free ones."""
    used = 0
    for one in movable:
        used |= one.mask
    others = [number for number in TRN1.whole_devices(TRN1.all_mask & ~used) if number not in free]
    return [*movable, *(devices(f"{name}-{number}", number, movable=False) for number in others)]


def test_of_moves_that_lose_the_same_the_one_of_fewest_pods_is_proposed_and_of_those_the_smallest() -> None:
    singles = [devices(f"single{number}", number) for number in range(2)]
    nodes = (
        node("a", *full("a", *singles, free=(2, 3))),
        node("b", *full("b", devices("row", 0, 1, 2, 3))),
        node("z"),
    )
    move = cheapest_move(Scene(cluster(*nodes)), pod("waiting", "neuron=4"))
    assert move is not None
    assert [victim.pod.uid for victim in move.victims] == ["row"]

    alone = node("c", *full("c", devices("alone", 5), free=(4, 6, 7)))
    move = cheapest_move(Scene(cluster(*nodes, alone)), pod("waiting", "neuron=4"))
    assert move is not None
    assert [victim.pod.uid for victim in move.victims] == ["alone"]


def test_a_pod_whose_work_begins_in_the_future_loses_nothing_and_no_less_than_nothing() -> None:
    later = devices("later", 0, since=9.0)
    before = cluster(node("a", *full("a", devices("now", 0))), node("b", *full("b", later)), node("z"))
    move = cheapest_move(Scene(before), pod("waiting", "neuron=1"))
    assert move is not None
    assert (move.victims[0].pod.uid, move.loss) == ("now", 0.0)


def test_a_set_of_a_closed_node_is_not_opened_even_if_its_pod_fits_elsewhere() -> None:
    before = cluster(node("a", *full("a", devices("one", 0)), is_open=False), node("z"))
    assert cheapest_move(Scene(before), pod("waiting", "neuron=1")) is None


def test_what_is_free_is_no_move() -> None:
    assert cheapest_move(Scene(cluster(node("a", devices("one", 0)), node("z"))), pod("w", "neuron=8")) is not None
    assert cheapest_move(Scene(cluster(node("a"), node("z"))), pod("w", "neuron=8")) is None


@pytest.mark.parametrize("waiting", [pod("row", "neuron=4"), TOGETHER], ids=["one-set", "two-containers"])
def test_no_more_pods_are_moved_than_the_rules_allow(waiting: NeuronPod) -> None:
    victims = [devices("x", 0), devices("y", 1)]
    on_a = full("a", *victims, free=() if waiting is TOGETHER else (2, 3))
    before = cluster(node("a", *on_a), node("b", *full("b", devices("free", 0, 1))[1:]))
    assert cheapest_move(Scene(before), waiting, rules=MoveRules(most_victims=1)) is None
    move = cheapest_move(Scene(before), waiting, rules=MoveRules(most_victims=2))
    assert move is not None
    assert {victim.pod.uid for victim in move.victims} == {"x", "y"}


@pytest.mark.parametrize("waiting", [pod("single", "neuron=1"), TOGETHER], ids=["one-set", "two-containers"])
def test_a_device_out_of_service_is_not_given_to_the_waiting_pod_when_its_pod_goes(waiting: NeuronPod) -> None:
    pods = full("a", devices("sick", 0), free=(1,) if waiting is TOGETHER else ())
    assert cheapest_move(Scene(cluster(node("a", *pods), node("z"))), waiting) is not None
    assert cheapest_move(Scene(cluster(node("a", *pods, sick=(0,)), node("z"))), waiting) is None


def test_the_largest_pod_finds_its_place_first_because_a_small_one_would_take_half_of_it() -> None:
    line = replace(LINE, device_count=12)
    pods = (devices(name, *ids, geometry=line) for name, ids in (("one", (0,)), ("two", (1, 2)), ("pair", (3, 4))))
    kept = (devices(f"b{number}", number, geometry=line, movable=False) for number in (0, 1, 5, 6, 7, 8, 9))
    found = drain(cluster(node("a", *pods, geometry=line), node("b", *kept, geometry=line)), "a")
    assert [relocation.pod.uid for relocation in found.moved] == ["pair", "two", "one"]
    assert found.stuck == ()


def test_a_pod_that_no_open_node_could_take_empty_never_fits_and_free_devices_of_unlike_nodes_do_not_add_up() -> None:
    held = [devices(str(number), number, movable=False) for number in range(2, 16)]
    inf = node("b", *(devices(f"b{number}", number, geometry=INF2) for number in range(2, 6)), geometry=INF2)
    cases = (
        ("neuron=1", cluster(node("a", is_open=False)), Standing.NEVER),
        ("neuron=16", cluster(node("a", sick=(0,))), Standing.NEVER),
        ("neuron=4", cluster(node("a", *held), inf), Standing.SHORT),
    )
    for shape, before, standing in cases:
        (expected,) = judged(before, [pod("w", shape)])
        assert expected.standing is standing
