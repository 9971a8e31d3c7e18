"""Jobs that go on."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.plugin.supervision import keep_going


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("neuron_plugin.plugin.supervision.asyncio.sleep", sleep)
    return waited


async def test_a_job_that_fails_is_started_again_later_each_time_and_told_of(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        if runs < 10:
            raise ValueError(runs)

    await keep_going("job", job, chance=lambda: 1.0)
    assert runs == 10
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(caplog.records) == 9


@pytest.mark.looptime
async def test_a_job_that_went_on_for_long_does_not_pay_for_failures_of_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lasts = iter([0.0, 0.0, 0.0, 3600.0, 0.0])

    async def job() -> None:
        seconds = next(lasts, None)
        if seconds is not None:
            await asyncio.sleep(seconds)
            raise ValueError(seconds)

    await keep_going("job", job, chance=lambda: 1.0)
    assert [vars(record)["in_seconds"] for record in caplog.records] == [1, 2, 4, 1, 2]


async def test_a_cancelled_job_is_not_started_again(pauses: list[float]) -> None:
    async def job() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_going("job", job)
    assert pauses == []
