"""Hints that firmware's health files have changed.

Since driver 2.28 the files below ``stats/hardware/health_status`` can be waited for (poll(2) with POLLPRI, which the
kernel raises by ``sysfs_notify``). Hints like uevents: older drivers give none, and the rescan finds what was missed.

A sysfs file is always readable, so the loop's own reader would spin on it. The files are kept in an epoll of
their own that waits for POLLPRI only, and the loop waits for that epoll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.hardware.sysfs import PAGE_BYTES, Sysfs, SysfsError, tells_of_errors
from neuron_plugin.topology import DeviceId

logger = logging.getLogger(__name__)


def open_file(path: Path) -> int:
    """A descriptor of a health file."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_again(descriptor: int) -> None:
    """Read a health file from its beginning, whatever it says: the inventory is told by its own reading."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.read(descriptor, PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class _Followed:
    """An open file, and which file that was: after a driver reload another one has its name."""

    descriptor: int
    identity: tuple[int, int, int]


class HealthNotices:
    """Calls ``on_hint`` when one of the followed devices' health files has changed."""

    def __init__(self, sysfs: Sysfs, on_hint: Callable[[], None]) -> None:
        """Made and used in the running loop."""
        self._sysfs = sysfs
        self._on_hint = on_hint
        self._epoll = select.epoll()
        self._followed: dict[Path, _Followed] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._receive)

    def follow(self, devices: Iterable[DeviceId]) -> str:
        """Wait for these devices' files and no others; returns what could not be followed, in words."""
        wanted = {path for device in devices for path in self._files(device)}
        for path in self._followed.keys() - wanted:
            self._drop(path)
        failures = [failure for path in sorted(wanted) if (failure := self._renew(path))]
        return failures[0] if failures else ""

    def close(self) -> None:
        """Stop. Harmless when repeated."""
        for path in list(self._followed):
            self._drop(path)
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _files(self, device: DeviceId) -> list[Path]:
        tree = self._sysfs.device(device)
        try:
            return [tree.health_status / name for name in tree.health_status_names() if tells_of_errors(name)]
        except SysfsError:
            return []  # an older driver, another product, or a device that is just going

    def _renew(self, path: Path) -> str:
        """Open a file that is not followed yet; in words why not, if it should have been possible."""
        known = self._followed.get(path)
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino, status.st_ctime_ns)  # an inode's number is soon used again
            if known and known.identity == identity:
                return ""
            self._drop(path)
            self._open(path, identity)
        except FileNotFoundError:
            self._drop(path)
        except OSError as error:
            self._drop(path)
            return f"{path} cannot be waited for: {error.strerror}"
        return ""

    def _open(self, path: Path, identity: tuple[int, int, int]) -> None:
        descriptor = open_file(path)
        try:
            read_again(descriptor)  # the kernel notifies of what changed since the last read
            self._epoll.register(descriptor, select.EPOLLPRI)
        except PermissionError:  # a plain file, of a simulated machine: nobody notifies of it
            os.close(descriptor)
            return
        except OSError:
            os.close(descriptor)
            raise
        self._followed[path] = _Followed(descriptor, identity)

    def _drop(self, path: Path) -> None:
        followed = self._followed.pop(path, None)
        if followed:
            with contextlib.suppress(OSError):
                self._epoll.unregister(followed.descriptor)
            os.close(followed.descriptor)

    def _receive(self) -> None:
        ready = {descriptor for descriptor, _ in self._epoll.poll(0)}
        for path in [path for path, followed in self._followed.items() if followed.descriptor in ready]:
            self._rearm(path)
        if ready:
            self._on_hint()

    def _rearm(self, path: Path) -> None:
        """Read the file again, so that only a further change notifies; a dead one (driver reload) is let go."""
        try:
            read_again(self._followed[path].descriptor)
        except OSError as error:
            logger.debug("a health file has gone", extra={"path": str(path), "why": str(error)})
            self._drop(path)
