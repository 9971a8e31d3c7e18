"""An extender that decides nothing, on the libraries of the real one: what the scheduler's two requests cost at least.

Filter names one of the nodes that it is sent, each in turn; bind sends the Binding that it is asked for. It follows no
pods and no nodes. Benchmark ``scheduler`` runs it in turns with the real one:

    python benchmarks/scheduler_floor.py KUBECONFIG PORT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from aiohttp import web

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.writes import bind_pod
from neuron_plugin.http_server import serving

ANNOTATIONS = {"benchmark/ids": "4,5,6,7", "benchmark/time": "1795400751830456525"}
"""About as long as an assignment, under names that nothing reads."""


class _Filter(msgspec.Struct):
    NodeNames: list[str]


class _Bind(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


async def serve(kubeconfig: Path, port: int) -> None:
    """Answer until the process is ended."""
    async with await connect(kubeconfig) as api:
        calls = 0

        async def filter_nodes(request: web.Request) -> web.Response:
            nonlocal calls
            calls += 1
            names = msgspec.json.decode(await request.read(), type=_Filter).NodeNames
            answer = {"NodeNames": [names[calls % len(names)]], "FailedNodes": {}, "Error": ""}
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

        async def bind(request: web.Request) -> web.Response:
            asked = msgspec.json.decode(await request.read(), type=_Bind)
            pod = PodReference(PodUid(asked.PodUID), asked.PodNamespace, asked.PodName)
            await send(api, bind_pod(pod, asked.Node, ANNOTATIONS), timeout_seconds=10)
            return web.Response(body=b'{"Error":""}', content_type="application/json")

        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/filter", filter_nodes), web.post("/bind", bind)])
        async with serving(app, "127.0.0.1", port):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
