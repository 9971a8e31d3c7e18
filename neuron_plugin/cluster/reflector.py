"""A local copy of one resource that follows the API server through everything that happens to a watch.

Watches end: after minutes by themselves, at once when a server restarts, with a 410 when the client was away too long
(as a status, or as an ERROR event inside a stream that answered 200), or never, when a connection died silently.
All of these are handled in one place: wait, then continue from the last version known, or list again where the server
may not have that version any more. The library's own informer is not used: it re-opened a watch that ended at once
9 470 times in three seconds.

Nothing is served before the first list is in: ``synced`` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NoReturn, Protocol, TypeVar

from neuron_plugin.backoff import CLOCK, Backoff, Clock
from neuron_plugin.cluster.api import (
    ApiError,
    ApiRequest,
    ApiServer,
    ClusterError,
    DecodeError,
    Response,
    UnreachableError,
    refusal,
)
from neuron_plugin.cluster.objects import (
    EVERYWHERE,
    ApiObject,
    ApiResource,
    Bookmark,
    Scope,
    WatchEvent,
    decode_bookmark,
    decode_event,
    pages,
    parse_version,
)

R = TypeVar("R", bound=ApiObject)
V = TypeVar("V")

OnChange = Callable[[str, V | None, V | None], None]
"""Called with UID, old value, new value; None is "not there". Must not block: it runs between two events."""

Entries = dict[str, tuple[int, V]]
"""UID to the version and the value of a record."""

log = logging.getLogger(__name__)

_WATCH_LIST_REFUSED = frozenset({400, 422})
"""How a server refuses that knows ``sendInitialEvents`` but has WatchList switched off, or rejects the options."""
_ORDINARY_ENDS = frozenset({"end", "expired"})


@dataclass(frozen=True, slots=True)
class Pace:
    """The reflector's times, in seconds.

    ``silence`` ends a watch on which nothing came, not even a bookmark: servers send one about every minute (KEP-956).
    ``initial_silence`` ends the wait for a WatchList's end mark, which a server that does not know WatchList
    (Kubernetes to 1.26) never sends; ``initial_most`` ends it where events never cease. A watch that lasted ``healthy``
    counts as having worked: the wait after it is short again. If such a watch sent nothing at all, the next one does
    not continue from its version: a server whose etcd was restored counts from an older version, and leaves out what
    is older than the version asked for.
    """

    page_timeout: float = 30.0
    watch_least: float = 240.0
    watch_most: float = 300.0
    silence: float = 150.0
    initial_silence: float = 5.0
    initial_most: float = 60.0
    healthy: float = 10.0
    backoff_first: float = 0.1
    backoff_limit: float = 30.0


PACE = Pace()


class Observer(Protocol):
    """Counts what a reflector does, for metrics; must not block or raise."""

    def listed(self, kind: str, records: int, seconds: float) -> None:
        """A complete list is in, of which so many records were kept."""

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:
        """A list or watch ended: ``end``, ``expired``, ``refused``, ``unreachable`` or ``unreadable``."""


class _NoWatchListError(ClusterError):
    """The end mark of the initial events did not come."""


class Reflector(Generic[R, V]):
    """Follow one resource: start ``run`` as a task, read ``values`` once ``synced`` is set.

    ``keep`` makes of each record what is worth holding in memory, or None for a record that is not needed. It and the
    callbacks of ``subscribe`` run between two events: they must be quick, and an exception of theirs ends ``run``.
    """

    def __init__(
        self,
        api: ApiServer,
        resource: ApiResource[R],
        keep: Callable[[R], V | None],
        *,
        scope: Scope = EVERYWHERE,
        pace: Pace = PACE,
        observer: Observer | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        self.synced = asyncio.Event()
        self.listed_at: float | None = None
        """When the last consistent list that is in was asked for, by ``clock``; None before the first.

        An object that existed then and is not in ``values`` has ended, or ``keep`` does not want it.
        """
        self._api = api
        self._resource = resource
        self._keep = keep
        self._scope = scope
        self._pace = pace
        self._observer = observer
        self._clock = clock
        self._store: Store[V] = Store()
        self._backoff = Backoff(clock.chance, first_seconds=pace.backoff_first, longest_seconds=pace.backoff_limit)
        self._failing = False
        self._must_list = True
        self._watch_list = True
        self._heard_at = clock.now()
        self._followed_since: float | None = None

    @property
    def values(self) -> Mapping[str, V]:
        """UID to what ``keep`` made of the object, as of the last event; copy it to hold it across an ``await``."""
        return self._store.values

    @property
    def version(self) -> int:
        """The resourceVersion up to which ``values`` is complete; 0 before the first list."""
        return self._store.version

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Have ``on_change`` called for each change as (UID, old, new), in order, after ``values`` has it."""
        self._store.subscribe(on_change)

    def age_seconds(self) -> float:
        """How long ago anything came from the server: a list, an event or a bookmark."""
        return self._clock.now() - self._heard_at

    def followed_seconds(self) -> float:
        """For how long a watch has been open without a break; 0 between two. Silence means nothing then."""
        return 0.0 if self._followed_since is None else self._clock.now() - self._followed_since

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            await self._clock.sleep(self._wait_after(await self._follow_once()))

    async def list_consistently(self, timeout_seconds: float) -> None:
        """Bring ``values`` to what the server knows now or later; works beside the watch, and before it.

        Raises:
            UnreachableError: not done within ``timeout_seconds``.
            ClusterError: the server refused, or its answer cannot be read.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._list()
        except TimeoutError as error:
            cause = f"no consistent list within {timeout_seconds:g} s"
            raise UnreachableError("GET", self._path, cause, may_have_arrived=True) from error

    @property
    def _path(self) -> str:
        return self._resource.collection(self._scope.namespace)

    async def _follow_once(self) -> ClusterError | None:
        """Continue from the last state until that ends, and return how it ended: None is a clean end."""
        try:
            if self._must_list and self._watch_list:
                await self._watch_with_initial_events()
            else:
                if self._must_list:
                    await self._list()
                async with self._open_watch({"resourceVersion": str(self._store.version)}) as lines:
                    await self._apply_all(lines)
        except ClusterError as error:
            # From the same version, an event that cannot be read would only come again.
            if isinstance(error, DecodeError) or (isinstance(error, ApiError) and error.expired):
                self._must_list = True
            return error
        return None

    def _wait_after(self, error: ClusterError | None) -> float:
        """Count and log the end of a list or watch; the seconds to wait. None is a clean end.

        Watches end all day, and most ends mean nothing: so each is counted, but only the first failure in a row is
        logged, and the end of the row. A server that asks for time gets it, up to the longest wait, and the back-off's
        jitter on top: it asks many clients.
        """
        requested = error.retry_after_seconds if isinstance(error, ApiError) else None
        wait = self._backoff.next_seconds() + min(requested or 0.0, self._pace.backoff_limit)
        if error is None:
            cause = "end"
        elif isinstance(error, ApiError):
            cause = "expired" if error.expired else "refused"
        else:
            cause = "unreadable" if isinstance(error, DecodeError) else "unreachable"
        if self._observer:
            self._observer.interrupted(self._resource.plural, cause, wait)
        if cause not in _ORDINARY_ENDS and not self._failing:
            self._failing = True
            log.warning("API server watch failing", extra={"kind": self._resource.plural, "error": str(error)})
        return wait

    def _heard(self) -> None:
        """Note that something came from the server."""
        self._heard_at = self._clock.now()
        if self._failing:
            self._failing = False
            log.info("API server watch working again", extra={"kind": self._resource.plural})

    # Lists.

    async def _list(self) -> None:
        """Read all pages, then replace the values in one step."""
        started, version_at_start = self._clock.now(), self._store.version
        entries: Entries[V] = {}
        version = 0
        async for page in pages(self._api, self._resource, self._scope, page_timeout_seconds=self._pace.page_timeout):
            version = page.version
            for record in page.records:
                self._stage(entries, record)
        self._replace(entries, version, version_at_start, started)

    async def _watch_with_initial_events(self) -> None:
        """Have the list streamed as the watch's first part (WatchList), or find out that this server cannot do that."""
        started, version_at_start = self._clock.now(), self._store.version
        try:
            query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            async with self._open_watch(query) as lines:
                entries, version = await self._initial_events(lines)
                self._replace(entries, version, version_at_start, started)
                await self._apply_all(lines)
        except _NoWatchListError:
            self._watch_list = False
        except ApiError as error:
            if error.status not in _WATCH_LIST_REFUSED:
                raise
            self._watch_list = False

    async def _initial_events(self, lines: AsyncIterator[bytes]) -> tuple[Entries[V], int]:
        """Collect what the server streams up to its end mark, and the version it is complete at."""
        entries: Entries[V] = {}
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._pace.initial_most
        try:
            async with asyncio.timeout(self._pace.initial_silence) as deadline:
                async for line in lines:
                    deadline.reschedule(min(latest, loop.time() + self._pace.initial_silence))
                    bookmark = self._stage_event(entries, self._read(line))
                    if bookmark is not None and bookmark.initial_end:
                        return entries, bookmark.version
        except TimeoutError as error:
            raise _NoWatchListError from error
        raise UnreachableError("GET", self._path, "the watch ended among its initial events", may_have_arrived=True)

    def _stage_event(self, entries: Entries[V], event: WatchEvent) -> Bookmark | None:
        """Add one initial event; a server may send changes before it has reached the end mark's version."""
        if event.type == "BOOKMARK":
            return decode_bookmark(event.object)
        record = self._resource.decode(event.object)
        entries.pop(record.uid, None)
        if event.type != "DELETED":
            self._stage(entries, record)
        return None

    def _stage(self, entries: Entries[V], record: R) -> None:
        value = self._keep(record)
        if value is not None:
            entries[record.uid] = (parse_version(record.resource_version), value)

    def _replace(self, entries: Entries[V], version: int, version_at_start: int, started: float) -> None:
        """Put a complete list in place."""
        self._store.replace(entries, version, version_at_start=version_at_start)
        self.listed_at = max(started, started if self.listed_at is None else self.listed_at)
        self._must_list = False
        self._heard()
        self.synced.set()
        if self._observer:
            self._observer.listed(self._resource.plural, len(entries), self._clock.now() - started)

    # Watches.

    def _open_watch(self, query: Mapping[str, str]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        pace = self._pace
        lasting = pace.watch_least + (pace.watch_most - pace.watch_least) * self._clock.chance()
        common = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(round(lasting))}
        request = ApiRequest("GET", self._path, {**self._scope.query(), **common, **query})
        return self._api.stream(request, silence_seconds=pace.silence)

    async def _apply_all(self, lines: AsyncIterator[bytes]) -> None:
        """Apply a watch's events until it ends."""
        opened, any_event = self._clock.now(), False
        self._followed_since = opened
        try:
            async for line in lines:
                event = self._read(line)
                any_event = True
                if event.type == "BOOKMARK":
                    self._store.advance(decode_bookmark(event.object).version)
                    continue
                record = self._resource.decode(event.object)
                version = parse_version(record.resource_version)
                if event.type == "DELETED":
                    self._store.remove(record.uid, version)
                else:
                    self._store.put(record.uid, version, self._keep(record))
        finally:
            self._followed_since = None
            if self._clock.now() - opened >= self._pace.healthy:
                self._backoff.reset()
                self._must_list = self._must_list or not any_event

    def _read(self, line: bytes) -> WatchEvent:
        """Read one line; an ERROR event is a refusal that came too late to be a status, so our version is no good."""
        event = decode_event(line)
        if event.type == "ERROR":
            self._must_list = True
            raise refusal(Response(0, bytes(event.object)), ApiRequest("GET", self._path))
        self._heard()
        return event


