"""How the simulated API server speaks on a watch: what comes first, what follows, and when it ends.

Follows ``staging/src/k8s.io/apiserver/pkg/storage/cacher`` of 1.36.2: a version from which the history is gone is
answered with 200 and an ERROR event; no version, or 0, means the present objects as ADDED events first; and with
``sendInitialEvents`` (KEP-3157) these end with a bookmark that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from neuron_plugin.simulation.api_server_kinds import JsonObject, Refusal, Selector, ServedKind
from neuron_plugin.simulation.api_server_store import Collection, Inbox, event_line


class CutError(Exception):
    """The connection is to be cut."""


class EndError(Exception):
    """The watch is to end as if its time was up."""


class Watch:
    """One open watch, as its ``query`` asks; with bookmarks at least every ``bookmark_seconds``."""

    def __init__(
        self, kind: ServedKind, collection: Collection, meant: Selector, query: Mapping[str, str], seconds: float
    ) -> None:
        self._kind = kind
        self._collection = collection
        self._meant = meant
        self._query = query
        self._bookmark_seconds = seconds
        self._version = 0

    async def run(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Speak until the time is up, the server ends it, or the client has left.

        Raises:
            CutError: the connection is to be cut without an end.
        """
        inbox = Inbox()
        try:
            async with asyncio.timeout(float(self._query.get("timeoutSeconds", "1800"))):
                version = self._query.get("resourceVersion", "")
                snapshot = None if version not in {"", "0"} else self._collection.snapshot()
                self._version = snapshot.version if snapshot else int(version)
                inbox = self._collection.follow(self._version)
                for stored in snapshot.objects if snapshot else ():
                    if self._meant(stored.value):
                        await answer.write(event_line("ADDED", stored.encoded))
                if snapshot and self._query.get("sendInitialEvents") == "true":
                    await self._bookmark(answer, {"annotations": {"k8s.io/initial-events-end": "true"}})
                while request.transport is not None and not request.transport.is_closing():
                    await self._show_next(inbox, answer)
        except (TimeoutError, EndError):
            return
        except Refusal as refusal:
            await answer.write(event_line("ERROR", msgspec.json.encode(refusal.status())))
        finally:
            self._collection.followers.discard(inbox)

    async def _show_next(self, inbox: Inbox, answer: web.StreamResponse) -> None:
        """Write what is next, or a bookmark when there is nothing for a while."""
        try:
            async with asyncio.timeout(self._bookmark_seconds):
                found = await inbox.get()
        except TimeoutError:
            found = None
        if isinstance(found, Exception):
            raise found
        if found is None:
            if inbox.empty():
                self._version = self._collection.version  # which no change of this kind comes before
            await self._bookmark(answer, {})
            return
        self._version = found.version
        if line := found.line(self._meant):
            await answer.write(line)

    async def _bookmark(self, answer: web.StreamResponse, more: JsonObject) -> None:
        if self._query.get("allowWatchBookmarks") == "true":
            metadata = {"resourceVersion": str(self._version), "creationTimestamp": None, **more}
            bookmark = {"kind": self._kind.kind, "apiVersion": self._kind.version, "metadata": metadata}
            await answer.write(event_line("BOOKMARK", msgspec.json.encode(bookmark)))
