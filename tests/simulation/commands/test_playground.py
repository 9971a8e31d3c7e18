"""The playground, as a newcomer uses it: one shell in which it is up, and commands in a second one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_plugin.cli.command import Exit
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.simulation.commands.playground import LONGEST_DIRECTORY_BYTES
from neuron_plugin.simulation.commands.playground_client import SETTLE_SECONDS
from tests.cli.doubles import Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest
from tests.support.playground import Playground

pytestmark = pytest.mark.timeout(180)  # real daemons on a machine that may be busy

TWO_CONTAINERS = """
apiVersion: v1
kind: Pod
metadata: {name: mine, namespace: team}
spec:
  containers:
  - {name: first, image: x, resources: {limits: {aws.amazon.com/neuron: 1}}}
  - {name: second, image: x, resources: {limits: {aws.amazon.com/neuroncore: 2}}}
"""


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    """One Inf2 of six devices and one of twelve, up for all tests here."""
    with Playground("--nodes", "inf2.24xlarge=1,inf2.48xlarge=1,cpu=0") as up:
        yield up


def test_a_pod_is_placed_and_another_refused(playground: Playground) -> None:
    playground.clear()  # together the pods of other tests may fill it
    answer = playground.run("run", "--ask", "neuron=2,neuroncore=1", "--ask", "neuron=13")
    assert re.search(r"^pod default/pod-\d+ runs on inf2-\d, NEURON_DEVS: ", answer, re.MULTILINE)
    assert re.search(r"waits: .*has (6|12) Neuron devices and 13 were requested", answer)
    playground.wait_for("container-1 receives --device=/dev/neuron")


LEADER_FIRST = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: NAME
  annotations: {leaderworkerset.sigs.k8s.io/exclusive-topology: LABEL}
spec:
  leaderWorkerTemplate:
    size: 3
    workerTemplate:
      metadata: {annotations: {neuron-plugin.io/group: NAME, neuron-plugin.io/group-size: "3"}}
      spec:
        containers: [{name: m, image: x, resources: {limits: {aws.amazon.com/neuron: 1}}}]
"""


