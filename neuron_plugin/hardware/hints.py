"""Reasons to look at the machine at once: the kernel's uevents, and whoever else has one."""

from __future__ import annotations

import asyncio

from neuron_plugin.hardware.uevents import Uevents


class Hints:
    """Whether there was a reason to look, whoever gave it."""

    def __init__(self, uevents: Uevents) -> None:
        """``uevents`` tells this from now on, and stays the caller's to close."""
        self._uevents = uevents
        self._given = asyncio.Event()
        uevents.on_hint = self.give

    @property
    def trouble(self) -> str:
        """Why there are no uevents, if so."""
        return self._uevents.trouble

    def give(self) -> None:
        """There is a reason to look."""
        self._given.set()

    async def wait(self) -> None:
        """Return once there was a hint since the last return. May wait for ever."""
        await self._given.wait()
        self._given.clear()
