"""Start: from the start of a process to its first good filter."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import aiohttp

from extender_parts.clusters import serve_cluster
from extender_parts.measuring import filter_body, served


def _serve_nodes(pipe: Connection, nodes: int) -> None:
    """As ``_serve_api`` without a pod: if one waits, an extender first outwaits its predecessor's writes."""
    asyncio.run(serve_cluster(pipe, nodes, pods=0))


async def start() -> None:
    """From the start of a process to its first good filter, 1000 nodes; and the CPU it took till its end."""
    with served(_serve_nodes, 1000) as kubeconfig:
        before, began = _cpu_of_children(), time.perf_counter()
        async with extender(kubeconfig, filter_body([f"node-{number}" for number in range(1000)])):
            took = time.perf_counter() - began
        cpu = _cpu_of_children() - before
    print(f"start of the process to the first good filter, 1000 nodes: {took:.2f} s; {cpu:.2f} s of CPU in all")


@asynccontextmanager
async def extender(kubeconfig: str, body: bytes) -> AsyncIterator[int]:
    """An extender in a process of its own, by its id, once it has answered this filter."""
    arguments = ["extender", "--kubeconfig", kubeconfig, "--port", "19345", "--health-port", "19346"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "neuron_plugin.cli.main",
        *arguments,
        "--no-leader-election",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        while not await _good(body):
            await asyncio.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _good(body: bytes) -> bool:
    url, headers = "http://127.0.0.1:19345/filter", {"Content-Type": "application/json"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, data=body) as response:
            return bool(json.loads(await response.read()).get("NodeNames"))
    except (aiohttp.ClientError, OSError):
        return False
