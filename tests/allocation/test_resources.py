"""Resource names, their units and their ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import Geometry, Unit
from tests.allocation.nodes import any_geometry
from tests.topology.oracle import INF1, INF2_RING, TRN1


def test_two_names_count_devices_and_one_counts_cores() -> None:
    assert {resource.value: resource.unit for resource in Resource} == {
        "aws.amazon.com/neuron": Unit.DEVICE,
        "aws.amazon.com/neurondevice": Unit.DEVICE,
        "aws.amazon.com/neuroncore": Unit.CORE,
    }


def test_a_short_name_has_no_domain() -> None:
    assert [resource.short_name for resource in Resource] == ["neuron", "neurondevice", "neuroncore"]


@given(st.data(), any_geometry(), st.sampled_from(Unit))
def test_ids_and_masks_say_the_same(data: st.DataObject, geometry: Geometry, unit: Unit) -> None:
    most = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    ids = tuple(sorted(data.draw(st.sets(st.integers(0, most - 1)))))
    assert geometry.ids_of(unit, geometry.mask_of(unit, ids)) == ids


def test_an_id_is_the_physical_one() -> None:
    assert TRN1.mask_of(Unit.DEVICE, (1,)) == TRN1.mask_of(Unit.CORE, (2, 3)) == 0b1100
    assert TRN1.ids_of(Unit.CORE, TRN1.device_mask(1)) == (2, 3)


def test_a_device_counts_only_with_all_of_its_cores() -> None:
    assert INF1.ids_of(Unit.DEVICE, INF1.mask_of(Unit.CORE, range(9))) == (0, 1)


def test_t24_ids_ascend_as_numbers() -> None:
    assert INF2_RING.ids_of(Unit.DEVICE, INF2_RING.devices_mask((10, 2, 9))) == (2, 9, 10)


def test_ids_that_the_node_has_not_add_nothing() -> None:
    assert INF1.mask_of(Unit.DEVICE, (4, 99, -1)) == INF1.mask_of(Unit.CORE, (16, 4095)) == 0
