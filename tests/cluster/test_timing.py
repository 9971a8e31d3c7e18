from __future__ import annotations

import asyncio
import time

from neuron_plugin.cluster.timing import CLOCK


async def test_the_real_clock_goes_forward_and_sleeps() -> None:
    before = CLOCK.now()
    await CLOCK.sleep(0.001)
    assert 0.001 <= CLOCK.now() - before < 5
    assert abs(time.monotonic() - CLOCK.now()) < 1
    assert 0 <= CLOCK.chance() < 1
    assert CLOCK.sleep is asyncio.sleep
