"""A simulated cluster that runs by itself; the whole of it is tried in tests/cli/test_playground.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from neuron_plugin.simulation import NODES, PODS, SimulatedCluster, live

TYPES = {"inf2-1": "inf2.xlarge", "trn1-1": "trn1.2xlarge"}


@pytest.fixture
async def lines() -> AsyncIterator[tuple[SimulatedCluster, list[str]]]:
    """A cluster with a node of one Inf2 and one of one Trn1, and what it says."""
    said: list[str] = []

    async def listen(cluster: SimulatedCluster) -> None:
        async for line in live(cluster):
            said.append(line)  # noqa: PERF401 - one by one, as they come

    with TemporaryDirectory(prefix="np-") as directory:
        async with SimulatedCluster(Path(directory), TYPES) as cluster:
            for worker in cluster.workers.values():
                await worker.wait_until_registered()
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
    assert len([line for line in said if line.startswith("pod default/nowhere: waits")]) == 1


@pytest.mark.parametrize("turns", [1, 10])
async def test_a_pod_that_is_gone_in_the_middle_of_its_admission_stops_nothing(
    lines: tuple[SimulatedCluster, list[str]], turns: int
) -> None:
    cluster, said = lines
    await until(said, "node trn1-1: allocatable are 1 neuron, 1 neurondevice, 2 neuroncore")
    cluster.api.create_pod(asking("brief"))
    cluster.api.bind("default", "brief", node="trn1-1")
    for _ in range(turns):  # of the event loop, each of which may be a step of the admission
        await asyncio.sleep(0)
    cluster.api.delete_pod("default", "brief", grace_seconds=0)
    cluster.api.create_pod(asking("next", nodeSelector={"neuron-plugin.io/family": "trn1"}))
    await until(said, "pod default/next: m receives --device=/dev/neuron0")


def _target(node: str) -> Any:
    from neuron_plugin.simulation import Target

    return Target(NODES, "", node)
