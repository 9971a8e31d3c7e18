"""Ways of choosing a node and a set, side by side: the extender's own, and those that it is compared with.

The extender's is the very code that it runs: ``place`` for the set, ``cost`` and ``tie_rank`` for the node. The others
choose among the same valid sets, for requests of one container.

Fragmentation gradient descent (FGD; Weng et al., ATC 2023) takes the set that adds least to the free cores that the
expected mix of requests cannot use; here a free core is of use to a request when a free valid set of it has the core.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import TypeAlias

from neuron_plugin.allocation import PodRequest, Rejection, cost, devices_lost, place, placement_mask, tie_rank
from neuron_plugin.planning.cluster import NodeState
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

Rank: TypeAlias = tuple[float, float]
"""How a node compares with others, the least first; nodes of equal rank go by name."""

Home: TypeAlias = tuple[Rank, str, CoreMask]
"""How a node compares with others, its name, and the set that a pod would get there."""

OURS = "ours"
POLICIES: Mapping[str, str] = {
    "spread": "the emptiest node, lowest ids: kube-scheduler's default scoring",
    "first-fit": "the first node, lowest ids",
    "best-fit": "the fullest node, tightest gap",
    "fgd": "fragmentation gradient descent, the first of equal nodes",
    "fgd-ties": "the same, of equal nodes the one that is used most",
    "ours-any": "least cost to later pods, any of equal nodes",
    OURS: "least cost to later pods, of equal nodes the one that is used most: the extender",
}
"""Names and meanings."""

_MOST_REMEMBERED = 200_000


class Policy:
    """One way of choosing. It remembers its choices by (geometry, free cores, request), which recur.

    ``mix`` is what FGD expects: how many pods of which request, relatively.
    """

    def __init__(self, name: str = OURS, mix: Mapping[PodRequest, float] | None = None) -> None:
        self.name = name
        self._mix = mix or {}
        self._random = Random(0)  # noqa: S311 - chooses among equals; every run goes the same way
        self._choices: dict[tuple[Geometry, int, PodRequest], tuple[float, CoreMask] | None] = {}
        self._unusable: dict[tuple[Geometry, int], float] = {}

    def choose(self, node: NodeState, request: PodRequest) -> tuple[Rank, CoreMask] | None:
        """The set that a pod would get on a node, and how the node compares with others; None if nothing fits."""
        geometry, free = node.geometry, node.free_mask
        key = (geometry, free, request)
        try:
            found = self._choices[key]
        except KeyError:
            if len(self._choices) >= _MOST_REMEMBERED:
                self._choices.clear()
            found = self._choices[key] = self._choose(geometry, free, request)
        if found is None:
            return None
        score, mask = found
        return (score, self._tie(node)), mask

    def kind(self, node: NodeState) -> Geometry | None:
        """What nodes have to have in common for their ranks to compare: costs count sets, which each geometry has."""
        return node.geometry if self.name.startswith(OURS) else None

    def best_of(self, nodes: Mapping[str, NodeState], heads: Collection[Home]) -> Home:
        """The best of the best nodes of each kind; between unlike hardware the devices decide that later pods lose."""
        if len(heads) == 1 or not self.name.startswith(OURS):
            return min(heads)

        def lost(head: Home) -> float:
            node = nodes[head[1]]
            return devices_lost(node.geometry, node.free_mask, head[2])

        return min(heads, key=lambda head: (lost(head), head))

    def _choose(self, geometry: Geometry, free: int, request: PodRequest) -> tuple[float, CoreMask] | None:
        placed = place(geometry, free, request)
        if isinstance(placed, Rejection):
            return None
        if self.name.startswith(OURS):
            mask = placement_mask(placed)
            return cost(geometry, free, mask), mask
        sets = free_sets(geometry, free, request)
        if self.name == "best-fit":
            return 0, min(sets, key=lambda mask: (_gap(free, mask), mask))
        if self.name.startswith("fgd"):
            before = self._fragmentation(geometry, free)
            return min((self._fragmentation(geometry, free & ~mask) - before, mask) for mask in sets)
        return 0, sets[0]

    def _tie(self, node: NodeState) -> float:
        match self.name:
            case "spread":
                return -node.free_mask.bit_count()
            case "best-fit":
                return node.free_mask.bit_count()
            case "ours-any":
                return self._random.random()
            case "ours" | "fgd-ties":
                return tie_rank(node.geometry, node.free_mask, len(node.pods))
        return 0

    def _fragmentation(self, geometry: Geometry, free: int) -> float:
        """What of the free cores is of no use to a pod of the mix, in cores, on average."""
        known = self._unusable.get((geometry, free))
        if known is not None:
            return known
        expected = 0.0
        for request, weight in self._mix.items():
            useful = 0
            for mask in free_sets(geometry, free, request):
                useful |= mask
            expected += weight * (free & ~useful).bit_count()
        self._unusable[geometry, free] = expected
        return expected


def free_sets(geometry: Geometry, free: int, request: PodRequest) -> list[CoreMask]:
    """The free valid sets of a request of one container, lowest ids first."""
    part = request[0]
    return [mask for mask in valid_sets(geometry, part.resource.unit, part.count) if mask & free == mask]


def _gap(free: int, mask: int) -> int:
    """The length of the run of free cores that a set lies in."""
    first, end = (mask & -mask).bit_length() - 1, mask.bit_length()
    while first and free >> (first - 1) & 1:
        first -= 1
    while free >> end & 1:
        end += 1
    return end - first
