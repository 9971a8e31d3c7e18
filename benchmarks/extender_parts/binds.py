"""Binds per second against plain binding POSTs, and filters while binds wait on a slow API server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

from extender_parts.clusters import running, serve_cluster
from extender_parts.measuring import filter_body, latencies, served
from neuron_plugin.allocation.ledger import Pod, PodUid
from neuron_plugin.cluster.kinds import PODS
from neuron_plugin.cluster.lists import pages
from neuron_plugin.cluster.transport import KubernetesApi, connect
from neuron_plugin.extender.daemon import ExtenderDaemon
from neuron_plugin.extender.pod_writes import ApiPodWrites

BIND_CLIENTS = 8
BINDS = 400


def _serve_api(pipe: Connection, nodes: int) -> None:
    asyncio.run(serve_cluster(pipe, nodes, BINDS * 2))


async def binds() -> None:
    """Binds per second against plain binding POSTs, and filter latency while binds wait on a slow API server."""
    with served(_serve_api, 60) as kubeconfig:
        async with await connect(Path(kubeconfig)) as api:
            raw = await _rate(range(BINDS), _raw_bind(api))
            async with running(api) as daemon:
                ours = await _rate(range(BINDS, BINDS * 2), _our_bind(daemon))
    print(
        f"binds per second, {BIND_CLIENTS} clients: plain POSTs {raw:.0f}, extender {ours:.0f}, ratio {ours / raw:.2f}"
    )
    with served(_serve_api, -60) as kubeconfig:
        async with await connect(Path(kubeconfig)) as api, running(api) as daemon:
            await _slow_binds(daemon)


async def _slow_binds(daemon: ExtenderDaemon) -> None:
    names = list(daemon.state.nodes)
    url, body = f"http://127.0.0.1:{daemon.port}/filter", filter_body(names)
    quiet = statistics.median(await latencies(url, body))
    stop = asyncio.Event()

    async def keep_binding(first: int) -> None:
        number = first
        while not stop.is_set():
            await _our_bind(daemon)(number)
            number += BIND_CLIENTS

    clients = [asyncio.create_task(keep_binding(number)) for number in range(BIND_CLIENTS)]
    busy = statistics.median(await latencies(url, body))
    stop.set()
    await asyncio.gather(*clients)
    text = f"{quiet:.2f} ms alone, {busy:.2f} ms while 8 binds wait 300 ms each, ratio {busy / quiet:.2f}"
    print(f"filter p50, {len(names)} nodes: {text}")


async def _rate(numbers: range, bind: Callable[[int], Awaitable[None]]) -> float:
    waiting = iter(numbers)

    async def client() -> None:
        for number in waiting:
            await bind(number)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(BIND_CLIENTS)))
    return len(numbers) / (time.perf_counter() - started)


def _raw_bind(api: KubernetesApi) -> Callable[[int], Awaitable[None]]:
    writes = ApiPodWrites(api)
    annotations = {"NEURON_DEVS": "0", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}

    async def bind(number: int) -> None:
        seen = await _uid_of(api, number)
        await writes.bind(seen, f"node-{number % 25}", annotations, timeout_seconds=5)

    return bind


def _our_bind(daemon: ExtenderDaemon) -> Callable[[int], Awaitable[None]]:
    uids = {record.pod.name: record.pod for record in daemon.state.pods.values()}

    async def bind(number: int) -> None:
        pod = uids[f"pod-{number}"]
        outcome = await daemon.binder.bind(pod, f"node-{25 + number % 35}")
        if outcome.error:
            raise RuntimeError(outcome.error)

    return bind


_uids: dict[str, Pod] = {}


async def _uid_of(api: KubernetesApi, number: int) -> Pod:
    if not _uids:
        async for page in pages(api, PODS, page_timeout_seconds=30):
            for pod in page.records:
                _uids[pod.name] = Pod(PodUid(pod.uid), pod.namespace, pod.name)
    return _uids[f"pod-{number}"]
