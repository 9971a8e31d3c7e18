"""Hints that a Neuron device came or went.

Hints only: they are lost in a user namespace, under load, where libudev is missing, and a reset sends none. Who
waits for one must look for itself now and then. What they buy is that a device is noticed within milliseconds.

pyudev's source ``kernel`` is used: source ``udev`` hears nothing where no udevd runs, as in a container.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import pyudev

logger = logging.getLogger(__name__)

SUBSYSTEM = "neuron_device"
_REOPENINGS = 3


class Uevents(Protocol):
    """A source of hints. ``trouble`` says why it gives none, and is empty while it may."""

    @property
    def trouble(self) -> str:
        """Why it gives no hints; empty while it may."""

    async def wait(self) -> None:
        """Return once there was a hint since the last return. May wait for ever."""

    def close(self) -> None:
        """Stop listening."""


class NoUevents:
    """The source where there is none: it never gives a hint. ``trouble`` says why."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    async def wait(self) -> None:
        """Wait for ever; the caller has its own period."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Nothing was opened."""


class KernelUevents:
    """Hints from the kernel's own uevents, read by the running loop; no thread is involved."""

    def __init__(self, monitor: pyudev.Monitor) -> None:
        """Listen to ``monitor``, which has been started."""
        self.trouble = ""
        self._loop = asyncio.get_running_loop()
        self._hint = asyncio.Event()
        self._reopenings = _REOPENINGS
        self._monitor: pyudev.Monitor | None = None
        self._listen(monitor)

    async def wait(self) -> None:
        """Return once there was a hint since the last return. May wait for ever."""
        await self._hint.wait()
        self._hint.clear()

    def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._monitor = None

    def _listen(self, monitor: pyudev.Monitor) -> None:
        self._monitor = monitor
        self._loop.add_reader(monitor.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            while self._monitor is not None and (event := self._monitor.poll(timeout=0)) is not None:
                logger.debug("uevent", extra={"action": event.action, "device": event.sys_name})
                self._hint.set()
        except OSError as error:
            self._recover(error)

    def _recover(self, error: OSError) -> None:
        """After an overrun of the socket: whatever was lost is found by looking, so that is a hint, too."""
        self.close()
        self._hint.set()
        if self._reopenings == 0:
            self._give_up(error)
            return
        self._reopenings -= 1
        try:
            self._listen(_started_monitor())
        except (OSError, ImportError) as failure:
            self._give_up(failure)

    def _give_up(self, error: Exception) -> None:
        self.trouble = f"uevents are lost: {error}"
        logger.warning("uevents are lost from now on, devices are found by rescans only", extra={"error": str(error)})


async def open_uevents() -> Uevents:
    """The kernel's uevents if this process can hear them, else none, which is logged once.

    Call before the first scan: what happens in between must not be missed. Finding libudev forks a child process, so
    call before a gRPC channel exists, too.
    """
    try:
        return KernelUevents(await asyncio.to_thread(_started_monitor))
    except (OSError, ImportError) as error:  # ImportError: pyudev loads libudev when the context is made
        logger.warning("no uevents here, devices are found by rescans only", extra={"error": str(error)})
        return NoUevents(f"no uevents: {error}")


def _started_monitor() -> pyudev.Monitor:
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    monitor.filter_by(SUBSYSTEM)
    monitor.start()
    return monitor
