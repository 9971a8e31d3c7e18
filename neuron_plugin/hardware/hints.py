"""Several sources of hints as one: the kernel's uevents, and whoever else has a reason to look at once."""

from __future__ import annotations

import asyncio

from neuron_plugin.hardware.uevents import Uevents


class Hints:
    """A source of hints that others can add to."""

    def __init__(self, uevents: Uevents) -> None:
        """``uevents`` stays the caller's to close."""
        self._uevents = uevents
        self._given = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why there are no uevents, if so."""
        return self._uevents.trouble

    def give(self) -> None:
        """There is a reason to look."""
        self._given.set()

    async def wait(self) -> None:
        """Return once there was a hint since the last return. May wait for ever."""
        waits = {
            asyncio.create_task(self._given.wait(), name="given hint"),
            asyncio.create_task(self._uevents.wait(), name="uevent"),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._given.clear()

    def close(self) -> None:
        """Nothing of its own is open."""
