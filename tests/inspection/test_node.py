from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.inspection.node import configuration_file, node_of
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError


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
    assert (node.root, node.file) == (None, file)


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
