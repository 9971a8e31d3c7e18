"""The chart's rights, held against what the daemons do: enough for all of it, and none to spare (P81)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.simulation import NODE_NAME, SimulatedCluster, pod_manifest
from neuron_plugin.simulation.api_server_kinds import EVENTS
from tests.charts.manifests import of_kind
from tests.charts.test_rbac import rules
from tests.support.api_access import Access, Right, in_namespace
from tests.support.api_server import Fault, Match, StandInApiServer

CONDITIONS = ("--node-condition", "NeuronDevicesHealthy", "--ready-condition", "NeuronDevicesReady")
USERS = {
    "plugin": ("health", "neuron-plugin"),
    "extender": ("second-scheduler", "neuron-plugin-extender"),
    "cleanup": ("cleanup", "neuron-plugin-cleanup"),
}
"""The users of the simulated cluster, the value set that gives each all of its rights, and its account there."""


NOT_READ_HERE = {"podgroups", "configmaps"}
"""Read where the server has them, and written once in two minutes; held in the tests of informers and device-hours."""


def rights_of(user: str) -> set[Right]:
    name, account = USERS[user]
    everywhere = [Right(*rule) for rule in rules(of_kind(name, "ClusterRole")[account])]
    here = [Right(*rule) for rule in rules(of_kind(name, "Role")[account])]
    return {right for right in (*everywhere, *in_namespace(here, "kube-system")) if right.resource not in NOT_READ_HERE}


@pytest.fixture
async def server() -> StandInApiServer:
    return StandInApiServer()


@pytest.fixture
def access(server: StandInApiServer) -> Access:
    access = Access(server)
    for user in USERS:
        access.permit(user, rights_of(user))
    return access


@pytest.fixture
async def cluster(server: StandInApiServer, access: Access) -> AsyncIterator[SimulatedCluster]:
    """A cluster whose daemons have the chart's rights."""
    del access
    with TemporaryDirectory(prefix="np-") as directory:
        types = {NODE_NAME: "inf2.24xlarge"}
        async with SimulatedCluster(Path(directory), types, daemon_flags=CONDITIONS, api=server) as simulated:
            yield simulated


async def until(met: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not met():
            await asyncio.sleep(0.02)


async def until_all_are_used(access: Access, user: str) -> None:
    with contextlib.suppress(TimeoutError):  # what is left over says more
        await until(lambda: access.used[user] == rights_of(user))


def reporters(server: StandInApiServer) -> set[str]:
    return {event["reportingController"] for event in server.objects(EVENTS)}


async def place_a_pod_though_the_binding_s_answer_is_lost(cluster: SimulatedCluster, server: StandInApiServer) -> None:
    cluster.api.create_pod(pod_manifest("first", {"main": (Resource.NEURONCORE, 2)}))
    assert (await cluster.filter("first")).nodes
    server.fail(Fault(Match(path="/binding$"), lose_answer=True))
    await cluster.bind("first")
    await cluster.admit("first")
    await cluster.wait_until_allocated("first")


async def test_p81_the_daemons_need_every_right_they_have_and_no_other(
    cluster: SimulatedCluster, server: StandInApiServer, access: Access
) -> None:
    await place_a_pod_though_the_binding_s_answer_is_lost(cluster, server)
    cluster.worker.node.set_ecc(3, sram=1)
    second = pod_manifest("second", {"main": (Resource.NEURONCORE, 1)})
    second["metadata"]["annotations"] = {"NEURON_CORES": "all of them"}
    second["spec"]["nodeName"] = NODE_NAME
    cluster.api.create_pod(second)
    waits = pod_manifest("waits", {"main": (Resource.NEURONCORE, 1)})
    waits["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster.api.create_pod(waits)
    await until(lambda: {"neuron-plugin.io/plugin", "neuron-plugin.io/extender"} <= reporters(server))
    for user in ("plugin", "extender"):
        await until_all_are_used(access, user)
        assert access.used[user] == rights_of(user)
    await cluster.worker.stop_daemon()
    await clean_up(cluster)
    assert access.used["cleanup"] == rights_of("cleanup")


async def clean_up(cluster: SimulatedCluster) -> None:
    """What the Job of an uninstallation does."""
    (job,) = of_kind("cleanup", "Job").values()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    kubeconfig = cluster.api.write_kubeconfig(cluster.root / "kubeconfig-cleanup", "cleanup")
    command = ("-m", "neuron_plugin.cli.main", *container["args"], f"--kubeconfig={kubeconfig}")
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
