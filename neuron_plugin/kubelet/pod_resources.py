"""Which live pod has which device ids, as the kubelet's PodResources API lists it.

The API has its price: all clients of the node share 100 calls a second, and `list` has a side effect on the kubelet's
reservations. There is no pod UID, and plain init containers never appear. The checkpoint has none of these limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc

from neuron_plugin.backoff import Backoff
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import in_numeric_order
from neuron_plugin.kubelet.checkpoint import CheckpointEntry
from neuron_plugin.kubelet.socket_watch import channel_to, connection_fault

_Answer = TypeVar("_Answer")


class PodResourcesError(Exception):
    """The kubelet's PodResources API gave no answer; the text says why."""


class PodResourcesAbsentError(PodResourcesError):
    """No kubelet serves the socket, or the directory is not mounted."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The ids of one resource in one container, in numeric order."""

    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One active pod of the node; ``containers`` has an entry for each container and resource with devices.

    ``claims`` are the names of its containers' claims for devices of any driver.
    """

    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...]
    claims: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def entries(self, uid: str) -> tuple[CheckpointEntry, ...]:
        """Its containers' devices as entries of a checkpoint under ``uid``, without our replies."""
        return tuple(
            CheckpointEntry(uid, container.container, container.resource, frozenset(container.ids), {}, ())
            for container in self.containers
        )


@dataclass(frozen=True, slots=True)
class PodResourcesClient:
    """Asks the kubelet on ``socket``. Each method answers or raises `PodResourcesError` within ``deadline_seconds``."""

    socket: Path
    deadline_seconds: float = 5.0
    random: Random = field(default_factory=Random)  # spreads retries, guards nothing

    async def list(self) -> tuple[PodDevices, ...]:
        """Every active pod (before Kubernetes 1.34: every known pod, finished ones too).

        Never while an Allocate is under way: the kubelet may lose its reservation and hand a device out twice
        (kubernetes/kubernetes#137534).
        """
        answer = await self._ask(lambda stub, left: stub.List(pb.ListPodResourcesRequest(), timeout=left))
        return tuple(_pod_devices(pod) for pod in answer.pod_resources)

    async def allocatable(self) -> dict[str, tuple[str, ...]]:
        """The healthy ids of each resource, whether free or not; nothing while the plugin is away."""
        request = pb.AllocatableResourcesRequest()
        answer = await self._ask(lambda stub, left: stub.GetAllocatableResources(request, timeout=left))
        return _summed_up(answer.devices)

    async def _ask(self, call: Callable[[pb_grpc.PodResourcesListerAsyncStub, float], Awaitable[_Answer]]) -> _Answer:
        """Call once, and again while the kubelet's rate limit refuses it and the deadline allows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.deadline_seconds
        backoff = Backoff(self.random.random, first_seconds=0.05, longest_seconds=1.0)
        while True:
            async with channel_to(self.socket) as channel:
                try:
                    return await call(pb_grpc.PodResourcesListerStub(channel), deadline - loop.time())
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    if code is grpc.StatusCode.UNAVAILABLE:
                        raise PodResourcesAbsentError(
                            f"no kubelet answers on {self.socket} ({connection_fault(error)}): "
                            "is the kubelet running and the directory mounted?"
                        ) from error
                    delay = backoff.next_seconds()
                    if code is not grpc.StatusCode.RESOURCE_EXHAUSTED or loop.time() + delay >= deadline:
                        raise PodResourcesError(f"PodResources answered {code.name}: {error.details()}") from error
            await asyncio.sleep(delay)


def _pod_devices(pod: pb.PodResources) -> PodDevices:
    containers = [
        ContainerDevices(container.name, resource, ids)
        for container in pod.containers
        for resource, ids in _summed_up(container.devices).items()
    ]
    claims = {resource.claim_name for container in pod.containers for resource in container.dynamic_resources}
    return PodDevices(pod.namespace, pod.name, tuple(containers), frozenset(claims))


def _summed_up(entries: Iterable[pb.ContainerDevices]) -> dict[str, tuple[str, ...]]:
    """One entry for each resource out of the kubelet's one for each id (and, with NUMA, for each id and node)."""
    ids: dict[str, set[str]] = {}
    for entry in entries:
        ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return {resource: tuple(in_numeric_order(listed)) for resource, listed in ids.items()}
