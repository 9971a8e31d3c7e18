"""A record of the kubelet's calls for later explanation: decisions, and one log line for each answer.

It is worked out once the kubelet has its answer. Two equal pods may have swapped their sets, so not even the pod of an
assigned set is certain before the kubelet's record names it; the log line waits for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from neuron_plugin.allocation import PodReference, Resource
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.decision_log import REMEMBERED, DecisionLog, LoggedDecision, Step
from neuron_plugin.kubelet import ContainerAllocation
from neuron_plugin.plugin.answers import AllocateCall, Answer, Preference, PreferenceRequest
from neuron_plugin.plugin.inputs import named
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.plugin.writes import PodEvent
from neuron_plugin.topology import NO_CORES

logger = logging.getLogger(__name__)


class CallLog:
    """The decisions of one node, latest last."""

    def __init__(self, node_name: str) -> None:
        self.decisions = DecisionLog()
        self._node_name = node_name
        self._preferred: LoggedDecision | None = None
        self._unrecorded: dict[str, tuple[list[LoggedDecision], dict[str, object]]] = {}
        """By reply id, the decisions on a call and its log line, until the kubelet's record names the pod."""

    def preferred(self, snapshot: Snapshot, request: PreferenceRequest, preference: Preference) -> None:
        """Take in a preference that was answered."""
        assignment, resource = preference.waiting, request.resource
        chosen, must = snapshot.mask_of(resource, preference.ids), snapshot.mask_of(resource, request.must_include)
        reason = (
            "the first waiting assignment of this size"
            if assignment
            else "no assignment fits: the best set that is free"
        )
        free = snapshot.offered_mask & ~snapshot.ledger.used_mask if assignment else snapshot.free_mask
        self._preferred = self._record(
            snapshot,
            Step.PREFERRED,
            resource,
            chosen,
            reason,
            request.available,
            pod=assignment.pod if assignment else None,
            container=assignment.container if assignment else "",
            usable=snapshot.mask_of(resource, request.available) & free | must,
            must_include=must,
        )

    def allocated(
        self, snapshot: Snapshot, call: AllocateCall, answer: Answer, given: ContainerAllocation, reply_id: str
    ) -> None:
        """Take in an answer to Allocate; ``snapshot`` is of before."""
        what = (call.resource, answer.mask, answer.reason, call.ids)
        decision = self._record(snapshot, Step.ALLOCATED, *what, pod=answer.pod, container=answer.container)
        preferred, self._preferred = self._preferred, None
        same_call = preferred and (preferred.resource, preferred.chosen) == (call.resource, decision.offered)
        fields: dict[str, object] = {
            "resource": call.resource.value,
            "ids": format_ids(call.ids),
            "reason": answer.reason,
            "devices": " ".join(f"{node.host_path}:{node.container_path}" for node in given.devices),
            "cdi": " ".join(given.cdi_devices),
            "env": dict(given.envs),
        }
        self._unrecorded[reply_id] = [preferred, decision] if preferred and same_call else [decision], fields
        if len(self._unrecorded) > REMEMBERED:
            del self._unrecorded[next(iter(self._unrecorded))]

    def refused(self, snapshot: Snapshot, resource: Resource, ids: Sequence[int], text: str) -> None:
        """Take in a refusal."""
        self._record(snapshot, Step.REFUSED, resource, snapshot.mask_of(resource, ids), text, ids)

    def corrected(self, snapshot: Snapshot, event: PodEvent) -> None:
        """Take in that a pod's assignment was corrected to the cores that the pod was given."""
        for allocation in snapshot.ledger.of(event.pod.uid):
            what = (allocation.resource, allocation.mask, event.text)
            self._record(
                snapshot, Step.CORRECTED, *what, pod=event.pod, container=allocation.container, usable=NO_CORES
            )

    def name_recorded(self, snapshot: Snapshot) -> None:
        """Log the answers that the kubelet has recorded by now, and put their pods into the decisions."""
        if not self._unrecorded:
            return
        inputs = snapshot.inputs
        pending = {answer.reply.id for answer in inputs.pending}
        recorded = {
            entry.reply.id: key
            for entries in (inputs.recorded.over, inputs.recorded.entries)
            for key, entry in entries.items()
            if entry.reply
        }
        for reply_id in [reply for reply in self._unrecorded if reply in recorded or reply not in pending]:
            decisions, fields = self._unrecorded[reply_id]
            key = recorded.get(reply_id)
            pod = inputs.reference(key.uid) if key else None
            for index, decision in enumerate(decisions):
                decisions[index] = decision._replace(pod=pod, container=key.container if key else "")
                self.decisions.replace(decision, decisions[index])
            if fields:
                who = named(pod) if pod else "the kubelet did not record it"
                logger.info("allocated", extra={**fields, "pod": who, "container": key.container if key else ""})
            self._unrecorded[reply_id] = decisions, {}
            if not pod or pod.name:
                del self._unrecorded[reply_id]

    def _record(
        self,
        snapshot: Snapshot,
        step: Step,
        resource: Resource,
        chosen: int,
        reason: str,
        offered: Sequence[int] = (),
        *,
        pod: PodReference | None = None,
        container: str = "",
        usable: int | None = None,
        must_include: int = NO_CORES,
    ) -> LoggedDecision:
        free = snapshot.offered_mask & ~snapshot.ledger.used_mask if usable is None else usable
        decision = LoggedDecision(
            time.time_ns(),
            step,
            self._node_name,
            snapshot.inventory.geometry,
            resource,
            chosen,
            reason,
            pod,
            container,
            partial(int, free),
            snapshot.mask_of(resource, offered),
            must_include,
        )
        self.decisions.record(decision)
        return decision
