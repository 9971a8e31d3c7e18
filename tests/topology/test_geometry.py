"""Cores, devices and masks of one node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.topology import Topology, Unit
from neuron_plugin.topology.geometry import (
    MOST_CORES_PER_DEVICE,
    MOST_DEVICES,
    NO_CORES,
    Geometry,
    GeometryError,
    cores_in,
)
from tests.topology.oracle import INF1, INF2_RING, TRN1, TRN2, as_cores, cores_of_devices, distinct_geometries

geometries = st.sampled_from(distinct_geometries())


@st.composite
def geometry_and_mask(draw: st.DrawFn) -> tuple[Geometry, int]:
    geometry = draw(geometries)
    return geometry, draw(st.integers(0, geometry.all_mask))


def test_core_k_of_device_n_is_bit_n_times_cores_per_device_plus_k() -> None:
    assert as_cores(INF1.device_mask(2)) == {8, 9, 10, 11}
    assert as_cores(TRN1.device_mask(15)) == {30, 31}
    assert as_cores(TRN2.device_mask(1)) == {4, 5, 6, 7}


@given(geometries)
def test_devices_part_the_node_into_equal_and_disjoint_masks(geometry: Geometry) -> None:
    together = 0
    for device in range(geometry.device_count):
        mask = geometry.device_mask(device)
        assert mask.bit_count() == geometry.cores_per_device
        assert not mask & together
        together |= mask
    assert together == geometry.all_mask
    assert geometry.all_mask.bit_count() == geometry.core_count


@given(geometry_and_mask())
def test_touched_and_whole_agree_with_counting_cores(drawn: tuple[Geometry, int]) -> None:
    geometry, mask = drawn
    held = as_cores(mask)
    own = {device: cores_of_devices(geometry, frozenset({device})) for device in range(geometry.device_count)}
    assert list(geometry.devices_touched(mask)) == [device for device, cores in own.items() if cores & held]
    assert list(geometry.whole_devices(mask)) == [device for device, cores in own.items() if cores <= held]


@given(geometry_and_mask())
def test_masks_and_core_ids_say_the_same(drawn: tuple[Geometry, int]) -> None:
    geometry, mask = drawn
    cores = cores_in(mask)
    assert list(cores) == sorted(as_cores(mask))
    assert geometry.mask_of(Unit.CORE, cores) == mask


@given(geometries, st.lists(st.integers(-5, 5000)))
def test_ids_outside_the_geometry_add_nothing(geometry: Geometry, ids: list[int]) -> None:
    known_devices = frozenset(ids) & frozenset(range(geometry.device_count))
    known_cores = frozenset(ids) & frozenset(range(geometry.core_count))
    assert as_cores(geometry.devices_mask(ids)) == cores_of_devices(geometry, known_devices)
    assert as_cores(geometry.mask_of(Unit.CORE, ids)) == known_cores


def test_t14_one_held_core_takes_its_whole_device_from_device_requests() -> None:
    nine = INF1.mask_of(Unit.CORE, range(9))
    assert INF1.devices_touched(nine) == (0, 1, 2)
    assert INF1.whole_devices(nine) == (0, 1)


def test_p24_a_missing_device_is_a_hole_and_moves_no_id() -> None:
    present = INF1.devices_mask((0, 1, 3))
    assert INF1.whole_devices(present) == (0, 1, 3)
    assert cores_in(present)[-4:] == (12, 13, 14, 15)


def test_t24_ids_are_ordered_as_numbers() -> None:
    assert INF2_RING.devices_touched(INF2_RING.devices_mask((10, 9, 2, 11))) == (2, 9, 10, 11)
    assert cores_in(INF2_RING.mask_of(Unit.CORE, (10, 9, 2))) == (2, 9, 10)


def test_no_cores_touch_no_device() -> None:
    assert cores_in(NO_CORES) == ()
    assert TRN1.devices_touched(NO_CORES) == TRN1.whole_devices(NO_CORES) == ()


def test_a_node_whose_cores_are_not_known_yet_has_no_whole_device() -> None:
    unread = Geometry("trn1.32xlarge", Topology.TORUS, 16, 0, (1, 4, 8, 16))
    assert unread.all_mask == NO_CORES
    assert unread.whole_devices(unread.all_mask) == ()


@pytest.mark.parametrize("devices", [-1, MOST_DEVICES + 1, 10**12])
def test_a_device_count_beyond_the_driver_is_refused_by_name(devices: int) -> None:
    with pytest.raises(GeometryError, match=f"device_count is {devices}, expected 0 to 64"):
        Geometry("x", Topology.RING, devices, 2)


@pytest.mark.parametrize("cores", [-1, MOST_CORES_PER_DEVICE + 1])
def test_a_core_count_beyond_the_driver_is_refused_by_name(cores: int) -> None:
    with pytest.raises(GeometryError, match=f"cores_per_device is {cores}, expected 0 to 8"):
        Geometry("x", Topology.RING, 2, cores)


def test_equal_geometries_are_one_key() -> None:
    again = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
    assert {TRN1: "sets"}[again] == "sets"
