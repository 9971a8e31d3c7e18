"""The verbs served over HTTP on loopback, and a caller's side of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from neuron_plugin import http_server
from neuron_plugin.allocation import Dialect
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService, verb_routes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.placement.writer import Writer
from tests.support.api_server import StandInApiServer
from tests.support.manifests import pod_manifest
from tests.support.world import DEVICE, World

TRN1 = "trn1.32xlarge"


def service_on(
    world: World, dialects: Collection[Dialect] = (Dialect.NEURON_PLUGIN,), answer: FilterMode = FilterMode.ALL
) -> ExtenderService:
    context = Context(StandInApiServer(), world.state, Readiness({}), "one")
    writer = Writer(context, dialects)
    leads = Leads(context, writer)
    return ExtenderService(context, Binder(context, writer, leads), leads, answer=answer)


@asynccontextmanager
async def serving(world: World, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async with served(verb_routes(service_on(world)), context) as port:
        yield port


@asynccontextmanager
async def served(routes: list[web.RouteDef], context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    app = web.Application(client_max_size=1 << 20)
    app.add_routes(routes)
    async with http_server.serving(app, "127.0.0.1", 0, tls=context) as port:
        yield port


def args(names: object = ("node",), amount: int = 4) -> bytes:
    return json.dumps({"Pod": pod_manifest("pod", DEVICE, amount), "NodeNames": names}).encode()


async def post(port: int, path: str, body: bytes | io.BytesIO, **headers: str) -> object:
    headers = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", data=body, headers=headers) as response,
    ):
        assert response.status == 200
        assert response.content_type == "application/json"
        return await response.json()


def error_of(answer: object) -> str:
    assert isinstance(answer, dict)
    return str(answer["Error"])


def request_for(name: str) -> bytes:
    body = args([name])
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[str]:
    """The names that so many answers to ``request_for`` are about."""
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        found.append(next(iter(json.loads(await reader.readexactly(length))["FailedAndUnresolvableNodes"])))
    return found


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
