"""A simulated cluster that runs by itself: its kubelets, schedulers and controllers, each in a loop of its own.

Pods run until they are deleted. What its Deployment, DaemonSet or kubelet would bring back is brought back: the
extender, a plugin, a node's object. No request of a client ends any of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator

from neuron_plugin.allocation import Resource
from neuron_plugin.scheduling.events import REPORTER
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import BUDGETS, EVENTS, NODES, PODS, AnyJson, ServedKind
from neuron_plugin.simulation.api_server_pods import budget_status
from neuron_plugin.simulation.claim_controller import sync_claims
from neuron_plugin.simulation.cluster import SimulatedCluster
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
    async for _ in turns(cluster.api, PODS):
        pods = defaultdict[str, list[AnyJson]](list)
        for manifest in cluster.api.objects(PODS):
            pods[manifest["spec"].get("nodeName", "")].append(manifest)
        for worker in cluster.workers.values():
            worker.pods.look(pods[worker.name])


async def _control_plane(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Claims are made and given up, budgets counted, and waiting pods scheduled."""
    scheduling = Scheduling(cluster.api, cluster.scheduler, cluster.asks_extender, lines.put_nowait)
    async for _ in turns(cluster.api, PODS, NODES):
        if cluster.by_claims:
            sync_claims(cluster.api)
        for budget in cluster.api.objects(BUDGETS):
            metadata = budget["metadata"]
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # one that cannot be followed
                status = budget_status(budget, cluster.api.objects(PODS))
                cluster.api.patch_status(BUDGETS, metadata["name"], status, metadata["namespace"])
        await scheduling.look()


async def _upkeep(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """What has ended is brought back, and what the nodes have is written down."""
    async for _ in turns(cluster.api, NODES):
        if (status := cluster.extender_status) is not None:
            lines.put_nowait(f"the extender has ended with {status} and is started again")
            await cluster.restart_extender()
        nodes = {node["metadata"]["name"] for node in cluster.api.objects(NODES)}
        for worker in cluster.workers.values():
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
    """What the extender writes about pods is said: why a gated pod waits, for instance."""
    changes = cluster.api.follow(EVENTS)
    while True:
        change = await changes.get()
        if change is None or isinstance(change, Exception) or change.old is not None:
            continue
        event = change.new.value
        about = event.get("regarding") or {}
        if event.get("reportingController") == REPORTER and about.get("kind") == "Pod":
            name = f"{about.get('namespace')}/{about.get('name')}"
            lines.put_nowait(f"pod {name}: {event.get('reason')}: {event.get('note')}")
