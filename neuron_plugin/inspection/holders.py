"""Which pods hold what, asked of the kubelet.

The one place here that speaks to the kubelet's PodResources. Its ``List`` may, in rare moments, lose a reservation that
is being made (kubernetes/kubernetes#137534), so a command that keeps watching asks seldom, however often it looks at
the hardware. The kubelet tells nothing of plain init containers.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from neuron_plugin.allocation import HolderLedger, Holding, PodReference, PodUid, Resource, mask_of
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.topology import Geometry

if TYPE_CHECKING:
    from neuron_plugin.kubelet import PodDevices, PodResourcesClient

_Answer = TypeVar("_Answer")
_DEADLINE_SECONDS = 3.0


AskKubelet: TypeAlias = "Callable[[Path], tuple[PodDevices, ...] | Unknown]"


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds what. ``ledger`` is None where that is not known; ``note`` says why, or what could not be told."""

    ledger: HolderLedger | None
    note: str = ""


class HolderReading:
    """Asks the kubelet behind ``socket``, and again only after ``seconds``."""

    def __init__(
        self,
        socket: Path,
        *,
        seconds: float = 10.0,
        ask: AskKubelet | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ask`` and ``clock`` are for tests."""
        self._socket = socket
        self._seconds = seconds
        self._ask = ask or ask_kubelet
        self._clock = clock
        self._asked_at: float | None = None
        self._answer: tuple[PodDevices, ...] | Unknown = ()

    def read(self, geometry: Geometry) -> Holders:
        """The holders, in terms of the machine's geometry."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= self._seconds:
            self._asked_at, self._answer = now, self._ask(self._socket)
        if isinstance(self._answer, Unknown):
            told = (f"holders are not known: {self._answer.why}", self._answer.action)
            return Holders(None, "; ".join(part for part in told if part))
        return holders_of(geometry, self._answer)


def holders_of(geometry: Geometry, pods: Iterable[PodDevices]) -> Holders:
    """The kubelet's answer as a ledger; the kubelet tells no UIDs, so namespace and name stand for them."""
    ledger, strange = HolderLedger(), list[str]()
    for pod in pods:
        holder = PodReference(PodUid(f"{pod.namespace}/{pod.name}"), pod.namespace, pod.name)
        for container in pod.containers:
            resource = _RESOURCES.get(container.resource)
            if resource is None:
                continue
            ids = tuple(int(text) for text in container.ids if _is_id(text))
            strange += [f"{holder} holds {container.resource} {text!r}" for text in container.ids if not _is_id(text)]
            mask = mask_of(geometry, resource.unit, ids)
            ledger = ledger.with_holding(holder, Holding(container.container, resource, mask))
    note = f"ids that are none of ours (is another device plugin running?): {'; '.join(strange)}" if strange else ""
    return Holders(ledger, note)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()


_RESOURCES = {resource.value: resource for resource in Resource}


def ask_kubelet(socket: Path) -> tuple[PodDevices, ...] | Unknown:
    """Every active pod of the node."""
    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(ask(socket, lambda kubelet: kubelet.list()))


async def ask(socket: Path, question: Callable[[PodResourcesClient], Awaitable[_Answer]]) -> _Answer | Unknown:
    """What the kubelet behind ``socket`` answers, or why it does not; ends by itself within seconds."""
    try:
        there = stat.S_ISSOCK(os.stat(socket).st_mode)  # noqa: PTH116 - Path.is_socket hides why not
    except PermissionError:
        return Unknown(f"{socket} may not be read", "run this as root")
    except OSError:
        there = False
    if not there:
        return Unknown(f"no kubelet at {socket}", "if it is elsewhere, give --pod-resources-socket")
    from neuron_plugin.kubelet import PodResourcesClient, PodResourcesError

    try:
        return await question(PodResourcesClient(socket, deadline_seconds=_DEADLINE_SECONDS))
    except PodResourcesError as error:
        return Unknown(str(error), "see the kubelet's log")
