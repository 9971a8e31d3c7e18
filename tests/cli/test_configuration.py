from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from neuron_plugin.cli.command import Parser
from neuron_plugin.cli.configuration import add_settings, load_settings, printed_settings, settings_here
from neuron_plugin.extender import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError


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


def test_a_file_that_is_neither_daemon_s_is_told_as_the_plugin_s(usual_file: Path) -> None:
    usual_file.write_text("helth-port: 1\n")
    with pytest.raises(SettingsError, match="unknown key 'helth-port'"):
        settings_here()
