"""Waiting: what gated pods that fit nowhere cost while nothing changes, and while pods of others come and go."""

from __future__ import annotations

import asyncio
import os
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from extender_parts.clusters import TYPE, tell_kubeconfig
from extender_parts.measuring import filter_body, served
from extender_parts.start import extender
from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import GROUP_KEY, GROUP_SIZE_KEY
from neuron_plugin.simulation.api_server_kinds import PODS as PODS_KIND
from tests.support.api_server import StandInApiServer
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest

CASES = ((100, 10_000, 1), (5000, 1000, 50), (5000, 512, 0))
"""Nodes, pods that wait, and workloads of which they are: each asks for CPU of its own.

Of no workload they are one group, whose pods keep off each other's nodes, and half of the nodes that it needs are free.
"""
SETTLED_SECONDS, SECONDS = 60.0, 60.0
"""Until every pod was told why it waits, and then how long is measured."""


async def waiting() -> None:
    """The share of a CPU that a controller takes for pods that wait, a pod of others starting each second."""
    for nodes, pods, workloads in CASES:
        with served(_serve_waiting, (nodes, pods, workloads)) as kubeconfig:
            async with extender(kubeconfig, filter_body(["node-0"], devices=1)) as process:
                await asyncio.sleep(SETTLED_SECONDS)
                before = _cpu_of(process)
                await asyncio.sleep(SECONDS)
                share = (_cpu_of(process) - before) / SECONDS
        of = f"of {workloads} workloads that fit nowhere" if workloads else "of a group that does not fit as a whole"
        print(f"{pods} gated pods {of}, {nodes} nodes: {share:.1%} of a CPU")


def _serve_waiting(pipe: Connection, case: tuple[int, int, int]) -> None:
    asyncio.run(_serve(pipe, *case))


async def _serve(pipe: Connection, nodes: int, pods: int, workloads: int) -> None:
    async with StandInApiServer() as server:
        for number in range(nodes):
            node = node_manifest(f"node-{number}", TYPE)
            node["status"]["allocatable"] = {**node["status"]["allocatable"], "cpu": "128", "pods": "250"}
            server.create_node(node)
            if not workloads and number < pods // 2:
                continue
            held = {"NEURON_DEVS": "0,1,2,3,4,5,6,7"}
            server.create_pod(
                pod_manifest(f"held-{number}", Resource.NEURON, 8, node=f"node-{number}", annotations=held)
            )
        for number in range(pods):
            pod = gated_manifest(f"pod-{number}", Resource.NEURON, 16)
            if workloads:
                pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{1 + number % workloads}"
            else:
                pod["metadata"]["annotations"] = {GROUP_KEY: "ring", GROUP_SIZE_KEY: str(pods)}
                pod["metadata"]["labels"] = {"app": "ring"}
                apart = {"labelSelector": {"matchLabels": {"app": "ring"}}, "topologyKey": "kubernetes.io/hostname"}
                pod["spec"]["affinity"] = {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
                }
            server.create_pod(pod)
        await asyncio.gather(_come_and_go(server, nodes), tell_kubeconfig(pipe, server))


async def _come_and_go(server: StandInApiServer, nodes: int) -> None:
    """A pod without Neuron starts each second, and ends a second later."""
    for number in count():
        server.create_pod(pod_manifest(f"other-{number}", Resource.NEURON, 0, node=f"node-{number % nodes}"))
        await asyncio.sleep(1.0)
        server.delete(PODS_KIND, f"other-{number}", "default")


def _cpu_of(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
