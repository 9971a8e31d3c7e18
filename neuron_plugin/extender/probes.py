"""``/healthz``, ``/readyz``, ``/metrics``, and ``/decisions``: what was bound lately and what else there was.

Alive means that the event loop answers: an API outage is no reason to be restarted. Ready means synced and leading,
so that a Service sends the scheduler to the one replica that may bind.
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from neuron_plugin.allocation.journal import Journal, explain
from neuron_plugin.extender.readiness import Readiness

_UNAVAILABLE = 503


def probe_routes(readiness: Readiness, registry: CollectorRegistry, journal: Journal) -> list[web.RouteDef]:
    """The routes."""

    async def decisions(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(_explained, journal)  # each entry is worked out now: some 10 ms in all
        return web.Response(body=text, content_type="application/json")

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why_not = readiness.why_not
        return web.Response(text=f"{why_not or 'ok'}\n", status=_UNAVAILABLE if why_not else 200)

    async def metrics(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/decisions": decisions}
    return [web.get(path, page) for path, page in pages.items()]


def _explained(journal: Journal) -> bytes:
    return msgspec.json.encode({"decisions": [explain(entry) for entry in journal.entries()]})
