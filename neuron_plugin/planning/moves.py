"""The cheapest move that opens a set for a waiting pod, what a drain takes, and how many more pods fit.

Often enough is free and nothing fits: the free devices are spread over nodes, or are not linked. No choice made now
mends that, and preemption does not see it. Moving a pod that fits elsewhere *now* does.

A move is only proposed if every victim has its set elsewhere with the opened set already given to the waiting pod, and
with the sets of the victims before it given away. Every opening of one node is looked at; the victims are then placed
one after the other, largest first, each where the extender would put it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from operator import itemgetter
from typing import TypeAlias

from neuron_plugin.allocation import PodRequest, Rejection, cores_asked, place, placement_mask
from neuron_plugin.planning.cluster import ClusterNodes, NodeState, PlannedPod, place_on
from neuron_plugin.planning.policies import Home, Policy
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry, valid_sets

MOST_TRIALS = 2_000
"""Groups of victims looked at on one node for a pod of several requesting containers."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """A pod that goes from one node to another, or to another set of the same. ``pod`` has its cores of before."""

    pod: PlannedPod
    source: str
    target: str
    mask: CoreMask


@dataclass(frozen=True, slots=True)
class Move:
    """Victims that make room, and the set that a pod gets then. ``loss`` is what they lose, in device-hours."""

    pod: PlannedPod
    node: str
    mask: CoreMask
    victims: tuple[Relocation, ...]
    loss: float


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Who may be moved. ``by_priority``: also a pod of lower priority than the waiting one's, without its consent."""

    most_victims: int = 4
    by_priority: bool = False

    def may_move(self, victim: PlannedPod, waiting: PlannedPod) -> bool:
        """Whether a pod may be evicted for the waiting one. Nothing would make a pod without a controller again."""
        return victim.recreated and (victim.movable or (self.by_priority and victim.priority < waiting.priority))


RULES = MoveRules()


_Openings: TypeAlias = list[tuple[float, int, int, str, CoreMask, tuple[PlannedPod, ...]]]
"""What is lost (device-hours, victims, cores), the node, the set that is opened, the victims; the least come first."""

_KnownOpenings: TypeAlias = dict[tuple[str, PodRequest, int], tuple[NodeState, _Openings]]
"""By node, request and priority: the state of the node that they were found in, and the openings."""


def cheapest_move(
    nodes: ClusterNodes,
    pod: PlannedPod,
    policy: Policy,
    *,
    now: float = 0.0,
    rules: MoveRules = RULES,
    known: _KnownOpenings | None = None,
) -> Move | None:
    """The move that loses the fewest device-hours, then the one of fewest victims, then of the smallest.

    ``now`` is in hours, on the clock of the pods' ``since``. Sets that are free need no move and are none. ``known``
    are openings of before, for the same ``now``, ``rules`` and pods; those that are found are added.
    """
    known, openings = {} if known is None else known, _Openings()
    for name, node in nodes.items():
        if not (node.open and pod.may_go_to(name)):
            continue
        key = name, pod.request, pod.priority
        if key not in known or known[key][0] is not node:
            found = [
                (
                    sum(node.devices(victim.mask) * max(0.0, now - victim.since) for victim in victims),
                    len(victims),
                    sum(victim.mask.bit_count() for victim in victims),
                    name,
                    mask,
                    victims,
                )
                for victims, mask in _openings(node, pod, rules)
            ]
            known[key] = node, found
        openings += known[key][1]
    openings.sort(key=itemgetter(slice(5)))  # all but the victims
    homes = _Homes(nodes, policy)
    for loss, _, _, name, mask, victims in openings:
        opened = nodes[name].without({victim.uid for victim in victims}).with_pod(replace(pod, mask=mask))
        relocations = homes.rehome(victims, name, {name: opened})
        if len(relocations) == len(victims):
            return Move(pod, name, mask, relocations, loss)
    return None


