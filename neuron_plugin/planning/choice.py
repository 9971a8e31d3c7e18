"""Which nodes can take a pod, and which of them is the best: the one choice that filter, gates, moves and replays make.

A verdict is a pure function of a node's capacity and a request. Verdicts are remembered in two layers. One is by
capacity, which nodes in the same state share; on top is one by node name, where a node is judged again once it has
changed. There are few reasons to refuse, so the names stand in one set for each: Python cuts all names of a call with a
set in one step. The nodes that fit stand in order, so the best is found without a look at the others.

Nodes of one geometry are ordered by what the pod costs later pods there. Among equals the most used node comes first,
so that empty nodes stay empty. On a torus (Trn1, Trn2) that is the node with the most pods, elsewhere (Inf1, Inf2) the
one with the fewest free cores. Then the name decides. Costs count sets, and each geometry has its own number of sets.
Between nodes of unlike hardware, the number of devices that later pods lose decides. If it is equal, the order is the
same as within one geometry.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache, partial
from itertools import chain, islice, takewhile
from types import MappingProxyType
from typing import NamedTuple

from neuron_plugin.allocation import (
    Capacity,
    Constraints,
    ContainerKind,
    NodeInfo,
    PlacementStrategy,
    PodRequest,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.claims import Attributes
from neuron_plugin.allocation.cost import cost, costs, devices_lost, tie_rank
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.node_rules import NO_USE, NodeUse, PodRules
from neuron_plugin.allocation.placement import fitting, is_constrained, placement_mask
from neuron_plugin.allocation.requests import Amounts
from neuron_plugin.planning.domains import Domains, Path
from neuron_plugin.planning.rules import (
    PreferredNodes,
    SpreadNodes,
    has_soft_taints,
    neuron_shortages,
    objections,
    shortages,
    soft_taints,
)
from neuron_plugin.planning.volumes import NO_VOLUMES, PodVolumes
from neuron_plugin.topology import Geometry

MOST_CAPACITIES = 32_768
"""Distinct capacities remembered per demand."""
MOST_DEMANDS = 32
"""Distinct demands remembered, with constraints and without; a cluster's workloads have few."""
MOST_RULES = 1_024
"""Distinct rules of pods (CPU, selectors and so on) whose nodes are remembered: each workload has its own.

Together they name at most as many nodes as ``MOST_DEMANDS`` rules that leave every node.
"""

MOST_EQUALS = 128
"""Equal nodes that are compared by the domain that a pod would leave whole: about 0.1 ms."""

PACK = PlacementStrategy.PACK


class NodeUses(dict[str, NodeUse]):
    """The requests of each node's pods; nothing for an unknown node."""

    def __missing__(self, name: str) -> NodeUse:
        return NO_USE


NO_USES: Mapping[str, NodeUse] = MappingProxyType(NodeUses())
Prefer = Callable[[Sequence[str]], Mapping[str, int]]
"""How much a pod would rather go to each of some nodes: the highest is the best."""
_Demand = tuple[PlacementStrategy, tuple[tuple[ContainerKind, Resource, int, Amounts, object, Attributes], ...]]


def verdict(capacity: Capacity | Rejection, request: PodRequest) -> int | Rejection:
    """The cost to later pods of the best placement on a node of this capacity, or why there is no placement.

    For one requesting container without a preference no placement is made: the cheapest free set is the best one.
    """
    if not request:
        return 0
    if isinstance(capacity, Rejection):
        return capacity
    geometry, free, container = capacity.geometry, capacity.free_mask, request[0]
    prefers = isinstance(container.constraints, Constraints) and container.constraints.has_preference
    if len(request) == 1 and not prefers:
        usable = free & usable_mask(geometry, container, capacity.facts) if is_constrained(request) else free
        if sets := fitting(geometry, usable, container.resource.unit, container.count):
            return min(costs(geometry, free, sets))
    placed = capacity.place(request)
    return _shared(placed) if isinstance(placed, Rejection) else cost(geometry, free, placement_mask(placed))


@lru_cache(maxsize=4_096)
def _shared(rejection: Rejection) -> Rejection:
    """Equal rejections as one object: thousands of capacities are rejected in the same few words."""
    return rejection


class Rank(NamedTuple):
    """How a node that fits compares with others of its ``kind``: the least is the best.

    Nodes of equal ``cost`` differ only in their use (``tie``) and their name. When pods are spread, ``cost`` is the
    negative number of free devices, and ``tie`` is the cost to later pods.
    """

    cost: int
    tie: int
    name: str
    kind: Geometry | None


