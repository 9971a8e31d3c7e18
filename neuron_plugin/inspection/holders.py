"""Which containers have which cores: the plugin's derivation from the records of kubelet and API server.

The checkpoint has pod UIDs, plain init containers, and our own reply, which says what a container was given. Claims
stand in another file of the kubelet's, by the UIDs of pods, too. Neither has names, and both keep ended pods for a
while. The API server says which pods live. Without an API server, PodResources does: its list stands for a checkpoint
that the kubelet would write now. Where the checkpoint cannot be read or has no entry, PodResources' list is taken for
the checkpoint.

PodResources ``List`` may, in rare moments, lose a reservation that is being made (kubernetes/kubernetes#137534), so a
command that keeps watching asks seldom, however often it looks at the hardware.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from neuron_plugin.allocation import Ledger, NeuronPod, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.allocation.claims import DRA_DRIVERS
from neuron_plugin.hardware import is_populated
from neuron_plugin.inspection.findings import Unknown, known_or
from neuron_plugin.plugin.inputs import Inputs, NodePods, Recorded, claim_allocations, recorded_allocation
from neuron_plugin.plugin.settings import PluginSettings

if TYPE_CHECKING:
    from neuron_plugin.kubelet import CheckpointEntry, PodDevices, PodResourcesClient
    from neuron_plugin.kubelet.dra_state import PreparedClaim
    from neuron_plugin.plugin.snapshot import Snapshot

_Answer = TypeVar("_Answer")
_RESOURCES = frozenset(resource.value for resource in Resource)
_LISTED_AT = 1.0
"""When pods were listed, on a clock that was 0 when the kubelet's files were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecords:
    """A kubelet's records of who has what. Each part may be unknown.

    ``recorded`` are the checkpoint's entries, ``prepared`` the claims for Neuron in the kubelet's file of prepared
    claims, ``pods`` those that PodResources lists. ``populated`` says of the UIDs in both files whether a process of
    the pod lives, None where that cannot be seen.
    """

    recorded: tuple[CheckpointEntry, ...] | Unknown = ()
    prepared: tuple[PreparedClaim, ...] | Unknown = ()
    pods: tuple[PodDevices, ...] | Unknown = ()
    populated: Mapping[PodUid, bool | None] = field(default_factory=dict)

    def with_processes(self, cgroup: Path) -> PodRecords:
        """The records, with whether a process of each pod lives now."""
        uids = {entry.pod_uid for entry in known_or(self.recorded, ())}
        uids |= {uid for claim in known_or(self.prepared, ()) for uid in claim.pod_uids}
        return replace(self, populated={PodUid(uid): is_populated(cgroup, uid) for uid in uids})


@dataclass(frozen=True, slots=True)
class Holders:
    """Who has what. ``snapshot`` is None where that is not known; ``note`` says why, or what is uncertain.

    ``foreign`` are ids that a pod holds and this machine does not have.
    """

    snapshot: Snapshot | None
    note: str = ""
    foreign: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger | None:
        """Every allocation, each with the name of its pod."""
        return self.snapshot.ledger if self.snapshot else None


