"""Which pods to evict so that a linked set comes free.

The scheduler's dry run counts devices and does not know links, so the victims it offers may leave a hole of the right
size in the wrong places. Here evictions are simulated on the node's ledger: the fewest, then those of the lowest
priority, that open a valid set. Where the offered ones open none, the node is left out, unless pods that were not
offered may go, too (``--preempt-unoffered``).

kube-scheduler evicts whichever pods of the node it is given and checks neither priority nor disruption budgets again
(pkg/scheduler/extender.go, framework/preemption/preemption.go). Budgets are not known here, so a victim that was not
offered counts as a violation of one: the scheduler prefers a node without.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge

from neuron_plugin.allocation import (
    Allocation,
    Constraints,
    ContainerKind,
    ContainerRequest,
    DeviceFacts,
    NeuronPod,
    NodeInfo,
    PodRequest,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.narrowing import unconstrained, usable_mask
from neuron_plugin.allocation.node import amounts_used
from neuron_plugin.allocation.placement import cores_asked, is_constrained, place
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.planning import lowest_first
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

_MOST_TRIALS = 1000
"""Placements tried in one call for a pod of several requesting containers before few victims do instead of the fewest:
some 30 ms, in which no other verb is answered. One with amounts or a shared device costs a hundred times as much, and
counts so. Once they are used up, nodes are left out as soon as one has an answer."""
_COSTLY_TRIALS = 100
"""A trial with amounts or constraints counts as so many without."""
_LOOK = 0.1
"""The part of a trial that a group of victims counts for which is seen to have too few cores, without a placement."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from one node, in the order that the scheduler gave them."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


def preempt(
    state: ClusterState, request: PodRequest, offered: Mapping[str, Victims], *, unoffered_below: int | None = None
) -> dict[str, Victims]:
    """The offered nodes where evicting pods lets the request fit, with the victims it takes.

    Where the offered ones open no set, other Neuron pods of a priority lower than ``unoffered_below`` may go; without
    it none may. For a pod that asks for no Neuron the offer stands as it is. A node without victims would end the
    whole preemption.
    """
    offered = {name: victims for name, victims in offered.items() if victims.uids}
    if not request:
        return offered
    search = _Search(state.pods, request, unoffered_below)
    nodes = {name: info for name in offered if (info := state.nodes.get(name)) and not info.stale}
    chosen: dict[str, Victims] = {}
    for name, info in nodes.items():
        if chosen and search.trials <= 0:
            break
        if victims := search.victims_on(info, offered[name]):
            chosen[name] = victims
    return chosen


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A pod that may be evicted: rather one of low priority, and of equals one that was offered."""

    uid: PodUid
    mask: CoreMask
    rank: tuple[float, bool]
    allocations: tuple[Allocation, ...]


class _Search:
    """One pod's search for victims, node by node."""

    def __init__(self, pods: Mapping[PodUid, NeuronPod], request: PodRequest, unoffered_below: int | None) -> None:
        self._pods = pods
        self._request = request
        self._unoffered_below = unoffered_below
        self.trials = float(_MOST_TRIALS)
        constraints = request[0].constraints
        shared = isinstance(constraints, Constraints) and constraints.same_device
        self._narrows_only = (
            is_constrained(request) and not shared and not any(container.amounts for container in request)
        )

    def victims_on(self, info: NodeInfo, offered: Victims) -> Victims | None:
        """The victims to evict, by falling priority; None when no eviction helps.

        A victim that has no Neuron cores here was offered for something else, CPU or memory, which is not ours to
        judge: it stays a victim. So does one whose allocation is unclear, because it keeps the node closed.
        """
        unclear = {pod.uid for pod, _ in info.unclear}
        if unclear.difference(offered.uids):
            return None
        candidates = [
            _Candidate(uid, info.ledger.mask_of(uid), (self._priority_of(uid), uid not in offered.uids), allocations)
            for uid, allocations in info.ledger.by_pod.items()
            if uid not in unclear and (uid in offered.uids or self._may_go(uid, info.name))
        ]
        own = [candidate for candidate in candidates if candidate.uid in offered.uids]
        for among in (own, candidates):
            evicted = self._fewest(info, among, unclear)
            if evicted is not None:
                return self._answer(
                    offered, {candidate.uid for candidate in own}, {candidate.uid for candidate in evicted}
                )
        return None

    def _priority_of(self, uid: str) -> float:
        """Unknown of a pod without Neuron, and of one that the watch does not show yet."""
        pod = self._pods.get(PodUid(uid))
        return pod.priority if pod else float("inf")

    def _may_go(self, uid: PodUid, node: str) -> bool:
        """Whether a pod may be evicted unoffered; one that is not bound yet the scheduler would not find."""
        pod = self._pods.get(uid)
        if pod is None or self._unoffered_below is None:
            return False
        return pod.node == node and pod.priority < self._unoffered_below

    def _fewest(
        self, info: NodeInfo, candidates: list[_Candidate], unclear: set[PodUid]
    ) -> Sequence[_Candidate] | None:
        """The fewest whose end lets the request fit, the lowest priorities among equally few; None if none do."""
        inventory = info.inventory
        if inventory is None:
            return None
        leaving = unclear.union(candidate.uid for candidate in candidates)
        open_mask = inventory.healthy_mask & ~info.reserved_mask
        for allocation in info.ledger.allocations:
            if allocation.pod.uid not in leaving:
                open_mask &= ~allocation.mask
        staying = [allocations for uid, allocations in info.ledger.by_pod.items() if uid not in leaving]
        ranked, request = sorted(candidates, key=lambda candidate: candidate.rank), self._request
        if self._narrows_only:
            open_mask &= usable_mask(inventory.geometry, request[0], info.node.facts)
            request = unconstrained(request)
        board = _Board(inventory.geometry, open_mask, ranked, info.node.facts, staying)
        if not board.fits(request):
            return None
        return board.fewest_for(request[0]) if len(request) == 1 else self._fewest_for_all(board, request)

    def _fewest_for_all(self, board: _Board, request: PodRequest) -> Sequence[_Candidate]:
        """Exact while there are trials left; then the first that are enough, ranked by who is to go first."""
        geometry, candidates = board.geometry, board.candidates
        lasting = sum(
            cores_asked(geometry, container) for container in request if container.kind is not ContainerKind.INIT
        )
        missing = lasting - (board.open_mask & ~mask_union(candidates)).bit_count()
        freed = sorted(((candidate.mask & board.open_mask).bit_count() for candidate in candidates), reverse=True)
        least = next((size for size in range(len(freed) + 1) if sum(freed[:size]) >= missing), len(freed))
        cost = _COSTLY_TRIALS if is_constrained(request) else 1
        for size in range(least, len(candidates) + 1):
            for evicted in lowest_first(candidates, size):
                if self.trials <= 0:
                    return self._enough(board, request)
                is_enough = (mask_union(evicted) & board.open_mask).bit_count() >= missing
                self.trials -= cost if is_enough else _LOOK
                if is_enough and board.fits(
                    request, [candidate for candidate in candidates if candidate not in evicted]
                ):
                    return evicted
        return candidates

    def _enough(self, board: _Board, request: PodRequest) -> Sequence[_Candidate]:
        """The shortest list of those that are to go first which lets the request fit."""
        sizes = range(len(board.candidates) + 1)
        size = bisect_left(sizes, 1, key=lambda size: int(board.fits(request, board.candidates[size:])))
        return board.candidates[:size]

    def _answer(self, offered: Victims, own: set[PodUid], evicted: set[PodUid]) -> Victims:
        """If none of the offered is in the way of a set, they were offered for something else, all of them.

        A pod whose priority is unknown keeps its place among the offered.
        """
        kept = [uid for uid in offered.uids if uid in evicted or uid not in own]
        added = sorted(evicted - own, key=self._priority_of, reverse=True)
        if not kept and not added:
            return offered
        uids = merge(kept, added, key=self._priority_of, reverse=True)
        return Victims(tuple(uids), offered.pdb_violations + len(added))