def test_workers_are_made_where_their_leader_is_and_the_group_does_not_deadlock(
    playground: Playground, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        text = LEADER_FIRST.replace("NAME", name).replace("LABEL", "kubernetes.io/hostname")
        (tmp_path / f"{name}.yaml").write_text(text)
    playground.clear()
    nodes = set()
    for name in ("first", "second"):
        answer = playground.run("run", "-f", str(tmp_path / f"{name}.yaml"))
        placed = re.findall(rf"^pod default/{name}-0(?:-[12])? runs on (\S+),", answer, re.MULTILINE)
        assert (len(placed), len(set(placed))) == (3, 1), answer
        nodes.add(placed[0])
    assert len(nodes) == 2, "the topology is exclusive"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: CronJob\nmetadata: {name: x}", "CronJob has no apiVersion"),
        ("kind: Pod\nspec: {}", "Pod has no name"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: x}", "Service x: makes no pods here, passed over"),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: '${N}-x'}", "Pod has ${N} to be filled in"),
        ("- 1", "list has no name"),
        ("{", "is no YAML"),
        ("", "no pod: give --ask"),
    ],
)
def test_a_file_that_is_no_pod_is_refused(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pod.yaml").write_text(text)
    shown = cli("playground", "run", "-f", tmp_path / "pod.yaml")
    assert shown.status == Exit.USAGE
    assert said in shown.err


FILE_OF_MANY = """
apiVersion: v1
kind: Service
metadata: {name: model}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: weights}
  spec: {accessModes: [ReadWriteOnce]}
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: shard}
  spec:
    replicas: 2
    template: {spec: &spec {containers: [{name: c, image: x, resources: {limits: {aws.amazon.com/neuron: 1}}}]}}
- {apiVersion: v1, kind: Pod, metadata: {generateName: gen-}, spec: *spec}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: agent}
  spec: {template: {spec: {nodeSelector: {neuron-plugin.io/family: inf2}, containers: [{name: c, image: x}]}}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: none}, spec: {replicas: 0, template: {spec: *spec}}}
"""


WAITING = """
apiVersion: v1
kind: List
items:
- kind: Pod
  apiVersion: v1
  metadata: {name: gated}
  spec: {schedulingGates: [{name: kueue.x-k8s.io/admission}], containers: [{name: m}]}
- {kind: Pod, apiVersion: v1, metadata: {name: lost}, spec: {schedulerName: nobody, containers: [{name: m}]}}
- kind: Pod
  apiVersion: v1
  metadata: {name: misspelt}
  spec: {containers: [{name: m, resources: {limits: {aws.amazon.com/nueron: 1}}}]}
- kind: PodGroup
  apiVersion: scheduling.k8s.io/v1alpha2
  metadata: {name: older}
- kind: Pod
  apiVersion: v1
  metadata: {name: claims}
  spec: {containers: [{name: m}], resourceClaims: [{name: c, resourceClaimTemplateName: gone}]}
"""
ALL_NAMES = ", ".join(f"aws.amazon.com/{name}: 1" for name in ("neuron", "neurondevice", "neuroncore"))
BAD = "kind: Pod\napiVersion: v1\nmetadata: {name: bad}\nspec:\n  "


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        (TWO_CONTAINERS, 0, ["pod team/mine runs on inf2-.*"]),
        (TWO_CONTAINERS + "---" + TWO_CONTAINERS, 1, ["pod team/mine runs on .*", '.*pods "mine" already exists']),
        (
            TWO_CONTAINERS.replace(
                "spec:\n", "spec:\n  nodeSelector: {node.kubernetes.io/instance-type: inf2.48xlarge}\n"
            ),
            0,
            ["pod team/mine runs on inf2-2.*"],
        ),
        (
            WAITING,
            0,
            [
                "podgroup default/older is created",
                "pod default/gated waits: its gates kueue.x-k8s.io/admission are for others to take off",
                "pod default/lost waits: no scheduler is called 'nobody', only default-.*: leave schedulerName out",
                r"pod default/misspelt waits: 0/2 nodes are available: 2 Insufficient aws\.amazon\.com/nueron\.",
                'pod default/claims waits: PodResourceClaim c: resource claim template "gone": .* not found',
            ],
        ),
        (
            TWO_CONTAINERS.replace("aws.amazon.com/neuron: 1", ALL_NAMES),  # AWS's test of its install
            0,
            ["pod team/mine waits: .*container first asks for .*neuron and .*neurondevice and.*"],
        ),
        (
            FILE_OF_MANY,
            0,
            [
                "Service model: makes no pods here, passed over",
                "persistentvolumeclaim default/weights is created",
                "Deployment none: its controller makes no pods: it is suspended or of size 0",
                r"pod default/shard-0 runs on inf2-\d, NEURON_DEVS: \d+",
                r"pod default/gen-\w{5} runs on inf2-\d, NEURON_DEVS: \d+",
                r"pod default/agent-\w{5} runs on inf2-[12]",
                r"pod default/agent-\w{5} runs on inf2-[12]",
                r"pod default/shard-1 runs on inf2-\d, NEURON_DEVS: \d+",
            ],
        ),
        (
            LEADER_FIRST.replace("NAME", "lost").replace("LABEL", "rack"),
            0,
            ["2 pods more would be made once lost-0 is scheduled", "pod default/lost-0 waits: .* have no label rack.*"],
        ),
        (
            LEADER_FIRST.replace("NAME", "large").replace("LABEL", "rack").replace("neuron: 1", "neuron: 13"),
            0,
            ["2 pods more would be made once large-0 is scheduled", "pod default/large-0 waits: .*"],
        ),
        *((BAD + spec, 1, [".*400 BadRequest.*"]) for spec in ("containers: 7", "containers: [1]")),
        (BAD + "containers: []\n  nodeName: [1]", 1, [".*400 BadRequest.*"]),
        (TWO_CONTAINERS.replace("neuron: 1", "neuron: many"), 1, [".*400 BadRequest.*"]),
    ],
)
def test_what_becomes_of_a_file_is_told_line_by_line(
    playground: Playground, tmp_path: Path, text: str, status: int, expected: list[str]
) -> None:
    playground.clear()
    (tmp_path / "file.yaml").write_text(text)
    answer = playground.run("run", "-f", str(tmp_path / "file.yaml"), status=status)
    lines = iter(answer.splitlines())
    for each in expected:  # in this order, with others between
        assert any(re.fullmatch(each, line) for line in lines), (each, answer)
    assert playground.process.poll() is None


