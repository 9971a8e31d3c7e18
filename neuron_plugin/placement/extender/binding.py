"""Bind: take up what filter has assumed, or choose and assume now, then write node and assignment in one request.

Binds of different pods run side by side, and a slow API server delays none of them, nor any filter. Nothing is locked,
and assuming a pod is one synchronous call on the state. Repeated calls for a pod share its attempt. Success is answered
only for a binding that the API server has confirmed. No bind starts that could outlive this replica's term as leader.

The one question after a failed write is whether it may have happened all the same. A refusal with a 4xx says no; a 5xx,
a time-out or a broken connection says nothing. Then the pod stays assumed, and ``settle`` looks it up later.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.cluster import ClusterError
from neuron_plugin.cluster.writes import bind_pod
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.placement.writer import Attempt, Outcome, Writer

_log = logging.getLogger(__name__)


class Ending(enum.StrEnum):
    """How a bind call ended; the label of its metric."""

    BOUND = "bound"
    """Our write is confirmed."""
    REPEATED = "repeated"
    """The pod was bound there already by an earlier call."""
    ADOPTED = "adopted"
    """The write's answer was lost or refused, and the pod was found bound there with an assignment."""
    NO_SET = "no-set"
    """The node cannot take the pod any more."""
    NOT_THE_POD = "not-the-pod"
    """No pod of that name and UID, or it has ended."""
    BOUND_ELSEWHERE = "bound-elsewhere"
    """The pod is bound, or may be, by another binder or call."""
    REFUSED = "refused"
    """The API server did not write it."""
    UNKNOWN = "unknown"
    """The API server did not say whether it was written; the pod stays assumed until that is known."""
    NOT_ITS_TURN = "not-its-turn"
    """Other pods are on their way to the node's kubelet."""
    NOT_SERVING = "not-serving"
    """Not synced, not the leader, or shutting down."""
    FAILED = "failed"
    """A fault of ours; the log has it."""


TURN_SECONDS = 2.5
"""How long a bind waits for its turn on a node; the scheduler tries again soon after."""

SUCCESSES = frozenset({Ending.BOUND, Ending.REPEATED, Ending.ADOPTED})


@dataclass(frozen=True, slots=True)
class BindOutcome:
    """A bind call's end, the text for the scheduler (empty on success) and the annotations that were bound."""

    ending: Ending
    error: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


