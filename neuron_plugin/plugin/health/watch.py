"""Keeping an eye on the health of the node's devices.

Joins the sources (sysfs through the inventory, firmware's notices, the kernel log) with the keeper of verdicts, and
judges whenever there is news or a time has come. A source that cannot start is named, in readiness and metrics, and
the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from neuron_plugin.hardware import (
    HealthNotices,
    Hints,
    Inventory,
    KernelLog,
    KernelRecord,
    Sysfs,
    Uevents,
    parse_error,
    tells_of_reset,
    without_error_counters,
)
from neuron_plugin.plugin.health.keeper import HealthKeeper, Transition
from neuron_plugin.plugin.health.memory import FILE_NAME, Memory, boot_id, load, save
from neuron_plugin.plugin.health.policy import KERNEL_SIGNALS, Action, policy_of
from neuron_plugin.plugin.health.status import DeviceHealth
from neuron_plugin.plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

UEVENTS, NOTICES, KERNEL_LOG, SYSFS, MEMORY = "uevents", "notices", "kernel-log", "sysfs", "memory"
"""Sources of what is known about health, by the names under which their troubles are told."""


Tell = Callable[[Mapping[int, DeviceHealth], Sequence[Transition]], None]
"""Told of all devices when they were judged for the first time, or some of them anew. Must not block."""


class HealthWatch:
    """The health of one node's devices. ``look`` feeds it, ``run`` keeps it going, the rest reads it."""

    def __init__(
        self,
        settings: PluginSettings,
        on_verdicts: Callable[[], None],
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_verdicts`` is called when verdicts changed without a look."""
        self._settings = settings.health
        self._log_path = settings.kmsg or settings.dev / "kmsg"
        self._file = settings.state_dir / FILE_NAME if settings.state_dir else None
        self._boot = boot_id()
        self._kept = load(self._file, self._boot) if self._file else Memory()
        self._keeper = HealthKeeper(settings.health, self._kept, clock)
        self._clock = clock
        self._on_verdicts = on_verdicts
        self._tell = tell
        self._news = asyncio.Event()
        self._troubles: dict[str, str] = {}
        self._hints: Hints | None = None
        self._notices: HealthNotices | None = None
        self.inventory: Inventory | None = None

    @property
    def devices(self) -> Mapping[int, DeviceHealth]:
        """Every device that was ever seen, as it was judged last."""
        return self._keeper.devices

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return self._keeper.unhealthy

    @property
    def silent_sources(self) -> Mapping[str, str]:
        """Sources that do not work, and why."""
        return dict(self._troubles)

    @contextmanager
    def listening(self, sysfs: Path, uevents: Uevents) -> Iterator[Hints]:
        """For the length of the block: hints to look at the hardware, from ``uevents`` and from firmware and driver."""
        self._hints = Hints(uevents)
        with closing(HealthNotices(Sysfs(sysfs), self._hints.give)) as notices:
            self._notices = notices
            try:
                yield self._hints
            finally:
                self._hints = self._notices = None

    def look(self, inventory: Inventory) -> None:
        """Take in a look at the hardware and judge."""
        first = self.inventory is None
        self.inventory = inventory
        self._keeper.look(inventory)
        if self._notices:
            self._report(NOTICES, self._notices.follow(inventory.device_ids))
        if self._hints:
            self._report(UEVENTS, self._hints.trouble)
        self._report(SYSFS, _blindness(inventory))
        self._judge(always_tell=first)
        self._news.set()  # times may have changed

    async def run(self) -> None:
        """Read the kernel log and judge when it is time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if any(policy_of(self._settings, signal).action is not Action.IGNORE for signal in KERNEL_SIGNALS):
                log = KernelLog(self._log_path, self._hear, lambda trouble: self._report(KERNEL_LOG, trouble))
                tasks.create_task(log.run(), name="kernel log")
            tasks.create_task(self._keep_judging(), name="verdicts")

    def _report(self, source: str, trouble: str) -> None:
        """Note whether a source works; a change is logged once."""
        if self._troubles.get(source, "") == trouble:
            return
        if trouble:
            self._troubles[source] = trouble
            logger.warning("a source of health does not work", extra={"source": source, "why": trouble})
        else:
            del self._troubles[source]
            logger.info("a source of health works again", extra={"source": source})

    async def _keep_judging(self) -> None:
        while True:
            await self._wait()
            if self._judge():
                self._on_verdicts()
            await self._remember()

    async def _wait(self) -> None:
        """Until there is news, or the keeper's time has come; for ever if neither is to be expected."""
        wait_seconds = self._keeper.next_change - self._clock()
        try:
            async with asyncio.timeout(None if wait_seconds == float("inf") else max(wait_seconds, 0.0)):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    def _hear(self, record: KernelRecord) -> None:
        """Take in one message of the kernel log."""
        error = parse_error(record)
        if error:
            self._keeper.kernel_error(error)
            self._news.set()
        elif tells_of_reset(record) and self._hints:
            self._hints.give()

    def _judge(self, *, always_tell: bool = False) -> bool:
        transitions = self._keeper.judge()
        if transitions or always_tell:
            self._tell(self.devices, transitions)
        return bool(transitions)

    async def _remember(self) -> None:
        """Keep what changed in the file. That it cannot be written costs little, and is told."""
        memory = self._keeper.memory
        if self._file is None or memory == self._kept:
            return
        try:
            await asyncio.to_thread(save, self._file, memory, self._boot)
        except OSError as error:
            self._report(MEMORY, f"{self._file} cannot be written: {error.strerror}")
            return
        self._kept = memory
        self._report(MEMORY, "")


def _blindness(inventory: Inventory) -> str:
    """What every driver tells to root, and these devices do not."""
    blind = [f"neuron{device.id}" for device in inventory.devices if device.health.reset is None]
    uncounted = [f"neuron{device}" for device in without_error_counters(inventory)]
    troubles = (
        f"the reset state of {', '.join(blind)} cannot be read: it takes root" if blind else "",
        f"{', '.join(uncounted)} without counters of memory errors: see 'neuron-plugin doctor sysfs'"
        if uncounted
        else "",
    )
    return "; ".join(filter(None, troubles))
