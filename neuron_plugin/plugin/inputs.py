"""The node daemon's knowledge, as five immutable values; everything else is derived from them.

A watcher replaces one input and asks for a refresh. Nothing else keeps state about pods and devices, so a restart of
the daemon reads the same five things again and arrives at the same answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from neuron_plugin.allocation import Allocation, Assignment, NeuronPod, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.allocation.claims import DEVICE_RESOURCE, NeuronClaim, names_mask, read_device_name
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.plugin.container import ALLOCATION_KEY, Reply, read_reply
from neuron_plugin.topology import CoreMask, Unit

if TYPE_CHECKING:
    from neuron_plugin.kubelet import CheckpointEntry

PENDING = "pending-"
"""How the UID begins that stands for the unknown pod of an answer."""

UNSEEN_SECONDS = 1.0
"""A kubelet writes its checkpoint 2-30 ms after our answer. An answer that a file rewritten this much later does not
have was never recorded."""

LISTED_SECONDS = 30.0
"""How long an answer counts at least where no file can show it: far longer than an admission takes."""

MOST_ENDED = 1024
"""Ends that are remembered: the kubelet may record an allocation after the end of its pod was seen."""

MOST_PAST = 64
"""Pods that are gone and whose last runs are remembered: far more than fail on one device before it is suspected."""

MOST_VANISHED = 32
"""Vanished pods that are published at once. A chooser gives up waiting for the others after some seconds."""

_API_SERVER_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_DIGITS = 4
"""Of a device or core number; ids with more are not ours."""
_DEVICE_PATH = re.compile(r"/neuron([0-9]{1,4})")


def given_mask(reply: Reply, inventory: NodeInventory) -> CoreMask:
    """The cores of a reply as the node counts them now; whole devices if the logical core size has changed since."""
    if reply.lnc == inventory.logical_core_size:
        return inventory.geometry.mask_of(Unit.CORE, reply.cores)
    return inventory.geometry.mask_of(Unit.DEVICE, reply.devices)


@dataclass(frozen=True, slots=True)
class AllocationKey:
    """The key of an allocation in the kubelet's record. ``uid`` is the kubelet's: a static pod's is a hash.

    ``claim`` is the UID of a claim, for the devices of all containers of a pod that use the claim.
    """

    uid: PodUid
    container: str
    resource: Resource
    claim: str = ""


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    """One entry of the kubelet's checkpoint. ``seen_at`` is when a file showed it first, on the daemon's clock.

    ``missing``: the latest file lacks it; that file may be an older one that was written late. ``gone``: a file lacks
    it, too, that the kubelet wrote when it was asked for its whole memory, after the entry was seen. ``annotated``: the
    kubelet has lost its record of a pod that runs; this is what the pod's annotations say. It counts as long as the API
    server shows the pod, and ends as every other entry does.

    ``claim_devices`` are the devices of a claim by name, and ``claim_name`` is the claim's own.
    """

    key: AllocationKey
    ids: tuple[int, ...]
    reply: Reply | None
    device_paths: tuple[int, ...] = ()
    seen_at: float = field(default=0.0, compare=False)
    missing: bool = False
    gone: bool = False
    annotated: bool = False
    claim_name: str = ""
    claim_devices: tuple[str, ...] = ()

    def is_same(self, other: RecordedAllocation | None) -> bool:
        """Whether ``other``, under the same key, comes from the same Allocate."""
        parts = (self.ids, self.reply, self.claim_devices)
        return other is not None and parts == (other.ids, other.reply, other.claim_devices)

    def on(self, inventory: NodeInventory, pod: PodReference) -> Allocation:
        """The container's allocation on this node.

        The entry of another plugin counts by its ids, and by device paths that its ids do not explain.
        """
        geometry, unit = inventory.geometry, self.key.resource.unit
        if self.key.claim:
            mask = names_mask(self.claim_devices, geometry, inventory.logical_core_size)
            return Allocation(pod, "", self.key.resource, mask, claim=self.claim_name)
        mask = drawn = geometry.mask_of(unit, self.ids)
        if self.reply:
            mask = given_mask(self.reply, inventory)
        elif self.device_paths:
            explained = geometry.devices_touched(drawn)
            mask = CoreMask(
                drawn | geometry.devices_mask(device for device in self.device_paths if device not in explained)
            )
        return Allocation(pod, self.key.container, self.key.resource, mask, drawn)


@dataclass(frozen=True)
class Recorded:
    """Who has what by the kubelet's own record. An entry that was shown once stays until its end is known.

    ``over`` are allocations that have ended and that the file still shows: the kubelet forgets an ended pod only when
    something is allocated. ``read_at`` is when the latest version was read. ``rewritten_at`` is when the kubelet was
    last asked to write its whole memory, if a newer file has been read since. ``unreadable`` says why the checkpoint
    cannot be read; the entries then come from PodResources, which has no UIDs and no plain init containers.
    """

    entries: Mapping[AllocationKey, RecordedAllocation] = field(default_factory=dict)
    read_at: float = float("-inf")
    rewritten_at: float = float("-inf")
    unreadable: str = ""
    over: Mapping[AllocationKey, RecordedAllocation] = field(default_factory=dict)

    def with_file(
        self,
        listed: Iterable[RecordedAllocation],
        now: float,
        *,
        rewritten_at: float | None = None,
        unreadable: str = "",
    ) -> Recorded:
        """Take in a version of the checkpoint; a new entry for a key replaces the old one."""
        others = {key: entry for key, entry in self.entries.items() if key.claim}
        entries: dict[AllocationKey, RecordedAllocation] = {**others}
        over = {key: entry for key, entry in self.over.items() if key.claim}
        for entry in listed:
            if entry.is_same(self.over.get(entry.key)):
                over[entry.key] = entry
                continue
            known = self.entries.get(entry.key)
            entries[entry.key] = replace(entry, seen_at=known.seen_at if known and entry.is_same(known) else now)
        for key, entry in self.entries.items():
            if key not in entries:
                gone = entry.gone or (rewritten_at is not None and rewritten_at > entry.seen_at)
                entries[key] = replace(entry, missing=True, gone=gone)
        latest = self.rewritten_at if rewritten_at is None else max(self.rewritten_at, rewritten_at)
        return Recorded(entries, now, latest, unreadable, over)

    def with_claims(self, listed: Iterable[RecordedAllocation], now: float, *, whole: bool = True) -> Recorded:
        """Take in what pods have by claims: a version of the kubelet's file, or (not ``whole``) what was just prepared.

        The kubelet removes lines of pods that run, and adds one only after all drivers and claims of a pod have
        succeeded. So a claim that a file lacks ends nothing: its pod's end does.
        """
        entries, over = dict(self.entries), dict(self.over)
        shown = set()
        for entry in listed:
            shown.add(entry.key)
            if entry.is_same(self.over.get(entry.key)):
                continue
            known = self.entries.get(entry.key)
            over.pop(entry.key, None)
            entries[entry.key] = replace(entry, seen_at=known.seen_at if known and entry.is_same(known) else now)
        if whole:
            for key in (key for key in self.entries if key.claim and key not in shown):
                entries[key] = replace(entries[key], missing=True)
            over = {key: entry for key, entry in over.items() if not key.claim or key in shown}
        return replace(self, entries=entries, over=over)

    def without(self, keys: Collection[AllocationKey]) -> Recorded:
        """Take in that allocations are over."""
        entries = {key: entry for key, entry in self.entries.items() if key not in keys}
        shown = {key: self.entries[key] for key in keys if not self.entries[key].missing}
        return replace(self, entries=entries, over={**self.over, **shown})

    @cached_property
    def reply_ids(self) -> frozenset[str]:
        """The ids of our replies that the record has shown."""
        return frozenset(entry.reply.id for entry in self.entries.values() if entry.reply)


def recorded_allocation(entry: CheckpointEntry) -> RecordedAllocation:
    """Read an entry of the checkpoint. Ids that are no numbers are another plugin's and name no core of ours."""
    numbers = tuple(
        sorted(int(text) for text in entry.ids if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS)
    )
    paths = (match for path in entry.device_paths if (match := _DEVICE_PATH.search(path)))
    return RecordedAllocation(
        AllocationKey(PodUid(entry.pod_uid), entry.container, Resource(entry.resource)),
        numbers,
        read_reply(entry.annotations.get(ALLOCATION_KEY, "")),
        tuple(sorted({int(match[1]) for match in paths})),
    )


