from __future__ import annotations

import logging

import pytest

from neuron_plugin.cluster.api import ApiError, ClusterError, DecodeError, UnreachableError
from neuron_plugin.cluster.interruptions import Interruptions
from tests.cluster.conftest import Recorder

UNREACHABLE = UnreachableError("GET", "/api/v1/pods", "refused", may_have_arrived=False)


def refusal(status: int, retry_after_seconds: float | None = None) -> ApiError:
    return ApiError(
        status=status, reason="R", message="m", method="GET", path="/", retry_after_seconds=retry_after_seconds
    )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def interruptions(recorder: Recorder) -> Interruptions:
    """Of a chance that is always the longest."""
    return Interruptions("pods", recorder, lambda: 1.0, first_seconds=1, longest_seconds=30)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "end"),
        (refusal(410), "expired"),
        (refusal(403), "refused"),
        (UNREACHABLE, "unreachable"),
        (DecodeError("x"), "unreadable"),
    ],
)
def test_each_is_counted_by_its_cause_with_the_wait(
    interruptions: Interruptions, recorder: Recorder, error: ClusterError | None, cause: str
) -> None:
    assert interruptions.wait_after(error) == 1.0
    assert recorder.interruptions == [(cause, 1.0)]


def test_waits_grow_until_a_watch_has_lasted(interruptions: Interruptions) -> None:
    assert [interruptions.wait_after(None) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    interruptions.watch_lasted()
    assert interruptions.wait_after(UNREACHABLE) == 1


def test_a_server_that_asks_for_time_gets_it_with_jitter_but_not_for_ever(interruptions: Interruptions) -> None:
    assert interruptions.wait_after(refusal(429, 7)) == 8
    assert interruptions.wait_after(refusal(429, 86_400)) == 32


def test_only_the_first_trouble_of_a_row_is_told_and_its_end(
    interruptions: Interruptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    interruptions.heard()
    interruptions.wait_after(None)
    interruptions.wait_after(refusal(410))
    assert caplog.messages == [], "these belong to a watch's normal life"
    interruptions.wait_after(UNREACHABLE)
    interruptions.wait_after(refusal(500))
    interruptions.wait_after(None)
    interruptions.heard()
    interruptions.heard()
    assert caplog.messages == ["the API server cannot be followed", "the API server is heard again"]
    interruptions.wait_after(UNREACHABLE)
    assert len(caplog.messages) == 3
