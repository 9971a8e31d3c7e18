from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from neuron_plugin.allocation import Resource
from neuron_plugin.cli import doctor
from neuron_plugin.cli.command import Exit, Form, show
from neuron_plugin.cli.doctor import report_lines
from neuron_plugin.inspection.checks import CHECKS
from neuron_plugin.inspection.findings import Finding, Level, Unknown, note, ok, problem, report_of, unchecked, warning
from neuron_plugin.kubelet.socket_watch import endpoint_path
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import as_yaml
from neuron_plugin.simulation import KubeletContainer, KubeletPod, SimulatedNode, write_node
from neuron_plugin.simulation.api_server_kinds import NODES
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode
from tests.support.api_server import StandInApiServer
from tests.support.kubelet import StandInKubelet
from tests.support.manifests import pod_manifest

REPOSITORY = Path(__file__).parents[2]


def test_a_healthy_simulated_machine_has_no_problem(cli: Cli, make_node: MakeNode) -> None:
    shown = cli("doctor", "--root", make_node("inf2.24xlarge").root)
    assert (shown.status, shown.err) == (0, "")
    assert {row[0] for row in shown.rows if row} == {"ok", "note", "do", "no"}
    assert shown.out.splitlines()[-1].startswith("no problem, ")
    checked = {row[1] for row in shown.rows if row and row[0] in {"ok", "note"}}
    assert checked == {check.name for check in CHECKS}


