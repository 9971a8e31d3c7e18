from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import PodRequest, Rejection, Resource, cost, placement_mask
from neuron_plugin.extender import shapes
from neuron_plugin.extender.reasons import STALE
from neuron_plugin.extender.shapes import Shape, closed_shape, open_shape
from neuron_plugin.extender.verdicts import cost_on, judge, placement_on, scores
from neuron_plugin.simulation import container, pod_manifest, shipped_geometry
from neuron_plugin.topology import CoreMask
from tests.extender.world import CORE, DEVICE, record_of, request_of

TRN1 = shipped_geometry("trn1.32xlarge")
INF1 = shipped_geometry("inf1.6xlarge")


def asking(resource: Resource, amount: int) -> PodRequest:
    return request_of(record_of(pod_manifest("pod", resource, amount)))


def shape(free: int, healthy: int | None = None) -> Shape:
    return open_shape(TRN1, CoreMask(TRN1.all_mask if healthy is None else healthy), CoreMask(free))


def test_nodes_in_the_same_state_share_one_shape() -> None:
    assert shape(0b1111) is shape(0b1111)
    assert shape(0b1111) is not shape(0b111)
    assert closed_shape(STALE) is closed_shape(STALE)


def test_a_shape_that_no_node_is_in_is_forgotten() -> None:
    before = registered()
    kept = shape(0b1010101)
    assert registered() == before + 1
    del kept
    assert registered() == before


def registered() -> int:
    return len(shapes._open)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(DEVICE, 1), (DEVICE, 4), (DEVICE, 8), (CORE, 1), (CORE, 8)]))
def test_a_verdict_says_fits_exactly_when_a_placement_exists(free: int, asked: tuple[Resource, int]) -> None:
    request = asking(*asked)

    assert (judge(shape(free), request) is None) is not isinstance(placement_on(shape(free), request), Rejection)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(DEVICE, 1), (DEVICE, 4), (DEVICE, 8), (CORE, 1), (CORE, 8)]))
def test_a_cost_is_that_of_the_set_which_a_bind_would_choose(free: int, asked: tuple[Resource, int]) -> None:
    node, request = shape(free), asking(*asked)
    placed = placement_on(node, request)

    expected = None if isinstance(placed, Rejection) else cost(TRN1, free, placement_mask(placed))
    assert cost_on(node, request) == expected


def test_equal_refusals_are_one_misfit() -> None:
    first, second = judge(shape(0b1), asking(DEVICE, 1)), judge(shape(0b1000), asking(DEVICE, 1))

    assert first is second is not None


def test_a_cost_is_that_of_the_best_placement_of_all_containers() -> None:
    request = request_of(
        record_of(pod_manifest("pod", containers=[container("a", DEVICE, 1), container("b", CORE, 2)]))
    )
    free = shape(TRN1.all_mask)
    placed = placement_on(free, request)
    assert not isinstance(placed, Rejection)

    assert cost_on(free, request) == cost(TRN1, free.free_mask, placement_mask(placed))
    assert cost_on(closed_shape(STALE), request) is None
    assert cost_on(shape(0), request) is None


def test_e02_scores_are_ranks_so_that_the_cheapest_leads_by_a_whole_point() -> None:
    assert scores([5, 7, 5, 1000]) == [10, 9, 10, 8]
    assert scores([]) == []
    assert scores([3, 3]) == [10, 10]
    assert scores([None, 3]) == [0, 10]
    assert scores([None]) == [0]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_e02_scores_keep_the_order_and_only_the_cheapest_gets_ten(costs: list[int]) -> None:
    found = scores([*costs])

    assert all(0 <= score <= 10 for score in found)
    assert {value for value, score in zip(costs, found, strict=True) if score == 10} == {min(costs)}
    by_cost = sorted(zip(costs, found, strict=True))
    assert all(one[1] >= other[1] for one, other in pairwise(by_cost))


def test_the_line_of_inf1_is_judged_in_cores_across_devices() -> None:
    line = open_shape(INF1, INF1.all_mask, CoreMask(0xFF0F))

    assert judge(line, asking(CORE, 8)) is None
    assert judge(line, asking(CORE, 9)) is not None
