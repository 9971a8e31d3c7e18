"""The one owner of the node's inputs: watchers replace one of them here, and everybody reads the snapshot.

All methods are called from the event loop and change nothing across an await, so a reader sees one moment. A change
sets ``changed``; the daemon then publishes what is different.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from neuron_plugin.allocation import NodeInventory, PodUid, Resource
from neuron_plugin.allocation.claims import DEVICE_RESOURCE, NeuronClaim
from neuron_plugin.backoff import CLOCK, Backoff, steady_seconds
from neuron_plugin.kubelet import Advertisement, Checkpoint, PodDevices
from neuron_plugin.kubelet.checkpoint import FollowedFile, RecordFile
from neuron_plugin.kubelet.dra_state import DraState
from neuron_plugin.plugin.inputs import (
    LISTED_SECONDS,
    PENDING,
    HoldDown,
    Inputs,
    NodePods,
    PendingAnswer,
    Recorded,
    claim_allocations,
    named,
    recorded_allocation,
)
from neuron_plugin.plugin.settle import (
    is_explained,
    list_is_due,
    pods_to_look_at,
    rewrite_is_due,
    settle,
    with_lost_records,
)
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.topology import CoreMask

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """All in seconds.

    ``rewrite``: how long the kubelet may take to write its memory after a message of ours, some 2-30 ms where the disk
    is idle. ``longest_pause``: between two messages to a kubelet that cannot write its file, such as on a full disk.
    ``record``: how long the kubelet may take to record an answer, before anything else is sent to it.

    ``unknown``: how long the devices that an unknown pod has open are kept from kubelet and cluster: the pods may not
    be listed yet.
    """

    rewrite: float = 1.0
    longest_pause: float = 30.0
    record: float = 0.05
    unknown: float = 10.0


NODE_TIMES = NodeTimes()


class PodCgroups(Protocol):
    """Which pods have a live process."""

    def is_populated(self, uid: str) -> bool | None:
        """Whether a process of the pod's cgroup lives; None where that cannot be seen."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """``resources`` are offered to the kubelet; none by a driver of DRA.

    ``hold_down_seconds`` is the time that cores rest where cgroups cannot be seen. ``unhealthy_in_use``: the kubelet is
    shown a broken device as unhealthy also while a pod has it.
    """

    resources: tuple[Resource, ...] = tuple(Resource)
    cluster: bool = True
    hold_down_seconds: float = 30.0
    unhealthy_in_use: bool = False

    @property
    def counted(self) -> tuple[Resource, ...]:
        """The names under which devices and cores are counted."""
        return self.resources or (DEVICE_RESOURCE, Resource.NEURONCORE)


class LocalNode:
    """The inputs of one node, the snapshot that follows from them, and the devices as the kubelet sees them."""

    def __init__(
        self,
        checkpoint: RecordFile[Checkpoint],
        cgroups: PodCgroups,
        options: NodeOptions | None = None,
        clock: Callable[[], float] = steady_seconds,
        dra_state: RecordFile[DraState] | None = None,
        times: NodeTimes = NODE_TIMES,
    ) -> None:
        self.options = options or NodeOptions()
        self.clock = clock
        self.changed = asyncio.Event()
        self.disabled_known = asyncio.Event()
        """Set once the disabled devices are known, or the wait for them is over. The kubelet's calls wait for it."""
        self.disabled_known.set()
        self.listing = asyncio.Lock()
        """Held while PodResources is listed: a preference is answered only afterwards (kubernetes#137534)."""
        self.numa_nodes: tuple[int, ...] = ()
        """The NUMA node of each device; empty where none is to be advertised."""
        self.advertisements = {resource: Advertisement() for resource in self.options.resources}
        self._times = times
        self._checkpoint = FollowedFile(checkpoint)
        self._cgroups = cgroups
        self._dra_state = FollowedFile(dra_state) if dra_state else None
        self.claims: Mapping[tuple[str, str], NeuronClaim] = {}
        """The claims of this node's pods, as they were read last."""
        self._kubelet_restarted_at = float("-inf")
        self._rewrite_asked_at: float | None = None
        self._before_rewrite: object = None
        self._rewrite_backoff = Backoff(CLOCK.chance, first_seconds=times.record, longest_seconds=times.longest_pause)
        self._next_rewrite_at = float("-inf")
        self.pods = NodePods()
        """This node's pods as the API server shows them."""
        self._inputs: Inputs | None = None
        self._snapshot: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of the inputs as they are now; None before the first device is found."""
        if self._snapshot is None and self._inputs is not None:
            inputs = with_lost_records(replace(self._inputs, now=self.clock()))
            populated = {uid: self.is_populated(uid) for uid in pods_to_look_at(inputs)}
            settled = settle(inputs, populated, self.options.hold_down_seconds)
            for hold_down in settled.hold_downs:
                if hold_down not in inputs.hold_downs:
                    logger.info("holding down", extra={"pod": named(hold_down.pod), "reason": hold_down.reason})
            for hold_down in inputs.hold_downs:
                if hold_down not in settled.hold_downs:
                    logger.info("no longer holding down", extra={"pod": named(hold_down.pod)})
            self._inputs = settled
            self._snapshot = derive(settled)
        return self._snapshot

    @property
    def recorded(self) -> Recorded:
        """Who has what by the kubelet's record; empty before the first device is found."""
        return self._inputs.recorded if self._inputs else Recorded()

    @property
    def dra_unreadable(self) -> str:
        """Why the kubelet's file of prepared claims cannot be read; empty if it can."""
        return self._dra_state.unreadable if self._dra_state else ""

    # The inputs.

    def see_inventory(self, inventory: NodeInventory) -> None:
        """Take in the hardware; the first time also what the kubelet has recorded, before anything is offered."""
        if self._inputs is None:
            self._replace(Inputs(inventory, self.pods, claims=self.claims, cluster=self.options.cluster))
            self.look_at_checkpoint()
            self.look_at_claims()
            self._doubt({key.uid for key in self.recorded.entries if not self.is_populated(key.uid)})
        elif inventory != self._inputs.inventory:
            self._replace(self._inputs.with_inventory(inventory))

    def see_pods(self, pods: NodePods) -> None:
        """Take in this node's pods."""
        self.pods = pods
        if self._inputs:
            self._replace(replace(self._inputs, pods=pods))

    def look_at_checkpoint(self) -> None:
        """Read the kubelet's checkpoint if it has changed: one stat if not, some 0.2 ms if so."""
        if self._inputs is None:
            return
        recorded, checkpoint = self._inputs.recorded, self._checkpoint.news()
        if checkpoint is None:
            why = self._checkpoint.unreadable
            if why and why != recorded.unreadable:
                logger.warning("checkpoint not readable, asking PodResources instead", extra={"error": why})
                pending = tuple(replace(answer, unseen=True) for answer in self._inputs.pending)
                self._replace(replace(self._inputs, recorded=replace(recorded, unreadable=why), pending=pending))
            return
        if recorded.unreadable:
            logger.info("checkpoint readable again")
        rewritten_at = None
        if self._rewrite_asked_at is not None and checkpoint.version != self._before_rewrite:
            rewritten_at, self._rewrite_asked_at = self._rewrite_asked_at, None
        entries = [recorded_allocation(entry) for entry in checkpoint.entries]
        self._replace(
            replace(self._inputs, recorded=recorded.with_file(entries, self.clock(), rewritten_at=rewritten_at))
        )

    def look_at_claims(self) -> None:
        """Read the kubelet's file of prepared claims if it has changed.

        If the file cannot be read the known claims stay: a claim ends by its pods, never by a line that goes.
        """
        if self._dra_state is None or self._inputs is None:
            return
        before, state = self._dra_state.unreadable, self._dra_state.news()
        if state is None:
            if (why := self._dra_state.unreadable) not in {"", before}:
                logger.warning("the kubelet's file of claims is not readable", extra={"error": why})
            return
        entries = [
            entry
            for claim in state.claims
            for entry in claim_allocations(map(PodUid, claim.pod_uids), claim.uid, claim.name, claim.devices)
        ]
        self._replace(replace(self._inputs, recorded=self._inputs.recorded.with_claims(entries, self.clock())))

    def see_claims(self, claims: Mapping[tuple[str, str], NeuronClaim]) -> None:
        """Take in the claims of this node's pods, as the API server has them."""
        if claims == self.claims:
            return
        self.claims = claims
        if self._inputs:
            self._replace(replace(self._inputs, claims=claims))

    def prepared(self, claim: NeuronClaim) -> None:
        """Take in that a claim was prepared for the pods that it is reserved for. The file shows it later, or never."""
        if self._inputs is None:
            return
        pods = [uid for uid in claim.reserved_for if uid in self.pods.pods]
        devices = [result.device for result in claim.results]
        entries = claim_allocations(pods, claim.uid, claim.name, devices, missing=True)
        recorded = self._inputs.recorded.with_claims(entries, self.clock(), whole=False)
        self._replace(replace(self._inputs, recorded=recorded))

    def see_listed(self, listed: Iterable[PodDevices], began_at: float) -> None:
        """Take in an answer of PodResources in place of a checkpoint that cannot be read.

        It has names in place of UIDs. Where the API server shows no pod of a name, the name stands for the UID. The
        cores are those of our own answer for the ids, else those that the kubelet drew. A new kubelet does not list a
        pod before it has admitted the pod again, so its first answers prove no end.
        """
        if self._inputs is None:
            return
        recorded, resources = self._inputs.recorded, self.options.resources or tuple(Resource)
        uids = {str(pod.reference): pod.kubelet_uid for pod in self.pods.pods.values()}
        replies = {(answer.resource, answer.ids): answer.reply for answer in self._inputs.pending}
        entries = []
        for entry in (entry for pod in listed for entry in pod.entries(uids.get(str(pod), str(pod)))):
            if entry.resource in resources:
                allocation = recorded_allocation(entry)
                before = recorded.entries.get(allocation.key)
                known = before.reply if before and before.ids == allocation.ids else None
                entries.append(replace(allocation, reply=replies.get((allocation.key.resource, allocation.ids), known)))
        proof = began_at if began_at >= self._kubelet_restarted_at + LISTED_SECONDS else None
        self._replace(
            replace(
                self._inputs,
                recorded=recorded.with_file(entries, self.clock(), rewritten_at=proof, unreadable=recorded.unreadable),
            )
        )

    def answered(self, answer: PendingAnswer) -> None:
        """Take in our own answer to an Allocate; one for the same container replaces the last."""
        if self._inputs is None:
            return
        kept = tuple(
            pending
            for pending in self._inputs.pending
            if not (answer.container and (pending.pod, pending.container) == (answer.pod, answer.container))
        )
        answer = replace(answer, unseen=bool(self._inputs.recorded.unreadable))
        self._replace(replace(self._inputs, pending=(*kept, answer)))

    def see_offered(self, resource: Resource, ids: Iterable[int]) -> None:
        """Take in that the kubelet takes these ids for free: a pod that has a broken device of them may have ended."""
        if (snapshot := self.snapshot) is None:
            return
        broken = snapshot.mask_of(resource, ids) & ~snapshot.inventory.healthy_mask
        has_broken = [
            allocation
            for allocation in (snapshot.ledger.allocations if broken else ())
            if allocation.resource is resource and allocation.kubelet_mask & broken
        ]
        self._doubt({snapshot.inputs.kubelet_uid(allocation.pod) for allocation in has_broken})

    def kubelet_restarted(self) -> None:
        """A new kubelet knows what its file says: answers to the one before that are not in the file never will be."""
        self._kubelet_restarted_at = self.clock()
        self._rewrite_backoff.reset()
        self._next_rewrite_at = float("-inf")
        self.look_at_checkpoint()
        if self._inputs and self._inputs.pending and not self._inputs.recorded.unreadable:
            unseen = tuple(answer for answer in self._inputs.pending if answer.unseen)
            self._replace(replace(self._inputs, pending=unseen))

    def hold_down(self, uid: PodUid, mask: CoreMask, reason: str) -> None:
        """Hold down cores that a process of an unknown pod has open: neither API server nor kubelet knows that pod.

        Cores of other pods in the ledger are held down, too: the file may still show a pod that has ended.
        """
        if self._inputs is None or is_explained(self._inputs, uid):
            return
        if any(hold_down.uid == uid for hold_down in self._inputs.hold_downs):
            return
        now = self.clock()
        hold_down = HoldDown(
            uid=uid,
            pod=self._inputs.reference(uid),
            mask=mask,
            since=now,
            not_before=now,
            published_from=now + self._times.unknown,
            advertised_from=now + self._times.unknown,
            until=now + self.options.hold_down_seconds,
            reason=reason,
            unknown=True,
        )
        logger.info("holding down", extra={"pod": named(hold_down.pod), "reason": reason})
        self._replace(replace(self._inputs, hold_downs=(*self._inputs.hold_downs, hold_down)))

    def look_again(self) -> None:
        """Derive the snapshot again where time or cgroups may have changed it."""
        if self._inputs and self._inputs.hold_downs:
            before, self._snapshot = self._snapshot, None
            after = self.snapshot
            if before and after and _visible(before) != _visible(after):
                self.changed.set()

    async def take_turn(self) -> None:
        """Look at what changes without an event, and do what is due."""
        self.look_at_checkpoint()
        self.look_at_claims()
        self.look_again()
        if self.rewrite_is_due:
            await self.rewrite()

    def is_populated(self, uid: PodUid) -> bool | None:
        """Whether a process of the pod lives; None where that cannot be seen, or where the pod's UID is not known."""
        return None if "/" in uid or uid.startswith(PENDING) else self._cgroups.is_populated(uid)

    # What goes to the kubelet.

    def advertise(self) -> None:
        """Show the kubelet the devices as they are now. Only changes are sent."""
        snapshot = self.snapshot
        if snapshot:
            for resource, advertisement in self.advertisements.items():
                in_use = self.options.unhealthy_in_use
                advertisement.publish(snapshot.advertised(resource, self.numa_nodes, unhealthy_in_use=in_use))

    @property
    def rewrite_is_due(self) -> bool:
        """Whether the kubelet has to write its memory before it is known who has what; not soon after it did not."""
        now = self.clock()
        return self._inputs is not None and now >= self._next_rewrite_at and rewrite_is_due(self._inputs, now)

    @property
    def list_is_due(self) -> bool:
        """Whether the API server has to be asked whether a recorded pod still exists."""
        return self._inputs is not None and list_is_due(self._inputs, self.clock())

    @property
    def record_is_awaited(self) -> bool:
        """Whether the kubelet is about to record an answer."""
        pending = self.snapshot.inputs.pending if self.snapshot else ()
        return any(self.clock() - answer.at < self._times.record for answer in pending)

    async def rewrite(self) -> bool:
        """Make the kubelet write its whole memory, and read it; whether a new file came.

        Any ListAndWatch message does that, also in the middle of a GetPreferredAllocation or an Allocate. Calls that
        come together share one message: each costs the kubelet an fsync.
        """
        self.look_at_checkpoint()
        followed = next(
            (advertisement for advertisement in self.advertisements.values() if advertisement.streams), None
        )
        if followed is None:
            return False
        if self._rewrite_asked_at is None:
            self._rewrite_asked_at, self._before_rewrite = self.clock(), self._checkpoint.source.version()
            followed.rewrite()
        asked_at = self._rewrite_asked_at
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.rewrite):
                while self._rewrite_asked_at == asked_at:
                    await asyncio.sleep(0.005)
                    self.look_at_checkpoint()
                self._rewrite_backoff.reset()
                return True
        if self._rewrite_asked_at == asked_at:
            self._rewrite_asked_at = None
            self._next_rewrite_at = self.clock() + self._rewrite_backoff.next_seconds()
        return False

    # Inside.

    def _doubt(self, pods: set[PodUid]) -> None:
        if self._inputs and not pods <= self._inputs.doubted:
            self._replace(replace(self._inputs, doubted=self._inputs.doubted | pods))

    def _replace(self, inputs: Inputs) -> None:
        if inputs is not self._inputs:
            self._inputs, self._snapshot = inputs, None
            self.changed.set()


def _visible(snapshot: Snapshot) -> tuple[object, ...]:
    """The parts that a look at time and cgroups can change."""
    inputs = snapshot.inputs
    return inputs.recorded, inputs.hold_downs, inputs.published_hold_downs, inputs.advertised_hold_downs