def test_a_pod_of_higher_priority_takes_the_place_of_another(playground: Playground, tmp_path: Path) -> None:
    playground.clear()
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    (tmp_path / "class.json").write_text(json.dumps(urgent))
    assert "priorityclass urgent is created" in playground.run("run", "-f", str(tmp_path / "class.json"))
    whole = TWO_CONTAINERS.replace("neuron: 1", "neuron: 12").replace("neuroncore: 2", "neuroncore: 0")
    (tmp_path / "low.yaml").write_text(whole.replace("mine", "low"))
    assert "pod team/low runs on inf2-2" in playground.run("run", "-f", str(tmp_path / "low.yaml"))
    high = whole.replace("mine", "high").replace("spec:", "spec:\n  priorityClassName: urgent")
    unknown = high.replace("high", "unknown").replace("urgent", "nobody")
    (tmp_path / "high.yaml").write_text(f"{high}---{unknown}")
    answer = playground.run("run", "-f", str(tmp_path / "high.yaml"), status=1)
    assert "pod team/high runs on inf2-2, NEURON_DEVS: 0," in answer
    assert 'pod team/unknown is refused: 403 Forbidden: pods "unknown" is forbidden: no PriorityClass with' in answer
    playground.wait_for("pod team/low: NeuronPreempted")


def test_what_befalls_a_whole_node_is_told_and_refused_where_it_cannot_be(playground: Playground) -> None:
    assert "its kubelet has started again; containers ran on" in playground.run("fault", "inf2-1", "kubelet", "restart")
    assert "the machine is lost" in playground.run("fault", "inf2-1", "machine", "lost")
    refused = playground.run("fault", "inf2-1", "machine", "reboot", status=1)
    assert refused == "neuron-plugin: node inf2-1 is lost\n"
    playground.wait_for("node inf2-1: not ready: its kubelet is silent")
    assert "the machine is back" in playground.run("fault", "inf2-1", "machine", "back")
    playground.wait_for_match("not ready: its kubelet.*inf2-1: allocatable are [1-9]")
    refused = playground.run("fault", "inf2-9", "machine", "reboot", status=1)
    assert "no node of the playground is called inf2-9" in refused


def test_a_fault_is_reported_by_the_plugin_and_heals(playground: Playground) -> None:
    broken = playground.run("fault", "inf2-1", "device", "5", "gone")
    assert "node inf2-1: its plugin reports device 5 is unhealthy: missing" in broken
    healed = playground.run("fault", "inf2-1", "device", "5", "back")
    assert "node inf2-1: its plugin reports that all devices are healthy" in healed
    broken = playground.run("fault", "inf2-1", "driver", "gone")
    assert "its plugin reports devices 0-5 are unhealthy: missing: the driver does not list it\n" in broken
    playground.run("fault", "inf2-1", "driver", "back")
    attribute = ("fault", "inf2-1", "attribute", "3", "connected_devices")
    for change in (("--text", "1"), ("--restore",)):
        told = playground.run(*attribute, *change)
        assert "its plugin reports the same; connected_devices makes no difference to it" in told
    told = playground.run("fault", "inf2-1", "use", "0-3", "idle")
    assert "node inf2-1: devices 0-3 are idle from now on" in told
    assert "pods --kubeconfig" in told
    playground.run("fault", "inf2-1", "use", "0-3", "usual")
    assert "has no node trn1-1: choose among inf2-1, inf2-2" in playground.run(
        "fault", "trn1-1", "device", "5", "gone", status=2
    )


async def test_a_fault_is_told_once_the_plugin_knows_all_of_it(cli: Cli, tmp_path: Path) -> None:
    reason = "missing: the driver does not list it"
    write_node(tmp_path / "a", "inf2.24xlarge")
    async with StandInApiServer() as server:
        server.create_node(node_manifest("a", "inf2.24xlarge"))
        server.write_kubeconfig(tmp_path / "kubeconfig")
        fault = ("playground", "fault", "--directory", tmp_path, "a", "driver", "gone")
        said = asyncio.create_task(asyncio.to_thread(cli, *fault))
        for missing in (1, 6):  # a plugin on a busy machine
            await asyncio.sleep(3 * SETTLE_SECONDS)
            seen = node_manifest("a", "inf2.24xlarge", unhealthy=dict.fromkeys(range(missing), reason))
            server.patch_node("a", {"metadata": {"annotations": seen["metadata"]["annotations"]}})
        assert f"its plugin reports devices 0-5 are unhealthy: {reason}\n" in (await said).out


