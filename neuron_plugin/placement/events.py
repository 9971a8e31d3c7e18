"""Events on closed nodes: which pod keeps a node from taking new Neuron pods, and why.

Scheduling texts must not name pods, so a pod and reason is reported once: by a warning event on the pod, a log line and
a metric. If the kubelet got no devices for a pod, or the plugin is silent, the event is on the node. A pod of another
scheduler has no assignment for the second until its plugin has written one. Two pods that the kubelet swapped overlap
for as long. Causes that end within ``Times.closed`` are not reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.rejection import NO_ASSIGNMENT, OVERLAPPING_ASSIGNMENTS, UNREADABLE_ASSIGNMENT
from neuron_plugin.cluster import ObjectReference
from neuron_plugin.placement.context import Context

MOST_AT_ONCE = 20
"""Events per look: a widespread problem shows in the metric, not in a storm of events."""

EVENT_REASONS = {
    UNREADABLE_ASSIGNMENT.code: EventReason.ASSIGNMENT_UNREADABLE,
    NO_ASSIGNMENT.code: EventReason.ASSIGNMENT_MISSING,
    OVERLAPPING_ASSIGNMENTS.code: EventReason.ASSIGNMENT_OVERLAPS,
}
"""The reason of the event on the pod, by rejection code."""


_REPORTED = float("inf")
_log = logging.getLogger(__name__)


class NodeEvents:
    """Which pods close nodes, since when, and which of them have been reported. Only the leader reports."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.state
        self._since: dict[tuple[PodUid, str], float] = {}
        self._reported: set[tuple[PodUid, str]] = set()
        self._without_victims: set[PodUid] = set()
        self._silent: dict[str, float] = {}  # by node, since when; or that it is reported

    async def look(self) -> None:
        """Report each pod and reason that is due, once, and again if it comes back."""
        history = self._state.history
        rejections = list(history.rejections)
        history.rejections.clear()
        without_victims = {pod.uid: pod for pod in history.without_victims}
        history.without_victims.clear()
        if self._context.ready.why_not:
            return
        await self._report_rejections(rejections)
        now = self._context.clock.now()
        await self._report_silent_plugins(now)
        await self._report_without_victims(without_victims)
        unclear = {
            (pod.uid, reason.code): (pod, reason, info.name)
            for info in self._state.nodes.values()
            for pod, reason in info.unclear
        }
        self._since = {key: self._since.get(key, now) for key in unclear}
        self._reported &= unclear.keys()
        # An unreadable assignment does not go away by itself; other causes usually do, within moments.
        patience = dict.fromkeys(EVENT_REASONS, self._context.times.closed) | {UNREADABLE_ASSIGNMENT.code: 0.0}
        due = [key for key in unclear if key not in self._reported and now - self._since[key] >= patience[key[1]]]
        self._reported.update(due)
        for number, key in enumerate(due):
            pod, reason, node = unclear[key]
            self._context.metrics.add("extender_unclear_assignments_total", reason.code)
            fields = {"pod": str(pod), "uid": pod.uid, "node": node, "reason": reason.code, "detail": reason.detail}
            _log.warning("node closed for new Neuron pods", extra=fields)
            if number < MOST_AT_ONCE:
                note = f"{reason.detail}. Node {node} takes no new Neuron pod until this one ends or is assigned."
                await self._context.report(pod, EVENT_REASONS[reason.code], note)

    async def _report_rejections(self, rejections: list[NeuronPod]) -> None:
        """Report one event for each node, even if it lost several pods."""
        self._context.metrics.add("extender_rejected_admissions_total", count=len(rejections))
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
                await self._context.report(regarding, EventReason.ADMISSION_REJECTED, note)

    async def _report_silent_plugins(self, now: float) -> None:
        """Write one log line and one event for each, and one log line when it is back."""
        before = self._silent
        self._silent = {name: before.get(name, now) for name, info in self._state.nodes.items() if info.stale}
        for name in self._state.nodes.keys() & before.keys() - self._silent.keys():
            if before[name] == _REPORTED:
                _log.info("plugin renews its Lease again", extra={"node": name})
        due = [name for name, since in self._silent.items() if now - since >= self._context.times.silent]
        self._silent |= dict.fromkeys(due, _REPORTED)
        for number, name in enumerate(due):
            _log.warning("plugin does not renew its Lease", extra={"node": name})
            if number < MOST_AT_ONCE:
                regarding = ObjectReference("Node", name, name, "v1")
                note = "The Neuron plugin does not renew its Lease: no new Neuron pod comes here until it does."
                await self._context.report(regarding, EventReason.PLUGIN_SILENT, f"{note} Does its pod run?")

    async def _report_without_victims(self, pods: Mapping[PodUid, PodReference]) -> None:
        """Report such pods: kube-scheduler says only that no node is a candidate, and asks again and again."""
        self._without_victims &= self._state.pods.keys()
        due = [pod for uid, pod in pods.items() if uid not in self._without_victims][:MOST_AT_ONCE]
        self._without_victims.update(pod.uid for pod in due)
        for pod in due:
            note = (
                "No eviction of pods of lower priority opens a linked set of Neuron devices for this pod. "
                f"What is in its way: neuron-plugin explain {pod}; what would make room: neuron-plugin plan."
            )
            await self._context.report(pod, EventReason.NO_PREEMPTION, note)


async def say_waiting(context: Context, pod: PodReference, why: str) -> None:
    """Write why a pod waits into the log and into an event on it."""
    _log.info("pod waits", extra={"pod": str(pod), "uid": pod.uid, "reason": why})
    await context.report(pod, EventReason.WAITING, why)


def gist(text: str) -> str:
    """A reason without its numbers: a changed count of nodes is no news."""
    return "".join(letter for letter in text if not letter.isdigit())
