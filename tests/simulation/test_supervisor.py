"""A simulated cluster that runs by itself, and what befalls its nodes.

The whole of it is tried in tests/simulation/commands/test_playground.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.simulation import SimulatedCluster, supervisor
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, Refusal
from neuron_plugin.simulation.machines import NODE_FAULTS_PATH
from neuron_plugin.simulation.supervisor import (
    NOT_READY_SECONDS,
    TOLERATION_SECONDS,
    NodeFaults,
    NodeLifecycle,
    supervise,
)

pytestmark = pytest.mark.timeout(180)  # real daemons on a machine that may be busy

TYPES = {"inf2-1": "inf2.xlarge", "trn1-1": "trn1.2xlarge"}


@pytest.fixture
async def lines() -> AsyncIterator[tuple[SimulatedCluster, list[str]]]:
    """A cluster with a node of one Inf2 and one of one Trn1, and what it says."""
    said: list[str] = []

    async def listen(cluster: SimulatedCluster) -> None:
        async for line in supervise(cluster):
            said.append(line)  # noqa: PERF401 - one by one, as they come

    with TemporaryDirectory(prefix="np-") as directory:
        async with SimulatedCluster(Path(directory), TYPES) as cluster:
            listening = asyncio.create_task(listen(cluster), name="live")
            yield cluster, said
            listening.cancel()


def asking(name: str, **spec: Any) -> dict[str, Any]:
    limits = {"aws.amazon.com/neuron": "1"}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "m", "resources": {"limits": limits}}], **spec},
    }


async def until(said: list[str], text: str) -> None:
    async with asyncio.timeout(30):
        while not any(text in line for line in said):
            await asyncio.sleep(0.02)


async def test_pods_go_where_their_selector_and_cordons_allow_and_come_and_go(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    api = cluster.api
    api.create_pod(asking("gated", schedulingGates=[{"name": "x"}]))
    api.create_pod(asking("selected", nodeSelector={"neuron-plugin.io/family": "trn1"}))
    await until(said, "pod default/selected: m receives --device=/dev/neuron0")
    await until(said, "pod default/selected: bound to trn1-1, NEURON_DEVS 0")
    api.create_pod(asking("nowhere", nodeSelector={"no": "such"}))
    await until(said, "pod default/nowhere: waits: 0/2 nodes are available")
    conditions = api.get(PODS, "nowhere", "default")["status"]["conditions"]
    assert [each["reason"] for each in conditions] == ["Unschedulable"]
    api.create_pod({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "m"}]}})
    await until(said, "pod default/plain: m receives no device")
    api.patch_node("inf2-1", {"spec": {"unschedulable": True}})
    api.create_pod(asking("waiting"))
    await until(said, "pod default/waiting: waits: ")
    api.delete_pod("default", "selected")
    await until(said, "pod default/selected: deleted")
    await until(said, "pod default/waiting: bound to trn1-1")
    api.delete_pod("default", "waiting", grace_seconds=0)
    await until(said, "pod default/waiting: deleted")
    api.delete_pod("default", "nowhere")
    await until(said, "pod default/nowhere: deleted")
    for name in ("selected", "waiting", "nowhere"):
        assert said.count(f"pod default/{name}: deleted") == 1
    assert not any("gated" in line for line in said)
    waits = [line for line in said if line.startswith("pod default/nowhere: waits")]
    assert len(waits) == len(set(waits)), "a reason is said once"


async def test_a_pod_of_no_scheduler_waits_and_what_ends_is_brought_back(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    api = cluster.api
    api.create_pod(asking("lost", schedulerName="nobody"))
    await until(said, "pod default/lost: waits: no scheduler is called 'nobody'")
    assert cluster._extender
    cluster._extender.kill()
    await until(said, "the extender has ended with -9 and is started again")
    api.delete_node("trn1-1")
    await until(said, "node trn1-1: its object is gone, and its kubelet makes it again")
    await cluster.wait_until_ready()
    api.create_pod(asking("after", nodeSelector={"kubernetes.io/hostname": "trn1-1"}))
    await until(said, "pod default/after: m receives --device=/dev/neuron0")


async def test_after_a_reboot_pods_with_devices_have_failed_and_others_run_again(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    worker, here = cluster.workers["trn1-1"], {"kubernetes.io/hostname": "trn1-1"}
    cluster.api.create_pod(asking("holder", nodeSelector=here))
    plain = {"containers": [{"name": "m"}], "nodeSelector": here}
    cluster.api.create_pod({"metadata": {"name": "plain"}, "spec": plain})
    await until(said, "pod default/holder: m receives --device=/dev/neuron0")
    await until(said, "pod default/plain: m receives no device")
    await asyncio.to_thread(worker.node.remove_device, 0)
    said.clear()
    await worker.power_off()
    await worker.power_on()
    await until(said, "pod default/holder: Pod was rejected: ")
    await until(said, "pod default/plain: m receives no device")
    (status,) = cluster.api.get(PODS, "plain", "default")["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert cluster.api.get(PODS, "holder", "default")["status"]["phase"] == "Failed"
    cluster.api.create_pod(asking("after", nodeSelector=here))
    await until(said, "pod default/after: m receives --device=/dev/neuron0")


KEY = "node.kubernetes.io/unreachable"
SILENT_AT = 100.0
LATE_AT = SILENT_AT + NOT_READY_SECONDS


def world(*tolerations: dict[str, Any]) -> SimulatedApiServer:
    """A node with a taint of its own and a ready pod that has these tolerations."""
    api = SimulatedApiServer()
    ready = {"type": "Ready", "status": "True"}
    taint = {"key": "own", "effect": "NoSchedule"}
    status = {"conditions": [ready]}
    api.create_node({"metadata": {"name": "a"}, "spec": {"taints": [taint]}, "status": status})
    api.create_pod({"metadata": {"name": "p"}, "spec": {"containers": [], "tolerations": list(tolerations)}})
    api.bind("default", "p", node="a")
    api.patch_status(PODS, "p", {"phase": "Running", **status}, "default")
    return api


def ready_of(found: dict[str, Any]) -> str:
    (status,) = (each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")
    return str(status)


def test_a_node_is_marked_after_a_while_of_silence_and_cleared_once_it_is_heard() -> None:
    api = world()
    lifecycle = NodeLifecycle(api)
    assert list(lifecycle.look({"a"}, SILENT_AT)) == []
    assert list(lifecycle.look({"a"}, LATE_AT - 1)) == []
    assert list(lifecycle.look({"a"}, LATE_AT)) == ["node a: not ready: its kubelet is silent"]
    node = api.get(NODES, "a")
    taints = [(taint["key"], taint["effect"]) for taint in node["spec"]["taints"]]
    assert taints == [("own", "NoSchedule"), (KEY, "NoSchedule"), (KEY, "NoExecute")]
    assert (ready_of(node), ready_of(api.get(PODS, "p", "default"))) == ("Unknown", "False")
    assert list(lifecycle.look(set(), LATE_AT + 1)) == []
    assert [taint["key"] for taint in api.get(NODES, "a")["spec"]["taints"]] == ["own"]
    assert list(lifecycle.look({"a"}, LATE_AT + 2)) == [], "its silence begins anew"


def evicted_after(*tolerations: dict[str, Any]) -> float | None:
    """How long after its node was marked a pod is deleted; None: not within an hour."""
    api = world(*tolerations)
    lifecycle = NodeLifecycle(api)
    list(lifecycle.look({"a"}, SILENT_AT))
    for seconds in range(3600):
        if any("evicted" in line for line in lifecycle.look({"a"}, LATE_AT + seconds)):
            assert "deletionTimestamp" in api.get(PODS, "p", "default")["metadata"]
            assert list(lifecycle.look({"a"}, LATE_AT + seconds + 1)) == [], "once"
            return seconds
    return None


def test_pods_are_evicted_when_they_tolerate_it_no_longer() -> None:
    assert evicted_after() == TOLERATION_SECONDS
    assert evicted_after({"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}) == 30
    assert evicted_after({"operator": "Exists"}) is None
    assert evicted_after({"key": KEY, "effect": "NoSchedule"}, {"key": "other"}) == TOLERATION_SECONDS


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFaults:
    """Of a cluster of one node."""
    monkeypatch.setattr(supervisor, "REBOOT_SECONDS", 0)
    cluster = SimulatedCluster(tmp_path, {"cpu-1": "cpu"})
    cluster.played["cpu-1"].register()
    return NodeFaults(cluster)


async def told(faults: NodeFaults, path: str) -> str:
    """What is said, or why it is refused."""
    try:
        response = await faults.answer(ApiRequest("POST", NODE_FAULTS_PATH + path))
    except Refusal as refusal:
        return f"{refusal.code}: {refusal}"
    return str(msgspec.json.decode(response.body)["message"])


async def test_what_befalls_a_node_is_done_or_refused(faults: NodeFaults) -> None:
    stopped, lost = "409: the kubelet of node cpu-1 does not run", "409: node cpu-1 is lost"
    for deed, said, silent in (
        ("kubelet/stop", "its kubelet is stopped", True),
        *((f"kubelet/{deed}", stopped, True) for deed in ("stop", "restart")),
        ("kubelet/start", "its kubelet runs again", False),
        ("kubelet/start", "409: the kubelet of node cpu-1 runs", False),
        ("kubelet/restart", "its kubelet has started again", False),
        ("machine/lost", "the machine is lost; it is not ready after 10 s", True),
        *((deed, lost, True) for deed in ("kubelet/restart", "machine/reboot", "machine/lost")),
        ("machine/back", "the machine is back", False),
        ("machine/back", "409: node cpu-1 is not lost", False),
        ("kubelet/stop", "its kubelet is stopped", True),
        ("machine/reboot", "the machine has started again", False),
        *((deed, "404: the server could not find", False) for deed in ("machine/stop", "kubelet", "")),
    ):
        assert said in await told(faults, f"cpu-1/{deed}"), deed
        assert faults._cluster.nodes["cpu-1"].up is not silent
    assert "404: no node of the playground is called nobody" in await told(faults, "nobody/machine/lost")
