"""Verdicts and costs by node name, so that a filter of thousands of nodes is a few set operations.

Two layers: by shape, which nodes in the same state share, and by name on top, where a node's entry is dropped the
moment its record changes. Both fill themselves when they are asked. Of verdicts there are few, so the names stand in
one set for each: Python cuts a whole call's names with a set in one step, and what it costs is the hashes of the
names. Costs are many, and are looked up name by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import filterfalse
from typing import Generic, TypeAlias, TypeVar

from neuron_plugin.allocation import ContainerKind, PodRequest, Resource
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.shapes import AnyShape
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verdicts import Misfit, Verdict, cost_on, judge

MOST_REQUESTS = 32
"""Distinct demands remembered; a cluster's workloads have few."""

MOST_SHAPES = 32_768
"""Distinct node states remembered per request before its table starts anew."""

V = TypeVar("V")
_Demand: TypeAlias = tuple[tuple[ContainerKind, Resource, int], ...]


class ByShape(dict[AnyShape, V], Generic[V]):
    """Answers by shape, worked out when first asked for."""

    def __init__(self, answer: Callable[[AnyShape], V]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, shape: AnyShape) -> V:
        if len(self) >= MOST_SHAPES:
            self.clear()
        value = self[shape] = self._answer(shape)
        return value


class Verdicts:
    """What one request meets on the nodes it was asked of.

    Names of no known node are judged and not kept: anybody can invent them.
    """

    def __init__(self, shapes: Mapping[str, AnyShape], request: PodRequest) -> None:
        self._shapes = shapes
        self._by_shape: ByShape[Verdict] = ByShape(lambda shape: judge(shape, request))
        self._fitting: set[str] = set()
        self._unfit: dict[Misfit, set[str]] = {}

    def split(self, names: list[str]) -> tuple[list[str], dict[Misfit, set[str]]]:
        """The names that fit, as they came, and the others by why they do not."""
        passed = list(filter(self._fitting.__contains__, names))
        misfits = {misfit: hit for misfit, known in self._unfit.items() if (hit := known.intersection(names))}
        if len(passed) + sum(map(len, misfits.values())) == len(names):
            return passed, misfits
        for name in set(names).difference(passed, *misfits.values()):
            if verdict := self._judge(name):
                misfits.setdefault(verdict, set()).add(name)
        refused = set[str]().union(*misfits.values())
        return list(filterfalse(refused.__contains__, names)), misfits

    def forget(self, name: str) -> None:
        """The node of this name has changed."""
        self._fitting.discard(name)
        for misfit, known in list(self._unfit.items()):
            known.discard(name)
            if not known:
                del self._unfit[misfit]

    def _judge(self, name: str) -> Verdict:
        verdict = self._by_shape[self._shapes[name]]
        if name in self._shapes:
            known = self._fitting if verdict is None else self._unfit.setdefault(verdict, set())
            known.add(name)
        return verdict


class Costs(dict[str, int | None]):
    """What the best placement of one request costs later pods, by node name; names of no known node are not kept."""

    def __init__(self, shapes: Mapping[str, AnyShape], request: PodRequest) -> None:
        super().__init__()
        self._shapes = shapes
        self._by_shape: ByShape[int | None] = ByShape(lambda shape: cost_on(shape, request))

    def __missing__(self, name: str) -> int | None:
        value = self._by_shape[self._shapes[name]]
        if name in self._shapes:
            self[name] = value
        return value


class VerdictMemo:
    """The answers of one state, by demand. It observes the state, so that no answer outlives what it was about."""

    def __init__(self, state: ClusterState) -> None:
        self._shapes = state.shapes
        self._verdicts: dict[_Demand, Verdicts] = {}
        self._costs: dict[_Demand, Costs] = {}
        state.observe(self)

    def verdicts(self, request: PodRequest) -> Verdicts:
        """The verdicts on one request."""
        return self._remembered(self._verdicts, request, Verdicts)

    def costs(self, request: PodRequest) -> Costs:
        """What the best placement of a request costs later pods: subscript with a node's name."""
        return self._remembered(self._costs, request, Costs)

    def node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> None:  # noqa: ARG002 - the state's observer protocol
        """See ``state.Observer``. Of a node that was not there nothing was kept."""
        if before is None:
            return
        for verdicts in self._verdicts.values():
            verdicts.forget(before.name)
        for costs in self._costs.values():
            costs.pop(before.name, None)

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """What a pod changes for others it changes on its node."""

    def _remembered(
        self, tables: dict[_Demand, V], request: PodRequest, make: Callable[[Mapping[str, AnyShape], PodRequest], V]
    ) -> V:
        """The table of a demand; the one that was asked for longest ago makes room for a new one.

        Containers' names are no part of a demand: every workload has its own, and would have its table.
        """
        demand = tuple((part.kind, part.resource, part.count) for part in request)
        table = tables.pop(demand, None)
        if table is None:
            table = make(self._shapes, request)
        tables[demand] = table
        if len(tables) > MOST_REQUESTS:
            del tables[next(iter(tables))]
        return table
