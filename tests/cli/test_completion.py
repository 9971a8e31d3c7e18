"""What Tab offers: asked as kubectl asks, and once through the script of bash, which is wherever these tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.cli.completion import SHELLS
from neuron_plugin.cli.main import COMMANDS
from neuron_plugin.simulation.api_server_kinds import NAMESPACES
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Background, Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

PRESS_TAB = """
source "$1"; shift
complete -p neuron-plugin > /dev/null || exit 3
COMP_WORDS=(neuron-plugin "$@") COMP_CWORD=$#
_neuron_plugin
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Completes the last of its words, as bash has a completion function do."""


@pytest.fixture
def offered(cli: Cli) -> Callable[..., set[str]]:
    """What is offered after these words, the last one not ended; "" begins a new one."""

    def ask(*words: str) -> set[str]:
        *lines, directive = cli("__complete", *words).out.splitlines()
        assert directive in {":0", ":4", ":16"}
        return {line.partition("\t")[0] for line in lines}

    return ask


Offered: TypeAlias = Callable[..., set[str]]


def test_commands_are_offered(offered: Offered) -> None:
    assert offered("") == set(COMMANDS)
    assert offered("de") == {"demo", "devices", "decisions", "describe"}


def test_flags_are_those_of_the_command(offered: Offered) -> None:
    assert offered("topology", "--a") == {"--ascii"}
    assert offered("devices", "--a") == set()
    assert {"--kubelet-dir", "--kubeconfig"} <= offered("run", "--kube")
    assert offered("simulate", "node", "--l") == {"--lnc"}


def test_choices_of_a_flag_are_offered(offered: Offered) -> None:
    assert offered("devices", "-o", "") == {"text", "wide", "json", "yaml"}
    assert offered("run", "--numbering", "") == {"auto", "host", "container"}
    assert offered("manifests", "s") == {"second-scheduler"}


def test_instance_types_and_checks_are_offered_though_others_may_be_given(
    offered: Offered, cli: Cli, tmp_path: Path
) -> None:
    assert offered("simulate", "node", "--type", "trn1") == {name for name in catalogue() if name.startswith("trn1")}
    assert "device-nodes" in offered("doctor", "dev")
    assert cli("simulate", "node", tmp_path / "n", "--type", "trn7.xlarge").err.startswith("neuron-plugin: --type trn7")


def test_paths_are_left_to_the_shell_where_a_path_is_meant(cli: Cli) -> None:
    for words, directive in (
        (("devices", "--root", ""), ":16"),
        (("run", "--config", ""), ":0"),
        (("simulate", "fault", ""), ":16"),
        (("run", "--node-name", ""), ":4"),
    ):
        assert cli("__complete", *words).out == f"{directive}\n", words


def test_a_value_may_stand_behind_an_equals_sign(offered: Offered) -> None:
    assert offered("devices", "--output=j") == {"--output=json"}
    assert offered("devices", "--output", "=", "j") == {"json"}, "as bash splits it"


def test_a_flag_that_takes_no_value_takes_none(offered: Offered) -> None:
    assert "TYPE" not in offered("pods", "-A", "--watch", "-o", "")
    assert offered("pods", "-A", "-o", "na") == {"name"}


def test_what_is_not_known_offers_nothing(offered: Offered) -> None:
    assert offered("nosuch", "") == set()
    assert offered("devices", "--nosuch=") == set()


def test_bash_offers_it_too_and_finds_paths_itself(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trn1").mkdir()
    (tmp_path / "trn.yaml").touch()
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash").out)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def pressed(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", PRESS_TAB, "bash", str(script), *words]
        done = subprocess.run(  # noqa: S603 - our own words
            command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
        )
        assert done.stderr == ""
        return set(done.stdout.split())

    assert pressed("de") == {"demo", "devices", "decisions", "describe"}
    assert pressed("devices", "--root", "tr") == {"trn1"}, "a directory"
    assert pressed("run", "--config", "tr") == {"trn1", "trn.yaml"}, "a file, or a way to one"


def test_names_come_from_the_cluster_that_the_words_mean(
    cli: Cli, background: Background, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = StandInApiServer()
    background.do(server.start())
    server.create_node(node_manifest("trn-1", "trn1.32xlarge"))
    server.create(NAMESPACES, {"metadata": {"name": "ml"}}, "")
    for name, namespace in (("train-0", "default"), ("serve-0", "ml")):
        pod = pod_manifest(name, Resource.NEURON, 1)
        server.create_pod({**pod, "metadata": {**pod["metadata"], "namespace": namespace}})
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl_complete-neuron"])

    def asked(*words: str) -> list[str]:
        return cli(*words).out.splitlines()

    assert asked("cordon", "t") == ["trn-1", ":4"]
    assert asked("explain", "") == ["train-0", ":4"]
    assert asked("explain", "-n", "ml", "") == ["serve-0", ":4"]
    assert asked("explain", "ml/") == ["ml/serve-0", ":4"]
    assert "ml" in asked("pods", "--namespace", "m")
    assert asked("nodes", "--context", "") == ["simulated", ":4"]
    background.do(server.stop())
    assert asked("cordon", "t") == [":4"], "without a cluster nothing, and no word"


def test_what_breaks_is_offered_after_the_machine(offered: Offered) -> None:
    assert "core-errors" in offered("simulate", "fault", "./trn1", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_can_read_its_script(cli: Cli, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    shown = cli("completion", shell)
    script = tmp_path / "script"
    script.write_text(shown.out)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert (shown.status, done.returncode, done.stderr) == (0, 0, "")


def test_another_shell_is_refused_by_name(cli: Cli) -> None:
    shown = cli("completion", "tcsh")
    assert (shown.status, shown.out) == (2, "")
    assert "'tcsh'" in shown.err
