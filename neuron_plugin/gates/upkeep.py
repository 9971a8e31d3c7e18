"""What becomes of gated pods that find no place, and of placements that turn out wrong.

Once a second, by the leader. A pod that waits gets an event that says why, in the words of ``explain``, and another one
only when the reason changes. A pod of which no open node has enough even by count is handed to its scheduler after a
while, so that an autoscaler sees it; a pod that only lacks linked devices is not. A promise that cannot be kept is
taken off its pod: the plugin then chooses on the node. So is one whose node the pod's scheduler has not found good for
a while, and the pod is deleted if its controller makes it again; any other stays, bound to that node by its affinity.

A pod that asks by claims is never handed over without their allocation, because no scheduler could allocate them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInfo, PodUid, Rejection
from neuron_plugin.allocation.placement import place
from neuron_plugin.allocation.pod import PodKind
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError
from neuron_plugin.cluster.api import JsonObject, send
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.cluster.writes import evict_pod
from neuron_plugin.gates import writes
from neuron_plugin.gates.placer import Placer
from neuron_plugin.planning import prospects
from neuron_plugin.scheduling.events import about_pod, write_event
from neuron_plugin.scheduling.leadership import Readiness
from neuron_plugin.scheduling.moving import owner_of
from neuron_plugin.scheduling.state import ClusterState

WAITING = "NeuronWaiting"
"""The reason of the event on a gated pod that finds no place."""
PIN_FAILED = "NeuronPlacementFailed"
"""The reason of the event on a pod whose scheduler does not find its node good."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpkeepTimes:
    """Seconds. ``full`` is how long no open node may have enough by count before a pod is handed to its scheduler.

    ``patience`` is how long a pod may wait before its event says why, and ``again`` how often a reason is worked out.
    ``stuck`` is how long a pod may be unschedulable on its node, ``avoid`` how long pods of its owner keep off it.
    """

    tick: float = 1.0
    patience: float = 2.0
    again: float = 5.0
    full: float = 5.0
    stuck: float = 30.0
    avoid: float = 600.0
    autoscaler: float = 60.0
    request: float = 5.0


TIMES = UpkeepTimes()
MOST_KINDS = 20
"""Kinds of pods that are looked at again in one round."""
MOST_EVENTS = 20
"""Events written in one round."""
MOST_RELEASED = 50
"""In one look: a cluster that is all wrong shows in metrics, not in a storm of writes."""

_AUTOSCALERS = ("/apis/karpenter.sh", "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status")
_MADE_AGAIN = ("ReplicaSet/", "StatefulSet/")


