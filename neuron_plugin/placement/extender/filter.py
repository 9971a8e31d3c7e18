"""Filter and prioritize: which node kube-scheduler is led to, and what it is told of the others.

kube-scheduler takes a single feasible node as it is, so filter names the best node alone. In the same step it assumes
the pod there, as kube-scheduler assumes pods in its cache: the next pod finds that set in use. Only a pod that the
watch shows is assumed, so nothing is kept for one that has ended. An assumption ends with the bind, with the pod, with
the pod's next filter call, or after some seconds. That next call means that something after filter refused the node: it
is answered with every node that fits, all scored alike, and no node is insisted on.

kube-scheduler asks only about nodes that meet its own rules, so Neuron alone decides here, and what the pod prefers.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from math import inf

from neuron_plugin.allocation import Capacity, NeuronPod, PlacementStrategy, PodRequest, PodUid, Rejection
from neuron_plugin.allocation.rejection import BOUND_ELSEWHERE, LEFT_TO_OTHERS, UNKNOWN_NODE
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.state import AssumedPod, ClusterState
from neuron_plugin.placement.writer import Writer

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""
EXPECTED_SECONDS = 10.0
"""How long a bind may be on its way: volumes and permits come before it. A later one chooses again."""
ONE_NODE_SECONDS = 2.0
"""The same where the caller named one node only: it may be asking what would be."""


class LeadEnding(enum.StrEnum):
    """How what filter had assumed ended; the label of its metric."""

    BOUND = "bound"
    """The bind came."""
    ELSEWHERE = "bound-elsewhere"
    """The bind came, for another node."""
    ASKED_AGAIN = "asked-again"
    """The pod's next filter call came: something after filter refused the node."""
    EXPIRED = "expired"
    """No bind came in time."""
    POD_ENDED = "pod-ended"
    """The pod is gone, or was bound by others."""