def still_possible(nodes: ClusterNodes, move: Move, rules: MoveRules) -> bool:
    """Whether a move that was found in an earlier state of these nodes can be made as it is.

    ``nodes`` need to hold no others than the move is about.
    """
    states = dict(nodes)
    for each in move.victims:
        source = states.get(each.source)
        now = next((pod for pod in source.pods if pod.uid == each.pod.uid), None) if source else None
        if source is None or now is None or now.mask != each.pod.mask or not rules.may_move(now, move.pod):
            return False
        states[each.source] = source.without({now.uid})
    sets = [(move.node, move.pod, move.mask), *((each.target, each.pod, each.mask) for each in move.victims)]
    for name, pod, mask in sets:
        node = states.get(name)
        if node is None or mask & node.free_mask != mask:
            return False
        states[name] = node.with_pod(replace(pod, mask=mask))
    return True


def after(nodes: ClusterNodes, move: Move) -> dict[str, NodeState]:
    """The cluster with the move made and the waiting pod in its set."""
    states = dict(nodes)
    for each in move.victims:
        states[each.source] = states[each.source].without({each.pod.uid})
    states[move.node] = states[move.node].with_pod(replace(move.pod, mask=move.mask))
    for each in move.victims:
        states[each.target] = states[each.target].with_pod(replace(each.pod, mask=each.mask))
    return states


def _openings(node: NodeState, pod: PlannedPod, rules: MoveRules) -> Iterator[tuple[tuple[PlannedPod, ...], CoreMask]]:
    """Who would have to go for which set: every valid set of one container, else groups of victims, smallest first."""
    movable = [victim for victim in node.pods if victim.mask and rules.may_move(victim, pod)]
    within = int(node.free_mask)
    for victim in movable:
        within |= victim.mask & node.offered_mask
    for other in node.pods:
        if other not in movable:
            within &= ~other.mask
    if len(pod.request) == 1:
        part = pod.request[0]
        for mask in valid_sets(node.geometry, part.resource.unit, part.count):
            if mask & within == mask:
                victims = tuple(victim for victim in movable if victim.mask & mask)
                if 0 < len(victims) <= rules.most_victims:
                    yield victims, mask
        return
    groups = (group for size in range(1, rules.most_victims + 1) for group in combinations(movable, size))
    for group, _ in zip(groups, range(MOST_TRIALS), strict=False):
        free = int(node.free_mask)
        for victim in group:
            free |= victim.mask & node.offered_mask
        placed = place(node.geometry, free, pod.request)
        if not isinstance(placed, Rejection):
            yield group, placement_mask(placed)


class _Homes:
    """Where pods fit in a cluster, remembered by request while some of its nodes are changed in thought."""

    def __init__(self, nodes: ClusterNodes, policy: Policy) -> None:
        self._nodes = nodes
        self._policy = policy
        self._ranked: dict[tuple[PodRequest, str, frozenset[str] | None], list[Home]] = {}

    def rehome(self, pods: Sequence[PlannedPod], source: str, changed: dict[str, NodeState]) -> tuple[Relocation, ...]:
        """New sets for pods that leave ``source``, largest first; ``changed`` are the nodes that differ by now.

        A pod stays on hardware of the kind that it has: what it runs was compiled for that. Pods that fit nowhere are
        left out.
        """
        found = []
        kind = self._nodes[source].geometry
        for pod in sorted(pods, key=lambda each: -each.mask.bit_count()):
            home = self._home(pod, kind.instance_type, changed)
            if home:
                name, mask = home
                found.append(Relocation(pod, source, name, mask))
                changed[name] = changed.get(name, self._nodes[name]).with_pod(replace(pod, mask=mask))
        return tuple(found)

    def _home(self, pod: PlannedPod, instance_type: str, changed: dict[str, NodeState]) -> tuple[str, CoreMask] | None:
        alike = [node for node in changed.values() if node.geometry.instance_type == instance_type]
        options = _rank(alike, pod, self._policy)
        key = (pod.request, instance_type, pod.nodes)
        if key not in self._ranked:
            others = (node for node in self._nodes.values() if node.geometry.instance_type == instance_type)
            self._ranked[key] = sorted(_rank(others, pod, self._policy))
        options += islice((each for each in self._ranked[key] if each[1] not in changed), 1)
        best = min(options, default=None)
        return best and (best[1], best[2])


def _rank(nodes: Iterable[NodeState], pod: PlannedPod, policy: Policy) -> list[Home]:
    chosen = ((node.name, policy.choose(node, pod.request)) for node in nodes if pod.may_go_to(node.name))
    return [(choice[0], name, choice[1]) for name, choice in chosen if choice]


