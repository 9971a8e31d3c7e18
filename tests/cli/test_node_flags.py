"""In the plugin's pod every command that looks at the node goes by the daemon's settings, without a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.simulation import SimulatedNode
from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode

COMMANDS = {
    "devices": "healthy",
    "topology": "inf2.24xlarge: 6 devices",
    "doctor": "6 Inferentia2 devices",
    "version": "Neuron driver 2.30.2.0",
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
