"""``neuron-plugin run`` as a process: settings in, signals, and what it prints when it cannot start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_plugin.cli.main import main
from neuron_plugin.plugin.settings import PluginSettings, check

COMMAND = [sys.executable, "-m", "neuron_plugin.cli.main", "run"]


def test_without_a_node_name_the_daemon_says_which_setting_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(["run"]) == 2
    assert "NODE_NAME" in capsys.readouterr().err


def test_the_downward_api_names_the_node_unless_a_setting_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "worker-1")
    assert main(["run", "--print-config"]) == 0
    assert "node-name: worker-1\n" in capsys.readouterr().out
    assert main(["run", "--node-name", "worker-2", "--print-config"]) == 0
    assert "node-name: worker-2\n" in capsys.readouterr().out


def test_print_config_shows_the_effective_settings_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("cdi: true\nnumbering: host\n")
    assert main(["run", "--config", str(file), "--numbering", "container", "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert "cdi: true" in shown
    assert "numbering: container" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cdii: true", "cdii"), ("cdi: 7", "cdi"), ("resources: [gpu]", "gpu"), ("- x", "config.yaml")],
)
def test_a_bad_config_file_is_one_line_that_names_the_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert main(["run", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_p22_without_driver_and_kubelet_it_stays_up_says_so_once_and_ends_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "dp").mkdir()
    flags = ["--no-cluster", "--sysfs", str(tmp_path / "sys"), "--dev", str(tmp_path / "dev")]
    flags += ["--kubelet-dir", str(tmp_path / "dp"), "--pod-resources-socket", str(tmp_path / "pr.sock")]
    process = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "no Neuron device" in line:
            break
    process.send_signal(signal.SIGTERM)
    lines += process.stderr.readlines()
    process.stderr.close()
    assert process.wait(timeout=10) == 0
    assert sum("no Neuron device" in line for line in lines) == 1
    assert not list((tmp_path / "dp").iterdir())


def test_sigusr1_has_the_daemon_log_its_stacks_and_go_on(tmp_path: Path) -> None:
    (tmp_path / "dp").mkdir()
    flags = ["--no-cluster", "--sysfs", str(tmp_path / "sys"), "--dev", str(tmp_path / "dev"), "--health-port", "0"]
    flags += ["--kubelet-dir", str(tmp_path / "dp"), "--pod-resources-socket", str(tmp_path / "pr.sock")]
    process = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    assert process.stderr is not None
    for line in process.stderr:
        if "no Neuron device" in line:
            process.send_signal(signal.SIGUSR1)
        if "task_name=hardware" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=10) == 0


def test_a_lease_that_one_late_renewal_would_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--node-name", "n", "--lease-renew-seconds", "5"]) == 2
    error = capsys.readouterr().err
    assert "lease-renew-seconds is 5" in error
    assert "at least 10" in error


@pytest.mark.parametrize("settings", [PluginSettings(), PluginSettings(node_lease=False, lease_renew_seconds=9)])
def test_defaults_and_a_lease_that_is_off_contradict_nothing(settings: PluginSettings) -> None:
    check(settings)
