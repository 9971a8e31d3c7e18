"""Commands run in this process, on simulated machines, with a kubelet that says what a test wants."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_plugin.cli.main import main
from neuron_plugin.inspection import holders
from tests.cli.cases import NODES, PODS
from tests.cli.doubles import Background, Cli, CliProcess, Daemon, Hold, Outcome
from tests.inspection.doubles import Container, Pod, make_node, short_directory, usual_file
from tests.support.api_server import StandInApiServer

REPOSITORY = Path(__file__).parents[2]

__all__ = ["make_node", "short_directory", "usual_file"]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run ``neuron-plugin`` with some arguments."""
    for name in [name for name in os.environ if name.startswith("NEURON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["neuron-plugin"])  # as hints call it

    def run(*arguments: object) -> Outcome:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def cli_process() -> CliProcess:
    """Start ``neuron-plugin`` as a process of its own, with pipes."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "neuron_plugin.cli.main", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"},
        )

    return start


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Let PodResources list these pods beside a checkpoint without entries: (pod, container, resource, ids) each."""

    def say(*held: tuple[str, str, str, str]) -> None:
        def ask(_socket: Path) -> tuple[Pod, ...]:
            return tuple(
                Pod("default", pod, (Container(container, f"aws.amazon.com/{resource}", tuple(ids.split(","))),))
                for pod, container, resource, ids in held
            )

        monkeypatch.setattr(holders, "ask_kubelet", ask)
        monkeypatch.setattr(holders, "read_recorded", lambda _directory: ())

    return say


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background()
    yield background
    background.close()


@pytest.fixture
def empty_server(background: Background) -> Iterator[StandInApiServer]:
    server = StandInApiServer()
    background.do(server.start())
    yield server
    background.do(server.stop())


@pytest.fixture
def server(empty_server: StandInApiServer) -> StandInApiServer:
    for node in NODES:
        empty_server.create_node(node)
    for pod in PODS:
        empty_server.create_pod(pod)
    return empty_server


@pytest.fixture
def kubeconfig(server: StandInApiServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    serving = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()