def claim_allocations(
    pods: Iterable[PodUid], uid: str, name: str, devices: Sequence[str], *, missing: bool = False
) -> Iterator[RecordedAllocation]:
    """The allocations of some pods by a claim. ``missing``: the kubelet's file does not show it."""
    ours = [read_device_name(name) for name in devices]
    cores = bool(ours) and all(device is not None and device.unit is Unit.CORE for device in ours)
    resource = Resource.NEURONCORE if cores else DEVICE_RESOURCE
    for pod in pods:
        key = AllocationKey(pod, "", resource, uid)
        yield RecordedAllocation(key, (), None, missing=missing, claim_name=name, claim_devices=tuple(devices))


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer to Allocate that no file has shown yet.

    ``pod`` and ``container`` are known where the ids belong to an assignment, or to the pod's own init containers.
    ``unseen``: the checkpoint could not be read at some time since; it may have shown the answer then.
    """

    reply: Reply
    resource: Resource
    ids: tuple[int, ...]
    at: float
    pod: PodReference | None = None
    container: str = ""
    unseen: bool = False

    @property
    def doubtful_at(self) -> float:
        """The time from which a file without the answer proves that it was never recorded."""
        return self.at + (LISTED_SECONDS if self.unseen else UNSEEN_SECONDS)

    def on(self, inventory: NodeInventory) -> Allocation:
        """The answer's allocation on this node."""
        pod = self.pod or PodReference(PodUid(PENDING + self.reply.id), "", "")
        drawn = inventory.geometry.mask_of(self.resource.unit, self.ids)
        return Allocation(pod, self.container, self.resource, given_mask(self.reply, inventory), drawn)