class PreferenceOrder(enum.StrEnum):
    """When the preferences that a pod states decide."""

    FIRST = "first"
    """Before packing."""
    TIES = "ties"
    """Among nodes that packing finds equal."""


class Answers:
    """The verdict of every node on one demand, and the nodes that fit, in order.

    ``nodes`` is followed, not copied: ``changed`` are the names of the nodes to judge again. Unknown names are not
    kept, because anybody can invent them.
    """

    def __init__(
        self, nodes: Mapping[str, NodeInfo], request: PodRequest, strategy: PlacementStrategy = PlacementStrategy.PACK
    ) -> None:
        self._nodes = nodes
        self._strategy = strategy
        remembered = lru_cache(maxsize=MOST_CAPACITIES)
        self._verdict = remembered(partial(verdict, request=request))
        self._devices_lost = remembered(partial(_devices_lost, request=request))
        self.changed = set(nodes)
        self._ranks: dict[str, Rank] = {}
        self._orders: dict[Geometry | None, list[Rank]] = {}
        self._rejected: dict[Rejection, set[str]] = {}
        self._by_capacity: dict[Capacity, set[str]] | None = None
        self._capacities: dict[str, Capacity] = {}

    def by_capacity(self) -> Mapping[Capacity, set[str]]:
        """The nodes that fit, by capacity, for the counts of groups. It is kept up to date from the first call on."""
        if self._by_capacity is None:
            self._by_capacity = {}
            for name in self._ranks:
                self._classify(name, self._by_capacity)
        return self._by_capacity

    def _classify(self, name: str, by_capacity: dict[Capacity, set[str]]) -> None:
        if before := self._capacities.pop(name, None):
            by_capacity[before].discard(name)
            if not by_capacity[before]:
                del by_capacity[before]
        if name in self._ranks and isinstance(capacity := self._nodes[name].capacity, Capacity):
            self._capacities[name] = capacity
            by_capacity.setdefault(capacity, set()).add(name)

    def split(self, names: list[str]) -> tuple[list[str], dict[Rejection, set[str]]]:
        """The names that fit, in the given order, and the other known names by the reason why they do not fit."""
        passed = list(filter(self._ranks.__contains__, names))
        return passed, {reason: hit for reason, known in self._rejected.items() if (hit := known.intersection(names))}

    def values(self, names: list[str]) -> list[float | None]:
        """The score of each node, the least is best; None where the pod does not fit."""
        ranks = map(self._ranks.get, names)
        if len(self._orders) <= 1:
            return [rank and rank.cost for rank in ranks]
        return [rank and self._devices_lost(self._nodes[rank.name].capacity) for rank in ranks]

    def best(
        self,
        among: Container[str],
        skipped: Container[str] = (),
        changed: Mapping[str, NodeInfo] | None = None,
        prefer: Prefer | None = None,
        when: PreferenceOrder = PreferenceOrder.FIRST,
        choices: Choices | None = None,
    ) -> str:
        """The best of the nodes ``among`` that are not ``skipped``; empty when the pod fits none of them.

        ``changed`` are nodes as they would be. Preferences of the pod (``prefer``) decide first or among equals, as
        ``when`` says. ``choices`` know the network: among equals the node in the fullest domain comes first.
        """
        changed = changed or {}
        if prefer:
            ranks = [rank for rank in chain.from_iterable(self._orders.values()) if rank.name not in changed]
            ranks += filter(None, (self._rank(name, info) for name, info in changed.items()))
            ranks = [rank for rank in ranks if rank.name in among and rank.name not in skipped]
            if when is PreferenceOrder.TIES and (best := self.best(among, skipped, changed)):
                equals = {(rank.kind, rank.cost) for rank in ranks if rank.name == best}
                ranks = [rank for rank in ranks if (rank.kind, rank.cost) in equals]
            scores = prefer([rank.name for rank in ranks])
            most = max(scores.values(), default=0)
            among = {name for name, score in scores.items() if score == most}
        heads: dict[Geometry | None, tuple[Rank, Capacity | Rejection]] = {}
        for kind, order in self._orders.items():
            open_ranks = (
                rank for rank in order if rank.name not in changed and rank.name not in skipped and rank.name in among
            )
            if head := next(open_ranks, None):
                if choices:
                    head = _first_by_domain(head, open_ranks, choices)
                heads[kind] = (head, self._nodes[head.name].capacity)
        for name, info in changed.items():
            own_rank = None if name in skipped else self._rank(name, info)
            if own_rank and name in among and (own_rank.kind not in heads or own_rank < heads[own_rank.kind][0]):
                heads[own_rank.kind] = (own_rank, info.capacity)
        if len(heads) <= 1:
            return next((rank.name for rank, _ in heads.values()), "")
        return min((self._devices_lost(capacity), rank) for rank, capacity in heads.values())[1].name

    def catch_up(self) -> None:
        """Judge the nodes that have changed."""
        for name in self.changed:
            if known := self._ranks.pop(name, None):
                order = self._orders[known.kind]
                del order[bisect_left(order, known)]
            for reason in [reason for reason, names in self._rejected.items() if name in names]:
                self._rejected[reason].discard(name)
                if not self._rejected[reason]:
                    del self._rejected[reason]
            info = self._nodes.get(name)
            if info and isinstance(verdict := self._verdict(info.capacity), Rejection):
                self._rejected.setdefault(verdict, set()).add(name)
            elif info and (rank := self._rank(name, info)):
                insort(self._orders.setdefault(rank.kind, []), rank)
                self._ranks[name] = rank
            if self._by_capacity is not None:
                self._classify(name, self._by_capacity)
        self.changed.clear()
        self._orders = {kind: order for kind, order in self._orders.items() if order}

    def _rank(self, name: str, info: NodeInfo) -> Rank | None:
        """The rank of a node; None if the pod does not fit there."""
        capacity = info.capacity
        verdict = self._verdict(capacity)
        if isinstance(verdict, Rejection) or isinstance(capacity, Rejection):
            return None
        geometry, free_mask = capacity.geometry, capacity.free_mask
        if self._strategy is PlacementStrategy.SPREAD:
            return Rank(-len(geometry.whole_devices(free_mask)), verdict, name, None)
        return Rank(verdict, tie_rank(geometry, free_mask, len(info.ledger.by_pod)), name, geometry)


