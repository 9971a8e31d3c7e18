"""The verbs over HTTP.

Every verb is served at the root and under the two prefixes that existing scheduler configurations use. A request is
taken in whole under a deadline and a size limit before anything looks at it, so a slow or endless caller costs a
connection and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from neuron_plugin.extender.connections import Runner
from neuron_plugin.extender.service import ExtenderService

PREFIXES = ("", "/scheduler", "/apis/neuron-plugin.io/v1/schedule")
BODY_SECONDS = 5.0
"""A caller that takes longer to send its body has given up by the scheduler's own httpTimeout."""

_MIB = 1 << 20
_log = logging.getLogger(__name__)

Answer = Callable[[bytes], Awaitable[bytes]]


def verb_routes(service: ExtenderService) -> list[web.RouteDef]:
    """The routes of the four verbs."""

    async def filter_(body: bytes) -> bytes:
        return service.filter(body)

    async def prioritize(body: bytes) -> bytes:
        return service.prioritize(body)

    async def preempt(body: bytes) -> bytes:
        return service.preempt(body)

    verbs: dict[str, Answer] = {
        "filter": filter_,
        "prioritize": prioritize,
        "preempt": preempt,
        "bind": service.bind,
    }
    return [
        web.post(f"{prefix}/{verb}", _handler(service, verb, answer))
        for prefix in PREFIXES
        for verb, answer in verbs.items()
    ]


def application(routes: list[web.RouteDef], max_body_mib: int) -> web.Application:
    """The application that serves these routes and takes bodies up to that size."""
    app = web.Application(client_max_size=max_body_mib * _MIB)
    app.add_routes(routes)
    return app


def runner(app: web.Application) -> web.AppRunner:
    """A runner that leaves gzip alone (a small body may hide a huge one) and lets requests in flight finish.

    Idle connections are kept longer than Go keeps its own (90 s), so that the scheduler never writes into one that we
    are just closing.
    """
    return Runner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=0.3,
        keepalive_timeout=120.0,
        auto_decompress=False,
    )


def _handler(service: ExtenderService, verb: str, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        body = await _body(request)
        found = service.refuse(verb, body) if isinstance(body, str) else await answer(body)
        return web.Response(body=found, content_type="application/json")

    return handle


async def _body(request: web.Request) -> bytes | str:
    """The whole body, or why it was not taken."""
    kind = request.content_type.lower()
    if not kind.endswith("json"):
        return f"Content-Type is {kind}, expected application/json"
    if coding := request.headers.get("Content-Encoding"):
        return f"Content-Encoding is {coding[:40]}, expected none"
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        return f"{error.text}; raise max-body-mib if the cluster is that large"
    except TimeoutError:
        return f"the body did not arrive within {BODY_SECONDS:g} s"
    except ConnectionError as error:
        return f"the caller broke off in its body: {error}"
