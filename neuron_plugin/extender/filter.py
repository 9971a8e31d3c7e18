"""Filter and prioritize: which of the nodes that kube-scheduler names can take a pod, and how they compare.

Filter runs inside the scheduler's one scheduling loop; what it answers is looked up in ``planning/choice``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import PlacementStrategy, PodRequest, PodUid, Rejection
from neuron_plugin.planning import PACK
from neuron_plugin.scheduling.state import BOUND_ELSEWHERE, UNKNOWN_NODE, ClusterState

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every candidate once: those that fit, and the others by why they do not."""

    passed: list[str]
    rejected: Mapping[Rejection, Collection[str]]

    @property
    def failed(self) -> dict[str, str]:
        """Those that may fit later, with a text each."""
        return self._texts(may_pass=True)

    @property
    def unresolvable(self) -> dict[str, str]:
        """Those that never will, with a text each."""
        return self._texts(may_pass=False)

    def _texts(self, *, may_pass: bool) -> dict[str, str]:
        texts: dict[str, str] = {}
        for rejection, names in self.rejected.items():
            if rejection.may_pass is may_pass:
                texts.update(dict.fromkeys(names, rejection.text))
        return texts


def filter_nodes(
    state: ClusterState,
    uid: PodUid,
    request: PodRequest,
    names: list[str],
) -> Filtered:
    """Which of the named nodes can take the pod now.

    A pod that is bound, or whose bind is under way or undecided, fits that one node only: the scheduler asks again
    when a bind call timed out, and must not carry the pod elsewhere.
    """
    target = state.bound_to(uid)
    if target:
        others = set(names) - {target}
        return Filtered([name for name in names if name == target], {BOUND_ELSEWHERE: others} if others else {})
    if not request:
        return Filtered(names, {})
    passed, rejected = state.choices.answers(request).split(names)
    if len(passed) + sum(map(len, rejected.values())) < len(names):
        unknown = {name for name in names if name not in state.nodes}
        return Filtered(passed, {**rejected, UNKNOWN_NODE: unknown} if unknown else rejected)
    return Filtered(passed, rejected)


def score_nodes(
    state: ClusterState,
    request: PodRequest,
    names: list[str],
    strategy: PlacementStrategy = PACK,
    *,
    alone: bool = True,
) -> list[int]:
    """Scores 0-10 in the order of ``names``: the best node gets 10, with its equals unless it leads ``alone``."""
    if not request:
        return [HIGHEST_SCORE] * len(names)
    answers = state.choices.answers(request, strategy)
    ranks = answers.values(names)
    if alone and (best := answers.best(frozenset(names))):
        ranks[names.index(best)] = min(rank for rank in ranks if rank is not None) - 1
    return scores(ranks)


def scores(ranks: list[float | None]) -> list[int]:
    """Ranks as scores 0-10 in the same order: the least gets 10, equal ranks get equal scores.

    Places, not amounts: however close two costs are, the better node leads by a whole point, which the shipped weight
    makes worth more than all of the scheduler's own scorers together. Beyond eleven distinct ranks the dearer ones
    share the points below. A node that was filled between filter and prioritize (None) gets 0: it must not win.
    """
    places = {value: place for place, value in enumerate(sorted(value for value in set(ranks) if value is not None))}
    worst = max(len(places) - 1, HIGHEST_SCORE)
    by_rank: dict[float | None, int] = {None: 0}
    by_rank |= {value: HIGHEST_SCORE - -(-place * HIGHEST_SCORE // worst) for value, place in places.items()}
    return list(map(by_rank.__getitem__, ranks))
