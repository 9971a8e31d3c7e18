"""Which live pod holds which device ids, as the kubelet itself knows it.

The PodResources API is the only place that ties ids to a pod without the API server. It has its price: all clients of
the node share 100 calls a second, `list` has a side effect on the kubelet's reservations, there is no UID, and plain
init containers never appear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc

from neuron_plugin.backoff import Backoff
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import in_numeric_order
from neuron_plugin.kubelet.socket_watch import channel_to, connection_fault

_Answer = TypeVar("_Answer")


class PodResourcesError(Exception):
    """The kubelet's PodResources API gave no answer; the text says why."""


class PodResourcesAbsentError(PodResourcesError):
    """Nobody serves the socket: no kubelet, or the directory is not mounted."""


class PodResourcesThrottledError(PodResourcesError):
    """The rate limit, shared by all clients of the node, left no room within the deadline."""


class GetUnsupportedError(PodResourcesError):
    """This kubelet has no `Get` (before 1.27), or its gate is off (before 1.34): use `list` with care."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The ids of one resource in one container, in numeric order."""

    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One active pod of the node; ``containers`` has an entry for each container and resource with devices."""

    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...]


class PodResourcesClient:
    """Asks the kubelet on ``socket``. Each method answers or raises within ``deadline_seconds``."""

    def __init__(self, socket: Path, *, deadline_seconds: float = 5.0, random: Random | None = None) -> None:
        self._socket = socket
        self._deadline_seconds = deadline_seconds
        self._random = random or Random()  # noqa: S311 - spreads retries, guards nothing

    async def list(self) -> tuple[PodDevices, ...]:
        """Every active pod (before Kubernetes 1.34: every known pod, finished ones too).

        Never while an Allocate is under way: the kubelet may lose its reservation and hand a device out twice
        (kubernetes/kubernetes#137534).

        Raises:
            PodResourcesError: no answer; subclasses tell absent from throttled.
        """
        answer = await self._ask(lambda stub, left: stub.List(pb.ListPodResourcesRequest(), timeout=left))
        return tuple(_pod_devices(pod) for pod in answer.pod_resources)

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """One pod, or None if the kubelet knows no active pod of that name. Without side effect.

        Raises:
            GetUnsupportedError: the kubelet does not offer this.
            PodResourcesError: no answer; subclasses tell absent from throttled.
        """
        request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        try:
            answer = await self._ask(lambda stub, left: stub.Get(request, timeout=left))
        except _UnforeseenStatusError as error:
            if _is_unsupported(error):
                raise GetUnsupportedError(f"the kubelet does not serve PodResources Get: {error.details}") from error
            if _is_not_found(error):
                return None
            raise
        return _pod_devices(answer.pod_resources)

    async def allocatable(self) -> dict[str, tuple[str, ...]]:
        """The healthy ids of each resource, whether free or not; nothing while the plugin is away.

        Raises:
            PodResourcesError: no answer; subclasses tell absent from throttled.
        """
        answer = await self._ask(
            lambda stub, left: stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=left)
        )
        return _summed_up(answer.devices)

    async def _ask(self, call: Callable[[pb_grpc.PodResourcesListerAsyncStub, float], Awaitable[_Answer]]) -> _Answer:
        """Call once; again while the kubelet's rate limit says no and the deadline allows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_seconds
        backoff = Backoff(self._random.random, first_seconds=0.05, longest_seconds=1.0)
        while True:
            try:
                return await self._ask_once(call, deadline - loop.time())
            except PodResourcesThrottledError:
                delay = backoff.next_seconds()
                if loop.time() + delay >= deadline:
                    raise
                await asyncio.sleep(delay)

    async def _ask_once(
        self, call: Callable[[pb_grpc.PodResourcesListerAsyncStub, float], Awaitable[_Answer]], left: float
    ) -> _Answer:
        async with channel_to(self._socket) as channel:
            try:
                return await call(pb_grpc.PodResourcesListerStub(channel), left)
            except grpc.aio.AioRpcError as error:
                raise self._translated(error) from error

    def _translated(self, error: grpc.aio.AioRpcError) -> PodResourcesError:
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return PodResourcesAbsentError(
                f"nobody answers on {self._socket} ({connection_fault(error)}): "
                "is the kubelet running and the directory mounted?"
            )
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return PodResourcesThrottledError(f"{self._socket}: {details}")
        return _UnforeseenStatusError(error.code(), details)


class _UnforeseenStatusError(PodResourcesError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"PodResources answered {code.name}: {details}")
        self.code = code
        self.details = details


def _is_unsupported(error: _UnforeseenStatusError) -> bool:
    # UNIMPLEMENTED before 1.27; later a plain error while the gate is off (pkg/kubelet/apis/podresources/server_v1.go).
    return error.code is grpc.StatusCode.UNIMPLEMENTED or error.details.endswith("Get method disabled")


def _is_not_found(error: _UnforeseenStatusError) -> bool:
    # A plain error, so UNKNOWN: "pod NAME in namespace NAMESPACE not found".
    return error.code is grpc.StatusCode.NOT_FOUND or (
        error.details.startswith("pod ") and error.details.endswith(" not found")
    )


def _pod_devices(pod: pb.PodResources) -> PodDevices:
    containers = [
        ContainerDevices(container.name, resource, ids)
        for container in pod.containers
        for resource, ids in _summed_up(container.devices).items()
    ]
    return PodDevices(pod.namespace, pod.name, tuple(containers))


def _summed_up(entries: Iterable[pb.ContainerDevices]) -> dict[str, tuple[str, ...]]:
    """One entry for each resource out of the kubelet's one for each id (and, with NUMA, for each id and node)."""
    ids: dict[str, set[str]] = {}
    for entry in entries:
        ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return {resource: tuple(in_numeric_order(found)) for resource, found in ids.items()}
