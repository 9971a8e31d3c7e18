"""What a daemon says first, as a process of its own: an issue report is rarely more than the head of a log."""

from __future__ import annotations

import asyncio
import json
import platform
from pathlib import Path

import grpc
import pytest

from neuron_plugin import __version__
from neuron_plugin.cli import daemons
from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.daemons import Serve, run_daemon
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError
from neuron_plugin.telemetry import LogFormat, LogLevel
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


def failing(error: Exception) -> Serve:
    async def serve(_stop: asyncio.Event) -> None:
        raise error

    return serve


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(daemons, "start_logging", lambda *_: None)
    return caplog


def test_what_nobody_has_foreseen_is_in_the_log_with_its_stack(logged: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CommandError, match=r"tool has failed \(ZeroDivisionError\(\)\): its log has the stack"):
        run_daemon("tool", PluginSettings(), LogFormat.TEXT, LogLevel.INFO, failing(ZeroDivisionError()))
    (record,) = (record for record in logged.records if record.exc_info)
    assert record.getMessage() == "tool has failed"


@pytest.mark.parametrize("error", [CommandError("no kubeconfig"), SettingsError("no such key"), OSError("port in use")])
def test_what_the_user_can_mend_is_no_stack(logged: pytest.LogCaptureFixture, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_daemon("tool", PluginSettings(), LogFormat.TEXT, LogLevel.INFO, failing(error))
    assert not [record for record in logged.records if record.exc_info]


def test_an_extender_without_its_kubeconfig_says_so_in_one_line(cli_process: CliProcess, tmp_path: Path) -> None:
    with cli_process("extender", "--kubeconfig", tmp_path / "none", "--log-level", "error") as process:
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err.count("\n")) == (1, 1)
    assert f"{tmp_path}/none" in err
