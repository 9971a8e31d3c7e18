"""When to read the hardware again, and the inventory that follows from it: a new one whenever something changed.

Reading is the truth; events only make it happen sooner. There are two sources of events. The kernel sends a uevent
when a device comes or goes (pyudev's source ``kernel``: source ``udev`` gives nothing where no udevd runs, as in a
container). Since driver 2.28 poll(2) reports when a file below ``health_status`` changes. Either may be absent or lose
events (a user namespace, an overrun, no libudev, an older driver), and a reset sends none; rescans find what was
missed. Every source sets one ``asyncio.Event``, and ``InventoryWatcher`` waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from neuron_plugin.hardware.inventory import Inventory
from neuron_plugin.hardware.sysfs import PAGE_BYTES, Sysfs, SysfsError, counts_errors
from neuron_plugin.topology import DeviceId

if TYPE_CHECKING:
    import pyudev

logger = logging.getLogger(__name__)

SUBSYSTEM = "neuron_device"

_UEVENTS_PER_TURN = 100
"""Other tasks run after so many, some milliseconds: during a storm the socket is never empty."""
_REOPEN_SECONDS = 1.0
"""A socket that overran is opened again after so long: during a storm it would overrun again at once."""

_REST = 4.0
"""After a read, rest this many times as long, however many events come: a counter that never stops rising may take a
fifth of a core, not all of it. An event after that is followed at once."""


async def open_uevents(changed: asyncio.Event) -> Uevents:
    """Set ``changed`` for each uevent of a Neuron device from now on. ``problem`` says why that is not possible.

    Call before the first read, so that nothing in between is missed. Finding libudev forks a child process, so call
    before a gRPC channel exists, too.
    """
    try:
        return Uevents(changed, await asyncio.to_thread(_started_monitor))
    except (OSError, ImportError) as error:  # ImportError: pyudev loads libudev when the context is made
        logger.warning("no uevents here, devices are found by rescans only", extra={"error": str(error)})
        return Uevents(changed, None, f"no uevents: {error}")


class Uevents:
    """The kernel's uevents of Neuron devices, read by the running loop without a thread."""

    def __init__(self, changed: asyncio.Event, monitor: pyudev.Monitor | None, problem: str = "") -> None:
        """Listen to ``monitor``, which has been started. ``problem`` says why there is none."""
        self.problem = problem
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._reopening: asyncio.TimerHandle | None = None
        self._monitor: pyudev.Monitor | None = None
        if monitor:
            self._listen(monitor)

    def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        self._mute()
        if self._reopening is not None:
            self._reopening.cancel()

    def _listen(self, monitor: pyudev.Monitor) -> None:
        self._monitor = monitor
        self._loop.add_reader(monitor.fileno(), self._receive, monitor)

    def _mute(self) -> None:
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._monitor = None

    def _receive(self, monitor: pyudev.Monitor) -> None:
        try:
            for _ in range(_UEVENTS_PER_TURN):
                if (event := monitor.poll(timeout=0)) is None:
                    return
                logger.debug("uevent", extra={"action": event.action, "device": event.sys_name})
                self._changed.set()
        except OSError:  # an overrun of the socket: something may be lost, so the hardware is read
            self._mute()
            self._changed.set()
            self._reopening = self._loop.call_later(_REOPEN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        try:
            self._listen(_started_monitor())
        except (OSError, ImportError) as error:
            if not self.problem:
                logger.warning("uevents are lost, devices are found by rescans only", extra={"error": str(error)})
            self.problem = f"uevents are lost: {error}"
            self._reopening = self._loop.call_later(_REOPEN_SECONDS, self._reopen)
        else:
            self.problem = ""
            self._changed.set()


def _started_monitor() -> pyudev.Monitor:
    import pyudev

    monitor = pyudev.Monitor.from_netlink(_context(), source="kernel")
    monitor.filter_by(SUBSYSTEM)
    monitor.start()
    return monitor


@cache
def _context() -> pyudev.Context:
    """Made once: finding libudev forks a child process each time."""
    import pyudev

    return pyudev.Context()


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open file, and its identity: after a driver reload another file has its name."""

    descriptor: int
    identity: tuple[int, int, int]


class HealthFiles:
    """Sets ``changed`` when one of the followed devices' files below ``health_status`` has changed.

    The kernel reports a change as POLLPRI. A sysfs file is always readable, so the loop's own reader would spin on it:
    the files are in an epoll of their own that waits for POLLPRI only, and the loop waits for that epoll.
    """

    def __init__(self, sysfs: Sysfs, changed: asyncio.Event) -> None:
        """Made and used in the running loop."""
        self._sysfs = sysfs
        self._changed = changed
        self._epoll = select.epoll()
        self._open: dict[Path, _OpenFile] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._receive)

    def follow(self, devices: Iterable[DeviceId]) -> str:
        """Wait for these devices' files and no others; returns the first failure in words, empty without one."""
        wanted: set[Path] = set()
        for tree in map(self._sysfs.device, devices):
            with contextlib.suppress(SysfsError):  # an older driver, another product, or a device that is going
                wanted |= {tree.health_status / name for name in tree.health_status_names() if counts_errors(name)}
        for path in self._open.keys() - wanted:
            self._drop(path)
        failures = [failure for path in sorted(wanted) if (failure := self._renew(path))]
        return failures[0] if failures else ""

    def close(self) -> None:
        """Stop. Harmless when repeated."""
        for path in list(self._open):
            self._drop(path)
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _renew(self, path: Path) -> str:
        """Open a file that is not open yet; returns why it cannot be opened, if it should have been possible."""
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino, status.st_ctime_ns)  # an inode's number is soon used again
            if path in self._open and self._open[path].identity == identity:
                return ""
            self._drop(path)
            descriptor = open_file(path)
            try:
                read_again(descriptor)  # the kernel reports what changed since the last read
                self._epoll.register(descriptor, select.EPOLLPRI)
            except PermissionError:  # a plain file, of a simulated machine: its changes are not reported
                os.close(descriptor)
            except OSError:
                os.close(descriptor)
                raise
            else:
                self._open[path] = _OpenFile(descriptor, identity)
        except OSError as error:
            self._drop(path)
            return "" if isinstance(error, FileNotFoundError) else f"{path} cannot be waited for: {error.strerror}"
        return ""

    def _drop(self, path: Path) -> None:
        file = self._open.pop(path, None)
        if file:
            with contextlib.suppress(OSError):
                self._epoll.unregister(file.descriptor)
            os.close(file.descriptor)

    def _receive(self) -> None:
        ready = {descriptor for descriptor, _ in self._epoll.poll(0)}
        for path, file in list(self._open.items()):
            if file.descriptor in ready:
                try:
                    read_again(file.descriptor)  # only a further change is reported then
                except OSError as error:  # a dead file, after a driver reload
                    logger.debug("a health file has gone", extra={"path": str(path), "why": str(error)})
                    self._drop(path)
        if ready:
            self._changed.set()


