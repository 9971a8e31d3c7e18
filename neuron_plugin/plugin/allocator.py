"""What the kubelet is answered: which ids it should prefer, and what a container gets for its ids.

Allocate works from memory and awaits nothing, so it takes microseconds whatever the API server does. Waiting, under a
deadline, belongs to the preference. A refusal ends its pod for good (and a ReplicaSet makes the next one at once), so
it is only for what lasts: ids that another live pod holds, and sets that the operator has ruled out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from neuron_plugin.allocation.choice import why_not
from neuron_plugin.allocation.idlists import format_ids
from neuron_plugin.allocation.ledger import Holding, Pod
from neuron_plugin.allocation.placement import place
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.kubelet.devices import AllocationRefusedError, ContainerAllocation
from neuron_plugin.plugin.claims import Claim, Conflict
from neuron_plugin.plugin.container import ContainerStyle, container_allocation
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.decisions import WaitingDecision, decision_for
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod, explains
from neuron_plugin.plugin.preference import preferred_ids
from neuron_plugin.plugin.report import Report
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.plugin.witness import Witness
from neuron_plugin.topology.geometry import CoreMask
from neuron_plugin.topology.sets import valid_sets

logger = logging.getLogger(__name__)

Later = Callable[[Callable[[], None]], object]
"""Do something once the kubelet has its answer."""

LookAgain = Callable[[], Awaitable[None]]
"""Read this node's pods from the API server once more, consistently and under a deadline."""