class Upkeep:
    """The gated pods that wait, why, and since when; and the released ones that are not bound.

    ``release_when_full`` is after how many seconds a pod that fits nowhere by count is handed to its scheduler: None
    for never, and ``auto`` for ``UpkeepTimes.full`` where the cluster has an autoscaler.
    """

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        readiness: Readiness,
        placer: Placer,
        *,
        instance: str,
        release_when_full: float | str | None = "auto",
        times: UpkeepTimes = TIMES,
        clock: Clock = CLOCK,
    ) -> None:
        self.has_autoscaler: bool | None = None
        """Whether the cluster has an autoscaler; None before the first look, and where it does not matter."""
        self._api = api
        self._state = state
        self._readiness = readiness
        self._placer = placer
        self._instance = instance
        self._release_when_full = release_when_full
        self._times = times
        self._clock = clock
        self._since: dict[PodKind, float] = {}
        self._full_since: dict[PodKind, float] = {}
        self._reasons: dict[PodKind, tuple[float, str]] = {}
        self._told: dict[PodUid, str] = {}
        self._stuck_since: dict[PodUid, float] = {}
        self._withdrawn: set[PodUid] = set()
        self._looked_for_autoscaler = float("-inf")

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            if not self._readiness.why_not:
                await self.look()
            await self._clock.sleep(self._times.tick)

    async def look(self) -> None:
        """One look at the pods that wait and at those that were placed."""
        await self._find_autoscaler()
        await self._explain()
        self._release_full()
        await self._withdraw_void()
        await self._take_back_stuck()

    # Pods that wait.

    async def _explain(self) -> None:
        """Say on each waiting pod why it waits, when that is new."""
        now, queue = self._clock.now(), self._placer.queue
        self._since = {kind: self._since.get(kind, now) for kind in queue.hopeless}
        self._reasons = {kind: reason for kind, reason in self._reasons.items() if kind in self._since}
        self._told = {uid: told for uid, told in self._told.items() if uid in self._state.gated}
        due = [kind for kind, since in self._since.items() if now - since >= self._times.patience]
        stale = [
            kind for kind in due if now - self._reasons.get(kind, (-self._times.again, ""))[0] >= self._times.again
        ]
        for kind in stale[:MOST_KINDS]:
            if pods := queue.pods(kind):
                self._reasons[kind] = now, await self._reason(pods[0])
        written = 0
        for kind in due:
            _, shared = self._reasons.get(kind, (0.0, ""))
            for pod in self._without_room(kind) if shared else ():
                # Pods of a kind are refused for the same, each with a claim or annotation of its own.
                reason = str(self._state.refusal(pod) or shared)
                gist = reason.partition(" (")[0]  # how many nodes say so is no news
                if self._told.get(pod.uid) != gist and written < MOST_EVENTS:
                    self._told[pod.uid] = gist
                    written += 1
                    _log.info("pod waits", extra={"pod": str(pod.reference), "uid": pod.uid, "reason": reason})
                    await write_event(self._api, about_pod(pod.reference), WAITING, reason, self._instance)

    async def _reason(self, pod: NeuronPod) -> str:
        if refusal := self._state.refusal(pod):
            return str(refusal)
        if reason := self._placer.why_not_judged(pod):
            kept = "; only the placement controller allocates its claims" if pod.rules.claim_driver else ""
            return f"The pod keeps its gate: {reason}{kept}"
        volumes = {pod.uid: self._placer.volumes.of(pod) or ()}
        (expected,) = await asyncio.to_thread(prospects, self._state.cluster(volumes=volumes), [pod])
        if expected.move:
            return "Enough Neuron devices are free, but not together: see neuron-plugin plan"
        return expected.reason or "No open node has what kube-scheduler counts for the pod"

    def _release_full(self) -> None:
        """Hand pods to their scheduler where no open node has enough by count, so that an autoscaler acts."""
        after = self._times.full if self._release_when_full == "auto" else self._release_when_full
        if not isinstance(after, int | float) or (self._release_when_full == "auto" and not self.has_autoscaler):
            return
        now, queue, released = self._clock.now(), self._placer.queue, 0
        # Only we may allocate claims: a scheduler could do nothing with their pods, on no node whatever.
        hopeless = (kind for kind in queue.hopeless if not (kind.group or kind.rules.claim_driver))
        full = {kind for kind in hopeless if self._is_full(kind)}
        self._full_since = {kind: self._full_since.get(kind, now) for kind in full}
        for kind, since in self._full_since.items():
            if now - since >= after:
                for pod in self._without_room(kind)[: MOST_RELEASED - released]:
                    released += 1
                    self._placer.release_plainly(pod, "no open node has enough, and an autoscaler may make one")

    def _is_full(self, kind: PodKind) -> bool:
        """Whether no open node has enough for the pods of a kind, as kube-scheduler counts."""
        return not isinstance(kind.request, Rejection) and not self._with_enough(kind)

    def _without_room(self, kind: PodKind) -> list[NeuronPod]:
        """The waiting pods of a kind for which no room was made; where it was, others end or are moved for them."""
        return [pod for pod in self._placer.queue.pods(kind) if pod.uid not in self._state.reserved]

    def _with_enough(self, kind: PodKind) -> list[NodeInfo]:
        """The open nodes that have enough for a pod of a kind, as kube-scheduler counts."""
        pods = self._placer.queue.pods(kind)
        nodes = (self._state.nodes[name] for name in (self._placer.feasible(pods[0]) if pods else ()))
        return [info for info in nodes if not isinstance(info.capacity, Rejection)]

    def lack_links(self) -> dict[PodKind, NeuronPod] | None:
        """The oldest pod of each kind that lacks nothing but linked devices: a node that has enough could link them.

        Groups are left out, and pods that ask by claims: an autoscaler could not tell what they need. None while it is
        not known yet what fits.
        """
        if not self._placer.has_judged:
            return None
        lacking = {}
        for kind in self._placer.queue.hopeless:
            if kind.group or kind.rules.claim_driver or isinstance(kind.request, Rejection):
                continue
            nodes = self._with_enough(kind)
            machines = {(info.inventory.geometry, info.node.facts) for info in nodes if info.inventory}
            placements = (place(geometry, geometry.all_mask, kind.request, facts) for geometry, facts in machines)
            pods = self._without_room(kind)
            if pods and any(not isinstance(placement, Rejection) for placement in placements):
                lacking[kind] = pods[0]
        return lacking

    async def _find_autoscaler(self) -> None:
        """Look for Karpenter's API group, and for the status of cluster-autoscaler."""
        now = self._clock.now()
        if self._release_when_full != "auto" or now - self._looked_for_autoscaler < self._times.autoscaler:
            return
        self._looked_for_autoscaler, has_autoscaler = now, False
        for path in _AUTOSCALERS:
            try:
                await send(self._api, ApiRequest("GET", path), timeout_seconds=self._times.request)
                has_autoscaler = True
            except ClusterError as error:
                if not (isinstance(error, ApiError) and error.withheld):
                    return  # a server that cannot answer now says nothing
        if has_autoscaler is not self.has_autoscaler:
            self.has_autoscaler = has_autoscaler
            _log.info("autoscaler looked for", extra={"found": has_autoscaler})

    # Pods that were placed.

    async def _withdraw_void(self) -> None:
        """Take promises off that cannot be kept. The pod stays on its node, and the plugin chooses there."""
        void = {pod.uid for info in list(self._state.nodes.values()) for pod in info.void}
        gone = {pod.uid for pod in self._state.pods.values() if pod.promised and pod.promised not in self._state.nodes}
        self._withdrawn &= void | gone
        for uid in (void | gone) - self._withdrawn:
            if pod := self._state.pods.get(uid):
                self._withdrawn.add(uid)
                reason = "its node is gone" if uid in gone else "it cannot have its devices any more"
                if pod.rules.claim_driver and not pod.gated:
                    note = f"The pod cannot run on node {pod.promised}, where its claims are allocated: {reason}."
                    await self._take_back(pod, reason, note)
                else:
                    await self._withdraw(pod, reason)

    async def _withdraw(self, pod: NeuronPod, reason: str) -> str:
        """Take a placement off a pod that is not bound; gives its version after that, empty if it was not done."""
        path = PODS.item(pod.reference.name, pod.reference.namespace)
        try:
            current = PODS.decode(await send(self._api, ApiRequest("GET", path), timeout_seconds=self._times.request))
            if current.uid != pod.uid or current.node_name:
                return ""
            if self._placer.claims and pod.rules.claim_driver:
                # First: a pod that was withdrawn is not looked at again. Reserved for a bound pod, it is a conflict.
                await self._placer.claims.free(pod, timeout_seconds=self._times.request)
            request = writes.withdraw(neuron_pod(current))
            written = PODS.decode(await send(self._api, request, timeout_seconds=self._times.request))
        except ClusterError as error:
            _log.info("placement not withdrawn", extra={"pod": str(pod.reference), "uid": pod.uid, "error": str(error)})
            self._withdrawn.discard(pod.uid)
            return ""
        fields = {"pod": str(pod.reference), "uid": pod.uid, "node": pod.promised, "reason": reason}
        _log.warning("placement withdrawn", extra=fields)
        return written.resource_version

    async def _take_back_stuck(self) -> None:
        """Take back the pods whose scheduler has not found their node good for a while."""
        now = self._clock.now()
        stuck = {pod.uid: pod for pod in self._state.pods.values() if pod.unschedulable and not pod.gated}
        self._stuck_since = {uid: self._stuck_since.get(uid, now) for uid in stuck}
        for uid, since in list(self._stuck_since.items()):
            if now - since < self._times.stuck:
                continue
            pod = stuck[uid]
            note = f"The scheduler did not find node {pod.promised} good for the pod: see its condition PodScheduled."
            if await self._take_back(pod, "its scheduler does not find the node good", note):
                self._placer.avoid(owner_of(pod), pod.promised, now + self._times.avoid)
                self._stuck_since[uid] = now + self._times.avoid  # one that keeps its claims is told again then

    async def _take_back(self, pod: NeuronPod, reason: str, note: str) -> bool:
        """Take a pod that was released and is not bound back; whether it was done.

        It is deleted if its controller makes it again. Any other is bound to its node by its affinity. Of counts the
        plugin there may give it others. Claims it keeps: no scheduler would allocate them again, so without them it
        could not run even when what is in its way has gone.
        """
        is_made_again = await self._is_made_again(pod)
        if is_made_again or not pod.rules.claim_driver:
            version = await self._withdraw(pod, reason)
            if not version:
                return False
            if is_made_again:
                await self._delete(pod, version)
        else:
            note += " It keeps its claims. Delete it to have them allocated elsewhere."
        await write_event(self._api, about_pod(pod.reference), PIN_FAILED, note, self._instance)
        return True

    async def _is_made_again(self, pod: NeuronPod) -> bool:
        """Whether the pod's controller makes it again, and does not count its end as a failure."""
        if pod.controller.startswith(_MADE_AGAIN):
            return True
        kind, _, name = pod.controller.partition("/")
        if kind != "Job":
            return False
        path = f"/apis/batch/v1/namespaces/{pod.reference.namespace}/jobs/{name}"
        try:
            job = msgspec.json.decode(
                await send(self._api, ApiRequest("GET", path), timeout_seconds=self._times.request), type=_Job
            )
        except (ClusterError, msgspec.MsgspecError):
            return False
        return job.ignores_disruption

    async def _delete(self, pod: NeuronPod, version: str) -> None:
        """Delete a pod as it was read; of a Job by an eviction, which its failure policy knows."""
        reference = pod.reference
        request = evict_pod(namespace=reference.namespace, name=reference.name, uid=pod.uid)
        if pod.controller.startswith(_MADE_AGAIN):
            options: JsonObject = {"preconditions": {"uid": pod.uid, "resourceVersion": version}}
            request = ApiRequest("DELETE", PODS.item(reference.name, reference.namespace), body=options)
        try:
            await send(self._api, request, timeout_seconds=self._times.request)
        except ClusterError as error:
            _log.info("pod not taken back", extra={"pod": str(reference), "uid": pod.uid, "error": str(error)})


class _OnCondition(msgspec.Struct):
    type: str = ""


class _FailureRule(msgspec.Struct, rename="camel"):
    action: str = ""
    on_pod_conditions: tuple[_OnCondition, ...] | None = None


class _FailurePolicy(msgspec.Struct):
    rules: tuple[_FailureRule, ...] | None = None


class _JobSpec(msgspec.Struct, rename="camel"):
    pod_failure_policy: _FailurePolicy | None = None


class _Job(msgspec.Struct):
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)

    @property
    def ignores_disruption(self) -> bool:
        """Whether a pod that is disrupted does not count as failed."""
        rules: Iterable[_FailureRule] = (self.spec.pod_failure_policy and self.spec.pod_failure_policy.rules) or ()
        return any(
            rule.action == "Ignore"
            and any(condition.type == "DisruptionTarget" for condition in rule.on_pod_conditions or ())
            for rule in rules
        )
