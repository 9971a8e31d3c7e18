"""Which ids the kubelet is told to prefer, and for whose sake.

A waiting decision first, then the best linked set. Waiting is allowed here and nowhere else: for the API server when
the watch may lag behind the kubelet, for the kubelet's own account when ids it offers are held by somebody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from neuron_plugin.allocation import Holder, Rejection, Resource, ids_of, mask_of, place
from neuron_plugin.plugin.callers import Callers
from neuron_plugin.plugin.decisions import WaitingDecision, decision_for
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.preference import preferred_ids
from neuron_plugin.plugin.standins import is_outdated
from neuron_plugin.topology import CoreMask

LookAtPods = Callable[[], Awaitable[None]]
"""Take in this node's pods as the API server knows them now, under a deadline; never raises."""

LookAtHolders = Callable[[Collection[Holder]], Awaitable[None]]
"""Let go of those holders that the kubelet does not know any more, under a deadline; never raises."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A container's demand as GetPreferredAllocation states it, in numbers."""

    resource: Resource
    available: tuple[int, ...]
    must_include: tuple[int, ...]
    size: int

    def is_met_by(self, resource: Resource, ids: Collection[int]) -> bool:
        """Whether an Allocate for these ids is what this asked about, be they our answer or the kubelet's own."""
        fitting = set(self.must_include) <= set(ids) <= set(self.available)
        return resource is self.resource and len(ids) == self.size and fitting


@dataclass(frozen=True, slots=True)
class Steering:
    """Chooses ids for the kubelet's offers.

    No ``look_at_pods``: there is no API server.
    """

    state: NodeState
    look_at_pods: LookAtPods | None
    look_at_holders: LookAtHolders

    async def preferred(self, machine: Machine, offer: Offer) -> tuple[int, ...]:
        """The ids of the oldest waiting decision that fits, else the best linked set.

        Where the kubelet was not there when this daemon started, it is asked now who holds what: its next pod may come
        before our next look.
        """
        if not self.state.holders_known:
            await self.look_at_holders(())
        decision = self._decision(machine, offer)
        if decision is None and self.look_at_pods and not self._callers(machine, offer).undecided():
            await self.look_at_pods()
            decision = self._decision(machine, offer)
        if decision:
            return decision.ids
        ids = self._best(machine, offer)
        disputed = self._disputed(machine, offer, ids)
        if disputed or self._suspect(machine, offer, ids):
            await self.look_at_holders(disputed)
            decision = self._decision(machine, offer)
            ids = decision.ids if decision else self._best(machine, offer)
        return ids

    def _callers(self, machine: Machine, offer: Offer) -> Callers:
        return Callers(machine.geometry, self.state.pods, self.state.ledger, offer.resource, offer.size)

    def _decision(self, machine: Machine, offer: Offer) -> WaitingDecision | None:
        """The waiting decision to follow, unless a pod without one came earlier: its call this is, most probably.

        What must be included tells the pod: its init containers have it.
        """
        must = mask_of(machine.geometry, offer.resource.unit, offer.must_include)
        own = {holder.pod.uid for holder in self.state.ledger.holders_of(must)}
        offered = self.state.offered_mask(machine)
        waiting = [one for one in self.state.waiting() if not one.mask & ~offered and (not must or one.pod.uid in own)]
        decision = decision_for(waiting, offer.resource, offer.available, offer.must_include, offer.size)
        if decision and self._callers(machine, offer).undecided_before(decision.pod.uid):
            return None
        return decision

    def _best(self, machine: Machine, offer: Offer) -> tuple[int, ...]:
        free = self.state.free_mask(machine)
        planned = None if offer.must_include else self._planned(machine, offer, free)
        return planned or preferred_ids(
            machine.geometry,
            offer.resource.unit,
            available=offer.available,
            must_include=offer.must_include,
            free=free,
            unheld=self.state.unheld_mask(machine),
            size=offer.size,
        )

    def _planned(self, machine: Machine, offer: Offer, free: CoreMask) -> tuple[int, ...] | None:
        """Where the pod's first container goes if all of its containers are to get linked sets."""
        pods = [pod for pod in self._callers(machine, offer).undecided() if len(pod.request) > 1]
        placement = place(machine.geometry, free, pods[0].request) if pods else None
        if placement is None or isinstance(placement, Rejection):
            return None
        first = placement[0]
        ids = ids_of(machine.geometry, offer.resource.unit, first.mask)
        fits = first.request.resource is offer.resource and len(ids) == offer.size and set(ids) <= set(offer.available)
        return ids if fits else None

    def _suspect(self, machine: Machine, offer: Offer, ids: tuple[int, ...]) -> bool:
        """Whether nothing would do but what a vanished pod has left: a look at its processes may clear it."""
        mask = mask_of(machine.geometry, offer.resource.unit, ids)
        return bool(self.state.quarantine and mask & self.state.quarantine.mask)

    def _disputed(self, machine: Machine, offer: Offer, ids: tuple[int, ...]) -> list[Holder]:
        """Who holds what the kubelet offers as free, where nothing else would do."""
        new = mask_of(machine.geometry, offer.resource.unit, tuple(set(ids) - set(offer.must_include)))
        holders = self.state.ledger.holders_of(new)
        return [holder for holder in holders if not is_outdated(holder, offer.resource, new)]
