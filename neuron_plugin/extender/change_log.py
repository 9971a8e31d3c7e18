"""The last changes of the state, numbered, so that watchers can follow at their own speed.

Watchers read from the log; nobody writes to a watcher. So a slow one holds nobody up and loses nothing unnoticed: when
the change it needs next has left the log, it is told to list again. Numbers start at the clock's microseconds, so a
version from an earlier process, or from another replica, is never mistaken for one of ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice

from neuron_plugin.allocation import PodUid
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.nodes import NodeRecord

MOST_CHANGES = 4_096
"""A minute of a busy cluster. An entry keeps two records alive, some kilobytes for a node with many pods."""

Record = NodeRecord | PodRecord


@dataclass(frozen=True, slots=True)
class Change:
    """One node's or pod's record before and after; None where there was or is none."""

    version: int
    before: Record | None
    after: Record | None


class ChangeLog:
    """A state's observer that remembers the last changes. ``start`` is the version before the first of them."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._version = start
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._versions: dict[str, int] = {}
        self._news = asyncio.Event()

    @property
    def version(self) -> int:
        """The version of the last change."""
        return self._version

    def version_of(self, key: str) -> int:
        """The version of the last change of one object: a node's name or a pod's UID."""
        return self._versions.get(key, self._start)

    def knows(self, version: int) -> bool:
        """Whether every change after ``version`` is still here."""
        oldest = self._changes[0].version - 1 if self._changes else self._version
        return oldest <= version <= self._version

    def after(self, version: int) -> list[Change]:
        """The changes after a version that the log knows, oldest first."""
        behind = self._version - version
        return list(islice(self._changes, len(self._changes) - behind, None))

    def node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> None:
        """See ``state.Observer``."""
        either = after or before
        if either:
            self._append(either.name, before, after)

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """See ``state.Observer``."""
        either = after or before
        if either:
            self._append(either.uid, before, after)

    async def news(self, version: int, *, within_seconds: float) -> None:
        """Wait until there is something after ``version``, at most so long."""
        if self._version > version:
            return
        try:
            async with asyncio.timeout(within_seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Let every waiting watcher look up, to see that the server is stopping."""
        self._news.set()
        self._news = asyncio.Event()

    def _append(self, key: str | PodUid, before: Record | None, after: Record | None) -> None:
        self._version += 1
        self._changes.append(Change(self._version, before, after))
        if after is None:
            self._versions.pop(key, None)
        else:
            self._versions[key] = self._version
        self.wake()
