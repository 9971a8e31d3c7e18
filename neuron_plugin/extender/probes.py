"""``/healthz``, ``/readyz``, ``/metrics``, and ``/decisions``: what was bound lately and what else there was.

Alive means that the event loop answers: an API outage is no reason to be restarted. Ready means synced and leading.
As with Kubernetes' own components ``/readyz?verbose`` lists the checks and ``/readyz?exclude=leader`` leaves one out:
so a kubelet asks, for whom a standby that can take over or name the leader is as good as the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from neuron_plugin.allocation import DecisionLog, explain_decision
from neuron_plugin.extender.readiness import Readiness

_UNAVAILABLE = 503


def probe_routes(readiness: Readiness, registry: CollectorRegistry, journal: DecisionLog) -> list[web.RouteDef]:
    """The routes."""

    async def decisions(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(_explained, journal)  # each entry is worked out now: some 10 ms in all
        return web.Response(body=text, content_type="application/json")

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        checks = {name: why for name, why in readiness.conditions.items() if name not in excluded}
        ready = not any(checks.values())
        text = _listed(checks) if "verbose" in request.query else "; ".join(filter(None, checks.values())) or "ok"
        return web.Response(text=f"{text}\n", status=200 if ready else _UNAVAILABLE)

    async def metrics(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/decisions": decisions}
    return [web.get(path, page) for path, page in pages.items()]


def _listed(checks: Mapping[str, str]) -> str:
    return "\n".join(f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in checks.items())


def _explained(journal: DecisionLog) -> bytes:
    return msgspec.json.encode({"decisions": [explain_decision(entry) for entry in journal.entries()]})
