"""A handler and an observer of a plugin under test: they record what they are asked and what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from neuron_plugin.kubelet.advertisement import AdvertisedDevice, Advertisement
from neuron_plugin.kubelet.device_plugin import ContainerAllocation, DeviceNode, KubeletCounters
from neuron_plugin.kubelet.registration import DevicePluginServer, RegistrationState, RegistrationTimes
from neuron_plugin.kubelet.socket_watch import DirectoryWatch

CORE = "aws.amazon.com/neuroncore"
DEVICE = "aws.amazon.com/neurondevice"


def devices(count: int, *unhealthy: int) -> list[AdvertisedDevice]:
    return [AdvertisedDevice(str(each), each not in unhealthy) for each in range(count)]


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - repeats a test's chance, guards nothing


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds, for what has no event."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def lowest(available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
    rest = sorted(set(available) - set(must_include), key=int)
    return [*must_include, *rest][:size]


@dataclass
class FakeHandler:
    """Prefers the lowest ids, allocates a node and a variable for each; replace a field to make it misbehave."""

    prefer: Callable[[Sequence[str], Sequence[str], int], Awaitable[Sequence[str]]] = lowest
    allocation: Callable[[str, Sequence[str]], Awaitable[ContainerAllocation]] | None = None
    preferences: list[tuple[list[str], list[str], int]] = field(default_factory=list)
    allocations: list[tuple[str, list[str]]] = field(default_factory=list)

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        del resource
        self.preferences.append((list(available), list(must_include), size))
        return await self.prefer(available, must_include, size)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        if self.allocation is not None:
            answer = await self.allocation(resource, ids)
            self.allocations.append((resource, list(ids)))
            return answer
        self.allocations.append((resource, list(ids)))
        nodes = tuple(DeviceNode(f"/dev/neuron{each}", f"/dev/neuron{each}") for each in ids)
        return ContainerAllocation(envs={"IDS": ",".join(ids)}, devices=nodes)


class Watched(asyncio.Event):
    """An event that shows its observer each time it is set."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def set(self) -> None:
        self._observer.look()
        super().set()


@dataclass
class Observer:
    """Keeps each state that a server enters, and the result of each registration: None, or why it failed."""

    server: DevicePluginServer | None = None
    counters: KubeletCounters = field(default_factory=KubeletCounters)
    states: list[RegistrationState] = field(default_factory=list)
    registrations: list[str | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def look(self) -> None:
        assert self.server is not None
        if self.states[-1:] != [self.server.state]:
            self.states.append(self.server.state)
        if self.counters.registrations.total() > len(self.registrations):
            failed = self.counters.registrations[self.server.resource, "failed"]
            known = len([each for each in self.registrations if each is not None])
            self.registrations.append(self.server.failure if failed > known else None)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state or registration that makes the condition true."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class RunningPlugin:
    """One resource's server under test, and what surrounds it."""

    server: DevicePluginServer
    handler: FakeHandler
    advertisement: Advertisement
    observer: Observer
    task: asyncio.Task[None]


QUICK = RegistrationTimes(stream_deadline=0.2, settled=0.0, first_delay=0.02, longest_delay=0.1, patience=0.0)


@asynccontextmanager
async def running_plugin(
    directory: Path,
    resource: str = CORE,
    *,
    count: int = 4,
    times: RegistrationTimes = QUICK,
    watch_seconds: float = 0.1,
    random: Random | None = None,
    kind: type[DevicePluginServer] = DevicePluginServer,
    other_route: Path | None = None,
) -> AsyncIterator[RunningPlugin]:
    """A plugin as the daemon runs it: a watch, a server, both in tasks. ``kind`` is the way it registers."""
    watch = DirectoryWatch(directory, period_seconds=watch_seconds)
    handler, observer, advertisement = FakeHandler(), Observer(), Advertisement(devices(count))
    server = kind(
        resource,
        watch,
        handler,
        advertisement,
        counters=observer.counters,
        changed=Watched(observer),
        times=times,
        random=random or Random(),  # noqa: S311 - spreads retries
        other_route=other_route,
    )
    observer.server = server
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run(), name="watch")
        task = group.create_task(server.run(), name="server")
        try:
            yield RunningPlugin(server, handler, advertisement, observer, task)
        finally:
            await server.stop()
            watching.cancel()
