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

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation.ledger import Holder, Holding, Ledger, Pod, PodUid
from neuron_plugin.allocation.requests import ContainerRequest, Kind
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.plugin.decisions import WaitingDecision, decision_of
from neuron_plugin.plugin.pods import NodePod, NodePods, unserved
from neuron_plugin.plugin.reuse import given_apart, part_for_unknown, part_of, reusable_mask
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
    """What is known on the node at the moment of a call; ``swaps``: see ``reuse``."""

    geometry: Geometry
    pods: NodePods
    ledger: Ledger
    waiting: tuple[WaitingDecision, ...]
    confirmed: Collection[PodUid] = ()
    swaps: bool = False

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
        mistaken = [holder for holder in holders if self._was_mistaken(holder, resource, own)]
        earlier = self._of_unknown(mistaken, resource, own)
        unnamed = [holder for holder in holders if stands_in(holder) and holder.mask & own_mask]
        lasting = tuple(
            holder
            for holder in holders
            if not (steered and is_outdated(holder, resource, mask & ~own))
            and holder not in mistaken
            and holder not in earlier
            and not (holder in unnamed and _is_all_of(holder, resource))
        )
        if lasting:
            return Conflict(lasting)
        return self._going_on(earlier or unnamed, mistaken, resource, mask)

    def _of_unknown(self, mistaken: Sequence[Holder], resource: Resource, own: int) -> list[Holder]:
        """Stand-ins for earlier containers of a pod whose first one was noted for another, and all is from that."""
        first = next((holder for holder in mistaken if not own & ~holder.mask), None)
        if first is None:
            return []
        nameless = [holder for holder in self.ledger.holders_of(first.mask) if is_nameless(holder)]
        return [holder for holder in nameless if _is_all_of(holder, resource)]

    def _was_mistaken(self, holder: Holder, resource: Resource, own: int) -> bool:
        """Whether what the calling pod had before was noted for ``holder``, which is not known to hold anything."""
        noted = [holding for holding in holder.holdings if holding.mask & own]
        same_name = all(holding.resource is resource for holding in noted)
        return bool(noted) and same_name and is_known(holder.pod) and holder.pod.uid not in self.confirmed

    def _is_called_for(self, decision: WaitingDecision, holders: tuple[Holder, ...], *, asked: bool) -> bool:
        """Whether a call for a decision's ids is its own: none for new ids is if its pod has some of them before.

        Of ids that the pod has, its containers draw at random, so the order in which they come tells more.
        """
        if asked:
            return not decision.reuses
        pod = self.pods.get(decision.pod.uid)
        if pod is None or any(holder.pod.uid != pod.pod.uid for holder in holders):
            return False
        part = decision.request
        return not holders or unserved(pod, self.ledger, part.resource, part.count) == part

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
        pod, again = self.pods.get(holder.pod.uid), self._the_same(holder, resource, mask)
        if pod and not asked:
            if again and _lasts(pod, again):
                return Claim(holder.pod, again.container, again.mask, decided=pod.decision is not None)
            part = unserved(pod, self.ledger, resource, count)
            next_one = self._next_container(holder, part, mask) if part else None
            if next_one:
                return next_one
            again = again or _drawn_again(holder, resource, mask)
        if again:
            return Claim(holder.pod, again.container, again.mask, decided=pod is not None and pod.decision is not None)
        if is_nameless(holder) and _goes_on(holder, resource, mask):
            return self._going_on([holder], (), resource, mask)
        return None

    def _next_container(self, holder: Holder, part: ContainerRequest, mask: CoreMask) -> Claim | None:
        """A container that goes on with what its pod's init containers had.

        More than that: all of it and the new ids. Not more: a linked part of it, because the kubelet draws at random.
        What was given for ids of which it draws nothing again may be a sidecar's, though it were noted for another's
        init container; so it is the last to be given.
        """
        pod = self.pods[holder.pod.uid]
        others = self.ledger.without(holder.pod.uid).used_mask
        reusable = CoreMask(reusable_mask(pod, holder, part.resource) & ~others)
        if not reusable or (mask & holder.mask) & ~holder.held_as(part.resource):
            return None
        added = mask & ~holder.mask
        apart = reusable & ~given_apart(holder.holdings, part.resource, mask)
        if apart.bit_count() >= (mask & ~added).bit_count():
            reusable = CoreMask(apart)
        if added:
            whole = added | reusable
            return Claim(holder.pod, part.container, CoreMask(whole if _same_size(whole, mask) else mask))
        given = part_of(self.geometry, pod, part, reusable, mask)
        return Claim(holder.pod, part.container, given, decided=pod.decision is not None)

    def _going_on(
        self, nameless: Sequence[Holder], mistaken: Sequence[Holder], resource: Resource, mask: CoreMask
    ) -> Claim:
        """One more container of a pod that nobody has told us of; what it had may have been noted for others."""
        held = [holding for holder in (*nameless, *mistaken) for holding in holder.holdings]
        given = part_for_unknown(self.geometry, held, resource, mask, swaps=self.swaps)
        return Claim(nameless[0].pod, f"#{len(held)}", given) if nameless else Claim(None, "", given)

    def _the_same(self, holder: Holder, resource: Resource, mask: CoreMask) -> Holding | None:
        """What was given when these ids came before."""
        return next((one for one in holder.holdings if one.resource is resource and one.on_account == mask), None)


def _same_size(one: int, other: int) -> bool:
    return one.bit_count() == other.bit_count()


def _lasts(pod: NodePod, holding: Holding) -> bool:
    """Whether a holding is of a container that shares with none, so that its ids come twice only for itself."""
    return any(part.container == holding.container and part.kind is not Kind.INIT for part in pod.request)


def _is_all_of(holder: Holder, resource: Resource) -> bool:
    return all(holding.resource is resource for holding in holder.holdings)


def _drawn_again(holder: Holder, resource: Resource, mask: int) -> Holding | None:
    """What the latest container was given, when the kubelet restarted in its call and draws from its pod's set anew.

    Nothing of what it drew before: then it may be for another container, which must not share.
    """
    latest = holder.holdings[-1]
    if not mask & latest.on_account:
        return None
    drawn = any(one.resource is resource and mask & ~one.mask == 0 for one in holder.holdings[:-1])
    same_size = latest.resource is resource and latest.mask.bit_count() == mask.bit_count()
    return latest if drawn and same_size else None


def _goes_on(holder: Holder, resource: Resource, mask: int) -> bool:
    """Whether a pod nobody has told us of goes on with what it holds: more around it, or a part of it."""
    return _is_all_of(holder, resource) and mask & holder.mask in (mask, holder.mask)
