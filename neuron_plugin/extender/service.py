"""The scheduler's verbs as functions from body to body.

Each answers with JSON whatever comes in: kube-scheduler reads no body but that of a 200, so every failure is told in
``Error``. Filter, prioritize and preempt run to their end without giving up the event loop once; only bind waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from neuron_plugin.allocation import PodReference, PodRequest, PodUid
from neuron_plugin.cluster import PODS, DecodeError
from neuron_plugin.extender import flowlog, wire
from neuron_plugin.extender.attempts import SUCCESSES, Ending, Outcome
from neuron_plugin.extender.binding import Binder
from neuron_plugin.extender.claims import PodRecord, Unreadable
from neuron_plugin.extender.memo import VerdictMemo
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.observation import pod_record
from neuron_plugin.extender.preemption import preempt
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.spelling import WireError
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verbs import filter_nodes, score_nodes

_log = logging.getLogger(__name__)


class _UndecidedError(Exception):
    """A verb that cannot be decided; the text goes to the scheduler."""


class ExtenderService:
    """The four verbs on one state."""

    def __init__(
        self,
        state: ClusterState,
        binder: Binder,
        readiness: Readiness,
        metrics: ExtenderMetrics,
        *,
        preempt_unoffered: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``preempt_unoffered``: see ``preemption``."""
        self._state = state
        self._binder = binder
        self._readiness = readiness
        self._metrics = metrics
        self._preempt_unoffered = preempt_unoffered
        self._clock = clock
        self._memo = VerdictMemo(state)

    def filter(self, body: bytes) -> bytes:
        """``ExtenderArgs`` to ``ExtenderFilterResult``."""
        return self._answered("filter", self._filter, body)

    def prioritize(self, body: bytes) -> bytes:
        """``ExtenderArgs`` to ``HostPriorityList``."""
        return self._answered("prioritize", self._prioritize, body)

    def preempt(self, body: bytes) -> bytes:
        """``ExtenderPreemptionArgs`` to ``ExtenderPreemptionResult``."""
        return self._answered("preempt", self._preempt, body)

    async def bind(self, body: bytes) -> bytes:
        """``ExtenderBindingArgs`` to ``ExtenderBindingResult``."""
        started = self._clock()
        try:
            args = wire.decode_bind(body)
        except WireError as error:
            return self._failed("bind", str(error), started)
        pod = PodReference(PodUid(args.uid), args.namespace, args.name)
        why_not = self._readiness.why_not
        outcome = Outcome(Ending.NOT_SERVING, why_not) if why_not else await self._binder.bind(pod, args.node)
        seconds = self._clock() - started
        self._metrics.answered("bind", seconds, ok=outcome.ending in SUCCESSES)
        self._metrics.bound(outcome.ending.value)
        flowlog.log_bind(pod, args.node, outcome, self._state.nodes.get(args.node), _us(seconds))
        return wire.encode_error(outcome.error)

    def refuse(self, verb: str, error: str) -> bytes:
        """The answer to a request whose body could not even be taken in."""
        return self._failed(verb, error, self._clock())

    def _filter(self, body: bytes, started: float) -> bytes:
        args = wire.decode_filter(body)
        pod, request = self._read(args.pod)
        filtered = filter_nodes(self._state, self._memo, pod.uid, request, args.names)
        answer = wire.encode_filter(args, filtered.passed, filtered.failed, filtered.unresolvable)
        self._metrics.refused(filtered.codes)
        flowlog.log_filter(pod.pod, request, filtered, _us(self._clock() - started))
        return answer

    def _prioritize(self, body: bytes, started: float) -> bytes:
        args = wire.decode_filter(body)
        pod, request = self._read(args.pod)
        scores = score_nodes(self._memo, request, args.names)
        answer = wire.encode_scores(args.names, scores)
        flowlog.log_prioritize(pod.pod, request, scores, _us(self._clock() - started))
        return answer

    def _preempt(self, body: bytes, started: float) -> bytes:
        args = wire.decode_preempt(body)
        pod, request = self._read(args.pod)
        below = pod.priority if self._preempt_unoffered else None
        chosen = preempt(self._state, request, args.victims, unoffered_below=below)
        counts = {node: len(victims.uids) for node, victims in chosen.items()}
        flowlog.log_preempt(pod.pod, request, len(args.victims), counts, _us(self._clock() - started))
        return wire.encode_victims(chosen)

    def _read(self, body: bytes) -> tuple[PodRecord, PodRequest]:
        """The pod of a call, and what it asks for."""
        if why_not := self._readiness.why_not:
            raise _UndecidedError(why_not)
        pod = pod_record(PODS.decode(body))
        if isinstance(pod.request, Unreadable):
            raise _UndecidedError(pod.request.text)
        return pod, pod.request

    def _answered(self, verb: str, answer: Callable[[bytes, float], bytes], body: bytes) -> bytes:
        started = self._clock()
        try:
            found = answer(body, started)
        except (WireError, DecodeError, _UndecidedError) as error:
            return self._failed(verb, str(error), started)
        except Exception:  # noqa: BLE001 - a fault of ours, too, is read only in the body of a 200
            _log.exception("verb failed", extra={"verb": verb})
            return self._failed(verb, f"{verb} failed inside the extender; its log has the cause", started)
        self._metrics.answered(verb, self._clock() - started, ok=True)
        return found

    def _failed(self, verb: str, error: str, started: float) -> bytes:
        seconds = self._clock() - started
        self._metrics.answered(verb, seconds, ok=False)
        flowlog.log_error(verb, error, _us(seconds))
        return wire.encode_error(error)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