@dataclass(frozen=True, slots=True)
class Drain:
    """What emptying a node takes: where its pods fit now, and those that fit nowhere, with their present cores."""

    node: str
    moved: tuple[Relocation, ...]
    stuck: tuple[PlannedPod, ...]


def drain(nodes: ClusterNodes, name: str, policy: Policy) -> Drain:
    """Find each pod of a node a set on another node of the same type, largest first, as if all were free to move."""
    emptied = replace(nodes[name], pods=(), open=False)
    moved = _Homes(nodes, policy).rehome(nodes[name].pods, name, {name: emptied})
    gone = {each.pod.uid for each in moved}
    return Drain(name, moved, tuple(pod for pod in nodes[name].pods if pod.uid not in gone))


def how_many_more(nodes: ClusterNodes, request: PodRequest) -> dict[str, int]:
    """How many pods of a request fit each node beside what is there, where any does."""
    found: dict[str, int] = {}
    known: dict[tuple[Geometry, int], int] = {}
    for name, node in nodes.items():
        key = (node.geometry, int(node.free_mask))
        if key not in known:
            copies = 0
            while not isinstance(place(*key, request * (copies + 1)), Rejection):
                copies += 1
            known[key] = copies
        if known[key]:
            found[name] = known[key]
    return found


def best_node(nodes: ClusterNodes, pod: PlannedPod, policy: Policy) -> tuple[str, CoreMask] | None:
    """Where a pod would go now, and the set that it would get; None if it fits nowhere."""
    heads: dict[Geometry | None, Home] = {}
    for home in _rank(nodes.values(), pod, policy):
        kind = policy.kind(nodes[home[1]])
        heads[kind] = min(home, heads.get(kind, home))
    best = policy.best_of(nodes, heads.values()) if heads else None
    return best and (best[1], best[2])


class Standing(enum.StrEnum):
    """How a waiting pod stands, as far as Neuron is concerned."""

    FITS = "fits"
    PIECES = "pieces"
    """Enough is free, but on several nodes, not linked, or in parts of devices."""
    SHORT = "short"
    """Less is free than the pod asks for."""
    NEVER = "never"
    """No open node could take it even if it were empty."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a waiting pod can expect: the set that it fits now, or the move that would open one."""

    pod: PlannedPod
    standing: Standing
    node: str = ""
    mask: CoreMask = NO_CORES
    move: Move | None = None


def prospects(
    nodes: ClusterNodes, pods: Iterable[PlannedPod], policy: Policy, *, now: float = 0.0, rules: MoveRules = RULES
) -> list[Prospect]:
    """The prospects of waiting pods, in the order given; each has its set, or its move, before the next is looked at.

    So what is promised to two pods can be had by both.
    """
    states, found, known = dict(nodes), [], _KnownOpenings()
    for pod in pods:
        chosen = best_node(states, pod, policy)
        if chosen:
            name, mask = chosen
            states = place_on(states, name, replace(pod, mask=mask))
            found.append(Prospect(pod, Standing.FITS, name, mask))
            continue
        standing = _standing(states, pod)
        in_pieces = standing is Standing.PIECES
        move = cheapest_move(states, pod, policy, now=now, rules=rules, known=known) if in_pieces else None
        states = after(states, move) if move else states
        found.append(Prospect(pod, standing, move=move))
    return found


def _standing(nodes: ClusterNodes, pod: PlannedPod) -> Standing:
    """Of a pod that fits nowhere now. Free devices where it may not go itself count, too: others can move there."""
    request, free = pod.request, Counter[Geometry]()
    for node in nodes.values():
        free[node.geometry] += node.free_mask.bit_count()
    offered = {(node.geometry, node.offered_mask) for name, node in nodes.items() if node.open and pod.may_go_to(name)}
    kinds = {kind for kind, mask in offered if not isinstance(place(kind, mask, request), Rejection)}
    for kind in kinds:
        if free[kind] >= sum(cores_asked(kind, part) for part in request):
            return Standing.PIECES
    return Standing.SHORT if kinds else Standing.NEVER
