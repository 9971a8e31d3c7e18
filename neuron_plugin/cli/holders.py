"""Which pods hold what, asked of the kubelet.

The one place in the commands that speaks to the kubelet. Its ``List`` may, in rare moments, lose a reservation that
is being made (kubernetes/kubernetes#137534), so a command that keeps watching asks seldom, however often it looks at
the hardware. The kubelet tells nothing of plain init containers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from neuron_plugin.allocation.ledger import Holding, Ledger, Pod, PodUid
from neuron_plugin.allocation.resources import Resource, mask_of
from neuron_plugin.topology.geometry import Geometry


class ContainerIds(Protocol):
    """Ids of one resource in one container, as the kubelet tells them."""

    @property
    def container(self) -> str:
        """The container's name."""

    @property
    def resource(self) -> str:
        """The resource's full name."""

    @property
    def ids(self) -> tuple[str, ...]:
        """What the kubelet handed out."""


class PodIds(Protocol):
    """One pod as the kubelet tells it."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    @property
    def name(self) -> str:
        """The pod's name."""

    @property
    def containers(self) -> Iterable[ContainerIds]:
        """Its containers with devices."""


AskKubelet: TypeAlias = Callable[[Path], Iterable[PodIds]]


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds what. ``ledger`` is None where that is not known; ``note`` says why, or what could not be told."""

    ledger: Ledger | None
    note: str = ""


class UnknownHoldersError(Exception):
    """The kubelet did not tell; the text says why and what to do."""


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
        self._answer: tuple[PodIds, ...] | UnknownHoldersError = ()

    def read(self, geometry: Geometry) -> Holders:
        """The holders, in terms of the machine's geometry."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= self._seconds:
            self._asked_at, self._answer = now, self._asked()
        if isinstance(self._answer, UnknownHoldersError):
            return Holders(None, str(self._answer))
        return holders_of(geometry, self._answer)

    def _asked(self) -> tuple[PodIds, ...] | UnknownHoldersError:
        try:
            return tuple(self._ask(self._socket))
        except UnknownHoldersError as error:
            return error


def holders_of(geometry: Geometry, pods: Iterable[PodIds]) -> Holders:
    """The kubelet's answer as a ledger; the kubelet tells no UIDs, so namespace and name stand for them."""
    ledger, strange = Ledger(), list[str]()
    for pod in pods:
        holder = Pod(PodUid(f"{pod.namespace}/{pod.name}"), pod.namespace, pod.name)
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


def ask_kubelet(socket: Path) -> Iterable[PodIds]:
    """Every active pod of the node.

    Raises:
        UnknownHoldersError: no socket, no access or no answer.
    """
    try:
        there = socket.is_socket()
    except PermissionError:
        raise UnknownHoldersError(f"holders are not known: {socket} may not be read, run as root") from None
    if not there:
        raise UnknownHoldersError(
            f"holders are not known: no kubelet at {socket}; if it is elsewhere, give --pod-resources-socket"
        )
    from neuron_plugin.kubelet.pod_resources import PodResourcesClient, PodResourcesError  # noqa: PLC0415 - loads gRPC

    try:
        # A loop of its own leaves the thread's loop, if it has one, as it is.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(PodResourcesClient(socket).list())
    except PodResourcesError as error:
        raise UnknownHoldersError(f"holders are not known: {error}") from error
