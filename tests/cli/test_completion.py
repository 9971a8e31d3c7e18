"""The scripts do in a shell what they are for: in bash, which is wherever these tests run, and others if installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from neuron_plugin.cli.completion import SHELLS
from neuron_plugin.cli.main import COMMANDS
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Cli

PRESS_TAB = """
source "$1"; shift
complete -p neuron-plugin > /dev/null || exit 3
COMP_WORDS=(neuron-plugin "$@") COMP_CWORD=$#
_shtab_neuron_plugin
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Completes the last of its words, as bash has a completion function do."""


@pytest.fixture
def bash(cli: Cli, tmp_path: Path) -> Path:
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash").out)
    return script


def offered(script: Path, *words: str) -> set[str]:
    """What Tab offers after these words, the last one not ended; "" begins a new one."""
    command = ["bash", "--norc", "-c", PRESS_TAB, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=script.parent)  # noqa: S603 - our own words
    assert done.stderr == ""
    return set(done.stdout.split())


def test_commands_are_offered(bash: Path) -> None:
    assert offered(bash, "") == set(COMMANDS)
    assert offered(bash, "de") == {"demo", "devices", "decisions"}


def test_flags_are_those_of_the_command(bash: Path) -> None:
    assert offered(bash, "topology", "--a") == {"--ascii"}
    assert offered(bash, "devices", "--a") == set()
    assert {"--kubelet-dir", "--kubeconfig"} <= offered(bash, "run", "--kube")
    assert offered(bash, "simulate", "node", "--l") == {"--lnc"}


def test_choices_of_a_flag_are_offered(bash: Path) -> None:
    assert offered(bash, "devices", "-o", "") == {"text", "wide", "json", "yaml"}
    assert offered(bash, "run", "--numbering", "") == {"auto", "host", "container"}
    assert offered(bash, "manifests", "s") == {"second-scheduler"}


def test_instance_types_and_checks_are_offered_though_others_may_be_given(bash: Path, cli: Cli, tmp_path: Path) -> None:
    assert offered(bash, "simulate", "node", "--type", "trn1") == {
        name for name in catalogue() if name.startswith("trn1")
    }
    assert "device-nodes" in offered(bash, "doctor", "dev")
    assert cli("simulate", "node", tmp_path / "n", "--type", "trn7.xlarge").err.startswith("neuron-plugin: --type trn7")


def test_paths_are_offered_where_a_path_is_meant(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "trn1").mkdir()
    (tmp_path / "trn.yaml").touch()
    assert offered(bash, "devices", "--root", "tr") == {"trn1"}, "a directory"
    assert offered(bash, "run", "--config", "tr") == {"trn1", "trn.yaml"}, "a file, or a way to one"
    assert offered(bash, "simulate", "fault", "tr") == {"trn1"}
    assert offered(bash, "run", "--node-name", "tr") == set()


def test_what_breaks_is_offered_after_the_machine(bash: Path) -> None:
    assert "core-errors" in offered(bash, "simulate", "fault", "./trn1", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_can_read_its_script(cli: Cli, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    shown = cli("completion", shell)
    script = tmp_path / "script"
    script.write_text(shown.out)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert (shown.status, done.returncode, done.stderr) == (0, 0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_knows_commands_flags_and_types(cli: Cli, shell: str) -> None:
    out = cli("completion", shell).out
    for word in ("scheduler-config", "pod-resources-socket", "trn2.48xlarge"):
        assert word in out


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_command_is_offered_with_one_line_about_it(cli: Cli, shell: str) -> None:
    out = cli("completion", shell).out
    assert "find out what is wrong with this node" in out
    assert "Look at everything between" not in out


def test_another_shell_is_refused_by_name(cli: Cli) -> None:
    shown = cli("completion", "tcsh")
    assert (shown.status, shown.out) == (2, "")
    assert "'tcsh'" in shown.err
