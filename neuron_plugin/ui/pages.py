"""``GET /ui/``: a live page of the cluster's devices, beside the monitor API, whose client it is.

The page is static: HTML, CSS and JavaScript modules of this package, without a build step. Its data are lists and
watches of ``neuronnodes`` and ``neuronpods``, and for a pod that waits ``/explain``. From here come a table for
browsers without JavaScript, and what no watch can say afterwards: how many devices were used at what time, and which
pods were evicted to make room.

With a token every page about the cluster on this port asks for it, not these alone; probes and metrics stay open. It is
taken as a bearer token, or as the password of HTTP's basic authentication: a browser asks for that by itself and sends
it with every request of the page, so no script has to keep it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import time
from collections import deque
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import NamedTuple, NoReturn

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.cluster import ApiServer
from neuron_plugin.monitor.events import EventsView, pod_events
from neuron_plugin.monitor.plan import PlanOptions, plan
from neuron_plugin.monitor.views import NodeView, PodView, device_counts, node_view, pod_view
from neuron_plugin.scheduling.history import HISTORY_SECONDS
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.topology import free_sets

SAMPLE_SECONDS = 30.0
"""Between two points of the use over time."""
MOST_SAMPLES = 960
"""Eight hours, some 100 KB."""

SHARED_SECONDS = 5.0
"""For how long what waiting pods can expect is given to every page: some 0.2 s of CPU for 20 pods and 1000 nodes."""

OPEN_PAGES = frozenset({"/healthz", "/readyz", "/metrics"})
"""What the kubelet and Prometheus ask for, without credentials."""

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


class Use(NamedTuple):
    """How many devices of the cluster are in use at a time (Unix seconds). Each device counts once.

    ``used`` are those of pods that work, ``broken`` those of pods that are unhealthy or missing. ``free`` are healthy
    and in the largest free set of their node, ``unlinked`` are free beside it. ``other`` are without pods and may not
    be used: unhealthy, missing, disabled, reserved, or on a node that is closed.
    """

    at: int
    used: int
    free: int
    unlinked: int
    other: int
    broken: int = 0


def use_of(infos: Iterable[NodeInfo], at: int) -> Use:
    """Count the devices of all nodes."""
    used = free = unlinked = other = broken = 0
    for info in infos:
        if info.inventory is None:
            continue
        geometry, counts, linked = info.inventory.geometry, device_counts(info), 0
        if counts.free:
            linked = max(count for count, number in free_sets(geometry, info.free_mask).items() if number)
        used, broken = used + counts.used - counts.used_broken, broken + counts.used_broken
        free, unlinked = free + linked, unlinked + counts.free - linked
        other += geometry.device_count - counts.used - counts.free
    return Use(at, used, free, unlinked, other, broken)


class Picture:
    """The page of one extender. ``token`` empty asks for none."""

    def __init__(self, token: str = "") -> None:
        self._token = token.encode()
        self._samples: deque[Use] = deque(maxlen=MOST_SAMPLES)
        folder = resources.files("neuron_plugin.ui").joinpath("static")
        self._planning = asyncio.Lock()
        self._planned = -SHARED_SECONDS, b""
        self._files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    async def run(self, state: ClusterState) -> NoReturn:
        """Count the devices every half minute; some 10 ms for a thousand nodes, in a thread."""
        while True:
            use = await asyncio.to_thread(use_of, list(state.nodes.values()), int(time.time()))
            if any(use[1:]):  # at the start no node is known yet
                self._samples.append(use)
            await asyncio.sleep(SAMPLE_SECONDS)

    def routes(self, state: ClusterState, api: ApiServer | None = None) -> list[web.RouteDef]:
        """The page, its files, its table and its numbers; without an ``api`` pods have no events."""

        async def index(_: web.Request) -> web.Response:
            return self._file("index.html")

        async def to_index(_: web.Request) -> web.Response:
            raise web.HTTPPermanentRedirect("ui/")

        async def file(request: web.Request) -> web.Response:
            return self._file(request.match_info["name"])

        async def use(_: web.Request) -> web.Response:
            body = msgspec.json.encode({"seconds": SAMPLE_SECONDS, "samples": list(self._samples)})
            return web.Response(body=body, content_type="application/json", headers=_HEADERS)

        async def evictions(_: web.Request) -> web.Response:
            body = msgspec.json.encode({"seconds": HISTORY_SECONDS, "evictions": state.history.evictions()})
            return web.Response(body=body, content_type="application/json", headers=_HEADERS)

        async def waiting(_: web.Request) -> web.Response:
            async with self._planning:
                at, body = self._planned
                if time.monotonic() - at > SHARED_SECONDS:
                    body = msgspec.json.encode(await plan(None, state, PlanOptions()))
                    self._planned = time.monotonic(), body
            return web.Response(body=body, content_type="application/json", headers=_HEADERS)

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
        named |= {"/ui/use.json": use, "/ui/evictions.json": evictions, "/ui/waiting.json": waiting}
        routes = [web.get(path, handler) for path, handler in named.items()]
        return [*routes, web.get("/ui/events/{namespace}/{pod}", events), web.get("/ui/{name}", file)]

    def guard(self) -> list[Middleware]:
        """What asks for the token, if there is one."""

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


def table_page(nodes: Iterable[NodeView], pods: Iterable[PodView]) -> str:
    """The cluster as two tables, for browsers without JavaScript and for readers of screens."""
    node_rows = sorted(
        (
            node.name,
            node.spec.instance_type,
            node.status.free_devices,
            ", ".join(f"{number} of {count}" for count, number in node.status.free_sets.items() if number),
            ", ".join(f"{holder.namespace}/{holder.name}: {holder.devices}" for holder in node.status.holders),
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
            pod.status.phase + (", gated" if pod.status.gated else ""),
            pod.spec.node_name or pod.status.promised_node,
            pod.status.problem,
        )
        for pod in pods
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Neuron devices: tables</title>'
        '<link rel="icon" href="icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="style.css"></head><body><main><h1>Neuron devices</h1>'
        + _table("Nodes", _NODE_HEAD, node_rows)
        + _table("Pods", ("Namespace", "Pod", "Asks for", "Phase", "Node", "Problem"), pod_rows)
        + '<p><a href="./">The live page</a></p></main></body></html>\n'
    )


def _table(caption: str, head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    cells = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell) or '-'}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
