"""Does a request fit a node in this state, and at what cost to later pods; remembered.

Nodes share shapes and pods share requests, so few verdicts are ever worked out. Filter asks only whether a set fits:
for one requesting container that is a mask test per valid set. The cost is worked out when prioritize asks, for nodes
that fit. How verdicts are found by a node's name is told in `memo`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from neuron_plugin.allocation import Placement, PodRequest, Rejection, cost, costs, place_healthy, placement_mask
from neuron_plugin.extender.reasons import NodeRefusal
from neuron_plugin.extender.shapes import AnyShape, ClosedShape, Shape
from neuron_plugin.topology import CoreMask, valid_sets

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""

_MISFITS = 4_096


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a node does not fit: a code for metrics, the scheduler's text, and whether pods going away could mend it."""

    code: str
    text: str
    may_pass: bool


Verdict = Misfit | None
"""None when the request fits."""


def judge(shape: AnyShape, request: PodRequest) -> Verdict:
    """Whether a request fits a node of this shape, or why not."""
    if not request:
        return None
    if isinstance(shape, ClosedShape):
        return misfit_of(shape.refusal)
    if len(request) == 1 and _one_fits(shape, request):
        return None
    placed = placement_on(shape, request)
    return misfit_of(placed) if isinstance(placed, Rejection) else None


def placement_on(shape: Shape, request: PodRequest) -> Placement | Rejection:
    """The best sets for a request on an open node, or why there are none."""
    return place_healthy(shape.geometry, shape.healthy_mask, shape.free_mask, request)


def cost_on(shape: AnyShape, request: PodRequest) -> int | None:
    """What the best placement takes from later pods; None where there is none."""
    if not request:
        return 0
    if isinstance(shape, ClosedShape):
        return None
    if len(request) == 1:
        return min(costs(shape.geometry, shape.free_mask, _fitting(shape, request)), default=None)
    placed = placement_on(shape, request)
    if isinstance(placed, Rejection):
        return None
    return cost(shape.geometry, shape.free_mask, placement_mask(placed))


def scores(found: list[int | None]) -> list[int]:
    """Costs as scores 0-10 in the same order: the least cost alone gets 10, equal costs get equal scores.

    Ranks, not amounts: however close two costs are, the better node leads by a whole point, which the shipped weight
    makes worth more than all of the scheduler's own scorers together. Beyond eleven distinct costs the dearer ones
    share the points below. A node that was filled between filter and prioritize gets 0: it must not win.
    """
    ranks = {value: rank for rank, value in enumerate(sorted(value for value in set(found) if value is not None))}
    worst = max(len(ranks) - 1, HIGHEST_SCORE)
    by_cost: dict[int | None, int] = {None: 0}
    by_cost |= {value: HIGHEST_SCORE - -(-rank * HIGHEST_SCORE // worst) for value, rank in ranks.items()}
    return list(map(by_cost.__getitem__, found))


def _one_fits(shape: Shape, request: PodRequest) -> bool:
    return any(True for _ in _fitting(shape, request))


def _fitting(shape: Shape, request: PodRequest) -> Iterator[CoreMask]:
    """The free sets for a request's one container."""
    free, part = shape.free_mask, request[0]
    return (mask for mask in valid_sets(shape.geometry, part.resource.unit, part.count) if mask & free == mask)


@lru_cache(maxsize=_MISFITS)
def misfit_of(refusal: Rejection | NodeRefusal) -> Misfit:
    """The one misfit of equal refusals: thousands of shapes are refused in the same few words."""
    code = refusal.code
    return Misfit(code, refusal.text, refusal.may_pass)
