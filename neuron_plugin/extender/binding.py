"""Bind: choose and reserve in memory in one step, then one write that carries node and assignment together.

Binds of different pods run side by side and a slow API server delays none of them, nor any filter: nothing is locked,
a reservation is one synchronous call on the state. Repeated calls for a pod share its attempt. Success is said only
of a binding that the API server has confirmed; what it left open stays reserved and is looked after by ``settle``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from neuron_plugin.allocation import DecisionLog, Dialect, Holder, PodReference, PodUid
from neuron_plugin.cluster import ApiError, ClusterError
from neuron_plugin.extender.annotation_check import AnnotationCheck
from neuron_plugin.extender.assignments import Assignments
from neuron_plugin.extender.attempts import Ending, Outcome, PodWrites, SeenPod, may_have_happened
from neuron_plugin.extender.claims import PodRecord, claim_of
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.state import ClusterState, Reservation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BindTimes:
    """Seconds. ``answer`` ends a call, below the scheduler's 5; ``write`` and ``read`` end single requests.

    ``landing`` is how long after its start an unanswered write may still take effect; ``doubt`` is how long a
    confirmed binding may go unseen by the watch before it is looked up.
    """

    answer: float = 4.0
    write: float = 2.5
    read: float = 1.2
    landing: float = 5.0
    doubt: float = 30.0


TIMES = BindTimes()


class Binder:
    """Every bind of this process. ``fence`` says why no bind may start now, or the empty text."""

    def __init__(
        self,
        state: ClusterState,
        writes: PodWrites,
        *,
        fence: Callable[[], str],
        dialects: Collection[Dialect],
        times: BindTimes = TIMES,
        clock: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._state = state
        self._writes = writes
        self._fence = fence
        self._times = times
        self._clock = clock
        self._attempts: dict[PodUid, tuple[str, asyncio.Task[Outcome]]] = {}
        self._assignments = Assignments(state, dialects, clock, unix_ns)
        self._annotation_check = AnnotationCheck(writes, timeout_seconds=times.read)

    @property
    def journal(self) -> DecisionLog:
        """What was bound lately."""
        return self._assignments.journal

    @property
    def under_way(self) -> int:
        """Attempts that have not ended."""
        return len(self._attempts)

    def unseen(self) -> int:
        """Confirmed bindings that the watch should have shown by now and has not; asked from a scrape's thread, too."""
        held = list(self._state.reservations.values())
        return sum(each.confirmed and self._in_doubt(each) for each in held)

    async def bind(self, pod: PodReference, node: str) -> Outcome:
        """Bind a pod to a node, or say why not, by the deadline.

        An attempt is not given up with its caller: its write may land, so it runs on and its end is recorded.
        """
        target, attempt = self._attempts.get(pod.uid) or self._start(pod, node)
        if target != node:
            return _undecided(pod, target)
        done, _ = await asyncio.wait({attempt}, timeout=self._times.answer)
        if not done:
            return Outcome(Ending.UNKNOWN, f"binding pod {pod} to {node} took over {self._times.answer:g} s")
        return attempt.result()

    async def drain(self) -> None:
        """Wait until the attempts under way have ended; each does by its own requests' deadlines."""
        while self._attempts:
            await asyncio.wait([attempt for _, attempt in self._attempts.values()])

    async def settle(self) -> None:
        """Look up the pods whose reservations are in doubt, and release or confirm them."""
        for held in list(self._state.reservations.values()):
            if self._in_doubt(held):
                await self._settle_one(held)

    def _start(self, pod: PodReference, node: str) -> tuple[str, asyncio.Task[Outcome]]:
        attempt = asyncio.create_task(self._attempt_safely(pod, node), name=f"bind {pod}")
        self._attempts[pod.uid] = (node, attempt)
        attempt.add_done_callback(lambda _: self._attempts.pop(pod.uid, None))
        return node, attempt

    async def _attempt_safely(self, pod: PodReference, node: str) -> Outcome:
        try:
            return await self._attempt(pod, node)
        except Exception:  # noqa: BLE001 - whatever it is, one pod's bind must not end the daemon
            _log.exception("bind failed", extra={"pod": str(pod), "uid": pod.uid, "node": node})
            return Outcome(Ending.FAILED, f"binding pod {pod} failed inside the extender; its log has the cause")

    async def _attempt(self, pod: PodReference, node: str) -> Outcome:
        record = self._state.pods.get(pod.uid)
        if record is None or record.pod != pod:
            try:
                seen = await self._writes.read(pod, timeout_seconds=self._times.read)
            except ClusterError as error:
                return Outcome(Ending.REFUSED, f"pod {pod} is not known here and cannot be read: {error}")
            if seen is None or seen.terminal:
                return _not_the_pod(pod)
            record = seen.record
        return await self._bind_known(record, node)

    async def _bind_known(self, record: PodRecord, node: str) -> Outcome:
        target = self._state.bound_to(record.uid) or record.node
        if target and target != node:
            return _undecided(record.pod, target)
        held = self._state.reservations.get(record.uid)
        if held and held.confirmed:
            return Outcome(Ending.REPEATED, annotations=held.annotations)
        if record.node:
            return _repeated(record)
        if reason := self._fence():
            return Outcome(Ending.NOT_SERVING, reason)
        chosen = replace(held, since=self._clock()) if held else self._assignments.choose(record, node)
        if isinstance(chosen, Outcome):
            return chosen
        if chosen.annotations:
            self._state.reserve(chosen)
        return await self._write(chosen, in_doubt=held is not None)

    async def _write(self, chosen: Reservation, *, in_doubt: bool) -> Outcome:
        """One POST; ``in_doubt`` says that an earlier one may have landed."""
        try:
            if self._annotation_check.merged is False and chosen.annotations:
                await self._writes.annotate(chosen.pod, chosen.annotations, timeout_seconds=self._times.read)
                if reason := self._fence():
                    return self._stopped(chosen, reason, in_doubt=in_doubt)
            await self._writes.bind(chosen.pod, chosen.node, chosen.annotations, timeout_seconds=self._times.write)
        except ClusterError as error:
            return await self._look(chosen, error, in_doubt=in_doubt or may_have_happened(error))
        self._state.confirm(chosen.pod.uid)
        self._assignments.remember(chosen)
        await self._annotation_check.after(chosen)
        return Outcome(Ending.BOUND, annotations=chosen.annotations)

    def _stopped(self, chosen: Reservation, reason: str, *, in_doubt: bool) -> Outcome:
        """Leadership ended between patch and binding; only an earlier attempt's write may still be under way."""
        if not in_doubt:
            self._state.release(chosen.pod.uid)
        return Outcome(Ending.NOT_SERVING, reason)

    async def _look(self, chosen: Reservation, error: ClusterError, *, in_doubt: bool) -> Outcome:
        """What became of the pod after a write that failed."""
        try:
            seen = await self._writes.read(chosen.pod, timeout_seconds=self._times.read)
        except ClusterError:
            if in_doubt or (isinstance(error, ApiError) and error.conflict):
                text = f"{error}; the pod cannot be read, its silicon stays reserved until it can"
                return Outcome(Ending.UNKNOWN, text)
            self._state.release(chosen.pod.uid)
            return Outcome(Ending.REFUSED, str(error))
        outcome = self._after_a_look(chosen, seen, error, in_doubt=in_doubt)
        if outcome.ending is Ending.ADOPTED:
            await self._annotation_check.after(chosen)
        return outcome

    def _after_a_look(
        self, chosen: Reservation, seen: SeenPod | None, error: ClusterError, *, in_doubt: bool
    ) -> Outcome:
        pod = chosen.pod
        if seen is None or seen.terminal:
            self._state.release(pod.uid)
            return _not_the_pod(pod)
        ours = in_doubt or seen.record.decision is not None or not chosen.annotations
        if seen.record.node == chosen.node and ours:
            return self._adopt(chosen, seen.record)
        if seen.record.node:
            self._state.release(pod.uid)
            return _undecided(pod, seen.record.node)
        if in_doubt:
            return Outcome(Ending.UNKNOWN, f"{error}; the pod is not bound yet, its silicon stays reserved for a while")
        self._state.release(pod.uid)
        return Outcome(Ending.REFUSED, str(error))

    def _adopt(self, chosen: Reservation, record: PodRecord) -> Outcome:
        """The pod is bound where we wanted it: hold what it says it was given."""
        node = self._state.nodes.get(chosen.node)
        held = replace(chosen, confirmed=True)
        if node and isinstance(node.hardware, Hardware):
            claim = claim_of(record, node.hardware.geometry)
            held = replace(held, holder=claim) if isinstance(claim, Holder) else held
        if chosen.pod.uid in self._state.reservations:
            self._state.reserve(held)
        return Outcome(Ending.ADOPTED, annotations=chosen.annotations)

    def _in_doubt(self, held: Reservation) -> bool:
        record = self._state.pods.get(held.pod.uid)
        if record is not None and record.node == held.node:
            return False
        return self._clock() - held.since > (self._times.doubt if held.confirmed else self._times.landing)

    async def _settle_one(self, held: Reservation) -> None:
        try:
            seen = await self._writes.read(held.pod, timeout_seconds=self._times.read)
        except ClusterError:
            return  # still unknown: it stays reserved
        if self._state.reservations.get(held.pod.uid) is not held or held.pod.uid in self._attempts:
            return  # the watch or a new attempt was faster
        if seen is None or seen.terminal or seen.record.node != held.node:
            self._state.release(held.pod.uid)
            _log.info("reservation released", extra={"pod": str(held.pod), "uid": held.pod.uid, "node": held.node})
        else:
            self._adopt(replace(held, since=self._clock()), seen.record)


def _repeated(record: PodRecord) -> Outcome:
    if record.request and record.decision is None:
        return Outcome(Ending.BOUND_ELSEWHERE, f"pod {record.pod} was bound by others, without an assignment")
    return Outcome(Ending.REPEATED)


def _undecided(pod: PodReference, node: str) -> Outcome:
    return Outcome(Ending.BOUND_ELSEWHERE, f"pod {pod} is bound to {node}, or a bind to it is not decided yet")


def _not_the_pod(pod: PodReference) -> Outcome:
    return Outcome(Ending.NOT_THE_POD, f"no live pod {pod} with UID {pod.uid}: it is gone, has ended or was made anew")
