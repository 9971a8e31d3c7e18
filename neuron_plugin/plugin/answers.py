"""What follows from the kubelet's account of its pods: who holds what, and who has gone.

The kubelet tells of a pod by its name, and of all but plain init containers. So a name may be the next pod's already,
and what it does not list may yet be held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from neuron_plugin.allocation import ContainerKind, Holder, Holding, PodReference, PodUid, union_of
from neuron_plugin.kubelet import PodDevices
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.records import Records, uid_of, unlisted_holdings
from neuron_plugin.plugin.standins import is_nameless, named_stand_in, stands_in
from neuron_plugin.plugin.truth import listed_holdings, true_holdings, with_unlisted
from neuron_plugin.topology import Geometry

logger = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""Without an Allocate for so long none of ours is under way."""
GRACE_SECONDS = 30.0
"""How long a stand-in that the kubelet does not list is kept: far longer than an admission takes."""

OnConfirmed = Callable[[NodePod, tuple[Holding, ...]], None]
"""Told of each pod and what all of its containers hold, once it is certain."""

_Name = tuple[str, str]


class Answers:
    """Takes them into the node's state. ``records`` are the kubelet's own, as they were read last."""

    def __init__(self, state: NodeState, on_confirmed: OnConfirmed) -> None:
        self.records: Records = ()
        self.listed_uids: frozenset[str] = frozenset()
        """The UIDs of pods in the latest list, as far as the records tell them."""
        self._state = state
        self._on_confirmed = on_confirmed

    def take(self, uid: PodUid, found: PodDevices) -> None:
        """One pod's devices, once they are complete. The pod may have ended or changed while the kubelet was asked."""
        pod, machine = self._state.pods.get(uid), self._state.machine
        if pod is None or machine is None or uid in self._state.confirmed:
            return
        listed = listed_holdings(machine.geometry, found)
        if self._is_predecessors(pod, listed):
            return
        ledger, confirmed = self._state.ledger, self._state.confirmed
        holdings = true_holdings(machine.geometry, pod, listed, ledger, confirmed, self.records)
        if holdings and not self._awaits_more(pod, {holding.container for holding in holdings}):
            self._state.confirm(pod.pod, holdings)
            self._on_confirmed(pod, holdings)
            return
        for holding in listed:  # restarted in the middle of an admission, we know of its first half from here only
            if not ledger.holders_of(holding.mask):
                self._state.hold(pod.pod, holding)

    def take_list(self, listed: tuple[PodDevices, ...], began: float) -> None:
        """All pods' devices, when the kubelet was asked at ``began``.

        Pods that no watch has shown are held by name; stand-ins that are not listed are let go.
        """
        self.listed_uids = frozenset(uid_of(self.records, found) for found in listed) - {""}
        machine = self._state.machine
        if machine is None:
            return
        uids = {_name(pod.pod): uid for uid, pod in self._state.pods.items()}
        for found in listed:
            uid = uids.get((found.namespace, found.name))
            if uid:
                self._doubt(machine.geometry, uid, found)
                self.take(uid, found)
            elif not self._state.pods_known:
                self._take_by_name(machine.geometry, found)
        self._release_stand_ins(self._by_name(listed), began)
        self._state.holders_known = True

    def let_go(self, disputed: Collection[Holder], listed: Iterable[PodDevices]) -> None:
        """The kubelet offers what those holders have; whom it does not list has ended."""
        by_name = self._by_name(listed)
        for uid in [holder.pod.uid for holder in disputed]:
            holder = self._state.ledger.holders.get(uid)
            if holder and not is_nameless(holder) and self._has_gone(holder, by_name.get(_name(holder.pod))):
                self._state.end(uid, union_of(one for holdings in by_name.values() for one in holdings))

    def unconfirmed(self) -> list[NodePod]:
        """Pods of which it is not known for certain what they hold."""
        return [pod for uid, pod in self._state.pods.items() if pod.request and uid not in self._state.confirmed]

    # Pods that it names.

    def _awaits_more(self, pod: NodePod, held: Collection[str]) -> bool:
        """Whether the pod's last containers, which the kubelet never lists, may not have been admitted yet."""
        under_way = self._state.clock() - self._state.last_call <= GRACE_SECONDS
        return under_way and bool(pod.request) and pod.request[-1].container not in held

    def _is_predecessors(self, pod: NodePod, listed: tuple[Holding, ...]) -> bool:
        """Whether the kubelet, asked by name, still tells of a pod that vanished and has been made anew.

        What it lists for the new one it has asked us for, so that somebody holds it.
        """
        lost = self._state.has_lost_name(pod.pod)
        return lost and bool(listed) and not self._state.ledger.holders_of(union_of(listed))

    def _doubt(self, geometry: Geometry, uid: PodUid, found: PodDevices) -> None:
        """Confirm a pod anew for which the kubelet lists more than it holds: that was another pod's account.

        The kubelet answers by name, and for a moment still for the pod that had this name before.
        """
        holder = self._state.ledger.holders.get(uid)
        held = holder.mask if holder else 0
        if uid in self._state.confirmed and any(one.mask & ~held for one in listed_holdings(geometry, found)):
            name = f"{found.namespace}/{found.name}"
            logger.warning("the kubelet lists other ids for a pod than before", extra={"pod": name})
            self._state.doubt(uid)

    def _take_by_name(self, geometry: Geometry, found: PodDevices) -> None:
        listed, pod = listed_holdings(geometry, found), named_stand_in(found.namespace, found.name)
        if listed and uid_of(self.records, found):  # its file tells all, what a call that was cut off left included
            self._state.confirm(pod, (*listed, *unlisted_holdings(geometry, self.records, found)))
        elif listed:
            self._state.confirm(pod, with_unlisted(pod, listed, self._state.ledger))

    # Holders that it does not name.

    def _by_name(self, listed: Iterable[PodDevices]) -> Mapping[_Name, list[Holding]]:
        """What it lists; a pod may be there twice, with its name's next one."""
        by_name: dict[_Name, list[Holding]] = {}
        machine = self._state.machine
        for found in listed if machine else ():
            holdings = listed_holdings(machine.geometry, found) if machine else ()
            by_name.setdefault((found.namespace, found.name), []).extend(holdings)
        return by_name

    def _has_gone(self, holder: Holder, listed: list[Holding] | None) -> bool:
        """Whether the kubelet lists no pod of this name, or one that has other ids: a new pod of an old name.

        Or one without what it would list by now: what was noted for it was another's.
        """
        if listed is None:
            return True
        return not _has_some_of(holder, listed) if listed else not self._is_unlisted(holder)

    def _is_unlisted(self, holder: Holder) -> bool:
        """Whether all that is noted for a pod is what the kubelet never lists, or certain."""
        pod = self._state.pods.get(holder.pod.uid)
        if pod is None or holder.pod.uid in self._state.confirmed:
            return True
        kinds = {part.container: part.kind for part in pod.request}
        return all(kinds.get(holding.container) is ContainerKind.INIT for holding in holder.holdings)

    def _release_stand_ins(self, by_name: Mapping[_Name, list[Holding]], began: float) -> None:
        """Those that are not listed, but none that was made since the list began, which cannot have it.

        Where the watch knows all pods, a name that it does not know is a pod that has ended: kubelets before 1.34 go
        on listing it.
        """
        shown = {_name(pod.pod) for pod in self._state.pods.values()}
        known = shown if self._state.pods_known else by_name.keys()
        unseen = any(holdings and name not in shown for name, holdings in by_name.items())
        everything = [holding for holdings in by_name.values() for holding in holdings]
        for holder in [holder for holder in self._state.ledger if stands_in(holder)]:
            name = _name(holder.pod)
            if is_nameless(holder):
                lasts = _has_some_of(holder, everything) or self._may_be_unlisted(holder, unseen=unseen)
            else:  # of the same name and with nothing of it: another pod that was made anew
                lasts = name in known and _has_some_of(holder, by_name.get(name, ()))
            if not lasts and self._since(holder) < began:
                self._state.release(holder.pod.uid)

    def _may_be_unlisted(self, holder: Holder, *, unseen: bool) -> bool:
        """Whether a nameless holder may be a plain init container, of a pod that the watch knows or will yet show.

        ``unseen``: the kubelet lists devices of a pod that no watch has shown. Nor may one have shown the pod that is
        being admitted right now, for whom the latest was noted.
        """
        age = self._state.clock() - self._since(holder)
        if age > GRACE_SECONDS:
            return False
        if age < QUIET_SECONDS and self._since(holder) == max(self._state.tenancy.since.values()):
            return True
        if unseen or not self._state.pods_known:
            return True
        asking = (part for pod in self.unconfirmed() for part in pod.request if part.kind is ContainerKind.INIT)
        return any(part.resource is holding.resource for part in asking for holding in holder.holdings)

    def _since(self, holder: Holder) -> float:
        return self._state.tenancy.since.get(holder.pod.uid, float("-inf"))


def _name(pod: PodReference) -> _Name:
    return pod.namespace, pod.name


def _has_some_of(holder: Holder, listed: Iterable[Holding]) -> bool:
    """Whether the kubelet lists some of what it has on its account for a holder."""
    mask = union_of(listed)
    return any(holding.on_account & mask for holding in holder.holdings)
