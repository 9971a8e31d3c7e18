"""What a daemon says first, as a process of its own: an issue report is rarely more than the head of a log."""

from __future__ import annotations

import asyncio
import json
import platform
from argparse import Namespace
from pathlib import Path
from typing import Annotated

import grpc
import msgspec
import pytest
from msgspec import Meta

from neuron_plugin import __version__
from neuron_plugin.cli import daemons
from neuron_plugin.cli.command import CommandError, Parser
from neuron_plugin.cli.daemons import Serve, add_settings, load_settings, printed_settings, run_daemon
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


def test_an_unforeseen_error_is_in_the_log_with_its_stack(logged: pytest.LogCaptureFixture) -> None:
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


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    node_name: Annotated[str, Meta(description="name of the node")] = "here"
    rescan_seconds: Annotated[float, Meta(ge=1, description="how often to look")] = 10.0


def parsed(*arguments: str, settings: type[msgspec.Struct] = Settings) -> Namespace:
    parser = Parser(prog="tool")
    add_settings(parser, settings)
    return parser.parse_args(arguments)


def load(*arguments: str, environment: dict[str, str] | None = None) -> Settings:
    namespace = parsed(*arguments)
    return load_settings(Settings, namespace, environment or {})


def test_a_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text("node-name: of-file\nrescan-seconds: 3\n")
    environment = {"NEURON_PLUGIN_NODE_NAME": "of-environment"}
    assert load() == Settings()
    assert load("--config", str(file)).node_name == "of-file"
    assert load("--config", str(file), environment=environment).node_name == "of-environment"
    given = load("--config", str(file), "--node-name", "of-flag", environment=environment)
    assert given == Settings(node_name="of-flag", rescan_seconds=3.0)


def test_the_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLUGIN_NODE_NAME", "of-process")
    assert load_settings(Settings, parsed()).node_name == "of-process"


def test_a_missing_file_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingsError, match=r"cannot read /nowhere\.yaml"):
        load("--config", "/nowhere.yaml")


def test_settings_are_printed_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert not printed_settings(Settings(), parsed())
    assert capsys.readouterr().out == ""


def test_what_is_printed_is_a_file_to_start_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Settings(node_name="n1", rescan_seconds=2.5)
    assert printed_settings(shown, parsed("--print-config"))
    file = tmp_path / "again.yaml"
    file.write_text(capsys.readouterr().out)
    assert load("--config", str(file)) == shown


def test_the_daemons_settings_do_not_collide_with_these_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--help", settings=PluginSettings)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "--print-config" in out
    assert "--no-cluster" in out