@dataclass(frozen=True)
class NodePods:
    """All pods of this node as the API server shows them, whether they ask for Neuron or not.

    ``pods`` are those that have not ended, by the API server's UID. ``ended`` are the latest UIDs whose end was seen;
    the value is True when the containers had stopped by then. ``listed_at`` is when the last
    consistent LIST began that showed the plugin's own pod; None before. ``vanished`` are the latest pods with Neuron
    that went while a container of them ran. The mirror of a static pod is not among them: its end says nothing.
    ``promised`` are pods that were placed on this node and are not bound yet. ``past`` are the latest pods that are
    gone and had run a container with Neuron.
    """

    pods: Mapping[PodUid, NeuronPod] = field(default_factory=dict)
    ended: Mapping[PodUid, bool] = field(default_factory=dict)
    listed_at: float | None = None
    vanished: tuple[PodUid, ...] = ()
    promised: tuple[NeuronPod, ...] = ()
    past: tuple[NeuronPod, ...] = ()

    @cached_property
    def by_kubelet_uid(self) -> Mapping[PodUid, NeuronPod]:
        """The pods by the UID that the kubelet knows them by."""
        return {pod.kubelet_uid: pod for pod in self.pods.values()}

    @cached_property
    def asking(self) -> tuple[NeuronPod, ...]:
        """The pods that ask for Neuron and can be served: first those without assignment, then as they were bound.

        A kubelet admits pods in the order of the watch, as it sees their bindings; an Allocate names no pod. In this
        order each pod gets its own set, also if many come at once.
        """
        asking = [pod for pod in self.pods.values() if pod.requests]
        return tuple(sorted(asking, key=lambda pod: isinstance(pod.assignment, Assignment)))

    def with_pod(self, pod: NeuronPod) -> NodePods:
        """Take in a pod that was added or changed."""
        pod = self._with_known_failures(pod)
        if pod.ended:
            return self.without(pod.uid, stopped=self._has_stopped(pod), last=pod)
        return replace(self, pods={**self.pods, pod.uid: pod})

    def without(self, uid: PodUid, *, stopped: bool = False, last: NeuronPod | None = None) -> NodePods:
        """Take in the end of a pod; ``stopped``: all its containers had stopped by then. ``last`` is its last state."""
        pods = {other: pod for other, pod in self.pods.items() if other != uid}
        ended = {**self.ended, uid: stopped or self.ended.get(uid, False)}
        known, vanished = self.pods.get(uid), self.vanished
        if known and (known.request or known.claims) and known.running and known.kubelet_uid == uid and not ended[uid]:
            vanished = (*vanished, uid)[-MOST_VANISHED:]
        final = last or known
        past = (*self.past, final)[-MOST_PAST:] if known and final and final.life.runs else self.past
        ended = dict(list(ended.items())[-MOST_ENDED:])
        return replace(self, pods=pods, ended=ended, vanished=vanished, past=past)

    def with_list(self, pods: Iterable[NeuronPod], began_at: float | None) -> NodePods:
        """Take in a consistent LIST that began at ``began_at``.

        ``began_at`` is None if the LIST does not show the plugin's own pod. It then proves the end of no pod. A LIST
        does not show the order of bindings: new pods are taken in the order of their assignments.
        """
        taken, listed = self, {pod.uid: pod for pod in pods}
        for pod in sorted(listed.values(), key=lambda pod: getattr(pod.assignment, "alloc_time_ns", 0)):
            taken = taken.with_pod(pod)
        if began_at is None:
            return taken
        for uid in self.pods:
            taken = taken if uid in listed else taken.without(uid)
        return replace(taken, listed_at=began_at)

    def _with_known_failures(self, pod: NeuronPod) -> NeuronPod:
        """The pod with the failures of its runs that were seen before its end was requested.

        From then on the object cannot tell a failure from that end. The kubelet, where it ends a pod by itself, says so
        only when the last container has stopped: what was taken for a failure until then was none.
        """
        known = self.pods.get(pod.uid)
        if known is None or (pod.ended and not pod.terminating):
            return pod
        failed = {(run.container, run.started) for run in known.life.runs if run.failed}
        if not failed:
            return pod
        runs = [replace(run, failed=run.failed or (run.container, run.started) in failed) for run in pod.life.runs]
        return replace(pod, life=replace(pod.life, runs=tuple(runs)))

    def _has_stopped(self, pod: NeuronPod) -> bool:
        """Whether the containers of a pod whose phase is terminal have stopped.

        The kubelet reports containers as terminated first. PodGC changes the phase alone; a kubelet that rejects a pod
        which it had before leaves the containers out.
        """
        known = self.pods.get(pod.uid)
        return self.ended.get(pod.uid, not pod.running and (pod.life.started or not (known and known.life.started)))


