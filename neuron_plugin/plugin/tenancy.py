"""Who holds what on this node, and how certain that is.

An Allocate tells for whom it was at best by its ids, so what it gave is only supposed to be a pod's. The pod's own
annotation counts where nobody is supposed to hold it, and the kubelet's account against all suppositions. One that
turns out wrong is never simply dropped: the silicon was given to somebody, and a stand-in holds it until it is known
to whom.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from neuron_plugin.allocation import Holder, HolderLedger, Holding, PodReference, PodUid
from neuron_plugin.plugin.standins import is_known, is_nameless, stands_in


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One moment of it; a change is a new one.

    ``confirmed`` are the pods of which the kubelet has told what they hold. ``since`` is when a holder was given
    something last, as far as that was seen. Nothing is known of whoever does not hold anything.
    """

    ledger: HolderLedger = field(default_factory=HolderLedger)
    confirmed: frozenset[PodUid] = frozenset()
    since: Mapping[PodUid, float] = field(default_factory=dict)

    def supposing(self, pod: PodReference, holding: Holding, now: float, kin: Collection[PodUid] = ()) -> Tenancy:
        """A container was given cores, probably of this pod; a nameless holder that had them has them no more.

        ``kin`` are holders that are this pod, too. A container without a name gets a number.
        """
        ledger = _joined(self.ledger, pod, kin)
        nameless = (holder for holder in ledger if is_nameless(holder) and holder.pod.uid != pod.uid)
        ledger = _without(ledger, nameless, [holding])
        return self._with(ledger.with_holding(pod, _numbered(ledger, pod, holding)), {pod.uid: now})

    def believing(self, told: Holder) -> Tenancy:
        """A pod's annotation says what it was allocated, where the ledger does not say otherwise.

        Of others only what the kubelet listed by this pod's own name gives way.
        """
        others = self.ledger.holders_of(told.mask)
        known = told.pod.uid in self.ledger.holders or not told.holdings
        if known or not all(stands_in(other) and _same_name(other.pod, told.pod) for other in others):
            return self
        return self._with(_without(self.ledger, others, told.holdings).with_holder(told))

    def confirming(self, truth: Holder, stand_in: PodReference, now: float) -> Tenancy:
        """The kubelet says what a pod holds, so whoever was only supposed to hold it was mistaken.

        ``stand_in`` is for what the pod was supposed to hold and does not.
        """
        uid = truth.pod.uid
        mistaken = (one for one in self.ledger if one.pod.uid != uid and one.pod.uid not in self.confirmed)
        ledger = _without(self.ledger, mistaken, truth.holdings)
        if not is_known(truth.pod):
            return self._with(ledger.with_holder(truth))
        supposed = ledger.holders.get(uid) if uid not in self.confirmed else None
        left = [holding for holding in supposed.holdings if not holding.mask & truth.mask] if supposed else []
        ledger = _kept(ledger.with_holder(truth), stand_in, left)
        return self._with(ledger, {stand_in.uid: now}, self.confirmed | {uid})

    def doubting(self, uid: PodUid) -> Tenancy:
        """What a pod was confirmed to hold is only supposed again."""
        return replace(self, confirmed=self.confirmed - {uid})

    def without(self, uid: PodUid, left: Iterable[Holding], stand_in: PodReference, now: float) -> Tenancy:
        """A holder is gone; ``left`` is what was supposed to be its and may be another's, which ``stand_in`` holds."""
        return self._with(_kept(self.ledger.without(uid), stand_in, left), {stand_in.uid: now})

    def _with(
        self,
        ledger: HolderLedger,
        since: Mapping[PodUid, float] | None = None,
        confirmed: frozenset[PodUid] | None = None,
    ) -> Tenancy:
        """Of those who hold nothing now nothing is remembered."""
        moments = {**self.since, **(since or {})}
        certain = self.confirmed if confirmed is None else confirmed
        holders = ledger.holders.keys()
        return Tenancy(ledger, certain & holders, {uid: moments[uid] for uid in moments.keys() & holders})


def _joined(ledger: HolderLedger, pod: PodReference, kin: Collection[PodUid]) -> HolderLedger:
    """All that some holders have, held by one pod."""
    others = [holder for holder in ledger if holder.pod.uid in kin and holder.pod.uid != pod.uid]
    for holder in others:
        ledger = ledger.without(holder.pod.uid)
        for holding in holder.holdings:
            ledger = ledger.with_holding(pod, _numbered(ledger, pod, replace(holding, container="")))
    return ledger


def _numbered(ledger: HolderLedger, pod: PodReference, holding: Holding) -> Holding:
    """A holding of a container of its own, though nobody knows its name."""
    holder = ledger.holders.get(pod.uid)
    taken = {one.container for one in holder.holdings} if holder else set()
    free = (name for name in map("#{}".format, itertools.count()) if name not in taken)
    return holding if holding.container else replace(holding, container=next(free))


def _kept(ledger: HolderLedger, stand_in: PodReference, holdings: Iterable[Holding]) -> HolderLedger:
    """What is left of a supposition, held by a stand-in."""
    held = Holder(stand_in, tuple(holdings))
    return ledger.with_holder(held) if held.holdings else ledger


def _same_name(one: PodReference, other: PodReference) -> bool:
    return (one.namespace, one.name) == (other.namespace, other.name)


def _without(ledger: HolderLedger, holders: Iterable[Holder], given: Collection[Holding]) -> HolderLedger:
    """Holders with nothing any more of what others were given; who then has nothing is gone.

    Nor with what the kubelet has on its account for them: it gives no id of a resource twice.
    """
    for holder in holders:
        kept = tuple(one for one in holder.holdings if not any(_collide(one, each) for each in given))
        if not kept:
            ledger = ledger.without(holder.pod.uid)
        elif len(kept) < len(holder.holdings):
            ledger = ledger.with_holder(Holder(holder.pod, kept))
    return ledger


def _collide(one: Holding, other: Holding) -> bool:
    same_ids = one.resource is other.resource and one.on_account & other.on_account
    return bool(same_ids or one.mask & other.mask)
