"""``GET /ui/``: a live page of the cluster's devices, which is a client of the monitor API.

The page is static: HTML, CSS and JavaScript modules of this package, without a build step. Its data are lists and
watches of ``neuronnodes`` and ``neuronpods``, and ``/explain`` for a waiting pod. This module adds a table for browsers
without JavaScript, and the past that no watch shows: the number of used devices over time, and the pods that were
evicted to make room.

If there is a token, all pages about the cluster on this port require it, not only these; probes and metrics stay open.
It is a bearer token, or the password of HTTP's basic authentication: a browser asks for the password and sends it with
every request, so no script has to store it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from html import escape
from importlib import resources
from typing import NoReturn

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import Metric

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cluster import ApiServer
from neuron_plugin.monitor.events import EventsView, pod_events
from neuron_plugin.monitor.network import DomainView, domain_tree, rooms_of
from neuron_plugin.monitor.plan import PlanOptions, plan
from neuron_plugin.monitor.usage import UsageOptions, usage_report
from neuron_plugin.monitor.use import Use, UseError, past_use, use_of
from neuron_plugin.monitor.views import NodeView, PodView, node_view, pod_view, time_at
from neuron_plugin.placement.history import HISTORY_SECONDS
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.state import ClusterState

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 30.0
"""Between two points of the use over time."""
MOST_SAMPLES = 960
"""Eight hours, some 100 KB."""

SHARED_SECONDS = 5.0
"""How long an answer is shared by all pages: the outlook of waiting pods takes 0.2 s of CPU for 20 pods and 1000 nodes,
the tree of the network 0.1 s for 5000 nodes."""

OPEN_PAGES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Pages for the kubelet and Prometheus, which send no credentials."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_NODE_HEAD = ("Node", "Type", "Free devices", "Free sets", "Pods and their devices", "Unhealthy", "State")
_ASK_FOR_TOKEN = {"WWW-Authenticate": 'Basic realm="neuron-plugin: the token is the password", charset="UTF-8"'}


def use_document(samples: Iterable[Use]) -> bytes:
    """``use.json``: the time and the numbers of devices by state, for each sample."""
    found = [(time_at(each.at), *each[1:]) for each in samples]
    return msgspec.json.encode({"seconds": SAMPLE_SECONDS, "samples": found})


class Picture:
    """The page of one extender. An empty ``token`` requires none.

    ``prometheus_url`` is the Prometheus that has the use before this process began; empty without one.
    """

    on_both_ports = False

    def __init__(self, token: str = "", prometheus_url: str = "") -> None:
        self._token = token.encode()
        self._prometheus_url = prometheus_url
        self._complained = False
        self._samples: deque[Use] = deque(maxlen=MOST_SAMPLES)
        folder = resources.files("neuron_plugin.ui").joinpath("static")
        self._files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    async def run(self, state: ClusterState) -> NoReturn:
        """Count the devices every half minute, in a thread: some 10 ms for a thousand nodes."""
        asked = not self._prometheus_url
        while True:
            use = await asyncio.to_thread(use_of, list(state.nodes.values()), int(time.time()))
            if any(use[1:]):  # at the start no node is known yet
                self._samples.append(use)
            asked = asked or await self._remember()
            await asyncio.sleep(SAMPLE_SECONDS)

    def stop(self) -> None:
        """Nothing to do."""

    def metrics(self, state: ClusterState, *, leading: bool) -> Iterable[Metric]:  # noqa: ARG002 - a protocol
        """None: the page has no metrics of its own."""
        return ()

    async def _remember(self) -> bool:
        """Put Prometheus's samples before the first one. Returns whether it answered; otherwise it is asked again."""
        until = self._samples[0].at - SAMPLE_SECONDS if self._samples else time.time()
        room = MOST_SAMPLES - len(self._samples)
        try:
            past = await past_use(self._prometheus_url, until - room * SAMPLE_SECONDS, until, SAMPLE_SECONDS)
        except UseError as error:
            if not self._complained:
                _log.warning("the use before the start is not known; asking again", extra={"error": str(error)})
            self._complained = True
            return False
        self._samples.extendleft(past[::-1])
        return True

    def routes(
        self,
        state: ClusterState,
        api: ApiServer | None = None,
        ready: Readiness | None = None,  # noqa: ARG002 - a protocol
    ) -> list[web.RouteDef]:
        """The routes of the page, its files, table and numbers; without an ``api`` pods have no events."""

        async def index(_: web.Request) -> web.Response:
            return self._file("index.html")

        async def to_index(_: web.Request) -> web.Response:
            raise web.HTTPPermanentRedirect("ui/")

        async def file(request: web.Request) -> web.Response:
            return self._file(request.match_info["name"])

        async def use(_: web.Request) -> web.Response:
            return web.Response(body=use_document(self._samples), content_type="application/json", headers=_HEADERS)

        async def hours(_: web.Request) -> web.Response:
            account = state.history.device_hours
            report = usage_report(account, UsageOptions("24h")) if account else None
            return web.Response(body=msgspec.json.encode(report), content_type="application/json", headers=_HEADERS)

        async def evictions(_: web.Request) -> web.Response:
            found = [msgspec.to_builtins(each) | {"at": time_at(each.at)} for each in state.history.evictions()]
            body = msgspec.json.encode({"seconds": HISTORY_SECONDS, "evictions": found})
            return web.Response(body=body, content_type="application/json", headers=_HEADERS)

        waiting = _Shared(lambda: plan(state, PlanOptions())).answer
        domains = _Shared(lambda: asyncio.to_thread(_tree_of, list(state.nodes.values()), state.levels)).answer

        async def events(request: web.Request) -> web.Response:
            namespace, name = request.match_info["namespace"], request.match_info["pod"]
            events = await pod_events(api, namespace, name) if api else EventsView()
            return web.Response(body=msgspec.json.encode(events), content_type="application/json", headers=_HEADERS)

        async def table(_: web.Request) -> web.Response:
            nodes, pods = list(state.nodes.values()), list(state.pods.values())
            text = await asyncio.to_thread(
                lambda: table_page((node_view(state, node) for node in nodes), (pod_view(state, pod) for pod in pods))
            )
            return web.Response(text=text, content_type="text/html", headers=_HEADERS)

        async def icon(_: web.Request) -> web.Response:
            return self._file("icon.svg")

        named = {"/": to_index, "/favicon.ico": icon, "/ui": to_index, "/ui/": index, "/ui/table": table}
        named |= {"/ui/use.json": use, "/ui/evictions.json": evictions}
        named |= {"/ui/waiting.json": waiting, "/ui/domains.json": domains, "/ui/hours.json": hours}
        routes = [web.get(path, handler) for path, handler in named.items()]
        return [*routes, web.get("/ui/events/{namespace}/{pod}", events), web.get("/ui/{name}", file)]

    def guard(self) -> list[Middleware]:
        """The middleware that requires the token, if there is one."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path in OPEN_PAGES or self._knows(request.headers.get("Authorization", "")):
                return await handler(request)
            return web.Response(
                status=401, text="this page takes the token of the setting ui-token-file\n", headers=_ASK_FOR_TOKEN
            )

        return [check] if self._token else []

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode(), self._token)
        try:
            _, _, password = base64.b64decode(given, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(password, self._token)

    def _file(self, name: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound(text=f"there is no {name!r} here: see /ui/\n")
        return web.Response(
            body=self._files[name], content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8", headers=_HEADERS
        )


class _Shared:
    """An answer in JSON that is computed once for all pages that ask within some seconds."""

    def __init__(self, work_out: Callable[[], Awaitable[object]]) -> None:
        self._work_out = work_out
        self._lock = asyncio.Lock()
        self._known = -SHARED_SECONDS, b""

    async def answer(self, _: web.Request) -> web.Response:
        """The last answer, or a new one if the last is too old."""
        async with self._lock:
            at, body = self._known
            if time.monotonic() - at > SHARED_SECONDS:
                body = msgspec.json.encode(await self._work_out())
                self._known = time.monotonic(), body
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)


def _tree_of(nodes: Iterable[NodeInfo], levels: Iterable[str]) -> DomainView:
    return domain_tree(rooms_of(nodes, levels))


def table_page(nodes: Iterable[NodeView], pods: Iterable[PodView]) -> str:
    """The cluster as two tables, for browsers without JavaScript and for screen readers."""
    node_rows = sorted(
        (
            node.name,
            node.spec.instance_type,
            ranges(node.status.free_devices),
            ", ".join(f"{number} of {count}" for count, number in node.status.free_sets.items() if number),
            ", ".join(f"{holder.namespace}/{holder.name}: {ranges(holder.devices)}" for holder in node.status.holders),
            "; ".join(f"{device}: {why}" for device, why in node.status.unhealthy_devices.items()),
            "open" if node.status.open else node.status.reason,
        )
        for node in nodes
    )
    pod_rows = sorted(
        (
            pod.metadata.namespace,
            pod.name,
            ", ".join(f"{container.name}: {container.count} {container.resource}" for container in pod.spec.containers),
            pod.status.state,
            pod.place,
            pod.status.problem,
        )
        for pod in pods
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Neuron devices: tables</title>'
        '<link rel="icon" href="icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="style.css"></head><body><main><h1>Neuron devices</h1>'
        + _table("Nodes", _NODE_HEAD, node_rows)
        + _table("Pods", ("Namespace", "Pod", "Asks for", "State", "Node", "Problem"), pod_rows)
        + '<p><a href="./">The live page</a></p></main></body></html>\n'
    )


def _table(caption: str, head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    cells = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell) or '-'}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
