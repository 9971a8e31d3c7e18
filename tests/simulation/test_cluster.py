"""A node's whole life around real daemon processes: restarts and ends of everything, with pods running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.simulation.cluster import NODE_NAME, SimulatedCluster, pod_manifest
from neuron_plugin.simulation.cluster_nodes import end_process
from neuron_plugin.simulation.kubelet_pods import AdmittedPod
from neuron_plugin.simulation.scheduler import ExtenderCallError
from tests.support.worker import end_pod, kill_daemon

pytestmark = pytest.mark.timeout(180)  # real daemons on a machine that may be busy

CORE, DEVICE = Resource.NEURONCORE.value, Resource.NEURONDEVICE.value


@pytest.fixture
async def cluster() -> AsyncIterator[SimulatedCluster]:
    """An inf2.24xlarge, six devices of two cores in a line, with plugin and extender up; its kubelet can restart.

    In a short directory, because the path of a socket has 107 bytes at most.
    """
    with TemporaryDirectory(prefix="np-") as directory:
        types = {NODE_NAME: "inf2.24xlarge"}
        async with SimulatedCluster(Path(directory), types, daemon_flags=("--numbering", "host")) as simulated:
            yield simulated


async def test_a_plugin_that_ends_at_its_start_is_reported_at_once() -> None:
    said = "node node-1: it has ended; the daemon's log ends with:\n(.*\n)*.*--no-such-flag"
    with TemporaryDirectory(prefix="np-") as directory, pytest.raises(TimeoutError, match=said):
        async with SimulatedCluster(Path(directory), {NODE_NAME: "inf2.xlarge"}, daemon_flags=("--no-such-flag",)):
            pass


async def placed(cluster: SimulatedCluster, name: str, resource: str, count: int) -> AdmittedPod:
    """Create a pod of one container, have it scheduled and admitted, and wait until the plugin is certain of it."""
    cluster.api.create_pod(pod_manifest(name, {"main": (Resource(resource), count)}))
    assert (await cluster.filter(name)).nodes
    await cluster.bind(name)
    admitted = await cluster.admit(name)
    await cluster.wait_until_allocated(name)
    return admitted


async def test_pods_keep_their_silicon_through_every_restart(cluster: SimulatedCluster) -> None:
    first = await placed(cluster, "first", CORE, 3)
    assert first.container("main").ids == {CORE: ("0", "1", "2")}
    await cluster.worker.wait_until_offered(Resource.NEURONDEVICE, 4)

    await kill_daemon(cluster.worker)
    await cluster.worker.start_daemon()
    await cluster.worker.wait_until_offered(Resource.NEURONDEVICE, 4)
    second = await placed(cluster, "second", DEVICE, 3)
    assert second.container("main").envs == {"AWS_NEURON_VISIBLE_DEVICES": "2,3,4"}

    kubelet = cluster.worker.kubelet
    await kubelet.restart()
    await cluster.worker.wait_until_offered(Resource.NEURONCORE, 6)
    assert kubelet.rejections == {}

    await end_pod(cluster, "first")
    await cluster.worker.wait_until_offered(Resource.NEURONDEVICE, 6)
    await end_pod(cluster, "second")
    await cluster.worker.wait_until_offered(Resource.NEURONCORE, 12)
    assert await cluster.worker.stop_daemon() == 0


async def test_the_plugin_of_a_simulated_node_looks_into_no_directory_of_this_machine_s_kubelet(
    cluster: SimulatedCluster,
) -> None:
    """A user who is not root may not look, and a plugin that serves there would be taken for a second one."""
    given = msgspec.json.decode(cluster.worker.config.read_bytes())
    for each in msgspec.structs.fields(PluginSettings):
        if isinstance(each.default, Path) and each.default.is_relative_to("/var"):
            assert Path(given[each.name.replace("_", "-")]).is_relative_to(cluster.worker.config.parent)


async def test_g07_an_extender_that_is_asked_to_end_ends_and_answers_no_longer(cluster: SimulatedCluster) -> None:
    pod = cluster.api.create_pod(pod_manifest("late", {"main": (Resource(DEVICE), 1)}))
    assert await end_process(cluster._extender) == 0
    with pytest.raises(ExtenderCallError):
        await cluster.scheduler.filter(pod, [NODE_NAME])
