"""How the simulated API server speaks on a watch: what comes first, what follows, and when it ends.

Follows ``staging/src/k8s.io/apiserver/pkg/storage/cacher`` of 1.36.2: a version from which the history is gone is
answered with 200 and an ERROR event; no version, or 0, means the present objects as ADDED events first; and with
``sendInitialEvents`` (KEP-3157) these end with a bookmark that says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from aiohttp import web

from neuron_plugin.simulation.api_server_kinds import JsonObject, Refusal, Selector, ServedKind
from neuron_plugin.simulation.api_server_store import Collection, Cursor, event_line


@dataclass(slots=True)
class WatchState:
    """What holds for all open watches: each of them compares the counters with those it began with."""

    open: int = 0
    bookmark_seconds: float = 60.0
    bookmarks: int = 0
    endings: int = 0
    cuts: int = 0
    muted: bool = False
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What a watch asks for."""

    version: int | None
    initial_events: bool
    bookmarks: bool
    timeout_seconds: float

    @classmethod
    def parse(cls, query: dict[str, str]) -> WatchQuery:
        """Read the query of a watch."""
        version = query.get("resourceVersion", "")
        return cls(
            version=int(version) if version not in {"", "0"} else None,
            initial_events=query.get("sendInitialEvents") == "true",
            bookmarks=query.get("allowWatchBookmarks") == "true",
            timeout_seconds=float(query.get("timeoutSeconds", "1800")),
        )


class CutError(Exception):
    """The connection is to be cut."""


class Watch:
    """One open watch."""

    def __init__(
        self, kind: ServedKind, collection: Collection, meant: Selector, query: WatchQuery, state: WatchState
    ) -> None:
        self._kind = kind
        self._collection = collection
        self._meant = meant
        self._query = query
        self._state = state
        self._version = 0
        self._begun_with = (state.endings, state.cuts)
        self._bookmarks = state.bookmarks
        self._bookmark_due = False

    async def run(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Speak until the time is up, the test ends it, or the client has left.

        Raises:
            CutError: the connection is to be cut without an end.
        """
        self._state.open += 1
        try:
            async with asyncio.timeout(self._query.timeout_seconds):
                cursor = await self._begin(answer)
                while request.transport is not None and not request.transport.is_closing() and not self._ended():
                    await self._turn(cursor, answer)
        except TimeoutError:
            return
        except Refusal as refusal:
            await answer.write(event_line("ERROR", msgspec.json.encode(refusal.status())))
        finally:
            self._state.open -= 1

    async def _begin(self, answer: web.StreamResponse) -> Cursor:
        """Write the initial events if any are due, and find the place in the history."""
        if self._query.version is not None:
            return self._collection.follow(self._query.version)
        snapshot = self._collection.snapshot()
        self._version = snapshot.version
        for stored in snapshot.objects:
            if self._meant(stored.value):
                await answer.write(event_line("ADDED", stored.encoded))
        if self._query.initial_events:
            await self._bookmark(answer, {"k8s.io/initial-events-end": "true"})
        return self._collection.follow(self._version)

    async def _turn(self, cursor: Cursor, answer: web.StreamResponse) -> None:
        """Write what is new, then a bookmark if one is due, then wait for more; a muted watch reads and is silent."""
        stirred = self._collection.stirred
        changes, self._version = cursor.take(), self._collection.version
        for line in filter(None, (change.line(self._meant) for change in changes)):
            if not self._state.muted:
                await answer.write(line)
        if self._bookmark_due and not self._state.muted:
            await self._bookmark(answer, {})
        try:
            async with asyncio.timeout(self._state.bookmark_seconds):
                await stirred.wait()
        except TimeoutError:
            self._bookmark_due = True
            return
        self._bookmark_due, self._bookmarks = self._state.bookmarks != self._bookmarks, self._state.bookmarks

    def _ended(self) -> bool:
        endings, cuts = self._begun_with
        if self._state.stopping or self._state.cuts != cuts:
            raise CutError
        return self._state.endings != endings

    async def _bookmark(self, answer: web.StreamResponse, annotations: dict[str, str]) -> None:
        if not self._query.bookmarks:
            return
        metadata: JsonObject = {"resourceVersion": str(self._version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {"kind": self._kind.kind, "apiVersion": self._kind.version, "metadata": metadata}
        await answer.write(event_line("BOOKMARK", msgspec.json.encode(bookmark)))
