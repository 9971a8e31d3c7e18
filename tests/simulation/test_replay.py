"""Arrivals, and what becomes of them on boards of nodes."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NodeInfo, PlacementStrategy
from neuron_plugin.allocation.shapes import DemandError, parse_shape, shape_text
from neuron_plugin.planning import MoveRules
from neuron_plugin.simulation.replay import (
    MIXES,
    Arrival,
    AwsBoard,
    Board,
    ReplayOutcome,
    arrivals,
    devices_asked,
    read_trace,
    replay,
    simulated_node,
)
from tests.planning.clusters import HOUR, LINE, SHAPES, TRN1, held_once


def test_arrivals_ask_for_the_load_on_average() -> None:
    pods = arrivals([TRN1] * 10, MIXES["train"], 0.5, 20_000, seed=1)
    asked = sum(devices_asked(TRN1, each.request) * each.stays for each in pods)
    assert asked / (pods[-1].comes * 160) == pytest.approx(0.5, rel=0.1)
    assert mean(each.stays for each in pods) == pytest.approx(1.0, rel=0.1)


def test_a_trace_is_read_in_the_order_of_time() -> None:
    found = read_trace("time,duration,devices,cores\n2.5,1,4,\n0,0.5,,2\n")
    assert [(each.comes, each.stays, shape_text(each.request)) for each in found] == [
        (0.0, 0.5, "neuroncore=2"),
        (2.5, 1.0, "neuron=4"),
    ]


@pytest.mark.parametrize("text", ["", "time,devices\n0,1\n", "time,duration\n0,1\n"])
def test_a_trace_without_its_columns_is_refused(text: str) -> None:
    with pytest.raises(DemandError, match="expected the columns time, duration, and devices or cores"):
        read_trace(text)


@pytest.mark.parametrize(
    "line", ["x,1,4,", "0,0,4,", "0,1,,", "0,1,4,2", "0,nan,4,", "inf,1,4,", "0,1", "0,1,-4,", "0,inf,4,"]
)
def test_a_line_of_a_trace_that_cannot_be_used_is_named(line: str) -> None:
    with pytest.raises(DemandError, match="line 3 is"):
        read_trace(f"time,duration,devices,cores\n0,1,4,\n{line}\n")


ONE = MoveRules(most_victims=1)


def come(*pods: tuple[float, float, str]) -> list[Arrival]:
    return [Arrival(comes, stays, parse_shape(shape)) for comes, stays, shape in pods]


def node(name: str) -> NodeInfo:
    return simulated_node(name, TRN1)


def run(
    nodes: list[NodeInfo], pods: list[Arrival], *, rules: MoveRules | None = None, waiting: bool = False
) -> ReplayOutcome:
    return replay(Board(nodes, PlacementStrategy.PACK, rules), pods, waiting=waiting)


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
    assert [(pod.uid, pod.work_since / HOUR) for pod in found.waiting] == [("pod-2", 2.0), ("pod-3", 3.0)]


def test_a_pod_that_waits_for_ever_is_refused_in_the_end() -> None:
    found = run([node("a")], come((0, 1, "neuron=1"), (0, 2, "neuron=7")), waiting=True)
    assert found.by_request[parse_shape("neuron=7")].refused == 14
    assert (found.busy, found.empty) == (1, 0), "means over the time until nothing ends any more"


def test_a_pod_is_moved_to_make_room_and_goes_on_for_as_long_as_it_had_left() -> None:
    pods = come((0, 1, "neuron=8"), (0, 10, "neuron=8"), (0, 10, "neuron=1"), (2, 1, "neuron=16"), (4, 1, "neuron=16"))
    nodes = [node("a"), node("b")]
    refused, found = run(nodes, pods), run(nodes, pods, rules=ONE)
    assert refused.by_request[parse_shape("neuron=16")].refused_pods == 2
    assert (found.moves, found.moved_pods, found.lost, found.refused_share) == (1, 1, 2.0, 0.0)
    assert set(found.last_pods) == {"pod-1", "pod-2", "pod-4"}


def test_means_over_time_weigh_states_by_how_long_they_last() -> None:
    found = run([node("a"), node("b")], come((0, 1, "neuron=16"), (4, 1, "neuron=1")))
    assert found.busy == 16 * 1 / 4
    assert found.empty == (1 * 1 + 2 * 3) / 4


@pytest.mark.parametrize(
    ("shape", "alone", "extended"),
    [("neuroncore=1", 0, 0), ("neuron=16", 0, 0), ("neuron=4", 1, 0), ("neuron=7", 1, 1)],
)
def test_aws_s_plugin_alone_gives_one_device_or_all_and_its_extension_any_linked_set(
    shape: str, alone: int, extended: int
) -> None:
    boards = [AwsBoard([node("a")], extension=extension) for extension in (False, True)]
    assert [replay(board, come((0, 1, shape))).refused_share for board in boards] == [alone, extended]


def test_aws_s_way_takes_the_emptiest_node_so_that_none_stays_empty() -> None:
    pods = come((0, 9, "neuron=1"), (1, 9, "neuron=1"), (2, 9, "neuron=16"))
    assert replay(AwsBoard([node("a"), node("b")], extension=True), pods).by_request[pods[2].request].refused_pods == 1
    assert replay(Board([node("a"), node("b")]), pods).refused_share == 0


@given(
    pods=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from(SHAPES)), max_size=30),
    strategy=st.sampled_from(PlacementStrategy),
    rules=st.sampled_from([None, ONE, MoveRules(most_victims=3)]),
    waiting=st.booleans(),
)
def test_no_core_is_in_two_sets_whatever_comes(
    pods: list[tuple[int, int, str]], strategy: PlacementStrategy, rules: MoveRules | None, *, waiting: bool
) -> None:
    nodes = [simulated_node(name, LINE) for name in "ab"]
    found = replay(Board(nodes, strategy, rules), come(*sorted(pods)), waiting=waiting)
    assert held_once(found.last, found.last_pods)
    assert 0 <= found.refused_share <= 1
    assert found.busy <= found.devices
    if pods:
        assert found.pods == len(pods)
