"""Filter over HTTP, in processes of their own, as the scheduler meets it."""

from __future__ import annotations

import asyncio
import statistics
from multiprocessing.connection import Connection

from aiohttp import web

from extender_parts.clusters import cluster, filled_service
from extender_parts.measuring import echo, filter_body, latencies, log_to_nowhere, served
from neuron_plugin.http_server import serving
from neuron_plugin.placement.extender.server import verb_routes


async def http() -> None:
    """Filter over keep-alive HTTP, against a server that only decodes and re-encodes."""
    print("filter over HTTP, names (ms, client included)")
    for nodes in (100, 1000, 5000):
        body = filter_body([node["metadata"]["name"] for node, *_ in cluster(nodes)])
        with served(_serve_floor, nodes) as floor_port, served(_serve_filter, nodes) as port:
            floor = await latencies(f"http://127.0.0.1:{floor_port}/filter", body)
            found = await latencies(f"http://127.0.0.1:{port}/filter", body)
        p50, floor50 = statistics.median(found), statistics.median(floor)
        p99 = sorted(found)[int(len(found) * 0.99)]
        print(
            f"{nodes:>6} nodes: floor p50 {floor50:.2f}, filter p50 {p50:.2f}, p99 {p99:.2f}, ratio {p50 / floor50:.2f}"
        )


def _serve_filter(pipe: Connection, nodes: int) -> None:
    log_to_nowhere()
    asyncio.run(_serve(pipe, verb_routes(filled_service(nodes)[0])))


def _serve_floor(pipe: Connection, _: int) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=echo(await request.read()), content_type="application/json")

    asyncio.run(_serve(pipe, [web.post("/filter", handle)]))


async def _serve(pipe: Connection, routes: list[web.RouteDef]) -> None:
    app = web.Application(client_max_size=128 << 20)
    app.add_routes(routes)
    async with serving(app, "127.0.0.1", 0) as port:
        pipe.send(port)
        await asyncio.Event().wait()