def _first_by_domain(head: Rank, others: Iterable[Rank], choices: Choices) -> Rank:
    """Among the nodes that differ from the first one only in name, the one in the most broken domain."""
    equals = takewhile(lambda rank: (rank.cost, rank.tie) == (head.cost, head.tie), others)
    if (second := next(equals, None)) is None or len((tree := choices.domains).levels) == 1:
        return head
    listed = [head, second, *islice(equals, MOST_EQUALS - 1)]
    around = dict[Path, tuple[int, ...]]()

    def broken_most(rank: Rank) -> tuple[tuple[int, ...], str]:
        path = tree.path(rank.name)
        if path[:-1] not in around:
            around[path[:-1]] = tree.empty_around(path)
        return around[path[:-1]], rank.name

    return min(listed, key=broken_most)


def _devices_lost(capacity: Capacity | Rejection, request: PodRequest) -> float:
    placed = capacity if isinstance(capacity, Rejection) else capacity.place(request)
    if isinstance(placed, Rejection) or isinstance(capacity, Rejection):
        return 0.0
    return devices_lost(capacity.geometry, capacity.free_mask, placement_mask(placed))


class Feasible:
    """The nodes that kube-scheduler leaves to pods of some rules, each judged when it is first asked for.

    A pod is placed after a look at a few nodes. Judging every node that has changed since the last pod of these rules
    would cost more with each workload. The memory is small when every node was judged and few are left, as for pods
    that wait.
    """

    def __init__(
        self, nodes: Mapping[str, NodeInfo], uses: Mapping[str, NodeUse], rules: PodRules, volumes: PodVolumes
    ) -> None:
        self._nodes = nodes
        self._uses = uses
        self._rules = rules
        self._volumes = volumes
        self._left = set[str]()
        self._unjudged = set(nodes)

    @property
    def size(self) -> int:
        """How many names are remembered."""
        return len(self._left) + len(self._unjudged)

    def __contains__(self, name: str) -> bool:
        if name in self._unjudged:
            self._judge(name)
        return name in self._left

    def of(self, names: AbstractSet[str]) -> set[str]:
        """The nodes of ``names`` that kube-scheduler leaves."""
        for name in self._unjudged & names:
            self._judge(name)
        return self._left & names

    def _judge(self, name: str) -> None:
        self._unjudged.discard(name)
        info = self._nodes.get(name)
        if info and leaves(info, self._uses[name], self._rules, self._volumes):
            self._left.add(name)

    def forget(self, name: str) -> None:
        """This node, or what its pods ask for, has changed; or it has come or is gone."""
        self._left.discard(name)
        self._unjudged.add(name)


