"""Hints that a Neuron device came or went.

Hints only: they are lost in a user namespace, under load, where libudev is missing, and a reset sends none. Who
waits for one must look for itself now and then. What they buy is that a device is noticed within milliseconds.

pyudev's source ``kernel`` is used: source ``udev`` hears nothing where no udevd runs, as in a container.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyudev

logger = logging.getLogger(__name__)

SUBSYSTEM = "neuron_device"

_EVENTS_A_TURN = 100
"""Others get their turn after so many, some milliseconds: while a storm lasts, the socket is never empty."""

_REOPENING_SECONDS = 1.0
"""A socket that overran is opened again after so long: while a storm lasts, it would overrun again at once."""


def _nobody() -> None:
    """Nobody is told yet."""


class Uevents(Protocol):
    """A source of hints. ``trouble`` says why it gives none now, and is empty while it may."""

    @property
    def trouble(self) -> str:
        """Why it gives no hints now."""

    on_hint: Callable[[], None]
    """Who is told that something has happened; called from the event loop."""

    def close(self) -> None:
        """Stop listening."""


class NoUevents:
    """The source where there is none: it never gives a hint. ``trouble`` says why."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.on_hint = _nobody

    def close(self) -> None:
        """Nothing was opened."""


class KernelUevents:
    """Hints from the kernel's own uevents, read by the running loop; no thread is involved."""

    def __init__(self, monitor: pyudev.Monitor) -> None:
        """Listen to ``monitor``, which has been started."""
        self.trouble = ""
        self.on_hint = _nobody
        self._loop = asyncio.get_running_loop()
        self._reopening: asyncio.TimerHandle | None = None
        self._monitor: pyudev.Monitor | None = None
        self._listen(monitor)

    def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        self._mute()
        if self._reopening is not None:
            self._reopening.cancel()

    def _mute(self) -> None:
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._monitor = None

    def _listen(self, monitor: pyudev.Monitor) -> None:
        self._monitor = monitor
        self._loop.add_reader(monitor.fileno(), self._receive, monitor)

    def _receive(self, monitor: pyudev.Monitor) -> None:
        try:
            for _ in range(_EVENTS_A_TURN):
                if (event := monitor.poll(timeout=0)) is None:
                    return
                logger.debug("uevent", extra={"action": event.action, "device": event.sys_name})
                self.on_hint()
        except OSError:  # an overrun of the socket: what was lost is found by looking, so that is a hint, too
            self._mute()
            self.on_hint()
            self._reopen_later()

    def _reopen_later(self) -> None:
        self._reopening = self._loop.call_later(_REOPENING_SECONDS, self._reopen)

    def _reopen(self) -> None:
        try:
            self._listen(_started_monitor())
        except (OSError, ImportError) as error:
            if not self.trouble:
                logger.warning("uevents are lost, devices are found by rescans only", extra={"error": str(error)})
            self.trouble = f"uevents are lost: {error}"
            self._reopen_later()
        else:
            self.trouble = ""
            self.on_hint()


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