class Store(Generic[V]):
    """What is known of one resource, keyed by UID, and never moved backwards. No I/O.

    Changes come from two sides: the watch, and consistent lists taken beside it when an answer cannot wait for the
    watch. The two overlap: a list may hold a pod whose end the watch has reported already, and the watch may still
    report a pod that a list has shown to be gone. Versions settle both. A list is complete for *all* objects at its
    version, so events up to that version are old, and a list older than the newest event changes nothing.

    Keys are UIDs because names come back: a StatefulSet's next pod has the name of the last.
    """

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self._listed_version = 0
        self._listeners: list[OnChange[V]] = []

    @property
    def version(self) -> int:
        """The newest version seen; 0 before the first list."""
        return self._version

    @property
    def values(self) -> Mapping[str, V]:
        """UID to value, as of the last event. Take a copy to keep it across an ``await``."""
        return MappingProxyType(self._values)

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Have ``on_change`` called for every further change, in order; not for what is already there."""
        self._listeners.append(on_change)

    def put(self, uid: str, version: int, value: V | None) -> None:
        """Take an ADDED or MODIFIED event; a value None is not kept."""
        if value is None:
            self.remove(uid, version)
        elif self._is_new(version):
            old = self._values.get(uid)
            self._values[uid] = value
            self._versions[uid] = version
            self._notify(uid, old, value)

    def remove(self, uid: str, version: int) -> None:
        """Take a DELETED event: this UID, and no other object of the same name, is gone."""
        if self._is_new(version):
            old = self._values.pop(uid, None)
            self._versions.pop(uid, None)
            if old is not None:
                self._notify(uid, old, None)

    def advance(self, version: int) -> None:
        """Take a bookmark: nothing happened up to this version."""
        self._version = max(self._version, version)

    def replace(self, entries: Entries[V], version: int, *, version_at_start: int) -> bool:
        """Take a consistent list, in one step; True if it was used.

        ``version_at_start`` is the store's version when the list was asked for. A list below the present version was
        overtaken, by the watch or another list; unless nothing came since: then the server's history was rewritten
        (a restored etcd), and the list is right.
        """
        if version < self._version != version_at_start:
            return False
        before, versions_before = self._values, self._versions
        self._values = {uid: value for uid, (_, value) in entries.items()}
        self._versions = {uid: of_record for uid, (of_record, _) in entries.items()}
        self._version = self._listed_version = version
        for uid, old in before.items():
            if uid not in self._values:
                self._notify(uid, old, None)
        for uid, value in list(self._values.items()):
            if versions_before.get(uid) != self._versions.get(uid):
                self._notify(uid, before.get(uid), value)
        return True

    def _is_new(self, version: int) -> bool:
        """Count the version in. A watch sends each once and in order, so only a list can have shown it before."""
        self._version = max(self._version, version)
        return version > self._listed_version

    def _notify(self, uid: str, old: V | None, new: V | None) -> None:
        for listener in self._listeners:
            listener(uid, old, new)
