"""What the kubelet is answered: which ids it should prefer, and what a container gets for its ids.

Allocate works from memory and awaits nothing, so it takes microseconds whatever the API server does. Waiting, under a
deadline, belongs to the preference. A refusal ends its pod for good (and a ReplicaSet makes the next one at once), so
it is only for what lasts: ids that another live pod holds, and sets that the operator has ruled out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from neuron_plugin.allocation import Holding, PodReference, Resource, ids_of, mask_of, why_not
from neuron_plugin.kubelet import AllocationRefusedError, ContainerAllocation
from neuron_plugin.plugin.callers import Callers
from neuron_plugin.plugin.claims import Call, Claim, Conflict
from neuron_plugin.plugin.container import ContainerStyle, container_allocation
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.gate import StartGate
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.report import Report
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.plugin.steering import Offer, Steering
from neuron_plugin.plugin.witness import Witness
from neuron_plugin.plugin.wording import NO_MACHINE, allocation_fields, conflict_text, unlinked_text
from neuron_plugin.topology import valid_sets

logger = logging.getLogger(__name__)

Later = Callable[[Callable[[], None]], object]
"""Do something once the kubelet has its answer."""


class Allocator:
    """Answers the kubelet for all resources of the node."""

    def __init__(
        self,
        state: NodeState,
        style: Callable[[Machine], ContainerStyle],
        policy: TopologyPolicy,
        report: Report,
        steering: Steering,
        *,
        witness: Witness | None = None,
        later: Later = lambda work: work(),
        gate: StartGate | None = None,
    ) -> None:
        """``style`` says how a machine's sets are presented in containers; no ``gate`` lets every container start.

        ``later`` puts off what the log is told of an Allocate; by default nothing is put off.
        """
        self._state = state
        self._style = style
        self._policy = policy
        self._report = report
        self._steering = steering
        self._witness = witness or Witness("", state, Counts())
        self._later = later
        self._gate = gate
        self._offer: Offer | None = None
        """What the kubelet asked about last, until its next Allocate."""

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Steer to the oldest waiting decision that fits, else to the best linked set."""
        self._state.called()
        self._offer = offer = Offer(Resource(resource), _numbers(available), _numbers(must_include), size)
        ids = await self._steering.preferred(self._machine(), offer)
        self._witness.preferred(offer.resource, offer.available, offer.must_include, ids)
        return [str(number) for number in ids]

    def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Give a container its devices for exactly these ids.

        Raises:
            AllocationRefusedError: another live pod holds some of them, they are not linked and must be, or only a
                pod whose request cannot be served can have asked.
        """
        self._state.called()
        return self._allocate(self._machine(), Resource(resource), _numbers(ids))

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Let the container start, or hold it for what passes by itself; asked only where there is a gate.

        Raises:
            NotYetError: the kubelet is to ask again.
        """
        if self._gate:
            await self._gate.pass_through(Resource(resource), _numbers(ids))

    def _allocate(self, machine: Machine, resource: Resource, ids: tuple[int, ...]) -> ContainerAllocation:
        claim = self._claim(machine, resource, ids)
        self._check_links(machine, resource, claim)
        pod, before = claim.pod or self._state.new_stand_in(), self._state.ledger
        drawn = mask_of(machine.geometry, resource.unit, ids)
        allocation = container_allocation(machine.geometry, resource, claim.mask, self._style(machine))
        self._state.hold(pod, Holding(claim.container, resource, claim.mask, drawn), claim.kin)
        self._witness.allocated(machine, before, resource, ids, claim)
        self._later(partial(_log, resource, ids, claim, pod, allocation))
        return allocation

    def _claim(self, machine: Machine, resource: Resource, ids: tuple[int, ...]) -> Claim:
        """Whom the ids are for."""
        callers = Callers(machine.geometry, self._state.pods, self._state.ledger, resource, len(ids))
        offer, self._offer = self._offer, None
        own = offer.must_include if offer and offer.is_met_by(resource, ids) else ids
        mask, own_mask = (mask_of(machine.geometry, resource.unit, each) for each in (ids, own))
        claim = self._state.claims(machine).claim(Call(resource, mask, own_mask))
        if isinstance(claim, Conflict):
            text = conflict_text(machine.geometry, resource, ids, callers.described(), claim.holders)
            asking = callers.asking()
            self._report.report("DeviceConflict", text, asking[0].pod if len(asking) == 1 else None)
            raise AllocationRefusedError(text)
        unservable = callers.unservable() if claim.pod is None else None
        if unservable:
            raise AllocationRefusedError(unservable.problem)
        return claim

    def _check_links(self, machine: Machine, resource: Resource, claim: Claim) -> None:
        """Sets that no scheduler decided are held against the topology; the policy says what that means."""
        ids = ids_of(machine.geometry, resource.unit, claim.mask)
        if claim.decided or claim.mask in valid_sets(machine.geometry, resource.unit, len(ids)):
            return
        refusal = why_not(machine.geometry, claim.mask, resource.unit, len(ids))
        if self._policy is TopologyPolicy.REQUIRED:
            raise AllocationRefusedError(refusal.text)
        self._report.report("UnlinkedDevices", unlinked_text(resource, ids, refusal), claim.pod)

    def _machine(self) -> Machine:
        if self._state.machine is None:
            raise AllocationRefusedError(NO_MACHINE)
        return self._state.machine


def _log(
    resource: Resource, ids: tuple[int, ...], claim: Claim, pod: PodReference, allocation: ContainerAllocation
) -> None:
    logger.info("allocated", extra=allocation_fields(resource, ids, claim, pod, allocation))


def _numbers(ids: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(int(device) for device in ids))
