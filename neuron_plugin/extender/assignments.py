"""Which silicon a bind takes: the best set of the moment, with the annotations that say so, and why it was chosen.

Nothing is reserved here. A choice is one look at the state, so whoever reserves it before anything else can run gives
nothing away twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from neuron_plugin.allocation import (
    ASSIGNMENT_KEYS,
    DecisionLog,
    Dialect,
    Holder,
    LoggedDecision,
    PodReference,
    PodRequest,
    Rejection,
    Step,
    write_assignment,
)
from neuron_plugin.extender.attempts import Ending, Outcome
from neuron_plugin.extender.claims import PodRecord, Unreadable, holder_for
from neuron_plugin.extender.shapes import ClosedShape
from neuron_plugin.extender.state import ClusterState, Reservation
from neuron_plugin.extender.verdicts import placement_on


class Assignments:
    """Choices on one state; ``clock`` is monotonic seconds, ``unix_ns`` the time that stands on pods."""

    def __init__(
        self,
        state: ClusterState,
        dialects: Collection[Dialect],
        clock: Callable[[], float],
        unix_ns: Callable[[], int],
    ) -> None:
        self._state = state
        self._dialects = dialects
        self._clock = clock
        self._unix_ns = unix_ns
        self.journal = DecisionLog()

    def choose(self, record: PodRecord, node: str) -> Reservation | Outcome:
        """What to reserve for a pod, or why it cannot be bound there; a pod that needs nothing gets no annotations."""
        if isinstance(record.request, Unreadable):
            return Outcome(Ending.NO_SET, record.request.text)
        if not record.request:
            return Reservation(record.pod, node, Holder(record.pod, ()), {}, self._clock())
        return self._choose_set(record.pod, record.request, node)

    def remember(self, bound: Reservation) -> None:
        """Keep what was chosen and from what, so that it can be explained later."""
        shape = bound.chosen_from
        if shape is None:
            return
        for holding in bound.holder.holdings:
            entry = LoggedDecision(
                at_ns=self._unix_ns(),
                step=Step.BOUND,
                node=bound.node,
                geometry=shape.geometry,
                resource=holding.resource,
                chosen=holding.mask,
                reason="takes least from later pods",
                pod=bound.pod,
                container=holding.container,
                usable=partial(int, shape.free_mask),
            )
            self.journal.record(entry)

    def _choose_set(self, pod: PodReference, request: PodRequest, node: str) -> Reservation | Outcome:
        shape = self._state.shapes[node]
        if isinstance(shape, ClosedShape):
            return Outcome(Ending.NO_SET, shape.refusal.text)
        placement = placement_on(shape, request)
        if isinstance(placement, Rejection):
            return Outcome(Ending.NO_SET, placement.text)
        annotations = write_assignment(shape.geometry, placement, self._unix_ns(), self._dialects)
        if not annotations.keys() & set(ASSIGNMENT_KEYS):
            return Outcome(Ending.NO_SET, f"pod {pod} asks for two resources, which the vendor's dialect cannot say")
        return Reservation(pod, node, holder_for(pod, placement), annotations, self._clock(), chosen_from=shape)
