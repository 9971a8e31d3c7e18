"""The machine's inventory, kept up to date: a new snapshot whenever something changed.

Rescans are the truth, hints only make them come sooner. Right after a device appeared its attributes may still be
missing: it is looked at again with growing pauses, and once it had its time it is taken as it is. Looking happens in
a thread, because an attribute may be read from firmware (Inf1's links: up to 60 s).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass
from typing import Protocol

from neuron_plugin.hardware.hints import Hints
from neuron_plugin.hardware.records import Inventory
from neuron_plugin.topology import DeviceId

logger = logging.getLogger(__name__)

_REST = 4.0
"""After a look, this many times as long without one, however many hints come: a counter that never stops rising may
take a fifth of a core, not all of it. A hint after that is followed at once."""


class ReadInventory(Protocol):
    """``read_inventory`` of one machine."""

    def __call__(self, *, settled: Container[DeviceId]) -> Inventory:
        """Look once. Blocks."""


@dataclass(frozen=True, slots=True)
class WatchPeriods:
    """How often to look. ``settle_seconds``: how long a new device may take to become complete."""

    rescan_seconds: float = 5.0
    settle_seconds: float = 30.0
    first_retry_seconds: float = 0.05


class InventoryWatcher:
    """Looks at one machine for as long as somebody iterates over ``changes``."""

    def __init__(
        self,
        read: ReadInventory,
        hints: Hints,
        periods: WatchPeriods | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hints`` must be coming already. ``clock`` times the looks."""
        self._read = read
        self._hints = hints
        self._clock = clock
        self._rested_at = 0.0
        self._periods = periods or WatchPeriods()
        self._patience = _Patience(self._periods)
        self._story = _Story()

    async def changes(self) -> AsyncIterator[Inventory]:
        """The inventory now, then each one that differs from the last. Endless; raises nothing but cancellation."""
        last: Inventory | None = None
        while True:
            inventory = await self._look(last)
            if inventory != last:
                self._story.tell(inventory)
                last = inventory
                yield inventory
            await self._pause()

    async def _look(self, last: Inventory | None) -> Inventory:
        """One look, without a deadline: a read that hangs in the driver cannot be abandoned, only doubled."""
        loop, begun = asyncio.get_running_loop(), self._clock()
        now = loop.time()
        try:
            inventory = await asyncio.to_thread(self._read, settled=self._patience.settled(now))
        except Exception as error:
            # Whatever it is, the daemon goes on with what it knew.
            logger.exception("the machine cannot be read, going on with what was known")
            return last or Inventory(absence=f"the machine cannot be read: {error}")
        finally:
            took = self._clock() - begun
            self._rested_at = loop.time() + min(_REST * took, self._periods.rescan_seconds)
        self._patience.note(inventory, now)
        return inventory

    async def _pause(self) -> None:
        seconds = self._patience.pause(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(seconds):
                await self._hints.wait()
        except TimeoutError:
            return
        self._patience.hurry()
        await asyncio.sleep(max(0.0, self._rested_at - asyncio.get_running_loop().time()))


class _Patience:
    """How long which device is waited for, and so how soon to look again."""

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
        over = self.settled(now) & listed
        waiting = inventory.incomplete
        self._since = {device: self._since.get(device, now) for device in over | waiting}

    def hurry(self) -> None:
        """After a hint, look often again."""
        self._retry_seconds = self._periods.first_retry_seconds

    def pause(self, now: float) -> float:
        """Seconds until the next look."""
        if all(self._is_over(since, now) for since in self._since.values()):
            self._retry_seconds = self._periods.first_retry_seconds
            return self._periods.rescan_seconds
        seconds = min(self._retry_seconds, self._periods.rescan_seconds)
        self._retry_seconds = seconds * 2
        return seconds

    def _is_over(self, since: float, now: float) -> bool:
        return now - since >= self._periods.settle_seconds


class _Story:
    """Tells each change of state once."""

    def __init__(self) -> None:
        self._absence: str | None = None
        self._told: frozenset[str] = frozenset()

    def tell(self, inventory: Inventory) -> None:
        """Log what is new in ``inventory``."""
        if inventory.absence != self._absence:
            self._tell_presence(inventory)
        self._absence = inventory.absence
        problems = frozenset(_problems(inventory))
        for problem in sorted(problems - self._told):
            logger.warning("problem with a Neuron device", extra={"problem": problem})
        self._told = problems

    def _tell_presence(self, inventory: Inventory) -> None:
        if inventory.absence:
            logger.warning("no Neuron device to offer", extra={"reason": inventory.absence})
            return
        version = inventory.driver_version.text if inventory.driver_version else "unknown"
        ids = [int(device) for device in inventory.device_ids]
        logger.info("found Neuron devices", extra={"devices": ids, "driver_version": version})


def _problems(inventory: Inventory) -> list[str]:
    """What to tell about devices; one that is still being made is no problem yet."""
    of_devices = [problem for device in inventory.devices for problem in device.problems]
    of_skipped = [
        f"neuron{device.id} is left out: {device.reason}" for device in inventory.skipped if not device.incomplete
    ]
    return [*inventory.problems, *of_devices, *of_skipped]
