"""Watching the kubelet's device plugin directory, once for all resources of the daemon.

inotify tells within a millisecond that something in the directory changed, and nothing of a directory that was itself
replaced. So an event is only a hint to look, and every few seconds there is a hint without an event. Who listens looks
at the files it cares about; their identity is the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncinotify import Inotify, Mask

_log = logging.getLogger(__name__)

_EVENTS = Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


class DirectoryWatch:
    """Hints that something in ``directory`` may have changed, given while `run` runs.

    ``period_seconds`` is the rhythm of the hints without an event.
    """

    def __init__(self, directory: Path, *, period_seconds: float = 3.0) -> None:
        self.directory = directory
        self._period_seconds = period_seconds
        self._listeners: set[Callable[[], None]] = set()
        self._told: int | None = None

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call ``listener`` on each hint for the length of the block; it must not block or raise."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def run(self) -> None:
        """Watch until cancelled. Where inotify is not to be had, the periodic hints go on alone."""
        while True:
            try:
                await self._follow()
            except OSError as error:
                self._tell(error)
                await asyncio.sleep(self._period_seconds)
            self._hint()

    def _tell(self, error: OSError) -> None:
        """Say once that the kernel has no watch for us; that there is no directory yet is its users' to say."""
        if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == self._told:
            return
        self._told = error.errno
        _log.warning(
            "a restarted kubelet is noticed late: no inotify",
            extra={
                "directory": str(self.directory),
                "error": str(error),
                "look_every_seconds": self._period_seconds,
                "remedy": "raise the node's fs.inotify.max_user_instances or max_user_watches",
            },
        )

    async def _follow(self) -> None:
        """Pass on events until the directory at the path is no longer the one that is watched."""
        with Inotify() as inotify:
            watched = self._directory_identity()  # before the watch: a replacement in between shows as a difference
            inotify.add_watch(self.directory, _EVENTS)
            self._told = None
            self._hint()
            while self._directory_identity() == watched:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._period_seconds):
                        if Mask.IGNORED in (await inotify.get()).mask:
                            return  # the directory was removed: a new one may have its inode number, not its watch
                self._hint()

    def _directory_identity(self) -> tuple[int, int]:
        found = self.directory.stat()
        return found.st_dev, found.st_ino

    def _hint(self) -> None:
        for listener in tuple(self._listeners):
            listener()
