"""Pods arrive at a cluster on paper: which are served, refused or waiting, under our placement and under AWS's.

Pods are random, from a mix of shapes, or come from a trace. A pod that fits nowhere is refused, or waits until it fits.
A moved pod keeps running for its remaining time; the work that it loses is summed up separately. The placement
controller's own code chooses nodes and sets.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, isfinite
from random import Random

from neuron_plugin.allocation import (
    ContainerSet,
    NeuronNode,
    NeuronPod,
    NodeInfo,
    NodeInventory,
    Placement,
    PlacementStrategy,
    PodReference,
    PodRequest,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.placement import cores_asked
from neuron_plugin.allocation.shapes import DemandError, parse_shape
from neuron_plugin.planning import Choices, Cluster, Move, MoveRules, Scene, cheapest_move
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

_COLUMNS = {"devices": "neuron", "cores": "neuroncore"}
_MIXES: Mapping[str, Mapping[str, float]] = {
    "train": {"neuroncore=1": 0.25, "neuron=1": 0.35, "neuron=4": 0.2, "neuron=8": 0.12, "neuron=16": 0.08},
    "infer": {"neuroncore=1": 0.5, "neuron=1": 0.25, "neuron=2": 0.1, "neuron=3": 0.05, "neuron=6": 0.1},
}
MIXES: Mapping[str, Mapping[PodRequest, float]] = {
    name: {parse_shape(shape): weight for shape, weight in mix.items()} for name, mix in _MIXES.items()
}
"""Mixes by name: the share of each request."""

_SECONDS_AN_HOUR = 3600.0


# Arrivals.


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod: when it arrives, how long it runs (both in hours), and its request."""

    comes: float
    stays: float
    request: PodRequest


def devices_asked(geometry: Geometry, request: PodRequest) -> float:
    """How many devices of such a node a request needs, in fractions for cores."""
    return sum(cores_asked(geometry, container) for container in request) / geometry.cores_per_device


def arrivals(
    geometries: Sequence[Geometry], mix: Mapping[PodRequest, float], load: float, pods: int, *, seed: int = 0
) -> list[Arrival]:
    """Random pods that run for an exponential time, an hour on average.

    ``load`` is the average demand as a share of all devices of nodes with these geometries.
    """
    random = Random(seed)  # noqa: S311 - a simulation, repeatable by its seed
    kinds = list(mix)
    asked = [devices_asked(geometries[0], request) for request in kinds]
    mean_asked = sum(size * weight for size, weight in zip(asked, mix.values(), strict=True)) / sum(mix.values())
    rate = load * sum(geometry.device_count for geometry in geometries) / mean_asked
    now, coming = 0.0, []
    for request in random.choices(kinds, list(mix.values()), k=pods):
        now += random.expovariate(rate)
        coming.append(Arrival(now, random.expovariate(1.0), request))
    return coming


def read_trace(text: str) -> list[Arrival]:
    """Arrivals from CSV with the columns ``time``, ``duration`` (both in hours) and ``devices`` or ``cores``.

    Raises:
        DemandError: a column is missing, or a line cannot be read.
    """
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if not {"time", "duration"} <= columns or columns.isdisjoint(_COLUMNS):
        heading = ",".join(rows.fieldnames or ())
        raise DemandError(f"the heading is {heading[:80]!r}, expected the columns time, duration, and devices or cores")
    found = []
    for row in rows:
        asked = [f"{name}={row[column]}" for column, name in _COLUMNS.items() if row.get(column)]
        try:
            (shape,) = asked
            arrival = Arrival(float(row["time"]), float(row["duration"]), parse_shape(shape))
            if not (isfinite(arrival.comes) and 0 < arrival.stays < inf):
                raise ValueError  # noqa: TRY301 - said below, with the line
        except (TypeError, ValueError):
            line = ",".join(str(value) for value in row.values())
            expected = "expected a time, a duration above 0, and devices or cores"
            raise DemandError(f"line {rows.line_num} is {line[:80]!r}, {expected}") from None
        found.append(arrival)
    return sorted(found, key=lambda arrival: arrival.comes)


# Replay.


def simulated_node(name: str, geometry: Geometry) -> NodeInfo:
    """An empty node with healthy devices."""
    inventory = NodeInventory(geometry, present=tuple(range(geometry.device_count)))
    return node_info(NeuronNode(name, name, inventory), ())


