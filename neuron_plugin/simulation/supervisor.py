"""A simulated cluster that runs by itself: its kubelets, schedulers and controllers, each in a loop of its own.

Pods run until they are deleted. What its Deployment, DaemonSet or kubelet would bring back is brought back: the
extender, a plugin, a node's object. No request of a client ends any of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections import defaultdict
from collections.abc import AsyncIterator

from neuron_plugin.allocation import Resource
from neuron_plugin.placement.context import REPORTER
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    CLAIMS,
    EVENTS,
    NODES,
    PODS,
    VOLUMES,
    AnyJson,
    ServedKind,
)
from neuron_plugin.simulation.api_server_pods import budget_status
from neuron_plugin.simulation.claim_controller import sync_claims
from neuron_plugin.simulation.cluster import SimulatedCluster
from neuron_plugin.simulation.node_lifecycle import NodeLifecycle
from neuron_plugin.simulation.schedule_one import Scheduling

LOOK_SECONDS = 1.0
"""Between two looks where nothing has changed: then waiting pods are tried again, as by kube-scheduler."""
WORK_SECONDS = 1.0
"""Between two changes of what the cores have done."""


async def turns(api: SimulatedApiServer, *kinds: ServedKind, seconds: float = LOOK_SECONDS) -> AsyncIterator[None]:
    """A turn now, then one after each change of these kinds, and one at least every so many seconds."""
    changes = api.follow(*kinds)
    try:
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changes.get()
            while not changes.empty():
                changes.get_nowait()
    finally:
        api.unfollow(changes)


async def supervise(cluster: SimulatedCluster) -> AsyncIterator[str]:
    """Run the cluster, and say in one line each what happened. Endless."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loops = (_kubelets, _control_plane, _upkeep, _cores, _events)
    tasks = [asyncio.create_task(loop(cluster, lines), name=loop.__name__) for loop in loops]
    try:
        while True:
            line = asyncio.ensure_future(lines.get())
            await asyncio.wait((line, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
                await asyncio.gather(*(task for task in tasks if task.done()))  # raises why
            yield line.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _kubelets(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Each kubelet looks at the pods of its node."""
    for worker in cluster.workers.values():
        worker.pods.say = lines.put_nowait
    pods = defaultdict[str, list[AnyJson]](list)
    async for _ in turns(cluster.api, PODS):
        before, pods = pods, defaultdict(list)
        for manifest in cluster.api.objects(PODS):
            pods[manifest["spec"].get("nodeName", "")].append(manifest)
        for worker in cluster.workers.values():
            worker.pods.look(pods[worker.name])
        for name in before.keys() | pods.keys() if cluster.played else ():
            same = len(before[name]) == len(pods[name]) and all(map(operator.is_, before[name], pods[name]))
            if name in cluster.played and not same:
                cluster.played[name].look(pods[name])


async def _control_plane(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Claims are made and given up, volumes provisioned, budgets counted, and waiting pods scheduled."""
    scheduling = Scheduling(cluster.api, cluster.scheduler, cluster.asks_extender, lines.put_nowait)
    async for _ in turns(cluster.api, PODS, NODES, CLAIMS):
        if cluster.by_claims:
            sync_claims(cluster.api)
        provision(cluster.api)
        for budget in cluster.api.objects(BUDGETS):
            metadata = budget["metadata"]
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # one that cannot be followed
                status = budget_status(budget, cluster.api.objects(PODS))
                cluster.api.patch_status(BUDGETS, metadata["name"], status, metadata["namespace"])
        await scheduling.look()


def provision(api: SimulatedApiServer) -> None:
    """Give each new PersistentVolumeClaim a volume of its own that every node can use."""
    for claim in api.objects(CLAIMS):
        metadata, spec = claim["metadata"], claim.get("spec") or {}
        if not spec.get("volumeName"):
            name = f"pvc-{metadata['uid']}"
            volume = {key: spec[key] for key in ("accessModes", "storageClassName") if key in spec}
            api.create(VOLUMES, {"metadata": {"name": name}, "spec": volume, "status": {"phase": "Bound"}}, "")
            api.change(CLAIMS, metadata["name"], {"spec": {"volumeName": name}}, metadata["namespace"])
            api.patch_status(CLAIMS, metadata["name"], {"phase": "Bound"}, metadata["namespace"])


async def _upkeep(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """What has ended is brought back, nodes that are silent are marked, and what the nodes have is written down."""
    lifecycle = NodeLifecycle(cluster.api)
    async for _ in turns(cluster.api, NODES):
        if (status := cluster.extender_status) is not None:
            lines.put_nowait(f"the extender has ended with {status} and is started again")
            await cluster.restart_extender()
        for played in cluster.played.values():
            played.upkeep(time.monotonic())
        nodes = {node["metadata"]["name"] for node in cluster.api.objects(NODES)}
        for line in lifecycle.look(cluster.silent_nodes(), time.monotonic()):
            lines.put_nowait(line)
        for worker in (worker for worker in cluster.workers.values() if worker.up):
            if worker.name not in nodes:
                lines.put_nowait(f"node {worker.name}: its object is gone, and its kubelet makes it again")
                worker.register()
            if worker.daemon and (status := worker.daemon.returncode) is not None:
                lines.put_nowait(f"node {worker.name}: its plugin has ended with {status} and is started again")
                await worker.start_daemon()
            if worker.report_capacity():
                counts = (
                    f"{worker.kubelet.capacity(resource.value).allocatable} {resource.short_name}"
                    for resource in Resource
                )
                lines.put_nowait(f"node {worker.name}: allocatable are {', '.join(counts)}")


async def _cores(cluster: SimulatedCluster, _: asyncio.Queue[str]) -> None:
    """Time passes for the cores of the nodes: the containers of their pods use them."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(WORK_SECONDS)
        now = time.monotonic()
        for worker in cluster.workers.values():
            await worker.work(now - before)
        before = now


async def _events(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """What the extender writes about pods and nodes is said: why a gated pod waits, for instance."""
    changes = cluster.api.follow(EVENTS)
    while True:
        change = await changes.get()
        if change is None or isinstance(change, Exception) or change.old is not None:
            continue
        event = change.new.value
        about = event.get("regarding") or {}
        if event.get("reportingController") == REPORTER:
            name = "/".join(filter(None, (about.get("namespace"), about.get("name"))))
            lines.put_nowait(f"{str(about.get('kind')).lower()} {name}: {event.get('reason')}: {event.get('note')}")
