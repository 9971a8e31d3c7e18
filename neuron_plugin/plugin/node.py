"""The node daemon's state: the machine, the pods, who holds what.

One object, changed only from the event loop and never across an await, so whoever reads it sees one moment. Every
change that matters to the kubelet ends in ``on_change``. What is known of each of the three is a value of its own,
which says what a change makes of it; here they meet.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from neuron_plugin.allocation import Holder, HolderLedger, Holding, PodReference, PodUid
from neuron_plugin.plugin.claims import Claims
from neuron_plugin.plugin.decisions import WaitingDecision, heir_of, waiting_decisions
from neuron_plugin.plugin.machine import Machine, health_after, machine_after, same_ids
from neuron_plugin.plugin.pods import NodePod, annotated_holdings
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.plugin.standins import is_known, is_nameless, nameless_stand_in
from neuron_plugin.plugin.tenancy import Tenancy
from neuron_plugin.plugin.vanished import Vanished
from neuron_plugin.topology import CoreMask


@dataclass
class NodeState:
    """What this node has, who is on it and who holds what.

    ``pods_known`` says whether the API server has told all pods of this node, ``holders_known`` whether the kubelet has
    told who holds what. ``last_call`` is when the kubelet last asked for something; ``asked_for_all``: it asks about
    all ids that are new to a pod, as it does without NUMA hints. ``quarantine`` is the silicon of vanished pods that is
    not offered yet; None where nobody looks after their processes.
    """

    on_change: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    machine: Machine | None = None
    pods: dict[PodUid, NodePod] = field(default_factory=dict)
    pods_known: bool = False
    tenancy: Tenancy = field(default_factory=Tenancy)
    holders_known: bool = False
    quarantine: Quarantine | None = None
    last_call: float = float("-inf")
    asked_for_all: bool = True
    _vanished: Vanished = field(default_factory=Vanished)
    _renumbered: Machine | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def ledger(self) -> HolderLedger:
        """Who holds what."""
        return self.tenancy.ledger

    @property
    def confirmed(self) -> frozenset[PodUid]:
        """The pods of which the kubelet has told what they hold."""
        return self.tenancy.confirmed

    # Hardware.

    def see_machine(self, seen: Machine | None) -> bool:
        """Take in a look at the hardware; whether it was taken whole.

        A look that gives core ids another meaning (LNC was changed) has to wait until no pod holds any; until then
        only what it says of the devices' health counts.
        """
        machine = machine_after(self.machine, seen)
        waits = self.machine and machine and self._ids_in_use() and not same_ids(self.machine, machine)
        self._renumbered = machine if waits else None
        self._use(health_after(self.machine, machine) if waits and self.machine and machine else machine)
        return not waits

    def _use(self, machine: Machine | None) -> None:
        if machine == self.machine:
            return
        self.machine = machine
        for pod in self.pods.values():
            self._remember(pod)
        self.on_change()

    # Pods.

    def see_pod(self, pod: NodePod) -> None:
        """Take in a live pod of this node; one that was served before this daemon started holds what it was given."""
        self.pods[pod.pod.uid] = pod
        self._remember(pod)

    def see_all_pods(self, uids: Collection[str]) -> None:
        """These are all the pods there are: others have ended while nobody was watching."""
        for uid in [uid for uid in self.pods if uid not in uids]:
            self.lose_pod(uid)
        self.pods_known = True

    def forget_pod(self, uid: PodUid) -> None:
        """A pod's end: what it held is free.

        What it was only supposed to hold may have been another pod's that asks for the same and that no watch has shown
        yet; a stand-in keeps that until the kubelet has been asked.
        """
        holder, certain = self.ledger.holders.get(uid), self._is_certain(uid)
        self.pods.pop(uid, None)
        supposed = holder and is_known(holder.pod) and not certain
        self._strike(uid, holder.holdings if holder and supposed else ())

    def lose_pod(self, uid: PodUid) -> None:
        """A pod is gone that was not seen to end: it holds nothing, but its processes may run on.

        If it was deleted while it waited, what was noted for it is another's, of whom no watch has told yet.
        """
        pod, holder = self.pods.get(uid), self.ledger.holders.get(uid)
        if holder:
            self._suspect(holder)
        elif pod and self.machine:
            self._vanished = self._vanished.with_left(self.machine.geometry, pod, self.ledger)
        if pod:
            self._vanished = self._vanished.with_name(pod.pod, self.clock())
        self.forget_pod(uid)

    def end(self, uid: PodUid, listed: int = 0) -> None:
        """The kubelet has no such pod any more, whatever the API server still says.

        Most such pods have just ended, and a new one waits for its devices: suspect for one look only. One that the
        kubelet has never listed may be yet to be admitted, and what was noted for it another's: of that it keeps what
        is ``listed`` for somebody.
        """
        if self._is_certain(uid):
            self.pods.pop(uid, None)
        holder = self.ledger.holders.get(uid)
        if holder and is_known(holder.pod):
            self._suspect(holder, seconds=0.0)
        supposed = holder.holdings if holder and uid not in self.confirmed else ()
        self._strike(uid, [holding for holding in supposed if holding.on_account & listed])

    # Holders.

    def hold(self, pod: PodReference, holding: Holding, kin: Collection[PodUid] = ()) -> None:
        """Note that a container of a pod was given cores; ``kin`` are holders that turn out to be this pod."""
        self._set_tenancy(self.tenancy.supposing(pod, holding, self.clock(), kin))

    def confirm(self, pod: PodReference, holdings: Iterable[Holding]) -> None:
        """Write down what a pod really holds."""
        truth = Holder(pod, tuple(holdings))
        if truth.holdings:
            self._set_tenancy(self.tenancy.confirming(truth, self.new_stand_in(), self.clock()))

    def doubt(self, uid: PodUid) -> None:
        """What a pod was known to hold was another's of its name, or is: one of the two may have vanished."""
        holder = self.ledger.holders.get(uid)
        if holder:
            self._suspect(holder, seconds=0.0)
        self._set_tenancy(self.tenancy.doubting(uid))

    def release(self, uid: PodUid) -> None:
        """A stand-in that the kubelet does not list any more.

        One with a name was a pod whose processes may run on. So may one without, if a pod that may have been the one
        has vanished meanwhile: with several nobody knows whose processes to look for.
        """
        holder, vanished = self.ledger.holders.get(uid), self._vanished.left_by.get(uid, ())
        if holder and not is_nameless(holder):
            self._suspect(holder)
        elif holder and vanished:
            self._suspect(holder, whose=None if len(vanished) > 1 else vanished[0])
        self._strike(uid)

    def see_users(self, users: Users) -> None:
        """Take in who has the devices open: what vanished pods have let go of is offered again.

        What they have not let go of stands for nobody else: a stand-in for it would keep it healthy under its name.
        """
        if self.machine and self.quarantine:
            geometry = self.machine.geometry
            quarantine = self.quarantine.after_look(geometry, users)
            self._set_quarantine(quarantine)
            for holder in [holder for holder in self.ledger if is_nameless(holder)]:
                if quarantine.proves(geometry, users, holder.mask):
                    self._strike(holder.pod.uid)

    def see_strangers(self, users: Users, known: Collection[str]) -> None:
        """Take in who has the devices open before the first is offered; ``known`` are UIDs of pods that live."""
        if self.machine and self.quarantine:
            known = {*known, *self.ledger.holders}
            geometry, used = self.machine.geometry, self.ledger.used_mask
            self._set_quarantine(self.quarantine.with_strangers(geometry, users, used, known))

    def see_live_pods(self, uids: Collection[str]) -> None:
        """Take in the UIDs of all live pods of this node, whether they ask for Neuron or not."""
        if self.quarantine:
            self._set_quarantine(self.quarantine.after_roll_call(uids, self.pods.keys() - self.confirmed))

    def new_stand_in(self) -> PodReference:
        """A holder for an Allocate of a pod that nobody has told us of, until the kubelet names it."""
        return nameless_stand_in(next(self._numbers))

    def called(self) -> None:
        """The kubelet has asked for something just now."""
        self.last_call = self.clock()

    # What is known at this moment.

    def waiting(self) -> tuple[WaitingDecision, ...]:
        """Decisions whose sets nobody has been given yet, in the order of the bindings."""
        if self.machine is None:
            return ()
        return waiting_decisions(self.machine.geometry, self.pods.values(), self.ledger, self.confirmed)

    def heir_of(self, pod: NodePod) -> NodePod | None:
        """The pod that is to get what was decided for ``pod``, because ``pod`` was given what was decided for it."""
        return heir_of(self.machine.geometry, pod, self.pods.values(), self.ledger) if self.machine else None

    def claims(self, machine: Machine) -> Claims:
        """What is known about who may ask for what."""
        return Claims(machine.geometry, self.pods, self.ledger, self.waiting(), self.confirmed, self._swaps)

    def unheld_mask(self, machine: Machine) -> CoreMask:
        """Healthy cores that nobody holds, whoever waits for them."""
        return CoreMask(self.offered_mask(machine) & ~self.ledger.used_mask)

    def has_lost_name(self, pod: PodReference) -> bool:
        """Whether a pod of this name has vanished lately."""
        return self._vanished.has_name(pod, self.clock())

    def free_mask(self, machine: Machine) -> CoreMask:
        """Healthy cores that nobody holds and no decision waits for."""
        free: int = self.unheld_mask(machine)
        for decision in self.waiting():
            free &= ~decision.mask
        return CoreMask(free)

    def offered_mask(self, machine: Machine) -> CoreMask:
        """Cores of healthy devices that no vanished pod may still use: an Allocate of others is refused."""
        return CoreMask(machine.healthy_mask & ~(self.quarantine.mask if self.quarantine else 0))

    # Inside.

    @property
    def _swaps(self) -> bool:
        """Whether another part than the kubelet drew may be given to a pod that nobody has named."""
        return self.pods_known and self.asked_for_all

    def _remember(self, pod: NodePod) -> None:
        """Believe a pod's own annotation that it was allocated, until the kubelet says otherwise."""
        if self.machine:
            told = Holder(pod.pod, annotated_holdings(self.machine.geometry, pod))
            self._set_tenancy(self.tenancy.believing(told))

    def _is_certain(self, uid: PodUid) -> bool:
        """Whether a pod was known to have been given its devices, by the kubelet or by its own annotation."""
        pod = self.pods.get(uid)
        return uid in self.confirmed or bool(pod and pod.decision and pod.decision.allocated)

    def _set_tenancy(self, tenancy: Tenancy) -> None:
        changed, self.tenancy = tenancy.ledger != self.ledger, tenancy
        if changed:
            self.on_change()
            self._renumber()

    def _strike(self, uid: PodUid, left: Iterable[Holding] = ()) -> None:
        """A holder is gone; a stand-in keeps what is ``left``."""
        self._set_tenancy(self.tenancy.without(uid, left, self.new_stand_in(), self.clock()))

    def _suspect(self, holder: Holder, *, whose: PodReference | None = None, seconds: float | None = None) -> None:
        """Keep what nobody else holds; before the holder is struck off, so that it is never offered in between."""
        if self.quarantine:
            left = CoreMask(holder.mask & ~self.ledger.without(holder.pod.uid).used_mask)
            self._set_quarantine(self.quarantine.with_suspect(whose or holder.pod, left, self.clock(), seconds=seconds))

    def _set_quarantine(self, quarantine: Quarantine) -> None:
        if quarantine == self.quarantine:
            return
        self.quarantine = quarantine
        self.on_change()
        self._renumber()

    def _ids_in_use(self) -> bool:
        """Whether somebody's core ids have to keep their meaning."""
        return bool(self.ledger.holders or (self.quarantine and self.quarantine.suspects))

    def _renumber(self) -> None:
        if self._renumbered and not self._ids_in_use():
            renumbered, self._renumbered = self._renumbered, None
            self._use(renumbered)
