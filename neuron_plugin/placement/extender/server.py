"""The scheduler's four verbs over HTTP.

Every verb is served at the root and under the two prefixes that existing scheduler configurations use. A request is
taken in whole, under a deadline and a size limit, before anything looks at it, so a slow or endless caller costs a
connection and no more. Only the body of a 200 is read by kube-scheduler, so every failure is answered in ``Error``.
Filter, prioritize and preempt run to their end without giving up the event loop once; only bind waits.

Each verb writes one log line with counts, never one per node. It is at level info when a pod's answer is another one
than last, else at level debug, because kube-scheduler asks about a waiting pod again and again. The vendor's scheduler
logs the same facts: which nodes fit, which ids a bind chose, what is used on the node afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from aiohttp import web

from neuron_plugin.allocation import NeuronPod, NodeInventory, PlacementStrategy, PodReference, PodUid
from neuron_plugin.cluster import DecodeError
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender import wire
from neuron_plugin.placement.extender.binding import SUCCESSES, Binder
from neuron_plugin.placement.extender.filter import HIGHEST_SCORE, Leads, filter_nodes, score_nodes
from neuron_plugin.placement.extender.preempt import preempt
from neuron_plugin.placement.extender.wire import WireError
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.topology import cores_in

VERBS = ("filter", "prioritize", "preempt", "bind")
PREFIXES = ("", "/scheduler", "/apis/neuron-plugin.io/v1/schedule")
MOST_BODY_BYTES = 128 << 20
"""5000 whole nodes are 57 MiB."""
BODY_SECONDS = 5.0
"""A caller that takes longer to send its body has given up by the scheduler's own httpTimeout."""

_MOST_REASONS = 8
"""In a filter call's log line."""
_MOST_NAMES = 5
"""Nodes in a filter call's log line."""
_MOST_ANSWERS = 8_192
"""Pods and verbs whose last answer is remembered, for the log."""
_log = logging.getLogger(__name__)
_flow = logging.getLogger("neuron_plugin.extender.flow")

_Fields = dict[str, object]


class PodError(WireError):
    """A pod that no node can serve as it is; the text is the answer."""

    def __init__(self, pod: PodReference, text: str) -> None:
        super().__init__(text)
        self.pod = pod


