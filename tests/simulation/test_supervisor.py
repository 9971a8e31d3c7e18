"""A simulated cluster that runs by itself; the whole of it is tried in tests/simulation/commands/test_playground.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from neuron_plugin.allocation.keys import GATE, NODE_KEY
from neuron_plugin.simulation import PlacedBy, SimulatedCluster
from neuron_plugin.simulation.api_server_kinds import CLAIMS, NODES, PODS, VOLUMES
from neuron_plugin.simulation.supervisor import supervise

TYPES = {"inf2-1": "inf2.xlarge", "trn1-1": "trn1.2xlarge"}


@pytest.fixture
def placed_by() -> PlacedBy:
    return PlacedBy.EXTENDER


@pytest.fixture
async def lines(placed_by: PlacedBy) -> AsyncIterator[tuple[SimulatedCluster, list[str]]]:
    """A cluster with a node of one Inf2 and one of one Trn1, and what it says."""
    said: list[str] = []

    async def listen(cluster: SimulatedCluster) -> None:
        async for line in supervise(cluster):
            said.append(line)  # noqa: PERF401 - one by one, as they come

    with TemporaryDirectory(prefix="np-") as directory:
        async with SimulatedCluster(Path(directory), TYPES, placed_by=placed_by) as cluster:
            for worker in cluster.workers.values():
                await worker.wait_until_registered()
            await cluster.wait_until_published()
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
    assert "pod default/selected: bound to trn1-1, NEURON_DEVS 0" in said
    api.create_pod(asking("nowhere", nodeSelector={"no": "such"}))
    await until(said, "pod default/nowhere: waits: 0/2 nodes are available")
    conditions = api.get(PODS, "nowhere", "default")["status"]["conditions"]
    assert [each["reason"] for each in conditions] == ["Unschedulable"]
    api.create_pod({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "m"}]}})
    await until(said, "pod default/plain: m receives no device")
    api._objects.patch(_target("inf2-1"), {"spec": {"unschedulable": True}})
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


@pytest.mark.parametrize("placed_by", [PlacedBy.GATES])
async def test_gated_pods_are_placed_before_the_scheduler_and_wait_where_nothing_fits(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    api = cluster.api
    selects = {"node.kubernetes.io/instance-type": "trn1.2xlarge"}
    made = api.create_pod(asking("placed", nodeSelector=selects))
    assert made["spec"]["schedulingGates"] == [{"name": GATE}]
    await until(said, "pod default/placed: m receives --device=/dev/neuron0")
    pod = api.get(PODS, "placed", "default")
    assert (pod["metadata"]["labels"][NODE_KEY], pod["spec"]["nodeName"]) == ("trn1-1", "trn1-1")
    assert "schedulingGates" not in pod["spec"]
    api.create_pod(asking("second", nodeSelector=selects))
    await until(said, "pod default/second: NeuronWaiting: ")
    api.delete_pod("default", "placed")
    await until(said, "pod default/second: bound to trn1-1, NEURON_DEVS 0")
    by_name = api.create_pod(asking("by-name", schedulerName="neuron-scheduler"))
    assert "schedulingGates" not in by_name["spec"]
    await until(said, "pod default/by-name: bound to inf2-1, NEURON_DEVS 0")
    plain = api.create_pod({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "m"}]}})
    assert "schedulingGates" not in plain["spec"]
    await until(said, "pod default/plain: m receives no device")


async def test_what_no_cluster_would_schedule_waits_and_what_ends_is_brought_back(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    api = cluster.api
    api.create_pod(asking("lost", schedulerName="nobody"))
    await until(said, "pod default/lost: waits: no scheduler is called 'nobody'")
    container = {"name": "m", "resources": {"limits": {"aws.amazon.com/nueron": 1}}}
    api.create_pod({"metadata": {"name": "misspelt"}, "spec": {"containers": [container]}})
    await until(said, "pod default/misspelt: waits: 0/2 nodes are available: 2 Insufficient aws.amazon.com/nueron.")
    assert cluster._extender
    cluster._extender.kill()
    await until(said, "the extender has ended with -9 and is started again")
    cluster.workers["inf2-1"].daemon.kill()  # type: ignore[union-attr]  # it runs
    await until(said, "node inf2-1: its plugin has ended with -9 and is started again")
    api._objects.delete(_target("trn1-1"))
    await until(said, "node trn1-1: its object is gone, and its kubelet makes it again")
    await cluster.wait_until_published()
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


async def test_a_kubelet_that_starts_again_leaves_its_pods_as_they_are(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    cluster.api.create_pod(asking("holder", nodeSelector={"kubernetes.io/hostname": "trn1-1"}))
    await until(said, "pod default/holder: m receives --device=/dev/neuron0")
    await cluster.workers["trn1-1"].stop_kubelet()
    await cluster.workers["trn1-1"].start_kubelet()
    await until(said, "node trn1-1: allocatable are 1 neuron, 0 neurondevice")
    status = cluster.api.get(PODS, "holder", "default")["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)


async def test_a_pod_waits_for_its_volume_claim_which_is_bound_at_once(
    lines: tuple[SimulatedCluster, list[str]],
) -> None:
    cluster, said = lines
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}
    cluster.api.create_pod(asking("reader", volumes=[volume]))
    await until(said, 'pod default/reader: waits: 0/2 nodes are available: persistentvolumeclaim "shared" not found.')
    claim = cluster.api.create(CLAIMS, {"metadata": {"name": "shared"}, "spec": {}}, "default")
    await until(said, "pod default/reader: m receives --device=/dev/neuron0")
    bound = cluster.api.get(CLAIMS, "shared", "default")
    assert bound["status"]["phase"] == "Bound"
    assert (
        cluster.api.get(VOLUMES, bound["spec"]["volumeName"])["metadata"]["name"] == f"pvc-{claim['metadata']['uid']}"
    )


@pytest.mark.parametrize("turns", [1, 10])
async def test_a_pod_that_is_gone_in_the_middle_of_its_admission_stops_nothing(
    lines: tuple[SimulatedCluster, list[str]], turns: int
) -> None:
    cluster, said = lines
    cluster.api.create_pod(asking("brief"))
    cluster.api.bind("default", "brief", node="trn1-1")
    for _ in range(turns):  # of the event loop, each of which may be a step of the admission
        await asyncio.sleep(0)
    cluster.api.delete_pod("default", "brief", grace_seconds=0)
    cluster.api.create_pod(asking("next", nodeSelector={"neuron-plugin.io/family": "trn1"}))
    await until(said, "pod default/next: m receives --device=/dev/neuron0")


def _target(node: str) -> Any:
    from neuron_plugin.simulation.api_server_kinds import Target

    return Target(NODES, "", node)
