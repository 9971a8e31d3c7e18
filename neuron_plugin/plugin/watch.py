"""The frame of the daemon's watchers: read a source, compare with the last time, put what is new into the node.

A watcher of a file has a ``FollowedFile`` of the kubelet, a watcher of the API server a Reflector, and every other one
looks again and again. A problem that lasts is logged once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from neuron_plugin.plugin.counters import Counters


class Problem:
    """Something that may not work for a while. It is logged when it begins, and again when its text changes."""

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self.text = ""
        self._logger = logger
        self._message = message

    def say(self, error: object, **fields: object) -> None:
        """Take in that it does not work."""
        if str(error) != self.text:
            self._logger.warning(self._message, extra={**fields, "error": str(error)})
        self.text = str(error)

    def end(self) -> None:
        """Take in that it works."""
        self.text = ""


async def every(seconds: float, look: Callable[[], Awaitable[None]]) -> NoReturn:
    """Look after each pause of ``seconds``, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        await look()


class ReflectorCounts:
    """Counts what a Reflector does, as its observer."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's protocol
        """A complete list is in."""
        self._counters.lists[kind] += 1

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self._counters.watch_restarts[kind, cause] += 1
