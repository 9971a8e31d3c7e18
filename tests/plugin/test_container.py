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
from tests.support.stories import rows

HOST = ContainerStyle(Numbering.HOST)
CONTAINER = ContainerStyle(Numbering.CONTAINER)
CORES, DEVICES = "NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"


STYLES = {
    "host": HOST,
    "container": CONTAINER,
    "without-env": replace(CONTAINER, visible_devices_env=False),
    "lnc-2": replace(CONTAINER, logical_core_size=2),
    "simulated": replace(HOST, dev=Path("/simulated/dev")),
    "cdi": replace(CONTAINER, cdi=True),
}
ALLOCATIONS = rows(f"""
    p40 the seed's cores 2 and 3: host core:2,3 => 1>1 => {CORES}=2,3
    p41 the seed's devices 2 and 3: host 2,3 => 2>2 3>3 => {DEVICES}=2,3
    p41 under their other name: host device:2,3 => 2>2 3>3 => {DEVICES}=2,3
    p42 a container counts from neuron0, and cores from its first device:
        container core:10-13 => 5>0 6>1 => {CORES}=0,1,2,3
    p42 visible devices are the host's ids: container 8,9 => 8>0 9>1 => {DEVICES}=8,9
    p42 unless switched off: without-env 8,9 => 8>0 9>1 =>
    the LNC is told where there is one to choose:
        lnc-2 trn2 3 => 3>0 => NEURON_LOGICAL_NC_CONFIG=2 {DEVICES}=3
    the host path follows the device directory: simulated 1 => /simulated1>1 => {DEVICES}=1
    p53 CDI names stand in for device nodes: cdi core:2,3 => neuron-plugin.io/device=1-0 => {CORES}=0,1
""")
"""How and what is given; the device nodes ``HOST>INSIDE`` or CDI devices, and the variables."""


@pytest.mark.parametrize(("given_", "nodes", "variables"), ALLOCATIONS)
def test_what_a_container_receives(given_: str, nodes: str, variables: str) -> None:
    style, *machine, text = given_.split()
    geometry = TRN2 if machine else TRN1
    resource, ids = ids_of(text)
    found = container_allocation(geometry, resource, geometry.mask_of(resource.unit, ids), STYLES[style])
    paths = [f"{node.host_path}>{node.container_path}".replace("/dev/neuron", "") for node in found.devices]
    assert " ".join([*paths, *found.cdi_devices]) == nodes
    assert {node.permissions for node in found.devices} <= {"rw"}
    assert found.envs == dict(one.split("=") for one in variables.split())


NUMBERINGS = rows("""
    before 2.12.14: auto 2.12.13.9 => host
    from it on: auto 2.12.14.0 => container
    with three numbers: auto 2.12.14 => container
    by number, not by text: auto 2.9.99.0 => host
    a later one: auto 2.26.5.0 => container
    a later one by its first number: auto 10.0 => container
    a driver that is not known: auto => host
    a choice for the host: host 2.26.5.0 => host
    a choice for the container: container => container
""")


@pytest.mark.parametrize(("text", "expected"), NUMBERINGS)
def test_p43_auto_follows_the_driver_version_and_a_choice_is_kept(text: str, expected: str) -> None:
    setting, _, driver = text.partition(" ")
    style = container_style(PluginSettings(numbering=Numbering(setting)), inventory(driver_version=driver))
    assert style.numbering is Numbering(expected)


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