class Allocator:
    """Answers the kubelet for all resources of the node."""

    def __init__(
        self,
        state: NodeState,
        style: Callable[[Machine], ContainerStyle],
        policy: TopologyPolicy,
        report: Report,
        look_again: LookAgain | None = None,
        *,
        witness: Witness | None = None,
        later: Later = lambda work: work(),
    ) -> None:
        """``style`` says how a machine's sets are presented in containers; no ``look_again`` means no API server.

        ``later`` puts off what is written to the log about an Allocate; by default nothing is put off.
        """
        self._state = state
        self._style = style
        self._policy = policy
        self._report = report
        self._look_again = look_again
        self._witness = witness or Witness("", state, Counts())
        self._later = later

    async def preferred(
        self, resource_name: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Steer to the oldest waiting decision that fits, else to the best linked set."""
        resource, machine = Resource(resource_name), self._machine()
        offered, must = [int(device) for device in available], [int(device) for device in must_include]
        decision = self._decision(resource, offered, must, size)
        if decision is None and self._look_again and self._may_be_decided(resource, size):
            await self._look_again()
            decision = self._decision(resource, offered, must, size)
        ids = decision.ids if decision else self._best(machine, resource, offered, must, size)
        self._witness.preferred(resource, offered, must, decision, ids)
        return [str(number) for number in ids]

    def allocate(self, resource_name: str, ids: Sequence[str]) -> ContainerAllocation:
        """Give a container its devices for exactly these ids.

        Raises:
            AllocationRefusedError: another live pod holds some of them, or they are not linked and must be.
        """
        resource, machine = Resource(resource_name), self._machine()
        numbers = tuple(sorted(int(device) for device in ids))
        mask = mask_of(machine.geometry, resource.unit, numbers)
        claim = self._state.claims(machine).claim(resource, mask, len(numbers))
        if isinstance(claim, Conflict):
            raise self._refuse_conflict(machine, resource, numbers, claim)
        if claim.pod is None:
            self._check_request(resource, len(numbers))
        self._check_links(machine, resource, claim)
        pod, before = claim.pod or self._state.nameless_stand_in(), self._state.ledger
        self._state.hold(pod, Holding(claim.container, resource, claim.mask))
        allocation = container_allocation(machine.geometry, resource, claim.mask, self._style(machine))
        self._witness.allocated(machine, before, resource, mask, claim)
        self._later(partial(self._log, resource, numbers, claim, pod, allocation))
        return allocation

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Let the container start. The kubelet is told not to ask: a gate would need the plugin at every start."""

    def _decision(
        self, resource: Resource, available: list[int], must_include: list[int], size: int
    ) -> WaitingDecision | None:
        return decision_for(self._state.waiting(), resource, available, must_include, size)

    def _may_be_decided(self, resource: Resource, size: int) -> bool:
        """Whether the watch may not have shown the pod yet: none of those it has shown explains the call."""
        return not any(pod.decision is None for pod in self._explaining(resource, size))

    def _explaining(self, resource: Resource, count: int) -> list[NodePod]:
        """Pods that hold nothing yet and ask for exactly this."""
        ledger = self._state.ledger
        return [pod for pod in self._state.pods.values() if explains(pod, ledger, resource, count)]

    def _best(
        self, machine: Machine, resource: Resource, available: list[int], must_include: list[int], size: int
    ) -> tuple[int, ...]:
        free = self._state.free_mask(machine)
        planned = None if must_include else self._planned(machine, resource, available, free, size)
        return planned or preferred_ids(
            machine.geometry, resource.unit, available=available, must_include=must_include, free=free, size=size
        )

    def _planned(
        self, machine: Machine, resource: Resource, available: list[int], free: CoreMask, size: int
    ) -> tuple[int, ...] | None:
        """Where the pod's first container goes if all of its containers are to get linked sets."""
        pods = [pod for pod in self._explaining(resource, size) if len(pod.request) > 1 and pod.decision is None]
        placement = place(machine.geometry, free, pods[0].request) if pods else None
        if placement is None or isinstance(placement, Refusal):
            return None
        first = placement[0]
        ids = ids_of(machine.geometry, resource.unit, first.mask)
        fits = first.request.resource is resource and len(ids) == size and set(ids) <= set(available)
        return ids if fits else None

    def _check_request(self, resource: Resource, count: int) -> None:
        """Refuse a call that only a pod with an unservable request can have made."""
        if self._explaining(resource, count):
            return
        for pod in self._state.pods.values():
            if (resource, str(count)) in pod.refused:
                raise AllocationRefusedError(pod.problem)

    def _check_links(self, machine: Machine, resource: Resource, claim: Claim) -> None:
        """Sets that no scheduler decided are held against the topology; the policy says what that means."""
        ids = ids_of(machine.geometry, resource.unit, claim.mask)
        if claim.decided or claim.mask in valid_sets(machine.geometry, resource.unit, len(ids)):
            return
        refusal = why_not(machine.geometry, claim.mask, resource.unit, len(ids))
        if self._policy is TopologyPolicy.REQUIRED:
            raise AllocationRefusedError(refusal.text)
        self._report.report("UnlinkedDevices", unlinked_text(resource, ids, refusal), claim.pod)

    def _refuse_conflict(
        self, machine: Machine, resource: Resource, ids: tuple[int, ...], conflict: Conflict
    ) -> AllocationRefusedError:
        mask = mask_of(machine.geometry, resource.unit, ids)
        held = "; ".join(
            f"{_named(holder.pod)} holds {holding.resource.value} "
            f"{format_ids(ids_of(machine.geometry, holding.resource.unit, holding.mask))}"
            for holder in conflict.holders
            for holding in holder.holdings
            if holding.mask & mask
        )
        wanted = _named(conflict.wanted_by) if conflict.wanted_by else self._asking(resource, len(ids))
        text = f"{resource.value} {format_ids(ids)} cannot be given to {wanted}: {held}"
        self._report.report("DeviceConflict", text, conflict.wanted_by)
        return AllocationRefusedError(text)

    def _asking(self, resource: Resource, count: int) -> str:
        """The pods that may have made a call which no decision names."""
        names = [str(pod.pod) for pod in self._explaining(resource, count)]
        return f"pod {' or '.join(sorted(names))}" if names else "a pod without a decision"

    def _machine(self) -> Machine:
        machine = self._state.machine
        if machine is None:
            raise AllocationRefusedError("no Neuron device has been found on this node yet: is the driver loaded?")
        return machine

    def _log(
        self, resource: Resource, ids: tuple[int, ...], claim: Claim, pod: Pod, allocation: ContainerAllocation
    ) -> None:
        logger.info(
            "allocated",
            extra={
                "resource": resource.value,
                "ids": format_ids(ids),
                "pod": _named(pod),
                "container": claim.container or "unknown",
                "decided": claim.decided,
                "nodes": " ".join(f"{node.host_path}:{node.container_path}" for node in allocation.devices),
                "cdi": " ".join(allocation.cdi_devices),
                "env": dict(allocation.envs),
            },
        )


def unlinked_text(resource: Resource, ids: tuple[int, ...], refusal: Refusal) -> str:
    """What is told of ids that are not linked, and why there were no better ones."""
    return f"{resource.value} {format_ids(ids)} are not linked. {refusal.text}"


def _named(pod: Pod) -> str:
    return f"pod {pod}" if pod.name else "a pod not yet confirmed"
