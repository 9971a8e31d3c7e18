"""The valid sets of every shipped type are the documentation's, no more and no fewer."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.topology import Topology, Unit
from neuron_plugin.topology.geometry import MOST_CORES_PER_DEVICE, MOST_DEVICES, CoreMask, Geometry
from neuron_plugin.topology.sets import free_sets, sets_by_count, valid_sets
from tests.topology.oracle import (
    INF1,
    INF2_LINE,
    INF2_RING,
    LINEAR,
    TRN1,
    TRN2,
    TRN2_LNC1,
    UNLINKED,
    as_cores,
    every_geometry,
    is_consecutive,
    oracle_sets,
    shipped,
)


def devices_of(geometry: Geometry, count: int) -> list[list[int]]:
    return [list(geometry.devices_touched(mask)) for mask in valid_sets(geometry, Unit.DEVICE, count)]


def test_every_count_has_exactly_the_sets_of_the_oracle_lowest_ids_first() -> None:
    for geometry, unit in itertools.product(every_geometry(), Unit):
        for count in range(-1, geometry.core_count + 3):
            sets = valid_sets(geometry, unit, count)
            assert {as_cores(mask) for mask in sets} == oracle_sets(geometry, unit, count), (geometry, unit, count)
            assert list(sets) == sorted(set(sets)), (geometry, unit, count)


def test_t15_every_set_is_one_ascending_window_of_consecutive_cores() -> None:
    for geometry, unit in itertools.product(every_geometry(), Unit):
        for count in sets_by_count(geometry, unit):
            assert all(is_consecutive(as_cores(mask)) for mask in valid_sets(geometry, unit, count)), (geometry, count)


def test_t17_one_and_all_are_valid_on_every_topology() -> None:
    for geometry in every_geometry():
        assert len(valid_sets(geometry, Unit.DEVICE, 1)) == geometry.device_count, geometry
        assert len(valid_sets(geometry, Unit.CORE, 1)) == geometry.core_count, geometry
        assert geometry.all_mask in valid_sets(geometry, Unit.DEVICE, geometry.device_count), geometry
        assert geometry.all_mask in valid_sets(geometry, Unit.CORE, geometry.core_count), geometry


def test_t16_four_devices_on_a_torus_are_exactly_its_rows() -> None:
    for geometry in (TRN1, TRN2, TRN2_LNC1):
        assert devices_of(geometry, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_t16_eight_devices_on_a_torus_are_exactly_its_aligned_halves() -> None:
    assert devices_of(TRN1, 8) == [list(range(8)), list(range(8, 16))]


def test_t16_no_other_count_of_devices_is_handed_out_on_a_torus() -> None:
    assert tuple(sets_by_count(TRN1, Unit.DEVICE)) == (1, 4, 8, 16)


def test_three_devices_on_a_line_are_consecutive_and_never_every_other_one() -> None:
    assert devices_of(INF2_LINE, 3) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_t15_a_ring_is_never_cut_across_its_wrap() -> None:
    assert [11, 0] not in devices_of(INF2_RING, 2)
    assert len(devices_of(INF2_RING, 2)) == 11
    for count in range(2, 12):
        assert not any({0, 11} <= set(devices) for devices in devices_of(INF2_RING, count))


def test_t12_three_cores_stay_inside_one_device() -> None:
    assert [sorted(as_cores(mask)) for mask in valid_sets(INF1, Unit.CORE, 3)][:3] == [[0, 1, 2], [1, 2, 3], [4, 5, 6]]


def test_t12_five_cores_start_at_a_device() -> None:
    assert [min(as_cores(mask)) for mask in valid_sets(INF1, Unit.CORE, 5)] == [0, 4, 8]


def test_t13_five_cores_span_two_devices_of_four_cores_and_three_of_two() -> None:
    assert {len(INF1.devices_touched(mask)) for mask in valid_sets(INF1, Unit.CORE, 5)} == {2}
    assert {len(INF2_LINE.devices_touched(mask)) for mask in valid_sets(INF2_LINE, Unit.CORE, 5)} == {3}


def test_t14_nine_cores_on_four_devices_of_four_cores_are_the_first_nine_or_start_at_the_second_device() -> None:
    first, second = valid_sets(INF1, Unit.CORE, 9)
    assert as_cores(first) == frozenset(range(9))
    assert as_cores(second) == frozenset(range(4, 13))


@pytest.mark.parametrize("count", [3, 5, 9])
def test_t12_odd_core_counts_beyond_a_device_are_never_cut_on_a_torus(count: int) -> None:
    assert valid_sets(TRN1, Unit.CORE, count) == ()


def test_t12_cores_beyond_a_device_come_as_whole_devices_in_a_valid_count_on_a_torus() -> None:
    assert tuple(sets_by_count(TRN1, Unit.CORE)) == (1, 2, 8, 16, 32)
    assert tuple(sets_by_count(TRN2, Unit.CORE)) == (1, 2, 3, 4, 8, 16, 32, 64)
    assert valid_sets(TRN1, Unit.CORE, 8) == valid_sets(TRN1, Unit.DEVICE, 4)


def first_cores(geometry: Geometry, count: int) -> list[int]:
    return [min(as_cores(mask)) for mask in valid_sets(geometry, Unit.CORE, count)]


def test_a_power_of_two_of_cores_begins_at_a_multiple_of_itself_on_trn2_also_inside_a_device() -> None:
    for count in (1, 2, 4, 8, 16, 32, 64):
        assert first_cores(TRN2, count) == list(range(0, 64, count))
        assert first_cores(TRN2_LNC1, count) == list(range(0, 128, count))


def test_another_number_of_cores_begins_at_a_device_where_cores_are_aligned() -> None:
    assert first_cores(TRN2, 3) == list(range(0, 64, 4))
    for count in (3, 5, 6, 7):
        assert first_cores(TRN2_LNC1, count) == list(range(0, 128, 8))


def test_two_neighbouring_devices_are_a_slice_of_cores_on_trn2_and_never_a_count_of_devices() -> None:
    for geometry in (TRN2, TRN2_LNC1):
        slices = valid_sets(geometry, Unit.CORE, 2 * geometry.cores_per_device)
        assert [geometry.devices_touched(mask) for mask in slices] == [(first, first + 1) for first in range(0, 16, 2)]
        assert not valid_sets(geometry, Unit.DEVICE, 2)


def test_a_node_of_a_plugin_that_says_no_core_blocks_hands_out_aligned_cores_in_the_counts_of_its_devices() -> None:
    older = Geometry("trn2.48xlarge", Topology.TORUS, 16, 4, (1, 4, 8, 16))
    assert tuple(sets_by_count(older, Unit.CORE)) == (1, 2, 3, 4, 16, 32, 64)
    assert first_cores(older, 2) == first_cores(TRN2, 2)


def test_p26_unknown_links_give_one_device_or_all_of_them() -> None:
    unknown = Geometry("trn9.big", Topology.UNLINKED, 6, 2, (1,))
    assert tuple(sets_by_count(unknown, Unit.DEVICE)) == (1, 6)
    assert tuple(sets_by_count(unknown, Unit.CORE)) == (1, 2, 12)
    assert tuple(sets_by_count(UNLINKED, Unit.DEVICE)) == (1, 4)


def test_a_torus_of_two_blocks_keeps_rows_and_halves_inside_a_block() -> None:
    double = Geometry("lab", Topology.TORUS, 32, 2, (1, 4, 8, 16))
    assert devices_of(double, 16) == [list(range(16)), list(range(16, 32))]
    assert tuple(sets_by_count(double, Unit.DEVICE)) == (1, 4, 8, 16, 32)


def test_a_node_without_devices_or_cores_hands_out_nothing() -> None:
    for geometry in (Geometry("none", Topology.UNLINKED, 0, 2), Geometry("unread", Topology.RING, 12, 0)):
        for unit in Unit:
            assert tuple(sets_by_count(geometry, unit)) == ()
            assert valid_sets(geometry, unit, 1) == ()


@given(count=st.integers(), name=st.sampled_from(["inf2.48xlarge", "trn1.32xlarge", "trn3en.24xlarge"]))
def test_t23_any_count_however_large_or_negative_is_looked_up_and_never_computed_with(count: int, name: str) -> None:
    geometry = shipped(name)
    for unit in Unit:
        assert bool(valid_sets(geometry, unit, count)) == (count in sets_by_count(geometry, unit))


def test_t23_a_count_of_two_to_the_63_has_no_set() -> None:
    for geometry in (INF1, INF2_RING, TRN1):
        assert valid_sets(geometry, Unit.CORE, 2**63 - 1) == ()
        assert valid_sets(geometry, Unit.DEVICE, 2**63 - 1) == ()


@pytest.mark.parametrize("topology", LINEAR)
def test_the_largest_line_the_driver_allows_is_tabled(topology: Topology) -> None:
    geometry = Geometry(f"largest-{topology}", topology, MOST_DEVICES, MOST_CORES_PER_DEVICE)
    assert len(valid_sets(geometry, Unit.CORE, 511)) == 1
    assert len(valid_sets(geometry, Unit.DEVICE, 2)) == MOST_DEVICES - 1


def test_types_that_differ_by_name_only_share_what_was_computed() -> None:
    trn2, trn3 = (shipped(name, 2) for name in ("trn2.48xlarge", "trn3.48xlarge"))
    assert trn2 != trn3
    assert trn2.shape == trn3.shape
    assert valid_sets(trn2, Unit.DEVICE, 4) is valid_sets(trn3, Unit.DEVICE, 4)


@pytest.mark.parametrize(
    "other", [(16, 2, ()), (16, 4, (1, 4, 8, 16)), (12, 2, (1, 4, 8, 16)), (16, 2, (1, 4, 8, 16), (1, 2))]
)
def test_what_decides_the_sets_is_in_the_shape(other: Any) -> None:
    assert Geometry("trn1.32xlarge", Topology.TORUS, *other).shape != TRN1.shape


@given(st.data())
def test_free_sets_are_the_valid_sets_that_lie_in_what_is_free(data: st.DataObject) -> None:
    geometry = data.draw(st.sampled_from([TRN1, TRN2_LNC1, INF2_LINE, INF2_RING, INF1]))
    free_mask = CoreMask(data.draw(st.integers(0, (1 << geometry.core_count) - 1)))
    found = free_sets(geometry, free_mask)
    assert list(found) == list(sets_by_count(geometry, Unit.DEVICE))
    for count, number in found.items():
        sets = oracle_sets(geometry, Unit.DEVICE, count)
        assert number == len([cores for cores in sets if all(free_mask >> core & 1 for core in cores)])
