"""What containers receive, against the seeds' diagrams and the driver's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.kubelet import DeviceNode
from neuron_plugin.plugin.container import (
    CDI_FILE_NAME,
    ContainerStyle,
    cdi_specification,
    container_allocation,
    container_style,
    write_cdi_specification,
)
from neuron_plugin.plugin.settings import Numbering, PluginSettings
from neuron_plugin.topology import Unit, cores_in, sets_by_count, valid_sets
from tests.plugin.world import TRN1, TRN2, inventory

HOST = ContainerStyle(Numbering.HOST)
CONTAINER = ContainerStyle(Numbering.CONTAINER)


def numbering(setting: Numbering, driver: str) -> Numbering:
    """The numbering on a node with this driver version; empty where it is not known."""
    return container_style(PluginSettings(numbering=setting), inventory(driver_version=driver)).numbering


def test_p40_seed_cores_2_and_3_in_host_numbering_give_neuron1_and_visible_cores() -> None:
    given_ = container_allocation(TRN1, Resource.NEURONCORE, TRN1.mask_of(Unit.CORE, (2, 3)), HOST)
    assert given_.devices == (DeviceNode("/dev/neuron1", "/dev/neuron1", "rw"),)
    assert given_.envs == {"NEURON_RT_VISIBLE_CORES": "2,3"}


@pytest.mark.parametrize("resource", [Resource.NEURON, Resource.NEURONDEVICE])
def test_p41_seed_devices_2_and_3_in_host_numbering_give_both_nodes_and_visible_devices(resource: Resource) -> None:
    given_ = container_allocation(TRN1, resource, TRN1.devices_mask((2, 3)), HOST)
    assert [node.container_path for node in given_.devices] == ["/dev/neuron2", "/dev/neuron3"]
    assert given_.envs == {"AWS_NEURON_VISIBLE_DEVICES": "2,3"}


def test_p42_container_numbering_starts_at_neuron0_and_counts_cores_from_the_first_device() -> None:
    given_ = container_allocation(TRN1, Resource.NEURONCORE, TRN1.mask_of(Unit.CORE, (10, 11, 12, 13)), CONTAINER)
    assert [(node.host_path, node.container_path) for node in given_.devices] == [
        ("/dev/neuron5", "/dev/neuron0"),
        ("/dev/neuron6", "/dev/neuron1"),
    ]
    assert given_.envs == {"NEURON_RT_VISIBLE_CORES": "0,1,2,3"}


@pytest.mark.parametrize("numbering", [Numbering.HOST, Numbering.CONTAINER])
def test_p42_visible_devices_are_the_host_ids_in_both_numberings_unless_switched_off(numbering: Numbering) -> None:
    mask = TRN1.devices_mask((8, 9, 10, 11))
    given_ = container_allocation(TRN1, Resource.NEURON, mask, ContainerStyle(numbering))
    assert given_.envs == {"AWS_NEURON_VISIBLE_DEVICES": "8,9,10,11"}
    off = ContainerStyle(numbering, visible_devices_env=False)
    assert container_allocation(TRN1, Resource.NEURON, mask, off).envs == {}
    cores = container_allocation(TRN1, Resource.NEURONCORE, mask, ContainerStyle(numbering))
    assert "AWS_NEURON_VISIBLE_DEVICES" not in cores.envs


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("2.12.13.9", Numbering.HOST),
        ("2.12.14.0", Numbering.CONTAINER),
        ("2.12.14", Numbering.CONTAINER),
        ("2.9.99.0", Numbering.HOST),
        ("2.26.5.0", Numbering.CONTAINER),
        ("10.0", Numbering.CONTAINER),
        ("", Numbering.HOST),
    ],
)
def test_p43_auto_follows_the_driver_version(driver: str, expected: Numbering) -> None:
    assert numbering(Numbering.AUTO, driver) is expected


def test_a_chosen_numbering_is_kept_whatever_the_driver() -> None:
    assert numbering(Numbering.HOST, "2.26.5.0") is Numbering.HOST
    assert numbering(Numbering.CONTAINER, "") is Numbering.CONTAINER


def test_the_lnc_is_told_where_there_is_one_to_choose() -> None:
    style = ContainerStyle(Numbering.CONTAINER, logical_core_size=2)
    given_ = container_allocation(TRN2, Resource.NEURON, TRN2.devices_mask((3,)), style)
    assert given_.envs == {"NEURON_LOGICAL_NC_CONFIG": "2", "AWS_NEURON_VISIBLE_DEVICES": "3"}


def test_the_host_path_follows_the_device_directory() -> None:
    style = ContainerStyle(Numbering.HOST, dev=Path("/simulated/dev"))
    given_ = container_allocation(TRN1, Resource.NEURON, TRN1.devices_mask((1,)), style)
    assert given_.devices == (DeviceNode("/simulated/dev/neuron1", "/dev/neuron1", "rw"),)


def test_p53_cdi_names_stand_in_for_device_nodes() -> None:
    style = ContainerStyle(Numbering.CONTAINER, cdi=True)
    given_ = container_allocation(TRN1, Resource.NEURONCORE, TRN1.mask_of(Unit.CORE, (2, 3)), style)
    assert given_.devices == ()
    assert given_.cdi_devices == ("neuron-plugin.io/device=1-0",)
    assert given_.envs == {"NEURON_RT_VISIBLE_CORES": "0,1"}


@pytest.mark.parametrize("numbering", [Numbering.HOST, Numbering.CONTAINER])
def test_p53_every_cdi_name_that_is_handed_out_is_in_the_specification(numbering: Numbering) -> None:
    style = ContainerStyle(numbering, cdi=True, dev=Path("/d"))
    specification = cdi_specification(TRN1, style)
    devices = specification["devices"]
    assert isinstance(devices, list)
    nodes = {device["name"]: device["containerEdits"]["deviceNodes"][0] for device in devices}
    for count in sets_by_count(TRN1, Unit.DEVICE):
        for mask in valid_sets(TRN1, Unit.DEVICE, count):
            plain = container_allocation(TRN1, Resource.NEURON, mask, ContainerStyle(numbering, dev=Path("/d")))
            names = container_allocation(TRN1, Resource.NEURON, mask, style).cdi_devices
            named = [nodes[name.partition("=")[2]] for name in names]
            assert [(node["hostPath"], node["path"]) for node in named] == [
                (node.host_path, node.container_path) for node in plain.devices
            ]


@given(mask=st.integers(min_value=1, max_value=TRN2.all_mask))
def test_p52_host_numbering_writes_ids_that_read_back_to_the_same_cores(mask: int) -> None:
    text = container_allocation(TRN2, Resource.NEURONCORE, mask, HOST).envs["NEURON_RT_VISIBLE_CORES"]
    assert parse_ids(text) == cores_in(mask)


@given(data=st.data())
def test_container_numbering_names_the_same_silicon_through_the_drivers_offset(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from(list(sets_by_count(TRN2, Unit.CORE))))
    mask = data.draw(st.sampled_from(valid_sets(TRN2, Unit.CORE, count)))
    given_ = container_allocation(TRN2, Resource.NEURONCORE, mask, CONTAINER)
    first = int(given_.devices[0].host_path.removeprefix("/dev/neuron"))
    seen = parse_ids(given_.envs["NEURON_RT_VISIBLE_CORES"])
    assert tuple(core + first * TRN2.cores_per_device for core in seen) == cores_in(mask)
    assert [node.container_path for node in given_.devices] == [
        f"/dev/neuron{place}" for place in range(len(given_.devices))
    ]


def test_p53_the_specification_is_written_whole_once_and_again_when_it_says_something_else(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "cdi"
    assert write_cdi_specification(directory, {"kind": "a"})
    assert not write_cdi_specification(directory, {"kind": "a"})
    assert write_cdi_specification(directory, {"kind": "b"})
    assert [path.name for path in directory.iterdir()] == [CDI_FILE_NAME]
    assert json.loads((directory / CDI_FILE_NAME).read_bytes()) == {"kind": "b"}


def test_p53_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("in the way")
    with pytest.raises(OSError, match="cdi"):
        write_cdi_specification(tmp_path / "cdi", {"kind": "a"})
