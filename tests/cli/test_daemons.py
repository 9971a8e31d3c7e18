"""What a daemon says first, as a process of its own: an issue report is rarely more than the head of a log."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import grpc
import pytest

from neuron_plugin import __version__
from tests.cli.doubles import CliProcess

BUILD = {"version": __version__, "revision": "unknown", "python": platform.python_version(), "grpc": grpc.__version__}


def first_line(cli_process: CliProcess, *arguments: object) -> str:
    with cli_process(*arguments) as process:
        assert process.stderr is not None
        line = str(process.stderr.readline())
        process.terminate()
        process.communicate(timeout=30)
    return line


@pytest.mark.parametrize("command", ["run", "extender"])
def test_a_daemon_s_first_line_names_its_build_and_its_settings(
    cli_process: CliProcess, tmp_path: Path, command: str
) -> None:
    flags: dict[str, list[object]] = {
        "run": ["--no-cluster", "--sysfs", tmp_path, "--dev", tmp_path, "--kubelet-dir", tmp_path, "--health-port", 0],
        "extender": ["--kubeconfig", tmp_path / "none"],
    }
    line = json.loads(first_line(cli_process, command, "--log-format", "json", *flags[command]))
    assert line["message"].endswith(" starts")
    assert line.items() >= BUILD.items()
    assert line["log_format"] == "json"
    assert line["health_port"] == ("0" if command == "run" else "12346")


def test_a_person_reads_it_on_one_line(cli_process: CliProcess, tmp_path: Path) -> None:
    line = first_line(cli_process, "extender", "--log-format", "text", "--kubeconfig", tmp_path / "none")
    assert f"neuron-plugin extender starts version={__version__} revision=unknown python=" in line
