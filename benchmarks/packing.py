"""How well sets are chosen, next to simpler ways of choosing and to what no way of choosing could exceed.

Pods of mixed sizes come at random, stay for a random time and go. Judged twice. Either a pod that fits nowhere is lost:
then the core time served counts, in parts of a bound that knows the future and no topology (at every moment all that is
asked for, up to what the nodes have). Or it waits: then the time counts that a core asked for waits, in parts of the
mean time that a pod stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from random import Random
from statistics import mean

from neuron_plugin.allocation import costs, mask_of
from neuron_plugin.allocation.placement import fitting
from neuron_plugin.topology import CoreMask, Geometry, Unit
from tests.support.manifests import shipped_geometry

NODES, PODS, SEEDS = 6, 1500, 12
LOSING_LOAD, WAITING_LOAD = 1.0, 0.75
"""What is asked for on average, in parts of what the nodes have."""

Size = tuple[Unit, int]
Ranked = tuple[int, CoreMask]
"""The set of choice on one node, and how it compares with those of other nodes: the least is taken."""

DEVICE, CORE = Unit.DEVICE, Unit.CORE
MIXES: dict[str, dict[Size, float]] = {
    "trn1.32xlarge": {(DEVICE, 1): 8, (DEVICE, 4): 3, (DEVICE, 8): 1, (DEVICE, 16): 0.5},
    "trn2.48xlarge": {(CORE, 1): 8, (CORE, 2): 4, (CORE, 4): 4, (DEVICE, 4): 2, (DEVICE, 8): 0.7, (DEVICE, 16): 0.4},
    "inf2.48xlarge": {(DEVICE, 1): 6, (DEVICE, 2): 3, (DEVICE, 4): 2, (DEVICE, 6): 1, (DEVICE, 12): 0.4},
    "inf1.6xlarge": {(CORE, 1): 6, (CORE, 2): 3, (CORE, 3): 1, (DEVICE, 1): 1, (DEVICE, 2): 2, (DEVICE, 4): 0.5},
}
"""How many pods of which size, relatively."""


@dataclass(frozen=True, order=True)
class Pod:
    """When it comes, how long it stays (1 on average), what it asks for, and how many cores that is."""

    comes: float
    stays: float
    size: Size
    cores: int


@dataclass(frozen=True)
class Way:
    """A way of choosing: ``ranked`` on each node; of nodes that rank alike any, or always the first."""

    ranked: Callable[[Geometry, int, Sequence[CoreMask]], Ranked]
    any_of_equals: bool


def lowest(_geometry: Geometry, _free: int, sets: Sequence[CoreMask]) -> Ranked:
    """The lowest ids; no node is better than another."""
    return 0, sets[0]


def tightest(_geometry: Geometry, free: int, sets: Sequence[CoreMask]) -> Ranked:
    """The shortest run of free cores; the fullest node."""
    return free.bit_count(), min(sets, key=lambda mask: (_run(free, mask), mask))


def cheapest(geometry: Geometry, free: int, sets: Sequence[CoreMask]) -> Ranked:
    """This project's: what costs later pods least."""
    return min(zip(costs(geometry, free, sets), sets, strict=True))


WAYS = {
    "any node, lowest ids": Way(lowest, any_of_equals=True),
    "first fit: first node, lowest ids": Way(lowest, any_of_equals=False),
    "best fit: fullest node, tightest gap": Way(tightest, any_of_equals=False),
    "least cost, any node of equals": Way(cheapest, any_of_equals=True),
    "least cost, first node of equals": Way(cheapest, any_of_equals=False),
}


