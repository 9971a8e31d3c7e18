"""What Tab offers: asked as kubectl asks, and at a terminal of each shell that is there."""

from __future__ import annotations

import os
import pty
import select
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.cli.completion import SHELLS
from neuron_plugin.cli.main import COMMANDS
from neuron_plugin.cluster.api import ConnectionSettingsError
from neuron_plugin.cluster.client import Kubeconfig, KubernetesApi
from neuron_plugin.cluster.credentials import Overrides
from neuron_plugin.simulation.api_server_kinds import NAMESPACES
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Background, Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

SHELLS_ALONE = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
"""Each shell at a terminal, without what its user has configured."""
BEFORE = {
    "bash": "PS1='at your'' service'",
    "zsh": "PS1='at your'' service'; autoload -Uz compinit; compinit -u -D",
    "fish": "function fish_prompt; echo 'at your'' service'; end",
}
PROMPT = "at your service"
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A shell is interactive only at a terminal that is its session's."""
ANSWER_SECONDS = 30.0


@pytest.fixture
def offered(cli: Cli) -> Callable[..., set[str]]:
    """What is offered after these words, the last one not ended; "" begins a new one."""

    def ask(*words: str) -> set[str]:
        *lines, directive = cli("__complete", *words).out.splitlines()
        assert directive in {":0", ":4", ":16"}
        return {line.partition("\t")[0] for line in lines}

    return ask


Offered: TypeAlias = Callable[..., set[str]]


OFFERED = {
    "commands": ("de", {"demo", "devices", "decisions", "describe"}),
    "the flags of a command": ("topology --asc", {"--ascii"}),
    "not those of another": ("devices --asc", set()),
    "the flags of an action": ("simulate node --l", {"--lnc"}),
    "the choices of a flag": ("devices -o ", {"text", "wide", "json", "yaml"}),
    "those of a setting": ("run --numbering ", {"auto", "host", "container"}),
    "those of an argument": ("manifests s", {"second-scheduler"}),
    "a value behind an equals sign": ("devices --output=j", {"--output=json"}),
    "the same as bash splits it": ("devices --output = j", {"json"}),
    "a value after a flag that takes none": ("pods -A -o na", {"name"}),
    "nothing of an unknown command": ("nosuch ", set()),
    "nothing of an unknown flag": ("devices --nosuch=", set()),
    "instance types, though others may be given": (
        "simulate node --type trn1",
        {name for name in catalogue() if name.startswith("trn1")},
    ),
}
"""What is typed, and what is offered then."""


@pytest.mark.parametrize(("typed", "expected"), OFFERED.values(), ids=OFFERED)
def test_what_is_offered(offered: Offered, typed: str, expected: set[str]) -> None:
    assert offered(*typed.split(" ")) == expected


def test_what_is_offered_among_others(offered: Offered, cli: Cli, tmp_path: Path) -> None:
    assert offered("") == set(COMMANDS)
    assert {"--kubelet-dir", "--kubeconfig"} <= offered("run", "--kube")
    assert "device-nodes" in offered("doctor", "dev")
    assert "core-errors" in offered("simulate", "fault", "./trn1", ""), "what breaks comes after the machine"
    assert "TYPE" not in offered("pods", "-A", "--watch", "-o", "")
    assert cli("simulate", "node", tmp_path / "n", "--type", "trn7.xlarge").err.startswith("neuron-plugin: --type trn7")


def test_paths_are_left_to_the_shell_where_a_path_is_meant(cli: Cli) -> None:
    for words, directive in (
        (("devices", "--root", ""), ":16"),
        (("run", "--config", ""), ":0"),
        (("simulate", "fault", ""), ":16"),
        (("run", "--node-name", ""), ":4"),
    ):
        assert cli("__complete", *words).out == f"{directive}\n", words


def test_the_cluster_is_asked_as_the_typed_flags_say(offered: Offered, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    async def connect(source: object) -> KubernetesApi:
        asked.append(source)
        raise ConnectionSettingsError("not here")

    monkeypatch.setattr("neuron_plugin.cli.cluster.connect", connect)
    words = ("-s", "https://api.example", "--insecure-skip-tls-verify", "--request-timeout", "5s", "--as", "anna")
    assert offered("describe", "node", *words, "--as-group", "g1", "--as-group=g2", "") == set()
    expected = Overrides(
        of_cluster={"server": "https://api.example", "insecure_skip_tls_verify": True},
        of_user={"as_": "anna", "as_groups": ("g1", "g2")},
    )
    assert asked == [Kubeconfig((), expected)]


class Typist:
    """A person at a shell, whose ``neuron-plugin`` prints its words where it is not asked for completions."""

    def __init__(self, shell: str, directory: Path) -> None:
        wrapper = directory / "bin/neuron-plugin"
        wrapper.parent.mkdir()
        wrapper.write_text(
            f'#!/bin/sh\n[ "$1" = __complete ] && exec {sys.executable} -m neuron_plugin "$@"\necho "RAN[$*]"\n'
        )
        wrapper.chmod(stat.S_IRWXU)
        self._seen = b""
        environment = {
            "HOME": str(directory),
            "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path.cwd()),
        }
        self._terminal, theirs = pty.openpty()
        self._shell = subprocess.Popen(  # noqa: S603 - our own words
            [sys.executable, "-c", OWN_TERMINAL, *SHELLS_ALONE[shell]],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**os.environ, **environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)

    def types(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def reads(self, until: str) -> str:
        """What is printed up to ``until``."""
        end = time.monotonic() + ANSWER_SECONDS
        while until.encode() not in self._seen:
            assert select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0], self._seen
            self._seen += os.read(self._terminal, 1 << 16)
        printed, _, self._seen = self._seen.partition(until.encode())
        return printed.decode(errors="replace")

    def leaves(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_at_the_terminal_of_every_shell(cli: Cli, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "trn1").mkdir()
    (tmp_path / "trn.yaml").touch()
    (tmp_path / "script").write_text(cli("completion", shell).out)
    typist = Typist(shell, tmp_path)
    try:
        typist.types(f"{BEFORE[shell]}; source ./script")
        for typed, run in (
            ("topol\t--asc\t", "topology --ascii"),
            ("devices --output=js\t", "devices --output=json"),
            ("devices --root tr\t", "devices --root trn1"),
            ("run --config trn.\t", "run --config trn.yaml"),
        ):
            typist.reads(PROMPT)  # which a shell prints when it takes keys
            typist.types(f"neuron-plugin {typed}")
            typist.reads("RAN[")
            assert typist.reads("]").rstrip("/") == run
    finally:
        typist.leaves()


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

    assert asked("cordon", "t") == asked("doctor", "t") == ["trn-1", ":4"]
    assert asked("explain", "") == ["train-0", ":4"]
    assert asked("explain", "-n", "ml", "") == ["serve-0", ":4"]
    assert asked("explain", "ml/") == ["ml/serve-0", ":4"]
    assert "ml" in asked("pods", "--namespace", "m")
    assert asked("nodes", "--context", "") == ["simulated", ":4"]
    background.do(server.stop())
    assert asked("cordon", "t") == [":4"], "without a cluster nothing, and no word"


def test_another_shell_is_refused_by_name(cli: Cli) -> None:
    shown = cli("completion", "tcsh")
    assert (shown.status, shown.out) == (2, "")
    assert "'tcsh'" in shown.err
