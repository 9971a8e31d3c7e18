"""A set's cost is what it breaks, and packing by it keeps rows and halves whole."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from neuron_plugin.allocation.cost import cost, costs, devices_lost
from neuron_plugin.allocation.placement import choose
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.topology import (
    MOST_CORES_PER_DEVICE,
    MOST_DEVICES,
    Geometry,
    Topology,
    Unit,
    sets_by_count,
    valid_sets,
)
from tests.allocation.nodes import any_geometry, free_masks
from tests.topology.oracle import INF2_RING, TRN1, TRN2_LNC1, as_cores, as_mask, oracle_cost


@given(st.data(), any_geometry())
def test_cost_counts_what_the_oracle_sees_broken(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    unit = data.draw(st.sampled_from(Unit))
    sets = valid_sets(geometry, unit, data.draw(st.sampled_from(list(sets_by_count(geometry, unit)))))
    chosen = data.draw(st.sampled_from(sets))
    assert cost(geometry, free, chosen) == oracle_cost(geometry, as_cores(free), as_cores(chosen))


@given(st.data(), any_geometry())
def test_any_cores_have_a_cost_be_they_a_valid_set_or_not(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    chosen = data.draw(st.sets(st.sampled_from(sorted(as_cores(free))))) if free else set[int]()
    assert cost(geometry, free, as_mask(frozenset(chosen))) == oracle_cost(geometry, as_cores(free), frozenset(chosen))


@given(any_geometry(), st.integers(), st.integers(min_value=0))
def test_cores_outside_the_node_count_for_nothing(geometry: Geometry, free: int, chosen: int) -> None:
    inside = geometry.all_mask
    assert cost(geometry, free, chosen) == cost(geometry, free & inside, chosen & inside) >= 0


@given(st.data(), any_geometry(), st.randoms(use_true_random=False))
def test_costs_do_not_depend_on_order_or_on_what_was_asked_before(
    data: st.DataObject, geometry: Geometry, shuffler: random.Random
) -> None:
    free = data.draw(free_masks(geometry))
    sets = [*valid_sets(geometry, Unit.DEVICE, 1), *valid_sets(geometry, Unit.CORE, 2)]
    expected = {mask: cost(geometry, free, mask) for mask in sets}
    shuffler.shuffle(sets)
    assert costs(geometry, free, sets) == [expected[mask] for mask in sets]


@given(st.data(), any_geometry())
def test_a_set_never_costs_more_when_less_is_free_around_it(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    less = free & data.draw(free_masks(geometry))
    for chosen in valid_sets(geometry, Unit.DEVICE, 1):
        assert cost(geometry, less, chosen) <= cost(geometry, free, chosen)


def test_a_single_in_a_broken_row_costs_less_than_one_in_a_fresh_row() -> None:
    free = TRN1.all_mask & ~TRN1.device_mask(5)
    assert cost(TRN1, free, TRN1.device_mask(4)) == 0
    assert cost(TRN1, free, TRN1.device_mask(0)) == 4, "row 0-3; its half and the whole are broken already"
    assert cost(TRN1, free, TRN1.device_mask(9)) == 4 + 8, "row 8-11 and the other half"


def test_a_row_in_a_broken_half_costs_less_than_one_in_a_fresh_half() -> None:
    free = TRN1.all_mask & ~TRN1.device_mask(0)
    assert cost(TRN1, free, TRN1.devices_mask(range(4, 8))) == 0
    assert cost(TRN1, free, TRN1.devices_mask(range(8, 12))) == 8


def test_the_first_single_breaks_a_row_a_half_and_the_whole() -> None:
    assert {cost(TRN1, TRN1.all_mask, TRN1.device_mask(device)) for device in range(16)} == {4 + 8 + 16}


def test_the_end_of_a_line_costs_less_than_its_middle() -> None:
    ends = cost(INF2_RING, INF2_RING.all_mask, INF2_RING.device_mask(0))
    middle = cost(INF2_RING, INF2_RING.all_mask, INF2_RING.device_mask(5))
    assert ends < middle


def test_taking_everything_breaks_nothing_that_is_larger() -> None:
    for geometry in (TRN1, INF2_RING):
        assert cost(geometry, geometry.all_mask, geometry.all_mask) == 0


def test_the_largest_geometry_has_costs_too() -> None:
    largest = Geometry("largest", Topology.TORUS, MOST_DEVICES, MOST_CORES_PER_DEVICE, (1, 4, 8, 16, 32))
    assert cost(largest, largest.all_mask, largest.device_mask(63)) == 4 + 8 + 16 + 32 + 64


def test_what_a_node_can_take_less_is_counted_in_devices_on_average_over_the_sizes() -> None:
    """A line of four devices of one core: sizes 1 to 4, of which 4, 4, 3 and 4 devices are used together."""
    line = Geometry("line", Topology.LINE, 4, 1)
    assert devices_lost(line, line.all_mask, 0b0001) == ((4 + 4 + 3 + 4) - (3 + 2 + 3 + 0)) / 4
    assert devices_lost(line, line.all_mask, 0b0010) == ((4 + 4 + 3 + 4) - (3 + 2 + 0 + 0)) / 4
    assert devices_lost(line, 0b0001, 0b0001) == 1 / 4
    assert devices_lost(line, 0, 0) == 0


def test_slices_of_cores_that_are_no_count_of_devices_are_among_the_sizes() -> None:
    """Four devices of one core; two of them are a slice of cores, never a count of devices."""
    pairs = Geometry("pairs", Topology.UNLINKED, 4, 1, (1, 4), (1, 2, 4))
    assert devices_lost(pairs, pairs.all_mask, 0b0001) == (4 + 4 + 4) / 3 - (3 + 2 + 0) / 3


ROWS = [frozenset(range(first, first + 4)) for first in range(0, 16, 4)]
HALVES = [frozenset(range(8)), frozenset(range(8, 16))]


def whole(groups: list[frozenset[int]], free: frozenset[int]) -> set[frozenset[int]]:
    return {group for group in groups if group <= free}


class SinglesOnATorus(RuleBasedStateMachine):
    """E3: single devices and rows come and go in any order."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.free = frozenset(range(16))

    def arrive(self, count: int) -> frozenset[int]:
        before = self.free
        chosen = choose(TRN1, TRN1.devices_mask(before), Unit.DEVICE, count)
        assert not isinstance(chosen, Rejection)
        devices = frozenset(int(device) for device in TRN1.devices_touched(chosen))
        assert devices <= before
        self.free = before - devices
        return devices

    @precondition(lambda self: self.free)
    @rule(target=pods)
    def a_single_arrives(self) -> frozenset[int]:
        before = self.free
        leftovers = before - frozenset().union(*whole(ROWS, before))
        devices = self.arrive(1)
        if leftovers:
            assert whole(ROWS, before) == whole(ROWS, self.free), "a row was broken while a leftover would have done"
        elif whole(ROWS, before) - {row for half in whole(HALVES, before) for row in ROWS if row <= half}:
            assert whole(HALVES, before) == whole(HALVES, self.free), "a half was broken while another row was free"
        return devices

    @precondition(lambda self: bool(whole(ROWS, self.free)))
    @rule(target=pods)
    def a_row_arrives(self) -> frozenset[int]:
        before = self.free
        lone = whole(ROWS, before) - {row for half in whole(HALVES, before) for row in ROWS if row <= half}
        devices = self.arrive(4)
        assert devices in ROWS
        if lone:
            assert whole(HALVES, before) == whole(HALVES, self.free), "a half was broken while a lone row was free"
        return devices

    @rule(devices=consumes(pods))
    def a_pod_ends(self, devices: frozenset[int]) -> None:
        assert not devices & self.free
        self.free |= devices

    @invariant()
    def as_many_rows_fit_as_are_whole(self) -> None:
        fits = not isinstance(choose(TRN1, TRN1.devices_mask(self.free), Unit.DEVICE, 4), Rejection)
        assert fits == bool(whole(ROWS, self.free))


