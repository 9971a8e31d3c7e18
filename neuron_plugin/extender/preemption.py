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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import combinations

from neuron_plugin.allocation import (
    Allocation,
    ContainerRequest,
    DeviceFacts,
    NeuronPod,
    PodRequest,
    PodUid,
    Rejection,
    amounts_used,
    is_constrained,
    place,
)
from neuron_plugin.extender.state import ClusterState, NodeInfo
from neuron_plugin.extender.wire import Victims
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

_MOST_TRIALS = 1000
"""Placements tried in one call for a pod of several requesting containers before few victims do instead of the fewest:
some 30 ms, in which no other verb is answered."""


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
    answers = ((name, search.victims_on(info, offered[name])) for name, info in nodes.items())
    return {name: victims for name, victims in answers if victims}


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
        self._trials = iter(range(_MOST_TRIALS))

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
        own = [each for each in candidates if each.uid in offered.uids]
        for among in (own, candidates):
            evicted = self._fewest(info, among, unclear)
            if evicted is not None:
                return self._answer(offered, {each.uid for each in own}, {each.uid for each in evicted})
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
        leaving = unclear.union(each.uid for each in candidates)
        open_mask = inventory.healthy_mask & ~info.reserved_mask
        for allocation in info.ledger.allocations:
            if allocation.pod.uid not in leaving:
                open_mask &= ~allocation.mask
        staying = [each for uid, each in info.ledger.by_pod.items() if uid not in leaving]
        ranked = sorted(candidates, key=lambda each: each.rank)
        board = _Board(inventory.geometry, open_mask, ranked, info.node.facts, staying)
        if not board.fits(self._request):
            return None
        if len(self._request) == 1 and not is_constrained(self._request):
            return board.fewest_for(self._request[0])
        return board.fewest_for_all(self._request, self._trials)

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
        for each in spared:
            open_mask &= ~each.mask
        if is_constrained(request):
            pods = [*self.staying, *(each.allocations for each in spared)]
            facts = replace(facts, used=amounts_used(self.geometry, pods))
        return not isinstance(place(self.geometry, open_mask, request, facts), Rejection)

    def fewest_for(self, part: ContainerRequest) -> Sequence[_Candidate]:
        """Exact: every valid set names the pods in its way, and the best of these lists wins."""
        ways = (
            [each for each in reversed(self.candidates) if each.mask & mask]
            for mask in valid_sets(self.geometry, part.resource.unit, part.count)
            if mask & self.open_mask == mask
        )
        return min(ways, key=lambda way: (len(way), [each.rank for each in way]))

    def fewest_for_all(self, request: PodRequest, trials: Iterator[int]) -> Sequence[_Candidate]:
        """Exact while there are ``trials`` left; then every pod that can be is spared, the last first."""
        subsets = (chosen for size in range(len(self.candidates) + 1) for chosen in combinations(self.candidates, size))
        for evicted, _ in zip(subsets, trials, strict=False):
            if self.fits(request, [each for each in self.candidates if each not in evicted]):
                return evicted
        spared: list[_Candidate] = []
        for each in reversed(self.candidates):
            if self.fits(request, [*spared, each]):
                spared.append(each)
        return [each for each in self.candidates if each not in spared]
