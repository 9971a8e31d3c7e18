"""One signal over time, step by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuron_plugin.plugin.health.policy import HealthSettings, Recovery, SignalPolicy
from neuron_plugin.plugin.health.trace import Rules, Sight, Stage, Trace, next_change, reloaded, step

from neuron_plugin.hardware import Observation, Signal

SETTINGS = HealthSettings()
BROKEN = Observation(Signal.COMPONENTS, "firmware reports hbm unhealthy", part="hbm")


def rules(**policy: object) -> Rules:
    return Rules(SETTINGS, SignalPolicy(**policy))  # type: ignore[arg-type]  # checked at run time


def seen(at: float = 0.0) -> Sight:
    return Sight(BROKEN, at)


def counted(count: int, at: float) -> Sight:
    return Sight(Observation(Signal.HW_ERROR, "hardware error", count=count), at)


def run(steps: list[tuple[float, Sight | None]], by: Rules) -> Trace | None:
    trace = None
    for now, sight in steps:
        trace = step(trace, sight, by, now)
    return trace


def stage(trace: Trace | None) -> Stage | None:
    return trace.stage if trace else None


def test_what_is_not_seen_leaves_no_trace() -> None:
    assert run([(0, None), (1, None)], rules()) is None


def test_p67_without_a_delay_a_signal_acts_at_once() -> None:
    trace = run([(0, seen())], rules())
    assert trace
    assert trace.acting
    assert (trace.text, trace.falls) == ("firmware reports hbm unhealthy", 1)


def test_a_signal_has_to_last_before_it_acts() -> None:
    by = rules(after_seconds=30)
    assert stage(run([(0, seen()), (29, seen(29))], by)) is Stage.WATCHED
    assert stage(run([(0, seen()), (30, seen(30))], by)) is Stage.ACTING


def test_a_signal_that_did_not_last_is_forgotten() -> None:
    assert run([(0, seen()), (10, None)], rules(after_seconds=30)) is None
    assert (
        stage(run([(0, seen()), (10, None), (20, seen(20)), (49, seen(49))], rules(after_seconds=30))) is Stage.WATCHED
    )


def test_p68_a_signal_is_over_when_its_cause_has_been_gone_for_its_time() -> None:
    by = rules(recover_after_seconds=60)
    assert stage(run([(0, seen()), (10, seen(10)), (69, None)], by)) is Stage.ACTING
    assert stage(run([(0, seen()), (10, seen(10)), (70, None)], by)) is Stage.OVER


def test_p68_without_such_a_time_it_is_over_at_once() -> None:
    assert stage(run([(0, seen()), (1, None)], rules())) is Stage.OVER


def test_p69_one_that_comes_back_within_the_window_is_held_longer() -> None:
    trace = run([(0, seen()), (1, None), (2, seen(2)), (3, None)], rules())
    assert trace
    assert (trace.stage, trace.falls) == (Stage.ACTING, 2)
    assert stage(step(trace, None, rules(), 11.9)) is Stage.ACTING
    assert stage(step(trace, None, rules(), 12)) is Stage.OVER


def test_p69_one_that_comes_back_after_the_window_is_new() -> None:
    trace = run([(0, seen()), (1, None), (601, seen(601))], rules())
    assert trace
    assert trace.falls == 1


def test_a_trace_is_forgotten_after_the_window() -> None:
    assert stage(run([(0, seen()), (1, None), (600, None)], rules())) is Stage.OVER
    assert run([(0, seen()), (1, None), (601, None)], rules()) is None


def test_watching_again_does_not_forget_how_often_it_came() -> None:
    by = rules(after_seconds=5)
    trace = run([(0, seen()), (5, seen(5)), (6, None), (7, seen(7)), (8, None), (9, seen(9)), (14, seen(14))], by)
    assert trace
    assert (trace.stage, trace.falls) == (Stage.ACTING, 2)


QUIET = {"recovery": Recovery.QUIET, "recover_after_seconds": 100.0}


def test_p68_errors_that_stand_still_are_over_after_the_quiet_time() -> None:
    by = rules(**QUIET)
    assert stage(run([(0, counted(3, 0)), (99, counted(3, 99))], by)) is Stage.ACTING
    assert stage(run([(0, counted(3, 0)), (100, counted(3, 100))], by)) is Stage.OVER


def test_p68_a_further_error_begins_the_quiet_time_anew() -> None:
    by = rules(**QUIET)
    assert stage(run([(0, counted(3, 0)), (90, counted(4, 90)), (189, counted(4, 189))], by)) is Stage.ACTING
    assert stage(run([(0, counted(3, 0)), (90, counted(4, 90)), (190, counted(4, 190))], by)) is Stage.OVER


def test_errors_that_stand_still_while_they_are_watched_last_all_the_same() -> None:
    by = rules(after_seconds=30, **QUIET)
    assert stage(run([(0, counted(3, 0)), (10, counted(3, 10)), (30, counted(3, 30))], by)) is Stage.ACTING


def test_an_old_message_counts_from_its_own_time() -> None:
    assert stage(run([(1000, counted(1, 950)), (1049, counted(1, 950))], rules(**QUIET))) is Stage.ACTING
    assert stage(run([(1000, counted(1, 950)), (1050, counted(1, 950))], rules(**QUIET))) is Stage.OVER


def test_p68_a_latched_signal_waits_for_a_reload_however_long() -> None:
    by = rules(recovery=Recovery.RELOAD)
    trace = run([(0, seen()), (10**6, None)], by)
    assert trace
    assert trace.acting
    assert reloaded(trace, by, 10**6).stage is Stage.OVER
    assert reloaded(trace, rules(), 10**6) == trace


def test_p69_errors_that_go_on_are_told_when_they_have_doubled() -> None:
    texts = []
    trace = None
    for count in range(1, 1001):
        trace = step(trace, counted(count, count), rules(), float(count))
        if trace and trace.text not in texts:
            texts.append(trace.text)
    assert texts == ["1 hardware error", *(f"{2**power} hardware errors" for power in range(1, 10))]


@pytest.mark.parametrize(
    ("trace_stage", "policy", "is_seen", "expected"),
    [
        (Stage.WATCHED, {"after_seconds": 30.0}, True, 130.0),
        (Stage.ACTING, {"recover_after_seconds": 50.0}, False, 150.0),
        (Stage.ACTING, {"recover_after_seconds": 50.0}, True, math.inf),
        (Stage.ACTING, QUIET, True, 200.0),
        (Stage.ACTING, {"recovery": Recovery.RELOAD}, False, math.inf),
        (Stage.OVER, {}, False, math.inf),
    ],
)
def test_the_time_of_the_next_change_is_known(
    trace_stage: Stage,
    policy: dict[str, object],
    is_seen: bool,  # noqa: FBT001 - parametrized
    expected: float,
) -> None:
    trace = Trace(Signal.NODE, trace_stage, "", since=100.0, last_seen=100.0, falls=1, count=1)
    assert next_change(trace, rules(**policy), seen=is_seen) == expected


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=400))
def test_p69_whatever_flaps_the_changes_are_bounded_by_the_logarithm_of_time(moments: list[tuple[float, bool]]) -> None:
    by, trace, now, changes = rules(), None, 0.0, 0
    for pause, is_seen in moments:
        now += pause
        before = trace is not None and trace.acting
        trace = step(trace, seen(now) if is_seen else None, by, now)
        changes += before != (trace is not None and trace.acting)
    lasted = max(now, 10.0)
    assert changes <= 2 * (3 + math.log2(lasted / 10.0) + lasted / 900.0)


def test_waiting_for_quiet_without_a_count_is_no_reason_to_look_again_at_once() -> None:
    """Such a signal is seen or not; with no time to recover its next change would be now, for ever."""
    by = rules(recovery=Recovery.QUIET)
    trace = step(None, seen(0), by, 0)
    assert trace
    assert next_change(trace, by, seen=True) == float("inf")
    assert next_change(trace, by, seen=False) == 0
