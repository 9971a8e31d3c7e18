from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.inspection.machine import look
from neuron_plugin.inspection.node import node_of
from neuron_plugin.inspection.text import Unknown
from neuron_plugin.plugin.health import FILE_NAME, HealthRules, SignalRule, save
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError
from neuron_plugin.topology import Topology
from tests.inspection.cases import looked
from tests.inspection.doubles import MakeNode


def test_a_machine_without_devices_has_no_geometry(tmp_path: Path) -> None:
    seen = look(PluginSettings(sysfs=tmp_path), {})
    assert (seen.geometry, seen.usable_mask, seen.missing, seen.links) == (None, 0, (), {})
    assert "does not exist" in seen.inventory.absence


def test_links_are_the_drivers_where_it_prints_any(make_node: MakeNode) -> None:
    seen = looked(make_node("inf2.24xlarge"))
    assert not seen.links_are_assumed
    assert seen.links[1] == {0, 2}


def test_links_are_the_types_while_a_chip_is_missing(make_node: MakeNode) -> None:
    seen = looked(make_node("trn1.32xlarge", missing=[3]))
    assert seen.links_are_assumed
    assert seen.links[0] == {1, 4, 12}, "never to the device that is missing"
    assert seen.missing == (3,)


def test_a_single_device_needs_no_links(make_node: MakeNode) -> None:
    assert not looked(make_node("inf2.xlarge")).links_are_assumed


def test_a_skipped_device_is_not_missing(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(2, "core_count", "x")
    seen = looked(node)
    assert [device.id for device in seen.inventory.skipped] == [2]
    assert seen.missing == ()
    assert 2 not in seen.links[1]


def test_cores_of_an_unhealthy_device_are_not_usable(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    assert looked(node).usable_mask == 0b1111_1111_0011


def test_the_users_types_name_what_the_catalogue_does_not(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("inf2.24xlarge")
    (node.root / "sys/devices/virtual/dmi/id/product_name").chmod(0o644)
    (node.root / "sys/devices/virtual/dmi/id/product_name").write_text("inf9.24xlarge\n")
    types = tmp_path / "types.yaml"
    types.write_text("instance-types: [{name: inf9.24xlarge, devices: 6, cores-per-device: 2, topology: ring}]\n")
    unknown = looked(node)
    known = looked(node, instance_types=str(types))
    assert unknown.geometry is not None
    assert known.geometry is not None
    assert (unknown.geometry.topology, known.geometry.topology) == (Topology.LINE, Topology.RING)
    assert (unknown.instance, known.instance and known.instance.name) == (None, "inf9.24xlarge")


def test_the_type_can_be_given_where_the_machine_does_not(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge", missing=[15])
    (node.root / "sys/class/dmi/id").unlink()
    unknown = looked(node)
    said = looked(node, instance_type="trn1.32xlarge")
    assert (unknown.missing, said.missing) == ((), (15,))


def test_a_mistyped_type_is_refused_with_where_to_look(make_node: MakeNode) -> None:
    with pytest.raises(SettingsError, match="--instance-type trn7 is not known: see 'neuron-plugin simulate types'"):
        looked(make_node("inf2.xlarge"), instance_type="trn7")


def test_a_broken_file_of_types_is_refused(make_node: MakeNode, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        looked(make_node("inf2.xlarge"), instance_types=str(tmp_path / "no.yaml"))


def test_the_environment_decides_what_a_core_is(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    assert looked(node).inventory.cores_per_device == 4
    settings = node_of({"root": str(node.root)}, {}, None).settings
    assert look(settings, {"NEURON_LOGICAL_NC_CONFIG": "1"}).inventory.cores_per_device == 8


def test_health_is_judged_by_the_node_s_own_policies_and_what_its_daemon_remembers(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    node.set_error_events(4, 5)
    key = looked(node).inventory.devices[4].serial_number
    save(tmp_path / FILE_NAME, {key: {"health-status/hw_error_events": 5}})
    health = HealthRules(sram_ecc=SignalRule(threshold=2))
    settings = node_of({"root": str(node.root)}, {}, None).settings
    seen = look(msgspec.structs.replace(settings, health=health, state_dir=tmp_path), {})
    assert [verdict.findings for verdict in seen.verdicts.values()] == [()] * 6
    assert [bool(verdict.findings) for verdict in looked(node).verdicts.values()] == [0, 1, 0, 0, 1, 0]


def test_a_memory_that_is_not_there_or_may_not_be_read_is_not_known(tmp_path: Path) -> None:
    assert "no state directory" in unknown_memory(PluginSettings())
    assert "health.json is not there" in unknown_memory(PluginSettings(state_dir=tmp_path))
    (tmp_path / FILE_NAME).mkdir()
    assert "cannot be read" in unknown_memory(PluginSettings(state_dir=tmp_path))


def unknown_memory(settings: PluginSettings) -> str:
    memory = look(settings, {}).memory
    assert isinstance(memory, Unknown)
    return memory.why
