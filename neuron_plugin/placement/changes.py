"""The latest changes of the state, numbered, for its followers: the queue of pods, watches of the monitor API.

Readers go through them at their own speed, and nothing is sent to them. A slow reader delays no other, and learns when
the change that it needs next is no longer here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice

from neuron_plugin.allocation import NeuronPod, NodeInfo

MOST_CHANGES = 4_096
"""Changes remembered: a minute of a busy cluster. One keeps two records alive, some kilobytes on a full node."""

StateRecord = NodeInfo | NeuronPod


@dataclass(frozen=True, slots=True)
class StateChange:
    """One node or pod before and after a change; None if it did not or does not exist."""

    version: int
    before: StateRecord | None
    after: StateRecord | None


class Changes:
    """The latest changes of a state. ``start`` is the version before the first of them."""

    def __init__(self, start: int) -> None:
        self.version = start
        """The version of the last change."""
        self._start = start
        self._changes: deque[StateChange] = deque(maxlen=MOST_CHANGES)
        self._versions: dict[str, int] = {}
        self._news = asyncio.Event()

    def version_of(self, key: str) -> int:
        """The version of the last change of one object, by a node's name or a pod's UID."""
        return self._versions.get(key, self._start)

    def knows(self, version: int) -> bool:
        """Whether every change after ``version`` is still here; never for a version of another process."""
        oldest = self._changes[0].version - 1 if self._changes else self.version
        return oldest <= version <= self.version

    def after(self, version: int) -> list[StateChange]:
        """The changes after a version that is still known, oldest first."""
        return list(islice(reversed(self._changes), self.version - version))[::-1]

    async def wait(self, version: int, *, within_seconds: float) -> None:
        """Wait for a change after ``version`` or a call of ``wake``, at most ``within_seconds``."""
        if self.version > version:
            return
        try:
            async with asyncio.timeout(within_seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """End every ``wait``."""
        self._news.set()
        self._news = asyncio.Event()

    def add(self, key: str, before: StateRecord | None, after: StateRecord | None) -> None:
        """Remember one more change."""
        self.version += 1
        self._changes.append(StateChange(self.version, before, after))
        if after is None:
            self._versions.pop(key, None)
        else:
            self._versions[key] = self.version
        self.wake()