class ExtenderService:
    """The four verbs on one state.

    ``filter``, ``prioritize`` and ``preempt`` give the answer's body and the fields of the log line, or raise;
    ``answer`` makes the scheduler's answer of either.
    """

    def __init__(
        self,
        context: Context,
        binder: Binder,
        leads: Leads,
        *,
        answer: FilterMode = FilterMode.BEST,
        strategy: PlacementStrategy = PlacementStrategy.PACK,
    ) -> None:
        """For ``answer`` see ``FilterMode``; ``strategy`` is that of pods that name none."""
        self._metrics = context.metrics
        self._state = context.state
        self._binder = binder
        self._readiness = context.ready
        self._answer = answer
        self._strategy = strategy
        self._leads = leads
        self._logged: dict[tuple[str, str], object] = {}

    def answer(self, verb: str, body: bytes) -> bytes:
        """The answer to filter, prioritize or preempt: measured, logged, and never an exception."""
        started = time.perf_counter()
        verbs = {"filter": self.filter, "prioritize": self.prioritize, "preempt": self.preempt}
        try:
            reply, fields = verbs[verb](body)
        except Exception as error:  # noqa: BLE001 - a fault of ours, too, is read only in the body of a 200
            return self.failed(verb, error, started)
        refused = fields.get("refused")
        reasons = frozenset(refused) if isinstance(refused, dict) else refused
        shown = (bool(fields.get("passed")), fields.get("fitting"), fields.get("node"), reasons)
        level = self._level((verb, str(fields["uid"])), shown)
        self._logged.pop((verb, ""), None)
        _flow.log(level, verb, extra={**fields, "us": self._measure(verb, started, ok=True)})
        return reply

    def _level(self, key: tuple[str, str], answer: object, level: int = logging.INFO) -> int:
        """``level`` when the answer to a verb about a pod is not the last one again, else debug.

        What it says counts, not how many nodes say so. Answers that belong to no pod have the UID "".
        """
        if self._logged.pop(key, None) == answer:
            level = logging.DEBUG
        self._logged[key] = answer
        if len(self._logged) > _MOST_ANSWERS:
            del self._logged[next(iter(self._logged))]
        return level

    def filter(self, body: bytes) -> tuple[bytes, _Fields]:
        """``ExtenderArgs`` to ``ExtenderFilterResult``: the best node alone, or every node by what it says."""
        args = wire.decode_filter(body)
        pod, fields = self._read(args.pod, args.uid)
        is_led = self._answer is FilterMode.BEST or pod.uid in self._state.reserved
        free = is_led and pod.requests and not self._state.bound_to(pod.uid)
        if free and (led := self._leads.lead(pod, args.called, one_node=args.one_node)):
            return wire.encode_filter(args, [led], {}, {}), fields | {"passed": 1, "node": led}
        filtered = filter_nodes(self._state, pod, args.names)
        texts: Counter[str] = Counter()
        for rejection, names in filtered.rejected.items():
            self._metrics.add("extender_refused_nodes_total", rejection.code, count=len(names))
            texts[rejection.text] += len(names)
        failed, unresolvable = filtered.texts(may_pass=True), filtered.texts(may_pass=False)
        fields |= {"nodes": len(filtered.passed) + texts.total(), "passed": len(filtered.passed)}
        fields["fitting"] = ",".join(filtered.passed[:_MOST_NAMES])
        fields["refused"] = dict(texts.most_common(_MOST_REASONS))
        return wire.encode_filter(args, filtered.passed, failed, unresolvable), fields

    def prioritize(self, body: bytes) -> tuple[bytes, _Fields]:
        """``ExtenderArgs`` to ``HostPriorityList``."""
        args = wire.decode_filter(body)
        pod, fields = self._read(args.pod, args.uid)
        names, strategy = args.names, pod.strategy_or(self._strategy)
        if self._leads.in_vain(pod.uid):
            scores = [HIGHEST_SCORE] * len(names)
        else:
            unwilling = self._state.choices.unwilling(pod.rules)
            is_choosy = pod.rules.prefers_nodes or not unwilling.isdisjoint(names)
            scores = score_nodes(self._state, pod.requests, names, strategy, alone=not is_choosy)
        best = scores.count(max(scores, default=0))
        return wire.encode_scores(names, scores), fields | {"nodes": len(scores), "best": best}

    def preempt(self, body: bytes) -> tuple[bytes, _Fields]:
        """``ExtenderPreemptionArgs`` to ``ExtenderPreemptionResult``."""
        args = wire.decode_preempt(body)
        pod, fields = self._read(args.pod, args.uid)
        # It has a place already, or others are moved away for it.
        has_place = self._leads.has_place(pod.uid) or pod.uid in self._state.reserved
        chosen = {} if has_place else preempt(self._state, pod.requests, args.victims)
        if pod.requests and args.victims and not (chosen or has_place):
            self._state.history.without_victims.append(pod.reference)
        self._state.history.offer((uid for victims in chosen.values() for uid in victims.uids), pod.reference)
        fewest = min((len(victims.uids) for victims in chosen.values()), default=0)
        fields |= {"nodes": len(args.victims), "passed": len(chosen), "fewest_victims": fewest}
        return wire.encode_victims(chosen), fields

    async def bind(self, body: bytes) -> bytes:
        """``ExtenderBindingArgs`` to ``ExtenderBindingResult``."""
        started = time.perf_counter()
        try:
            args = wire.decode_bind(body)
        except WireError as error:
            return self.failed("bind", error, started)
        pod = PodReference(PodUid(args.uid), args.namespace, args.name)
        outcome = await self._binder.bind(pod, args.node)
        self._metrics.add("extender_binds_total", outcome.ending.value)
        fields: _Fields = {"pod": str(pod), "uid": pod.uid, "node": args.node, "result": outcome.ending.value}
        fields |= {**outcome.annotations, **({"error": outcome.error} if outcome.error else {})}
        info = self._state.nodes.get(args.node)
        if info and isinstance(inventory := info.node.inventory, NodeInventory):
            used_mask = info.ledger.used_mask
            fields["used_cores"] = ",".join(map(str, cores_in(used_mask)))
            fields["used_devices"] = ",".join(map(str, inventory.geometry.devices_touched(used_mask)))
        succeeded = outcome.ending in SUCCESSES
        fields["us"] = self._measure("bind", started, ok=succeeded)
        level = logging.INFO if succeeded else logging.WARNING
        _flow.log(level, "bind", extra=fields)
        return wire.encode_error(outcome.error)

    def failed(self, verb: str, error: Exception, started: float) -> bytes:
        """The answer of a verb that could not be decided."""
        text, asked = str(error), error.pod if isinstance(error, PodError) else None
        if not isinstance(error, WireError | DecodeError):
            _log.error("verb failed", extra={"verb": verb}, exc_info=error)
            text = f"{verb} failed inside the extender; its log has the cause"
        level = self._level((verb, asked.uid if asked else ""), text, logging.WARNING)
        fields: _Fields = {"pod": str(asked), "uid": asked.uid} if asked else {}
        _flow.log(level, verb, extra={**fields, "error": text, "us": self._measure(verb, started, ok=False)})
        return wire.encode_error(text)

    def _measure(self, verb: str, started: float, *, ok: bool) -> int:
        """Count an answered verb; gives its duration in microseconds."""
        seconds = time.perf_counter() - started
        self._metrics.observe("extender_verb_seconds", verb, seconds=seconds)
        self._metrics.add("extender_verbs_total", verb, "ok" if ok else "error")
        return round(seconds * 1e6)

    def _read(self, body: bytes, uid: str) -> tuple[NeuronPod, _Fields]:
        """The pod of a call, and the log's words for who asks for what.

        Such as ``neuroncore:9``, or ``neuron:1|neuron:4`` of two containers.
        """
        if why_not := self._readiness.why_not:
            raise WireError(why_not)
        # The watch shows the same pod, already decoded.
        pod = self._state.pods.get(PodUid(uid)) or neuron_pod(PODS.decode(body))
        if refusal := self._state.refusal(pod):
            raise PodError(pod.reference, refusal.detail)
        asked = "|".join(f"{container.resource.short_name}:{container.count}" for container in pod.requests)
        return pod, {"pod": str(pod.reference), "uid": pod.uid, "request": asked}


