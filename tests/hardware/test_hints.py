"""Hints of several sources."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.hardware.hints import Hints
from neuron_plugin.hardware.uevents import NoUevents


class Uevents:
    """A source of hints in the hand of the test."""

    trouble = ""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> None:
        await self.event.wait()
        self.event.clear()

    def close(self) -> None:
        """Nothing is open."""


pytestmark = pytest.mark.looptime


async def waited(hints: Hints) -> bool:
    try:
        async with asyncio.timeout(1):
            await hints.wait()
    except TimeoutError:
        return False
    return True


async def test_either_source_ends_the_waiting() -> None:
    uevents = Uevents()
    hints = Hints(uevents)
    hints.give()
    assert await waited(hints)
    uevents.event.set()
    assert await waited(hints)


async def test_a_hint_is_for_one_waiting() -> None:
    hints = Hints(Uevents())
    hints.give()
    hints.give()
    assert await waited(hints)
    assert not await waited(hints)


async def test_a_hint_while_nobody_waits_is_kept() -> None:
    hints = Hints(Uevents())
    assert not await waited(hints)
    hints.give()
    assert await waited(hints)


async def test_the_trouble_is_the_uevents() -> None:
    assert Hints(NoUevents("no libudev")).trouble == "no libudev"
    hints = Hints(Uevents())
    assert hints.trouble == ""
    hints.close()
