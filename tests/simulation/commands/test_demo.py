"""The demo, as a newcomer runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.cli.command import Exit
from neuron_plugin.cli.main import main
from neuron_plugin.kubelet.socket_watch import endpoint_path
from neuron_plugin.simulation import NODE_NAME, SimulatedCluster
from neuron_plugin.simulation.commands.demo import LONGEST_ROOT_BYTES, EndOnSignals
from neuron_plugin.simulation.commands.playground import LONGEST_DIRECTORY_BYTES
from tests.cli.doubles import Cli

pytestmark = pytest.mark.timeout(180)  # real daemons on a machine that may be busy

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the demo was played once, with what it printed in ``printed``."""
    directory = tmp_path_factory.mktemp("demo")
    capture = pytest.MonkeyPatch()
    lines: list[str] = []
    capture.setattr("builtins.print", lambda *texts, **_: lines.append(" ".join(map(str, texts))))
    try:
        assert main(["demo", "--numbering", "host", "--keep", str(directory)]) == 0
    finally:
        capture.undo()
    (directory / "printed").write_text("\n".join(lines))
    for name in ("node-1/plugin.log", "extender.log"):
        assert "Traceback" not in ((directory / name).read_text() or "Traceback"), "no daemon complains"
    return directory


@pytest.mark.parametrize(
    "said",
    [
        *(f"\n {step:>2}  " for step in range(1, 12)),
        "pod train is created with the gate neuron-plugin.io/placement",
        "one request writes the set on the pod: NEURON_DEVS: 0|4,5,6,7",
        "--env AWS_NEURON_VISIBLE_DEVICES=4,5,6,7",
        "NEURON_CORES: 2,3",
        "server: --device=/dev/neuron1:/dev/neuron1 --env NEURON_RT_VISIBLE_CORES=2,3",
        "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number",
        "0 of 1 Neuron node: 1 has 20 of 32 cores free. In the way: default/train, default/serve",
        "aws.amazon.com/neuron has 16 devices and 10 to give",
        "default/train: loader device 0, trainer devices 4-7",
        "default/serve: server cores 2-3",
    ],
)
def test_every_step_of_the_flow_is_reported(played: Path, said: str) -> None:
    assert said in (played / "printed").read_text()


def test_the_scheduler_asks_the_extender_where_that_is_wanted(cli: Cli) -> None:
    shown = cli("demo", "--placement", "extender", "--ask", "neuron=4", "--ask", "neuron=7")
    assert shown.status == 0
    assert "the scheduler calls the extender's bind with node node-1" in shown.out
    assert "refused. The pod stays Pending" in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--type", "trn7.xlarge", "--ask", "neuron=1"), "--type trn7.xlarge is not known"),
        (("--type", "inf2.xlarge"), "give --ask"),
        (("--ask", "gpu=1"), "expected one of neuron, neurondevice, neuroncore"),
        (("--ask", "neuron"), "'neuron' is no request"),
        (("--ask", "neuron=0"), "'neuron=0' is no request"),
        (("--ask", "neuron=1,"), "'' is no request"),
        (("--ask", "neuron=999999999999999999999"), "a count from 1 to 9999"),
        (("--ask", "neuron=" + "9" * 5000), "a count from 1 to 9999"),
    ],
)
def test_a_request_that_cannot_be_meant_is_reported_before_anything_starts(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    shown = cli("demo", *arguments)
    assert (shown.status, shown.out) == (2, "")
    assert said in shown.err


def test_a_cluster_that_does_not_come_up_in_time_is_reported_and_leaves_nothing_behind(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SimulatedCluster] = []

    async def never_ready(self: SimulatedCluster) -> None:
        started.append(self)
        raise TimeoutError

    monkeypatch.setattr(SimulatedCluster, "_start_extender", never_ready)
    shown = cli("demo")
    assert (shown.status, shown.err.count("\n")) == (1, 1)
    assert "is this machine very busy?" in shown.err
    (cluster,) = started
    assert cluster.worker.daemon is None, "the plugin was ended"


def test_a_directory_in_use_or_too_long_for_sockets_is_refused_at_once(
    cli: Cli, short_directory: Path, tmp_path: Path
) -> None:
    (short_directory / "node-1").mkdir()
    (short_directory / "node-1/mine").touch()
    shown = cli("demo", "--keep", short_directory)
    assert shown.status == 2
    assert shown.err == f"neuron-plugin: {short_directory}/node-1 is not empty: choose another directory or empty it\n"
    shown = cli("demo", "--keep", tmp_path / ("x" * LONGEST_ROOT_BYTES))
    assert (shown.status, "give --keep a shorter directory" in shown.err) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_the_demo_ends_its_daemons_and_leaves_no_directory(
    short_directory: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(short_directory), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "neuron_plugin", "demo"]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while b"the plugin found the devices" not in process.stdout.readline():
            assert process.poll() is None
        for _ in range(3):  # nobody is patient, and it ends in order nevertheless
            process.send_signal(number)
            time.sleep(0.1)
        _, complaints = process.communicate(timeout=30)
    assert complaints == b""
    assert process.returncode == Exit.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not list(short_directory.iterdir())


def test_a_signal_before_the_work_begins_ends_it_and_later_ones_are_ignored() -> None:
    worked: list[str] = []
    ending_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ending_signals}

    async def work() -> None:
        worked.append("begun")

    with EndOnSignals() as unneeded:
        unneeded.run(work)
    assert (worked.pop(), {number: signal.getsignal(number) for number in ending_signals}) == ("begun", before)
    try:
        with EndOnSignals() as ending:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(asyncio.CancelledError):
                ending.run(work)
            os.kill(os.getpid(), signal.SIGINT)
        assert worked == []
        for number in ending_signals:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(("length", "node"), [(LONGEST_ROOT_BYTES, NODE_NAME), (LONGEST_DIRECTORY_BYTES, "trn1n-16")])
def test_the_longest_directory_leaves_room_for_every_socket(short_directory: Path, length: int, node: str) -> None:
    root = short_directory / ("x" * (length - len(str(short_directory)) - 1))
    worker = SimulatedCluster(root, {node: "inf2.xlarge"}).worker
    for resource in Resource:
        assert endpoint_path(worker.kubelet_dir, resource.value, "0a1b2c3d").is_absolute()