TestE3SinglesKeepRowsAndHalvesWhole = SinglesOnATorus.TestCase
TestE3SinglesKeepRowsAndHalvesWhole.settings = settings(max_examples=40, stateful_step_count=40)


def fill(geometry: Geometry, singles: int, pick: Callable[[int], int]) -> int:
    """What is free after so many single devices arrived."""
    free: int = geometry.all_mask
    for _ in range(singles):
        free &= ~pick(free)
    return free


def cheapest(free: int) -> int:
    chosen = choose(TRN1, free, Unit.DEVICE, 1)
    assert not isinstance(chosen, Rejection)
    return chosen


@given(st.integers(0, 16))
@settings(max_examples=17)
def test_e3_so_many_singles_touch_as_few_rows_and_halves_as_they_can(singles: int) -> None:
    free = frozenset(int(device) for device in TRN1.whole_devices(fill(TRN1, singles, cheapest)))
    assert len(whole(ROWS, free)) == 4 - -(-singles // 4)
    assert len(whole(HALVES, free)) == 2 - -(-singles // 8)


@given(st.lists(st.sampled_from([1, 2, 4]), max_size=40))
def test_e3_small_core_requests_break_a_fresh_device_only_when_no_broken_one_has_room(sizes: list[int]) -> None:
    free: int = TRN2_LNC1.all_mask
    for size in sizes:
        broken = free & ~TRN2_LNC1.devices_mask(TRN2_LNC1.whole_devices(free))
        room = any(mask & broken == mask for mask in valid_sets(TRN2_LNC1, Unit.CORE, size))
        chosen = choose(TRN2_LNC1, free, Unit.CORE, size)
        assert not isinstance(chosen, Rejection)
        assert bool(chosen & broken) == room
        free &= ~chosen
