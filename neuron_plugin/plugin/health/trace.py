"""One signal on one device, over time.

Between what is seen and what the kubelet is told lies a trace: since when a signal is seen, whether that is long enough
to act, since when its cause has gone, whether that is long enough to be over, and how often it came back. ``step`` is
the whole of it, a function from a trace and a sight to the next trace; times are given.

    (none) --seen--> watched --for after_seconds--> acting --cause gone for the hold--> over --window--> (none)
                        |                             ^                                  |
                        +--not seen--> (none)         +-----------seen again-------------+  with a longer hold
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from neuron_plugin.hardware import Observation, Signal
from neuron_plugin.plugin.health.policy import HealthSettings, Recovery, SignalPolicy, hold_seconds


class Stage(enum.Enum):
    """Where a trace is."""

    WATCHED = "watched"
    ACTING = "acting"
    OVER = "over"
    """Kept for the flapping window only, to know a signal that comes back."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A signal as it is seen at one moment, and since when it could be (a message may be older than its reading)."""

    observation: Observation
    at: float
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """What is remembered of a signal. ``falls``: how often it began to act, as far as that counts as flapping.

    ``text`` stays as it was when the signal appeared until a counter has doubled: errors that go on are not news.
    """

    signal: Signal
    stage: Stage
    text: str
    since: float
    last_seen: float
    falls: int = 0
    count: int | None = None
    told: int = 0

    @property
    def acting(self) -> bool:
        """Whether what the policy says of the signal is in force."""
        return self.stage is Stage.ACTING


@dataclass(frozen=True, slots=True)
class Rules:
    """What a trace goes by."""

    settings: HealthSettings
    policy: SignalPolicy

    def over_at(self, trace: Trace) -> float:
        """When an acting trace is over if its cause is not seen any more; never for one that waits for a reload."""
        if self.policy.recovery is Recovery.RELOAD:
            return float("inf")
        return trace.last_seen + hold_seconds(self.settings, self.policy, trace.falls)

    def forgotten_at(self, trace: Trace) -> float:
        """When a signal that comes back is a new one."""
        return trace.since + self.settings.flapping_window_seconds


def step(trace: Trace | None, sight: Sight | None, rules: Rules, now: float) -> Trace | None:
    """The trace after a look at ``now`` that found ``sight``; the first sight makes it, None means forgotten.

    A trace that is over and whose ``stage`` was acting before has just recovered: the errors it counted are accepted
    if its policy says so.
    """
    if sight and (trace is None or trace.stage is Stage.OVER):
        trace = _begun(trace, sight, rules, now)
    elif sight and trace and _is_fresh(trace, sight, rules):
        trace = _seen_again(trace, sight)
    elif trace:
        return _unseen(trace, rules, now)
    return _acted(trace, rules, now) if trace else None


def lowered(trace: Trace, count: int) -> Trace:
    """The trace after a look at its counter: one that fell was zeroed, as by a driver reload, and counts anew."""
    if trace.count is None or count >= trace.count:
        return trace
    return replace(trace, count=0, told=0)


def reloaded(trace: Trace, rules: Rules, now: float) -> Trace:
    """The trace after its device has gone, which ends those that wait for it."""
    if rules.policy.recovery is Recovery.RELOAD:
        return replace(trace, stage=Stage.OVER, since=now)
    return trace


def next_change(trace: Trace, rules: Rules, *, seen: bool) -> float:
    """When ``step`` could give something else though all stays as it is ``seen`` now; infinity for never."""
    match trace.stage:
        case Stage.WATCHED:
            return trace.since + rules.policy.after_seconds
        case Stage.ACTING if not seen or (rules.policy.recovery is Recovery.QUIET and trace.count is not None):
            return rules.over_at(trace)
        case _:
            return float("inf")  # forgetting changes nothing that anybody sees


def _begun(over: Trace | None, sight: Sight, rules: Rules, now: float) -> Trace:
    seen = sight.observation
    falls = over.falls if over and now < rules.forgotten_at(over) else 0
    return Trace(
        seen.signal, Stage.WATCHED, seen.worded(sight.accepted), now, sight.at, falls, seen.count, seen.count or 0
    )


def _is_fresh(trace: Trace, sight: Sight, rules: Rules) -> bool:
    """Whether the sight is news: errors that are only counted still, while we wait for quiet, are none."""
    if rules.policy.recovery is not Recovery.QUIET or not trace.acting or trace.count is None:
        return True
    return (sight.observation.count or 0) > trace.count


def _seen_again(trace: Trace, sight: Sight) -> Trace:
    seen = sight.observation
    seen_again = replace(trace, last_seen=sight.at, count=seen.count)
    if seen.count is None or seen.count < 2 * trace.told:
        return seen_again
    return replace(seen_again, text=seen.worded(sight.accepted), told=seen.count)


def _acted(trace: Trace, rules: Rules, now: float) -> Trace:
    if trace.stage is Stage.WATCHED and now - trace.since >= rules.policy.after_seconds:
        return replace(trace, stage=Stage.ACTING, falls=trace.falls + 1)
    return trace


def _unseen(trace: Trace, rules: Rules, now: float) -> Trace | None:
    match trace.stage:
        case Stage.ACTING:
            return replace(trace, stage=Stage.OVER, since=now) if now >= rules.over_at(trace) else trace
        case Stage.WATCHED if trace.falls:
            return replace(trace, stage=Stage.OVER, since=now)
        case Stage.OVER if now < rules.forgotten_at(trace):
            return trace
        case _:
            return None
