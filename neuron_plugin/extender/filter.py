"""Filter and prioritize: which nodes can take a pod now, and where it costs later pods least.

Both run inside the scheduler's one scheduling loop, so every millisecond here delays every pod. Nothing waits, logs or
allocates per node beyond the answer itself. Verdicts are remembered in two layers: by capacity, which nodes in the same
state share, and by node name on top, where a node's entry is dropped as soon as the node has changed. Of verdicts there
are few, so the names stand in one set for each: Python cuts all names of a call with a set in one step, and that costs
the hashes of the names. Costs are many, and are looked up name by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import filterfalse
from typing import Generic, TypeAlias, TypeVar

from neuron_plugin.allocation import (
    Amounts,
    Constraints,
    ContainerKind,
    PodRequest,
    PodUid,
    Rejection,
    Resource,
    cost,
    costs,
    has_preference,
    is_constrained,
    placement_mask,
    usable_mask,
)
from neuron_plugin.extender.state import BOUND_ELSEWHERE, Capacity, ClusterState, NodeInfo
from neuron_plugin.topology import CoreMask, valid_sets

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""

MOST_DEMANDS = 32
"""Distinct demands remembered, with constraints and without; a cluster's workloads have few."""

MOST_CAPACITIES = 32_768
"""Distinct capacities remembered per demand; then its table starts again."""

V = TypeVar("V")
_Demand: TypeAlias = tuple[tuple[ContainerKind, Resource, int, Amounts, Constraints | Rejection | None], ...]


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every candidate once: those that fit, and the others by why they do not."""

    passed: list[str]
    rejected: Mapping[Rejection, Collection[str]]

    @property
    def failed(self) -> dict[str, str]:
        """Those that may fit later, with a text each."""
        return self._texts(may_pass=True)

    @property
    def unresolvable(self) -> dict[str, str]:
        """Those that never will, with a text each."""
        return self._texts(may_pass=False)

    def _texts(self, *, may_pass: bool) -> dict[str, str]:
        texts: dict[str, str] = {}
        for rejection, names in self.rejected.items():
            if rejection.may_pass is may_pass:
                texts.update(dict.fromkeys(names, rejection.text))
        return texts


def filter_nodes(
    state: ClusterState, memo: VerdictMemo, uid: PodUid, request: PodRequest, names: list[str]
) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only: the scheduler asks again
    when a bind call timed out, and must not carry the pod elsewhere.
    """
    target = state.bound_to(uid)
    if not target:
        return Filtered(*memo.answers(request).split(names))
    others = set(names) - {target}
    return Filtered([name for name in names if name == target], {BOUND_ELSEWHERE: others} if others else {})


def score_nodes(memo: VerdictMemo, request: PodRequest, names: list[str]) -> list[int]:
    """Scores 0-10 in the order of ``names``: the node where the pod costs later pods least gets 10."""
    if not request:
        return [HIGHEST_SCORE] * len(names)
    return scores(memo.answers(request).costs(names))


