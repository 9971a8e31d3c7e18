"""Which groups have UltraServers whole, and the place of each of their pods there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInfo
from neuron_plugin.allocation.group import GroupMember
from neuron_plugin.placement.gates.ultraservers import ultraserver_places
from tests.planning.clusters import node, pod

GROUP = ("ml", "job")


def ranked(number: int, **more: object) -> list[NeuronPod]:
    made = [GroupMember(GROUP, number, (rank,), host=f"w{rank}.job.ml.svc") for rank in range(number)]
    return [replace(pod(f"w{rank}", "neuron=16"), member=replace(made[rank], **more)) for rank in range(number)]  # type: ignore[arg-type]


def in_ultraserver(place: int, modes: str = "1,2,4") -> NodeInfo:
    """The node at this place of a row of UltraServers."""
    info = node(f"n{place}").info
    ids = {"mode": modes} | {f"serverId{size}": f"{size}-{place // size}" for size in (2, 4)}
    ids |= {f"nodeId{size}": str(place % size) for size in (2, 4)}
    assert info.inventory
    return replace(info, node=replace(info.node, inventory=replace(info.inventory, ultraserver=ids)))


def places(pods: Sequence[NeuronPod], at: Sequence[int], modes: str = "1,2,4") -> Mapping[str, tuple[int, int, str]]:
    """The place of each pod, by its name; ``at`` are the places of their nodes."""
    nodes = {one.uid: in_ultraserver(place, modes) for one, place in zip(pods, at, strict=True)}
    found = ultraserver_places(pods, nodes)
    return {str(uid): (place.nodes, place.index, place.first_host) for uid, place in found.items()}


def indices(pods: Sequence[NeuronPod], at: Sequence[int]) -> list[int]:
    found = places(pods, at)
    return [found[str(one.uid)][1] for one in pods]


def test_a_group_that_has_one_ultraserver_whole_counts_by_its_node_ids() -> None:
    assert places(ranked(4), [4, 5, 6, 7])["w3"] == (4, 3, "w0.job.ml.svc")
    assert places(ranked(4), [5, 4, 6, 7])["w0"] == (4, 1, "w1.job.ml.svc")


def test_ultraservers_follow_each_other_by_their_lowest_ranks() -> None:
    """So those that stay keep their places where another one comes instead of one behind them."""
    assert indices(ranked(8), [4, 5, 6, 7, 0, 1, 2, 3]) == list(range(8))
    assert indices(ranked(8), [4, 5, 6, 7, 8, 9, 10, 11]) == list(range(8))


def test_two_pods_have_a_pair_whole_where_the_driver_joins_pairs() -> None:
    assert places(ranked(2), [2, 3])["w1"] == (2, 1, "w0.job.ml.svc")
    assert places(ranked(2), [2, 3], modes="1,4") == {}
    assert places(ranked(2), [1, 2]) == {}, "of two pairs"


@pytest.mark.parametrize("at", [[0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 3, 3], [0, 0, 1, 1]])
def test_a_group_that_has_none_whole_with_a_pod_on_each_node_has_no_places(at: list[int]) -> None:
    assert places(ranked(len(at)), at) == {}


def test_without_a_host_name_for_the_first_pod_there_are_no_places() -> None:
    assert places(ranked(4, host=""), [0, 1, 2, 3]) == {}


def test_variables_that_a_pod_sets_itself_stand() -> None:
    pods = ranked(4)
    assert pods[2].member
    pods[2] = replace(pods[2], member=replace(pods[2].member, sets_ultraserver=True))
    assert places(pods, [0, 1, 2, 3]) == {}


def test_a_pod_on_a_node_in_no_ultraserver_leaves_its_group_without_places() -> None:
    pods = ranked(4)
    nodes = {one.uid: in_ultraserver(place) for place, one in enumerate(pods[:3])}
    assert ultraserver_places(pods, {**nodes, pods[3].uid: node("plain").info}) == {}
    assert ultraserver_places(pods, nodes) == {}
