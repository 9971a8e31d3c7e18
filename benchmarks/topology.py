"""How near groups are placed in the network, beside other ways of placing them: the table of docs/performance.md.

    python benchmarks/topology.py                                   # 1024 nodes, three seeds: ten minutes of CPU
    python benchmarks/topology.py --nodes 5120 --jobs 12000 --seeds 1
    python benchmarks/topology.py --seeds 1 --jobs 600              # a minute

Nodes are Trn2 UltraServers of four, four of these in a leaf, below three layers of the network; their names say nothing
of their place. Jobs of 1 to 64 nodes and parts of nodes come at random, stay for an exponential time and are refused
where they do not fit. Every way meets the same jobs.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean

from neuron_plugin.allocation import NeuronPod, NodeInfo, PodReference, PodUid
from neuron_plugin.allocation.group import GroupMember
from neuron_plugin.allocation.shapes import parse_shape
from neuron_plugin.planning import Choices, Cluster, Scene
from neuron_plugin.planning.groups import GroupPlan, place_group
from neuron_plugin.planning.scene import Place
from neuron_plugin.simulation.replay import devices_asked, simulated_node
from neuron_plugin.topology import catalogue

GEOMETRY = catalogue()["trn2u.48xlarge"].geometry
LEAF, ULTRASERVER = 16, 4
"""Nodes in each."""
WHOLE = {1: 0.35, 2: 0.15, 4: 0.20, 8: 0.12, 16: 0.10, 32: 0.05, 64: 0.03}
"""Jobs by their nodes, one pod on each."""
PARTS = {(1, "neuron=1"): 0.4, (1, "neuron=4"): 0.3, (4, "neuron=8"): 0.15, (8, "neuron=4"): 0.15}
"""Jobs by their pods, which ask for parts of nodes."""
SHARE_OF_PARTS = 0.3
LOADS = (0.70, 0.85)
WARM = 0.2
"""The share of jobs that come before anything is counted: the cluster fills meanwhile."""
LARGE = 8
"""Nodes from which on a job's ring is counted."""


