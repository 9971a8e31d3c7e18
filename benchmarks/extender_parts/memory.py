"""Memory: 5000 nodes and 10 000 Neuron pods among 50 000."""

from __future__ import annotations

import asyncio
import resource
from multiprocessing.connection import Connection
from pathlib import Path

from extender_parts.clusters import cluster, tell_kubeconfig
from extender_parts.measuring import filter_body, served
from extender_parts.start import extender
from neuron_plugin.allocation import Resource
from tests.support.api_server import StandInApiServer
from tests.support.manifests import pod_manifest

CROWD = 50_000


async def memory() -> None:
    """Resident memory of an extender in a large cluster, after its first filter, and of one in an empty cluster."""
    found = []
    for nodes, pods in ((1, 1), (5000, CROWD)):
        names = [node["metadata"]["name"] for node, *_ in cluster(nodes)]
        with served(_serve_crowd, (nodes, pods)) as kubeconfig:
            async with extender(kubeconfig, filter_body(names)) as process:
                found.append(_resident_mb(process))
    print(f"memory: {found[0]} MB with one node, {found[1]} MB with 5000 nodes and 10000 Neuron pods among {CROWD}")


def _serve_crowd(pipe: Connection, size: tuple[int, int]) -> None:
    asyncio.run(_serve_crowded(pipe, *size))


async def _serve_crowded(pipe: Connection, nodes: int, pods: int) -> None:
    """A stand-in API server of many nodes and pods, most of which have nothing to do with Neuron."""
    async with StandInApiServer() as server:
        for node, *own in cluster(nodes):
            server.create_node(node)
            for pod in own:
                server.create_pod(pod)
        for number in range(pods - 2 * nodes):
            server.create_pod(pod_manifest(f"plain-{number}", Resource.NEURON, 0, node=f"node-{number % 1000}"))
        await tell_kubeconfig(pipe, server)


def _resident_mb(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() >> 20
