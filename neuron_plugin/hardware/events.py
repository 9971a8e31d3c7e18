"""Decides when to read the hardware again, and yields a new inventory whenever something has changed.

Only reading counts; events make it happen sooner. The kernel sends a uevent when a device comes or goes (pyudev's
source ``kernel``, because source ``udev`` needs udevd, which does not run in a container). Uevents may be absent or
lost (a user namespace, an overrun, no libudev), and resets and error counters send none; rescans find such changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from neuron_plugin.hardware.device import joined_by_device
from neuron_plugin.hardware.inventory import Inventory
from neuron_plugin.topology import DeviceId

if TYPE_CHECKING:
    import pyudev

logger = logging.getLogger(__name__)

SUBSYSTEM = "neuron_device"

_UEVENTS_PER_TURN = 100
"""After so many, some milliseconds, other tasks run: during a storm the socket is never empty."""
_REST_SECONDS = 0.2
"""The least pause between two reads, however many uevents come. A uevent after that is followed at once."""


async def open_uevents(changed: asyncio.Event, *, reopen_seconds: float = 1.0) -> Uevents:
    """Set ``changed`` for each uevent of a Neuron device from now on.

    ``problem`` of the result says why that is not possible. After an overrun the socket is opened again after
    ``reopen_seconds``: during a storm it would overrun again at once.

    Call it before the first read, so that no change is missed, and before a gRPC channel exists, because finding
    libudev forks a child process.
    """
    try:
        return Uevents(changed, await asyncio.to_thread(_started_monitor), reopen_seconds)
    except (OSError, ImportError) as error:  # ImportError: pyudev loads libudev when the context is made
        logger.warning("no uevents here, devices are found by rescans only", extra={"error": str(error)})
        return Uevents(changed, None, reopen_seconds, f"no uevents: {error}")


class Uevents:
    """The kernel's uevents of Neuron devices, read by the running loop without a thread."""

    def __init__(
        self, changed: asyncio.Event, monitor: pyudev.Monitor | None, reopen_seconds: float, problem: str = ""
    ) -> None:
        """Listen to ``monitor``, which is started already. ``problem`` says why there is none."""
        self.problem = problem
        self._changed = changed
        self._reopen_seconds = reopen_seconds
        self._loop = asyncio.get_running_loop()
        self._reopening: asyncio.TimerHandle | None = None
        self._monitor = monitor
        if monitor:
            self._loop.add_reader(monitor.fileno(), self._receive, monitor)

    def close(self) -> None:
        """Stop listening. May be called again."""
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._monitor = None
        if self._reopening is not None:
            self._reopening.cancel()

    def _receive(self, monitor: pyudev.Monitor) -> None:
        try:
            for _ in range(_UEVENTS_PER_TURN):
                if (event := monitor.poll(timeout=0)) is None:
                    return
                logger.debug("uevent", extra={"action": event.action, "device": event.sys_name})
                self._changed.set()
        except OSError:  # an overrun of the socket: something may be lost, so the hardware is read
            self.close()
            self._changed.set()
            self._reopening = self._loop.call_later(self._reopen_seconds, self._reopen)

    def _reopen(self) -> None:
        try:
            self._monitor = _started_monitor()
        except (OSError, ImportError) as error:
            if not self.problem:
                logger.warning("uevents are lost, devices are found by rescans only", extra={"error": str(error)})
            self.problem = f"uevents are lost: {error}"
            self._reopening = self._loop.call_later(self._reopen_seconds, self._reopen)
        else:
            self.problem = ""
            self._loop.add_reader(self._monitor.fileno(), self._receive, self._monitor)
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
class WatchPeriods:
    """How often to read. ``settle_seconds``: how long a new device may take to become complete."""

    rescan_seconds: float = 5.0
    settle_seconds: float = 30.0
    first_retry_seconds: float = 0.05


class ReadInventory(Protocol):
    """``read_inventory`` of one machine."""

    def __call__(self, *, settled: Container[DeviceId]) -> Inventory:
        """Read once. Blocks."""