def scores(found: list[int | None]) -> list[int]:
    """Costs as scores 0-10 in the same order: the least cost alone gets 10, equal costs get equal scores.

    Ranks, not amounts: however close two costs are, the better node leads by a whole point, which the shipped weight
    makes worth more than all of the scheduler's own scorers together. Beyond eleven distinct costs the dearer ones
    share the points below. A node that was filled between filter and prioritize (None) gets 0: it must not win.
    """
    ranks = {value: rank for rank, value in enumerate(sorted(value for value in set(found) if value is not None))}
    worst = max(len(ranks) - 1, HIGHEST_SCORE)
    by_cost: dict[int | None, int] = {None: 0}
    by_cost |= {value: HIGHEST_SCORE - -(-rank * HIGHEST_SCORE // worst) for value, rank in ranks.items()}
    return list(map(by_cost.__getitem__, found))


def judge(capacity: Capacity | Rejection, request: PodRequest) -> Rejection | None:
    """Why a request does not fit a node of this capacity; None when it fits.

    For one requesting container that is a mask test per valid set; the costs of the sets are not asked for.
    """
    if not request:
        return None
    if isinstance(capacity, Rejection):
        return capacity
    if len(request) == 1 and any(True for _ in _fitting(capacity, request)):
        return None
    placed = capacity.place(request)
    return _shared(placed) if isinstance(placed, Rejection) else None


def cost_on(capacity: Capacity | Rejection, request: PodRequest) -> int | None:
    """What the best placement takes from later pods; None where there is none."""
    if isinstance(capacity, Rejection):
        return None
    if len(request) == 1 and not has_preference(request):
        return min(costs(capacity.geometry, capacity.free_mask, _fitting(capacity, request)), default=None)
    placed = capacity.place(request)
    if isinstance(placed, Rejection):
        return None
    return cost(capacity.geometry, capacity.free_mask, placement_mask(placed))


def _fitting(capacity: Capacity, request: PodRequest) -> Iterator[CoreMask]:
    """The free sets for a request's one container."""
    geometry, part = capacity.geometry, request[0]
    free = capacity.free_mask & usable_mask(geometry, part, capacity.facts)
    return (mask for mask in valid_sets(geometry, part.resource.unit, part.count) if mask & free == mask)


@lru_cache(maxsize=4_096)
def _shared(rejection: Rejection) -> Rejection:
    """Equal rejections as one object: thousands of capacities are rejected in the same few words."""
    return rejection


class ByCapacity(dict[Capacity | Rejection, V], Generic[V]):
    """Answers by capacity, worked out when first asked for."""

    def __init__(self, answer: Callable[[Capacity | Rejection], V]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, capacity: Capacity | Rejection) -> V:
        if len(self) >= MOST_CAPACITIES:
            self.clear()
        value = self[capacity] = self._answer(capacity)
        return value


class Answers:
    """What one request meets on the nodes it was asked of.

    Names of no known node are judged and not kept: anybody can invent them.
    """

    def __init__(self, capacities: Mapping[str, Capacity | Rejection], request: PodRequest) -> None:
        self._capacities = capacities
        self._verdict_by_capacity = ByCapacity(lambda capacity: judge(capacity, request))
        self._cost_by_capacity = ByCapacity(lambda capacity: cost_on(capacity, request))
        self._costs: dict[str, int | None] = {}
        self._fitting: set[str] = set()
        self._rejected: dict[Rejection, set[str]] = {}

    def split(self, names: list[str]) -> tuple[list[str], dict[Rejection, set[str]]]:
        """The names that fit, as they came, and the others by why they do not."""
        passed = list(filter(self._fitting.__contains__, names))
        rejected = {reason: hit for reason, known in self._rejected.items() if (hit := known.intersection(names))}
        if len(passed) + sum(map(len, rejected.values())) == len(names):
            return passed, rejected
        for name in set(names).difference(passed, *rejected.values()):
            reason = self._verdict_by_capacity[self._capacities[name]]
            if name in self._capacities:
                (self._fitting if reason is None else self._rejected.setdefault(reason, set())).add(name)
            if reason:
                rejected.setdefault(reason, set()).add(name)
        others = set[str]().union(*rejected.values())
        return list(filterfalse(others.__contains__, names)), rejected

    def costs(self, names: list[str]) -> list[int | None]:
        """What the best placement costs later pods on each node; None where there is none."""
        try:
            return list(map(self._costs.__getitem__, names))
        except KeyError:
            for name in names:  # in this order: the next call then walks through memory in order, too
                if name not in self._costs and name in self._capacities:
                    self._costs[name] = self._cost_by_capacity[self._capacities[name]]
            return list(map(self._costs.get, names))

    def forget(self, names: Collection[str]) -> None:
        """The nodes of these names have changed."""
        for name in names:
            self._costs.pop(name, None)
        self._fitting.difference_update(names)
        for reason, known in list(self._rejected.items()):
            known.difference_update(names)
            if not known:
                del self._rejected[reason]


class VerdictMemo:
    """The answers of one state, by demand. It follows the state's changes, so that no answer outlives its node."""

    def __init__(self, state: ClusterState) -> None:
        self._capacities = state.capacities
        self._changes = state.changes
        self._seen = state.changes.version
        self._answers: tuple[dict[_Demand, Answers], dict[_Demand, Answers]] = ({}, {})

    def answers(self, request: PodRequest) -> Answers:
        """The answers to one request, as of now; the demand that was asked for longest ago makes room for a new one.

        Containers' names are no part of a demand: every workload has its own, and would have its own answers. However
        many constraints pods invent, demands without any stay remembered.
        """
        if self._seen != self._changes.version:
            self._catch_up()
        demand = tuple((part.kind, part.resource, part.count, part.amounts, part.constraints) for part in request)
        answers = self._answers[is_constrained(request)]
        found = answers.pop(demand, None) or Answers(self._capacities, request)
        answers[demand] = found
        if len(answers) > MOST_DEMANDS:
            del answers[next(iter(answers))]
        return found

    def _catch_up(self) -> None:
        """Drop what is remembered of nodes that have changed. Nothing was kept of a node that was not there."""
        seen, self._seen = self._seen, self._changes.version
        if not self._changes.knows(seen):
            for remembered in self._answers:
                remembered.clear()
            return
        changed = {change.before.name for change in self._changes.after(seen) if isinstance(change.before, NodeInfo)}
        for remembered in self._answers:
            for answers in remembered.values():
                answers.forget(changed)
