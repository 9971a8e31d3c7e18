"""A plugin's handler and an observer that do as a test tells them and write down what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.devices import AdvertisedDevice, ContainerAllocation, DeviceNode
from neuron_plugin.kubelet.observer import RegistrationState
from neuron_plugin.kubelet.registration import DevicePluginServer, RegistrationTimes
from neuron_plugin.kubelet.service import ServiceOptions
from neuron_plugin.kubelet.watch import DirectoryWatch

CORE = "aws.amazon.com/neuroncore"
DEVICE = "aws.amazon.com/neurondevice"


def devices(count: int, *unhealthy: int) -> list[AdvertisedDevice]:
    return [AdvertisedDevice(str(each), each not in unhealthy) for each in range(count)]


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - repeats a test's chance, guards nothing


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells a test."""
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
    allocation: Callable[[str, Sequence[str]], ContainerAllocation] | None = None
    start: Callable[[Sequence[str]], Awaitable[None]] | None = None
    preferences: list[tuple[list[str], list[str], int]] = field(default_factory=list)
    allocations: list[tuple[str, list[str]]] = field(default_factory=list)
    starts: list[list[str]] = field(default_factory=list)

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        del resource
        self.preferences.append((list(available), list(must_include), size))
        return await self.prefer(available, must_include, size)

    def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        if self.allocation is not None:
            answer = self.allocation(resource, ids)
            self.allocations.append((resource, list(ids)))
            return answer
        self.allocations.append((resource, list(ids)))
        nodes = tuple(DeviceNode(f"/dev/neuron{each}", f"/dev/neuron{each}") for each in ids)
        return ContainerAllocation(envs={"IDS": ",".join(ids)}, devices=nodes)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        del resource
        self.starts.append(list(ids))
        if self.start is not None:
            await self.start(ids)


@dataclass
class FakeObserver:
    """Keeps everything it is told."""

    states: list[RegistrationState] = field(default_factory=list)
    registrations: list[str | None] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    refused: list[tuple[str, Exception]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def state_changed(self, resource: str, state: RegistrationState) -> None:
        del resource
        self.states.append(state)
        self.news.set()

    def registration_ended(self, resource: str, error: str | None) -> None:
        del resource
        self.registrations.append(error)
        self.news.set()

    def preference_replaced(self, resource: str, fault: str) -> None:
        del resource
        self.replaced.append(fault)

    def request_refused(self, resource: str, method: str, error: Exception) -> None:
        del resource
        self.refused.append((method, error))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state or registration that makes the condition true."""
        async with asyncio.timeout(10):
            while not condition():
                self.news.clear()
                await self.news.wait()


@dataclass
class RunningPlugin:
    """One resource's server under test, and what surrounds it."""

    server: DevicePluginServer
    handler: FakeHandler
    advertisement: Advertisement
    observer: FakeObserver
    task: asyncio.Task[None]


QUICK = RegistrationTimes(stream_deadline=0.2, settled=0.0, first_delay=0.02, longest_delay=0.1)


@asynccontextmanager
async def running_plugin(  # noqa: PLR0913 - what a test may vary
    directory: Path,
    resource: str = CORE,
    *,
    count: int = 4,
    options: ServiceOptions | None = None,
    times: RegistrationTimes = QUICK,
    watch_seconds: float = 0.1,
    random: Random | None = None,
    kind: type[DevicePluginServer] = DevicePluginServer,
    other_route: Path | None = None,
) -> AsyncIterator[RunningPlugin]:
    """A plugin as the daemon runs it: a watch, a server, both in tasks. ``kind`` is the way it registers."""
    watch = DirectoryWatch(directory, period_seconds=watch_seconds)
    handler, observer, advertisement = FakeHandler(), FakeObserver(), Advertisement(devices(count))
    server = kind(
        resource,
        handler,
        advertisement,
        watch,
        options=options,
        observer=observer,
        times=times,
        random=random,
        other_route=other_route,
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run(), name="watch")
        task = group.create_task(server.run(), name="server")
        try:
            yield RunningPlugin(server, handler, advertisement, observer, task)
        finally:
            await server.stop()
            watching.cancel()
