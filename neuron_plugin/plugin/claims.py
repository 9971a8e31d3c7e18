"""Whose call is this Allocate?

The kubelet names ids, never a pod. These rules read the answer from the ids: a waiting decision has them, or one pod
holds them already (init containers leave theirs to later ones, and a call may come twice), or nobody does. Ids that
another live pod holds are a conflict, however they came.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation.choice import choose
from neuron_plugin.allocation.ledger import Holder, Ledger, Pod
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.requests import ContainerRequest, Kind
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.plugin.decisions import WaitingDecision, decision_of
from neuron_plugin.plugin.pods import NodePods, unserved
from neuron_plugin.topology.geometry import CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class Claim:
    """An Allocate with the pod it is for, as far as its ids tell.

    ``mask`` is what the container is given: the ids' cores, or, where the kubelet drew a random part of an init
    container's ids, a linked part of what the pod holds. ``decided``: a scheduler chose it, so it is taken as valid.
    """

    pod: Pod | None
    container: str
    mask: CoreMask
    decided: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Ids that other live pods hold."""

    holders: tuple[Holder, ...]
    wanted_by: Pod | None


@dataclass(frozen=True, slots=True)
class Claims:
    """What is known on the node at the moment of a call."""

    geometry: Geometry
    pods: NodePods
    ledger: Ledger
    waiting: tuple[WaitingDecision, ...]

    def claim(self, resource: Resource, mask: CoreMask, count: int) -> Claim | Conflict:
        """Find whom ``count`` ids of ``resource``, together ``mask``, are for."""
        decision = decision_of(self.waiting, resource, mask)
        if decision:
            return Claim(decision.pod, decision.request.container, mask, decided=True)
        holders = self.ledger.holders_of(mask)
        if not holders:
            return Claim(None, "", mask)
        if len(holders) == 1:
            own = self._of_holder(holders[0], resource, mask, count)
            if own:
                return own
        return Conflict(holders, None)

    def _of_holder(self, holder: Holder, resource: Resource, mask: CoreMask, count: int) -> Claim | None:
        """The holder's own call: a later container re-using ids, or the same call again."""
        pod = self.pods.get(holder.pod.uid)
        part = unserved(pod, self.ledger, resource, count) if pod else None
        if part:
            return self._next_container(holder, part, mask)
        again = next((one for one in holder.holdings if one.resource is resource and one.mask == mask), None)
        if again:
            return Claim(holder.pod, again.container, mask)
        if pod is None and _nested(holder, resource, mask):
            return Claim(holder.pod, _unnamed(holder), mask)
        return None

    def _next_container(self, holder: Holder, part: ContainerRequest, mask: CoreMask) -> Claim | None:
        """A container that goes on with what its pod's init containers had."""
        reusable = self._reusable(holder, part.resource)
        if not reusable or (mask & holder.mask) & ~self._held_as(holder, part.resource):
            return None
        if mask & ~holder.mask:
            return Claim(holder.pod, part.container, mask)
        linked = choose(self.geometry, reusable, part.resource.unit, part.count)
        return Claim(holder.pod, part.container, mask if isinstance(linked, Refusal) else linked)

    def _reusable(self, holder: Holder, resource: Resource) -> CoreMask:
        """What plain init containers hold and no later container of the pod has been given."""
        kinds = {part.container: part.kind for part in self.pods[holder.pod.uid].request}
        left = taken = 0
        for holding in holder.holdings:
            if holding.resource is resource and kinds.get(holding.container) is Kind.INIT:
                left |= holding.mask
            else:
                taken |= holding.mask
        return CoreMask(left & ~taken)

    def _held_as(self, holder: Holder, resource: Resource) -> CoreMask:
        mask = 0
        for holding in holder.holdings:
            if holding.resource is resource:
                mask |= holding.mask
        return CoreMask(mask)


def _nested(holder: Holder, resource: Resource, mask: int) -> bool:
    """Whether a pod nobody has told us of goes on with what it holds: more around it, or a part of it."""
    same = all(holding.resource is resource for holding in holder.holdings)
    return same and (mask & holder.mask == mask or mask & holder.mask == holder.mask)


def _unnamed(holder: Holder) -> str:
    return f"#{len(holder.holdings)}"