class Cluster:
    """Some nodes, and pods on them that are chosen for in one way."""

    def __init__(self, geometry: Geometry, way: Way) -> None:
        self._geometry = geometry
        self._way = way
        self._free = [int(geometry.all_mask)] * NODES
        self._ends: list[tuple[float, int, CoreMask]] = []
        self._random = Random(0)
        self._best = cache(self._rank)

    @property
    def next_end(self) -> float:
        """When the next pod goes."""
        return self._ends[0][0] if self._ends else float("inf")

    def end(self) -> None:
        """Let the next pod go."""
        _, node, mask = heappop(self._ends)
        self._free[node] |= mask

    def start(self, pod: Pod, now: float) -> bool:
        """Give a pod what it asks for, if there is a place."""
        found = [(best, node) for node, free in enumerate(self._free) if (best := self._best(free, pod.size))]
        if not found:
            return False
        least = min(rank for (rank, _), _ in found)
        equals = [(mask, node) for (rank, mask), node in found if rank == least]
        mask, node = self._random.choice(equals) if self._way.any_of_equals else equals[0]
        self._free[node] &= ~mask
        heappush(self._ends, (now + pod.stays, node, mask))
        return True

    def _rank(self, free: int, size: Size) -> Ranked | None:
        sets = fitting(self._geometry, free, *size)
        return self._way.ranked(self._geometry, free, sets) if sets else None


def served(cluster: Cluster, pods: Sequence[Pod], capacity: int) -> float:
    """Core time served in parts of the bound, where pods do not wait."""
    time = 0.0
    for pod in pods:
        while cluster.next_end <= pod.comes:
            cluster.end()
        time += pod.stays * pod.cores if cluster.start(pod, pod.comes) else 0.0
    return time / _bound(pods, capacity)


def waited(cluster: Cluster, pods: Sequence[Pod]) -> float:
    """Mean time that a core asked for waits; whoever fits goes first, the oldest first among those."""
    waiting: list[Pod] = []
    time = 0.0
    coming = list(reversed(pods))
    while coming or waiting:
        now = min(cluster.next_end, coming[-1].comes if coming else float("inf"))
        if now == cluster.next_end:
            cluster.end()
        else:
            waiting.append(coming.pop())
        left, hopeless = [], set[Size]()
        for pod in waiting:
            if pod.size not in hopeless and cluster.start(pod, now):
                time += (now - pod.comes) * pod.cores
            else:
                hopeless.add(pod.size)
                left.append(pod)
        waiting = left
    return time / sum(pod.cores for pod in pods)


def main() -> None:
    """A line for each type and way."""
    print(f"{'':51} served at load {LOSING_LOAD}  waited at load {WAITING_LOAD}")
    for name, mix in MIXES.items():
        geometry = shipped_geometry(name)
        losing = [_pods(geometry, mix, LOSING_LOAD, seed) for seed in range(SEEDS)]
        waiting = [_pods(geometry, mix, WAITING_LOAD, seed) for seed in range(SEEDS)]
        for title, way in WAYS.items():
            share = mean(served(Cluster(geometry, way), pods, NODES * geometry.core_count) for pods in losing)
            time = mean(waited(Cluster(geometry, way), pods) for pods in waiting)
            print(f"{name:14} {title:36} {share:18.1%} {time:19.2f}")


def _pods(geometry: Geometry, mix: dict[Size, float], load: float, seed: int) -> list[Pod]:
    random = Random(seed)
    cores = {size: mask_of(geometry, size[0], tuple(range(size[1]))).bit_count() for size in mix}
    mean_cores = sum(cores[size] * weight for size, weight in mix.items()) / sum(mix.values())
    now, pods = 0.0, []
    for size in random.choices(list(mix), list(mix.values()), k=PODS):
        now += random.expovariate(load * NODES * geometry.core_count / mean_cores)
        pods.append(Pod(now, random.expovariate(1.0), size, cores[size]))
    return pods


def _bound(pods: Sequence[Pod], capacity: int) -> float:
    """Core time under all that is asked for at each moment, cut at what there is."""
    steps = sorted([(pod.comes, pod.cores) for pod in pods] + [(pod.comes + pod.stays, -pod.cores) for pod in pods])
    asked, time, last = 0, 0.0, 0.0
    for now, change in steps:
        time += min(asked, capacity) * (now - last)
        asked, last = asked + change, now
    return time


def _run(free: int, mask: int) -> int:
    """The length of the run of free cores that a window lies in."""
    first, end = (mask & -mask).bit_length() - 1, mask.bit_length()
    while first and free >> (first - 1) & 1:
        first -= 1
    while free >> end & 1:
        end += 1
    return end - first


if __name__ == "__main__":
    main()
