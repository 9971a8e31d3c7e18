"""The storage of the simulated API server: objects, versions, history and watches.

Like etcd, it numbers all writes with one counter and keeps the history until compaction. All pages of a list have the
version of the first. Objects are kept decoded and encoded, so that large lists need no encoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import msgspec

from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal, Selector, ServedKind

ObjectKey = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name; lists are sorted by it."""

_KEPT_SNAPSHOTS = 8
"""Lists whose next pages can be read."""
_KEPT_CHANGES = 10_000
"""Changes kept in the history; a watch from an older version gets a 410."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object. Never change ``value`` in place: readers hold it."""

    value: AnyJson
    encoded: bytes
    version: int


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A write. ``old`` is None for a creation. ``gone`` means removed; ``new`` is then the last state."""

    version: int
    old: Stored | None
    new: Stored
    gone: bool = False

    def line(self, meant: Selector) -> bytes | None:
        """Return the watch event for a selector, or None if the watch does not see the change.

        An object that leaves the selection is DELETED, in its last selected state (``cacher/cache_watcher.go``).
        """
        before = self.old is not None and meant(self.old.value)
        if not self.gone and meant(self.new.value):
            return event_line("MODIFIED" if before else "ADDED", self.new.encoded)
        if self.old is None or not before:
            return None
        return event_line("DELETED", _stamped(self.old.value, self.version).encoded)


@dataclass(slots=True)
class Versions:
    """The counter of writes."""

    current: int = 1

    def step(self) -> int:
        """Count one write."""
        self.current += 1
        return self.current


@dataclass(frozen=True, slots=True)
class CollectionSnapshot:
    """A collection at one version, sorted by key."""

    version: int
    objects: list[Stored]


Inbox = asyncio.Queue[ObjectChange | Exception | None]
"""Items for a watch: a change, an exception that ends it (TimeoutError: its time is up), or None for a bookmark."""


class Collection:
    """All objects of a kind, and their history. ``followers`` get every write."""

    def __init__(self, versions: Versions) -> None:
        self.followers: set[Inbox] = set()
        self._versions = versions
        self._objects: dict[ObjectKey, Stored] = {}
        self._history: list[ObjectChange] = []
        self._compacted = 0  # nothing can start below this
        self._snapshots: dict[int, CollectionSnapshot] = {}
        self._listed: list[Stored] | None = None

    def copy(self, versions: Versions) -> Collection:
        """A copy of the objects with another counter and without followers."""
        made = Collection(versions)
        made._objects.update(self._objects)
        return made

    @property
    def version(self) -> int:
        """The latest version of all kinds."""
        return self._versions.current

    def get(self, key: ObjectKey) -> Stored | None:
        """Return an object, or None."""
        return self._objects.get(key)

    def put(self, key: ObjectKey, value: AnyJson) -> Stored:
        """Write an object. A write that changes nothing is skipped, as by the real server."""
        old = self._objects.get(key)
        if old is not None and old.value == value:
            return old
        stored = self._objects[key] = _stamped(value, self._versions.step())
        self._record(ObjectChange(stored.version, old, stored))
        return stored

    def remove(self, key: ObjectKey) -> Stored:
        """Remove an object, and return its last state with the version of the removal."""
        old = self._objects.pop(key)
        last = _stamped(old.value, self._versions.step())
        self._record(ObjectChange(last.version, old, last, gone=True))
        return last

    def objects(self) -> list[Stored]:
        """Return all objects, sorted by key."""
        if self._listed is None:
            self._listed = [self._objects[key] for key in sorted(self._objects)]
        return self._listed

    def snapshot(self) -> CollectionSnapshot:
        """Return the current collection, and keep it for next pages."""
        taken = self._snapshots[self.version] = CollectionSnapshot(self.version, self.objects())
        while len(self._snapshots) > _KEPT_SNAPSHOTS:
            del self._snapshots[min(self._snapshots)]
        return taken

    def snapshot_at(self, version: int) -> CollectionSnapshot:
        """Return the snapshot of an earlier page."""
        if version not in self._snapshots:
            raise Refusal(
                410,
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter.",
            )
        return self._snapshots[version]

    def compact(self) -> None:
        """Forget the history and all snapshots."""
        self._compacted = self._versions.current
        self._history.clear()
        self._snapshots.clear()

    def follow(self, version: int) -> Inbox:
        """Return a queue of all changes after a version. It is one of the ``followers`` from now on."""
        if version < self._compacted:
            raise Refusal(410, f"too old resource version: {version} ({self._compacted})")
        inbox = Inbox()
        for change in self._history:
            if change.version > version:
                inbox.put_nowait(change)
        self.followers.add(inbox)
        return inbox

    def _record(self, change: ObjectChange) -> None:
        self._listed = None
        if len(self._history) == _KEPT_CHANGES:
            self.compact()
        self._history.append(change)
        for inbox in self.followers:
            inbox.put_nowait(change)


class CutError(Exception):
    """Cut the connection."""


@dataclass(slots=True)
class Watch:
    """An open watch with the options in ``query``, and a bookmark after ``bookmark_seconds`` of silence.

    Without a version, or with 0, the watch starts with the current objects as ADDED events. A version that is too old
    gets 200 and an ERROR event (``staging/src/k8s.io/apiserver/pkg/storage/cacher`` of 1.36.2).
    """

    kind: ServedKind
    collection: Collection
    meant: Selector
    query: Mapping[str, str]
    bookmark_seconds: float
    version: int = 0
    """The version of the last event."""

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of the watch until it ends. An empty line marks a silence without a bookmark.

        Raises:
            CutError: cut the connection.
        """
        loop, inbox = asyncio.get_running_loop(), Inbox()
        ends_at = loop.time() + float(self.query.get("timeoutSeconds", "1800"))
        try:
            version = self.query.get("resourceVersion", "")
            snapshot = None if version not in {"", "0"} else self.collection.snapshot()
            self.version = snapshot.version if snapshot else int(version)
            inbox = self.collection.follow(self.version)
            for stored in snapshot.objects if snapshot else ():
                if self.meant(stored.value):
                    yield event_line("ADDED", stored.encoded)
            while (left := ends_at - loop.time()) > 0:
                event = await _next(inbox, min(left, self.bookmark_seconds))
                if isinstance(event, TimeoutError):
                    return
                if isinstance(event, Exception):
                    raise event
                if event is not None:
                    self.version = event.version
                    yield event.line(self.meant) or b""
                elif loop.time() < ends_at:
                    if inbox.empty():
                        self.version = self.collection.version  # no change of this kind is pending
                    yield self._bookmark()
        except Refusal as refusal:
            yield event_line("ERROR", msgspec.json.encode(refusal.status()))
        finally:
            self.collection.followers.discard(inbox)

    def _bookmark(self) -> bytes:
        if self.query.get("allowWatchBookmarks") != "true":
            return b""
        metadata = {"resourceVersion": str(self.version), "creationTimestamp": None}
        bookmark = {"kind": self.kind.kind, "apiVersion": self.kind.version, "metadata": metadata}
        return event_line("BOOKMARK", msgspec.json.encode(bookmark))


async def _next(inbox: Inbox, seconds: float) -> ObjectChange | Exception | None:
    """The next item, or None after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await inbox.get()
    except TimeoutError:
        return None


def event_line(change: str, encoded: bytes) -> bytes:
    """Encode a watch event: one JSON object and a newline."""
    return b'{"type":"%s","object":%s}\n' % (change.encode(), encoded)


def _stamped(value: AnyJson, version: int) -> Stored:
    stamped = value | {"metadata": value["metadata"] | {"resourceVersion": str(version)}}
    return Stored(stamped, msgspec.json.encode(stamped), version)
