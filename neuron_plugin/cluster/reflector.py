"""A local copy of one kind of object that follows the API server through everything that happens to a watch.

Watches end: after minutes by themselves, at once when a server restarts, with a 410 when the client was away too long
(as a status, or as an ERROR event inside a stream that answered 200), or never, when a connection died without a word.
All of these end here in the same place: wait, then go on from the last version known, or list again where the server
may not know that version any more. The library's own informer is not used: it re-opened a watch that ended at once
9 470 times in three seconds.

Nothing is served before the first list is in: ``synced`` says when.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

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
from neuron_plugin.cluster.interruptions import Interruptions
from neuron_plugin.cluster.kinds import Bookmark, Kind, Record, WatchEvent, decode_bookmark, decode_event, parse_version
from neuron_plugin.cluster.lists import EVERYWHERE, Scope, pages
from neuron_plugin.cluster.observer import UNOBSERVED, Observer
from neuron_plugin.cluster.store import Entries, OnChange, Store
from neuron_plugin.cluster.timing import CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

R = TypeVar("R", bound=Record)
V = TypeVar("V")

_NOT_SERVED = frozenset({400, 422})
"""How a server that knows ``sendInitialEvents`` but has WatchList switched off, or dislikes the options, refuses."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The reflector's times, in seconds.

    ``silence`` ends a watch on which nothing came, not even a bookmark: servers send one about every minute (KEP-956).
    ``initial_silence`` ends the wait for a WatchList's end mark, which a server that does not know WatchList
    (Kubernetes to 1.26) never sends; ``initial_most`` ends it where events never cease. A watch that lasted ``healthy``
    counts as having worked: the wait after it is short again. One that told nothing in all that time is not gone on
    from: a server whose etcd was restored counts from yesterday, and leaves out what is older than it was asked for.
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


class _NoWatchListError(ClusterError):
    """The end mark of the initial events did not come."""


