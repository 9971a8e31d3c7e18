"""A node and an allocator in memory: the kubelet is a dictionary that is written on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInventory, Resource
from neuron_plugin.decision_log import LoggedDecision
from neuron_plugin.kubelet import (
    Advertisement,
    Checkpoint,
    CheckpointEntry,
    CheckpointError,
    ContainerAllocation,
)
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.node import Node, NodeOptions
from neuron_plugin.plugin.settings import Numbering, PluginSettings
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import CoreMask
from tests.plugin.world import FakeClock, given_mask, inventory, texts


@dataclass
class MemoryKubelet:
    """What the kubelet has recorded, and the version of its file.

    ``unreadable`` makes the file unreadable. ``writes`` says whether a ListAndWatch message leads to a new file.
    """

    memory: dict[tuple[str, str, str], CheckpointEntry] = field(default_factory=dict)
    file: tuple[CheckpointEntry, ...] = ()
    serial: int = 0
    reads: int = 0
    messages: int = 0
    unreadable: str = ""
    writes: bool = True

    def version(self) -> tuple[int, int, int] | None:
        return (self.serial, 0, 0) if self.serial else None

    def read(self) -> Checkpoint:
        self.reads += 1
        if self.unreadable:
            raise CheckpointError(self.unreadable)
        return Checkpoint(self.file, self.version())

    def write(self) -> None:
        self.serial, self.file = self.serial + 1, tuple(self.memory.values())

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
        annotations = reply.annotations if reply else {}
        paths = tuple(node.host_path for node in reply.devices) if reply else ()
        entry = CheckpointEntry(uid, container, resource.value, frozenset(texts(ids)), annotations, paths)
        self.memory[uid, container, resource.value] = entry
        if write:
            self.write()

    def forget(self, uid: str, *, write: bool = True) -> None:
        """An ended pod leaves the kubelet's memory."""
        self.memory = {key: entry for key, entry in self.memory.items() if key[0] != uid}
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

    node: Node
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
    node: Node
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
    made = Node(kubelet, cgroups, NodeOptions(cluster=cluster), LoopClock())
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
