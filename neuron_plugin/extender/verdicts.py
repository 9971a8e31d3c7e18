"""Does a request fit a node in this state, and at what cost to later pods; remembered.

Nodes share shapes and pods share requests, so most answers are two look-ups. Filter asks only whether a set fits: for
one requesting container that is a mask test per valid set. The cost is worked out when prioritize asks, for nodes
that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation.cost import cost
from neuron_plugin.allocation.placement import Placement, place_healthy, placement_mask
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.requests import PodRequest
from neuron_plugin.extender.reasons import NodeRefusal
from neuron_plugin.extender.shapes import AnyShape, ClosedShape, Shape
from neuron_plugin.topology.sets import valid_sets

MOST_REQUESTS = 128
"""Distinct requests remembered; a cluster's workloads have few."""

MOST_SHAPES = 32_768
"""Distinct node states remembered per request before its table starts anew."""

HIGHEST_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (staging/src/k8s.io/kube-scheduler/extender/v1/types.go)."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a node does not fit: a code for metrics, the scheduler's text, and whether pods going away could mend it."""

    code: str
    text: str
    can_pass: bool


Verdict = Misfit | None
"""None when the request fits."""


class _Verdicts(dict[AnyShape, Verdict]):
    def __init__(self, request: PodRequest, misfits: dict[Misfit, Misfit]) -> None:
        super().__init__()
        self._request = request
        self._misfits = misfits

    def __missing__(self, shape: AnyShape) -> Verdict:
        found = judge(shape, self._request)
        verdict = self[shape] = self._misfits.setdefault(found, found) if found else None
        return verdict


class _Costs(dict[AnyShape, int]):
    def __init__(self, request: PodRequest) -> None:
        super().__init__()
        self._request = request

    def __missing__(self, shape: AnyShape) -> int:
        value = self[shape] = cost_on(shape, self._request)
        return value


class VerdictMemo:
    """Verdicts and costs by request and shape."""

    def __init__(self) -> None:
        self._verdicts: dict[PodRequest, _Verdicts] = {}
        self._costs: dict[PodRequest, _Costs] = {}
        self._misfits: dict[Misfit, Misfit] = {}

    def code_of(self, text: str) -> str:
        """The code of a text that a verdict has carried; for labels, which must be few."""
        return next((misfit.code for misfit in self._misfits if misfit.text == text), "other")

    def verdicts(self, request: PodRequest) -> dict[AnyShape, Verdict]:
        """The table of one request: subscript it with a shape; it fills itself."""
        table = self._verdicts.get(request)
        if table is None or len(table) > MOST_SHAPES:
            _forget_oldest(self._verdicts)
            table = self._verdicts[request] = _Verdicts(request, self._misfits)
        return table

    def costs(self, request: PodRequest) -> dict[AnyShape, int]:
        """What a request's best placement costs later pods, by shape; only shapes that fit may be asked."""
        table = self._costs.get(request)
        if table is None or len(table) > MOST_SHAPES:
            _forget_oldest(self._costs)
            table = self._costs[request] = _Costs(request)
        return table


def judge(shape: AnyShape, request: PodRequest) -> Verdict:
    """Whether a request fits a node of this shape, or why not."""
    if not request:
        return None
    if isinstance(shape, ClosedShape):
        return _misfit(shape.refusal)
    if len(request) == 1 and _one_fits(shape, request):
        return None
    placed = placement_on(shape, request)
    return _misfit(placed) if isinstance(placed, Refusal) else None


def placement_on(shape: Shape, request: PodRequest) -> Placement | Refusal:
    """The best sets for a request on an open node, or why there are none."""
    return place_healthy(shape.geometry, shape.healthy_mask, shape.free_mask, request)


def cost_on(shape: AnyShape, request: PodRequest) -> int:
    """What the best placement takes from later pods; 0 where nothing is placed."""
    if isinstance(shape, ClosedShape) or not request:
        return 0
    placed = placement_on(shape, request)
    if isinstance(placed, Refusal):
        return 0
    return cost(shape.geometry, shape.free_mask, placement_mask(placed))


def scores(costs: list[int]) -> list[int]:
    """Costs as scores 0-10 in the same order: the least cost alone gets 10, equal costs get equal scores.

    Ranks, not amounts: however close two costs are, the better node leads by a whole point, which the shipped weight
    makes worth more than all of the scheduler's own scorers together. Beyond eleven distinct costs the dearer ones
    share the points below.
    """
    ranks = {value: rank for rank, value in enumerate(sorted(set(costs)))}
    worst = max(len(ranks) - 1, HIGHEST_SCORE)
    by_cost = {value: HIGHEST_SCORE - -(-rank * HIGHEST_SCORE // worst) for value, rank in ranks.items()}
    return [by_cost[value] for value in costs]


def _one_fits(shape: Shape, request: PodRequest) -> bool:
    free, part = shape.free_mask, request[0]
    return any(mask & free == mask for mask in valid_sets(shape.geometry, part.resource.unit, part.count))


def _misfit(refusal: Refusal | NodeRefusal) -> Misfit:
    code = refusal.code if isinstance(refusal, NodeRefusal) else refusal.reason.value
    return Misfit(code, refusal.text, refusal.can_pass)


def _forget_oldest(tables: dict[PodRequest, _Verdicts] | dict[PodRequest, _Costs]) -> None:
    while len(tables) >= MOST_REQUESTS:
        tables.pop(next(iter(tables)))