def test_every_hint_can_be_pasted(playground: Playground) -> None:
    hints = [line.strip() for line in playground.printed().splitlines() if line.startswith("  ")]
    assert {"devices", "doctor", "decisions", "explain"} <= {word for line in hints for word in line.split()}
    playground.run("run", "--ask", "neuron=13")
    for hint in hints:
        if " fault " in hint or (hint.startswith("export") and not shutil.which("kubectl")):
            continue
        command = hint.partition("  #")[0].replace("explain pod-2", "explain pod-1")
        playground.shell(f"{command} || [ $? -eq 1 ]")  # the doctor may have found what another test left


def test_a_plugin_that_dies_is_started_again_and_pods_keep_their_devices(playground: Playground) -> None:
    (found,) = _processes_of(playground.directory / "inf2-1/plugin.json")
    os.kill(found, signal.SIGKILL)
    playground.wait_for("node inf2-1: its plugin has ended with -9 and is started again")
    playground.wait_for_match("inf2-1: its plugin has ended.*inf2-1: allocatable are [1-9]")
    assert "runs on inf2-" in playground.run("run", "--ask", "neuron=1")


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


KUBECTL = (
    ("apply -f CHANGED", "pod/seen configured"),
    ("get pods", r"seen +2/2 +Running +inf2-\d"),
    ("label pod seen team=a", "labeled"),
    ("get pods -l team=a -o name", "^pod/seen$"),
    ("get pods -l 'team in (b, c)'", "No resources found"),
    ("cordon inf2-1", "cordoned"),
    ("get nodes", "SchedulingDisabled"),
    ("uncordon inf2-1", "uncordoned"),
    ("get events", "NeuronWaiting"),
    ("get pods --sort-by=.spec.nodeName", r"(?s)NAME .*waiting .*seen "),
    ("get nodes --sort-by=.status.allocatable.cpu", r"(?s)NAME .*inf2-1 .*inf2-2 "),
    ("label pod seen c=d --dry-run=server", r"^pod/seen labeled \(server dry run\)$"),
    ("delete pod seen --dry-run=server", r'^pod "seen" deleted.*\(server dry run\)$'),
    ("diff -f FILE", r"(?m)^-  - image: other\n\+  - image: x$"),
    ("logs seen", r"(?m)^AWS_NEURON_VISIBLE_DEVICES=\d+$"),
    ("auth can-i create pods", "^yes$"),
    ("auth can-i --list", r"\*\.\* .*\[\*\]"),
    ("apply --server-side -f FILE", "it is not simulated: apply without --server-side"),
    ("explain pods.spec.schedulerName", r"(?s)^KIND: +Pod\nVERSION: +v1\n\nFIELD: schedulerName <string>"),
    ("create deployment x --image=x -o yaml --dry-run=client | KUBECTL apply -f -", "'neuron-plugin playground run -f"),
    ("debug seen --image=x", "Error from server .*: ephemeralcontainers is not simulated: no container runs anything"),
    ("exec seen -- ls", "exec is not simulated: no container runs anything here$"),
    ("scale deployment x --replicas=2", 'error: the server doesn\'t have a resource type "deployment"'),
    ("create namespace x", "^namespace/x created$"),
    ("create configmap x", "ConfigMap in protobuf, which is not read here: create it from a file$"),
    ("top nodes", "error: Metrics API not available"),
    ("delete pod seen", "deleted"),
)
"""Verbs, and what kubectl says: they work, or are refused in one sentence."""


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_s_verbs_work_or_are_refused_in_a_sentence(playground: Playground, tmp_path: Path) -> None:
    playground.clear()
    manifest = TWO_CONTAINERS.replace("mine, namespace: team", "seen, labels: {a: b}")
    (tmp_path / "pod.yaml").write_text(manifest)
    (tmp_path / "other.yaml").write_text(manifest.replace("seen", "waiting").replace("neuron: 1", "neuron: 13"))
    kubectl = f"KUBECONFIG={playground.directory}/kubeconfig kubectl"
    assert "pod/seen created" in playground.shell(f"{kubectl} apply -f {tmp_path}")
    assert "met" in playground.shell(f"{kubectl} wait --for=condition=Ready pod/seen --timeout=60s")
    playground.wait_for("pod default/waiting: NeuronWaiting")
    (tmp_path / "changed").write_text(manifest.replace("image: x", "image: other"))
    files = {"FILE": str(tmp_path / "pod.yaml"), "CHANGED": str(tmp_path / "changed"), "KUBECTL": kubectl}
    for verb, said in KUBECTL:
        words = re.sub("|".join(files), lambda name: files[name[0]], verb)
        answer = playground.shell(f"{kubectl} {words} 2>&1 || true")
        assert re.search(said, answer.strip()), (verb, answer)
        assert "panic" not in answer


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_a_node_is_drained_as_its_disruption_budget_allows(playground: Playground, tmp_path: Path) -> None:
    manifest = TWO_CONTAINERS.replace("mine, namespace: team", "drained, labels: {app: drained}")
    (tmp_path / "pod.yaml").write_text(manifest)
    runs_on = re.search(r"runs on (inf2-\d)", playground.run("run", "-f", str(tmp_path / "pod.yaml")))
    assert runs_on
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "drained"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "drained"}}},
    }
    (tmp_path / "pdb.json").write_text(json.dumps(budget))
    kubectl = f"KUBECONFIG={playground.directory}/kubeconfig kubectl"
    playground.shell(f"{kubectl} apply -f {tmp_path}/pdb.json")
    drain = f"{kubectl} drain {runs_on[1]} --force --pod-selector app=drained"
    answer = playground.shell(f"{drain} --timeout=3s 2>&1 || true")
    assert "would violate the pod's disruption budget" in answer or "global timeout reached" in answer
    playground.shell(f"{kubectl} delete pdb drained; {drain} --timeout=60s; {kubectl} uncordon {runs_on[1]}")
    assert "drained" not in playground.shell(f"{kubectl} get pods")