def open_file(path: Path) -> int:
    """A descriptor of a health file."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_again(descriptor: int) -> None:
    """Read a health file from its beginning and drop the text: the inventory reads it for itself."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.read(descriptor, PAGE_BYTES)


class ReadInventory(Protocol):
    """``read_inventory`` of one machine."""

    def __call__(self, *, settled: Container[DeviceId]) -> Inventory:
        """Read once. Blocks."""


@dataclass(frozen=True, slots=True)
class WatchPeriods:
    """How often to read. ``settle_seconds``: how long a new device may take to become complete."""

    rescan_seconds: float = 5.0
    settle_seconds: float = 30.0
    first_retry_seconds: float = 0.05


class InventoryWatcher:
    """Reads one machine for as long as ``changes`` is iterated over.

    Right after a device appeared its attributes may still be missing: it is read again with growing pauses, and once it
    had its time it is taken as it is. Reading happens in a thread, because an attribute may come from firmware (Inf1's
    links: up to 60 s).
    """

    def __init__(
        self,
        read: ReadInventory,
        changed: asyncio.Event,
        periods: WatchPeriods | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``changed`` is set by the sources of events, and cleared here. ``clock`` times the reads."""
        self._read = read
        self._changed = changed
        self._clock = clock
        self._periods = periods or WatchPeriods()
        self._settling = Settling(self._periods)
        self._rested_at = 0.0

    async def changes(self) -> AsyncIterator[Inventory]:
        """The inventory now, then each one that differs from the last. Endless; raises nothing but cancellation."""
        last: Inventory | None = None
        while True:
            inventory = await self._read_once(last)
            if inventory != last:
                _log_change(last, inventory)
                last = inventory
                yield inventory
            await self._pause()

    async def _read_once(self, last: Inventory | None) -> Inventory:
        """One read, without a deadline: a read that hangs in the driver cannot be abandoned, only doubled."""
        loop, begun = asyncio.get_running_loop(), self._clock()
        now = loop.time()
        try:
            inventory = await asyncio.to_thread(self._read, settled=self._settling.settled(now))
        except Exception as error:
            # Whatever it is, the daemon goes on with what it knew.
            logger.exception("the hardware cannot be read, keeping the last inventory")
            return last or Inventory(absence=f"the hardware cannot be read: {error}")
        finally:
            took = self._clock() - begun
            self._rested_at = loop.time() + min(_REST * took, self._periods.rescan_seconds)
        self._settling.note(inventory, now)
        return inventory

    async def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settling.pause(loop.time())):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()
        self._settling.retry_soon()
        await asyncio.sleep(max(0.0, self._rested_at - loop.time()))


class Settling:
    """How long each incomplete device is waited for, and so how soon to read again."""

    def __init__(self, periods: WatchPeriods) -> None:
        self._periods = periods
        self._since: dict[DeviceId, float] = {}
        self._retry_seconds = periods.first_retry_seconds

    def settled(self, now: float) -> frozenset[DeviceId]:
        """Devices that had their time."""
        return frozenset(device for device, since in self._since.items() if self._is_over(since, now))

    def note(self, inventory: Inventory, now: float) -> None:
        """Learn which devices are incomplete, and forget those that are gone."""
        listed = {*inventory.device_ids, *(device.id for device in inventory.skipped)}
        waiting = (self.settled(now) & listed) | inventory.incomplete
        self._since = {device: self._since.get(device, now) for device in waiting}

    def retry_soon(self) -> None:
        """After an event, begin again with the shortest pause."""
        self._retry_seconds = self._periods.first_retry_seconds

    def pause(self, now: float) -> float:
        """Seconds until the next read."""
        if all(self._is_over(since, now) for since in self._since.values()):
            self.retry_soon()
            return self._periods.rescan_seconds
        seconds = min(self._retry_seconds, self._periods.rescan_seconds)
        self._retry_seconds = seconds * 2
        return seconds

    def _is_over(self, since: float, now: float) -> bool:
        return now - since >= self._periods.settle_seconds


def _log_change(last: Inventory | None, inventory: Inventory) -> None:
    """Log what is new since ``last``, each change once; a device that is still being made is no problem yet."""
    if last is None or inventory.absence != last.absence:
        if inventory.absence:
            logger.warning("no Neuron device to offer", extra={"reason": inventory.absence})
        else:
            version = inventory.driver_version.text if inventory.driver_version else "unknown"
            ids = [int(device) for device in inventory.device_ids]
            logger.info("found Neuron devices", extra={"devices": ids, "driver_version": version})
    for problem in sorted(_problems(inventory) - (_problems(last) if last else set())):
        logger.warning("problem with a Neuron device", extra={"problem": problem})


def _problems(inventory: Inventory) -> set[str]:
    skipped = {f"neuron{one.id} is skipped: {one.reason}" for one in inventory.skipped if not one.incomplete}
    return {*inventory.problems, *(problem for one in inventory.devices for problem in one.problems), *skipped}