def verb_routes(service: ExtenderService, *, body_seconds: float = BODY_SECONDS) -> list[web.RouteDef]:
    """The routes of the four verbs."""

    async def handle(request: web.Request) -> web.Response:
        verb, started = request.path.rpartition("/")[2], time.perf_counter()
        try:
            body = await _body(request, body_seconds)
        except WireError as error:
            answer = service.failed(verb, error, started)
        else:
            answer = await service.bind(body) if verb == "bind" else service.answer(verb, body)
        return web.Response(body=answer, content_type="application/json")

    return [web.post(f"{prefix}/{verb}", handle) for prefix in PREFIXES for verb in VERBS]


async def _body(request: web.Request, body_seconds: float) -> bytes:
    """The whole body; a WireError says why it was not taken."""
    kind = request.content_type.lower()
    if not kind.endswith("json"):
        raise WireError(f"Content-Type is {kind}, expected application/json")
    if coding := request.headers.get("Content-Encoding"):
        raise WireError(f"Content-Encoding is {coding[:40]}, expected none")
    try:
        async with asyncio.timeout(body_seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise WireError(f"{error.text}. Expected nodeCacheCapable in the scheduler's configuration") from None
    except TimeoutError:
        raise WireError(f"the body did not arrive within {body_seconds:g} s") from None
    except ConnectionError as error:
        raise WireError(f"the caller broke off in its body: {error}") from None