@dataclass(frozen=True, slots=True)
class Job:
    """When it comes and how long it stays, in hours; pods that are alike, and the nodes that they fill."""

    comes: float
    stays: float
    pods: int
    shape: str

    @property
    def devices(self) -> float:
        """What it asks for."""
        return self.pods * devices_asked(GEOMETRY, parse_shape(self.shape))

    @property
    def fills(self) -> int:
        """Nodes, if it has them alone."""
        return -(-int(self.devices) // GEOMETRY.device_count)


@dataclass
class Board:
    """The nodes, and what was given."""

    nodes: dict[str, NodeInfo]
    choices: Choices = field(init=False)
    held: dict[int, list[tuple[PodUid, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = Choices(self.nodes)

    @property
    def scene(self) -> Scene:
        """As decisions see it."""
        return Scene(Cluster(self.nodes, {}), self.choices)

    def put(self, pod: NeuronPod, place: Place) -> None:
        """A pod has come."""
        self._set(self.nodes[place[0]].with_pod(pod.reference, place[1]))

    def end(self, number: int) -> None:
        """The pods of a job go."""
        for uid, name in self.held.pop(number):
            self._set(self.nodes[name].without({uid}))

    def _set(self, info: NodeInfo) -> None:
        self.nodes[info.name] = info
        self.choices.forget(info.name)


Way = Callable[[Board, Sequence[NeuronPod]], list[Place] | None]
"""A place for each pod of a job, in the order of the ranks; None if it does not fit."""


def ours(board: Board, pods: Sequence[NeuronPod]) -> list[Place] | None:
    """As the placement controller does: pods of no group by themselves, groups at once."""
    scene = board.scene
    if len(pods) == 1:
        place = scene.best(pods[0])
        return [place] if place else None
    plan = place_group(scene, pods)
    return [plan.places[pod.uid] for pod in pods] if isinstance(plan, GroupPlan) else None


def one_by_one(board: Board, pods: Sequence[NeuronPod]) -> list[Place] | None:
    """Without topology, on nodes that have no labels: each pod on its best node by packing."""
    trial, places = board.scene, list[Place]()
    for pod in pods:
        place = trial.best(pod)
        if place is None:
            return None
        trial.put(pod, *place)
        places.append(place)
    return places


def kueue(board: Board, pods: Sequence[NeuronPod]) -> list[Place] | None:
    """Kueue's walk, preferring UltraServers: counts of free devices only, tightest domain first, then most free first.

    It knows no links, so a pod may get a node that has no linked set for it. Such a job counts as refused.
    """
    each = int(devices_asked(GEOMETRY, pods[0].requests))
    room = {name: info.free_mask.bit_count() // GEOMETRY.cores_per_device // each for name, info in board.nodes.items()}
    paths = {name: board.choices.domains.path(name) for name, pods_there in room.items() if pods_there}
    names = _kueue_walk(paths, room, len(pods))
    places, trial = list[Place](), board.scene
    for pod, name in zip(pods, names, strict=False):
        placement = trial.place(pod, name)
        if placement is None:
            return None
        trial.put(pod, name, placement)
        places.append((name, placement))
    return places if len(places) == len(pods) else None


def _kueue_walk(paths: dict[str, tuple[str, ...]], room: dict[str, int], wanted: int) -> list[str]:
    depths = len(next(iter(paths.values()), ()))
    held = defaultdict[tuple[str, ...], int](int)
    for name, path in paths.items():
        for depth in range(depths + 1):
            held[path[:depth]] += room[name]
    if wanted == 1:  # unconstrained: the domain with the least free capacity
        return [min(paths, key=lambda name: (room[name], name))] if paths else []
    below = defaultdict[tuple[str, ...], set[tuple[str, ...]]](set)
    for path in paths.values():
        for depth in range(depths):
            below[path[:depth]].add(path[: depth + 1])
    for depth in range(
        depths - 2, -1, -1
    ):  # the last two levels are the pair and the node; upwards from the UltraServer
        fitting = [domain for domain, count in held.items() if len(domain) == depth and count >= wanted]
        if fitting:
            chosen = {min(fitting, key=lambda domain: (held[domain], domain)): wanted}
            for _ in range(depth, depths):
                chosen = _split(chosen, below, held)
            return [path[-1] for path, count in sorted(chosen.items()) for _ in range(count)]
    return []


def _split(
    chosen: dict[tuple[str, ...], int],
    below: dict[tuple[str, ...], set[tuple[str, ...]]],
    held: dict[tuple[str, ...], int],
) -> dict[tuple[str, ...], int]:
    """The pods of domains over the domains below them: most free first, the last one the tightest that is enough."""
    missing, taken = sum(chosen.values()), dict[tuple[str, ...], int]()
    parts = sorted((part for domain in chosen for part in below[domain]), key=lambda part: (-held[part], part))
    while missing:
        enough = [part for part in parts if held[part] >= missing]
        part = min(enough, key=lambda one: (held[one], one)) if enough else parts[0]
        parts.remove(part)
        taken[part] = min(missing, held[part])
        missing -= taken[part]
    return taken


WAYS: dict[str, Way] = {"without topology": one_by_one, "Kueue's walk": kueue, "ours": ours}


@dataclass
class Outcome:
    """What became of a run's jobs."""

    asked: float = 0.0
    refused: float = 0.0
    small: Counter[bool] = field(default_factory=Counter)
    """Jobs that fill two or four nodes, by whether they are in one UltraServer."""
    edges: Counter[str] = field(default_factory=Counter)
    """Of the rings of large jobs: all, those that leave the UltraServer or the leaf, and the last with random ranks."""
    seconds: list[float] = field(default_factory=list)

    def figures(self) -> tuple[float, float, float, float, float]:
        """Small jobs in one UltraServer; edges that leave it and the leaf, the leaf at random ranks; refused."""
        every = self.edges["all"] or 1
        left = (self.edges[name] / every for name in ("ultraserver", "leaf", "random"))
        ultraserver, leaf, at_random = left
        return (self.small[True] / (self.small.total() or 1), ultraserver, leaf, at_random, self.refused / self.asked)


def built(number: int, chance: Random) -> dict[str, NodeInfo]:
    """So many empty nodes, with the labels of their place and names that say nothing of it."""
    names = [f"ip-{number:05}" for number in range(number)]
    chance.shuffle(names)
    nodes = dict[str, NodeInfo]()
    for place, name in enumerate(names):
        info = simulated_node(name, GEOMETRY)
        leaf = place // LEAF
        labels = {"topology.kubernetes.io/zone": "us-east-1a"}
        spread = ((1, leaf // 16), (2, leaf // 4), (3, leaf))
        labels |= {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}-{of:04}" for layer, of in spread}
        for size in (4, 2):
            labels[f"neuron-plugin.io/ultraserver-server-id-{size}"] = f"us{size}-{place // size:05}"
            labels[f"neuron-plugin.io/ultraserver-node-id-{size}"] = str(place % size)
        rules = replace(info.node.rules, labels=labels)
        nodes[name] = replace(info, node=replace(info.node, rules=rules))
    return dict(sorted(nodes.items()))


def come(nodes: int, load: float, number: int, seed: int) -> list[Job]:
    """So many jobs, which ask for a share ``load`` of all devices on average."""
    chance, jobs, now = Random(seed), list[Job](), 0.0
    kinds = [(pods, f"neuron={GEOMETRY.device_count}") for pods in WHOLE] + list(PARTS)
    weights = [share * (1 - SHARE_OF_PARTS) for share in WHOLE.values()]
    weights += [share * SHARE_OF_PARTS for share in PARTS.values()]
    sizes = [Job(0, 0, *kind).devices for kind in kinds]
    mean_size = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    rate = load * nodes * GEOMETRY.device_count / mean_size
    for kind in chance.choices(kinds, weights, k=number):
        now += chance.expovariate(rate)
        jobs.append(Job(now, chance.expovariate(1.0), *kind))
    return jobs


def run(way: Way, nodes: dict[str, NodeInfo], jobs: Sequence[Job]) -> Outcome:
    """What one way makes of the jobs."""
    where = {name: _place_of(info) for name, info in nodes.items()}
    known = {name: simulated_node(name, GEOMETRY) for name in nodes} if way is one_by_one else dict(nodes)
    board, outcome, ends, chance = Board(known), Outcome(), list[tuple[float, int]](), Random(0)
    for number, job in enumerate(jobs):
        while ends and ends[0][0] <= job.comes:
            board.end(heappop(ends)[1])
        pods = _pods_of(number, job)
        began = time.perf_counter()
        places = way(board, pods)
        outcome.seconds.append(time.perf_counter() - began)
        if number >= len(jobs) * WARM:
            outcome.asked += job.devices * job.stays
            outcome.refused += 0 if places else job.devices * job.stays
            if places:
                _count(outcome, job, [where[name] for name, _ in places], chance)
        if places:
            for pod, place in zip(pods, places, strict=True):
                board.put(pod, place)
            board.held[number] = [(pod.uid, name) for pod, (name, _) in zip(pods, places, strict=True)]
            heappush(ends, (job.comes + job.stays, number))
    return outcome


def _pods_of(number: int, job: Job) -> list[NeuronPod]:
    group, request = ("ml", f"job-{number}"), parse_shape(job.shape)
    return [
        NeuronPod(
            PodReference(PodUid(f"{number}/{rank}"), "ml", f"job-{number}-{rank}"),
            request,
            member=GroupMember(group, job.pods, (rank,)) if job.pods > 1 else None,
        )
        for rank in range(job.pods)
    ]


def _place_of(info: NodeInfo) -> tuple[str, str]:
    labels = info.node.rules.labels
    return labels["neuron-plugin.io/ultraserver-server-id-4"], labels["topology.k8s.aws/network-node-layer-3"]


def _count(outcome: Outcome, job: Job, places: list[tuple[str, str]], chance: Random) -> None:
    if job.fills in {2, ULTRASERVER} and job.pods > 1:
        outcome.small[len({ultraserver for ultraserver, _ in places}) == 1] += 1
    if job.fills >= LARGE:
        ring = list(pairwise([*places, places[0]]))
        outcome.edges["all"] += len(ring)
        outcome.edges["ultraserver"] += sum(one[0] != other[0] for one, other in ring)
        outcome.edges["leaf"] += sum(one[1] != other[1] for one, other in ring)
        shuffled = chance.sample(places, len(places))
        outcome.edges["random"] += sum(one[1] != other[1] for one, other in pairwise([*shuffled, shuffled[0]]))


def picture(bars: Sequence[tuple[str, float]]) -> str:
    """An SVG of bars, shares with their names; those of one load stand together."""
    rows = []
    for number, (name, share) in enumerate(bars):
        top = 34 + number * 24 + (8 if number >= len(bars) // 2 else 0)
        colour = "#2f7d4f" if name.startswith("ours, load") else "#8a94a3"
        rows += [
            f'<text x="210" y="{top + 13}" text-anchor="end">{name}</text>',
            f'<rect x="218" y="{top}" width="{share * 300:.0f}" height="18" fill="{colour}"/>',
            f'<text x="{share * 300 + 224:.0f}" y="{top + 13}">{share:.1%}</text>',
        ]
    height, title = 50 + len(bars) * 24, "Ring edges of jobs of 8 nodes and more that leave their leaf"
    size = f'width="580" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
            f'<title>{title}</title><rect {size} fill="#ffffff"/>',
            f'<g fill="#1d2733"><text x="10" y="20" font-weight="bold">{title}</text>',
            *rows,
            "</g></svg>\n",
        ]
    )


def main() -> None:
    """A line for each load and way, as it stands in the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--picture", type=Path, help="write docs/pictures/topology.svg or such a file, too")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    arguments = parser.parse_args()
    heads = ("load, placed", "2 and 4 nodes in one UltraServer", "edges that leave it", "the leaf", "refused", "a job")
    print("| " + " | ".join(heads) + " |\n|---|---|---|---|---|---|")
    bars = list[tuple[str, float]]()
    for load in LOADS:
        for name in arguments.ways:
            outcomes = [
                run(
                    WAYS[name],
                    built(arguments.nodes, Random(seed)),
                    come(arguments.nodes, load, arguments.jobs, seed),
                )
                for seed in range(arguments.seeds)
            ]
            small, ultraserver, leaf, at_random, refused = map(
                mean, zip(*(one.figures() for one in outcomes), strict=True)
            )
            seconds = mean(second for one in outcomes for second in one.seconds)
            cells = f"{small:.1%} | {ultraserver:.1%} | {leaf:.1%} | {refused:.2%} | {seconds * 1e3:.1f} ms |"
            print(f"| {load:.2f}, {name} | {cells}", flush=True)
            bars.append((f"{name}, load {load:.2f}", leaf))
            if name == "ours":
                print(f"| {load:.2f}, ours, ranks at random | {small:.1%} | | {at_random:.1%} | {refused:.2%} | |")
                bars.append((f"ours, ranks at random, load {load:.2f}", at_random))
    if arguments.picture:
        arguments.picture.write_text(picture(bars))


if __name__ == "__main__":
    main()
