"""The frame of the daemon's watchers: read a source, compare with the last time, put what is new into the node.

A watcher of a file reads it only if it has changed, a watcher of the API server follows a Reflector, and every other
one looks again and again. A problem that lasts is logged once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, NoReturn, Protocol, TypeVar

from neuron_plugin.kubelet import CheckpointError
from neuron_plugin.plugin.counters import Counters

_NEVER_READ = object()

FileVersion = tuple[int, int, int] | None


class FileContent(Protocol):
    """What one version of a file says; ``version`` is None while there is no file."""

    @property
    def version(self) -> FileVersion:
        """Which version of the file it is."""


Content_co = TypeVar("Content_co", bound=FileContent, covariant=True)


class RecordFile(Protocol[Content_co]):
    """A file in which the kubelet records allocations."""

    def version(self) -> FileVersion:
        """What differs between two versions of the file, by one stat."""

    def read(self) -> Content_co:
        """Read the file, or raise CheckpointError."""


class FollowedFile(Generic[Content_co]):
    """A file that is read when it has changed. ``unreadable`` says why the last version could not be read."""

    def __init__(self, source: RecordFile[Content_co]) -> None:
        self.source = source
        self.unreadable = ""
        self._version: object = _NEVER_READ

    def news(self) -> Content_co | None:
        """What the file says, if it has changed and can be read: one stat if it has not changed."""
        version = self.source.version()
        if version == self._version:
            return None
        try:
            content = self.source.read()
        except CheckpointError as error:
            self._version, self.unreadable = version, str(error)
            return None
        self._version, self.unreadable = content.version, ""
        return content


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