class Binder:
    """Every bind of this process."""

    def __init__(self, context: Context, writer: Writer, leads: Leads) -> None:
        self._context = context
        self._state = context.state
        self._writer = writer
        self._leads = leads
        self._attempts: dict[PodUid, tuple[str, asyncio.Task[BindOutcome]]] = {}

    @property
    def under_way(self) -> int:
        """Attempts that have not ended."""
        return len(self._attempts)

    async def bind(self, pod: PodReference, node: str) -> BindOutcome:
        """Bind a pod to a node, or say why not, by the deadline.

        An attempt is not given up with its caller: its write may land, so it runs on and its end is recorded.
        """
        if why_not := self._context.ready.why_not:
            return BindOutcome(Ending.NOT_SERVING, why_not)
        if pod.uid not in self._attempts:
            started = asyncio.create_task(self._attempt(pod, node), name=f"bind {pod}")
            self._attempts[pod.uid] = (node, started)
            started.add_done_callback(lambda _: self._attempts.pop(pod.uid, None))
        target, attempt = self._attempts[pod.uid]
        if target != node:
            return _bound_elsewhere(pod, target)
        seconds = self._context.times.answer
        done, _ = await asyncio.wait({attempt}, timeout=seconds)
        if not done:
            return BindOutcome(Ending.UNKNOWN, f"binding pod {pod} to {node} took over {seconds:g} s")
        return attempt.result()

    async def drain(self) -> None:
        """Wait until the attempts under way have ended; each does by its own requests' deadlines."""
        while self._attempts:
            await asyncio.wait([attempt for _, attempt in self._attempts.values()])

    async def settle(self) -> None:
        """Look up the assumed pods that the watch should have shown by now, and forget or confirm them."""
        self._leads.expire()
        await self._writer.settle(self._attempts)

    async def _attempt(self, reference: PodReference, node: str) -> BindOutcome:
        try:
            pod = self._state.pods.get(reference.uid)
            if pod is None or pod.reference != reference:
                try:
                    pod = await self._writer.read(reference)
                except ClusterError as error:
                    return BindOutcome(Ending.REFUSED, f"pod {reference} is not known here and cannot be read: {error}")
                if pod is None or pod.ended:
                    return _not_the_pod(reference)
            is_new = not self._state.bound_to(pod.uid)
            if is_new and not await self._has_turn(pod, node):
                self._state.forget(pod.uid)
                why_not = f"node {node}: other pods are bound there, and its plugin has not given them devices yet"
                return BindOutcome(Ending.NOT_ITS_TURN, why_not)
            return await self._bind(self._state.pods.get(pod.uid, pod), node)
        except Exception:  # noqa: BLE001 - whatever it is, one pod's bind must not end the daemon
            _log.exception("bind failed", extra={"pod": str(reference), "uid": reference.uid, "node": node})
            return BindOutcome(
                Ending.FAILED, f"binding pod {reference} failed inside the extender; its log has the cause"
            )

    async def _has_turn(self, pod: NeuronPod, node: str) -> bool:
        """Wait until no other pod is on its way to the node's kubelet; False if that takes too long."""
        until = self._context.clock.now() + TURN_SECONDS
        while not self._writer.take_turn(pod, node):
            if self._context.clock.now() >= until:
                return False
            await self._state.changes.wait(self._state.changes.version, within_seconds=TURN_SECONDS / 5)
        return True

    async def _bind(self, pod: NeuronPod, node: str) -> BindOutcome:
        """Bind a pod that is known, unless that has been done. From the choice to ``assume`` nothing else can run."""
        target = self._state.bound_to(pod.uid) or pod.node
        if target and target != node:
            return _bound_elsewhere(pod.reference, target)
        earlier = self._state.assumed.get(pod.uid)
        if earlier and earlier.confirmed:
            return BindOutcome(Ending.REPEATED, annotations=earlier.annotations)
        if pod.node:
            if pod.request and pod.assignment is None:
                return BindOutcome(
                    Ending.BOUND_ELSEWHERE, f"pod {pod.reference} was bound by others, without an assignment"
                )
            return BindOutcome(Ending.REPEATED)
        if why_not := self._context.why_not_write():
            return BindOutcome(Ending.NOT_SERVING, why_not)
        may_have_landed = earlier is not None and not earlier.expected
        self._leads.begin_bind(pod, node)
        if earlier and may_have_landed:
            assumed = replace(earlier, since=self._context.clock.now())
        elif isinstance(choice := self._leads.choose(pod, node), AssumedPod):
            assumed = choice
        else:
            self._state.forget(pod.uid)
            return BindOutcome(Ending.NO_SET, choice)
        if assumed.annotations:
            self._state.assume(assumed)
        attempt = await self._writer.send(bind_pod(pod.reference, node, assumed.annotations))
        if not attempt.done:
            return await self._look(assumed, attempt, may_have_landed=may_have_landed)
        self._state.confirm(pod.uid)
        self._writer.log_choice(assumed)
        return BindOutcome(Ending.BOUND, annotations=assumed.annotations)

    async def _look(self, assumed: AssumedPod, attempt: Attempt, *, may_have_landed: bool) -> BindOutcome:
        """What became of the pod after a write that failed; ``may_have_landed``: an earlier write may have worked."""
        pod, error = assumed.pod.reference, str(attempt.error)
        may_have_landed |= attempt.outcome is Outcome.UNKNOWN
        try:
            seen = await self._writer.read(pod)
        except ClusterError:
            if may_have_landed or attempt.status == HTTPStatus.CONFLICT:
                return BindOutcome(
                    Ending.UNKNOWN, f"{error}; the pod cannot be read, its cores stay reserved until it can"
                )
            self._state.forget(pod.uid)
            return BindOutcome(Ending.REFUSED, error)
        if seen is None or seen.ended:
            self._state.forget(pod.uid)
            return _not_the_pod(pod)
        ours = may_have_landed or seen.assignment is not None or not assumed.annotations
        if seen.node == assumed.pod.node and ours:
            self._writer.adopt(assumed, seen)
            return BindOutcome(Ending.ADOPTED, annotations=assumed.annotations)
        if not seen.node and may_have_landed:
            text = f"{error}; the pod is not bound yet, its cores stay reserved for a while"
            return BindOutcome(Ending.UNKNOWN, text)
        self._state.forget(pod.uid)
        if seen.node:
            return _bound_elsewhere(pod, seen.node)
        if attempt.status not in {0, HTTPStatus.TOO_MANY_REQUESTS}:
            self._leads.refused(pod.uid)
        return BindOutcome(Ending.REFUSED, error)


def _bound_elsewhere(pod: PodReference, node: str) -> BindOutcome:
    return BindOutcome(Ending.BOUND_ELSEWHERE, f"pod {pod} is bound to {node}, or a bind to it is not decided yet")


def _not_the_pod(pod: PodReference) -> BindOutcome:
    text = f"no live pod {pod} with UID {pod.uid}: it is gone, has ended, or another pod has its name now"
    return BindOutcome(Ending.NOT_THE_POD, text)
