"""The stand-in kubelet's device manager: who is registered, what is healthy, which ids a container gets.

Follows ``pkg/kubelet/cm/devicemanager`` of Kubernetes 1.36 step by step, its faults included, because a plugin has to
live with them: clients are kept by resource name alone, a reservation can be lost while an Allocate is under way, an
empty answer leaks devices. Everything Go leaves to the order of a map is drawn from the given random source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_memory import Allocation, Memory
from neuron_plugin.simulation.kubelet_plugins import PluginCallError, PluginConnection
from neuron_plugin.simulation.kubelet_pods import Container, Pod

_Item = TypeVar("_Item", str, tuple[str, int])


class AllocationError(Exception):
    """The devices of a container cannot be had; the text is the kubelet's."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node shows for a resource."""

    capacity: int
    allocatable: int


@dataclass(slots=True)
class _Taking:
    """The devices of one container and resource while they are being chosen."""

    resource: str
    needed: int
    taken: set[str] = field(default_factory=set)


class DeviceManager:
    """One kubelet process's view of devices; ``memory`` outlives it.

    ``active`` names the UIDs whose devices may not be freed, ``keep`` makes what is remembered last. ``numa_affinity``
    is what a topology manager would hint; None is its policy "none". ``grace_seconds`` is how long a resource is shown
    after its stream ended.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        random: Random,
        clock: Callable[[], float],
        active: Callable[[], Iterable[str]],
        keep: Callable[[], None],
        numa_affinity: frozenset[int] | None = None,
        grace_seconds: float = 300.0,
    ) -> None:
        self.endpoints: dict[str, PluginConnection | None] = dict.fromkeys(memory.resources)
        self.sources_ready = False
        self._memory = memory
        self._random = random
        self._clock = clock
        self._active = active
        self._keep = keep
        self._numa_affinity = numa_affinity
        self._grace_seconds = grace_seconds
        self._devices: dict[str, dict[str, pb.Device]] = {resource: {} for resource in memory.resources}
        self._reserved = memory.held_ids()
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})

    # What plugins tell.

    def connected(self, connection: PluginConnection) -> None:
        """A plugin has registered; its devices come with its stream."""
        self.endpoints[connection.resource] = connection

    def received(self, resource: str, message: pb.ListAndWatchResponse) -> None:
        """A stream's message replaces what was known of the resource."""
        self._devices[resource] = {device.ID: device for device in message.devices}
        self._memory.resources.add(resource)
        self._keep()

    def disconnected(self, resource: str) -> None:
        """A plugin is gone: its devices stay, unhealthy, for the grace."""
        if (endpoint := self.endpoints.get(resource)) is not None:
            endpoint.stopped_at = self._clock()
        for device in self._devices.get(resource, {}).values():
            device.health = "Unhealthy"

    def capacity(self, resource: str) -> Capacity:
        """What the next node status would show of a resource."""
        endpoint = self.endpoints.get(resource)
        stopped_at = endpoint.stopped_at if endpoint is not None else None
        if stopped_at is not None and self._clock() - stopped_at > self._grace_seconds:
            del self.endpoints[resource], self._devices[resource]
        return Capacity(len(self._devices.get(resource, {})), len(self.healthy(resource)))

    def healthy(self, resource: str) -> set[str]:
        """The ids a plugin calls Healthy."""
        return {device.ID for device in self._devices.get(resource, {}).values() if device.health == "Healthy"}

    def devices(self, resource: str) -> dict[str, pb.Device]:
        """Every device listed for a resource."""
        return self._devices.get(resource, {})

    def resources(self) -> list[str]:
        """Every resource that has devices listed."""
        return sorted(self._devices)

    # Allocation.

    async def allocate(self, pod: Pod, container: Container, *, running: bool) -> None:
        """Allocate for one container of a pod, in the order in which the kubelet goes through them.

        Raises:
            AllocationError: with the kubelet's text; the pod has to be rejected.
        """
        reusable = self._reusable_by(pod.uid)
        await self._allocate_resources(pod, container, reusable, running=running)
        self._keep()
        for each in self._memory.of_container(pod.uid, container.name):
            if container.kind is ContainerKind.INIT:
                reusable.setdefault(each.resource, set()).update(each.ids)
            else:
                reusable.setdefault(each.resource, set()).difference_update(each.ids)

    def free_ended(self) -> None:
        """Forget the devices of pods that are no longer active: the only place where devices come free.

        The reserved ids are then those recorded, so that a reservation whose Allocate is still under way is lost
        (kubernetes/kubernetes#137534).
        """
        if self.sources_ready and self._memory.keep_only(self._active()):
            self._reserved = self._memory.held_ids()

    async def _allocate_resources(
        self, pod: Pod, container: Container, reusable: dict[str, set[str]], *, running: bool
    ) -> None:
        known = self._devices.keys() | self._reserved.keys()
        wanted = [(resource, count) for resource, count in container.limits.items() if resource in known]
        if wanted:
            self.free_ended()
        for resource, count in self._shuffled(wanted):
            try:
                left = reusable.get(resource, set())
                taken = await self._choose(pod, container, resource, count, left, running=running)
                if taken:
                    await self._allocate_from_plugin(pod, container, resource, taken)
            except PluginCallError as error:
                raise AllocationError(str(error)) from error

    async def _allocate_from_plugin(self, pod: Pod, container: Container, resource: str, ids: set[str]) -> None:
        try:
            answer = await self._endpoint(resource).allocate(self._shuffled(ids))
        except PluginCallError:
            self._reserved = self._memory.held_ids()
            raise
        if not answer.container_responses:
            # No restoration here: the ids stay reserved until another pod with devices is removed.
            raise AllocationError("no containers return in allocation response &AllocateResponse{}")
        response = answer.container_responses[0]
        self._memory.record(Allocation(pod.uid, container.name, resource, frozenset(ids), response))

    async def _choose(
        self, pod: Pod, container: Container, resource: str, count: int, reusable: set[str], *, running: bool
    ) -> set[str]:
        """The ids to allocate, already reserved; empty if nothing has to be asked of the plugin."""
        recorded = self._memory.recorded(pod.uid, container.name, resource)
        if recorded is not None and len(recorded) != count:
            raise AllocationError(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" '
                f"from {len(recorded)} to {count}"
            )
        if running and not self.sources_ready:
            return set()
        self._require_healthy(resource, recorded or frozenset())
        if recorded is not None:
            return set()
        taking = _Taking(resource, count)
        if self._take(taking, reusable):
            return taking.taken
        return await self._choose_new(taking, count)

    async def _choose_new(self, taking: _Taking, count: int) -> set[str]:
        available = self.healthy(taking.resource) - self._reserved.get(taking.resource, set())
        if len(available) < taking.needed:
            raise AllocationError(
                f"requested number of devices unavailable for {taking.resource}. "
                f"Requested: {taking.needed}, Available: {len(available)}"
            )
        aligned = self._aligned(taking.resource, available)
        if taking.needed < len(aligned):
            preferred = await self._preferred(taking, aligned, count)
            self._take(taking, preferred & aligned)
            self._take(taking, aligned)
            return taking.taken
        if self._take(taking, aligned):
            return taking.taken
        preferred = await self._preferred(taking, available, count)
        self._take(taking, preferred & available)
        with_topology = {each for each in available if self._nodes(taking.resource, each)}
        if self._numa_affinity is not None:
            self._take(taking, with_topology)
        self._take(taking, available)
        return taking.taken

    def _endpoint(self, resource: str) -> PluginConnection:
        if (endpoint := self.endpoints.get(resource)) is None:
            raise PluginCallError(f"endpoint {resource} has been stopped")
        return endpoint

    def _require_healthy(self, resource: str, recorded: frozenset[str]) -> None:
        if resource not in self._devices:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        healthy = self.healthy(resource)
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not recorded <= healthy:
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )

    async def _preferred(self, taking: _Taking, offered: set[str], size: int) -> set[str]:
        endpoint = self.endpoints.get(taking.resource)
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        taken = set(taking.taken)
        return await endpoint.preferred(self._shuffled(offered | taken), self._shuffled(taken), size)

    def _take(self, taking: _Taking, source: set[str]) -> bool:
        """Reserve at random from ``source`` what is still needed; whether that was enough."""
        chosen = self._shuffled(source - taking.taken)[: taking.needed]
        taking.taken.update(chosen)
        taking.needed -= len(chosen)
        self._reserved.setdefault(taking.resource, set()).update(chosen)
        return taking.needed == 0

    def _aligned(self, resource: str, available: set[str]) -> set[str]:
        affinity = self._numa_affinity or frozenset()
        return {each for each in available if affinity & self._nodes(resource, each)}

    def _nodes(self, resource: str, device_id: str) -> set[int]:
        return {node.ID for node in self._devices[resource][device_id].topology.nodes}

    def _reusable_by(self, uid: str) -> dict[str, set[str]]:
        """What earlier init containers of the pod being admitted have left; another pod's is forgotten."""
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        return self._reusable[1]

    def _shuffled(self, items: Iterable[_Item]) -> list[_Item]:
        ordered = sorted(items)
        self._random.shuffle(ordered)
        return ordered
