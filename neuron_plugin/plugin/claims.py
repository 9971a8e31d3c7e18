"""Whose call is this Allocate?

The kubelet names ids, never a pod. These rules read the answer from the ids: a waiting decision has them, or one pod
holds them already (init containers leave theirs to later ones, and a call may come twice), or nobody does. Ids that
another live pod holds are a conflict, however they came.

Ids that were asked about just before (GetPreferredAllocation and its Allocate follow each other at once) are free in
the kubelet's account; ids that come unasked are re-used from an init container. So a nameless stand-in, of which nobody
knows whether its pod lives, gives way to the former and goes on with the latter. Ids that had to be included in the
answer are the calling pod's for certain: whoever else is only supposed to have them was mistaken for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from neuron_plugin.allocation.ledger import Holder, Holding, Ledger, Pod, PodUid
from neuron_plugin.allocation.requests import ContainerRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.plugin.decisions import WaitingDecision, decision_of
from neuron_plugin.plugin.pods import NodePods, unserved
from neuron_plugin.plugin.reuse import held_as, part_of, reusable_mask
from neuron_plugin.plugin.standins import is_known, is_nameless, is_outdated, stands_in
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


@dataclass(frozen=True, slots=True)
class Claims:
    """What is known on the node at the moment of a call."""

    geometry: Geometry
    pods: NodePods
    ledger: Ledger
    waiting: tuple[WaitingDecision, ...]
    confirmed: Collection[PodUid] = ()

    def claim(
        self, resource: Resource, mask: CoreMask, count: int, *, asked: bool, own_mask: int = 0
    ) -> Claim | Conflict:
        """Find whom ``count`` ids of ``resource``, together ``mask``, are for.

        ``asked``: they are our answer to the preference call just before, and none of them had to be included;
        ``own_mask`` is what had to be. Nobody was asked about the others: they are all the pod's own.
        """
        decision = decision_of(self.waiting, resource, mask)
        holders = self.ledger.holders_of(mask)
        if decision and self._is_called_for(decision, holders, asked=asked):
            return Claim(decision.pod, decision.request.container, mask, decided=True)
        if len(holders) == 1 and not (asked and is_nameless(holders[0])):
            theirs = self._of_holder(holders[0], resource, mask, count, asked=asked)
            if theirs:
                return theirs
        steered = asked or bool(own_mask)
        own = own_mask if steered else mask
        lasting = tuple(
            holder
            for holder in holders
            if not (steered and is_outdated(holder, resource, mask & ~own))
            and not self._was_mistaken(holder, resource, own)
        )
        if lasting:
            return Conflict(lasting)
        nameless = next((holder for holder in holders if is_nameless(holder) and holder.mask & own_mask), None)
        return _going_on(nameless, mask) if nameless else Claim(None, "", mask)

    def _was_mistaken(self, holder: Holder, resource: Resource, own: int) -> bool:
        """Whether what the calling pod had before was noted for ``holder``, which is not known to hold anything."""
        noted = [holding for holding in holder.holdings if holding.mask & own]
        same_name = all(holding.resource is resource for holding in noted)
        return bool(noted) and same_name and is_known(holder.pod) and holder.pod.uid not in self.confirmed

    def _is_called_for(self, decision: WaitingDecision, holders: tuple[Holder, ...], *, asked: bool) -> bool:
        """Whether a call for a decision's ids is its own: none for new ids is if its pod has some of them before."""
        if asked:
            return not decision.reuses
        return all(holder.pod.uid == decision.pod.uid for holder in holders)

    def _of_holder(
        self, holder: Holder, resource: Resource, mask: CoreMask, count: int, *, asked: bool
    ) -> Claim | None:
        """The holder's own call: a later container re-using ids, or the same call again.

        What the kubelet has listed it has recorded, and records are not allocated again: where it offers such ids as
        free it has lost the reservation (kubernetes/kubernetes#137534), and they are for another pod. New ids are
        never re-used ones, so a call for them can only be the same again.
        """
        if asked and (holder.pod.uid in self.confirmed or stands_in(holder)):
            return None
        pod, again = self.pods.get(holder.pod.uid), _the_same(holder, resource, mask)
        if pod and not asked:
            part = unserved(pod, self.ledger, resource, count)
            next_one = self._next_container(holder, part, mask) if part else None
            if next_one:
                return next_one
            again = again or _drawn_again(holder, resource, mask)
        if again:
            return Claim(holder.pod, again.container, again.mask, decided=pod is not None and pod.decision is not None)
        if is_nameless(holder) and _goes_on(holder, resource, mask):
            return _going_on(holder, mask)
        return None

    def _next_container(self, holder: Holder, part: ContainerRequest, mask: CoreMask) -> Claim | None:
        """A container that goes on with what its pod's init containers had.

        More than that: all of it and the new ids. Not more: a linked part of it, because the kubelet draws at random.
        """
        pod = self.pods[holder.pod.uid]
        others = self.ledger.without(holder.pod.uid).used_mask
        reusable = CoreMask(reusable_mask(pod, holder, part.resource) & ~others)
        if not reusable or (mask & holder.mask) & ~held_as(holder, part.resource):
            return None
        added = mask & ~holder.mask
        if added:
            whole = added | reusable
            return Claim(holder.pod, part.container, CoreMask(whole if _same_size(whole, mask) else mask))
        given = part_of(self.geometry, pod, part, reusable, mask)
        return Claim(holder.pod, part.container, given, decided=pod.decision is not None)


def _going_on(holder: Holder, mask: CoreMask) -> Claim:
    return Claim(holder.pod, f"#{len(holder.holdings)}", mask)


def _same_size(one: int, other: int) -> bool:
    return one.bit_count() == other.bit_count()


def _the_same(holder: Holder, resource: Resource, mask: int) -> Holding | None:
    return next((one for one in holder.holdings if one.resource is resource and one.mask == mask), None)


def _drawn_again(holder: Holder, resource: Resource, mask: int) -> Holding | None:
    """What the latest container was given, when the kubelet restarted in its call and draws from its pod's set anew."""
    latest = holder.holdings[-1]
    drawn = any(one.resource is resource and mask & ~one.mask == 0 for one in holder.holdings[:-1])
    same_size = latest.resource is resource and latest.mask.bit_count() == mask.bit_count()
    return latest if drawn and same_size else None


def _goes_on(holder: Holder, resource: Resource, mask: int) -> bool:
    """Whether a pod nobody has told us of goes on with what it holds: more around it, or a part of it."""
    if any(holding.resource is not resource for holding in holder.holdings):
        return False
    return mask & holder.mask in (mask, holder.mask)
