"""What containers receive, against the seeds' diagrams and the driver's rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.resources import parse_ids
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
from tests.plugin.world import TRN1, TRN2, ids_of, inventory

HOST = ContainerStyle(Numbering.HOST)
CONTAINER = ContainerStyle(Numbering.CONTAINER)
CORES, DEVICES = "NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"


ALLOCATIONS: dict[str, tuple[str, ContainerStyle, str, dict[str, str]]] = {
    "p40 the seed's cores 2 and 3": ("core:2,3", HOST, "1>1", {CORES: "2,3"}),
    "p41 the seed's devices 2 and 3": ("2,3", HOST, "2>2 3>3", {DEVICES: "2,3"}),
    "p41 under their other name": ("device:2,3", HOST, "2>2 3>3", {DEVICES: "2,3"}),
    "p42 a container counts from neuron0, and cores from its first device": (
        "core:10-13",
        CONTAINER,
        "5>0 6>1",
        {CORES: "0,1,2,3"},
    ),
    "p42 visible devices are the host's ids": ("8,9", CONTAINER, "8>0 9>1", {DEVICES: "8,9"}),
    "p42 unless switched off": ("8,9", replace(CONTAINER, visible_devices_env=False), "8>0 9>1", {}),
    "the LNC is told where there is one to choose": (
        "trn2 3",
        replace(CONTAINER, logical_core_size=2),
        "3>0",
        {"NEURON_LOGICAL_NC_CONFIG": "2", DEVICES: "3"},
    ),
    "the host path follows the device directory": (
        "1",
        replace(HOST, dev=Path("/simulated/dev")),
        "/simulated1>1",
        {DEVICES: "1"},
    ),
    "p53 CDI names stand in for device nodes": (
        "core:2,3",
        replace(CONTAINER, cdi=True),
        "neuron-plugin.io/device=1-0",
        {CORES: "0,1"},
    ),
}
"""What is given, how; the device nodes ``HOST>INSIDE`` or CDI devices, and the variables."""


@pytest.mark.parametrize(("given_", "style", "nodes", "variables"), ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_what_a_container_receives(given_: str, style: ContainerStyle, nodes: str, variables: dict[str, str]) -> None:
    geometry = TRN2 if given_.startswith("trn2 ") else TRN1
    resource, ids = ids_of(given_.removeprefix("trn2 "))
    found = container_allocation(geometry, resource, geometry.mask_of(resource.unit, ids), style)
    paths = [f"{node.host_path}>{node.container_path}".replace("/dev/neuron", "") for node in found.devices]
    assert " ".join([*paths, *found.cdi_devices]) == nodes
    assert {node.permissions for node in found.devices} <= {"rw"}
    assert found.envs == variables


@pytest.mark.parametrize(
    ("setting", "driver", "expected"),
    [
        (Numbering.AUTO, "2.12.13.9", Numbering.HOST),
        (Numbering.AUTO, "2.12.14.0", Numbering.CONTAINER),
        (Numbering.AUTO, "2.12.14", Numbering.CONTAINER),
        (Numbering.AUTO, "2.9.99.0", Numbering.HOST),
        (Numbering.AUTO, "2.26.5.0", Numbering.CONTAINER),
        (Numbering.AUTO, "10.0", Numbering.CONTAINER),
        (Numbering.AUTO, "", Numbering.HOST),
        (Numbering.HOST, "2.26.5.0", Numbering.HOST),
        (Numbering.CONTAINER, "", Numbering.CONTAINER),
    ],
)
def test_p43_auto_follows_the_driver_version_and_a_choice_is_kept(
    setting: Numbering, driver: str, expected: Numbering
) -> None:
    style = container_style(PluginSettings(numbering=setting), inventory(driver_version=driver))
    assert style.numbering is expected


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
