"""Which of the victims that the scheduler offers really open a linked set.

The scheduler's dry run counts devices and does not know links, so its victims may leave a hole of the right size in
the wrong places. Here their removal is simulated on the node's ledger: the fewest victims, then those of the lowest
priority, that open a valid set stay; a node that they do not help is left out. Nobody is added: what was not offered
may have a higher priority or a disruption budget (pkg/scheduler/framework/preemption/preemption.go checks neither
again).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from neuron_plugin.allocation.ledger import Holder, PodUid
from neuron_plugin.allocation.placement import place
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.requests import PodRequest
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.wire import Victims
from neuron_plugin.topology.sets import valid_sets

_MOST_TRIALS = 300
"""Placements tried per node for a pod of several requesting containers, before settling for few instead of fewest."""


def preempt(state: ClusterState, request: PodRequest, offered: Mapping[str, Victims]) -> dict[str, Victims]:
    """The nodes where evicting offered pods lets the request fit, with the victims that are needed there.

    For a pod that asks for no Neuron the offer stands as it is; a node without victims would end the whole preemption.
    """
    if not request:
        return {name: victims for name, victims in offered.items() if victims.uids}
    chosen = {}
    for name, victims in offered.items():
        record = state.nodes.get(name)
        needed = _needed(record, request, victims, state.pods) if record else None
        if needed:
            chosen[name] = Victims(needed, victims.pdb_violations)
    return chosen


def _needed(
    record: NodeRecord, request: PodRequest, victims: Victims, pods: Mapping[PodUid, PodRecord]
) -> tuple[str, ...]:
    """The victims to evict, in the order offered; empty when they do not help.

    A victim that holds no Neuron silicon here was offered for something else, CPU or memory, which is not ours to
    judge: it stays a victim. So does one whose claim is unclear, because it keeps the node closed.
    """
    offered = set(victims.uids)
    unclear = {claim.pod.uid for claim in record.unclear}
    if not isinstance(record.hardware, Hardware) or record.stale or unclear - offered:
        return ()
    optional = [holder for holder in record.ledger if holder.pod.uid in offered - unclear]
    optional.sort(key=lambda holder: _priority(pods, holder))
    evicted = _fewest(record, record.hardware, request, optional)
    if evicted is None:
        return ()
    spared = {holder.pod.uid for holder in optional} - {holder.pod.uid for holder in evicted}
    return tuple(uid for uid in victims.uids if uid not in spared)


@dataclass(frozen=True, slots=True)
class _Board:
    """A node without the offered pods: what they can open, and what stays closed."""

    hardware: Hardware
    open_mask: int

    def free_after(self, spared: Iterable[Holder]) -> int:
        mask = self.open_mask
        for holder in spared:
            mask &= ~holder.mask
        return mask


def _fewest(
    record: NodeRecord, hardware: Hardware, request: PodRequest, optional: Sequence[Holder]
) -> tuple[Holder, ...] | None:
    """The fewest holders, lowest priority first among equals, whose end lets the request fit; None if none do."""
    leaving = {holder.pod.uid for holder in optional} | {claim.pod.uid for claim in record.unclear}
    stay_mask = 0
    for holder in record.ledger:
        if holder.pod.uid not in leaving:
            stay_mask |= holder.mask
    board = _Board(hardware, hardware.healthy_mask & ~stay_mask)
    if isinstance(place(hardware.geometry, board.open_mask, request), Refusal):
        return None
    return _for_one(board, request, optional) if len(request) == 1 else _for_several(board, request, optional)


def _for_one(board: _Board, request: PodRequest, optional: Sequence[Holder]) -> tuple[Holder, ...]:
    """Exact: every valid set names the holders in its way, and the best of these lists wins."""
    part = request[0]
    ways = [
        [rank for rank, holder in enumerate(optional) if holder.mask & mask]
        for mask in valid_sets(board.hardware.geometry, part.resource.unit, part.count)
        if mask & board.open_mask == mask
    ]
    best = min(ways, key=lambda ranks: (len(ranks), ranks[::-1]))
    return tuple(optional[rank] for rank in best)


def _for_several(board: _Board, request: PodRequest, optional: Sequence[Holder]) -> tuple[Holder, ...]:
    for evicted in islice(_by_size(optional), _MOST_TRIALS):
        if _fits(board, request, [holder for holder in optional if holder not in evicted]):
            return evicted
    spared: list[Holder] = []
    for holder in reversed(optional):
        if _fits(board, request, [*spared, holder]):
            spared.append(holder)
    return tuple(holder for holder in optional if holder not in spared)


def _by_size(optional: Sequence[Holder]) -> Iterator[tuple[Holder, ...]]:
    for size in range(len(optional) + 1):
        yield from combinations(optional, size)


def _fits(board: _Board, request: PodRequest, spared: Iterable[Holder]) -> bool:
    return not isinstance(place(board.hardware.geometry, board.free_after(spared), request), Refusal)


def _priority(pods: Mapping[PodUid, PodRecord], holder: Holder) -> int:
    record = pods.get(holder.pod.uid)
    return record.priority if record else 0
