"""A node and an allocator in memory, and a kubelet that does what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInventory, Resource
from neuron_plugin.decision_log import LoggedDecision
from neuron_plugin.kubelet import Advertisement, ContainerAllocation
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from neuron_plugin.kubelet.device_plugin import container_response
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.settings import Numbering, PluginSettings
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.topology import CoreMask
from tests.plugin.world import FakeClock, given_mask, inventory, texts
from tests.support.model_kubelet import ModelKubelet


class MemoryKubelet(ModelKubelet):
    """A kubelet that writes on request. ``writes`` says whether a ListAndWatch message leads to a new file."""

    def __init__(self) -> None:
        super().__init__(Random(0))  # noqa: S311 - of no consequence
        self.messages = 0
        self.writes = True

    def write(self) -> None:
        self.file.put(self.manager.checkpoint_bytes())

    def write_empty(self) -> None:
        """An older file, from before anything was allocated, that comes late."""
        self.file.put(DeviceManager(self._chance).checkpoint_bytes())

    def record(
        self,
        uid: str,
        container: str,
        resource: Resource,
        ids: Collection[int],
        reply: ContainerAllocation | None = None,
        *,
        write: bool = True,
    ) -> None:
        """The kubelet takes a reply in; ``reply`` None is another plugin's."""
        response = container_response(reply) if reply else ContainerAllocateResponse()
        self.manager.record(uid, container, resource.value, texts(ids), response.SerializeToString())
        if write:
            self.write()

    def forget(self, *uids: str, write: bool = True) -> None:
        """Ended pods leave the kubelet's memory, by default all."""
        kept = {each.pod_uid for each in self.manager.entries()}
        self.manager.forget_pods(kept.difference(uids) if uids else ())
        if write:
            self.write()

    async def follow(self, advertisement: Advertisement) -> None:
        """A ListAndWatch stream."""
        advertisement.streams += 1
        sent = 0
        try:
            while True:
                if advertisement.latest.version == sent:
                    await advertisement.changed()
                    continue
                sent = advertisement.latest.version
                self.messages += 1
                if self.writes:
                    await asyncio.sleep(0.002)
                    self.write()
        finally:
            advertisement.streams -= 1


@dataclass
class FakeCgroups:
    """``alive``: UIDs of pods that have a process; None where that cannot be seen."""

    alive: set[str] | None = field(default_factory=set)

    def is_populated(self, uid: str) -> bool | None:
        return None if self.alive is None else uid in self.alive


@dataclass
class FakeLister:
    """The API server: ``pods`` are shown to the node at the next LIST."""

    node: LocalNode
    pods: Sequence[NeuronPod] | None = None
    lists: int = 0

    async def list_pods(self) -> None:
        self.lists += 1
        if self.pods is not None:
            self.node.see_pods(self.node.pods.with_list(self.pods, self.node.clock()))


class LoopClock(FakeClock):
    """The time of the event loop, which tests may make pass quickly."""

    def __call__(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass
class Desk:
    node: LocalNode
    kubelet: MemoryKubelet
    cgroups: FakeCgroups
    lister: FakeLister
    allocator: Allocator

    @property
    def snapshot(self) -> Snapshot:
        assert self.node.snapshot
        return self.node.snapshot

    async def prefer(
        self, resource: Resource, size: int, available: Collection[int] | None = None, must: Collection[int] = ()
    ) -> tuple[int, ...]:
        offered = self.ids(resource) if available is None else available
        answer = await self.allocator.preferred(resource.value, texts(offered), texts(must), size)
        return tuple(sorted(map(int, answer)))

    async def allocate(self, resource: Resource, *ids: int) -> ContainerAllocation:
        """The answer, after what follows it."""
        answer = await self.allocator.allocate(resource.value, texts(ids))
        await asyncio.sleep(0)
        return answer

    async def admit(self, uid: str, container: str, resource: Resource, *ids: int) -> CoreMask:
        """An Allocate that the kubelet records; the cores that the container was given."""
        answer = await self.allocate(resource, *ids)
        self.kubelet.record(uid, container, resource, ids, answer)
        self.node.look_at_checkpoint()
        return given_mask(self.snapshot.inventory.geometry, answer)

    def ids(self, resource: Resource) -> tuple[int, ...]:
        geometry = self.snapshot.inventory.geometry
        return geometry.ids_of(resource.unit, geometry.all_mask)

    @property
    def decisions(self) -> list[LoggedDecision]:
        return list(self.allocator.log.decisions.entries())


@asynccontextmanager
async def a_desk(
    *pods: NeuronPod,
    node: NodeInventory | None = None,
    kubelet: MemoryKubelet | None = None,
    cgroups: FakeCgroups | None = None,
    cluster: bool = True,
    listed: bool = True,
    **settings: object,
) -> AsyncIterator[Desk]:
    """A node with these pods, its kubelet and its allocator. ``listed``: the API server has been heard."""
    kubelet, cgroups = kubelet or MemoryKubelet(), cgroups or FakeCgroups()
    made = LocalNode(kubelet.file, cgroups, NodeOptions(cluster=cluster), LoopClock())
    if cluster and listed:
        made.see_pods(NodePods().with_list(pods, 0.0))
    made.see_inventory(node or inventory())
    lister = FakeLister(made)
    chosen = msgspec.structs.replace(PluginSettings(node_name="worker-1", numbering=Numbering.HOST), **settings)
    allocator = Allocator(made, chosen, lister if cluster else None, Counters())
    made.advertise()
    stream = asyncio.create_task(kubelet.follow(next(iter(made.advertisements.values()))))
    await asyncio.sleep(0)
    try:
        yield Desk(made, kubelet, cgroups, lister, allocator)
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
