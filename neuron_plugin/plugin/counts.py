"""What has happened since this daemon started, in plain numbers.

Counting stands apart from showing: an Allocate adds one to a number and is done, and the metrics library is loaded
only when somebody asks for metrics. Nothing is counted by pod, so there is no series to go stale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from neuron_plugin.kubelet import RegistrationState

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets: Allocate lives at the low end, a preference that waits for a list high."""


class Latencies:
    """How long something took, as a histogram in seconds."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

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
class Counts:
    """Everything that is counted; also what the kubelet room and the reflector tell their events.

    Keys of the counters are label values in the order of the metric's labels. Latencies are by resource.
    ``starts_held_now`` alone goes down again: containers that wait for their devices at this moment.
    """

    allocations: Counter[str] = field(default_factory=Counter)
    refusals: Counter[tuple[str, ...]] = field(default_factory=Counter)
    preferences_replaced: Counter[str] = field(default_factory=Counter)
    starts_held: Counter[str] = field(default_factory=Counter)
    starts_held_now: Counter[str] = field(default_factory=Counter)
    registrations: Counter[tuple[str, ...]] = field(default_factory=Counter)
    corrections: int = 0
    health_transitions: Counter[tuple[int, str]] = field(default_factory=Counter)
    watch_restarts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    lists: Counter[str] = field(default_factory=Counter)
    allocate_seconds: dict[str, Latencies] = field(default_factory=dict)
    preference_seconds: dict[str, Latencies] = field(default_factory=dict)

    def state_changed(self, resource: str, state: RegistrationState) -> None:
        """Nothing to count: where a registration stands is read from the registration."""

    def registration_ended(self, resource: str, error: str | None) -> None:
        """One Register call came back."""
        self.registrations[resource, "failed" if error else "accepted"] += 1

    def preference_replaced(self, resource: str, fault: str) -> None:  # noqa: ARG002 - the observer's protocol
        """A preference was answered without us."""
        self.preferences_replaced[resource] += 1

    def request_refused(self, resource: str, method: str, error: Exception) -> None:  # noqa: ARG002 - as above
        """The kubelet got an error."""
        self.refusals[resource, method] += 1

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's protocol
        """A whole list was read from the API server."""
        self.lists[kind] += 1

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self.watch_restarts[kind, cause] += 1
