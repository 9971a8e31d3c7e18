"""The needs of every part of the placement controller: the API server, the state, the clock, and durations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from neuron_plugin.allocation import PodReference
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiServer, ClusterError, Election, ObjectReference
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.decision_log import DecisionLog
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.metrics import new_counts
from neuron_plugin.placement.state import ClusterState

REPORTER = "neuron-plugin.io/extender"
_log = logging.getLogger(__name__)


PAUSE_FACTOR = 10.0
"""A computation in a thread pauses this many times as long as it took: it takes at most a tenth of a CPU."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds.

    ``write`` bounds a write that places a pod, ``read`` a look at its result. ``landing`` is how long after its start
    an unanswered write may still take effect. A confirmed one may go unseen by the watch for ``doubt`` before it is
    looked up. A pod waits for ``refused`` after the API server refused a write of it. Pods are sent to a node one by
    one: the next when the last has its devices, or after ``admission``.

    A bind call is answered within ``answer``, which is below the scheduler's own time-out.

    A step of the placer waits ``gather`` for more pods to come. It looks again after ``tick`` at the latest. ``leader``
    is how long the first pod of a group waits for the others before it is placed without them. Places for the others,
    and for lost pods of a group, are kept for ``reserve`` since the group's last progress.

    A pod that waits gets an event after ``patience``, and its reason is worked out every ``again``. A pod is handed to
    its scheduler for an autoscaler after no open node had enough devices for ``full``; an autoscaler is looked for
    every ``autoscaler``. ``stuck`` is how long a pod may be unschedulable on its node, and ``avoid`` how long pods of
    its owner keep off it.

    Plans for room are made every ``plan``, and every ``preempt`` while a pod that may preempt waits. A pod gets no
    second event about them for ``repeat``. ``stages`` bounds a move that waits for a disruption budget, and ``longest``
    any move, whose victims may need long to end. ``moved`` is how long the pods of a controller stay put after one of
    them was moved. An opened set stays reserved for ``unused``. After a failed attempt, no pod of the kind has another
    for ``retry``.

    Closed nodes are looked at every ``events``; the cause is reported after ``closed``, a silent plugin after
    ``silent``. Pre-flight checks are looked at every ``preflight``.
    """

    write: float = 2.5
    read: float = 1.2
    request: float = REQUEST_SECONDS
    landing: float = 5.0
    doubt: float = 30.0
    refused: float = 10.0
    admission: float = 1.0
    answer: float = 4.0
    gather: float = 0.002
    tick: float = 1.0
    leader: float = 5.0
    reserve: float = 600.0
    patience: float = 2.0
    again: float = 5.0
    full: float = 5.0
    autoscaler: float = 60.0
    stuck: float = 30.0
    avoid: float = 600.0
    plan: float = 30.0
    preempt: float = 10.0
    repeat: float = 3600.0
    stages: float = 600.0
    longest: float = 1800.0
    moved: float = 600.0
    unused: float = 300.0
    retry: float = 10.0
    events: float = 2.0
    closed: float = 10.0
    silent: float = 60.0
    preflight: float = 2.0


@dataclass(frozen=True, slots=True)
class Context:
    """``instance`` is this replica's name. Without an ``election`` its term as leader has no end.

    ``unix_seconds`` is the time of written records, pods and Leases.
    """

    api: ApiServer
    state: ClusterState
    ready: Readiness
    instance: str
    metrics: MetricCounts = field(default_factory=new_counts)
    decisions: DecisionLog = field(default_factory=DecisionLog)
    election: Election | None = None
    times: Times = field(default_factory=Times)
    clock: Clock = CLOCK
    unix_seconds: Callable[[], float] = time.time

    def unix_ns(self) -> int:
        """The time in nanoseconds."""
        return round(self.unix_seconds() * 1e9)

    def why_not_write(self) -> str:
        """Why nothing may be written now: this replica does not lead, or its term may end before an answer comes."""
        if self.ready.why_not:
            return self.ready.why_not
        if self.election and self.election.seconds_left() <= self.times.write:
            return "the leader's lease was not renewed lately and may run out before a write ends"
        return ""

    async def report(
        self, about: PodReference | ObjectReference, reason: str, note: str, *, warning: bool = True
    ) -> None:
        """Write an event. One that cannot be written is no error: a log line and a metric have reported the same."""
        regarding = about_pod(about) if isinstance(about, PodReference) else about
        request = create_event(
            regarding,
            reason=reason,
            note=note,
            action="Scheduling",
            reporter=REPORTER,
            instance=self.instance,
            now=utc_now(),
            warning=warning,
        )
        try:
            await send(self.api, request, timeout_seconds=self.times.request)
        except ClusterError as error:
            _log.info("event not written", extra={"object": regarding.name, "reason": reason, "cause": str(error)})


def about_pod(pod: PodReference) -> ObjectReference:
    """A pod as the object that an event is about."""
    return ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace)
