"""Whose call is this Allocate?

The kubelet names ids, never a pod. These rules read the answer from the ids: a waiting decision has them, or somebody
holds them already (init containers leave theirs to later ones, and a call may come twice), or nobody does. Ids that
another live pod holds are a conflict, however they came.

What the kubelet regards as the calling pod's own tells most. It gives no id of a resource to two pods, so whoever is
only supposed to hold some of these ids was mistaken for the calling pod, or is it; and it admits one pod after the
other, so all that hangs together by its account is one pod's, under whatever names it was noted. Only what it has
listed for a pod is certain: where it offers such ids again it has lost the reservation (kubernetes/kubernetes#137534).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import ContainerKind, Holder, HolderLedger, Holding, PodReference, PodUid, Resource
from neuron_plugin.plugin.decisions import WaitingDecision, decision_of
from neuron_plugin.plugin.kin import kin_of
from neuron_plugin.plugin.pods import NodePod, NodePods, unserved
from neuron_plugin.plugin.reuse import given_apart, part_for_unknown, part_of, reusable_mask
from neuron_plugin.plugin.standins import is_known, is_nameless, stands_in
from neuron_plugin.topology import CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class Call:
    """An Allocate for ``mask`` as one resource.

    ``own`` the calling pod has had before, by the kubelet's account: what the answer to the preference call just before
    had to include, and everything where none came before. The rest is free by that account.
    """

    resource: Resource
    mask: CoreMask
    own: CoreMask


@dataclass(frozen=True, slots=True)
class Claim:
    """A call with the pod it is for, as far as its ids tell.

    ``mask`` is what the container is given: the ids' cores, or, where the kubelet drew a random part of an init
    container's ids, a linked part of what the pod holds. ``decided``: a scheduler chose it, so it is taken as valid.
    ``kin`` are holders that are all this pod.
    """

    pod: PodReference | None
    container: str
    mask: CoreMask
    decided: bool = False
    kin: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """Ids that other live pods hold."""

    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """What is known on the node at the moment of a call; ``swaps``: see ``reuse``."""

    geometry: Geometry
    pods: NodePods
    ledger: HolderLedger
    waiting: tuple[WaitingDecision, ...]
    confirmed: Collection[PodUid] = ()
    swaps: bool = False

    def claim(self, call: Call) -> Claim | Conflict:
        """Find whom a call is for.

        A decision names the ids that are new to its pod. Of those it has, its containers draw at random.
        """
        decision = decision_of(self.waiting, call.resource, call.mask)
        holders = self.ledger.holders_of(call.mask)
        if decision and not (holders if call.own else decision.reuses):
            return Claim(decision.pod, decision.request.container, call.mask, decided=True)
        kin = self._kin(call)
        lasting = tuple(holder for holder in holders if _stays(holder, call, kin))
        if lasting:
            return Conflict(lasting)
        theirs = self._of_holder(kin[0], call) if len(kin) == 1 else None
        return theirs or self._of_nobody_known(kin, call)

    # A pod that is supposed to hold all of it.

    def _of_holder(self, holder: Holder, call: Call) -> Claim | None:
        """The holder's own call: a later container re-using ids, or the same call again.

        New ids are never re-used ones, so a call for them can only be the same again.
        """
        pod, again = self.pods.get(holder.pod.uid), _same_call(holder, call)
        if pod and call.own:
            if again and _lasts(pod, again):
                return _again(pod, holder, again)
            next_one = self._next_container(pod, holder, call)
            if next_one:
                return next_one
            again = again or _drawn_again(holder, call)
        return _again(pod, holder, again) if again else None

    def _next_container(self, pod: NodePod, holder: Holder, call: Call) -> Claim | None:
        """A container that goes on with what its pod's init containers had.

        More than that: all of it and the new ids. Not more: a linked part of it, because the kubelet draws at random.
        What was given for ids of which it draws nothing again may be a sidecar's, though it were noted for another's
        init container; so it is the last to be given.
        """
        mask, resource = call.mask, call.resource
        part = unserved(self.geometry, pod, self.ledger, resource, mask)
        if part is None:
            return None
        reusable = reusable_mask(pod, holder, resource)
        if not reusable:
            return None
        added = mask & ~holder.mask
        apart = reusable & ~given_apart(holder.holdings, resource, mask)
        if apart.bit_count() >= (mask & ~added).bit_count():
            reusable = CoreMask(apart)
        if added:
            whole = CoreMask(added | reusable)
            given = whole if _same_size(whole, mask) else mask
        else:
            given = part_of(self.geometry, pod, part, reusable, mask)
        return Claim(holder.pod, part.container, given, decided=pod.decision is not None)

    # A pod that nobody has told us of.

    def _kin(self, call: Call) -> list[Holder]:
        """Under whose names the calling pod's earlier containers were noted: all that hangs together with its own.

        A call for new ids alone can only be the same again, of a pod that is supposed to be known.
        """
        supposed = [holder for holder in self.ledger if holder.pod.uid not in self.confirmed]
        if not call.own:
            return [holder for holder in supposed if is_known(holder.pod) and _same_call(holder, call)]
        return kin_of(supposed, call.resource, call.own)

    def _of_nobody_known(self, kin: Sequence[Holder], call: Call) -> Claim:
        """A container of a pod without a name yet: its first, or one that goes on with what its ``kin`` had."""
        held = [holding for holder in kin for holding in holder.holdings]
        given = part_for_unknown(self.geometry, held, call.resource, call.mask, swaps=self.swaps)
        pod = next((holder.pod for holder in kin if stands_in(holder)), None)
        return Claim(pod, "", given, kin=tuple(holder.pod.uid for holder in kin))


def _stays(holder: Holder, call: Call, kin: Sequence[Holder]) -> bool:
    """Whether a holder keeps what a call is for: under another name, of which the kubelet knows nothing, everybody.

    Under the same one the calling pod has it for itself, and a nameless holder has it no more.
    """
    other_name = any(one.mask & call.mask and one.resource is not call.resource for one in holder.holdings)
    return other_name or not (holder in kin or is_nameless(holder))


def _again(pod: NodePod | None, holder: Holder, given: Holding) -> Claim:
    """What was given when this call came before."""
    return Claim(holder.pod, given.container, given.mask, decided=pod is not None and pod.decision is not None)


def _same_call(holder: Holder, call: Call) -> Holding | None:
    """What was given when exactly these ids came before."""
    same = (one for one in holder.holdings if one.resource is call.resource and one.on_account == call.mask)
    return next(same, None)


def _drawn_again(holder: Holder, call: Call) -> Holding | None:
    """What the latest container was given, when the kubelet restarted in its call and draws from its pod's set anew.

    Nothing of what it drew before: then it may be for another container, which must not share.
    """
    *earlier, latest = holder.holdings
    if not call.mask & latest.on_account:
        return None
    drawn = any(one.resource is call.resource and not call.mask & ~one.mask for one in earlier)
    return latest if drawn and latest.resource is call.resource and _same_size(latest.mask, call.mask) else None


def _lasts(pod: NodePod, holding: Holding) -> bool:
    """Whether a holding is of a container that shares with none, so that its ids come twice only for itself."""
    return any(part.container == holding.container and part.kind is not ContainerKind.INIT for part in pod.request)


def _same_size(one: int, other: int) -> bool:
    return one.bit_count() == other.bit_count()
