"""Hints of several sources."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.hardware.hints import Hints
from neuron_plugin.hardware.uevents import NoUevents

pytestmark = pytest.mark.looptime


async def waited(hints: Hints) -> bool:
    try:
        async with asyncio.timeout(1):
            await hints.wait()
    except TimeoutError:
        return False
    return True


async def test_either_source_ends_the_waiting() -> None:
    uevents = NoUevents()
    hints = Hints(uevents)
    hints.give()
    assert await waited(hints)
    uevents.on_hint()
    assert await waited(hints)


async def test_a_hint_is_for_one_waiting() -> None:
    hints = Hints(NoUevents())
    hints.give()
    hints.give()
    assert await waited(hints)
    assert not await waited(hints)


async def test_a_hint_while_nobody_waits_is_kept() -> None:
    hints = Hints(NoUevents())
    assert not await waited(hints)
    hints.give()
    assert await waited(hints)


async def test_the_trouble_is_the_uevents() -> None:
    assert Hints(NoUevents("no libudev")).trouble == "no libudev"
    assert Hints(NoUevents()).trouble == ""
