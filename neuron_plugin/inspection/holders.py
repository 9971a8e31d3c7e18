"""Which containers hold which cores, by the kubelet's checkpoint.

The checkpoint has pod UIDs, plain init containers, and our own reply, which says what a container was given. It has no
names and keeps entries of ended pods for a while: PodResources or the API server says which pods are active. Where the
checkpoint cannot be read or has no entry, PodResources' own list is taken.

PodResources ``List`` may, in rare moments, lose a reservation that is being made (kubernetes/kubernetes#137534), so a
command that keeps watching asks seldom, however often it looks at the hardware.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from neuron_plugin.allocation import Ledger, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.plugin.inputs import recorded_allocation

if TYPE_CHECKING:
    from neuron_plugin.kubelet import CheckpointEntry, PodDevices, PodResourcesClient

_Answer = TypeVar("_Answer")
DEADLINE_SECONDS = 3.0
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
    """Reads the checkpoint and asks PodResources, and again only after ``seconds``."""

    def __init__(
        self, kubelet_dir: Path, socket: Path, *, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is for tests."""
        self._kubelet_dir = kubelet_dir
        self._socket = socket
        self._seconds = seconds
        self._clock = clock
        self._read_at = float("-inf")
        self._recorded: tuple[CheckpointEntry, ...] | Unknown = ()
        self._listed: tuple[PodDevices, ...] | Unknown = ()

    def read(self, node: NodeInventory | None) -> Holders:
        """The holders, in terms of what the node has; None: it has no device."""
        now = self._clock()
        if node and now - self._read_at >= self._seconds:
            self._read_at = now
            self._recorded, self._listed = read_recorded(self._kubelet_dir), ask_kubelet(self._socket)
        return holders_of(node, self._recorded, self._listed)


def holders_of(
    node: NodeInventory | None,
    recorded: Collection[CheckpointEntry] | Unknown,
    listed: Collection[PodDevices] | Unknown,
    live_pods: Mapping[str, PodReference] | None = None,
) -> Holders:
    """The checkpoint's entries with the names of their pods; our own reply in an entry says what the container has.

    ``live_pods`` are the API server's, by the UID that the kubelet uses. An entry of a pod that neither PodResources
    nor the API server has is of an ended pod and left out; if both are unknown, its pod is named ``uid/UID``.
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
            for part in pod.containers:
                if uid := uids.get((part.container, part.resource, frozenset(part.ids))):
                    pods.setdefault(uid, PodReference(PodUid(uid), pod.namespace, pod.name))
    else:
        from neuron_plugin.kubelet import CheckpointEntry as Entry

        references = {str(pod): pod for pod in pods.values()}
        for pod in listed:
            name = f"{pod.namespace}/{pod.name}"
            pods[name] = references.get(name, PodReference(PodUid(name), pod.namespace, pod.name))
            entries = (
                *entries,
                *(Entry(name, part.container, part.resource, frozenset(part.ids), {}, ()) for part in pod.containers),
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
    if foreign:
        notes.append(f"ids that this machine does not have (is another device plugin running?): {'; '.join(foreign)}")
    return Holders(Ledger(tuple(allocations)), "; ".join(notes), tuple(foreign))


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


async def ask(socket: Path, question: Callable[[PodResourcesClient], Awaitable[_Answer]]) -> _Answer | Unknown:
    """What the kubelet behind ``socket`` answers, or why it does not; ends by itself within seconds."""
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
        return await question(PodResourcesClient(socket, deadline_seconds=DEADLINE_SECONDS))
    except PodResourcesError as error:
        return Unknown(str(error), "see the kubelet's log")
