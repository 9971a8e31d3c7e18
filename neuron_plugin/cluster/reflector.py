"""A local copy of one resource that follows the API server through everything that happens to a watch.

Watches end after minutes by themselves, and at once when a server restarts. They end with a 410 when the client was
away too long: as a status, or as an ERROR event inside a stream that answered 200. When a connection died silently they
never end. All of these are handled in one place: wait, then continue from the last version known, or list again where
the server may not have that version any more. The library's own informer is not used: it re-opened a watch that ended
at once 9 470 times in three seconds.

Nothing is served before the first list is in: ``synced`` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
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
from neuron_plugin.cluster.objects import EVERYWHERE, ApiResource, Record, Scope, decode_event, pages, parse_version

R = TypeVar("R", bound=Record)
V = TypeVar("V")

OnChange = Callable[[str, V | None, V | None], None]
"""Called with UID, old value, new value; None is "not there". Must not block: it runs between two events."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """The reflector's times, in seconds.

    ``silence`` ends a watch on which nothing came, not even a bookmark: servers send one about every minute (KEP-956).
    A watch that lasted ``healthy`` counts as having worked: the wait after it is short again. If such a watch sent
    nothing at all, the next one does not continue from its version: a server whose etcd was restored counts from an
    older version, and leaves out what is older than the version asked for.
    """

    page_timeout: float = 30.0
    watch_least: float = 240.0
    watch_most: float = 300.0
    silence: float = 150.0
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
        self._path = resource.collection(scope.namespace)
        self._keep = keep
        self._scope = scope
        self._pace = pace
        self._observer = observer
        self._clock = clock
        self._store: Store[V] = Store()
        self.values = self._store.values
        self.subscribe = self._store.subscribe
        self._backoff = Backoff(clock.chance, first_seconds=pace.backoff_first, longest_seconds=pace.backoff_limit)
        self._failing = False
        self._must_list = True
        self._heard_at = clock.now()
        self._followed_since: float | None = None

    def age_seconds(self) -> float:
        """How long ago anything came from the server: a list, an event or a bookmark."""
        return self._clock.now() - self._heard_at

    def followed_seconds(self) -> float:
        """For how long a watch has been open without a break; 0 between two. Silence means nothing then."""
        return 0.0 if self._followed_since is None else self._clock.now() - self._followed_since

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            ended: ClusterError | None = None
            try:
                if self._must_list:
                    await self._list()
                await self._watch()
            except ClusterError as error:
                ended = error
                # From the same version, an event that cannot be read would only come again.
                if isinstance(error, DecodeError) or (isinstance(error, ApiError) and error.expired):
                    self._must_list = True
            await self._clock.sleep(self._wait_after(ended))

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

    def _wait_after(self, error: ClusterError | None) -> float:
        """Count and log the end of a list or watch; the seconds to wait. None is a clean end.

        Watches end all day, and most ends mean nothing: so each is counted, but only the first failure in a row is
        logged, and the end of the row. A server that asks for time gets it, up to the longest wait, and the back-off's
        jitter on top: it asks many clients.
        """
        wait, cause = self._backoff.next_seconds(), "end" if error is None else "unreachable"
        if isinstance(error, ApiError):
            cause = "expired" if error.expired else "refused"
            wait += min(error.retry_after_seconds or 0.0, self._pace.backoff_limit)
        elif isinstance(error, DecodeError):
            cause = "unreadable"
        if self._observer:
            self._observer.interrupted(self._resource.plural, cause, wait)
        if cause not in {"end", "expired"} and not self._failing:
            self._failing = True
            log.warning("API server watch failing", extra={"kind": self._resource.plural, "error": str(error)})
        return wait

    def _heard(self) -> None:
        """Note that something came from the server."""
        self._heard_at = self._clock.now()
        if self._failing:
            self._failing = False
            log.info("API server watch working again", extra={"kind": self._resource.plural})

    async def _list(self) -> None:
        """Read all pages, then replace the values in one step."""
        started, version_at_start = self._clock.now(), self._store.version
        values: dict[str, V] = {}
        version = 0
        async for page in pages(self._api, self._resource, self._scope, page_timeout_seconds=self._pace.page_timeout):
            version = page.version
            for record in page.records:
                value = self._keep(record)
                if value is not None:
                    values[record.uid] = value
        self._store.replace(values, version, version_at_start=version_at_start)
        self.listed_at = max(started, started if self.listed_at is None else self.listed_at)
        self._must_list = False
        self._heard()
        self.synced.set()
        if self._observer:
            self._observer.listed(self._resource.plural, len(values), self._clock.now() - started)

    async def _watch(self) -> None:
        """Apply the events after the present version until the watch ends."""
        pace = self._pace
        lasting = pace.watch_least + (pace.watch_most - pace.watch_least) * self._clock.chance()
        query = self._scope.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._store.version),
            "timeoutSeconds": str(round(lasting)),
        }
        request = ApiRequest("GET", self._path, query)
        async with self._api.stream(request, silence_seconds=pace.silence) as lines:
            opened, any_event = self._clock.now(), False
            self._followed_since = opened
            try:
                async for line in lines:
                    self._apply(line)
                    any_event = True
            finally:
                self._followed_since = None
                if self._clock.now() - opened >= pace.healthy:
                    self._backoff.reset()
                    self._must_list = self._must_list or not any_event

    def _apply(self, line: bytes) -> None:
        """Apply one event; an ERROR is a refusal that came too late to be a status, so our version is no good."""
        event = decode_event(line)
        if event.type == "ERROR":
            self._must_list = True
            raise refusal(Response(0, bytes(event.object)), ApiRequest("GET", self._path))
        self._heard()
        record = self._resource.decode(event.object)  # a bookmark is an object of the same kind with a version alone
        version = parse_version(record.resource_version)
        if event.type == "BOOKMARK":
            self._store.advance(version)
        else:
            self._store.put(record.uid, version, None if event.type == "DELETED" else self._keep(record))


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
        self._listed_version = 0
        self._listeners: list[OnChange[V]] = []
        self.version = 0
        """The newest version seen; 0 before the first list."""
        self.values: Mapping[str, V] = MappingProxyType(self._values)
        """UID to value, as of the last event. Take a copy to keep it across an ``await``."""

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Have ``on_change`` called for each further change as (UID, old, new), in order, after ``values`` has it."""
        self._listeners.append(on_change)

    def put(self, uid: str, version: int, value: V | None) -> None:
        """Take an event: the value at this version; None for an object that is deleted or not kept."""
        self.advance(version)
        # A watch sends each event once and in order, so only a list can have shown it before.
        if version > self._listed_version:
            old = self._values.get(uid)
            if value is None:
                self._values.pop(uid, None)
            else:
                self._values[uid] = value
            self._notify(uid, old, value)

    def advance(self, version: int) -> None:
        """Take a bookmark: nothing happened up to this version."""
        self.version = max(self.version, version)

    def replace(self, values: Mapping[str, V], version: int, *, version_at_start: int) -> bool:
        """Take a consistent list, in one step; True if it was used.

        ``version_at_start`` is the store's version when the list was asked for. A list below the present version was
        overtaken, by the watch or another list; unless nothing came since: then the server's history was rewritten
        (a restored etcd), and the list is right.
        """
        if version < self.version != version_at_start:
            return False
        before = dict(self._values)
        self._values.clear()
        self._values.update(values)
        self.version = self._listed_version = version
        for uid in [*(uid for uid in before if uid not in values), *values]:
            old, new = before.get(uid), values.get(uid)
            if old != new:
                self._notify(uid, old, new)
        return True

    def _notify(self, uid: str, old: V | None, new: V | None) -> None:
        if old is not None or new is not None:
            for listener in self._listeners:
                listener(uid, old, new)
