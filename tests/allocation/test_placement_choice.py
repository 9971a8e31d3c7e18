"""The chosen set is the oracle's, and where there is none the reason is true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.placement import candidates, choose, fitting, why_not
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.topology import Geometry, Unit, valid_sets
from tests.allocation.nodes import any_geometry, counts, free_masks
from tests.topology.oracle import (
    INF1,
    INF2_LINE,
    INF2_RING,
    TRN1,
    TRN2_LNC1,
    as_cores,
    distinct_geometries,
    oracle_best,
    oracle_cost,
    oracle_sets,
)

units = st.sampled_from(Unit)


def devices_chosen(geometry: Geometry, free_devices: list[int] | range, count: int) -> list[int]:
    chosen = choose(geometry, geometry.devices_mask(free_devices), Unit.DEVICE, count)
    assert not isinstance(chosen, Rejection), chosen.text
    return list(geometry.devices_touched(chosen))


def reason(geometry: Geometry, free: int, unit: Unit, count: int) -> str:
    refusal = choose(geometry, free, unit, count)
    assert isinstance(refusal, Rejection)
    return refusal.code


@given(st.data(), any_geometry(), units)
def test_p31_the_choice_is_the_cheapest_set_that_fits_and_the_lowest_of_equals(
    data: st.DataObject, geometry: Geometry, unit: Unit
) -> None:
    free = data.draw(free_masks(geometry))
    count = data.draw(counts(geometry, unit))
    best = oracle_best(geometry, as_cores(free), unit, count, frozenset())
    chosen = choose(geometry, free, unit, count)
    if best is None:
        assert isinstance(chosen, Rejection)
    else:
        assert not isinstance(chosen, Rejection)
        assert as_cores(chosen) == best


@given(st.data(), any_geometry(), units)
def test_p29_a_choice_lies_in_what_is_available_and_around_what_must_be_included(
    data: st.DataObject, geometry: Geometry, unit: Unit
) -> None:
    free = data.draw(free_masks(geometry))
    count = data.draw(counts(geometry, unit))
    must = data.draw(st.sampled_from(sorted(as_cores(free)))) if free else 0
    must_mask = geometry.device_mask(must // geometry.cores_per_device) if unit is Unit.DEVICE else 1 << must
    best = oracle_best(geometry, as_cores(free), unit, count, as_cores(must_mask))
    chosen = choose(geometry, free, unit, count, must_mask)
    assert isinstance(chosen, Rejection) == (best is None)
    if not isinstance(chosen, Rejection):
        assert as_cores(chosen) == best


@given(st.data(), any_geometry(), units)
def test_candidates_are_all_fitting_sets_from_cheap_to_dear(
    data: st.DataObject, geometry: Geometry, unit: Unit
) -> None:
    free = data.draw(free_masks(geometry))
    count = data.draw(counts(geometry, unit))
    ranked = candidates(geometry, free, unit, count)
    expected = {cores for cores in oracle_sets(geometry, unit, count) if cores <= as_cores(free)}
    assert {as_cores(mask) for mask in ranked} == expected
    assert sorted(ranked) == fitting(geometry, free, unit, count)
    prices = [oracle_cost(geometry, as_cores(free), as_cores(mask)) for mask in (*ranked[:3], *ranked[-1:])]
    assert prices == sorted(prices)


@given(st.data(), any_geometry(), units)
def test_a_refusal_gives_the_true_reason(data: st.DataObject, geometry: Geometry, unit: Unit) -> None:
    free = data.draw(free_masks(geometry))
    count = data.draw(st.integers(-2, geometry.core_count + 3))
    chosen = choose(geometry, free, unit, count)
    if not isinstance(chosen, Rejection):
        return
    whole = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    available = len(geometry.whole_devices(free)) if unit is Unit.DEVICE else free.bit_count()
    expected = {
        "too-many": count > whole,
        "unsupported-count": count <= whole and not oracle_sets(geometry, unit, count),
        "not-free": bool(oracle_sets(geometry, unit, count)) and available < count,
        "fragmented": bool(oracle_sets(geometry, unit, count)) and available >= count,
    }
    assert [why for why, holds in expected.items() if holds] == [chosen.code]


@given(any_geometry(), st.integers(), units, st.integers(), st.integers())
def test_any_numbers_at_all_get_a_set_or_a_refusal(
    geometry: Geometry, free: int, unit: Unit, count: int, must_include: int
) -> None:
    chosen = choose(geometry, free, unit, count, must_include)
    if not isinstance(chosen, Rejection):
        assert chosen & free == chosen
        assert chosen in valid_sets(geometry, unit, count)


@pytest.mark.parametrize("count", [2**62, 2**63 - 1, 10**30])
def test_t18_a_count_beyond_all_reason_is_too_many_and_costs_nothing(count: int) -> None:
    for geometry in distinct_geometries():
        for unit in Unit:
            assert reason(geometry, geometry.all_mask, unit, count) == "too-many"


def test_t16_seven_devices_on_trn1_get_the_vendors_sentence() -> None:
    refusal = choose(TRN1, TRN1.all_mask, Unit.DEVICE, 7)
    assert isinstance(refusal, Rejection)
    assert refusal.text == (
        "Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
    )
    assert not refusal.may_pass


def test_t12_three_cores_on_trn1_get_the_vendors_sentence_for_cores() -> None:
    refusal = choose(TRN1, TRN1.all_mask, Unit.CORE, 3)
    assert isinstance(refusal, Rejection)
    assert refusal.text == (
        "Instance type trn1.32xlarge does not support requests for core: 3. "
        "Please request a different number of cores. It supports 1-2 or 8 or 16 or 32"
    )


@pytest.mark.parametrize(
    "free",
    [[1, 2], [1, 5, 9, 13], [9, 10, 13, 14], [2, 3, 4, 5], [0, 1, 2, 4, 5, 6, 8, 9, 10]],
    ids=["pair", "column", "square", "straddling run", "rows of three"],
)
def test_t16_what_is_linked_but_no_row_is_refused_as_fragmented_or_not_free(free: list[int]) -> None:
    expected = "fragmented" if len(free) >= 4 else "not-free"
    assert reason(TRN1, TRN1.devices_mask(free), Unit.DEVICE, 4) == expected


def test_t16_eight_free_devices_across_the_halves_are_no_half() -> None:
    assert reason(TRN1, TRN1.devices_mask(range(4, 12)), Unit.DEVICE, 8) == "fragmented"


def test_t15_two_devices_across_the_wrap_of_a_ring_do_not_fit() -> None:
    assert reason(INF2_RING, INF2_RING.devices_mask((0, 11)), Unit.DEVICE, 2) == "fragmented"


def test_three_devices_on_inf2_are_consecutive_and_never_every_other_one() -> None:
    assert reason(INF2_LINE, INF2_LINE.devices_mask((0, 2, 4)), Unit.DEVICE, 3) == "fragmented"
    assert devices_chosen(INF2_LINE, [0, 2, 3, 4], 3) == [2, 3, 4]


def test_t14_nine_cores_are_the_first_nine_and_leave_only_the_last_device_whole() -> None:
    chosen = choose(INF1, INF1.all_mask, Unit.CORE, 9)
    assert not isinstance(chosen, Rejection)
    assert as_cores(chosen) == frozenset(range(9))
    left = INF1.all_mask & ~chosen
    assert INF1.whole_devices(left) == (3,)
    assert choose(INF1, left, Unit.DEVICE, 1) == INF1.device_mask(3)
    assert reason(INF1, left, Unit.DEVICE, 2) == "not-free"


def test_t17_all_devices_fit_only_on_a_wholly_free_node() -> None:
    for geometry in distinct_geometries():
        assert choose(geometry, geometry.all_mask, Unit.DEVICE, geometry.device_count) == geometry.all_mask
        but_one_core = geometry.all_mask & ~1
        assert reason(geometry, but_one_core, Unit.DEVICE, geometry.device_count) == "not-free"
        assert reason(geometry, but_one_core, Unit.CORE, geometry.core_count) == "not-free"


def test_p24_a_set_never_bridges_a_missing_device() -> None:
    present = INF1.devices_mask((0, 1, 3))
    assert reason(INF1, present, Unit.DEVICE, 3) == "fragmented"
    assert reason(INF1, present, Unit.CORE, 9) == "fragmented"


def test_p32_a_single_device_is_a_leftover_and_no_fresh_row() -> None:
    assert devices_chosen(TRN1, [0, 1, 2, 3, 9], 1) == [9]
    assert devices_chosen(TRN1, [*range(4, 12), 14], 1) == [14]


def test_p32_a_single_core_comes_from_a_broken_device() -> None:
    free = TRN2_LNC1.all_mask & ~TRN2_LNC1.mask_of(Unit.CORE, [77])
    chosen = choose(TRN2_LNC1, free, Unit.CORE, 1)
    assert not isinstance(chosen, Rejection)
    assert TRN2_LNC1.devices_touched(chosen) == (9,)


def test_a_row_comes_from_a_broken_half() -> None:
    assert devices_chosen(TRN1, [*range(8), *range(9, 16)], 4) == [12, 13, 14, 15]


def test_a_line_is_filled_from_its_tightest_gap() -> None:
    assert devices_chosen(INF2_RING, [0, 1, 2, 3, 4, 6, 7, 9, 10, 11], 2) == [6, 7]


def test_t24_ten_comes_after_nine() -> None:
    assert devices_chosen(INF2_RING, [9, 10, 11], 3) == [9, 10, 11]


def test_p46_a_smaller_linked_part_is_chosen_out_of_what_a_pod_holds() -> None:
    held = TRN1.devices_mask((4, 5, 6, 7))
    chosen = choose(TRN1, held, Unit.DEVICE, 1)
    assert not isinstance(chosen, Rejection)
    assert chosen & ~held == 0


def test_a_must_include_that_no_set_can_include_is_refused() -> None:
    both_rows = TRN1.devices_mask((0, 4))
    assert isinstance(choose(TRN1, TRN1.all_mask, Unit.DEVICE, 4, both_rows), Rejection)
    eight = choose(TRN1, TRN1.all_mask, Unit.DEVICE, 8, both_rows)
    assert not isinstance(eight, Rejection)
    assert TRN1.devices_touched(eight) == tuple(range(8))


def test_bits_outside_the_node_are_not_free() -> None:
    beyond = INF1.all_mask << INF1.core_count
    assert reason(INF1, beyond, Unit.CORE, 1) == "not-free"
    assert why_not(INF1, 0, Unit.DEVICE, 5).code == "too-many"