class Leads:
    """To which node each pod was led. One event loop owns it, and nothing here waits."""

    def __init__(self, context: Context, writer: Writer) -> None:
        self.endings: Counter[LeadEnding] = Counter()
        self._context = context
        self._state = context.state
        self._writer = writer
        self._led: dict[PodUid, str] = {}
        """By pod, the node that it is assumed on; empty once it was led there in vain, until its bind comes."""

    def lead(self, pod: NeuronPod, called: Container[str], *, one_node: bool = False) -> str | None:
        """The node of those ``called`` that filter names for an unbound pod, where it is assumed.

        Empty where none fits, None where all that fit are to be named. ``one_node``: no more than one was called.
        """
        if pod.uid in self._led:
            self._end(pod.uid, LeadEnding.ASKED_AGAIN)
            return None
        if (place := self._state.scene().best(pod, allowed=called)) is None:
            return ""
        made = self._writer.assumed_at(pod, *place, bound=True) if pod.uid in self._state.pods else ""
        if isinstance(made, AssumedPod):
            seconds = ONE_NODE_SECONDS if one_node else EXPECTED_SECONDS
            self._state.assume(replace(made, until=made.since + seconds))
            self._led[pod.uid] = place[0]
        return place[0]

    def choose(self, pod: NeuronPod, node: str) -> AssumedPod | str:
        """The pod with the best sets of the moment on a node, those that it is assumed to have first; or why not."""
        now = self._context.clock.now()
        if isinstance(pod.request, Rejection):
            return pod.request.detail
        if not pod.request:
            return AssumedPod(replace(pod, node=node), (), now)
        info = self._state.nodes.get(node)
        if info is None:
            return UNKNOWN_NODE.text
        earlier, own_mask = self._state.assumed.get(pod.uid), info.ledger.mask_of(pod.uid)
        if isinstance(info.capacity, Capacity):
            if pod.promised == node and own_mask:
                return AssumedPod(replace(pod, node=node), (), now)  # the pod says it all
            is_healthy = own_mask & info.capacity.healthy_mask == own_mask
            if earlier and earlier.pod.node == node and is_healthy:
                return replace(earlier, since=now, until=inf)
        capacity = self._state.scene().node_for(pod, node).without((pod.uid,)).capacity
        placement = capacity if isinstance(capacity, Rejection) else capacity.place(pod.requests)
        if isinstance(placement, Rejection):
            return placement.text
        return self._writer.assumed_at(pod, node, placement, bound=True)

    def begin_bind(self, pod: NeuronPod, node: str) -> None:
        """A pod's bind has come; what is assumed of the pod is the bind's from now on."""
        if led := self._led.pop(pod.uid, ""):
            self.endings[LeadEnding.BOUND if led == node else LeadEnding.ELSEWHERE] += 1

    def refused(self, uid: PodUid) -> None:
        """The API server does not let the pod be bound to the node, perhaps by an admission policy."""
        if uid in self._state.pods:
            self._led[uid] = ""

    def expire(self) -> None:
        """End what was assumed for pods whose bind has not come, or that are gone."""
        now = self._context.clock.now()
        for uid in list(self._led):
            pod, assumed = self._state.pods.get(uid), self._state.assumed.get(uid)
            if pod is None or pod.node:
                self._end(uid, LeadEnding.POD_ENDED)
                del self._led[uid]
            elif assumed and assumed.until <= now:
                self._end(uid, LeadEnding.EXPIRED)

    def has_place(self, uid: PodUid) -> bool:
        """Whether a pod is assumed somewhere by filter: it needs nobody's end."""
        return bool(self._led.get(uid))

    def in_vain(self, uid: PodUid) -> bool:
        """Whether something after filter has refused the node that a pod was led to."""
        return self._led.get(uid) == ""

    def _end(self, uid: PodUid, ending: LeadEnding) -> None:
        if self._led[uid]:
            self.endings[ending] += 1
            self._led[uid] = ""
        if (assumed := self._state.assumed.get(uid)) and assumed.expected:
            self._state.forget(uid)


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every candidate once: those that fit, and the others by why they do not."""

    passed: list[str]
    rejected: Mapping[Rejection, Collection[str]]

    def texts(self, *, may_pass: bool) -> dict[str, str]:
        """Those that do not fit, with a text each: that may fit later, or that never will."""
        texts: dict[str, str] = {}
        for rejection, names in self.rejected.items():
            if rejection.may_pass is may_pass:
                texts.update(dict.fromkeys(names, rejection.text))
        return texts


def filter_nodes(state: ClusterState, pod: NeuronPod, names: list[str]) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only. The scheduler asks again when
    a bind call timed out, and must not carry the pod elsewhere. What is kept for a pod is free for it.
    """
    if target := state.bound_to(pod.uid):
        others = set(names) - {target}
        return Filtered([name for name in names if name == target], {BOUND_ELSEWHERE: others} if others else {})
    if not pod.requests:
        return Filtered(names, {})
    scene = state.scene()
    passed, rejected = state.choices.answers(pod.requests).split(names)
    for kept in scene.cluster.kept_for(pod):
        if kept.node in names and kept.node not in passed and kept.node in state.nodes and scene.place(pod, kept.node):
            passed.append(kept.node)
            rejected = {reason: hit - {kept.node} for reason, hit in rejected.items() if hit != {kept.node}}
    if left := scene.left_to_others(pod, passed):
        passed = [name for name in passed if name not in left]
        rejected = {**rejected, LEFT_TO_OTHERS: left}
    if len(passed) + sum(map(len, rejected.values())) < len(names):
        unknown = {name for name in names if name not in state.nodes}
        return Filtered(passed, {**rejected, UNKNOWN_NODE: unknown} if unknown else rejected)
    return Filtered(passed, rejected)


def score_nodes(
    state: ClusterState,
    request: PodRequest,
    names: list[str],
    strategy: PlacementStrategy = PlacementStrategy.PACK,
    *,
    alone: bool = True,
) -> list[int]:
    """Scores 0-10 in the order of ``names``: the best node gets 10, with its equals unless it leads ``alone``."""
    if not request:
        return [HIGHEST_SCORE] * len(names)
    answers = state.choices.answers(request, strategy)
    ranks = answers.values(names)
    if alone and (best := answers.best(frozenset(names), choices=state.choices)):
        ranks[names.index(best)] = min(rank for rank in ranks if rank is not None) - 1
    return scores(ranks)


def scores(ranks: list[float | None]) -> list[int]:
    """Ranks as scores 0-10 in the same order: the least gets 10, equal ranks get equal scores.

    Places, not amounts: however close two costs are, the better node leads by a whole point. The shipped weight makes
    that worth more than all of the scheduler's own scorers together. Beyond eleven distinct ranks the dearer ones share
    the points below. A node that was filled between filter and prioritize (None) gets 0: it must not win.
    """
    places = {value: place for place, value in enumerate(sorted(value for value in set(ranks) if value is not None))}
    worst = max(len(places) - 1, HIGHEST_SCORE)
    by_rank: dict[float | None, int] = {None: 0}
    by_rank |= {value: HIGHEST_SCORE - -(-place * HIGHEST_SCORE // worst) for value, place in places.items()}
    return list(map(by_rank.__getitem__, ranks))