def simulated_pod(uid: str, request: PodRequest, since_hours: float, node: str = "") -> NeuronPod:
    """A movable pod with a controller; its work began at ``since_hours``."""
    reference = PodReference(PodUid(uid), "simulated", uid)
    since = since_hours * _SECONDS_AN_HOUR
    return NeuronPod(reference, request, node, controller="Simulation/simulated", movable=True, last_checkpoint=since)


@dataclass
class Tally:
    """Pods of one request, and their device-hours: asked for, refused, and waited for."""

    pods: int = 0
    asked: float = 0.0
    refused_pods: int = 0
    refused: float = 0.0
    waited: float = 0.0


@dataclass
class ReplayOutcome:
    """The result of a replay. ``busy`` and ``empty`` are means over time: devices in use, and nodes without a pod."""

    devices: int
    nodes: int
    by_request: dict[PodRequest, Tally] = field(default_factory=dict)
    moves: int = 0
    moved_pods: int = 0
    lost: float = 0.0
    """Device-hours of work that moved pods lost, if they kept no checkpoint."""
    busy: float = 0.0
    empty: float = 0.0
    last: Mapping[str, NodeInfo] = field(default_factory=dict)
    """The nodes at ``last_time``, after the last arrival."""
    last_pods: Mapping[PodUid, NeuronPod] = field(default_factory=dict)
    """The running pods at that time."""
    last_time: float = 0.0
    waiting: list[NeuronPod] = field(default_factory=list)
    """The pods that waited at that time, or were refused and would still run."""

    @property
    def pods(self) -> int:
        """The number of arrivals."""
        return sum(tally.pods for tally in self.by_request.values())

    @property
    def asked(self) -> float:
        """Device-hours that all pods asked for."""
        return sum(tally.asked for tally in self.by_request.values())

    @property
    def refused_share(self) -> float:
        """Refused device-hours, as a share of those asked for."""
        return sum(tally.refused for tally in self.by_request.values()) / (self.asked or 1.0)

    @property
    def mean_wait(self) -> float:
        """Device-hours waited, as a share of those asked for."""
        return sum(tally.waited for tally in self.by_request.values()) / (self.asked or 1.0)


class Board:
    """Nodes with the placement controller's choice of node and set; without ``rules`` no pod is moved."""

    def __init__(
        self,
        nodes: Iterable[NodeInfo],
        strategy: PlacementStrategy = PlacementStrategy.PACK,
        rules: MoveRules | None = None,
    ) -> None:
        self.nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        self.pods: dict[PodUid, NeuronPod] = {}
        self.moves = 0
        self.moved_pods = 0
        self.lost = 0.0
        self._strategy = strategy
        self._rules = rules
        self._choices = Choices(self.nodes)
        self._busy = 0.0
        self._empty = len(self.nodes)

    def start(self, uid: str, request: PodRequest, now: float) -> bool:
        """Place a pod, if need be by a move; whether it was placed."""
        pod = simulated_pod(uid, request, now)
        if choice := self.choose(pod):
            name, placement = choice
            self._put(self.nodes[name].with_pod(pod.reference, placement))
            self.pods[pod.uid] = simulated_pod(uid, request, now, name)
            return True
        move = self._rules and cheapest_move(
            Scene(Cluster(self.nodes, {**self.pods, pod.uid: pod})), pod, now=now * _SECONDS_AN_HOUR, rules=self._rules
        )
        if not move:
            return False
        self._make(move, now)
        return True

    def choose(self, pod: NeuronPod) -> tuple[str, Placement] | None:
        """The node and the sets for a pod, or None."""
        name = self._choices.answers(pod.requests, self._strategy).best(self.nodes)
        capacity = self.nodes[name].capacity if name else None
        placed = capacity.place(pod.requests) if capacity and not isinstance(capacity, Rejection) else None
        return (name, placed) if placed and not isinstance(placed, Rejection) else None

    def end(self, uid: str) -> None:
        """Remove a pod."""
        pod = self.pods.pop(PodUid(uid))
        self._put(self.nodes[pod.node].without({pod.uid}))

    def used(self) -> tuple[float, int]:
        """Devices in use, and nodes without a pod."""
        return self._busy, self._empty

    def _make(self, move: Move, now: float) -> None:
        for changed in move.made_on(self.nodes).values():
            self._put(changed)
        for pod, name in ((move.pod, move.node), *((victim.pod, victim.target) for victim in move.victims)):
            self.pods[pod.uid] = simulated_pod(pod.uid, pod.requests, now, name)
        self.moves += 1
        self.moved_pods += len(move.victims)
        self.lost += move.loss

    def _put(self, node: NodeInfo) -> None:
        before = self.nodes[node.name]
        self._busy += _devices(node) - _devices(before)
        self._empty += (not node.ledger.allocations) - (not before.ledger.allocations)
        self.nodes[node.name] = node
        self._choices.forget(node.name)


