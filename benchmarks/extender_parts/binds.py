"""Binds per second against plain binding POSTs, and filters while binds wait on a slow API server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from extender_parts.clusters import running, serve_cluster
from extender_parts.measuring import filter_body, latencies, served
from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import bind_pod
from neuron_plugin.placement.daemon import ExtenderDaemon

BIND_CLIENTS = 8
ROUNDS = 5
NODES = 80
BATCH = 80
PODS_WAITING = BATCH * (2 * ROUNDS + 1)
SLOW_SECONDS = 0.3
ORDINARY_SECONDS = 0.005
"""A binding is a write to etcd, which is not done before a disk has it."""


def _serve_api(pipe: Connection, bind_seconds: float) -> None:
    asyncio.run(serve_cluster(pipe, NODES, PODS_WAITING, bind_seconds))


async def binds() -> None:
    """Binds per second against plain binding POSTs, and filter latency while binds wait on a slow API server."""
    for seconds in (0.0, ORDINARY_SECONDS):
        print(f"bindings that take the API server {seconds * 1000:g} ms more than this stand-in needs")
        _uids.clear()
        with served(_serve_api, seconds) as kubeconfig:
            async with await connect(Path(kubeconfig)) as api:
                await _rates(api)
    with served(_serve_api, SLOW_SECONDS) as kubeconfig:
        async with await connect(Path(kubeconfig)) as api, running(api) as daemon:
            await _slow_binds(daemon)


async def _rates(api: KubernetesApi) -> None:
    """Plain POSTs and ours in turns, both while the extender hears of every binding by its watch."""
    batches = [range(start, start + BATCH) for start in range(0, PODS_WAITING, BATCH)]
    alone, _ = await _rate(batches.pop(), _raw_bind(api))
    async with running(api) as daemon:
        pairs = [
            (await _rate(next_raw, _raw_bind(api)), await _rate(next_ours, _our_bind(daemon)))
            for next_raw, next_ours in zip(batches[::2], batches[1::2], strict=True)
        ]
    ratio = statistics.median(ours / raw for (raw, _), (ours, _) in pairs)
    cpu = statistics.median(raw / ours for (_, raw), (_, ours) in pairs)
    print(f"  plain POSTs while nobody watches {alone:.0f} a second")
    for name, found in zip(("plain POST", "extender"), zip(*pairs, strict=True), strict=True):
        rate, used = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"  {name}: {rate:.0f} a second, {used:.2f} ms of CPU each ({BIND_CLIENTS} clients)")
    print(f"  ratio {ratio:.2f}, of CPU {cpu:.2f}")


async def _slow_binds(daemon: ExtenderDaemon) -> None:
    names = list(daemon.state.nodes)
    url, body = f"http://127.0.0.1:{daemon.port}/filter", filter_body(names)
    waiting = iter(range(PODS_WAITING))
    quiet, busy = [], []
    for _ in range(ROUNDS):
        quiet.append(statistics.median(await latencies(url, body)))
        stop = asyncio.Event()
        clients = [asyncio.create_task(_keep_binding(daemon, waiting, stop)) for _ in range(BIND_CLIENTS)]
        busy.append(statistics.median(await latencies(url, body)))
        stop.set()
        await asyncio.gather(*clients)
    ratio = statistics.median(slow / fast for slow, fast in zip(busy, quiet, strict=True))
    text = f"{statistics.median(quiet):.2f} ms alone, {statistics.median(busy):.2f} ms while 8 binds wait 300 ms each"
    print(f"filter p50, {len(names)} nodes: {text}, ratio {ratio:.2f}")


async def _keep_binding(daemon: ExtenderDaemon, waiting: Iterator[int], stop: asyncio.Event) -> None:
    bind = _our_bind(daemon)
    for number in waiting:
        if stop.is_set():
            return
        await bind(number)


async def _rate(numbers: range, bind: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
    """Binds per second, and milliseconds of this process's CPU for each."""
    waiting = iter(numbers)

    async def client() -> None:
        for number in waiting:
            await bind(number)

    started, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(BIND_CLIENTS)))
    took, used = time.perf_counter() - started, time.process_time() - used
    return len(numbers) / took, used * 1000 / len(numbers)


def _raw_bind(api: KubernetesApi) -> Callable[[int], Awaitable[None]]:
    async def bind(number: int) -> None:
        device, node = divmod(number, NODES // 2)
        annotations = {"NEURON_DEVS": f"{device % 16}", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}
        pod = await _uid_of(api, number)
        reference = PodReference(PodUid(pod.uid), pod.namespace, pod.name)
        request = bind_pod(reference, f"node-{node}", annotations)
        await send(api, request, timeout_seconds=5)

    return bind


def _our_bind(daemon: ExtenderDaemon) -> Callable[[int], Awaitable[None]]:
    uids = {pod.reference.name: pod.reference for pod in daemon.state.pods.values()}

    async def bind(number: int) -> None:
        pod = uids[f"pod-{number}"]
        outcome = await daemon.binder.bind(pod, f"node-{NODES // 2 + number % (NODES // 2)}")
        if outcome.error:
            raise RuntimeError(outcome.error)

    return bind


_uids: dict[str, PodReference] = {}


async def _uid_of(api: KubernetesApi, number: int) -> PodReference:
    if not _uids:
        async for page in pages(api, PODS, page_timeout_seconds=30):
            for pod in page.records:
                _uids[pod.name] = PodReference(PodUid(pod.uid), pod.namespace, pod.name)
    return _uids[f"pod-{number}"]
