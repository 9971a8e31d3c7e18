"""Which containers hold which cores, by the kubelet's checkpoint.

The checkpoint has pod UIDs, plain init containers, and our own reply, which says what a container was given. It has no
names and keeps entries of ended pods for a while: PodResources or the API server says which pods are active. Where the
checkpoint cannot be read or has no entry, PodResources' own list is taken.

What pods have by claims stands in another file of the kubelet's, by the UIDs of pods, too. A claim stays there until
the kubelet has had the driver unprepare it, so each of its lines counts.

PodResources ``List`` may, in rare moments, lose a reservation that is being made (kubernetes/kubernetes#137534), so a
command that keeps watching asks seldom, however often it looks at the hardware.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from neuron_plugin.allocation import Allocation, Ledger, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.allocation.claims import DRA_DRIVERS
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.plugin.inputs import claim_allocations, recorded_allocation
from neuron_plugin.plugin.settings import PluginSettings

if TYPE_CHECKING:
    from neuron_plugin.kubelet import CheckpointEntry, PodDevices, PodResourcesClient
    from neuron_plugin.kubelet.dra_state import PreparedClaim

_Answer = TypeVar("_Answer")
_RESOURCES = frozenset(resource.value for resource in Resource)


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds what. ``ledger`` is None where that is not known; ``note`` says why, or what is uncertain.

    ``foreign`` are ids that a pod holds and this machine does not have.
    """

    ledger: Ledger | None
    note: str = ""
    foreign: tuple[str, ...] = ()


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
        self._recorded: tuple[CheckpointEntry, ...] | Unknown = ()
        self._listed: tuple[PodDevices, ...] | Unknown = ()
        self._prepared: tuple[PreparedClaim, ...] | Unknown = ()

    def read(self, node: NodeInventory | None) -> Holders:
        """The holders, in terms of what the node has; None: it has no device."""
        now = self._clock()
        if node and now - self._read_at >= self._seconds:
            self._read_at = now
            self._recorded = read_recorded(self._settings.kubelet_dir)
            self._listed = ask_kubelet(self._settings.pod_resources_socket)
            self._prepared = read_prepared(self._settings)
        return holders_of(node, self._recorded, self._listed, prepared=self._prepared)


def holders_of(
    node: NodeInventory | None,
    recorded: Collection[CheckpointEntry] | Unknown,
    listed: Collection[PodDevices] | Unknown,
    live_pods: Mapping[str, PodReference] | None = None,
    prepared: Collection[PreparedClaim] | Unknown = (),
) -> Holders:
    """The checkpoint's entries with the names of their pods; our own reply in an entry says what the container has.

    ``live_pods`` are the API server's, by the UID that the kubelet uses. An entry of a pod that neither PodResources
    nor the API server has is of an ended pod and left out; if both are unknown, its pod is named ``uid/UID``. So is a
    pod of a ``prepared`` claim that no other source shows.
    """
    if node is None:
        return Holders(None)
    if isinstance(listed, Unknown) and isinstance(recorded, Unknown):
        return Holders(None, f"holders are not known: {listed.why}; {listed.action}".removesuffix("; "))
    notes = []
    entries = () if isinstance(recorded, Unknown) else recorded
    pods = dict(live_pods or {})
    if isinstance(recorded, Unknown):
        notes.append(f"holders are taken from PodResources, which does not list plain init containers: {recorded.why}")
    if isinstance(listed, Unknown):
        if live_pods is None:
            notes.append(f"pods are named by their UIDs, and some may have ended: {listed.why}")
            pods = {entry.pod_uid: PodReference(PodUid(entry.pod_uid), "uid", entry.pod_uid) for entry in entries}
    elif entries:
        uids = {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in entries}
        for pod in listed:
            for container in pod.containers:
                if uid := uids.get((container.container, container.resource, frozenset(container.ids))):
                    pods.setdefault(uid, PodReference(PodUid(uid), pod.namespace, pod.name))
    else:
        from neuron_plugin.kubelet import CheckpointEntry as Entry

        references = {str(pod): pod for pod in pods.values()}
        for pod in listed:
            name = f"{pod.namespace}/{pod.name}"
            pods[name] = references.get(name, PodReference(PodUid(name), pod.namespace, pod.name))
            entries = (
                *entries,
                *(
                    Entry(name, container.container, container.resource, frozenset(container.ids), {}, ())
                    for container in pod.containers
                ),
            )
    allocations, foreign = [], []
    for entry in entries:
        if entry.resource not in _RESOURCES or (reference := pods.get(entry.pod_uid)) is None:
            continue
        here = node.geometry.ids_of(Resource(entry.resource).unit, node.geometry.all_mask)
        if absent := entry.ids - set(map(str, here)):
            ids = ", ".join(map(repr, sorted(absent)))
            foreign.append(f"{reference}/{entry.container} holds {entry.resource} {ids}")
        allocations.append(recorded_allocation(entry).on(node, reference))
    if isinstance(prepared, Unknown):
        notes.append(f"what pods have by claims is not known: {prepared.why}")
    else:
        allocations += _by_claims(node, prepared, () if isinstance(listed, Unknown) else listed, live_pods or {})
    if foreign:
        notes.append(f"ids that this machine does not have (is another device plugin running?): {'; '.join(foreign)}")
    return Holders(Ledger(tuple(allocations)), "; ".join(notes), tuple(foreign))


def _by_claims(
    node: NodeInventory,
    prepared: Iterable[PreparedClaim],
    listed: Collection[PodDevices],
    live_pods: Mapping[str, PodReference],
) -> Iterator[Allocation]:
    """What pods have by claims. PodResources says which pods use a claim, and not by which UIDs the file has them."""
    for claim in prepared:
        users = [pod for pod in listed if pod.namespace == claim.namespace and claim.name in pod.claims]
        same = len(users) == len(claim.pod_uids)
        for place, uid in enumerate(map(PodUid, claim.pod_uids)):
            named = PodReference(uid, users[place].namespace, users[place].name) if same else None
            reference = live_pods.get(uid) or named or PodReference(uid, "uid", uid)
            for entry in claim_allocations([uid], claim.uid, claim.name, claim.devices):
                yield entry.on(node, reference)


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
    """What the kubelet behind ``socket`` answers, or why it does not; ends by itself within ``deadline_seconds``."""
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
