"""One look of the leader for moves: what it costs where many pods wait and every node is fragmented."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from extender_parts.clusters import TYPE, running, tell_kubeconfig
from extender_parts.measuring import log_to_nowhere, seeded, served
from neuron_plugin.allocation import Capacity, Resource
from neuron_plugin.allocation.keys import MOVABLE_KEY
from neuron_plugin.allocation.placement import fitting
from neuron_plugin.cluster.client import connect
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.planner import MOST_PODS, Planner
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules
from neuron_plugin.topology import Unit
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "set-uid", "controller": True}


def moves() -> None:
    """A first look and a later one, with 20 pods that wait for two rows; each node has one row and parts of three.

    The floor judges each pod on each node, and looks for no move.
    """
    for nodes in (1000, 5000):
        with served(_serve_fragmented, nodes) as kubeconfig, served(_look, kubeconfig) as figures:
            first, later, floor, found = figures
        cpu = f"{first:.2f} s, later {later:.2f} s, {later / floor:.1f} times its floor"
        print(f"look for moves, {nodes} nodes, {MOST_PODS} pods wait, CPU: {cpu}; {found} moves")


def _serve_fragmented(pipe: Connection, nodes: int) -> None:
    asyncio.run(_serve(pipe, nodes))


async def _serve(pipe: Connection, nodes: int) -> None:
    chance = seeded(1)
    async with StandInApiServer() as server:
        for number in range(nodes):
            name = f"node-{number}"
            server.create_node(node_manifest(name, TYPE))
            server.create_pod(_bound(f"row-{number}", name, "0,1,2,3"))
            for row in (4, 8, 12):
                server.create_pod(_bound(f"one-{number}-{row}", name, str(row + chance.randrange(4))))
        for number in range(MOST_PODS):
            server.create_pod(pod_manifest(f"waiting-{number}", Resource.NEURON, 8))
        await tell_kubeconfig(pipe, server)


def _bound(name: str, node: str, devices: str) -> dict[str, Any]:
    """A pod with these devices; one that has a single device may be moved."""
    single = "," not in devices
    annotations = {"NEURON_DEVS": devices} | ({MOVABLE_KEY: "true"} if single else {})
    count = len(devices.split(","))
    manifest = pod_manifest(name, Resource.NEURON, count, node=node, annotations=annotations)
    if single:
        manifest["metadata"]["ownerReferences"] = [OWNER]
    return manifest


def _look(pipe: Connection, kubeconfig: str) -> None:
    asyncio.run(_measure(pipe, Path(kubeconfig)))


async def _measure(pipe: Connection, kubeconfig: Path) -> None:
    log_to_nowhere()
    async with await connect(kubeconfig) as api, running(api) as daemon:
        context = Context(api, daemon.state, Readiness({}), "benchmark")
        planner = Planner(context, Room(context, Writer(context)), rules=MoveRules(), after_seconds=0.0)
        seconds = []
        for _ in range(3):
            began = time.process_time()
            await planner.look()
            seconds.append(time.process_time() - began)
        began, state = time.process_time(), daemon.state
        cluster = state.snapshot()
        for pod in state.waiting():
            for info in cluster.nodes.values():
                if isinstance(info.capacity, Capacity):
                    fitting(info.capacity.geometry, info.capacity.free_mask, Unit.DEVICE, pod.requests[0].count)
        floor = time.process_time() - began
        moves = context.metrics["extender_waiting_pods_by_move"].get((), 0)
        pipe.send((seconds[0], min(seconds[1:]), floor, int(moves)))
        await asyncio.Event().wait()