class HolderReading:
    """Reads the kubelet's files and asks PodResources, and again only after ``seconds``."""

    def __init__(
        self, settings: PluginSettings, *, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is for tests."""
        self._settings = settings
        self._seconds = seconds
        self._clock = clock
        self._read_at = float("-inf")
        self._records = PodRecords()

    def read(self, node: NodeInventory | None) -> Holders:
        """The holders on a node with this inventory; None: it has no device."""
        now = self._clock()
        if node and now - self._read_at >= self._seconds:
            self._read_at = now
            files = read_files(self._settings)
            self._records = replace(files, pods=ask_kubelet(self._settings.pod_resources_socket))
        return holders_of(node, self._records.with_processes(self._settings.cgroup))


def holders_of(node: NodeInventory | None, records: PodRecords, pods: Collection[NeuronPod] | None = None) -> Holders:
    """The plugin's derivation from these records; ``node`` is None without a device.

    ``pods`` are the API server's, listed after the kubelet's files were read; None where it was not asked. A pod that
    no source names is named ``uid/UID``. The cores of an ended pod with a process that lives are held down. Every end
    is taken for one of some seconds ago.
    """
    if node is None:
        return Holders(None)
    recorded, listed, prepared = records.recorded, records.pods, records.prepared
    if isinstance(listed, Unknown) and isinstance(recorded, Unknown):
        return Holders(None, f"holders are not known: {listed.why}; {listed.action}".removesuffix("; "))
    # Only where there is a kubelet: it loads gRPC.
    from neuron_plugin.plugin.settle import ADMISSION_SECONDS, settle, with_lost_records
    from neuron_plugin.plugin.snapshot import derive

    notes = []
    if isinstance(recorded, Unknown):
        notes.append(f"holders are taken from PodResources, which does not list plain init containers: {recorded.why}")
    if isinstance(listed, Unknown) and pods is None:
        notes.append(f"pods are named by their UIDs, and some may have ended: {listed.why}")
    if isinstance(prepared, Unknown):
        notes.append(f"what pods have by claims is not known: {prepared.why}")
    listed_pods, claims = known_or(listed, ()), known_or(prepared, ())
    uids = {str(pod.reference): pod.kubelet_uid for pod in pods or ()}
    entries = known_or(recorded, ()) or [
        entry for pod in listed_pods for entry in pod.entries(uids.get(str(pod), str(pod)))
    ]
    # An ended pod may have had the same ids: of two UIDs the name is that of the one with a process.
    by_life = sorted(entries, key=lambda entry: bool(records.populated.get(PodUid(entry.pod_uid))))
    names = _names(by_life, claims, listed_pods) | {pod.kubelet_uid: pod.reference for pod in pods or ()}

    known = [recorded_allocation(entry) for entry in entries if entry.resource in _RESOURCES]
    record = Recorded().with_file(known, 0.0)
    if not isinstance(listed, Unknown):
        active = [entry for entry in known if entry.key.uid in names]
        record = record.with_file(active, _LISTED_AT, rewritten_at=_LISTED_AT)
    for claim in claims:
        users = claim_allocations(map(PodUid, claim.pod_uids), claim.uid, claim.name, claim.devices)
        record = record.with_claims(users, 0.0, whole=False)
    living = NodePods() if pods is None else NodePods().with_list(pods, _LISTED_AT)
    inputs = with_lost_records(Inputs(node, living, record, cluster=pods is not None, now=_LISTED_AT))
    for now in (_LISTED_AT, _LISTED_AT + ADMISSION_SECONDS):
        inputs = settle(replace(inputs, now=now), records.populated, hold_down_seconds=0.0)
    snapshot = derive(inputs)
    named = [replace(allocation, pod=_named(allocation.pod, names)) for allocation in snapshot.ledger.allocations]
    here = {resource.value: set(map(str, range(len(node.geometry.masks(resource.unit))))) for resource in Resource}
    foreign = []
    for entry in entries:
        if entry.resource in _RESOURCES and recorded_allocation(entry).key in inputs.recorded.entries:
            if absent := entry.ids - here[entry.resource]:
                pod = _named(PodReference(PodUid(entry.pod_uid), "", ""), names)
                foreign.append(f"{pod}/{entry.container} holds {entry.resource} {', '.join(map(repr, sorted(absent)))}")
    if foreign:
        notes.append(f"ids that this machine does not have (is another device plugin running?): {'; '.join(foreign)}")
    return Holders(replace(snapshot, ledger=Ledger(tuple(named))), "; ".join(notes), tuple(foreign))


def _names(
    entries: Iterable[CheckpointEntry], claims: Iterable[PreparedClaim], listed: Collection[PodDevices]
) -> dict[str, PodReference]:
    """The names that PodResources has for UIDs: a pod has the same ids under both, or uses the same claim.

    The last of ``entries`` with the same ids is the pod's. Where no UID is known a name stands for it.
    """
    uids = {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in entries}
    names = {str(pod): PodReference(PodUid(str(pod)), pod.namespace, pod.name) for pod in listed}
    for pod in listed:
        for entry in pod.entries(""):
            if uid := uids.get((entry.container, entry.resource, entry.ids)):
                names.setdefault(uid, PodReference(PodUid(uid), pod.namespace, pod.name))
    for claim in claims:
        users = [pod for pod in listed if pod.namespace == claim.namespace and claim.name in pod.claims]
        if len(users) == len(claim.pod_uids):
            for uid, pod in zip(claim.pod_uids, users, strict=True):
                names.setdefault(uid, PodReference(PodUid(uid), pod.namespace, pod.name))
    return names


def _named(pod: PodReference, names: Mapping[str, PodReference]) -> PodReference:
    return pod if pod.name else names.get(pod.uid, PodReference(pod.uid, "uid", pod.uid))


def read_files(settings: PluginSettings) -> PodRecords:
    """The records in the kubelet's files. List pods afterwards: a recorded pod that is not listed has ended."""
    return PodRecords(recorded=read_recorded(settings.kubelet_dir), prepared=read_prepared(settings))


def read_prepared(settings: PluginSettings) -> tuple[PreparedClaim, ...] | Unknown:
    """The claims for Neuron in the kubelet's file of prepared claims, or why it cannot be read; none without a file."""
    from neuron_plugin.kubelet import CheckpointError
    from neuron_plugin.kubelet.dra_state import DraStateFile

    try:
        return DraStateFile(settings.dra_state_file, {*DRA_DRIVERS, settings.dra_driver}).read().claims
    except CheckpointError as error:
        return Unknown(str(error), "run this as root")


def read_recorded(kubelet_dir: Path) -> tuple[CheckpointEntry, ...] | Unknown:
    """The entries of the kubelet's checkpoint, or why they cannot be read."""
    if not os.path.lexists(kubelet_dir):
        return Unknown(f"there is no kubelet at {kubelet_dir}", "if it is elsewhere, give --kubelet-dir")
    from neuron_plugin.kubelet import CheckpointError, CheckpointFile
    from neuron_plugin.kubelet_files import CHECKPOINT

    try:
        return CheckpointFile(kubelet_dir / CHECKPOINT, _RESOURCES).read().entries
    except CheckpointError as error:
        return Unknown(str(error), "run this as root")


def ask_kubelet(socket: Path) -> tuple[PodDevices, ...] | Unknown:
    """Every active pod of the node, by PodResources."""
    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(ask(socket, lambda kubelet: kubelet.list()))


async def ask(
    socket: Path, question: Callable[[PodResourcesClient], Awaitable[_Answer]], *, deadline_seconds: float = 3.0
) -> _Answer | Unknown:
    """The answer of the kubelet behind ``socket``, or why there is none; ends by itself within ``deadline_seconds``."""
    try:
        exists = stat.S_ISSOCK(os.stat(socket).st_mode)  # noqa: PTH116 - Path.is_socket hides why not
    except PermissionError:
        return Unknown(f"{socket} may not be read", "run this as root")
    except OSError:
        exists = False
    if not exists:
        return Unknown(f"no kubelet at {socket}", "if it is elsewhere, give --pod-resources-socket")
    from neuron_plugin.kubelet import PodResourcesClient, PodResourcesError

    try:
        return await question(PodResourcesClient(socket, deadline_seconds=deadline_seconds))
    except PodResourcesError as error:
        return Unknown(str(error), "see the kubelet's log")
