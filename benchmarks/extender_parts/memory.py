"""Memory: 5000 nodes and 10 000 Neuron pods among 50 000."""

from __future__ import annotations

import asyncio
import resource
from multiprocessing.connection import Connection
from pathlib import Path

from extender_parts.clusters import cluster, running, tell_kubeconfig
from extender_parts.measuring import filter_body, log_to_nowhere, served
from neuron_plugin.allocation import Resource
from neuron_plugin.cluster.client import connect
from tests.support.api_server import StandInApiServer
from tests.support.manifests import pod_manifest

CROWD = 50_000


def memory() -> None:
    """Resident memory of an extender that follows a large cluster, after its first verbs."""
    with served(_serve_crowd, 5000) as kubeconfig, served(_hold, kubeconfig) as figures:
        before, after, nodes, pods = figures
    print(f"memory: {before} MB imported, {after} MB with {nodes} nodes and {pods} Neuron pods among {CROWD}")


def _serve_crowd(pipe: Connection, nodes: int) -> None:
    asyncio.run(_serve_crowded(pipe, nodes))


async def _serve_crowded(pipe: Connection, nodes: int) -> None:
    """A stand-in API server of many nodes and pods, most of which have nothing to do with Neuron."""
    async with StandInApiServer() as server:
        for node, *pods in cluster(nodes):
            server.create_node(node)
            for pod in pods:
                server.create_pod(pod)
        for number in range(CROWD - 2 * nodes):
            server.create_pod(pod_manifest(f"plain-{number}", Resource.NEURON, 0, node=f"node-{number % 1000}"))
        await tell_kubeconfig(pipe, server)


def _hold(pipe: Connection, kubeconfig: str) -> None:
    asyncio.run(_follow(pipe, Path(kubeconfig)))


async def _follow(pipe: Connection, kubeconfig: Path) -> None:
    log_to_nowhere()
    async with await connect(kubeconfig) as api:
        before = _resident_mb()
        async with running(api) as daemon:
            body = filter_body(list(daemon.state.nodes))
            daemon.service.answer("filter", body)
            daemon.service.answer("prioritize", body)
            pipe.send((before, _resident_mb(), len(daemon.state.nodes), len(daemon.state.pods)))
            await asyncio.Event().wait()


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() >> 20
