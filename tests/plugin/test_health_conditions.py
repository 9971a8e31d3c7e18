"""One signal over time, step by step."""

from __future__ import annotations

import math

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


def run(steps: list[tuple[float, Sighting | None]], by: SignalRule) -> Condition | None:
    condition = None
    for now, sight in steps:
        condition = step(condition, sight, by, RULES, now)
    return condition


def phase(condition: Condition | None) -> Phase | None:
    return condition.phase if condition else None


def test_what_is_not_seen_is_not_remembered() -> None:
    assert run([(0, None), (1, None)], rule()) is None


def test_p67_without_a_delay_a_signal_acts_at_once() -> None:
    condition = run([(0, seen())], rule())
    assert condition
    assert condition.phase is Phase.FIRING
    assert (condition.text, condition.times_fired) == ("firmware reports hbm unhealthy", 1)


def test_a_signal_has_to_last_before_it_acts() -> None:
    by = rule(for_seconds=30)
    assert phase(run([(0, seen()), (29, seen(29))], by)) is Phase.PENDING
    assert phase(run([(0, seen()), (30, seen(30))], by)) is Phase.FIRING


def test_a_signal_that_did_not_last_is_forgotten() -> None:
    assert run([(0, seen()), (10, None)], rule(for_seconds=30)) is None
    assert phase(run([(0, seen()), (10, None), (20, seen(20)), (49, seen(49))], rule(for_seconds=30))) is Phase.PENDING


def test_p68_a_signal_is_over_when_its_cause_has_been_gone_for_its_time() -> None:
    by = rule(keep_firing_for_seconds=60)
    assert phase(run([(0, seen()), (10, seen(10)), (69, None)], by)) is Phase.FIRING
    assert phase(run([(0, seen()), (10, seen(10)), (70, None)], by)) is Phase.RESOLVED


def test_p68_without_such_a_time_it_is_over_at_once() -> None:
    assert phase(run([(0, seen()), (1, None)], rule())) is Phase.RESOLVED


def test_p69_one_that_comes_back_within_the_window_is_held_longer() -> None:
    condition = run([(0, seen()), (1, None), (2, seen(2)), (3, None)], rule())
    assert condition
    assert (condition.phase, condition.times_fired) == (Phase.FIRING, 2)
    assert phase(step(condition, None, rule(), RULES, 11.9)) is Phase.FIRING
    assert phase(step(condition, None, rule(), RULES, 12)) is Phase.RESOLVED


def test_p69_one_that_comes_back_after_the_window_is_new() -> None:
    condition = run([(0, seen()), (1, None), (601, seen(601))], rule())
    assert condition
    assert condition.times_fired == 1


def test_a_condition_is_forgotten_after_the_window() -> None:
    assert phase(run([(0, seen()), (1, None), (600, None)], rule())) is Phase.RESOLVED
    assert run([(0, seen()), (1, None), (601, None)], rule()) is None


def test_watching_again_does_not_forget_how_often_it_came() -> None:
    by = rule(for_seconds=5)
    condition = run([(0, seen()), (5, seen(5)), (6, None), (7, seen(7)), (8, None), (9, seen(9)), (14, seen(14))], by)
    assert condition
    assert (condition.phase, condition.times_fired) == (Phase.FIRING, 2)


QUIET = {"only_new_errors": True, "keep_firing_for_seconds": 100.0}


def test_p68_errors_that_stand_still_are_over_after_the_quiet_time() -> None:
    by = rule(**QUIET)
    assert phase(run([(0, counted(3, 0)), (99, counted(3, 99))], by)) is Phase.FIRING
    assert phase(run([(0, counted(3, 0)), (100, counted(3, 100))], by)) is Phase.RESOLVED


def test_p68_a_further_error_begins_the_quiet_time_again() -> None:
    by = rule(**QUIET)
    assert phase(run([(0, counted(3, 0)), (90, counted(4, 90)), (189, counted(4, 189))], by)) is Phase.FIRING
    assert phase(run([(0, counted(3, 0)), (90, counted(4, 90)), (190, counted(4, 190))], by)) is Phase.RESOLVED


def test_errors_that_stand_still_while_they_are_watched_last_all_the_same() -> None:
    by = rule(for_seconds=30, **QUIET)
    assert phase(run([(0, counted(3, 0)), (10, counted(3, 10)), (30, counted(3, 30))], by)) is Phase.FIRING


def test_an_old_message_counts_from_its_own_time() -> None:
    assert phase(run([(1000, counted(1, 950)), (1049, counted(1, 950))], rule(**QUIET))) is Phase.FIRING
    assert phase(run([(1000, counted(1, 950)), (1050, counted(1, 950))], rule(**QUIET))) is Phase.RESOLVED


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
    assert next_change(condition, rule(**policy), RULES, seen=is_seen) == expected


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
    assert next_change(condition, by, RULES, seen=True) == float("inf")
    assert next_change(condition, by, RULES, seen=False) == 0
