"""Filter and prioritize: pure look-ups on the cluster's state.

Both run inside the scheduler's one scheduling loop, so every millisecond here delays every pod. Nothing waits, logs
or allocates per node beyond the answer itself; what a node's state means for a request is remembered by shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import PodRequest, PodUid
from neuron_plugin.extender.memo import VerdictMemo
from neuron_plugin.extender.reasons import BOUND_ELSEWHERE
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verdicts import Misfit, misfit_of, scores


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every candidate once: those that fit, and the others by why they do not."""

    passed: list[str]
    misfits: Mapping[Misfit, Collection[str]]

    @property
    def failed(self) -> dict[str, str]:
        """Those that may fit later, with a text each."""
        return self._texts(may_pass=True)

    @property
    def unresolvable(self) -> dict[str, str]:
        """Those that never will, with a text each."""
        return self._texts(may_pass=False)

    @property
    def texts(self) -> Counter[str]:
        """How many nodes each text turned away."""
        return self._counted(lambda misfit: misfit.text)

    @property
    def codes(self) -> Counter[str]:
        """How many nodes were turned away, by code."""
        return self._counted(lambda misfit: misfit.code)

    def _texts(self, *, may_pass: bool) -> dict[str, str]:
        texts: dict[str, str] = {}
        for misfit, names in self.misfits.items():
            if misfit.may_pass is may_pass:
                texts.update(dict.fromkeys(names, misfit.text))
        return texts

    def _counted(self, label: Callable[[Misfit], str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for misfit, names in self.misfits.items():
            counts[label(misfit)] += len(names)
        return counts


def filter_nodes(
    state: ClusterState, memo: VerdictMemo, uid: PodUid, request: PodRequest, names: list[str]
) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only: the scheduler asks again
    when a bind call timed out, and must not carry the pod elsewhere.
    """
    if target := state.bound_to(uid):
        return _only(target, names)
    return Filtered(*memo.verdicts(request).split(names))


def score_nodes(memo: VerdictMemo, request: PodRequest, names: Iterable[str]) -> list[int]:
    """Scores 0-10 in the order of ``names``: the node where the pod costs later pods least gets 10."""
    return scores(list(map(memo.costs(request).__getitem__, names)))


def _only(target: str, names: list[str]) -> Filtered:
    others = set(names) - {target}
    return Filtered([name for name in names if name == target], {misfit_of(BOUND_ELSEWHERE): others} if others else {})
