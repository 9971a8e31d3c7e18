"""The monitor API: ``neuronnodes`` and ``neuronpods``, to list and to watch as Kubernetes resources are.

Lists carry a resourceVersion, watches go on from one, bookmarks move it, and who falls behind gets the 410 that every
Kubernetes client answers with a new list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from aiohttp import web

from neuron_plugin.extender.change_log import Change, ChangeLog
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import API_VERSION, Json, neuron_node, neuron_pod
from neuron_plugin.extender.selectors import Selector, SelectorError, parse_selector
from neuron_plugin.extender.state import ClusterState

BASE = f"/apis/{API_VERSION}"
BOOKMARK_SECONDS = 15.0
LONGEST_WATCH_SECONDS = 1800.0

_encode = msgspec.json.Encoder().encode
_GONE = 410
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class Collection:
    """One of the two resources."""

    plural: str
    kind: str
    record: type[NodeRecord | PodRecord]


NODES = Collection("neuronnodes", "NeuronNode", NodeRecord)
PODS = Collection("neuronpods", "NeuronPod", PodRecord)


class Monitor:
    """Lists and watches of one state."""

    def __init__(self, state: ClusterState, changes: ChangeLog) -> None:
        self._state = state
        self._changes = changes
        self._stopping = False

    def routes(self) -> list[web.RouteDef]:
        """Discovery and the two collections."""

        async def discovery(_: web.Request) -> web.Response:
            return _json(_discovery())

        return [
            web.get(BASE, discovery),
            *(web.get(f"{BASE}/{each.plural}", self._handler(each)) for each in (NODES, PODS)),
        ]

    def stop(self) -> None:
        """End every watch: the server goes down."""
        self._stopping = True
        self._changes.wake()

    def listed(self, collection: Collection, selector: Selector) -> Json:
        """The whole list, as of now."""
        return {
            "apiVersion": API_VERSION,
            "kind": f"{collection.kind}List",
            "metadata": {"resourceVersion": str(self._changes.version)},
            "items": [self._object(record) for record in self._records(collection) if selector.matches(record)],
        }

    def _handler(self, collection: Collection):  # type: ignore[no-untyped-def]  # noqa: ANN202 - aiohttp's handler type
        async def handle(request: web.Request) -> web.StreamResponse:
            query = request.query
            try:
                selector = parse_selector(query.get("fieldSelector", ""), query.get("labelSelector", ""))
                if query.get("watch") not in ("true", "1"):
                    return _json(self.listed(collection, selector))
                return await self._watch(request, collection, selector)
            except (SelectorError, _QueryError) as error:
                return _json(_status(_BAD_REQUEST, "BadRequest", str(error)), _BAD_REQUEST)

        return handle

    async def _watch(self, request: web.Request, collection: Collection, selector: Selector) -> web.StreamResponse:
        start = _number(request, "resourceVersion", 0)
        seconds = min(_number(request, "timeoutSeconds", 0) or LONGEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS)
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        if start and not self._changes.knows(start):
            return _json(_expired(), _GONE)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        position = start or self._changes.version
        if not start:
            await self._write(response, self._initial(collection, selector))
        await self._follow(request, response, _Watch(collection, selector, position, seconds, bookmarks))
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, watch: _Watch) -> None:
        clock, position = asyncio.get_running_loop().time, watch.position
        ends, marked = clock() + watch.seconds, clock()
        while not self._over(request, ends):
            await self._changes.news(position, within_seconds=min(BOOKMARK_SECONDS, watch.seconds))
            if not self._changes.knows(position):
                await self._write(response, [_event("ERROR", _expired())])
                return
            changes, position = self._changes.after(position), self._changes.version
            lines = [line for change in changes for line in _told(change, watch)]
            if watch.bookmarks and clock() - marked >= BOOKMARK_SECONDS:
                lines.append(_bookmark(watch.collection, position))
                marked = clock()
            await self._write(response, lines)

    def _over(self, request: web.Request, ends: float) -> bool:
        gone = request.transport is None or request.transport.is_closing()
        return gone or self._stopping or asyncio.get_running_loop().time() >= ends

    async def _write(self, response: web.StreamResponse, lines: list[bytes]) -> None:
        """One write per batch; it waits while the client does not read, and the log goes on without it."""
        if lines:
            await response.write(b"".join(lines))

    def _initial(self, collection: Collection, selector: Selector) -> list[bytes]:
        return [
            _event("ADDED", self._object(record)) for record in self._records(collection) if selector.matches(record)
        ]

    def _records(self, collection: Collection) -> list[NodeRecord] | list[PodRecord]:
        return list(self._state.nodes.values()) if collection is NODES else list(self._state.pods.values())

    def _object(self, record: NodeRecord | PodRecord) -> Json:
        key = record.name if isinstance(record, NodeRecord) else record.uid
        return _object(record, self._changes.version_of(key))


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


def _object(record: NodeRecord | PodRecord, version: int) -> Json:
    return neuron_node(record, version) if isinstance(record, NodeRecord) else neuron_pod(record, version)


def _told(change: Change, watch: _Watch) -> Iterator[bytes]:
    """What a change means to a watcher who sees only what is selected."""
    if not isinstance(change.after or change.before, watch.collection.record):
        return
    was, is_now = watch.selector.matches(change.before), watch.selector.matches(change.after)
    shown = change.after if is_now else change.before
    if (was or is_now) and shown is not None:
        kind = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}[was, is_now]
        yield _event(kind, _object(shown, change.version))


def _number(request: web.Request, key: str, default: int) -> int:
    text = request.query.get(key) or str(default)
    if not (text.isascii() and text.isdecimal()):
        raise _QueryError(f"{key} is {text[:40]!r}, expected a decimal number")
    return int(text)


def _event(kind: str, content: Json) -> bytes:
    return _encode({"type": kind, "object": content}) + b"\n"


def _bookmark(collection: Collection, version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    return _event("BOOKMARK", {"apiVersion": API_VERSION, "kind": collection.kind, "metadata": metadata})


def _expired() -> Json:
    return _status(_GONE, "Expired", "the resourceVersion is no longer known here: list again")


def _status(code: int, reason: str, message: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _discovery() -> Json:
    resources = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": False,
            "kind": each.kind,
            "verbs": ["list", "watch"],
        }
        for each in (NODES, PODS)
    ]
    return {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": API_VERSION, "resources": resources}


def _json(content: Json, status: int = 200) -> web.Response:
    return web.Response(body=_encode(content), status=status, content_type="application/json")
