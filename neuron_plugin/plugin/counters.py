"""What has happened since the daemon started, in plain numbers.

Counting stands apart from showing: an Allocate adds to a number, and the metrics library is loaded only once the
kubelet is served. Nothing is counted by pod, so no series goes stale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets: Allocate lives at the low end, a preference that waits for a LIST high."""


@dataclass
class Latencies:
    """How long something took, as a histogram in seconds."""

    sum_seconds: float = 0.0
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))

    def observe(self, seconds: float) -> None:
        """Add one."""
        self._buckets[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Upper bound and how many were not above it, as Prometheus has it; the last bound is ``+Inf``."""
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), self._buckets, strict=True):
            so_far += count
            yield bound, so_far


@dataclass
class Counters:
    """Keys of the counters are label values in the order of the metric's labels. Latencies are by resource."""

    allocations: Counter[str] = field(default_factory=Counter)
    corrections: int = 0
    health_transitions: Counter[tuple[int, str]] = field(default_factory=Counter)
    watch_restarts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    lists: Counter[str] = field(default_factory=Counter)
    allocate_seconds: dict[str, Latencies] = field(default_factory=lambda: defaultdict(Latencies))
    preference_seconds: dict[str, Latencies] = field(default_factory=lambda: defaultdict(Latencies))
    prepare_seconds: dict[str, Latencies] = field(default_factory=lambda: defaultdict(Latencies))


class ReflectorCounts:
    """Counts what a Reflector does, as its observer."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's protocol
        """A complete list is in."""
        self._counters.lists[kind] += 1

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self._counters.watch_restarts[kind, cause] += 1
