"""The node daemon's state: the machine, the pods, who holds what.

One object, changed only from the event loop and never across an await, so whoever reads it sees one moment. Every
change that matters to the kubelet ends in ``on_change``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neuron_plugin.allocation.ledger import Holder, Holding, Ledger, Pod, PodUid
from neuron_plugin.allocation.resources import mask_of
from neuron_plugin.plugin.claims import Claims
from neuron_plugin.plugin.decisions import WaitingDecision, waiting_decisions
from neuron_plugin.plugin.machine import Machine, machine_after
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.truth import STAND_IN
from neuron_plugin.topology.geometry import CoreMask


@dataclass
class NodeState:
    """What this node has, who is on it and who holds what."""

    on_change: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    machine: Machine | None = None
    ledger: Ledger = field(default_factory=Ledger)
    pods: dict[PodUid, NodePod] = field(default_factory=dict)
    held_since: dict[PodUid, float] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def see_machine(self, seen: Machine | None) -> bool:
        """Take in a look at the hardware; whether it was taken.

        A look that gives core ids another meaning (LNC was changed) has to wait until no pod holds any.
        """
        machine = machine_after(self.machine, seen)
        if self.machine and machine and self.ledger.holders and _renumbered(self.machine, machine):
            return False
        if machine != self.machine:
            self.machine = machine
            for pod in self.pods.values():
                self._remember(pod)
            self.on_change()
        return True

    def see_pod(self, pod: NodePod) -> None:
        """Take in a live pod of this node; one that was served before this daemon started holds what it was given."""
        self.pods[pod.pod.uid] = pod
        self._remember(pod)

    def forget_pod(self, uid: PodUid) -> None:
        """A pod's end: what it held is free."""
        self.pods.pop(uid, None)
        self.release(uid)

    def release(self, uid: PodUid) -> None:
        """Strike a holder off the ledger."""
        self.held_since.pop(uid, None)
        self._set_ledger(self.ledger.without(uid))

    def hold(self, pod: Pod, holding: Holding) -> None:
        """Note that a container of a pod holds cores."""
        self.held_since[pod.uid] = self.clock()
        self._set_ledger(self.ledger.with_holding(pod, holding))

    def confirm(self, pod: Pod, holdings: Iterable[Holding]) -> None:
        """Write down what a pod really holds; holders we only supposed for those cores were mistaken."""
        confirmed = Holder(pod, tuple(holdings))
        ledger = self.ledger
        for holder in ledger.holders_of(confirmed.mask):
            if holder.pod.uid != pod.uid:
                ledger = _without_cores(ledger, holder, confirmed.mask)
        self._set_ledger(ledger.with_holder(confirmed) if confirmed.holdings else ledger.without(pod.uid))

    def nameless_stand_in(self) -> Pod:
        """A holder for an Allocate of a pod that nobody has told us of, until the kubelet names it."""
        return Pod(PodUid(f"{STAND_IN}#{next(self._numbers)}"), "", "")

    def named_stand_in(self, namespace: str, name: str) -> Pod:
        """A holder for a pod that the kubelet lists and no watch has shown."""
        return Pod(PodUid(f"{STAND_IN}{namespace}/{name}"), namespace, name)

    def waiting(self) -> tuple[WaitingDecision, ...]:
        """Decisions whose sets nobody has been given yet, in the order of the bindings."""
        return waiting_decisions(self.machine.geometry, self.pods.values(), self.ledger) if self.machine else ()

    def claims(self, machine: Machine) -> Claims:
        """What is known at this moment about who may ask for what."""
        return Claims(machine.geometry, self.pods, self.ledger, self.waiting())

    def free_mask(self, machine: Machine) -> CoreMask:
        """Healthy cores that nobody holds and no decision waits for."""
        taken = int(self.ledger.used_mask)
        for decision in self.waiting():
            taken |= decision.mask
        return CoreMask(machine.healthy_mask & ~taken)

    def _remember(self, pod: NodePod) -> None:
        """Believe a pod's own annotation that it was allocated, until the kubelet says otherwise."""
        if not (self.machine and pod.decision and pod.decision.allocated) or pod.pod.uid in self.ledger.holders:
            return
        for part in pod.decision.containers:
            mask = mask_of(self.machine.geometry, part.request.resource.unit, part.ids)
            self._set_ledger(
                self.ledger.with_holding(pod.pod, Holding(part.request.container, part.request.resource, mask))
            )

    def _set_ledger(self, ledger: Ledger) -> None:
        if ledger != self.ledger:
            self.ledger = ledger
            self.on_change()


def _renumbered(before: Machine, after: Machine) -> bool:
    return before.geometry.cores_per_device != after.geometry.cores_per_device


def _without_cores(ledger: Ledger, holder: Holder, mask: int) -> Ledger:
    kept = tuple(holding for holding in holder.holdings if not holding.mask & mask)
    return ledger.with_holder(Holder(holder.pod, kept)) if kept else ledger.without(holder.pod.uid)
