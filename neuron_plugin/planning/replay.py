"""A cluster under arrivals: who is served, who is refused or waits, and what one choice or another costs.

Pods come, get a set or none, stay and go. A pod that fits nowhere is refused, or waits until it fits. With moves, a
victim goes on where it is moved to, for as long as it had left: what it really loses, the work since its start or
checkpoint, is added up beside that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from neuron_plugin.allocation import PodReference, PodRequest, PodUid, cores_asked
from neuron_plugin.planning.cluster import ClusterNodes, NodeState, PlannedPod, devices_asked
from neuron_plugin.planning.demand import Arrival
from neuron_plugin.planning.moves import MoveRules, after, cheapest_move
from neuron_plugin.planning.policies import Home, Policy, Rank
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry

BOUND = "bound"
"""In place of a policy: every pod may be moved whenever one comes, and links count for nothing."""

_NOWHERE: Rank = (inf, inf)


@dataclass
class Tally:
    """Device-hours of pods of one request: asked for, refused, and waited for."""

    pods: int = 0
    asked: float = 0.0
    refused_pods: int = 0
    refused: float = 0.0
    waited: float = 0.0


@dataclass
class Outcome:
    """What became of some arrivals. ``busy`` and ``empty`` are means over time: devices in use, nodes without a pod."""

    devices: int
    nodes: int
    by_request: dict[PodRequest, Tally] = field(default_factory=dict)
    moves: int = 0
    moved_pods: int = 0
    lost: float = 0.0
    """Device-hours that moved pods had run for, if nothing of them was kept."""
    busy: float = 0.0
    empty: float = 0.0
    last: ClusterNodes = field(default_factory=dict)
    """The nodes when the last pod had come, at ``last_time``; none under the bound."""
    last_time: float = 0.0
    waiting: list[PlannedPod] = field(default_factory=list)
    """The pods that waited then, or had been refused and would still have run."""

    @property
    def asked(self) -> float:
        """Device-hours that all pods asked for."""
        return sum(each.asked for each in self.by_request.values())

    @property
    def refused_share(self) -> float:
        """Device-hours refused, in parts of those asked for."""
        return sum(each.refused for each in self.by_request.values()) / (self.asked or 1.0)

    @property
    def mean_wait(self) -> float:
        """How long a requested device waits on average, in parts of the mean time that it is asked for."""
        return sum(each.waited for each in self.by_request.values()) / (self.asked or 1.0)

    def ask(self, kind: Geometry, arrival: Arrival) -> None:
        """A pod has come."""
        tally = self.by_request.setdefault(arrival.request, Tally())
        tally.pods += 1
        tally.asked += devices_asked(kind, arrival.request) * arrival.stays

    def serve(self, kind: Geometry, arrival: Arrival, now: float) -> None:
        """A pod has been given its set."""
        self.by_request[arrival.request].waited += devices_asked(kind, arrival.request) * (now - arrival.comes)

    def refuse(self, kind: Geometry, arrival: Arrival) -> None:
        """A pod is not served."""
        tally = self.by_request[arrival.request]
        tally.refused_pods += 1
        tally.refused += devices_asked(kind, arrival.request) * arrival.stays


class _Site(Protocol):
    """Where pods are put: nodes under a policy, or the bound."""

    moves: int
    moved_pods: int
    lost: float

    def start(self, uid: str, request: PodRequest, now: float) -> bool:
        """Give a pod what it asks for, if there is a place."""

    def end(self, uid: str) -> None:
        """The pod goes."""

    def used(self) -> tuple[float, int]:
        """Devices in use, and nodes without a pod."""


class Board:
    """The nodes of a cluster under one policy. Which node is best for a request is brought up to date by changes."""

    def __init__(self, nodes: Iterable[NodeState], policy: Policy, rules: MoveRules | None) -> None:
        """Without ``rules`` nothing is moved."""
        self.nodes = {node.name: node for node in sorted(nodes, key=lambda each: each.name)}
        self.moves = 0
        self.moved_pods = 0
        self.lost = 0.0
        self._policy = policy
        self._rules = rules
        kinds: dict[Geometry | None, list[str]] = {}
        for name, node in self.nodes.items():
            kinds.setdefault(policy.kind(node), []).append(name)
        self._kinds = list(kinds.values())
        self._places = {
            name: (kind, number) for kind, names in enumerate(self._kinds) for number, name in enumerate(names)
        }
        self._ranked: dict[PodRequest, list[list[Home]]] = {}
        self._changed: dict[PodRequest, dict[str, None]] = {}
        self._where: dict[str, str] = {}
        self._busy = 0.0
        self._empty = sum(not node.pods for node in self.nodes.values())

    def start(self, uid: str, request: PodRequest, now: float) -> bool:
        """Give a pod the set of choice on the node of choice; where there is none, make room for it by a move."""
        name, mask = self._best(request)
        pod = _pod(uid, request, now)
        if name:
            self._put(self.nodes[name].with_pod(replace(pod, mask=mask)))
            self._where[uid] = name
            return True
        move = self._rules and cheapest_move(self.nodes, pod, self._policy, now=now, rules=self._rules)
        if not move:
            return False
        states = after(self.nodes, move)
        for changed in dict.fromkeys((move.node, *(each.target for each in move.victims))):
            self._put(states[changed])
        self._where |= {each.pod.uid: each.target for each in move.victims} | {uid: move.node}
        self.moves += 1
        self.moved_pods += len(move.victims)
        self.lost += move.loss
        return True

    def end(self, uid: str) -> None:
        """The pod goes."""
        self._put(self.nodes[self._where.pop(uid)].without({uid}))

    def used(self) -> tuple[float, int]:
        """Devices in use, and nodes without a pod."""
        return self._busy, self._empty

    def _put(self, node: NodeState) -> None:
        before = self.nodes[node.name]
        self._busy += node.devices(node.used_mask) - before.devices(before.used_mask)
        self._empty += (not node.pods) - (not before.pods)
        self.nodes[node.name] = node
        for changed in self._changed.values():
            changed[node.name] = None

    def _best(self, request: PodRequest) -> tuple[str, CoreMask]:
        if request not in self._ranked:
            self._ranked[request] = [[self._rank(name, request) for name in names] for names in self._kinds]
        else:
            for name in self._changed[request]:
                kind, number = self._places[name]
                self._ranked[request][kind][number] = self._rank(name, request)
        self._changed[request] = {}
        heads = [head for head in map(min, self._ranked[request]) if head[0] != _NOWHERE]
        if not heads:
            return "", NO_CORES
        _, name, mask = self._policy.best_of(self.nodes, heads)
        return name, mask

    def _rank(self, name: str, request: PodRequest) -> Home:
        chosen = self._policy.choose(self.nodes[name], request)
        return (chosen[0], name, chosen[1]) if chosen else (_NOWHERE, name, NO_CORES)


class _Repacking:
    """Equal nodes on which all pods are packed again whenever one comes, largest first, whatever the links are."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.moves = self.moved_pods = 0
        self.lost = 0.0
        self._geometry = nodes[0].geometry
        self._nodes = len(nodes)
        self._sizes: dict[str, int] = {}
        self._counts: Counter[int] = Counter()

    def start(self, uid: str, request: PodRequest, now: float) -> bool:
        """Count the pod in if all can be packed with it."""
        del now
        cores = sum(cores_asked(self._geometry, part) for part in request)
        self._counts[cores] += 1
        if self._packed() is None:
            self._counts[cores] -= 1
            return False
        self._sizes[uid] = cores
        return True

    def end(self, uid: str) -> None:
        """The pod goes."""
        self._counts[self._sizes.pop(uid)] -= 1

    def used(self) -> tuple[float, int]:
        """Devices in use, and nodes without a pod."""
        cores = sum(size * count for size, count in self._counts.items())
        bins = self._packed() or Counter()
        return cores / self._geometry.cores_per_device, bins[self._geometry.core_count]

    def _packed(self) -> Counter[int] | None:
        """How many nodes have how many cores left if all is packed into the tightest gaps; None if it does not fit."""
        bins = Counter({self._geometry.core_count: self._nodes})
        for size in sorted((size for size, count in self._counts.items() if count), reverse=True):
            left = self._counts[size]
            for gap in sorted(gap for gap, count in bins.items() if count and gap >= size):
                each = gap // size
                full = min(bins[gap], left // each)
                bins[gap] -= full
                bins[gap - each * size] += full
                left -= full * each
                if left and bins[gap]:
                    bins[gap] -= 1
                    bins[gap - left * size] += 1
                    left = 0
            if left:
                return None
        return bins


def replay(
    nodes: Sequence[NodeState],
    arriving: Sequence[Arrival],
    policy: Policy | None,
    *,
    rules: MoveRules | None = None,
    waiting: bool = False,
) -> Outcome:
    """Let pods come to empty nodes. Without a policy it is the bound, for nodes of one type.

    ``rules`` allow a move for each pod that fits nowhere. With ``waiting`` such a pod stays until it fits, the oldest
    first among those that do; else it is refused.
    """
    board = Board(nodes, policy, rules) if policy else None
    site: _Site = board or _Repacking(nodes)
    kind = nodes[0].geometry
    outcome = Outcome(sum(node.geometry.device_count for node in nodes), len(nodes))
    coming = deque(enumerate(arriving))
    queue: list[tuple[int, Arrival]] = []
    turned_away: list[tuple[int, Arrival]] = []
    ends: list[tuple[float, str]] = []
    began = now = arriving[0].comes if arriving else 0.0
    while coming or queue:
        then, now = now, min(ends[0][0] if ends else inf, coming[0][1].comes if coming else inf)
        if now == inf:  # nothing ends any more: what waits now never fits
            turned_away += queue
            break
        busy, empty = site.used()
        outcome.busy += busy * (now - then)
        outcome.empty += empty * (now - then)
        if ends and ends[0][0] == now:
            site.end(heappop(ends)[1])
        else:
            queue.append(coming.popleft())
            outcome.ask(kind, queue[-1][1])
        left, hopeless = [], set[PodRequest]()
        for number, arrival in queue:
            if arrival.request not in hopeless and site.start(_uid(number), arrival.request, now):
                heappush(ends, (now + arrival.stays, _uid(number)))
                outcome.serve(kind, arrival, now)
            else:
                hopeless.add(arrival.request)
                left.append((number, arrival))
        if waiting:
            queue = left
        else:
            turned_away += left
            queue = []
        if not coming and board and not outcome.last:
            outcome.last = dict(board.nodes)
            outcome.last_time = now
            still = queue if waiting else [each for each in turned_away if each[1].comes + each[1].stays > now]
            outcome.waiting = [_pod(_uid(number), arrival.request, arrival.comes) for number, arrival in still]
    for _, arrival in turned_away:
        outcome.refuse(kind, arrival)
    time = now - began if 0 < now - began < inf else 1.0
    outcome.busy, outcome.empty = outcome.busy / time, outcome.empty / time
    outcome.moves, outcome.moved_pods, outcome.lost = site.moves, site.moved_pods, site.lost
    return outcome


def _uid(number: int) -> str:
    return f"pod-{number}"


def _pod(uid: str, request: PodRequest, since: float) -> PlannedPod:
    """A pod of a simulation: a controller makes it again, and it may be moved."""
    return PlannedPod(PodReference(PodUid(uid), "simulated", uid), request, movable=True, recreated=True, since=since)
