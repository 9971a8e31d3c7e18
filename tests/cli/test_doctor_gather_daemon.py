"""What the daemon goes by, from its file, its environment and its state."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.doctor_facts import Unknown
from neuron_plugin.cli.doctor_gather_daemon import gather_daemon, with_settings
from neuron_plugin.plugin.health.memory import DeviceMemory, Memory, boot_id, save
from neuron_plugin.plugin.settings import PluginSettings

NOWHERE = Path("/nonexistent/config.yaml")


def flags(config: Path | None = None, root: Path | None = None, **given: object) -> Namespace:
    names = (
        *("sysfs", "dev", "logical_core_file", "instance_types", "instance_type"),
        *("kubelet_dir", "pod_resources_socket", "kubeconfig", "node_name"),
    )
    return Namespace(**{**dict.fromkeys(names), "config": config, "root": root, **given})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"kubelet-dir: /k\nstate-dir: {tmp_path}/state\nhealth: {{sram-ecc: {{threshold: 5}}}}\n")
    return path


def test_the_file_and_the_environment_are_read_as_run_does(file: Path) -> None:
    daemon = gather_daemon(flags(file), {"NEURON_PLUGIN_KUBELET_DIR": "/from-environment"})
    assert daemon.trouble == ""
    assert (daemon.file, daemon.settings.health.sram_ecc.threshold) == (file, 5)
    assert daemon.settings.kubelet_dir == Path("/from-environment")


def test_the_charts_place_is_the_usual_one_on_the_node_itself_and_not_for_another_machine(file: Path) -> None:
    assert gather_daemon(flags(), {}, usual=file).file == file
    assert gather_daemon(flags(), {}, usual=NOWHERE).file is None
    assert gather_daemon(flags(root=Path("/sim")), {}, usual=file).file is None


def test_a_file_that_was_named_has_to_be_there() -> None:
    with pytest.raises(CommandError, match=r"--config /nonexistent/config\.yaml is not there"):
        gather_daemon(flags(NOWHERE), {})


@pytest.mark.parametrize(
    ("text", "trouble"),
    [("helth: {}\n", "unknown key 'helth'"), ("lease-duration-seconds: 1\n", "one late renewal would close the node")],
)
def test_settings_that_cannot_be_used_are_told_and_defaults_stand_in(file: Path, text: str, trouble: str) -> None:
    file.write_text(text)
    daemon = gather_daemon(flags(file), {})
    assert isinstance(daemon.trouble, str)
    assert trouble in daemon.trouble
    assert daemon.settings == PluginSettings()


def test_a_file_that_may_not_be_read_is_not_the_daemons_trouble(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    trouble = gather_daemon(flags(file), {}).trouble
    assert isinstance(trouble, Unknown)
    assert trouble.action == "run this as root"


def test_what_the_daemon_remembers_is_known_where_its_state_is(file: Path, tmp_path: Path) -> None:
    missing = gather_daemon(flags(file), {}).memory
    assert isinstance(missing, Unknown)
    assert "health.json is not there" in missing.why
    memory = Memory({"00": DeviceMemory({"hw-error": 4})})
    save(tmp_path / "state/health.json", memory, boot_id())
    assert gather_daemon(flags(file), {}).memory == memory
    assert isinstance(gather_daemon(flags(), {}, usual=NOWHERE).memory, Unknown)


def test_a_state_that_may_not_be_read_is_not_known(file: Path, tmp_path: Path) -> None:
    (tmp_path / "state/health.json").mkdir(parents=True)
    memory = gather_daemon(flags(file), {}).memory
    assert isinstance(memory, Unknown)
    assert "cannot be read" in memory.why


def test_flags_win_over_the_daemons_settings_and_those_over_the_defaults() -> None:
    settings = PluginSettings(kubelet_dir=Path("/k"), sysfs=Path("/host/sys"), node_name="worker-1")
    told = with_settings(flags(sysfs=Path("/mine")), settings)
    assert (told.sysfs, told.kubelet_dir, told.node_name, told.dev) == (Path("/mine"), Path("/k"), "worker-1", None)


def test_another_machines_paths_are_not_the_daemons() -> None:
    told = with_settings(flags(root=Path("/sim")), PluginSettings(kubelet_dir=Path("/k")))
    assert told.kubelet_dir is None


def test_the_daemon_of_another_machine_is_not_asked(file: Path) -> None:
    daemon = gather_daemon(flags(file, Path("/sim")), {})
    assert isinstance(daemon.silent, Unknown)
    assert isinstance(daemon.held_back, Unknown)
