"""Filter and prioritize: pure look-ups on the cluster's state.

Both run inside the scheduler's one scheduling loop, so every millisecond here delays every pod. Nothing waits, logs
or allocates per node beyond the answer itself; what a node's state means for a request is remembered by shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import not_

from neuron_plugin.allocation.ledger import PodUid
from neuron_plugin.allocation.requests import PodRequest
from neuron_plugin.extender.memo import VerdictMemo
from neuron_plugin.extender.reasons import BOUND_ELSEWHERE
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verdicts import scores


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every candidate once: those that fit, those that may fit later, those that never will, with a text each."""

    passed: list[str]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]

    @property
    def reasons(self) -> Counter[str]:
        """How many nodes each text turned away."""
        return Counter(self.failed.values()) + Counter(self.unresolvable.values())


def filter_nodes(
    state: ClusterState, memo: VerdictMemo, uid: PodUid, request: PodRequest, names: list[str]
) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only: the scheduler asks again
    when a bind call timed out, and must not carry the pod elsewhere.
    """
    if target := state.bound_to(uid):
        return _only(target, names)
    found = list(map(memo.verdicts(request).__getitem__, names))
    if found.count(None) == len(found):
        return Filtered(names, {}, {})
    misfits = [(name, misfit) for name, misfit in compress(zip(names, found, strict=True), found) if misfit]
    return Filtered(
        list(compress(names, map(not_, found))),
        {name: misfit.text for name, misfit in misfits if misfit.can_pass},
        {name: misfit.text for name, misfit in misfits if not misfit.can_pass},
    )


def score_nodes(memo: VerdictMemo, request: PodRequest, names: Iterable[str]) -> list[int]:
    """Scores 0-10 in the order of ``names``: the node where the pod costs later pods least gets 10."""
    return scores(list(map(memo.costs(request).__getitem__, names)))


def _only(target: str, names: list[str]) -> Filtered:
    return Filtered(
        [name for name in names if name == target],
        {name: BOUND_ELSEWHERE.text for name in names if name != target},
        {},
    )