def test_a_broken_one_has_and_exits_with_1(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.remove_node(3)
    shown = cli("doctor", "--root", node.root)
    assert shown.status == 1
    assert f"no {node.paths.dev}/neuron3" in shown.out


def test_checks_can_be_chosen_and_come_in_the_usual_order(cli: Cli, make_node: MakeNode) -> None:
    shown = cli("doctor", "--root", make_node("trn1.2xlarge").root, "health", "driver", "-o", "json")
    assert [finding["check"] for finding in json.loads(shown.out)["findings"]] == ["driver", "health"]


@pytest.mark.parametrize("words", [("drivers", "--root", "."), ("driver", "trn-1"), ("trn-1", "trn-2")])
def test_a_check_that_does_not_exist_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    shown = cli("doctor", *words)
    assert (shown.status, shown.out) == (2, "")
    assert "there is no check" in shown.err
    assert ": choose among driver, devices," in shown.err


def test_the_checks_are_listed_without_being_made(cli: Cli) -> None:
    shown = cli("doctor", "--list", "--root", "/nonexistent")
    assert shown.status == 0
    assert [row[0] for row in shown.rows[1:]] == [check.name for check in CHECKS]


def test_a_kubelet_directory_that_was_named_has_to_be_there(cli: Cli, make_node: MakeNode, tmp_path: Path) -> None:
    root = make_node("trn1.2xlarge").root
    assert cli("doctor", "--root", root, "kubelet").status == 0
    shown = cli("doctor", "--root", root, "--kubelet-dir", tmp_path / "nothing", "kubelet")
    assert shown.status == 1
    assert f"there is no directory {tmp_path / 'nothing'}" in shown.out


@pytest.mark.parametrize("arguments", [("--root", "/nonexistent"), ("--instance-type", "trn9.48xlarge")])
def test_a_machine_that_cannot_be_looked_at_is_one_line(cli: Cli, arguments: tuple[str, str]) -> None:
    shown = cli("doctor", *arguments)
    assert (shown.status, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1


def test_a_look_at_the_machine_alone_loads_neither_grpc_nor_rich(make_node: MakeNode) -> None:
    code = "import sys; from neuron_plugin.cli.main import main; main(sys.argv[1:]); "
    code += "print(sorted({'grpc', 'rich', 'aiohttp', 'kubernetes'} & set(sys.modules)))"
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code, "doctor", "--root", str(make_node("trn1.2xlarge").root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


# Against a running node daemon.


class Node:
    """A simulated node with stand-ins for kubelet and API server, and our daemon in this process."""

    def __init__(self, root: Path, api: StandInApiServer, kubelet: StandInKubelet, node: SimulatedNode) -> None:
        self.root = root
        self.directory = root / "device-plugins"
        self.api = api
        self.kubelet = kubelet
        self.machine = node
        self.kubeconfig = api.write_kubeconfig(root / "kubeconfig")
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.health_port = server.getsockname()[1]
        self.configuration = root / "config.yaml"
        self.configuration.write_text(as_yaml(self.settings()))

    def settings(self) -> PluginSettings:
        return PluginSettings(
            node_name="worker-1",
            kubeconfig=self.kubeconfig,
            sysfs=self.machine.paths.sysfs,
            dev=self.machine.paths.dev,
            logical_core_file=self.machine.paths.logical_nc_config,
            kubelet_dir=self.directory,
            plugins_registry=self.root / "registry",
            pod_resources_socket=self.root / "pod-resources/kubelet.sock",
            state_dir=self.root / "state",
            health_port=self.health_port,
        )

    async def until_it_is_in_the_cluster(self) -> None:
        """The daemon follows this node's pods, and has published what the node has."""
        async with asyncio.timeout(10):
            while not (self.api.open_watches and "annotations" in self.api.get(NODES, "worker-1")["metadata"]):
                await asyncio.sleep(0.02)

    async def run_pod(self, name: str, resource: Resource, count: int, **annotations: str) -> str:
        """Create, bind and admit a pod; its UID."""
        manifest = pod_manifest(name, resource, count, annotations=annotations, node="worker-1")
        uid = str(manifest["metadata"]["uid"])
        self.api.create_pod(manifest)
        await self.kubelet.admit(KubeletPod(uid, "default", name, (KubeletContainer("main", {resource.value: count}),)))
        self.api.set_pod_status("default", name, {"phase": "Running"})
        return uid


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    root = Path(tempfile.mkdtemp())
    for name in ("device-plugins", "pod-resources", "plugins_registry"):
        (root / name).mkdir()
    machine = write_node(root / "node", "inf2.24xlarge", usage_counters=False)
    stop = asyncio.Event()
    async with (
        StandInApiServer() as api,
        StandInKubelet(root / "device-plugins", root / "pod-resources") as kubelet,
        asyncio.TaskGroup() as tasks,
    ):
        api.create_node({"metadata": {"name": "worker-1"}})
        found = Node(root, api, kubelet, machine)
        tasks.create_task(NodeDaemon(found.settings(), catalogue()).run(stop), name="daemon")
        for resource, count in ((Resource.NEURON, 6), (Resource.NEURONDEVICE, 6), (Resource.NEURONCORE, 12)):
            await kubelet.wait_for_capacity(resource.value, count)
        await found.until_it_is_in_the_cluster()
        yield found
        stop.set()
    shutil.rmtree(root)


Found = dict[str, list[tuple[str, str]]]
"""Level and text of the findings, by check."""


async def findings(cli: Cli, node: Node, *checks: str) -> tuple[int, Found]:
    """What the doctor says of the node, given nothing but the daemon's configuration, and its exit status."""
    shown = await asyncio.to_thread(cli, "doctor", "--config", node.configuration, "-o", "json", *checks)
    found: Found = {}
    for finding in json.loads(shown.out)["findings"]:
        found.setdefault(finding["check"], []).append((finding["level"], finding["seen"]))
    return shown.status, found


async def settled(cli: Cli, node: Node, *checks: str) -> tuple[int, Found]:
    """The same, as soon as the daemon has written to the API server what it has to write."""
    async with asyncio.timeout(20):
        while True:
            status, found = await findings(cli, node, *checks)
            if not any(level == "warning" for each in found.values() for level, _ in each):
                return status, found
            await asyncio.sleep(0.1)


async def test_a_healthy_node_with_pods_is_fine_in_every_check(cli: Cli, node: Node) -> None:
    await node.run_pod(
        "train", Resource.NEURONDEVICE, 2, NEURON_DEVS="2,3", NEURON_ALLOC_TIME="1", NEURON_ALLOCATED="false"
    )
    await node.run_pod("infer", Resource.NEURONCORE, 1)
    status, found = await settled(cli, node)
    assert status == 0
    seen = {check: {level for level, _ in each} for check, each in found.items() if check != "processes"}
    assert seen == {check.name: {"ok"} for check in CHECKS if check.name != "processes"}
    assert "2 pods with 5 logical cores" in found["holders"][0][1]


async def test_a_second_plugin_and_the_vendors_are_found_beside_ours(cli: Cli, node: Node) -> None:
    others = [
        node.directory / "neuron-devplugin.sock",
        endpoint_path(node.directory, Resource.NEURONCORE.value, "other"),
    ]
    with socket.socket(socket.AF_UNIX) as vendors, socket.socket(socket.AF_UNIX) as second:
        for server, path in zip((vendors, second), others, strict=True):
            server.bind(str(path))
            server.listen()
        status, found = await findings(cli, node, "plugin", "vendor-plugin")
    assert status == 1
    assert "2 plugins serve aws.amazon.com/neuroncore" in str(found["plugin"])
    assert "no answer within" in str(found["plugin"])
    assert found["vendor-plugin"][0][0] == "problem"


async def test_a_pod_that_the_kubelet_does_not_know_and_a_sick_device_under_a_pod_are_found(
    cli: Cli, node: Node
) -> None:
    await node.run_pod(
        "train", Resource.NEURONDEVICE, 1, NEURON_DEVS="2", NEURON_ALLOC_TIME="1", NEURON_ALLOCATED="false"
    )
    annotations = {"NEURON_DEVS": "5", "NEURON_ALLOCATED": "true"}
    node.api.create_pod(pod_manifest("lost", Resource.NEURONDEVICE, 1, annotations=annotations, node="worker-1"))
    node.api.set_pod_status("default", "lost", {"phase": "Running"})
    node.machine.set_ecc(2, memory=1)
    status, found = await findings(cli, node, "annotations", "holders", "health")
    assert status == 1
    assert "default/lost/main: annotated aws.amazon.com/neurondevice 5, the kubelet gave nothing" in str(found)
    assert "default/train/main (aws.amazon.com/neurondevice) runs on device 2" in str(found["holders"])


DRIVER, DEVICES = CHECKS[0].name, CHECKS[1].name


def examined(*findings: Finding, check: str = DRIVER) -> list[Finding]:
    return [msgspec.structs.replace(finding, check=check) for finding in findings]


def text_of(capsys: pytest.CaptureFixture[str], found: list[Finding]) -> list[str]:
    show(Form.TEXT, report_of(found), report_lines(report_of(found)))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (ok("fine"), Exit.SUCCESS),
        (note("by the way"), Exit.SUCCESS),
        (unchecked(Unknown("no permission")), Exit.SUCCESS),
        (warning("hm", "because", "do"), Exit.SUCCESS),
        (problem("no", "because", "do"), Exit.FAILURE),
    ],
)
def test_only_a_problem_is_a_failure(
    cli: Cli, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, finding: Finding, status: Exit
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: examined(ok("fine"), finding, ok("fine")))
    assert cli("doctor", "--root", make_node("trn1.2xlarge").root).status == status


def test_the_worst_level_is_in_the_report() -> None:
    assert report_of(examined(warning("a", "b", "c"), problem("a", "b", "c"), ok("a"))).worst is Level.PROBLEM
    assert report_of([]).worst is Level.OK


def test_the_same_remedy_of_two_checks_is_said_twice_unless_they_could_not_be_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = unchecked(Unknown("no kubelet", "start it"))
    lines = text_of(capsys, [*examined(unknown), *examined(unknown, check=DEVICES)])
    assert sum("start it" in line for line in lines) == 1
    broken = problem("no", "", "start it")
    lines = text_of(capsys, [*examined(broken), *examined(broken, check=DEVICES)])
    assert sum("start it" in line for line in lines) == 2


def test_nothing_that_was_found_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in "".join(text_of(capsys, examined(problem("\x1b[2J", "\x1b", "\x07"))))


def test_json_and_yaml_are_one_document_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(examined(unchecked(Unknown("no permission", "run this as root"))))
    show(Form.JSON, report, report_lines(report))
    as_json = json.loads(capsys.readouterr().out)
    show(Form.YAML, report, report_lines(report))
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert as_json == {
        "version": 1,
        "worst": "note",
        "findings": [
            {
                "check": "driver",
                "level": "note",
                "checked": False,
                "seen": "not checked: no permission",
                "why": "",
                "action": "run this as root",
            }
        ],
    }