def test_two_hundred_nodes_come_up_with_their_ultraservers(tmp_path: Path) -> None:
    nodes = "trn2u.48xlarge=8,inf2.48xlarge=192,cpu=1"
    by_server = LEADER_FIRST.replace("LABEL", "neuron.amazonaws.com/ultraserver-server-id-4")
    by_server = (
        by_server.replace("size: 3", "size: 4").replace('size: "3"', 'size: "4"').replace("neuron: 1", "neuron: 16")
    )
    (tmp_path / "lws.yaml").write_text("---".join(by_server.replace("NAME", name) for name in ("first", "second")))
    with Playground("--nodes", nodes, "--plugins", "1") as large:
        assert "(199 without a machine and a plugin of their own)" in large.printed()
        answer = large.run("run", "-f", str(tmp_path / "lws.yaml"))
        placed = dict(re.findall(r"^pod default/(\w+-0(?:-\d)?) runs on trn2u-(\d),", answer, re.MULTILINE))
        assert len(placed) == 8, answer
        servers = {(pod.partition("-")[0], (int(node) - 1) // 4) for pod, node in placed.items()}
        assert sorted(server for _, server in servers) == [0, 1], "each group has one of its own"
        assert "200 nodes, 0 closed" in large.shell(
            f"{sys.executable} -m neuron_plugin nodes --kubeconfig {large.directory}/kubeconfig"
        )


def test_a_second_playground_in_the_directory_is_refused_and_the_first_goes_on(playground: Playground) -> None:
    assert f"a playground is up in {playground.directory}" in playground.run(status=2)
    assert playground.process.poll() is None


def test_ctrl_c_ends_its_daemons_and_leaves_nothing_not_even_what_a_killed_playground_left(
    short_directory: Path,
) -> None:
    directory = short_directory / "p"
    directory.mkdir()
    (directory / ".playground").touch()
    (directory / "old").touch()
    with Playground("--nodes", "trn1.2xlarge=1", directory=directory) as up:
        assert not (directory / "old").exists()
        for _ in range(3):  # nobody is patient
            os.killpg(up.process.pid, signal.SIGINT)  # as a terminal does: to its daemons, too
            time.sleep(0.1)
        assert up.process.wait(30) == Exit.INTERRUPTED
        assert not re.search("Traceback|Error|loop is closed", up.printed())
        with pytest.raises(ProcessLookupError):
            os.killpg(up.process.pid, 0)
    assert not list(short_directory.iterdir())


def test_what_a_killed_playground_left_is_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".playground").touch()
    shown = cli("playground", "run", "--directory", tmp_path, "--ask", "neuron=1")
    assert (shown.status, f"no playground is up in {tmp_path}" in shown.err) == (Exit.FAILURE, True)


def test_a_killed_playground_takes_its_daemons_with_it(short_directory: Path) -> None:
    directory = short_directory / "p"
    with Playground("--nodes", "trn1.2xlarge=1,cpu=1", directory=directory) as up:
        assert len(_processes_of(directory)) == 3, "itself, a plugin, the extender"
        up.process.kill()
        up.process.wait(30)
        ends = time.monotonic() + 30
        while found := _processes_of(directory):
            assert time.monotonic() < ends, found
            time.sleep(0.1)


def _processes_of(directory: Path) -> list[int]:
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [pid for pid in pids if f"{directory}".encode() in _command_of(pid)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "trn1.32xlarge"), "'trn1.32xlarge' is no TYPE=COUNT"),
        (("--nodes", "trn1.32xlarge=0"), "'trn1.32xlarge=0' is no TYPE=COUNT"),
        (("--nodes", "trn1.32xlarge=999,inf2.48xlarge=2"), "is 1002 nodes, expected at most 1000"),
        (("--nodes", "cpu=2"), "--nodes has no node with Neuron"),
        (("--mode", "dra", "--plugins", "1"), "--mode dra takes 1 nodes at most (--plugins)"),
        (("--nodes", "trn7.32xlarge=1"), "--nodes trn7.32xlarge is not known"),
        (("--directory", "/proc"), "/proc exists and is no playground"),
        (("--directory", "/var/" + "x" * LONGEST_DIRECTORY_BYTES), "give --directory"),
        (("run",), "no pod: give --ask"),
        (("run", "--directory", "/nowhere", "--ask", "neuron=1"), "no playground is up in /nowhere"),
    ],
)
def test_wrong_arguments_are_reported_before_anything_starts(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    shown = cli("playground", *arguments)
    assert shown.status in {Exit.USAGE, Exit.FAILURE}
    assert said in shown.err
    assert shown.out == ""


def test_a_node_is_checked_before_it_takes_pods_and_one_with_a_fault_takes_none() -> None:
    with Playground("--nodes", "inf2.24xlarge=1,cpu=0", "--preflight") as up:
        up.wait_for("pod kube-system/neuron-preflight-inf2-1: deleted")
        SimulatedNode.open(up.directory / "inf2-1").set_attribute(3, "connected_devices", "1")  # no plugin sees that
        up.run("fault", "inf2-1", "device", "2", "gone")
        up.wait_for("node inf2-1: allocatable are 5 neuron")
        up.run("fault", "inf2-1", "device", "2", "back")
        up.wait_for("node inf2-1: NeuronPreflightFailed: The pre-flight check has failed: device 3: device=3 cannot be")
        assert "1 has failed the pre-flight check" in up.run("run", "--ask", "neuron=6")


def test_a_group_is_checked_and_goes_where_no_pod_of_its_check_fails(tmp_path: Path) -> None:
    with Playground("--nodes", "inf2.24xlarge=2,cpu=0", "--preflight") as up:
        for name in ("inf2-1", "inf2-2"):
            up.wait_for(f"pod kube-system/neuron-preflight-{name}: deleted")
        SimulatedNode.open(up.directory / "inf2-1").set_attribute(3, "connected_devices", "1")  # no plugin sees that
        asks = {"neuron-plugin.io/group": "ring", "neuron-plugin.io/group-size": "1"}
        metadata = {"name": "ring-0", "annotations": {**asks, "neuron-plugin.io/preflight": "group"}}
        limits = {"resources": {"limits": {"aws.amazon.com/neuron": "6"}}}
        spec = {"containers": [{"name": "main", "image": "i", **limits}]}
        (tmp_path / "ring.json").write_text(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        )
        assert "pod default/ring-0 runs on inf2-2" in up.run("run", "-f", str(tmp_path / "ring.json"))
        up.wait_for("check of group ring has failed on node inf2-1 (device 3: device=3 cannot be used)")
