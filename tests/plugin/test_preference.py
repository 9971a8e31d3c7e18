"""Preferences are exact, legal and linked where that is possible."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import ids_of, mask_of
from neuron_plugin.plugin.preference import preferred_ids, tightest
from neuron_plugin.topology import Geometry, Topology, Unit, valid_counts, valid_sets
from tests.plugin.world import unit_ids

TRN1 = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
INF2 = Geometry("inf2.48xlarge", Topology.RING, 12, 2)


@given(data=st.data(), geometry=st.sampled_from([TRN1, INF2]), unit=st.sampled_from(list(Unit)))
def test_p29_the_answer_has_the_size_is_available_and_includes_what_it_must(
    data: st.DataObject, geometry: Geometry, unit: Unit
) -> None:
    most = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    available = data.draw(st.sets(st.integers(0, most - 1), min_size=1))
    must = data.draw(st.sets(st.sampled_from(sorted(available))))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    free = data.draw(st.integers(0, geometry.all_mask))
    ids = preferred_ids(geometry, unit, available=available, must_include=must, free=free, size=size)
    assert len(set(ids)) == size
    assert must <= set(ids) <= available


@given(data=st.data(), unit=st.sampled_from(list(Unit)))
def test_p31_a_linked_set_is_preferred_whenever_one_is_free(data: st.DataObject, unit: Unit) -> None:
    count = data.draw(st.sampled_from(valid_counts(TRN1, unit)))
    target = data.draw(st.sampled_from(valid_sets(TRN1, unit, count)))
    free = target | data.draw(st.integers(0, TRN1.all_mask))
    ids = preferred_ids(TRN1, unit, available=ids_of(TRN1, unit, TRN1.all_mask), must_include=(), free=free, size=count)
    masks = {frozenset(ids_of(TRN1, unit, mask)): mask for mask in valid_sets(TRN1, unit, count)}
    assert frozenset(ids) in masks
    assert masks[frozenset(ids)] & ~free == 0


def test_p32_a_single_device_comes_from_a_broken_row() -> None:
    free = TRN1.all_mask & ~TRN1.devices_mask((4,))
    available = [device for device in range(16) if device != 4]
    assert preferred_ids(TRN1, Unit.DEVICE, available=available, must_include=(), free=free, size=1) == (5,)


def test_p34_ids_that_another_pod_holds_are_passed_over_while_a_choice_is_left() -> None:
    held = INF2.devices_mask((0, 1))
    ids = preferred_ids(INF2, Unit.DEVICE, available=range(12), must_include=(), free=INF2.all_mask & ~held, size=2)
    assert not {0, 1} & set(ids)


def test_what_must_be_included_grows_into_a_linked_set() -> None:
    ids = preferred_ids(TRN1, Unit.DEVICE, available=range(16), must_include=(6,), free=TRN1.all_mask, size=4)
    assert ids == (4, 5, 6, 7)


def test_an_impossible_count_gets_the_tightest_free_ids() -> None:
    free = TRN1.all_mask & ~TRN1.devices_mask((0,))
    ids = preferred_ids(TRN1, Unit.DEVICE, available=range(16), must_include=(), free=free, size=7)
    assert ids == (1, 2, 3, 4, 5, 6, 7)


def test_held_ids_fill_up_only_what_free_ones_cannot() -> None:
    free = INF2.devices_mask((3, 9))
    ids = preferred_ids(INF2, Unit.DEVICE, available=range(12), must_include=(), free=free, size=3)
    assert {3, 9} < set(ids)


def test_tightest_prefers_the_least_span_and_then_the_lowest_ids() -> None:
    assert tightest({0, 4, 5, 9}, (), 2) == (4, 5)
    assert tightest({0, 1, 8, 9}, (), 2) == (0, 1)
    assert tightest({0, 4, 5, 9}, (9,), 2) == (5, 9)


LARGEST = [Geometry("32-devices", Topology.RING, 32, 4), Geometry("128-cores", Topology.TORUS, 16, 8, (1, 4, 8, 16))]


@pytest.mark.parametrize("geometry", LARGEST, ids=lambda geometry: geometry.instance_type)
@pytest.mark.parametrize("unit", Unit)
def test_p35_every_size_on_the_largest_machines_takes_less_than_five_milliseconds(
    geometry: Geometry, unit: Unit
) -> None:
    """Of processor time, the better of a few: what else runs here and the first building of the tables aside."""
    everything = unit_ids(geometry, unit)
    every_third_taken = mask_of(geometry, unit, tuple(everything[: len(everything) // 2 : 3]))
    free = geometry.all_mask & ~every_third_taken

    def seconds(size: int) -> float:
        began = time.process_time()
        preferred_ids(geometry, unit, available=everything, must_include=(), free=free, size=size)
        return time.process_time() - began

    slowest = max(min(seconds(size) for _ in range(3)) for size in range(1, len(everything) + 1))
    assert slowest < 0.005


def test_p34_what_others_only_wait_for_comes_before_what_a_live_pod_holds() -> None:
    held, awaited = INF2.devices_mask((0, 1)), INF2.devices_mask((7, 9))
    nobodys = INF2.devices_mask((4, 7, 9))
    free = nobodys & ~awaited & ~held
    offered = (0, 1, 4, 7, 9)
    ids = preferred_ids(INF2, Unit.DEVICE, available=offered, must_include=(), free=free, unheld=nobodys, size=2)
    assert ids == (4, 7)
