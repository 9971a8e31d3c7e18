"""Events on what closes nodes: which pod keeps a node from taking new Neuron pods, and why.

Scheduling texts must not name pods, so a pod and reason is reported once: by a warning event on the pod, a log line and
a metric. Where the kubelet got no devices for a pod, or the plugin is silent, the event is on the node. A pod of
another scheduler has no assignment for the second until its plugin has written one, and two pods that the kubelet
swapped overlap for as long: what ends by itself within ``PATIENCE_SECONDS`` is not reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NoReturn

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.allocation.node import OVERLAPPING_ASSIGNMENTS
from neuron_plugin.allocation.rejection import NO_ASSIGNMENT, UNREADABLE_ASSIGNMENT
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiServer, ClusterError, ObjectReference
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.metrics import ExtenderMetrics
from neuron_plugin.placement.state import ClusterState

REPORTER = "neuron-plugin.io/extender"
PERIOD_SECONDS = 2.0
"""Between two looks at what closes nodes."""
PATIENCE_SECONDS = 10.0
"""What ends by itself within it is not reported."""
SILENT_SECONDS = 60.0
"""How long a plugin must not renew its Lease before that is reported: a rollout takes less."""
MOST_AT_ONCE = 20
"""Events per look: a cluster that is all wrong shows in the metric, not in a storm of events."""

EVENT_REASONS = {
    UNREADABLE_ASSIGNMENT.code: "NeuronAssignmentUnreadable",
    NO_ASSIGNMENT.code: "NeuronAssignmentMissing",
    OVERLAPPING_ASSIGNMENTS.code: "NeuronAssignmentOverlaps",
}
"""The reason of the event on the pod, by rejection code."""

ADMISSION_REJECTED = "NeuronAdmissionRejected"
"""The reason of the event on a node whose kubelet got no devices for a pod."""

NO_PREEMPTION = "NeuronNoPreemption"
"""The reason of the event on a pod for which no eviction opens a linked set."""
PLUGIN_SILENT = "NeuronPluginSilent"
"""The reason of the event on a node whose plugin does not renew its Lease."""

_REPORTED = float("inf")
_log = logging.getLogger(__name__)


class PodEvents:
    """Which pods close nodes, since when, and which of them have been reported. Only the leader reports.

    ``instance`` is this replica's name.
    """

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        readiness: Readiness,
        metrics: ExtenderMetrics,
        *,
        instance: str,
        period_seconds: float = PERIOD_SECONDS,
        clock: Clock = CLOCK,
    ) -> None:
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._instance = instance
        self._period_seconds = period_seconds
        self._clock = clock
        self._since: dict[tuple[PodUid, str], float] = {}
        self._reported: set[tuple[PodUid, str]] = set()
        self._without_victims: set[PodUid] = set()
        self._silent: dict[str, float] = {}  # by node, since when; or that it is reported

    async def run(self) -> NoReturn:
        """Look every ``period_seconds`` until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._period_seconds)

    async def look(self) -> None:
        """Report what is due: each pod and reason once, and again after it had ended."""
        history = self._state.history
        rejections = list(history.rejections)
        history.rejections.clear()
        without_victims = {pod.uid: pod for pod in history.without_victims}
        history.without_victims.clear()
        if self._readiness.why_not:
            return
        await self._report_rejections(rejections)
        now = self._clock.now()
        await self._report_silent_plugins(now)
        await self._report_without_victims(without_victims)
        unclear = {
            (pod.uid, reason.code): (pod, reason, info.name)
            for info in self._state.nodes.values()
            for pod, reason in info.unclear
        }
        self._since = {key: self._since.get(key, now) for key in unclear}
        self._reported &= unclear.keys()
        # An unreadable assignment does not mend itself; the others usually do, within moments.
        patience = dict.fromkeys(EVENT_REASONS, PATIENCE_SECONDS) | {UNREADABLE_ASSIGNMENT.code: 0.0}
        due = [key for key in unclear if key not in self._reported and now - self._since[key] >= patience[key[1]]]
        self._reported.update(due)
        for number, key in enumerate(due):
            pod, reason, node = unclear[key]
            self._metrics.unclear_assignments.labels(reason.code).inc()
            fields = {"pod": str(pod), "uid": pod.uid, "node": node, "reason": reason.code, "detail": reason.detail}
            _log.warning("node closed for new Neuron pods", extra=fields)
            if number < MOST_AT_ONCE:
                note = f"{reason.detail}. Node {node} takes no new Neuron pod until this one ends or is assigned."
                await write_event(self._api, about_pod(pod), EVENT_REASONS[reason.code], note, self._instance)

    async def _report_rejections(self, rejections: list[NeuronPod]) -> None:
        """A node that lost several pods has one event."""
        self._metrics.rejected_admissions.inc(len(rejections))
        pods = {pod.node: pod for pod in rejections}
        for number, (node, pod) in enumerate(pods.items()):
            said = pod.rejection_message or "it gave no reason"
            fields = {"node": node, "pod": str(pod.reference), "uid": pod.uid, "kubelet": said}
            _log.warning("pod rejected at admission", extra=fields)
            if number < MOST_AT_ONCE:
                regarding = ObjectReference("Node", node, node, "v1")
                note = (
                    f"The kubelet rejected pod {pod.reference}: {said}. No Neuron pod comes here until the plugin "
                    "renews its Lease."
                )
                await write_event(self._api, regarding, ADMISSION_REJECTED, note, self._instance)

    async def _report_silent_plugins(self, now: float) -> None:
        """Each has one log line and one event, and one log line when it is back."""
        before = self._silent
        self._silent = {name: before.get(name, now) for name, info in self._state.nodes.items() if info.stale}
        for name in self._state.nodes.keys() & before.keys() - self._silent.keys():
            if before[name] == _REPORTED:
                _log.info("plugin renews its Lease again", extra={"node": name})
        due = [name for name, since in self._silent.items() if now - since >= SILENT_SECONDS]
        self._silent |= dict.fromkeys(due, _REPORTED)
        for number, name in enumerate(due):
            _log.warning("plugin does not renew its Lease", extra={"node": name})
            if number < MOST_AT_ONCE:
                regarding = ObjectReference("Node", name, name, "v1")
                note = "The Neuron plugin does not renew its Lease: no new Neuron pod comes here until it does."
                await write_event(self._api, regarding, PLUGIN_SILENT, f"{note} Does its pod run?", self._instance)

    async def _report_without_victims(self, pods: Mapping[PodUid, PodReference]) -> None:
        """kube-scheduler says of such a pod only that no node is a candidate; it asks again and again."""
        self._without_victims &= self._state.pods.keys()
        due = [pod for uid, pod in pods.items() if uid not in self._without_victims][:MOST_AT_ONCE]
        self._without_victims.update(pod.uid for pod in due)
        for pod in due:
            note = (
                "No eviction of pods of lower priority opens a linked set of Neuron devices for this pod. "
                f"What is in its way: neuron-plugin explain {pod}; what would make room: neuron-plugin plan."
            )
            await write_event(self._api, about_pod(pod), NO_PREEMPTION, note, self._instance)


def about_pod(pod: PodReference) -> ObjectReference:
    """A pod as the object that an event is about."""
    return ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace)


async def write_event(
    api: ApiServer, regarding: ObjectReference, reason: str, note: str, instance: str, *, warning: bool = True
) -> None:
    """Write an event. One that cannot be written is no error: a log line and a metric have reported the same."""
    request = create_event(
        regarding,
        reason=reason,
        note=note,
        action="Scheduling",
        reporter=REPORTER,
        instance=instance,
        now=utc_now(),
        warning=warning,
    )
    try:
        await send(api, request, timeout_seconds=REQUEST_SECONDS)
    except ClusterError as error:
        _log.info("event not written", extra={"object": regarding.name, "reason": reason, "cause": str(error)})
