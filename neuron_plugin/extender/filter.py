"""Filter and prioritize: which nodes can take a pod now, and which of them is the best.

Both run inside the scheduler's one scheduling loop, so every millisecond here delays every pod. Nothing waits, logs or
allocates per node beyond the answer itself. Verdicts are remembered in two layers: by capacity, which nodes in the same
state share, and by node name on top, where a node is judged again once it has changed. Of reasons there are few, so the
names stand in one set for each: Python cuts all names of a call with a set in one step, and that costs the hashes of
the names. The nodes that fit stand in order, so that the best is found without a look at the others.

Nodes of one geometry are ordered by what the pod costs later pods there; among equals the most used node comes first,
so that empty nodes stay empty: on a torus the one with the most pods, elsewhere the one with the fewest free cores.
Then the name decides. Costs count sets, of which each geometry has its own number, so between nodes of unlike hardware
the devices decide that are lost to later pods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Generic, TypeAlias, TypeVar

from neuron_plugin.allocation import (
    Amounts,
    Constraints,
    ContainerKind,
    PlacementStrategy,
    PodRequest,
    PodUid,
    Rejection,
    Resource,
    cost,
    costs,
    devices_lost,
    has_preference,
    is_constrained,
    placement_mask,
    tie_rank,
    usable_mask,
)
from neuron_plugin.extender.state import BOUND_ELSEWHERE, UNKNOWN_NODE, Capacity, ClusterState, NodeInfo
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""

MOST_DEMANDS = 32
"""Distinct demands remembered, with constraints and without; a cluster's workloads have few."""

MOST_CAPACITIES = 32_768
"""Distinct capacities remembered per demand; then its table starts again."""

