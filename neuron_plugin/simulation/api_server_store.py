"""The memory of the simulated API server: objects, the one counter of versions, their history and the watches on it.

Like etcd it numbers every write with one counter for all kinds, and keeps what happened until it is compacted. A list's
further pages are served from the version of its first. Objects are kept as values with their bytes beside them: a list
of ten thousand pods costs no encoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import msgspec

from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal, Selector, ServedKind

ObjectKey = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name: the order of lists."""

_KEPT_SNAPSHOTS = 8
"""Lists whose further pages may still be asked for."""
_KEPT_CHANGES = 10_000
"""From which a watch may continue; then it gets a 410."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One state of one object. Never change ``value`` in place: readers hold it."""

    value: AnyJson
    encoded: bytes
    version: int


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One write.

    ``old`` None is a creation, ``gone`` an end, whose ``new`` is the last state with the end's version.
    """

    version: int
    old: Stored | None
    new: Stored
    gone: bool = False

    def line(self, meant: Selector) -> bytes | None:
        """Return the change as a watch with a selector sees it: objects enter and leave the selection.

        None is unseen. One that leaves is shown as it was last seen, with the version of its leaving
        (``cacher/cache_watcher.go``).
        """
        before = self.old is not None and meant(self.old.value)
        if not self.gone and meant(self.new.value):
            return event_line("MODIFIED" if before else "ADDED", self.new.encoded)
        if self.old is None or not before:
            return None
        return event_line("DELETED", _stamped(self.old.value, self.version).encoded)


@dataclass(slots=True)
class Versions:
    """The one counter."""

    current: int = 1

    def step(self) -> int:
        """Count one write."""
        self.current += 1
        return self.current


@dataclass(frozen=True, slots=True)
class CollectionSnapshot:
    """A whole collection at one version, in the order of its keys."""

    version: int
    objects: list[Stored]


Inbox = asyncio.Queue[ObjectChange | Exception | None]
"""What is next for a watch: a change, its end as an exception (a TimeoutError: its time is up), or None, a bookmark."""


class Collection:
    """All objects of one kind, and their history; every write goes to its ``followers``."""

    def __init__(self, versions: Versions) -> None:
        self.followers: set[Inbox] = set()
        self._versions = versions
        self._objects: dict[ObjectKey, Stored] = {}
        self._history: list[ObjectChange] = []
        self._compacted = 0  # nothing can start below this
        self._snapshots: dict[int, CollectionSnapshot] = {}
        self._listed: list[Stored] | None = None

    def copy(self, versions: Versions) -> Collection:
        """The same objects, numbered on by another counter; nobody follows them."""
        made = Collection(versions)
        made._objects.update(self._objects)
        return made

    @property
    def version(self) -> int:
        """The newest version of all kinds."""
        return self._versions.current

    def get(self, key: ObjectKey) -> Stored | None:
        """Return the present state, or None."""
        return self._objects.get(key)

    def put(self, key: ObjectKey, value: AnyJson) -> Stored:
        """Write an object; a write that changes nothing is none, as on the real server."""
        old = self._objects.get(key)
        if old is not None and old.value == value:
            return old
        stored = self._objects[key] = _stamped(value, self._versions.step())
        self._record(ObjectChange(stored.version, old, stored))
        return stored

    def remove(self, key: ObjectKey) -> Stored:
        """Remove an object; its last state carries the version of its end."""
        old = self._objects.pop(key)
        last = _stamped(old.value, self._versions.step())
        self._record(ObjectChange(last.version, old, last, gone=True))
        return last

    def objects(self) -> list[Stored]:
        """Return all objects as they are, by their keys."""
        if self._listed is None:
            self._listed = [self._objects[key] for key in sorted(self._objects)]
        return self._listed

    def snapshot(self) -> CollectionSnapshot:
        """Return the collection as it is, and remember it for further pages."""
        taken = self._snapshots[self.version] = CollectionSnapshot(self.version, self.objects())
        while len(self._snapshots) > _KEPT_SNAPSHOTS:
            del self._snapshots[min(self._snapshots)]
        return taken

    def snapshot_at(self, version: int) -> CollectionSnapshot:
        """Return the snapshot an earlier page was read from."""
        if version not in self._snapshots:
            raise Refusal(
                410,
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter.",
            )
        return self._snapshots[version]

    def compact(self) -> None:
        """Forget the history and all snapshots: older versions can be neither watched nor paged any more."""
        self._compacted = self._versions.current
        self._history.clear()
        self._snapshots.clear()

    def follow(self, version: int) -> Inbox:
        """Return all changes after a version, and those to come until it is no longer among the followers."""
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
    """The connection is to be cut."""


@dataclass(slots=True)
class Watch:
    """One open watch, as its ``query`` asks; with bookmarks at least every ``bookmark_seconds``.

    Follows ``staging/src/k8s.io/apiserver/pkg/storage/cacher`` of 1.36.2: a version from which the history is gone is
    answered with 200 and an ERROR event; no version, or 0, means the present objects as ADDED events first.
    """

    kind: ServedKind
    collection: Collection
    meant: Selector
    query: Mapping[str, str]
    bookmark_seconds: float
    version: int = 0
    """Up to which all changes were shown."""

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Each line until the time is up or the server ends it; an empty one where nothing is to be said for a while.

        Raises:
            CutError: the connection is to be cut without an end.
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
                        self.version = self.collection.version  # which no change of this kind comes before
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
    """What comes next, or None, a bookmark, when there is nothing for so long."""
    try:
        async with asyncio.timeout(seconds):
            return await inbox.get()
    except TimeoutError:
        return None


def event_line(change: str, encoded: bytes) -> bytes:
    """Frame a watch event as the real server does: one JSON object and a newline."""
    return b'{"type":"%s","object":%s}\n' % (change.encode(), encoded)


def _stamped(value: AnyJson, version: int) -> Stored:
    stamped = value | {"metadata": value["metadata"] | {"resourceVersion": str(version)}}
    return Stored(stamped, msgspec.json.encode(stamped), version)
