from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.machine import look, node_of
from neuron_plugin.plugin.health import FILE_NAME, HealthRules, SignalRule, save
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError, configuration_file
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("sysfs: /of-file\ndev: /of-file\nkubelet-dir: /of-file\nhealth: {sram-ecc: {threshold: 5}}\n")
    return path


def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_defaults(file: Path) -> None:
    environ = {"NEURON_PLUGIN_SYSFS": "/of-environment", "NEURON_PLUGIN_DEV": "/of-environment"}
    node = node_of({"sysfs": "/of-flag", "dev": None, "output": "json"}, environ, file)
    settings = node.settings
    assert (settings.sysfs, settings.dev, settings.kubelet_dir) == (
        Path("/of-flag"),
        Path("/of-environment"),
        Path("/of-file"),
    )
    assert settings.pod_resources_socket == PluginSettings().pod_resources_socket
    assert node.root is None


def test_the_usual_file_is_this_machine_s_and_a_named_one_wins(usual_file: Path, tmp_path: Path) -> None:
    assert configuration_file({}) is None
    usual_file.touch()
    (tmp_path / "named").touch()
    assert configuration_file({}) == usual_file
    assert configuration_file({"root": "/sim"}) is None
    assert configuration_file({"root": "/sim", "config": str(tmp_path / "named")}) == tmp_path / "named"


def test_a_file_that_was_named_has_to_be_there() -> None:
    with pytest.raises(SettingsError, match=r"--config /nonexistent/config\.yaml is not there"):
        configuration_file({"config": "/nonexistent/config.yaml"})


def test_everything_of_another_machine_lies_below_its_root_and_nothing_here_speaks_of_it(
    file: Path, tmp_path: Path
) -> None:
    node = node_of({"root": str(tmp_path)}, {"NEURON_PLUGIN_SYSFS": "/of-environment"}, file)
    settings = node.settings
    assert (settings.sysfs, settings.dev) == (tmp_path / "sys", tmp_path / "dev")
    assert settings.logical_core_file == tmp_path / "opt/aws/neuron/logical_nc_config"
    assert settings.kubelet_dir == tmp_path / "var/lib/kubelet/device-plugins"
    assert settings.pod_resources_socket == tmp_path / "var/lib/kubelet/pod-resources/kubelet.sock"
    assert settings.health.sram_ecc.threshold == 5, "policies are no paths"


def test_single_paths_win_over_the_root(tmp_path: Path) -> None:
    settings = node_of({"root": str(tmp_path), "sysfs": "/s", "pod_resources_socket": "/k.sock"}, {}, None).settings
    assert (settings.sysfs, settings.pod_resources_socket) == (Path("/s"), Path("/k.sock"))
    assert settings.dev == tmp_path / "dev"


def test_a_root_that_is_a_file_is_refused(file: Path) -> None:
    with pytest.raises(SettingsError, match="is no directory: expected one with sys/ and dev/"):
        node_of({"root": str(file)}, {}, None)


def test_a_type_that_only_the_daemon_s_file_has_is_taken_as_the_daemon_takes_it(file: Path) -> None:
    file.write_text("instance-type: trn9.48xlarge\n")
    assert node_of({}, {}, file).settings.instance_type == "trn9.48xlarge"
    with pytest.raises(SettingsError, match="--instance-type trn9 is not known"):
        node_of({"instance_type": "trn9"}, {}, None)


def test_the_host_s_processes_are_where_the_host_or_its_proc_is_mounted(tmp_path: Path) -> None:
    assert node_of({"root": str(tmp_path)}, {}, None).proc == Path("/proc"), "a simulated machine has none of its own"
    (tmp_path / "proc").mkdir()
    assert node_of({"root": str(tmp_path)}, {}, None).proc == tmp_path / "proc"
    assert node_of({}, {"NEURON_PLUGIN_PROC": str(tmp_path)}, None).proc == tmp_path
    assert node_of({}, {"NEURON_PLUGIN_PROC": "/nonexistent"}, None).proc == Path("/proc")