PACK = PlacementStrategy.PACK
V = TypeVar("V")
_Demand: TypeAlias = tuple[
    PlacementStrategy, tuple[tuple[ContainerKind, Resource, int, Amounts, Constraints | Rejection | None], ...]
]
_Key: TypeAlias = tuple[int, int, str]
"""How good a node is, and its name; the least is the best. Nodes with the same first number are equals."""


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
    state: ClusterState,
    memo: VerdictMemo,
    uid: PodUid,
    request: PodRequest,
    names: list[str],
) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only: the scheduler asks again
    when a bind call timed out, and must not carry the pod elsewhere.
    """
    target = state.bound_to(uid)
    if target:
        others = set(names) - {target}
        return Filtered([name for name in names if name == target], {BOUND_ELSEWHERE: others} if others else {})
    return Filtered(*memo.answers(request).split(names)) if request else Filtered(names, {})


def score_nodes(
    memo: VerdictMemo, request: PodRequest, names: list[str], strategy: PlacementStrategy = PACK, *, alone: bool = True
) -> list[int]:
    """Scores 0-10 in the order of ``names``: the best node gets 10, with its equals unless it leads ``alone``."""
    if not request:
        return [HIGHEST_SCORE] * len(names)
    answers = memo.answers(request, strategy)
    found = answers.ranks(names)
    if alone and (best := answers.best(frozenset(names))):
        found[names.index(best)] = min(rank for rank in found if rank is not None) - 1
    return scores(found)


def scores(found: list[float | None]) -> list[int]:
    """Ranks as scores 0-10 in the same order: the least gets 10, equal ranks get equal scores.

    Places, not amounts: however close two costs are, the better node leads by a whole point, which the shipped weight
    makes worth more than all of the scheduler's own scorers together. Beyond eleven distinct ranks the dearer ones
    share the points below. A node that was filled between filter and prioritize (None) gets 0: it must not win.
    """
    places = {value: place for place, value in enumerate(sorted(value for value in set(found) if value is not None))}
    worst = max(len(places) - 1, HIGHEST_SCORE)
    by_rank: dict[float | None, int] = {None: 0}
    by_rank |= {value: HIGHEST_SCORE - -(-place * HIGHEST_SCORE // worst) for value, place in places.items()}
    return list(map(by_rank.__getitem__, found))


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
    """What one demand meets on every node of the state, the nodes that fit in order.

    Names of no known node are not kept: anybody can invent them.
    """

    def __init__(self, state: ClusterState, request: PodRequest, strategy: PlacementStrategy) -> None:
        self._state = state
        self._strategy = strategy
        # What the best placement costs later pods, or why there is none.
        self._verdicts = ByCapacity(lambda capacity: judge(capacity, request) or cost_on(capacity, request) or 0)
        self._lost = ByCapacity(lambda capacity: _devices_lost(capacity, request))
        self._changed = set(state.nodes)
        self._ranks: dict[str, int] = {}
        self._places: dict[str, tuple[list[_Key], _Key]] = {}
        self._orders: dict[Geometry | None, list[_Key]] = {}
        self._rejected: dict[Rejection, set[str]] = {}

    def split(self, names: list[str]) -> tuple[list[str], dict[Rejection, set[str]]]:
        """The names that fit, as they came, and the others by why they do not."""
        passed = list(filter(self._ranks.__contains__, names))
        rejected = {reason: hit for reason, known in self._rejected.items() if (hit := known.intersection(names))}
        if len(passed) + sum(map(len, rejected.values())) < len(names):
            unknown = {name for name in names if name not in self._state.nodes}
            rejected |= {UNKNOWN_NODE: unknown} if unknown else {}
        return passed, rejected

    def ranks(self, names: list[str]) -> list[float | None]:
        """How good each node is, the least is best; None where the pod does not fit."""
        if len(self._orders) <= 1:
            return list(map(self._ranks.get, names))
        capacities = self._state.capacities
        return [self._lost[capacities[name]] if name in self._ranks else None for name in names]

    def best(
        self,
        called: Container[str],
        skipped: Container[str] = (),
        changed: Mapping[str, NodeInfo] | None = None,
    ) -> str:
        """The best node of those in ``called`` that are not ``skipped``; empty when the pod fits none of them.

        ``changed`` are nodes as they would be.
        """
        changed = changed or {}
        heads: dict[Geometry | None, tuple[_Key, Capacity | Rejection]] = {}
        for geometry, order in self._orders.items():
            for key in order:
                if (name := key[-1]) not in changed and name not in skipped and name in called:
                    heads[geometry] = (key, self._state.capacities[name])
                    break
        for name, info in changed.items():
            if name not in skipped and name in called and (found := self._key(info)):
                geometry, key = found
                if geometry not in heads or key < heads[geometry][0]:
                    heads[geometry] = (key, info.capacity)
        if len(heads) <= 1:
            return next((key[-1] for key, _ in heads.values()), "")
        return min((self._lost[capacity], key) for key, capacity in heads.values())[1][-1]

    def equals(self, name: str, called: Container[str], skipped: Container[str] = ()) -> list[str]:
        """The nodes in ``called`` that are as good as this one but for their use and name, itself among them."""
        order, (rank, *_) = self._places[name]
        alike = takewhile(lambda key: key[0] == rank, order[bisect_left(order, (rank,)) :])
        return [key[-1] for key in alike if key[-1] in called and key[-1] not in skipped]

    def forget(self, names: Collection[str]) -> None:
        """The nodes of these names have changed."""
        self._changed.update(names)

    def catch_up(self) -> None:
        """Judge the nodes that have changed."""
        for name in self._changed:
            if name in self._places:
                order, key = self._places.pop(name)
                del order[bisect_left(order, key)], self._ranks[name]
            for reason in [reason for reason, known in self._rejected.items() if name in known]:
                self._rejected[reason].discard(name)
                if not self._rejected[reason]:
                    del self._rejected[reason]
            info = self._state.nodes.get(name)
            if info is None:
                continue
            if isinstance(verdict := self._verdicts[info.capacity], Rejection):
                self._rejected.setdefault(verdict, set()).add(name)
            elif found := self._key(info):
                geometry, key = found
                order = self._orders.setdefault(geometry, [])
                insort(order, key)
                self._places[name], self._ranks[name] = (order, key), key[0]
        self._changed.clear()
        self._orders = {geometry: order for geometry, order in self._orders.items() if order}

    def _key(self, info: NodeInfo) -> tuple[Geometry | None, _Key] | None:
        """Where a node stands in which order; None if the pod does not fit there."""
        capacity, name = info.capacity, info.name
        verdict = self._verdicts[capacity]
        if isinstance(verdict, Rejection) or isinstance(capacity, Rejection):
            return None
        geometry, free_mask = capacity.geometry, capacity.free_mask
        if self._strategy is PlacementStrategy.SPREAD:
            return None, (-len(geometry.whole_devices(free_mask)), verdict, name)
        return geometry, (verdict, tie_rank(geometry, free_mask, len(info.ledger.by_pod)), name)


def _devices_lost(capacity: Capacity | Rejection, request: PodRequest) -> float:
    placed = capacity if isinstance(capacity, Rejection) else capacity.place(request)
    if isinstance(placed, Rejection) or isinstance(capacity, Rejection):
        return 0.0
    return devices_lost(capacity.geometry, capacity.free_mask, placement_mask(placed))


class VerdictMemo:
    """The answers of one state, by demand. It follows the state's changes, so that no answer outlives its node."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._changes = state.changes
        self._seen = state.changes.version
        self._answers: tuple[dict[_Demand, Answers], dict[_Demand, Answers]] = ({}, {})

    def answers(self, request: PodRequest, strategy: PlacementStrategy = PACK) -> Answers:
        """The answers to one request, as of now; the demand that was asked for longest ago makes room for a new one.

        Containers' names are no part of a demand: every workload has its own, and would have its own answers. However
        many constraints pods invent, demands without any stay remembered.
        """
        if self._seen != self._changes.version:
            self._catch_up()
        parts = tuple((part.kind, part.resource, part.count, part.amounts, part.constraints) for part in request)
        demand = (strategy, parts)
        answers = self._answers[is_constrained(request)]
        found = answers.pop(demand, None) or Answers(self._state, request, strategy)
        answers[demand] = found
        if len(answers) > MOST_DEMANDS:
            del answers[next(iter(answers))]
        found.catch_up()
        return found

    def _catch_up(self) -> None:
        """Have nodes that have changed judged again."""
        seen, self._seen = self._seen, self._changes.version
        if not self._changes.knows(seen):
            for remembered in self._answers:
                remembered.clear()
            return
        records = [record for change in self._changes.after(seen) for record in (change.before, change.after)]
        changed = {record.name for record in records if isinstance(record, NodeInfo)}
        for remembered in self._answers:
            for answers in remembered.values():
                answers.forget(changed)