class Choices:
    """The answers to every demand on the same nodes, and the nodes that kube-scheduler leaves to a pod by itself.

    Both are brought up to date node by node: ``forget`` names a node that has changed. ``nodes`` and ``uses`` are
    followed, not copied.
    """

    def __init__(
        self, nodes: Mapping[str, NodeInfo], uses: Mapping[str, NodeUse] = NO_USES, levels: Sequence[str] = ()
    ) -> None:
        """``levels`` are the node labels of the network's levels, if they replace the known ones."""
        self._nodes = nodes
        self._uses = uses
        self._plain: dict[_Demand, Answers] = {}
        self._constrained: dict[_Demand, Answers] = {}
        self._feasible: dict[tuple[PodRules, PodVolumes], Feasible] = {}
        self._rooms: dict[PodRules, dict[str, int | None]] = {}
        self._levels = levels
        self._soft = {name for name, info in nodes.items() if has_soft_taints(info.node.rules)}

    @cached_property
    def spread_nodes(self) -> SpreadNodes:
        """The nodes that count for topology spread, made when first asked for."""
        return SpreadNodes(self._nodes)

    @cached_property
    def preferred_nodes(self) -> PreferredNodes:
        """The nodes that pods prefer, made when first asked for."""
        return PreferredNodes(self._nodes)

    @cached_property
    def domains(self) -> Domains:
        """The network of the nodes, made when first asked for."""
        return Domains(self._nodes, self._levels)

    def unwilling(self, rules: PodRules) -> set[str]:
        """The nodes with a PreferNoSchedule taint that such pods do not tolerate."""
        infos = filter(None, map(self._nodes.get, self._soft))
        return {info.name for info in infos if soft_taints(rules, info.node.rules)}

    def answers(self, request: PodRequest, strategy: PlacementStrategy = PlacementStrategy.PACK) -> Answers:
        """The answers to one request, as of now; the demand that was used least recently makes room for a new one.

        A demand does not include the containers' names: otherwise every workload would have its own answers. However
        many constraints pods invent, demands without any stay remembered.
        """
        parts = tuple(
            (part.kind, part.resource, part.count, part.amounts, part.constraints, part.attributes) for part in request
        )
        demand = (strategy, parts)
        remembered = self._constrained if is_constrained(request) else self._plain
        answers = remembered.pop(demand, None) or Answers(self._nodes, request, strategy)
        remembered[demand] = answers
        if len(remembered) > MOST_DEMANDS:
            del remembered[next(iter(remembered))]
        answers.catch_up()
        return answers

    def feasible(self, rules: PodRules, volumes: PodVolumes = NO_VOLUMES) -> Feasible:
        """The nodes that kube-scheduler leaves to pods of these rules now, without rules about other pods' labels."""
        key = rules, volumes
        known = self._feasible.pop(key, None) or Feasible(self._nodes, self._uses, rules, volumes)
        self._feasible[key] = known
        if len(self._feasible) > MOST_DEMANDS:
            total = sum(one.size for one in self._feasible.values())
            while len(self._feasible) > MOST_RULES or total > MOST_DEMANDS * len(self._nodes):
                mean = total / len(self._feasible)
                large = (key for key, one in self._feasible.items() if one.size >= mean and one is not known)
                total -= self._feasible.pop(next(large, next(iter(self._feasible)))).size
        return known

    def rooms(self, rules: PodRules) -> dict[str, int | None]:
        """How many pods of these rules each node takes by kube-scheduler's counts, for the nodes computed so far."""
        rooms = self._rooms[rules] = self._rooms.pop(rules, {})
        if len(self._rooms) > MOST_DEMANDS:
            del self._rooms[next(iter(self._rooms))]
        return rooms

    def forget(self, name: str, *, node_changed: bool = True) -> None:
        """This node, or what its pods ask for, has changed; or it has come or is gone."""
        for answers in chain(self._plain.values(), self._constrained.values()):
            answers.changed.add(name)
        for feasible in self._feasible.values():
            feasible.forget(name)
        for rooms in self._rooms.values():
            rooms.pop(name, None)
        if domains := vars(self).get("domains"):
            domains.see_pods(name)
        if node_changed:
            for derived in ("spread_nodes", "preferred_nodes", "domains"):
                if known := vars(self).get(derived):
                    known.forget(name)
            info = self._nodes.get(name)
            if info and has_soft_taints(info.node.rules):
                self._soft.add(name)
            else:
                self._soft.discard(name)


def leaves(info: NodeInfo, use: NodeUse, rules: PodRules, volumes: PodVolumes) -> bool:
    """Whether kube-scheduler leaves a node to such pods, without rules about other pods' labels."""
    if volumes.waits:
        return False
    node = info.node.rules
    against = chain(
        neuron_shortages(rules, node, use),
        shortages(rules, node, use),
        objections(rules, info.name, node),
        volumes.objections(info.name, node.labels),
    )
    return not any(True for _ in against)
