"""Preempt: which of the pods that kube-scheduler would evict have to go so that a linked set comes free.

The scheduler's dry run counts devices and does not know links, so the victims that it offers may leave a hole of the
right size in the wrong places. Here the one search for victims is asked: the fewest, then those of the lowest priority,
that open a valid set. Whichever pods of the node it is given, kube-scheduler evicts, and checks nothing again
(pkg/scheduler/extender.go, framework/preemption/preemption.go).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neuron_plugin.allocation import Allocation, NeuronPod, NodeInfo, PodRequest, PodUid, Rejection
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.planning import PREEMPTION
from neuron_plugin.planning.victims import openings

SEARCH_SECONDS = 0.05
"""No other verb is answered, and no Lease renewed, while victims are looked for."""
MOST_TRIALS = 100
"""Groups of victims looked at on one node, for a pod of several containers: a third of a millisecond each."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from one node, in the order that the scheduler gave them."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


def preempt(state: ClusterState, request: PodRequest, offered: Mapping[str, Victims]) -> dict[str, Victims]:
    """The offered nodes where evicting pods lets the request fit, with the victims it takes.

    For a pod that asks for no Neuron the offer stands as it is. A node without victims would end the whole preemption.
    Once the search has taken its time, the nodes that are left are left out.
    """
    offered = {name: victims for name, victims in offered.items() if victims.uids}
    if not request:
        return offered
    chosen = dict[str, Victims]()
    ends = time.perf_counter() + SEARCH_SECONDS
    for name, victims in offered.items():
        if chosen and time.perf_counter() > ends:
            break
        info = state.nodes.get(name)
        if info and (fewest := _victims_on(state, info, request, victims)):
            chosen[name] = fewest
    return chosen


def _victims_on(state: ClusterState, info: NodeInfo, request: PodRequest, offered: Victims) -> Victims | None:
    """The victims to evict, by falling priority; None when no eviction helps.

    A victim that has no Neuron cores here was offered for something else, CPU or memory, which is not ours to judge: it
    stays a victim. So does one whose allocation is unclear, because it keeps the node closed.
    """
    unclear = {pod.uid for pod, _ in info.unclear}
    if unclear.difference(offered.uids):
        return None
    opened = info.without(unclear) if unclear else info
    uids = [PodUid(uid) for uid in offered.uids if PodUid(uid) in opened.ledger.by_pod]
    candidates = [state.pods.get(uid) or _unseen(opened.ledger.by_pod[uid]) for uid in uids]
    best: tuple[NeuronPod, ...] = ()
    if isinstance(opened.capacity, Rejection) or isinstance(opened.capacity.place(request), Rejection):
        rules = replace(PREEMPTION, most_victims=len(candidates))
        ways = [*openings(opened, request, candidates, rules, most_trials=MOST_TRIALS)]
        if not ways:
            return None
        best = min(ways, key=lambda way: (len(way), sorted((victim.priority for victim in way), reverse=True)))
    evicted = {victim.uid for victim in best}
    kept = tuple(uid for uid in offered.uids if uid in evicted or uid not in opened.ledger.by_pod)
    # None of them is in the way of a set: they were offered for something else.
    return Victims(kept, offered.pdb_violations) if kept else offered


def _unseen(allocations: tuple[Allocation, ...]) -> NeuronPod:
    """A pod that the watch does not show yet, of which only the allocation is known: it goes last."""
    return NeuronPod(allocations[0].pod, (), priority=1 << 31)