class Reflector(Generic[R, V]):
    """Follow one kind: start ``run`` as a task, read ``values`` once ``synced`` is set.

    ``keep`` makes of each record what is worth holding in memory, or None of one that nobody will ask for. It and the
    callbacks of ``subscribe`` run between two events: they must be quick, and an exception of theirs ends ``run``.
    """

    def __init__(
        self,
        api: ApiServer,
        kind: Kind[R],
        keep: Callable[[R], V | None],
        *,
        scope: Scope = EVERYWHERE,
        pace: Pace = PACE,
        observer: Observer = UNOBSERVED,
        clock: Clock = CLOCK,
    ) -> None:
        self.synced = asyncio.Event()
        self._api = api
        self._kind = kind
        self._keep = keep
        self._scope = scope
        self._pace = pace
        self._observer = observer
        self._clock = clock
        self._store: Store[V] = Store()
        self._interruptions = Interruptions(
            kind.plural,
            observer,
            clock.chance,
            first_seconds=pace.backoff_first,
            longest_seconds=pace.backoff_limit,
        )
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
        """The resourceVersion up to which ``values`` is the truth; 0 before the first list."""
        return self._store.version

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Have each change told as (UID, old, new), in order, after ``values`` has it."""
        self._store.subscribe(on_change)

    def age_seconds(self) -> float:
        """How long ago the server was last heard of: a list, an event or a bookmark."""
        return self._clock.now() - self._heard_at

    def followed_seconds(self) -> float:
        """For how long a watch has been open without a break; 0 between two. Silence means nothing then."""
        return 0.0 if self._followed_since is None else self._clock.now() - self._followed_since

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            await self._clock.sleep(self._interruptions.wait_after(await self._follow_once()))

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
            trouble = f"no consistent list within {timeout_seconds:g} s"
            raise UnreachableError("GET", self._path, trouble, may_have_arrived=True) from error

    @property
    def _path(self) -> str:
        return self._kind.collection(self._scope.namespace)

    async def _follow_once(self) -> ClusterError | None:
        """Go on from where we are until it ends, and say how it ended: None is a clean end."""
        try:
            if self._must_list and self._watch_list:
                await self._watch_from_the_start()
            else:
                if self._must_list:
                    await self._list()
                await self._watch()
        except ClusterError as error:
            # From the same version, an event that cannot be read would only come again.
            if isinstance(error, DecodeError) or (isinstance(error, ApiError) and error.expired):
                self._must_list = True
            return error
        return None

    async def _list(self) -> None:
        """Read all pages, then put them in place in one step."""
        started, version_at_start = self._clock.now(), self._store.version
        entries: Entries[V] = {}
        version = 0
        async for page in pages(self._api, self._kind, self._scope, page_timeout_seconds=self._pace.page_timeout):
            version = page.version
            for record in page.records:
                self._stage(entries, record)
        self._put_in_place(entries, version, version_at_start)
        self._observer.listed(self._kind.plural, len(entries), self._clock.now() - started)

    async def _watch_from_the_start(self) -> None:
        """Have the list streamed as the watch's first part (WatchList), or find out that this server cannot do that."""
        started, version_at_start = self._clock.now(), self._store.version
        try:
            async with self._opened({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}) as lines:
                entries, version = await self._initial_events(lines)
                self._put_in_place(entries, version, version_at_start)
                self._observer.listed(self._kind.plural, len(entries), self._clock.now() - started)
                await self._apply_all(lines)
        except _NoWatchListError:
            self._watch_list = False
        except ApiError as error:
            if error.status not in _NOT_SERVED:
                raise
            self._watch_list = False

    async def _watch(self) -> None:
        async with self._opened({"resourceVersion": str(self._store.version)}) as lines:
            await self._apply_all(lines)

    def _opened(self, query: Mapping[str, str]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        pace = self._pace
        lasting = pace.watch_least + (pace.watch_most - pace.watch_least) * self._clock.chance()
        common = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(round(lasting))}
        request = ApiRequest("GET", self._path, {**self._scope.query(), **common, **query})
        return self._api.stream(request, silence_seconds=pace.silence)

    async def _initial_events(self, lines: AsyncIterator[bytes]) -> tuple[Entries[V], int]:
        """Collect what the server streams up to its end mark, and the version it is true at."""
        entries: Entries[V] = {}
        try:
            loop = asyncio.get_running_loop()
            latest = loop.time() + self._pace.initial_most
            async with asyncio.timeout(self._pace.initial_silence) as patience:
                async for line in lines:
                    patience.reschedule(min(latest, loop.time() + self._pace.initial_silence))
                    bookmark = self._stage_event(entries, self._read(line))
                    if bookmark is not None and bookmark.initial_end:
                        return entries, bookmark.version
        except TimeoutError as error:
            raise _NoWatchListError from error
        raise UnreachableError("GET", self._path, "the watch ended among its initial events", may_have_arrived=True)

    async def _apply_all(self, lines: AsyncIterator[bytes]) -> None:
        opened, told = self._clock.now(), False
        self._followed_since = opened
        try:
            async for line in lines:
                event = self._read(line)
                told = True
                if event.type == "BOOKMARK":
                    self._store.advance(decode_bookmark(event.object).version)
                else:
                    self._apply(event.type, self._kind.decode(event.object))
        finally:
            self._followed_since = None
            if self._clock.now() - opened >= self._pace.healthy:
                self._interruptions.watch_lasted()
                self._must_list = self._must_list or not told

    def _apply(self, change: str, record: R) -> None:
        version = parse_version(record.resource_version)
        if change == "DELETED":
            self._store.remove(record.uid, version)
        else:
            self._store.put(record.uid, version, self._keep(record))

    def _stage_event(self, entries: Entries[V], event: WatchEvent) -> Bookmark | None:
        if event.type == "BOOKMARK":
            return decode_bookmark(event.object)
        record = self._kind.decode(event.object)
        entries.pop(record.uid, None)
        if event.type != "DELETED":
            self._stage(entries, record)
        return None

    def _stage(self, entries: Entries[V], record: R) -> None:
        value = self._keep(record)
        if value is not None:
            entries[record.uid] = (parse_version(record.resource_version), value)

    def _read(self, line: bytes) -> WatchEvent:
        """Read one line; an ERROR event is the refusal that came too late to be a status, so of our version."""
        event = decode_event(line)
        if event.type == "ERROR":
            self._must_list = True
            raise refusal(Response(0, bytes(event.object)), ApiRequest("GET", self._path))
        self._hear()
        return event

    def _put_in_place(self, entries: Entries[V], version: int, version_at_start: int) -> None:
        self._store.replace(entries, version, version_at_start=version_at_start)
        self._must_list = False
        self._hear()
        self.synced.set()

    def _hear(self) -> None:
        self._heard_at = self._clock.now()
        self._interruptions.heard()
