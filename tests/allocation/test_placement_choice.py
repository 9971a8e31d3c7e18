"""The chosen set is the oracle's, and where there is none the reason is true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.placement import candidates, choose, fitting, why_not
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.topology import Geometry, Unit, valid_sets
from tests.allocation.nodes import any_geometry, cores_of, counts, free_masks
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


CHOICES = {
    "t16 a linked pair is no row": (TRN1, "1-2", 4, "not-free"),
    "t16 a column is no row": (TRN1, "1,5,9,13", 4, "fragmented"),
    "t16 a square is no row": (TRN1, "9,10,13,14", 4, "fragmented"),
    "t16 a run across two rows is no row": (TRN1, "2-5", 4, "fragmented"),
    "t16 rows of three are no row": (TRN1, "0-2,4-6,8-10", 4, "fragmented"),
    "t16 eight devices across the halves are no half": (TRN1, "4-11", 8, "fragmented"),
    "t15 two devices across the wrap of a ring": (INF2_RING, "0,11", 2, "fragmented"),
    "three devices are never every other one": (INF2_LINE, "0,2,4", 3, "fragmented"),
    "but three in a row": (INF2_LINE, "0,2-4", 3, "2-4"),
    "p24 a set never bridges a missing device": (INF1, "0,1,3", 3, "fragmented"),
    "p32 a single device is a leftover and no fresh row": (TRN1, "0-3,9", 1, "9"),
    "p32 nor of a fresh half": (TRN1, "4-11,14", 1, "14"),
    "a row comes from a broken half": (TRN1, "0-7,9-15", 4, "12-15"),
    "a line is filled from its tightest gap": (INF2_RING, "0-4,6,7,9-11", 2, "6-7"),
    "t24 ten comes after nine": (INF2_RING, "9-11", 3, "9-11"),
}
"""Free devices, how many are asked for, and those that are chosen, or why there are none."""


@pytest.mark.parametrize(("geometry", "free", "count", "expected"), CHOICES.values(), ids=CHOICES)
def test_which_devices_are_chosen(geometry: Geometry, free: str, count: int, expected: str) -> None:
    chosen = choose(geometry, cores_of(geometry, free), Unit.DEVICE, count)
    found = chosen.code if isinstance(chosen, Rejection) else ranges(geometry.devices_touched(chosen))
    assert found == expected


def test_p24_cores_never_bridge_a_missing_device() -> None:
    assert reason(INF1, cores_of(INF1, "0,1,3"), Unit.CORE, 9) == "fragmented"


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


def test_p32_a_single_core_comes_from_a_broken_device() -> None:
    free = TRN2_LNC1.all_mask & ~TRN2_LNC1.mask_of(Unit.CORE, [77])
    chosen = choose(TRN2_LNC1, free, Unit.CORE, 1)
    assert not isinstance(chosen, Rejection)
    assert TRN2_LNC1.devices_touched(chosen) == (9,)


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
