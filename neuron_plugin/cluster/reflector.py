"""A local copy of one resource, kept up to date through all failures of a watch.

Watches end after minutes by themselves, and at once if a server restarts. They end with a 410 if the client was away
too long: as a status, or as an ERROR event in a stream that answered 200. If a connection dies silently, they never
end. All of these are handled in one way: wait, then continue from the last known version, or list again if the server
may not have that version any more. The library's own informer is not used: it re-opened a watch that ended at once 9
470 times in three seconds.

There are no values before the first list is complete: see ``synced``.
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
"""Called with UID, old value and new value; None means that there is no object. Must not block: it runs between two
events."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """The reflector's times, in seconds.

    ``silence`` ends a watch without any event or bookmark; servers send a bookmark about every minute (KEP-956). After
    a watch that lasted ``healthy``, the wait is short again. If such a watch sent nothing at all, the next one does not
    continue from its version. A server with a restored etcd counts from an older version, and omits events before the
    requested one.
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
        """A list is complete, and so many of its records were kept."""

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:
        """A list or watch ended: ``end``, ``expired``, ``refused``, ``unreachable`` or ``unreadable``."""


class Reflector(Generic[R, V]):
    """Follows one resource: start ``run`` as a task, read ``values`` once ``synced`` is set.

    ``keep`` turns a record into the value to hold in memory, or None for a record that is not needed. ``keep`` and the
    callbacks of ``subscribe`` run between two events: they must be quick, and an exception in them ends ``run``.
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
        """When the last complete consistent list was requested, by ``clock``; None before the first.

        An object that existed then and is not in ``values`` is gone, or ``keep`` returned None for it.
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
        """Seconds since the server last sent a list, an event or a bookmark."""
        return self._clock.now() - self._heard_at

    def followed_seconds(self) -> float:
        """Seconds since the current watch was opened; 0 between two watches, when silence means nothing."""
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
                # A watch from the same version would only send the unreadable event again.
                if isinstance(error, DecodeError) or (isinstance(error, ApiError) and error.expired):
                    self._must_list = True
            await self._clock.sleep(self._wait_after(ended))

    async def list_consistently(self, timeout_seconds: float | None = None) -> None:
        """Bring ``values`` to the server's present state or a later one; works before and beside the watch.

        Each page has a deadline of its own, and ``timeout_seconds`` is one for all of them, if given.

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
        """Count and log the end of a list or watch, None for a clean end; returns the seconds to wait.

        Watches end all the time, mostly without a fault. So each end is counted, but of successive failures only the
        first and the recovery are logged. A wait that the server requests is kept, up to the longest wait, plus the
        back-off's jitter, as it is requested from many clients.
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
        """Note that the server has sent something."""
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
        """Apply one event; an ERROR is a refusal inside the stream: the version cannot be used any more."""
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
    """The values of one resource by UID, which never go back to an older state. No I/O.

    Changes come from the watch, and from consistent lists beside it when an answer cannot wait for the watch. A list
    may contain a pod that the watch has already reported as deleted, and the watch may report a pod that is gone from a
    list. Versions decide both. A list is complete for *all* objects at its version, so events up to that version are
    old, and a list older than the newest event changes nothing.

    Keys are UIDs because names are re-used: a StatefulSet's next pod has the same name.
    """

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._listed_version = 0
        self._listeners: list[OnChange[V]] = []
        self.version = 0
        """The newest version seen; 0 before the first list."""
        self.values: Mapping[str, V] = MappingProxyType(self._values)
        """UID to value, after the last event. Copy it to keep it across an ``await``."""

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Call ``on_change`` with (UID, old, new) for each further change, in order, after ``values`` is changed."""
        self._listeners.append(on_change)

    def put(self, uid: str, version: int, value: V | None) -> None:
        """Take an event: the value at this version; None for an object that is deleted or not kept."""
        self.advance(version)
        # A watch sends each event once and in order, so only a list can have brought this version before.
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
        """Replace all values by a consistent list; True if it was used.

        ``version_at_start`` is the store's version when the list was requested. A list older than the present version
        was overtaken by the watch or another list, and is not used. But if nothing came since the request, the server's
        history was rewritten (a restored etcd), and the list is used.
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