class AwsBoard(Board):
    """Nodes with AWS's placement: kube-scheduler takes the emptiest node, and ids are given from the lowest.

    With AWS's scheduler ``extension`` a pod gets a free linked set. Without it AWS's plugin admits only requests for
    one or all devices of a node ("invalid without the k8s-neuron-scheduler", 2.32.0.0).
    """

    def __init__(self, nodes: Iterable[NodeInfo], *, extension: bool) -> None:
        super().__init__(nodes)
        self._extension = extension
        self._sets: dict[tuple[Geometry, CoreMask, PodRequest], Placement | None] = {}

    def choose(self, pod: NeuronPod) -> tuple[str, Placement] | None:
        """See `Board`."""
        options = []
        for name, node in self.nodes.items():
            if node.inventory is None:
                continue
            key = node.inventory.geometry, node.free_mask, pod.requests
            if key not in self._sets:
                self._sets[key] = self._lowest(*key)
            if placed := self._sets[key]:
                options.append((-node.free_mask.bit_count(), name, placed))
        return min(options)[1:] if options else None

    def _lowest(self, geometry: Geometry, free: CoreMask, request: PodRequest) -> Placement | None:
        placed = list[ContainerSet]()
        for part in request:
            sets = valid_sets(geometry, part.resource.unit, part.count)
            mask = next((mask for mask in sets if mask & free == mask), None)
            if mask is None or not (self._extension or part.count == 1 or mask == geometry.all_mask):
                return None
            free = CoreMask(free & ~mask)
            placed.append(ContainerSet(part, mask))
        return tuple(placed)


def _devices(node: NodeInfo) -> float:
    """How many devices are in use, in fractions for cores."""
    return node.used_mask.bit_count() / node.inventory.geometry.cores_per_device if node.inventory else 0.0


def replay(board: Board, arriving: Sequence[Arrival], *, waiting: bool = False) -> ReplayOutcome:
    """Let pods arrive at empty nodes. Pods that do not fit are refused, or with ``waiting`` wait, the oldest first."""
    geometries = [node.inventory.geometry for node in board.nodes.values() if node.inventory]
    outcome = ReplayOutcome(sum(geometry.device_count for geometry in geometries), len(geometries))
    coming = deque(enumerate(arriving))
    queue: list[tuple[int, Arrival]] = []
    started: dict[int, float] = {}
    ends: list[tuple[float, str]] = []
    began = now = arriving[0].comes if arriving else 0.0
    while coming or queue:
        then = min(ends[0][0] if ends else inf, coming[0][1].comes if coming else inf)
        if then == inf:  # nothing ends any more: what waits now never fits
            break
        busy, empty = board.used()
        outcome.busy += busy * (then - now)
        outcome.empty += empty * (then - now)
        now = then
        if ends and ends[0][0] == now:
            board.end(heappop(ends)[1])
        else:
            queue.append(coming.popleft())
        left, hopeless = [], set[PodRequest]()
        for number, arrival in queue:
            if arrival.request not in hopeless and board.start(_uid(number), arrival.request, now):
                heappush(ends, (now + arrival.stays, _uid(number)))
                started[number] = now
            else:
                hopeless.add(arrival.request)
                left.append((number, arrival))
        queue = left if waiting else []
        if not coming and not outcome.last:
            outcome.last, outcome.last_pods, outcome.last_time = dict(board.nodes), dict(board.pods), now
            outcome.waiting = [
                simulated_pod(_uid(number), arrival.request, arrival.comes)
                for number, arrival in enumerate(arriving)
                if number not in started and (waiting or arrival.comes + arrival.stays > now)
            ]
    for number, arrival in enumerate(arriving):
        tally = outcome.by_request.setdefault(arrival.request, Tally())
        devices = devices_asked(geometries[0], arrival.request)
        tally.pods += 1
        tally.asked += devices * arrival.stays
        if number in started:
            tally.waited += devices * (started[number] - arrival.comes)
        else:
            tally.refused_pods += 1
            tally.refused += devices * arrival.stays
    outcome.busy, outcome.empty = (total / (now - began or 1.0) for total in (outcome.busy, outcome.empty))
    outcome.moves, outcome.moved_pods, outcome.lost = board.moves, board.moved_pods, board.lost
    return outcome


def _uid(number: int) -> str:
    return f"pod-{number}"
