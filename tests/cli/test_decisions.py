from __future__ import annotations

import json

import pytest
import yaml

from neuron_plugin.cli import decisions
from neuron_plugin.plugin.settings import PluginSettings
from tests.cli.doubles import Cli, Daemon


def test_json_has_everything(cli: Cli, daemon: Daemon) -> None:
    shown = json.loads(cli("decisions", "--server", daemon.address, "-o", "json").out)
    assert shown == {"version": 1, **json.loads(daemon.body)}, "what the daemon says"
    assert shown["decisions"][0]["time"].startswith("2026-09-14T02:19:10.678")
    assert yaml.safe_load(cli("decisions", "--server", daemon.address, "-o", "yaml").out) == shown


def test_more_candidates_than_are_shown_are_counted(cli: Cli, daemon: Daemon) -> None:
    said = json.loads(daemon.body)
    said["decisions"][0]["candidateCount"] = 9
    daemon.body = json.dumps(said).encode()
    assert ";+5" in cli("decisions", "--server", daemon.address).out


@pytest.mark.parametrize("body", [b"ok\n", b"[]", b"{}", b"", b'{"decisions": [{}]}', b'{"decisions": 1}'])
def test_another_server_is_recognised(cli: Cli, daemon: Daemon, body: bytes) -> None:
    daemon.body = body
    shown = cli("decisions", "--server", daemon.address)
    assert (shown.status, "is it a neuron-plugin?" in shown.err) == (1, True)


def test_a_daemon_without_that_page_is_recognised(cli: Cli, daemon: Daemon) -> None:
    daemon.status = 404
    shown = cli("decisions", "--server", daemon.address)
    assert (shown.status, "404" in shown.err) == (1, True)


def test_without_an_address_the_daemon_here_is_asked_by_its_settings(
    cli: Cli, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = PluginSettings(health_port=int(daemon.address.partition(":")[2]))
    monkeypatch.setattr(decisions, "settings_here", lambda: here)
    assert len(cli("decisions").out.splitlines()) == 4
