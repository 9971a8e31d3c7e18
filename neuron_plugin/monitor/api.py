"""The monitor API: ``neuronnodes`` and ``neuronpods``, to list and to watch as Kubernetes resources are.

Read-only, for people, dashboards and controllers; ``views`` has the objects. Lists carry a resourceVersion, watches go
on from one, and bookmarks move it. A client that falls behind gets the 410 that every Kubernetes client answers with a
new list. One list and one watch can have both collections: a browser opens only six connections to a host, for all of
its pages. Threads make the answers from immutable records: thousands of objects take some tenths of a second, and the
scheduler must not wait for a dashboard. The health port serves the API without credentials, so lists are made one at a
time, and watches are limited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from aiohttp import web
from msgspec import Raw

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.monitor.views import API_VERSION, GROUP, node_view, pod_view
from neuron_plugin.placement.changes import StateChange, StateRecord
from neuron_plugin.placement.leadership import SYNCED, Readiness
from neuron_plugin.placement.state import ClusterState

MOST_WATCHES = 200
"""Watches at a time; each is sent every change, even if no one reads it."""

Kinds = tuple[str, ...]
"""The kinds of a collection."""

_NODE, _POD = "NeuronNode", "NeuronPod"
_EXPIRED = (410, "Expired", "the resourceVersion is no longer known here: list again")
_MOST_DIGITS = 20  # of a 64-bit number

Json = dict[str, object]
_encode = msgspec.json.Encoder().encode


class _QueryError(ValueError):
    """A query parameter that is not understood; the text names it and the expected form."""


@dataclass(frozen=True, slots=True)
class MonitorTimes:
    """Seconds. ``bookmark`` is between two bookmarks: the live page says after ten without news that it is not live.

    No watch lasts longer than ``longest_watch``. Changes are sent every ``gather``, to all watchers at once: they come
    in groups, and each group is encoded once. The scheduler's call that caused a change is mostly answered before. A
    list is shared for ``shared`` if its version is unchanged: renewals of Leases change no version.
    """

    bookmark: float = 5.0
    longest_watch: float = 1800.0
    gather: float = 0.5
    shared: float = 5.0


TIMES = MonitorTimes()


class Monitor:
    """Lists and watches of one state, once it is ``SYNCED``."""

    def __init__(self, state: ClusterState, ready: Readiness, times: MonitorTimes = TIMES) -> None:
        self._times = times
        self._state = state
        self._ready = ready
        self._changes = state.changes
        self._listing = asyncio.Lock()
        self._lists: dict[Kinds, tuple[int, float, bytes]] = {}
        self._shared: dict[Kinds, tuple[tuple[int, int], asyncio.Task[bytes]]] = {}
        self._watches = 0
        self._stopping = False

    def routes(self) -> list[web.RouteDef]:
        """Discovery, the two collections, and both in one."""

        async def discovery(_: web.Request) -> web.Response:
            about = {"namespaced": False, "verbs": ["list", "watch"]}
            names = [{"name": f"{kind.lower()}s", "singularName": kind.lower(), "kind": kind} for kind in (_NODE, _POD)]
            head = {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": API_VERSION}
            return _json(head | {"resources": [entry | about for entry in names]})

        async def nodes(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, (_NODE,))

        async def pods(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, (_POD,))

        async def both(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, (_NODE, _POD))

        paths = {"": discovery, "/neuronnodes": nodes, "/neuronpods": pods, "/neuronnodes,neuronpods": both}
        return [web.get(GROUP + path, handler) for path, handler in paths.items()]

    def stop(self) -> None:
        """End every watch: the server goes down."""
        self._stopping = True
        self._changes.wake()

    async def _answer(self, request: web.Request, kinds: Kinds) -> web.StreamResponse:
        if why_not := self._ready.conditions.get(SYNCED):
            return _failure(503, "ServiceUnavailable", f"{why_not}: try again in some seconds")
        try:
            if request.query.get("fieldSelector") or request.query.get("labelSelector"):
                text = "selectors are not supported, expected a request for the whole collection"
                raise _QueryError(text)  # noqa: TRY301 - answered below like other queries that are not understood
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, kinds)
        except _QueryError as error:
            return _failure(400, "BadRequest", str(error))
        async with self._listing:
            version, at, body = self._lists.get(kinds, (-1, 0.0, b""))
            if version != self._changes.version or time.monotonic() - at > self._times.shared:
                version, changes = self._changes.version, self._current(kinds)
                body = await asyncio.to_thread(self._encoded, kinds, version, changes)
                self._lists[kinds] = version, time.monotonic(), body
        return web.Response(body=body, content_type="application/json")

    def _encoded(self, kinds: Kinds, version: int, changes: list[StateChange]) -> bytes:
        """A whole list."""
        items = [Raw(_encode(self._view(change))) for change in changes]
        head = {"apiVersion": API_VERSION, "kind": "List" if len(kinds) > 1 else f"{kinds[0]}List"}
        return _encode(head | {"metadata": {"resourceVersion": str(version)}, "items": items})

    async def _watch(self, request: web.Request, kinds: Kinds) -> web.StreamResponse:
        position = _number(request, "resourceVersion")
        longest = self._times.longest_watch
        seconds = min(_number(request, "timeoutSeconds") or longest, longest)
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        if position and not self._changes.knows(position):
            return _failure(*_EXPIRED)
        if self._watches >= MOST_WATCHES:
            return _failure(429, "TooManyRequests", f"{MOST_WATCHES} watches are open, which is the limit")
        self._watches += 1
        try:
            return await self._stream(request, kinds, position, seconds, bookmarks=bookmarks)
        finally:
            self._watches -= 1

    async def _stream(
        self, request: web.Request, kinds: Kinds, position: int, seconds: float, *, bookmarks: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        lines = b""
        if not position:
            current, position = self._current(kinds), self._changes.version
            lines = await asyncio.to_thread(lambda: b"".join(_event("ADDED", self._view(each)) for each in current))
        clock = asyncio.get_running_loop().time
        times, ends, marked = self._times, clock() + seconds, clock()
        while True:
            if lines:  # one write per batch; it waits while the client does not read, and changes go on meanwhile
                with suppress(ConnectionResetError):  # the client has gone
                    await response.write(lines)
            gone = request.transport is None or request.transport.is_closing()
            if gone or self._stopping or clock() >= ends:
                return response
            await self._changes.wait(position, within_seconds=min(times.bookmark, seconds))
            await asyncio.sleep(times.gather - clock() % times.gather)
            if not self._changes.knows(position):
                await response.write(_event("ERROR", _status(*_EXPIRED)))
                return response
            lines, position = await self._since(position, kinds)
            if bookmarks and clock() - marked >= times.bookmark:
                marked, metadata = clock(), {"resourceVersion": str(position)}
                lines += _event("BOOKMARK", {"apiVersion": API_VERSION, "kind": kinds[0], "metadata": metadata})

    async def _since(self, position: int, kinds: Kinds) -> tuple[bytes, int]:
        """The events after a version that is still known, and the version after them; watchers in step share them."""
        version = self._changes.version
        known, shared = self._shared.get(kinds, ((-1, -1), None))
        if shared is None or known != (position, version):
            changes = self._changes.after(position)
            work = asyncio.to_thread(self._events, changes, kinds)
            shared = asyncio.create_task(work, name="events for watchers")
            self._shared[kinds] = (position, version), shared
        return await asyncio.shield(shared), version

    def _current(self, kinds: Kinds) -> list[StateChange]:
        """The present records, as changes that add them."""
        nodes = self._state.nodes.items() if _NODE in kinds else ()
        pods = self._state.pods.items() if _POD in kinds else ()
        version_of = self._changes.version_of
        current = [StateChange(version_of(name), None, node) for name, node in nodes]
        return current + [StateChange(version_of(uid), None, pod) for uid, pod in pods]

    def _events(self, changes: Iterable[StateChange], kinds: Kinds) -> bytes:
        """The events of these changes for a watcher of a collection.

        Pods of a node are shown again when the problems of its devices have changed.
        """
        lines = []
        for change in changes:
            if (_NODE if isinstance(change.after or change.before, NodeInfo) else _POD) in kinds:
                kind = "DELETED" if change.after is None else "MODIFIED" if change.before else "ADDED"
                lines.append(_event(kind, self._view(change)))
            after = change.after
            if _POD in kinds and isinstance(after, NodeInfo) and _is_broken_otherwise(change.before, after):
                here = (self._state.pods.get(uid) for uid in after.ledger.by_pod)
                views = (pod_view(self._state, pod, change.version) for pod in here if pod)
                lines += [_event("MODIFIED", view) for view in views]
        return b"".join(lines)

    def _view(self, change: StateChange) -> object:
        """The object after the change, or before it if it is gone; every change has one of them."""
        record = change.after or change.before
        if isinstance(record, NodeInfo):
            return node_view(self._state, record, change.version)
        return pod_view(self._state, record, change.version) if record else None


def _is_broken_otherwise(before: StateRecord | None, after: NodeInfo) -> bool:
    known, now = before.inventory if isinstance(before, NodeInfo) else None, after.inventory
    return not known or not now or (known.present, known.unhealthy) != (now.present, now.unhealthy)


def _number(request: web.Request, key: str) -> int:
    text = request.query.get(key) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise _QueryError(f"{key} is {text[:40]!r}, expected a decimal number")
    return int(text)


def _json(content: Json, status: int = 200) -> web.Response:
    return web.Response(body=_encode(content), status=status, content_type="application/json")


def _failure(code: int, reason: str, message: str) -> web.Response:
    return _json(_status(code, reason, message), code)


def _status(code: int, reason: str, message: str) -> Json:
    """A failure, as a Kubernetes Status."""
    head: Json = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure"}
    return head | {"reason": reason, "message": message, "code": code}


def _event(kind: str, content: object) -> bytes:
    return _encode({"type": kind, "object": content}) + b"\n"
