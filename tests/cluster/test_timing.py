from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.cluster.timing import CLOCK, Backoff


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(0.1, 1.0, chance=lambda: 1.0)
    assert [backoff.step() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_the_least_wait_is_half_of_it() -> None:
    backoff = Backoff(0.1, 1.0, chance=lambda: 0.0)
    assert [backoff.step() for _ in range(5)] == [0.05, 0.1, 0.2, 0.4, 0.5]


def test_after_a_reset_it_starts_small_again() -> None:
    backoff = Backoff(0.1, 1.0, chance=lambda: 1.0)
    for _ in range(4):
        backoff.step()
    backoff.reset()
    assert backoff.step() == 0.1


@given(chances=st.lists(st.floats(0, 1), min_size=1, max_size=40), first=st.floats(0.001, 1))
def test_no_wait_is_ever_zero_or_over_the_limit(chances: list[float], first: float) -> None:
    drawn = iter(chances)
    backoff = Backoff(first, 30.0, chance=lambda: next(drawn))
    waits = [backoff.step() for _ in chances]
    assert all(first / 2 <= wait <= 30.0 for wait in waits)


async def test_the_real_clock_goes_forward_and_sleeps() -> None:
    before = CLOCK.now()
    await CLOCK.sleep(0.001)
    assert 0.001 <= CLOCK.now() - before < 5
    assert abs(time.monotonic() - CLOCK.now()) < 1
    assert 0 <= CLOCK.chance() < 1
    assert CLOCK.sleep is asyncio.sleep
