"""What the daemon's acts leave behind: an entry in the journal, a number, a line in the log.

Everything here is about decisions that are made already, so nothing here can change one. What is noted during an
Allocate costs a few microseconds; the rest waits until the kubelet has its answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from neuron_plugin.allocation import (
    DecisionLog,
    HolderLedger,
    Holding,
    LoggedDecision,
    PodReference,
    Resource,
    Step,
    mask_of,
)
from neuron_plugin.kubelet import AllocationRefusedError, RegistrationState
from neuron_plugin.plugin.claims import Claim
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.decisions import WaitingDecision, decision_of
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState

logger = logging.getLogger(__name__)

DECIDED = "the set a scheduler decided for this pod"
OWN = "what the pod holds already"
UNDECIDED = "no decision waits for these ids: the kubelet's choice, found free"
STEERED = "the oldest waiting decision of this size"
BEST = "no waiting decision fits: the best set of what is offered and free"


class Witness:
    """Keeps journal and counts of one node daemon; also the observer of its registrations."""

    def __init__(
        self,
        node: str,
        state: NodeState,
        counts: Counts,
        *,
        on_advertised: Callable[[], None] = lambda: None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``on_advertised`` is called when the kubelet has begun to follow a resource."""
        self.journal = DecisionLog()
        self.counts = counts
        self._node = node
        self._state = state
        self._on_advertised = on_advertised
        self._now_ns = now_ns
        self._unhealthy: Mapping[int, str] = {}

    # What the allocator decides.

    def preferred(
        self,
        resource: Resource,
        offered: Sequence[int],
        must_include: Sequence[int],
        ids: Sequence[int],
    ) -> None:
        """The kubelet was told to prefer ``ids``."""
        machine = self._state.machine
        if machine is None:
            return
        geometry, unit = machine.geometry, resource.unit
        chosen, waiting = mask_of(geometry, unit, tuple(ids)), self._state.waiting()
        decision = decision_of(waiting, resource, chosen)
        within, must = mask_of(geometry, unit, tuple(offered)), mask_of(geometry, unit, tuple(must_include))
        self.journal.record(
            LoggedDecision(
                at_ns=self._now_ns(),
                step=Step.PREFERRED,
                node=self._node,
                geometry=geometry,
                resource=resource,
                chosen=chosen,
                reason=STEERED if decision else BEST,
                pod=decision.pod if decision else None,
                container=decision.request.container if decision else "",
                usable=partial(_open_to, machine, self._state.ledger, () if decision else waiting, within, must),
                offered=within,
                must_include=must,
            )
        )

    def allocated(
        self, machine: Machine, before: HolderLedger, resource: Resource, ids: Sequence[int], claim: Claim
    ) -> None:
        """A container was given the cores of ``claim`` when the kubelet asked for ``ids``.

        ``before`` is the ledger as it was before that.
        """
        self.counts.allocations[resource] += 1
        reason = DECIDED if claim.decided else OWN if claim.pod else UNDECIDED
        usable = partial(_free, machine, before)
        self.journal.record(
            LoggedDecision(
                self._now_ns(),
                Step.ALLOCATED,
                self._node,
                machine.geometry,
                resource,
                claim.mask,
                reason,
                claim.pod,
                claim.container,
                usable,
                mask_of(machine.geometry, resource.unit, tuple(ids)),
            )
        )

    def refused(self, resource: str, ids: Sequence[str], error: AllocationRefusedError) -> None:
        """The kubelet was refused ``ids``."""
        machine, name = self._state.machine, Resource(resource)
        if machine is None:
            return
        asked = mask_of(machine.geometry, name.unit, tuple(map(int, ids)))
        usable = partial(_free, machine, self._state.ledger)
        self.journal.record(
            LoggedDecision(
                at_ns=self._now_ns(),
                step=Step.REFUSED,
                node=self._node,
                geometry=machine.geometry,
                resource=name,
                chosen=asked,
                reason=str(error),
                usable=usable,
                offered=asked,
            )
        )

    def corrected(self, pod: PodReference, holdings: Sequence[Holding], text: str) -> None:
        """A pod was found to hold other ids than were decided for it, and its annotation is written anew."""
        self.counts.corrections += 1
        machine = self._state.machine
        if machine is None:
            return
        for holding in holdings:
            self.journal.record(
                LoggedDecision(
                    at_ns=self._now_ns(),
                    step=Step.CORRECTED,
                    node=self._node,
                    geometry=machine.geometry,
                    resource=holding.resource,
                    chosen=holding.mask,
                    reason=text,
                    pod=pod,
                    container=holding.container,
                )
            )

    # What becomes of the hardware.

    def saw(self, machine: Machine) -> None:
        """The machine as it is advertised from now on."""
        if machine.unhealthy is self._unhealthy:
            return
        before, self._unhealthy = self._unhealthy.keys(), machine.unhealthy
        for device in machine.unhealthy.keys() - before:
            self.counts.health_transitions[device, "unhealthy"] += 1
        for device in before - machine.unhealthy.keys():
            self.counts.health_transitions[device, "healthy"] += 1

    # What becomes of registrations: kubelet.observer.Observer.

    def state_changed(self, resource: str, state: RegistrationState) -> None:
        """Say so when devices can be allocated from now on."""
        self.counts.state_changed(resource, state)
        if state is RegistrationState.ADVERTISED:
            logger.info("registered and advertised", extra={"resource": resource})
            self._on_advertised()

    def registration_ended(self, resource: str, error: str | None) -> None:
        """Count it."""
        self.counts.registration_ended(resource, error)

    def preference_replaced(self, resource: str, fault: str) -> None:
        """Count it."""
        self.counts.preference_replaced(resource, fault)

    def request_refused(self, resource: str, method: str, error: Exception) -> None:
        """Count it."""
        self.counts.request_refused(resource, method, error)


def _free(machine: Machine, ledger: HolderLedger) -> int:
    return machine.healthy_mask & ~ledger.used_mask


def _open_to(
    machine: Machine, ledger: HolderLedger, waiting: Sequence[WaitingDecision], offered: int, must_include: int
) -> int:
    free = _free(machine, ledger)
    for decision in waiting:
        free &= ~decision.mask
    return (offered & free) | must_include
