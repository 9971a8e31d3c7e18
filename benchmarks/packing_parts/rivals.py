"""Other ways of choosing a node and a set, to compare the placement controller's with.

All choose among the same valid sets, for requests of one container. Fragmentation gradient descent (FGD; Weng et al.,
ATC 2023) takes the set that adds least to the free cores that the expected mix of requests cannot use. Here a free core
is of use to a request when a free valid set of it has the core. The bound packs all pods again whenever one comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from neuron_plugin.allocation import ContainerSet, NeuronPod, NodeInfo, Placement, PodRequest, Rejection
from neuron_plugin.allocation.cost import cost, tie_rank
from neuron_plugin.allocation.placement import cores_asked, place, placement_mask
from neuron_plugin.simulation.replay import Board
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

RIVALS: Mapping[str, str] = {
    "lowest-ids": "the emptiest node, lowest ids: kube-scheduler's default scoring",
    "first-fit": "the first node, lowest ids",
    "best-fit": "the fullest node, tightest gap",
    "fgd": "fragmentation gradient descent, the first of equal nodes",
    "fgd-ties": "the same, of equal nodes the one that is used most",
    "any-tie": "least cost to later pods, any of equal nodes",
}
"""Names and meanings."""


def geometry_of(node: NodeInfo) -> Geometry:
    """The geometry of a simulated node, which is always known."""
    assert node.inventory
    return node.inventory.geometry


class RivalBoard(Board):
    """Nodes of one type under another way of choosing; ``mix`` is what FGD expects, relatively."""

    def __init__(self, nodes: Sequence[NodeInfo], name: str, mix: Mapping[PodRequest, float]) -> None:
        super().__init__(nodes)
        self._name = name
        self._mix = mix
        self._random = Random(0)
        self._geometry = geometry_of(nodes[0])
        self._chosen: dict[tuple[int, PodRequest], tuple[float, CoreMask] | None] = {}
        self._unusable: dict[int, float] = {}

    def choose(self, pod: NeuronPod) -> tuple[str, Placement] | None:
        """The node and the set that a pod gets now."""
        options = []
        for name, node in self.nodes.items():
            key = int(node.free_mask), pod.requests
            if key not in self._chosen:
                self._chosen[key] = self._choose(*key)
            if found := self._chosen[key]:
                options.append((found[0], self._tie(node), name, found[1]))
        if not options:
            return None
        _, _, name, mask = min(options)
        return name, (ContainerSet(pod.requests[0], mask),)

    def _choose(self, free: int, request: PodRequest) -> tuple[float, CoreMask] | None:
        geometry = self._geometry
        placed = place(geometry, free, request)
        if isinstance(placed, Rejection):
            return None
        if self._name == "any-tie":
            mask = placement_mask(placed)
            return cost(geometry, free, mask), mask
        part = request[0]
        sets = [mask for mask in valid_sets(geometry, part.resource.unit, part.count) if mask & free == mask]
        if self._name == "best-fit":
            return 0, min(sets, key=lambda mask: (_gap(free, mask), mask))
        if self._name.startswith("fgd"):
            before = self._fragmentation(free)
            return min((self._fragmentation(free & ~mask) - before, mask) for mask in sets)
        return 0, sets[0]

    def _tie(self, node: NodeInfo) -> float:
        match self._name:
            case "lowest-ids":
                return -node.free_mask.bit_count()
            case "best-fit":
                return node.free_mask.bit_count()
            case "any-tie":
                return self._random.random()
            case "fgd-ties":
                return tie_rank(self._geometry, node.free_mask, len(node.ledger.by_pod))
        return 0

    def _fragmentation(self, free: int) -> float:
        """What of the free cores is of no use to a pod of the mix, in cores, on average."""
        if free not in self._unusable:
            expected = 0.0
            for request, weight in self._mix.items():
                useful, part = 0, request[0]
                for mask in valid_sets(self._geometry, part.resource.unit, part.count):
                    if mask & free == mask:
                        useful |= mask
                expected += weight * (free & ~useful).bit_count()
            self._unusable[free] = expected
        return self._unusable[free]


def _gap(free: int, mask: int) -> int:
    """The length of the run of free cores that a set lies in."""
    first, end = (mask & -mask).bit_length() - 1, mask.bit_length()
    while first and free >> (first - 1) & 1:
        first -= 1
    while free >> end & 1:
        end += 1
    return end - first


class Bound(Board):
    """Equal nodes on which all pods are packed again whenever one comes, largest first, whatever the links are."""

    def __init__(self, nodes: Sequence[NodeInfo]) -> None:
        super().__init__(nodes)
        self._geometry = geometry_of(nodes[0])
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
        bins = Counter({self._geometry.core_count: len(self.nodes)})
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