@dataclass(frozen=True, slots=True)
class _Board:
    """What is open on a node once all candidates are gone, and these, the ones to go first in front."""

    geometry: Geometry
    open_mask: int
    candidates: Sequence[_Candidate]
    facts: DeviceFacts
    staying: Sequence[Sequence[Allocation]]
    """By pod, what those have that are no candidates."""

    def fits(self, request: PodRequest, spared: Sequence[_Candidate] = ()) -> bool:
        """Whether the request fits if these stay all the same."""
        open_mask, facts = self.open_mask, self.facts
        for candidate in spared:
            open_mask &= ~candidate.mask
        if is_constrained(request):
            pods = [*self.staying, *(candidate.allocations for candidate in spared)]
            facts = replace(facts, used=amounts_used(self.geometry, pods))
        return not isinstance(place(self.geometry, open_mask, request, facts), Rejection)

    def fewest_for(self, container: ContainerRequest) -> Sequence[_Candidate]:
        """Exact: every valid set names the pods in its way, and the best of these lists wins."""
        within = self.open_mask & usable_mask(self.geometry, container, self.facts.unused)
        sets = [
            mask
            for mask in valid_sets(self.geometry, container.resource.unit, container.count)
            if mask & within == mask
        ]
        ways = [way for mask in sets if (way := self._way_to(container, mask)) is not None]
        return min(ways, key=lambda way: (len(way), [candidate.rank for candidate in way]))

    def _way_to(self, container: ContainerRequest, mask: CoreMask) -> list[_Candidate] | None:
        """Who has to go for one set: those that have some of it, and those that leave too little of an amount there."""
        in_the_way = [candidate for candidate in self.candidates if candidate.mask & mask]
        if not container.amounts:
            return in_the_way[::-1]
        devices_mask = self.geometry.devices_mask(self.geometry.devices_touched(mask))
        others = [candidate for candidate in self.candidates if candidate not in in_the_way]
        sharing = [candidate for candidate in others if candidate.mask & devices_mask]
        for size in range(len(sharing) + 1):
            for more in lowest_first(sharing, size):
                staying = [candidate.allocations for candidate in others if candidate not in more]
                facts = replace(self.facts, used=amounts_used(self.geometry, [*self.staying, *staying]))
                if mask & usable_mask(self.geometry, container, facts) == mask:
                    return [candidate for candidate in self.candidates[::-1] if candidate in (*in_the_way, *more)]
        return None
