"""The monitor API: ``neuronnodes`` and ``neuronpods``, to list and to watch as Kubernetes resources are.

Lists carry a resourceVersion, watches go on from one, bookmarks move it, and who falls behind gets the 410 that every
Kubernetes client answers with a new list. Answers are worked out in threads, from records that do not change: the
scheduler is not kept waiting by a dashboard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from neuron_plugin.extender import framing
from neuron_plugin.extender.change_log import ChangeLog
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.framing import Collection, Versioned
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import API_VERSION, Json
from neuron_plugin.extender.selectors import Selector, SelectorError, parse_selector
from neuron_plugin.extender.state import ClusterState

BASE = f"/apis/{API_VERSION}"
BOOKMARK_SECONDS = 15.0
LONGEST_WATCH_SECONDS = 1800.0

NODES = Collection("neuronnodes", "NeuronNode", NodeRecord)
PODS = Collection("neuronpods", "NeuronPod", PodRecord)

_BAD_REQUEST = 400
_MOST_DIGITS = 20  # of a 64-bit number


class Monitor:
    """Lists and watches of one state."""

    def __init__(self, state: ClusterState, changes: ChangeLog) -> None:
        self._state = state
        self._changes = changes
        self._stopping = False

    def routes(self) -> list[web.RouteDef]:
        """Discovery and the two collections."""

        async def discovery(_: web.Request) -> web.Response:
            return _json(framing.discovery((NODES, PODS)))

        return [
            web.get(BASE, discovery),
            *(web.get(f"{BASE}/{each.plural}", self._handler(each)) for each in (NODES, PODS)),
        ]

    def stop(self) -> None:
        """End every watch: the server goes down."""
        self._stopping = True
        self._changes.wake()

    def _handler(self, collection: Collection) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            query = request.query
            try:
                selector = parse_selector(query.get("fieldSelector", ""), query.get("labelSelector", ""))
                if query.get("watch") not in ("true", "1"):
                    return await self._list(collection, selector)
                return await self._watch(request, collection, selector)
            except (SelectorError, _QueryError) as error:
                return _json(framing.status(_BAD_REQUEST, "BadRequest", str(error)), _BAD_REQUEST)

        return handle

    async def _list(self, collection: Collection, selector: Selector) -> web.Response:
        found, version = self._selected(collection, selector), self._changes.version
        body = await asyncio.to_thread(framing.listed, collection, found, version)
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, collection: Collection, selector: Selector) -> web.StreamResponse:
        start = _number(request, "resourceVersion", 0)
        seconds = min(_number(request, "timeoutSeconds", 0) or LONGEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS)
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        if start and not self._changes.knows(start):
            return _json(framing.expired(), framing.GONE)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        position = start or self._changes.version
        if not start:
            found = self._selected(collection, selector)
            await _write(response, await asyncio.to_thread(framing.added, found))
        await self._follow(request, response, _Watch(collection, selector, position, seconds, bookmarks))
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, watch: _Watch) -> None:
        clock, position = asyncio.get_running_loop().time, watch.position
        ends, marked = clock() + watch.seconds, clock()
        while not self._over(request, ends):
            await self._changes.news(position, within_seconds=min(BOOKMARK_SECONDS, watch.seconds))
            if not self._changes.knows(position):
                await _write(response, framing.expired_event())
                return
            changes, position = self._changes.after(position), self._changes.version
            lines = await asyncio.to_thread(framing.told, changes, watch.collection, watch.selector)
            if watch.bookmarks and clock() - marked >= BOOKMARK_SECONDS:
                lines += framing.bookmark(watch.collection, position)
                marked = clock()
            await _write(response, lines)

    def _over(self, request: web.Request, ends: float) -> bool:
        gone = request.transport is None or request.transport.is_closing()
        return gone or self._stopping or asyncio.get_running_loop().time() >= ends

    def _selected(self, collection: Collection, selector: Selector) -> list[Versioned]:
        """The records of the moment, which do not change, each with its version."""
        version_of = self._changes.version_of
        if collection is NODES:
            nodes = self._state.nodes.items()
            return [(node, version_of(name)) for name, node in nodes if selector.matches(node)]
        return [(pod, version_of(uid)) for uid, pod in self._state.pods.items() if selector.matches(pod)]


@dataclass(frozen=True, slots=True)
class _Watch:
    """What one watcher asked for."""

    collection: Collection
    selector: Selector
    position: int
    seconds: float
    bookmarks: bool


class _QueryError(ValueError):
    """A query parameter that is not understood."""


def _number(request: web.Request, key: str, default: int) -> int:
    text = request.query.get(key) or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise _QueryError(f"{key} is {text[:40]!r}, expected a decimal number")
    return int(text)


async def _write(response: web.StreamResponse, lines: bytes) -> None:
    """One write per batch; it waits while the client does not read, and the log goes on without it."""
    if lines:
        await response.write(lines)


def _json(content: Json, status: int = 200) -> web.Response:
    return web.Response(body=framing.encode(content), status=status, content_type="application/json")
