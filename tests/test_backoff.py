from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.backoff import CLOCK, NEVER, Backoff, Clock, every, keep_running


def whole() -> float:
    return 1.0


def half() -> float:
    return 0.0


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(whole, first_seconds=0.1, longest_seconds=1.0)
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_takes_no_more_than_half() -> None:
    backoff = Backoff(half, first_seconds=0.1, longest_seconds=1.0)
    assert [backoff.next_seconds() for _ in range(5)] == [0.05, 0.1, 0.2, 0.4, 0.5]


def test_reset_begins_with_the_shortest() -> None:
    backoff = Backoff(whole, first_seconds=0.1, longest_seconds=1.0)
    for _ in range(4):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() == 0.1


def test_p6_jitter_differs_between_nodes() -> None:
    nodes = [Random(seed) for seed in range(50)]  # noqa: S311 - repeats a test's chance, guards nothing
    delays = [Backoff(node.random, first_seconds=2, longest_seconds=15).next_seconds() for node in nodes]
    assert all(1 <= delay <= 2 for delay in delays)
    assert len(set(delays)) == 50


@given(chances=st.lists(st.floats(0, 1), min_size=1, max_size=40), first=st.floats(0.001, 1))
def test_no_delay_is_ever_zero_or_over_the_longest(chances: list[float], first: float) -> None:
    drawn = iter(chances)
    backoff = Backoff(lambda: next(drawn), first_seconds=first, longest_seconds=30.0)
    delays = [backoff.next_seconds() for _ in chances]
    assert all(first / 2 <= delay <= 30.0 for delay in delays)


async def test_the_real_clock_goes_forward_and_sleeps() -> None:
    before = CLOCK.now()
    await CLOCK.sleep(0.001)
    assert 0.001 <= CLOCK.now() - before < 5
    assert abs(time.monotonic() - CLOCK.now()) < 1
    assert 0 <= CLOCK.chance() < 1
    assert CLOCK.sleep is asyncio.sleep


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waited


async def test_a_job_that_fails_is_logged_and_started_again_later_each_time(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        if runs < 10:
            raise ValueError(runs)

    await keep_running("job", job, clock=Clock(chance=lambda: 1.0))
    assert runs == 10
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(caplog.records) == 9


@pytest.mark.looptime
async def test_a_job_that_ran_for_long_does_not_pay_for_failures_of_before(caplog: pytest.LogCaptureFixture) -> None:
    lasts = iter([0.0, 0.0, 0.0, 3600.0, 0.0])

    async def job() -> None:
        seconds = next(lasts, None)
        if seconds is not None:
            await asyncio.sleep(seconds)
            raise ValueError(seconds)

    await keep_running("job", job, clock=Clock(chance=lambda: 1.0))
    assert [vars(record)["in_seconds"] for record in caplog.records] == [1, 2, 4, 1, 2]


async def test_a_cancelled_job_is_not_started_again(pauses: list[float]) -> None:
    async def job() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_running("job", job)
    assert pauses == []


@pytest.mark.looptime
async def test_a_source_is_looked_at_at_once_after_each_pause_and_when_there_is_news() -> None:
    loop, looks, news = asyncio.get_running_loop(), list[float](), asyncio.Event()
    began, pauses = loop.time(), iter([10.0, 20.0, NEVER, NEVER, NEVER])

    async def look() -> None:
        looks.append(loop.time() - began)

    watching = asyncio.create_task(every(lambda: next(pauses), look, news))
    for at in (35.0, 40.0):
        await asyncio.sleep(began + at - loop.time())
        news.set()
    await asyncio.sleep(1000)
    watching.cancel()
    assert looks == pytest.approx([0, 10, 30, 35, 40], abs=0.1)


@pytest.mark.looptime
async def test_news_that_come_during_a_look_are_looked_at_next() -> None:
    looks, news = list[int](), asyncio.Event()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            news.set()

    watching = asyncio.create_task(every(NEVER, look, news))
    await asyncio.sleep(10)
    watching.cancel()
    assert looks == [0, 1, 2]
