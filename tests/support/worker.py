"""What happens to a simulated cluster's daemons and pods only in tests."""

from __future__ import annotations

from neuron_plugin.simulation import SimulatedCluster
from neuron_plugin.simulation.api_server_kinds import PODS
from neuron_plugin.simulation.cluster_nodes import SimulatedWorker


async def kill_daemon(worker: SimulatedWorker) -> None:
    """End the node daemon by SIGKILL."""
    assert worker.daemon is not None
    worker.daemon.kill()
    await worker.daemon.wait()
    worker.daemon = None


async def end_pod(cluster: SimulatedCluster, name: str) -> None:
    """The pod's containers have ended, and the object is deleted."""
    manifest = cluster.api.get(PODS, name, "default")
    await cluster.workers[manifest["spec"]["nodeName"]].pods.end(manifest)
