"""What became of pods that were assumed: a write whose answer was lost, or that the watch does not show.

The one question after a failed write is whether it may have happened all the same. A refusal with a 4xx says no; a 5xx,
a time-out or a broken connection says nothing. Then the pod stays assumed, and is looked up later.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

from neuron_plugin.allocation import Assignment, NeuronPod, PodReference, PodUid, Rejection
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiError, ApiServer, ClusterError, UnreachableError
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.cluster.writes import read_pod
from neuron_plugin.decision_log import DecisionLog, LoggedDecision, Step
from neuron_plugin.scheduling.state import AssumedPod, ClusterState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssumedTimes:
    """Seconds. ``landing`` is how long after its start an unanswered write may still take effect.

    ``doubt`` is how long a confirmed write may go unseen by the watch before it is looked up, and ``read`` ends a look.
    """

    landing: float = 5.0
    doubt: float = 30.0
    read: float = 1.2


def may_have_happened(error: ClusterError) -> bool:
    """Whether a write that ended in this error may be in place, or may still come to be."""
    if isinstance(error, UnreachableError):
        return error.may_have_arrived
    return not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def log_choice(decisions: DecisionLog, assumed: AssumedPod, at_ns: int) -> None:
    """Remember why a pod got these sets, for ``neuron-plugin decisions``; nothing where nothing had to be chosen."""
    capacity, pod = assumed.chosen_from, assumed.pod
    if capacity is None:
        return
    allocations = assigned_allocations(pod, capacity.geometry)
    for allocation in () if isinstance(allocations, Rejection) else allocations:
        made = (at_ns, Step.BOUND, pod.place, capacity.geometry, allocation.resource, allocation.mask)
        usable = partial(int, capacity.free_mask)
        decisions.record(
            LoggedDecision(*made, "takes least from later pods", pod.reference, allocation.container, usable)
        )


class AssumedPods:
    """The assumed pods of one state, and how they are looked up: the controller's daemon calls ``settle`` in a loop."""

    def __init__(
        self, state: ClusterState, api: ApiServer, times: AssumedTimes = AssumedTimes(), clock: Clock = CLOCK
    ) -> None:
        self._state = state
        self._api = api
        self._times = times
        self._clock = clock

    def unseen(self) -> int:
        """Confirmed writes that the watch should have shown by now; asked from a scrape's thread, too."""
        return sum(pod.confirmed and self._is_due(pod) for pod in list(self._state.assumed.values()))

    async def settle(self, under_way: Container[PodUid] = ()) -> None:
        """Look up the assumed pods that the watch should have shown by now, and forget or confirm them."""
        for assumed in list(self._state.assumed.values()):
            if not self._is_due(assumed):
                continue
            pod = assumed.pod.reference
            try:
                seen = await self.read(pod)
            except ClusterError:
                continue  # still unknown: it stays assumed
            if self._state.assumed.get(pod.uid) is not assumed or pod.uid in under_way:
                continue  # the watch or a new attempt was faster
            if seen is None or seen.ended or seen.place != assumed.pod.place:
                self._state.forget(pod.uid)
                _log.info("assumed pod forgotten", extra={"pod": str(pod), "uid": pod.uid, "node": assumed.pod.place})
            else:
                self.adopt(replace(assumed, since=self._clock.now()), seen)

    def adopt(self, assumed: AssumedPod, seen: NeuronPod) -> None:
        """The pod is where we wanted it: count what it says it was assigned, if it says so clearly."""
        if seen.uid in self._state.assumed:
            pod = seen if isinstance(seen.assignment, Assignment) else assumed.pod
            self._state.assume(replace(assumed, pod=pod, confirmed=True))

    async def read(self, pod: PodReference) -> NeuronPod | None:
        """The pod of this name by a consistent read; None when there is none or it has another UID.

        Raises:
            ClusterError: the server did not answer, or refused.
        """
        request = read_pod(namespace=pod.namespace, name=pod.name)
        try:
            current = PODS.decode(await send(self._api, request, timeout_seconds=self._times.read))
        except ApiError as error:
            if error.missing:
                return None
            raise
        return neuron_pod(current) if current.uid == pod.uid else None

    def _is_due(self, assumed: AssumedPod) -> bool:
        """Whether so much time has passed that the watch should have shown this pod, and has not."""
        pod = self._state.pods.get(assumed.pod.uid)
        if assumed.expected or (pod is not None and pod.place == assumed.pod.place):
            return False
        patience = self._times.doubt if assumed.confirmed else self._times.landing
        return self._clock.now() - assumed.since > patience