@dataclass(frozen=True, slots=True)
class HoldDown:
    """Cores that are not offered because a pod that is over, or is not known, may still use them.

    A hold-down lasts until no process of the pod's cgroup lives, and at least until ``not_before``. Where cgroups
    cannot be seen it lasts until ``until``. From ``published_from`` on it is published, so that the cores are chosen
    for no other pod. From ``advertised_from`` on the kubelet is shown the cores as unhealthy, which rejects a pod that
    is bound already; before, a pod that is given them waits in its admission. ``unknown`` pods are found at the start
    by the devices that their processes have open. Their hold-down ends as soon as it is known what they have, if
    anything. ``uid`` is the kubelet's.
    """

    uid: PodUid
    pod: PodReference
    mask: CoreMask
    since: float
    not_before: float
    published_from: float
    advertised_from: float
    until: float
    reason: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that decides. ``cluster`` is False when there is no API server to ask; ``now`` is the daemon's clock.

    ``claims`` are the claims of this node's pods by namespace and name, as the API server had them when they were read.
    ``doubted`` are pods, by the kubelet's UIDs, that may have ended although nothing says so: the kubelet has offered a
    broken device of theirs, or no process of theirs was seen when the daemon started.
    """

    inventory: NodeInventory
    pods: NodePods = field(default_factory=NodePods)
    recorded: Recorded = field(default_factory=Recorded)
    pending: tuple[PendingAnswer, ...] = ()
    hold_downs: tuple[HoldDown, ...] = ()
    claims: Mapping[tuple[str, str], NeuronClaim] = field(default_factory=dict)
    doubted: frozenset[PodUid] = frozenset()
    cluster: bool = True
    now: float = 0.0

    @property
    def advertised_hold_downs(self) -> tuple[HoldDown, ...]:
        """The hold-downs that the kubelet should see."""
        return tuple(hold_down for hold_down in self.hold_downs if hold_down.advertised_from <= self.now)

    @property
    def published_hold_downs(self) -> tuple[HoldDown, ...]:
        """The hold-downs that are published for the choice of nodes and sets."""
        return tuple(hold_down for hold_down in self.hold_downs if hold_down.published_from <= self.now)

    def with_inventory(self, inventory: NodeInventory) -> Inputs:
        """Take in other hardware. A change of LNC gives core ids a new meaning: hold-downs then keep whole devices."""
        before = self.inventory.geometry
        hold_downs = self.hold_downs
        if before.cores_per_device != inventory.geometry.cores_per_device:
            hold_downs = tuple(
                replace(hold_down, mask=inventory.geometry.devices_mask(before.devices_touched(hold_down.mask)))
                for hold_down in hold_downs
            )
        return replace(self, inventory=inventory, hold_downs=hold_downs)

    def reference(self, uid: PodUid) -> PodReference:
        """The pod of one of the kubelet's UIDs; only the UID where the API server shows no such pod."""
        pod = self.pods.by_kubelet_uid.get(uid)
        return pod.reference if pod else PodReference(uid, "", "")

    def uid_of(self, answer: PendingAnswer) -> PodUid:
        """The kubelet's UID of the pod that was answered; a stand-in for an unknown pod."""
        return self.kubelet_uid(answer.on(self.inventory).pod)

    def kubelet_uid(self, pod: PodReference) -> PodUid:
        """The kubelet's UID of a pod in the ledger."""
        known = self.pods.pods.get(pod.uid)
        return known.kubelet_uid if known else pod.uid

    @property
    def held_down_mask(self) -> CoreMask:
        """Every core that a hold-down keeps back."""
        return mask_union(self.hold_downs)


def made_by_api_server(uid: PodUid) -> bool:
    """Whether a UID is the API server's: a static pod's is a hash of its manifest (pkg/kubelet/config/common.go)."""
    return _API_SERVER_UID.fullmatch(uid) is not None


def named(pod: PodReference) -> str:
    """A pod in a message; the kubelet's record has UIDs only."""
    if pod.uid.startswith(PENDING):
        return "a pod that the kubelet has not recorded yet"
    return f"pod {pod}" if pod.name else f"the pod with UID {pod.uid}"
