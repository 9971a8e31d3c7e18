"""Which containers hold which cores, by the kubelet's checkpoint and PodResources.

The checkpoint knows what PodResources does not: pod UIDs, plain init containers, and our own reply, which says what a
container was really given. It keeps entries of ended pods for a while, and has no names. PodResources knows the names
of the active pods. So the checkpoint says who has what, PodResources (or the API server) which pods those are, and
where the checkpoint cannot be read PodResources stands alone.

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

from neuron_plugin.allocation import Allocation, Ledger, NodeInventory, PodReference, PodUid, Resource, mask_of
from neuron_plugin.inspection.text import Unknown
from neuron_plugin.plugin.inputs import ALLOCATION_KEY, Reply, read_reply

if TYPE_CHECKING:
    from neuron_plugin.kubelet import CheckpointEntry, PodDevices, PodResourcesClient

_Answer = TypeVar("_Answer")
_DEADLINE_SECONDS = 3.0
_RESOURCES = {resource.value: resource for resource in Resource}


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
        self._read_at: float | None = None
        self._recorded: tuple[CheckpointEntry, ...] | Unknown = ()
        self._listed: tuple[PodDevices, ...] | Unknown = ()

    def read(self, node: NodeInventory) -> Holders:
        """The holders, in terms of what the node has."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._seconds:
            self._read_at = now
            self._recorded, self._listed = read_recorded(self._kubelet_dir), ask_kubelet(self._socket)
        return holders_of(node, self._recorded, self._listed)


def holders_of(
    node: NodeInventory,
    recorded: Collection[CheckpointEntry] | Unknown,
    listed: Collection[PodDevices] | Unknown,
    live_pods: Mapping[str, PodReference] | None = None,
) -> Holders:
    """Join the checkpoint's entries with the active pods; our own reply in an entry says what the container was given.

    ``live_pods`` are the API server's, by the UID that the kubelet uses. An entry of a pod that neither PodResources
    nor the API server has is of an ended pod and left out; if both are unknown, its pod is named ``uid/UID``.
    """
    if isinstance(listed, Unknown) and isinstance(recorded, Unknown):
        return Holders(
            None, "; ".join(part for part in (f"holders are not known: {listed.why}", listed.action) if part)
        )
    geometry, note = node.geometry, ""
    if isinstance(recorded, Unknown):
        note = f"holders are taken from PodResources, which does not list plain init containers: {recorded.why}"
    entries = () if isinstance(recorded, Unknown) else recorded
    active = () if isinstance(listed, Unknown) else listed
    pods = dict(live_pods or {})
    if isinstance(listed, Unknown) and live_pods is None:
        note = f"pods are named by their UIDs, and some may have ended: {listed.why}"
        pods = {entry.pod_uid: PodReference(PodUid(entry.pod_uid), "uid", entry.pod_uid) for entry in entries}
    uids = {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in entries}
    held: dict[tuple[str, str, str, str], Collection[str]] = {}
    replies: dict[tuple[str, str, str, str], Reply] = {}
    for pod in active:
        for part in pod.containers:
            held[pod.namespace, pod.name, part.container, part.resource] = part.ids
            if uid := uids.get((part.container, part.resource, frozenset(part.ids))):
                pods.setdefault(uid, PodReference(PodUid(uid), pod.namespace, pod.name))
    for entry in entries:
        if known := pods.get(entry.pod_uid):
            held[known.namespace, known.name, entry.container, entry.resource] = entry.ids
            if reply := read_reply(entry.annotations.get(ALLOCATION_KEY, "")):
                replies[known.namespace, known.name, entry.container, entry.resource] = reply
    references = {(pod.namespace, pod.name): pod for pod in pods.values()}
    allocations, foreign = [], []
    for (namespace, name, container, resource_name), texts in held.items():
        if (resource := _RESOURCES.get(resource_name)) is None:
            continue
        reference = references.get((namespace, name), PodReference(PodUid(f"{namespace}/{name}"), namespace, name))
        numbers = {text: int(text) for text in texts if text.isascii() and text.isdigit()}
        absent = [text for text in texts if not mask_of(geometry, resource.unit, (numbers.get(text, -1),))]
        if absent:
            ids = ", ".join(map(repr, sorted(absent)))
            foreign.append(f"{reference}/{container} holds {resource_name} {ids}")
        drawn = mask_of(geometry, resource.unit, tuple(numbers.values()))
        reply = replies.get((namespace, name, container, resource_name))
        mask = reply.mask_on(node) if reply else drawn
        allocations.append(Allocation(reference, container, resource, mask, drawn))
    if foreign:
        found = f"ids that this machine does not have (is another device plugin running?): {'; '.join(foreign)}"
        note = "; ".join(part for part in (note, found) if part)
    return Holders(Ledger(tuple(allocations)), note, tuple(foreign))


def read_recorded(kubelet_dir: Path) -> tuple[CheckpointEntry, ...] | Unknown:
    """The entries of the kubelet's checkpoint, or why they cannot be read."""
    if not os.path.lexists(kubelet_dir):
        return Unknown(f"there is no kubelet at {kubelet_dir}", "if it is elsewhere, give --kubelet-dir")
    from neuron_plugin.kubelet import CHECKPOINT, CheckpointError, CheckpointFile

    try:
        return CheckpointFile(kubelet_dir / CHECKPOINT, list(_RESOURCES)).read().entries
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
        return await question(PodResourcesClient(socket, deadline_seconds=_DEADLINE_SECONDS))
    except PodResourcesError as error:
        return Unknown(str(error), "see the kubelet's log")
