"""A device's name says which silicon it is, whoever reads it and whenever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.claims import (
    GROUP_ATTRIBUTES,
    ClaimDevice,
    device_attributes,
    devices_of,
    devices_with,
    mask_of_name,
    names_mask,
    read_device_name,
)
from neuron_plugin.topology import Geometry, Topology, Unit, sets_by_count, valid_sets
from neuron_plugin.topology.instances import catalogue

TRN1 = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
GEOMETRIES = [one.geometry for one in catalogue().values()]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (ClaimDevice(3), "neuron-3"),
        (ClaimDevice(3, (6, 7)), "neuron-3-cores-6-7"),
        (ClaimDevice(3, (12, 12), 2), "neuron-3-cores-12-12-lnc-2"),
    ],
)
def test_a_name_reads_back(device: ClaimDevice, name: str) -> None:
    assert device.name == name
    assert read_device_name(name) == device


@pytest.mark.parametrize(
    "name", ["", "neuron", "neuron-", "neuron-x", "neuron-3-cores-6", "neuron-3-core-6", "neuron-333"]
)
def test_another_name_is_not_ours(name: str) -> None:
    assert read_device_name(name) is None


@given(st.sampled_from(GEOMETRIES), st.sampled_from(list(Unit)), st.data())
def test_the_names_of_a_valid_set_are_that_set(geometry: Geometry, unit: Unit, data: st.DataObject) -> None:
    count = data.draw(st.sampled_from(list(sets_by_count(geometry, unit))))
    mask = data.draw(st.sampled_from(valid_sets(geometry, unit, count)))
    names = [device.name for device in devices_of(geometry, unit, mask, 1)]
    assert names_mask(names, geometry, 1) == mask
    assert len(set(names)) == len(names)


def test_cores_of_another_logical_size_are_the_whole_device() -> None:
    assert mask_of_name("neuron-3-cores-6-6", TRN1, 1) == 1 << 6
    assert mask_of_name("neuron-3-cores-6-6-lnc-2", TRN1, 1) == TRN1.device_mask(3)


def test_cores_that_their_device_does_not_have_are_nobodys() -> None:
    assert mask_of_name("neuron-3-cores-0-7", TRN1, 1) == TRN1.device_mask(3)
    assert mask_of_name("neuron-20", TRN1, 1) == 0


def test_another_drivers_device_counts_by_its_number_and_without_one_as_all() -> None:
    assert mask_of_name("neurondevice7", TRN1, 1) == TRN1.device_mask(7)
    assert mask_of_name("gpu", TRN1, 1) == TRN1.all_mask


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.instance_type)
@pytest.mark.parametrize("attribute", GROUP_ATTRIBUTES)
def test_a_valid_set_that_is_no_larger_than_a_group_lies_in_one_group(geometry: Geometry, attribute: str) -> None:
    attributes = device_attributes(geometry)
    for count in range(1, min(GROUP_ATTRIBUTES[attribute], geometry.device_count) + 1):
        for mask in valid_sets(geometry, Unit.DEVICE, count):
            values = {attributes[device].get(attribute) for device in geometry.whole_devices(mask)}
            assert len(values) == 1


def test_an_attribute_that_a_device_lacks_matches_nothing() -> None:
    group, row = "resource.aws.com/devicegroup4_id", "neuron.aws.com/topology4_id"
    inf2 = catalogue()["inf2.48xlarge"].geometry
    assert devices_with(TRN1, ((group, None),)) == tuple(range(16))
    assert devices_with(TRN1, ((row, 2),)) == (8, 9, 10, 11)
    assert devices_with(inf2, ((group, None),)) == devices_with(inf2, ((row, 2),)) == ()
    assert devices_with(TRN1, (("neuron.aws.com/instanceType", "trn1.32xlarge"), (row, 1))) == (4, 5, 6, 7)


@pytest.mark.parametrize("value", ["3", True, 16])
def test_a_value_of_another_type_is_another_value(value: str | int) -> None:
    assert devices_with(TRN1, (("neuron.aws.com/deviceId", value),)) == ()
