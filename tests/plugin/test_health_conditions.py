"""One signal over time, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware.health_signals import Observation, Signal
from neuron_plugin.plugin.health import Condition, HealthRules, Phase, Sighting, SignalRule, next_change, step

RULES = HealthRules()
BROKEN = "firmware reports hbm unhealthy"


def rule(**fields: object) -> SignalRule:
    return SignalRule(**fields)  # type: ignore[arg-type]  # checked at run time


def seen(at: float = 0.0) -> Sighting:
    return Sighting(BROKEN, at)


def counted(count: int, at: float) -> Sighting:
    return Sighting(Observation(Signal.HW_ERROR, "hardware error", count=count).worded(), at, count)


QUIET: dict[str, Any] = {"only_new_errors": True, "keep_firing_for_seconds": 100.0}
ENDED = {"pending": Phase.PENDING, "firing": Phase.FIRING, "resolved": Phase.RESOLVED, "none": None}
STEPS = {
    "what is not seen": ({}, "0 - none; 1 - none"),
    "p67 without a delay": ({}, "0 seen firing 1"),
    "a signal that lasts": ({"for_seconds": 30}, "0 seen pending; 29 seen pending; 30 seen firing 1"),
    "a signal that did not last": (
        {"for_seconds": 30},
        "0 seen pending; 10 - none; 20 seen pending; 49 seen pending; 50 seen firing 1",
    ),
    "p68 the cause is gone for its time": (
        {"keep_firing_for_seconds": 60},
        "0 seen firing; 10 seen firing; 69 - firing; 70 - resolved",
    ),
    "p68 without such a time": ({}, "0 seen firing; 1 - resolved"),
    "p69 back within the window, and held longer": (
        {},
        "0 seen firing; 1 - resolved; 2 seen firing 2; 3 - firing 2; 11.9 - firing; 12 - resolved",
    ),
    "p69 back after the window": ({}, "0 seen firing; 1 - resolved; 601 seen firing 1"),
    "forgotten after the window": ({}, "0 seen firing; 1 - resolved; 600 - resolved; 601 - none"),
    "watched again, and counted on": (
        {"for_seconds": 5},
        "0 seen pending; 5 seen firing 1; 6 - resolved; 7 seen pending; 8 - resolved; 9 seen pending; 14 seen firing 2",
    ),
    "p68 errors that stand still": (QUIET, "0 3 firing; 99 3 firing; 100 3 resolved"),
    "p68 a further error": (QUIET, "0 3 firing; 90 4 firing; 189 4 firing; 190 4 resolved"),
    "errors that stand still while they are watched": (
        {"for_seconds": 30, **QUIET},
        "0 3 pending; 10 3 pending; 30 3 firing",
    ),
    "an old message counts from its own time": (QUIET, "1000 1@950 firing; 1049 1@950 firing; 1050 1@950 resolved"),
}
"""A rule; then at each time what is seen (``-``: nothing, a number: errors), and the phase, and how often it fired."""


@pytest.mark.parametrize(("fields", "steps"), STEPS.values(), ids=STEPS)
def test_one_signal_over_time(fields: dict[str, Any], steps: str) -> None:
    condition = None
    for text in steps.split("; "):
        now, what, phase, *fired = text.split(" ")
        count, _, since = what.partition("@")
        at = float(since or now)
        sight = None if what == "-" else seen(at) if what == "seen" else counted(int(count), at)
        condition = step(condition, sight, rule(**fields), RULES, float(now))
        assert (condition.phase if condition else None) is ENDED[phase], text
        assert not fired or (condition and condition.times_fired == int(fired[0])), text
        assert what != "seen" or (condition and condition.text == BROKEN), text


def test_p69_errors_that_go_on_are_news_when_they_have_doubled() -> None:
    texts = []
    condition = None
    for count in range(1, 1001):
        condition = step(condition, counted(count, count), rule(), RULES, float(count))
        if condition and condition.text not in texts:
            texts.append(condition.text)
    assert texts == ["1 hardware error", *(f"{2**power} hardware errors" for power in range(1, 10))]


@pytest.mark.parametrize(
    ("at_phase", "policy", "is_seen", "expected"),
    [
        (Phase.PENDING, {"for_seconds": 30.0}, True, 130.0),
        (Phase.FIRING, {"keep_firing_for_seconds": 50.0}, False, 150.0),
        (Phase.FIRING, {"keep_firing_for_seconds": 50.0}, True, math.inf),
        (Phase.FIRING, QUIET, True, 200.0),
        (Phase.RESOLVED, {}, False, math.inf),
    ],
)
def test_the_time_of_the_next_change_is_known(
    at_phase: Phase,
    policy: dict[str, object],
    is_seen: bool,  # noqa: FBT001 - parametrized
    expected: float,
) -> None:
    condition = Condition(at_phase, "", since=100.0, last_seen=100.0, times_fired=1, count=1)
    assert next_change(condition, rule(**policy), seen=is_seen) == expected


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=400))
def test_p69_whatever_flaps_the_changes_are_bounded_by_the_logarithm_of_time(moments: list[tuple[float, bool]]) -> None:
    by, condition, now, changes = rule(), None, 0.0, 0
    for pause, is_seen in moments:
        now += pause
        before = condition is not None and condition.phase is Phase.FIRING
        condition = step(condition, seen(now) if is_seen else None, by, RULES, now)
        changes += before != (condition is not None and condition.phase is Phase.FIRING)
    lasted = max(now, 10.0)
    assert changes <= 2 * (3 + math.log2(lasted / 10.0) + lasted / 900.0)


def test_waiting_for_quiet_without_a_count_is_no_reason_to_look_again_at_once() -> None:
    """Such a signal is seen or not; with no time to recover its next change would be now, for ever."""
    by = rule(only_new_errors=True)
    condition = step(None, seen(0), by, RULES, 0)
    assert condition
    assert next_change(condition, by, seen=True) == float("inf")
    assert next_change(condition, by, seen=False) == 0
