"""The HTTP server of both daemons: probes, metrics and decisions, and serving of further pages.

A daemon implements ``Status``; pages, limits and time-outs are the same for both. The extender adds the scheduler's
verbs and its monitor API to the same kind of application.

aiohttp and prometheus-client are imported when serving starts, in a thread: loading them takes some tenths of a second
of CPU, and the plugin registers with the kubelet first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from neuron_plugin.loading import load

if TYPE_CHECKING:
    import ssl

    from aiohttp import web
    from prometheus_client import Metric

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 0.3
"""For requests in progress when the daemon stops. aiohttp's default is 60 s, longer than a pod's grace period."""
IDLE_SECONDS = 10.0
"""How long a connection may stay open without a complete request; probes and scrapers open new ones."""

_MAX_BODY_BYTES = 64 << 10
"""Of a request to a server that only shows state."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to a probe.

    ``checks`` has the reason why each named check fails, and the empty text for a check that passes. ``notes`` are
    lines for people that do not fail the probe.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Status(Protocol):
    """The pages of a daemon. Every method is called once per request, so answers are never stale."""

    async def liveness(self) -> ProbeAnswer:
        """``/healthz``: whether the daemon works; otherwise it has to be restarted."""

    async def readiness(self) -> ProbeAnswer:
        """``/readyz``: the condition that a rollout, or a Service, waits for."""

    def collect(self) -> Iterable[Metric]:
        """``/metrics``: every metric family, as from a prometheus-client collector.

        Called in a worker thread, so read immutable values, or copies.
        """

    def decisions(self) -> bytes:
        """``/decisions``: the latest decisions and their candidates, as JSON. Called in a worker thread."""


def status_application(status: Status, *, max_body_bytes: int = _MAX_BODY_BYTES) -> web.Application:
    """An application that serves the four pages of ``status``; more routes may be added to it.

    ``/healthz`` and ``/readyz`` take the queries of Kubernetes' own components: ``?verbose`` lists all checks,
    ``?exclude=NAME`` leaves one out. ``max_body_bytes`` is the limit for the bodies of added routes.
    """
    from aiohttp import web
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    async def probe(request: web.Request) -> web.Response:
        health = await (status.liveness() if request.path == "/healthz" else status.readiness())
        verbose, excluded = "verbose" in request.query, request.query.getall("exclude", [])
        text, passed = probe_text(health, verbose=verbose, excluded=excluded)
        return web.Response(text=text, status=200 if passed else 503)

    async def metrics(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, status)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def decisions(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(status.decisions)
        return web.Response(body=text, content_type="application/json")

    app = web.Application(client_max_size=max_body_bytes)
    probes = [web.get("/healthz", probe), web.get("/readyz", probe)]
    app.add_routes([*probes, web.get("/metrics", metrics), web.get("/decisions", decisions)])
    return app


def probe_text(health: ProbeAnswer, *, verbose: bool = False, excluded: Iterable[str] = ()) -> tuple[str, bool]:
    """The body of a probe's answer, and whether the probe passes."""
    left_out = set(excluded)
    checks = {name: failure for name, failure in health.checks.items() if name not in left_out}
    failures = [failure for failure in checks.values() if failure]
    if verbose:
        lines = [f"[-]{name} failed: {failure}" if failure else f"[+]{name} ok" for name, failure in checks.items()]
    else:
        lines = failures or ["ok"]
    return "".join(f"{line}\n" for line in (*lines, *health.notes)), not failures


@asynccontextmanager
async def serving(
    app: web.Application,
    address: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    idle_seconds: float = IDLE_SECONDS,
) -> AsyncIterator[int]:
    """Serve an application during the block; yields the port, which the system chooses for 0.

    A connection without a complete request for ``idle_seconds`` is closed. Compressed bodies are not expanded: a small
    one may become huge.

    Raises:
        OSError: the address is not available.
    """
    from aiohttp import web

    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=idle_seconds,
        auto_decompress=False,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port, ssl_context=tls, reuse_address=True).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def serve_status(status: Status, address: str, port: int, *, retry_seconds: float = 10.0) -> NoReturn:
    """Serve the four pages until cancelled. An address in use is logged once and tried every ``retry_seconds``."""
    for library in ("aiohttp.web", "prometheus_client"):
        await load(library)
    logged = False
    while True:
        try:
            async with serving(status_application(status), address, port) as served_port:
                logger.info("serving probes and metrics", extra={"address": address, "port": served_port})
                await asyncio.Event().wait()  # no deadline: until cancelled
        except OSError as error:
            if not logged:
                logged = True
                logger.error(  # noqa: TRY400 - a traceback would add nothing
                    "cannot serve probes and metrics: choose another --health-port, or 0 for none",
                    extra={"address": address, "port": port, "error": error.strerror or str(error)},
                )
        await asyncio.sleep(retry_seconds)
