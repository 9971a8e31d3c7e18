"""Clusters to measure on: as a state in this process, and behind a stand-in API server in another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from extender_parts.measuring import seeded
from neuron_plugin.allocation import Resource
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.daemon import ExtenderDaemon
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.informers import keep_pod
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.placement.writer import Writer
from neuron_plugin.topology import catalogue, product_names
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import container, node_manifest, pod_manifest

TYPE = "trn1.32xlarge"


def filled_service(nodes: int, answer: FilterMode = FilterMode.ALL) -> tuple[ExtenderService, ClusterState, list[str]]:
    """A service over nodes in random, distinct states, two pods a node."""
    types = catalogue()
    state, names = ClusterState(products=product_names(types)), list[str]()
    for node, *pods in cluster(nodes):
        names.append(node["metadata"]["name"])
        state.put_node(neuron_node(NODES.decode(msgspec.json.encode(node)), types))
        for pod in pods:
            state.put_pod(record_of(pod))
    return service_on(state, answer), state, names


def service_on(state: ClusterState, answer: FilterMode = FilterMode.ALL) -> ExtenderService:
    """A service that does not bind."""
    context = Context(StandInApiServer(), state, Readiness({}), "one")
    writer = Writer(context)
    leads = Leads(context, writer)
    return ExtenderService(context, Binder(context, writer, leads), leads, answer=answer)


def cluster(nodes: int) -> Iterator[list[dict[str, Any]]]:
    """Each node with its two pods. No two nodes have the same devices unhealthy and the same cores held."""
    chance, seen = seeded(1), set[object]()
    while len(seen) < nodes:
        unhealthy = tuple(sorted(chance.sample(range(16), chance.randrange(3))))
        device, cores = chance.randrange(8), tuple(sorted(chance.sample(range(16, 32), 2)))
        if (unhealthy, device, cores) in seen:
            continue
        number = len(seen)
        seen.add((unhealthy, device, cores))
        name = f"ip-10-{number // 250}-{number % 250}-17.ec2.internal"
        node = node_manifest(name, TYPE, unhealthy=dict.fromkeys(unhealthy, "ECC"))
        node["metadata"]["labels"]["kubernetes.io/hostname"] = name
        yield [node, bound_pod(f"pod-{number}", name, device), core_pod(f"core-pod-{number}", name, cores)]


def bound_pod(name: str, node: str, device: int) -> dict[str, Any]:
    """A pod that holds one device."""
    return pod_manifest(name, Resource.NEURON, 1, node=node, annotations={"NEURON_DEVS": str(device)})


def core_pod(name: str, node: str, cores: tuple[int, ...]) -> dict[str, Any]:
    """A pod that holds a core for each of its containers."""
    each = [container(f"c{core}", Resource.NEURONCORE, 1) for core in cores]
    return pod_manifest(name, containers=each, node=node, annotations={"NEURON_CORES": "|".join(map(str, cores))})


def record_of(manifest: dict[str, Any]) -> Any:
    """What the watch would keep of a pod."""
    return keep_pod(PODS.decode(msgspec.json.encode(manifest)))


async def serve_cluster(pipe: Connection, nodes: int, pods: int, bind_seconds: float = 0.0) -> None:
    """A stand-in API server with nodes and waiting pods, whose bindings take that long."""
    async with StandInApiServer() as server:
        for number in range(nodes):
            server.create_node(node_manifest(f"node-{number}", TYPE))
        for number in range(pods):
            server.create_pod(pod_manifest(f"pod-{number}", Resource.NEURON, 1))
        if bind_seconds:
            slow = Match(method="POST", path="/binding$")
            server.fail(Fault(slow, times=10_000, delay_seconds=bind_seconds))
        await tell_kubeconfig(pipe, server)


async def tell_kubeconfig(pipe: Connection, server: StandInApiServer) -> None:
    """Report where the server is to be found, and serve on."""
    with tempfile.TemporaryDirectory() as directory:
        pipe.send(str(server.write_kubeconfig(Path(directory) / "kubeconfig")))
        await asyncio.Event().wait()


@asynccontextmanager
async def running(api: KubernetesApi) -> AsyncIterator[ExtenderDaemon]:
    """An extender that is ready, for the length of the block."""
    settings = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", leader_election=False)
    daemon, stop = ExtenderDaemon(settings, catalogue(), api), asyncio.Event()
    running = asyncio.create_task(daemon.run(stop))
    while daemon.ready.why_not:
        await asyncio.sleep(0.01)
    try:
        yield daemon
    finally:
        stop.set()
        await running