class InventoryWatcher:
    """Reads one machine while ``changes`` is iterated.

    The attributes of a new device may still be missing: it is read again with growing pauses, and taken as it is after
    ``settle_seconds``. Reading happens in a thread, because firmware may provide an attribute (Inf1's links: up to 60
    s).
    """

    def __init__(self, read: ReadInventory, changed: asyncio.Event, periods: WatchPeriods | None = None) -> None:
        """The source of events sets ``changed``, and this clears it."""
        self._read = read
        self._changed = changed
        self._periods = periods or WatchPeriods()
        self._settling = Settling(self._periods)

    async def changes(self) -> AsyncIterator[Inventory]:
        """The inventory now, then each one that differs from the last. Endless; raises nothing but cancellation."""
        loop, last = asyncio.get_running_loop(), None
        while True:
            now = loop.time()
            try:
                # No deadline: a read that hangs in the driver cannot be cancelled, only started twice.
                inventory = await asyncio.to_thread(self._read, settled=self._settling.settled(now))
                self._settling.note(inventory, now)
            except Exception as error:
                # After any error the daemon goes on with the last inventory.
                logger.exception("the hardware cannot be read, keeping the last inventory")
                inventory = last or Inventory(absence=f"the hardware cannot be read: {error}")
            rested_at = loop.time() + _REST_SECONDS
            if inventory != last:
                _log_change(last, inventory)
                last = inventory
                yield inventory
            try:
                async with asyncio.timeout(self._settling.pause(loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue
            self._changed.clear()
            self._settling.retry_soon()
            await asyncio.sleep(max(0.0, rested_at - loop.time()))


class Settling:
    """Counts how long each incomplete device has been waited for, and decides how soon to read again."""

    def __init__(self, periods: WatchPeriods) -> None:
        self._periods = periods
        self._until: dict[DeviceId, float] = {}
        self._retry_seconds = periods.first_retry_seconds

    def settled(self, now: float) -> frozenset[DeviceId]:
        """Devices that have been waited for long enough."""
        return frozenset(device for device, until in self._until.items() if now >= until)

    def note(self, inventory: Inventory, now: float) -> None:
        """Note the incomplete devices, and forget those that are gone."""
        listed = {*inventory.device_ids, *(device.id for device in inventory.skipped)}
        waiting = (self.settled(now) & listed) | inventory.incomplete
        self._until = {device: self._until.get(device, now + self._periods.settle_seconds) for device in waiting}

    def retry_soon(self) -> None:
        """After an event, start again with the shortest pause."""
        self._retry_seconds = self._periods.first_retry_seconds

    def pause(self, now: float) -> float:
        """Seconds until the next read."""
        if len(self.settled(now)) == len(self._until):
            self.retry_soon()
            return self._periods.rescan_seconds
        seconds = min(self._retry_seconds, self._periods.rescan_seconds)
        self._retry_seconds = seconds * 2
        return seconds


def _log_change(last: Inventory | None, inventory: Inventory) -> None:
    """Log each change since ``last`` once; an incomplete device is no problem yet."""
    if last is None or inventory.absence != last.absence:
        if inventory.absence:
            logger.warning("no Neuron device to offer", extra={"reason": inventory.absence})
        else:
            version = inventory.driver_version.text if inventory.driver_version else "unknown"
            ids = [int(device) for device in inventory.device_ids]
            logger.info("found Neuron devices", extra={"devices": ids, "driver_version": version})
    for problem in joined_by_device(sorted(_problems(inventory) - (_problems(last) if last else set()))):
        logger.warning("problem with a Neuron device", extra={"problem": problem})


def _problems(inventory: Inventory) -> set[str]:
    skipped = {
        f"neuron{device.id} is skipped: {device.reason}" for device in inventory.skipped if not device.incomplete
    }
    return {*inventory.problems, *(problem for device in inventory.devices for problem in device.problems), *skipped}
