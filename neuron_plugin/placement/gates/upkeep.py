"""What becomes of gated pods that find no place, and of placements that turn out wrong.

Once a second, by the leader. A pod that waits gets an event that says why, as it was judged, and another one only when
the reason changes. A pod of which no open node has enough even by count is handed to its scheduler after a while, so
that an autoscaler sees it. A pod that only lacks linked devices is not. A promise that cannot be kept is taken off its
pod: the plugin then chooses on the node. So is one whose node the pod's scheduler has not found good for a while. The
pod is deleted if its controller makes it again; any other stays, bound to that node by its affinity.

A pod that asks by claims is never handed over without their allocation, because no scheduler could allocate them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from neuron_plugin.allocation import NeuronPod, PodUid, Rejection
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError
from neuron_plugin.cluster.api import JsonObject, send
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import evict_pod
from neuron_plugin.placement.context import PAUSE_FACTOR, Context
from neuron_plugin.placement.events import gist, say_waiting
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import Judgement, Scene, judge_all
from neuron_plugin.planning.population import PodKind

MOST_KINDS = 20
"""Kinds of pods that are judged again in one round."""
MOST_EVENTS = 20
"""Events written in one round."""
MOST_RELEASED = 50
"""In one look: a cluster that is all wrong shows in metrics, not in a storm of writes."""

_AUTOSCALERS = ("/apis/karpenter.sh", "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status")
_MADE_AGAIN = ("ReplicaSet/", "StatefulSet/")
_log = logging.getLogger(__name__)


class Upkeep:
    """The gated pods that wait, why, and since when; and the released ones that are not bound.

    ``release_when_full`` is after how many seconds a pod that fits nowhere by count is handed to its scheduler. None is
    never, and ``auto`` is ``Times.full`` where the cluster has an autoscaler.
    """

    def __init__(
        self, context: Context, writer: Writer, placer: Placer, *, release_when_full: float | str | None = "auto"
    ) -> None:
        self.has_autoscaler: bool | None = None
        """Whether the cluster has an autoscaler; None before the first look, and where it does not matter."""
        self._context = context
        self._state = context.state
        self._writer = writer
        self._placer = placer
        self._release_when_full = release_when_full
        self._since: dict[PodKind, float] = {}
        self._full_since: dict[PodKind, float] = {}
        self._judged: dict[PodKind, tuple[float, Judgement]] = {}
        self._rests_until = 0.0
        """Before that nothing is judged again."""
        self._said: dict[PodUid, str] = {}
        self._stuck_since: dict[PodUid, float] = {}
        self._withdrawn: set[PodUid] = set()
        self._looked_for_autoscaler = float("-inf")

    async def look(self) -> None:
        """One look at the pods that wait and at those that were placed."""
        if self._context.ready.why_not:
            return
        await self._find_autoscaler()
        await self._explain()
        self._release_full()
        await self._withdraw_void()
        await self._take_back_stuck()

    # Pods that wait.

    async def _explain(self) -> None:
        """Say on each waiting pod why it waits, when that is new."""
        now, times, queue = self._context.clock.now(), self._context.times, self._placer.queue
        self._since = {kind: self._since.get(kind, now) for kind in queue.hopeless}
        self._judged = {kind: judged for kind, judged in self._judged.items() if kind in self._since}
        self._said = {uid: said for uid, said in self._said.items() if uid in self._state.gated}
        due = [kind for kind, since in self._since.items() if now - since >= times.patience]
        new = [kind for kind in due if kind not in self._judged]
        old = [kind for kind in due if kind in self._judged and now - self._judged[kind][0] >= times.again]
        stale = [*new, *(old if now >= self._rests_until else ())]
        firsts = {kind: pods[0] for kind in stale[:MOST_KINDS] if (pods := queue.pods(kind))}
        if firsts:
            found = await asyncio.to_thread(self._judge, Scene(self._state.snapshot()), list(firsts.values()))
            self._judged |= {kind: (now, judgement) for kind, judgement in zip(firsts, found, strict=True)}
            after = self._context.clock.now()
            self._rests_until = after + PAUSE_FACTOR * (after - now)
        written = 0
        for kind in due:
            if kind not in self._judged:
                continue
            judged = self._judged[kind][1]
            texts = {True: judged.text, False: judged.for_others().text}
            known = {is_own: gist(text) for is_own, text in texts.items()}
            for pod in self._without_room(kind) if judged.text else ():
                if written >= MOST_EVENTS:
                    break
                is_own = pod.controller == judged.pod.controller
                if pod.refusal is None and self._said.get(pod.uid) == known[is_own]:
                    continue
                # Pods of a kind are refused for the same, each with a claim or annotation of its own.
                text = str(self._state.refusal(pod) or texts[is_own])
                if self._said.get(pod.uid) != (now_said := gist(text)):
                    self._said[pod.uid] = now_said
                    written += 1
                    await say_waiting(self._context, pod.reference, text)

    def _judge(self, scene: Scene, pods: Iterable[NeuronPod]) -> list[Judgement]:
        """Each kind by itself: what one would get keeps another from nothing, as none of them fits."""
        now = self._context.unix_seconds()
        return [judge_all(scene.fork(), [pod], now=now)[0] for pod in pods]

    def _release_full(self) -> None:
        """Hand pods to their scheduler where no open node has enough by count, so that an autoscaler acts."""
        after = self._context.times.full if self._release_when_full == "auto" else self._release_when_full
        if not isinstance(after, int | float) or (self._release_when_full == "auto" and not self.has_autoscaler):
            return
        now, queue, released = self._context.clock.now(), self._placer.queue, 0
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
        """Whether no open node has enough for the pods of a kind, as kube-scheduler counts.

        A kind is not full while the scheduler would take a node that has not passed its pre-flight check. Neither is it
        while a pod that it wants to be near has a place and is not bound yet.
        """
        pods, scene = self._placer.queue.pods(kind), self._state.scene()
        if isinstance(kind.request, Rejection) or not pods or scene.volumes(pods[0]).waits:
            return False
        near = tuple(term.selector for term in pods[0].rules.affinity)
        if near and any(counts.placed > counts.bound for counts in scene.population.tally(near).values()):
            return False
        nodes = self._state.nodes
        infos = map(nodes.__getitem__, scene.allowed(pods[0]).of(nodes.keys()))
        return all(isinstance(info.capacity, Rejection) and not info.unchecked for info in infos)

    def _without_room(self, kind: PodKind) -> list[NeuronPod]:
        """The waiting pods of a kind for which no room was made; where it was, others end or are moved for them.

        What is kept for a group that is checked before it starts is no such room.
        """
        state = self._state
        return [
            pod for pod in self._placer.queue.pods(kind) if pod.uid not in state.reserved or pod.group in state.checks
        ]

    async def _find_autoscaler(self) -> None:
        """Look for Karpenter's API group, and for the status of cluster-autoscaler."""
        now, times = self._context.clock.now(), self._context.times
        if self._release_when_full != "auto" or now - self._looked_for_autoscaler < times.autoscaler:
            return
        self._looked_for_autoscaler, has_autoscaler = now, False
        for path in _AUTOSCALERS:
            try:
                await send(self._context.api, ApiRequest("GET", path), timeout_seconds=times.request)
                has_autoscaler = True
            except ClusterError as error:
                if not (isinstance(error, ApiError) and error.withheld):
                    return  # a server that cannot answer now says nothing
        if has_autoscaler is not self.has_autoscaler:
            self.has_autoscaler = has_autoscaler
            _log.info("autoscaler looked for", extra={"found": has_autoscaler})

    # Pods that were placed.

    async def _withdraw_void(self) -> None:
        """Take promises off that cannot be kept.

        A pod that is made again is deleted. Any other stays bound to its node, and the plugin chooses there.
        """
        void = {pod.uid for info in list(self._state.nodes.values()) for pod in info.void}
        gone = {pod.uid for pod in self._state.pods.values() if pod.promised and pod.promised not in self._state.nodes}
        self._withdrawn &= void | gone
        for uid in (void | gone) - self._withdrawn:
            if pod := self._state.pods.get(uid):
                self._withdrawn.add(uid)
                reason = "its node is gone" if uid in gone else "it cannot have its devices any more"
                note = f"The pod cannot run on node {pod.promised} as it was placed: {reason}."
                await (self._withdraw(pod, reason) if pod.gated else self._take_back(pod, reason, note))

    async def _withdraw(
        self, pod: NeuronPod, reason: str, write: Callable[[NeuronPod], ApiRequest] = writes.withdraw
    ) -> bool:
        """Take a placement off a pod that is not bound; whether it was done."""
        attempt = await self._writer.withdraw(pod, write, read_first=True)
        fields = {"pod": str(pod.reference), "uid": pod.uid, "node": pod.promised}
        if not attempt.done:
            if attempt.error:
                _log.info("placement not withdrawn", extra={**fields, "error": str(attempt.error)})
                self._withdrawn.discard(pod.uid)
            return False
        _log.warning("placement withdrawn", extra={**fields, "reason": reason})
        return True

    async def _take_back_stuck(self) -> None:
        """Take back the pods whose scheduler has not found their node good for a while.

        Claims that were freed for a pod which was not deleted then are no promise any more.
        """
        now, times = self._context.clock.now(), self._context.times
        refused = (pod for pod in self._state.pods.values() if pod.unschedulable and not pod.gated)
        stuck = {pod.uid: pod for pod in refused if pod.promised or pod.rules.claim_driver}
        self._stuck_since = {uid: self._stuck_since.get(uid, now) for uid in stuck}
        for uid, since in list(self._stuck_since.items()):
            if now - since < times.stuck:
                continue
            pod = stuck[uid]
            where = f"node {pod.promised}" if pod.promised else "its node"
            note = f"The scheduler did not find {where} good for the pod: see its condition PodScheduled."
            if await self._take_back(pod, "its scheduler does not find the node good", note):
                self._state.avoid(pod.owner, pod.promised, now + times.avoid)
                self._stuck_since[uid] = now + times.avoid  # one that keeps its claims is told again then

    async def _take_back(self, pod: NeuronPod, reason: str, note: str) -> bool:
        """Take a pod that was released and is not bound back; whether it was done.

        It is deleted if its controller makes it again. Any other is bound to its node by its affinity. Of counts the
        plugin there may give it others. Claims it keeps: no scheduler would allocate them again, so without them it
        could not run even when what is in its way has gone.
        """
        if await self._is_made_again(pod):
            if not await self._withdraw(pod, reason, _deletion):
                return False
        elif not pod.rules.claim_driver:
            if not await self._withdraw(pod, reason):
                return False
        else:
            note += " It keeps its claims. Delete it to have them allocated elsewhere."
        await self._context.report(pod.reference, EventReason.PLACEMENT_FAILED, note)
        return True

    async def _is_made_again(self, pod: NeuronPod) -> bool:
        """Whether the pod's controller makes it again, and does not count its end as a failure."""
        if pod.controller.startswith(_MADE_AGAIN):
            return True
        kind, _, name = pod.controller.partition("/")
        if kind != "Job":
            return False
        request = ApiRequest("GET", f"/apis/batch/v1/namespaces/{pod.reference.namespace}/jobs/{name}")
        try:
            answer = await send(self._context.api, request, timeout_seconds=self._context.times.request)
            return msgspec.json.decode(answer, type=_Job).ignores_disruption
        except (ClusterError, msgspec.MsgspecError):
            return False


def _deletion(pod: NeuronPod) -> ApiRequest:
    """Delete a pod as it was read; of a Job by an eviction, which its failure policy knows."""
    reference = pod.reference
    if not pod.controller.startswith(_MADE_AGAIN):
        return evict_pod(namespace=reference.namespace, name=reference.name, uid=pod.uid, version=pod.version)
    options: JsonObject = {"preconditions": {"uid": pod.uid, "resourceVersion": pod.version}}
    return ApiRequest("DELETE", PODS.item(reference.name, reference.namespace), body=options)


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
