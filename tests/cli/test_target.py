"""In the plugin's pod every command that looks at the node goes by the daemon's settings, without a flag."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.cli.cluster import kubeconfig_of
from neuron_plugin.cli.command import UsageError
from neuron_plugin.cli.target import settings_here
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError
from neuron_plugin.simulation import SimulatedNode
from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode

COMMANDS = {
    "devices": "healthy",
    "topology": "inf2.24xlarge: 6 devices",
    "doctor": "6 Inferentia2 devices",
}


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node("inf2.24xlarge")


def settings(node: SimulatedNode, path: Path) -> Path:
    path.write_text(f"sysfs: {node.paths.sysfs}\ndev: {node.paths.dev}\n")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sysfs_elsewhere_is_found_by_the_daemon_s_file(
    cli: Cli, node: SimulatedNode, tmp_path: Path, command: str
) -> None:
    assert COMMANDS[command] in cli(command, "--config", settings(node, tmp_path / "config.yaml")).out


@pytest.mark.parametrize("command", COMMANDS)
def test_where_the_chart_mounts_that_file_no_flag_is_needed(
    cli: Cli, node: SimulatedNode, usual_file: Path, command: str
) -> None:
    settings(node, usual_file)
    assert COMMANDS[command] in cli(command).out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_environment_wins_over_the_file_and_a_flag_over_both(
    cli: Cli, node: SimulatedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"sysfs: /nonexistent\ndev: {node.paths.dev}\n")
    monkeypatch.setenv("NEURON_PLUGIN_SYSFS", str(node.paths.sysfs))
    assert COMMANDS[command] in cli(command, "--config", file).out
    assert COMMANDS[command] not in cli(command, "--config", file, "--sysfs", tmp_path).out


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home and nothing in it, outside of pods."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


def test_the_flag_wins_over_the_variable_and_that_over_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = made(home / ".kube/config")
    assert kubeconfig_of(None) == (usual,)
    named, other = made(home / "named"), made(home / "other")
    monkeypatch.setenv("KUBECONFIG", f"{home}/none:{named}::{other}")
    assert kubeconfig_of(None) == (named, other), "those that are there, in this order"
    given = made(home / "given")
    assert kubeconfig_of(given) == (given,)


def test_what_is_named_has_to_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(home / ".kube/config")
    with pytest.raises(UsageError, match="--kubeconfig is /nowhere, which is not there"):
        kubeconfig_of(Path("/nowhere"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere:/elsewhere")
    with pytest.raises(UsageError, match="KUBECONFIG is /nowhere:/elsewhere, which is not there"):
        kubeconfig_of(None)


def test_a_pod_without_any_has_its_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert kubeconfig_of(None) == ()


def test_a_pod_s_service_account_is_used_as_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    refused = cli("nodes", "--context", "prod", "--as", "anna", "--as-group", "g1")
    assert refused.status == 2
    assert "--context, --as, --as-group: a pod's service account is used as it is, give --kubeconfig" in refused.err


def test_without_any_the_ways_to_give_one_are_named() -> None:
    with pytest.raises(UsageError, match="give --kubeconfig or set KUBECONFIG"):
        kubeconfig_of(None)


@pytest.mark.parametrize(
    ("text", "kind", "port"),
    [("health-port: 1\n", PluginSettings, 1), ("tls-cert: /t\nhealth-port: 2\n", ExtenderSettings, 2)],
)
def test_a_pod_s_file_is_the_one_of_the_daemon_in_it(
    usual_file: Path, text: str, kind: type[msgspec.Struct], port: int
) -> None:
    usual_file.write_text(text)
    settings = settings_here()
    assert (type(settings), settings.health_port) == (kind, port)


def test_without_a_file_the_plugin_s_defaults_and_the_environment_hold(
    usual_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not usual_file.exists()
    assert settings_here() == PluginSettings()
    monkeypatch.setenv("NEURON_PLUGIN_HEALTH_PORT", "7")
    assert settings_here().health_port == 7


def test_a_file_that_is_neither_daemon_s_is_reported_as_the_plugin_s(usual_file: Path) -> None:
    usual_file.write_text("helth-port: 1\n")
    with pytest.raises(SettingsError, match="unknown key 'helth-port'"):
        settings_here()
