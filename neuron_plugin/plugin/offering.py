"""What this node offers the kubelet: one registered resource each, over one state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.allocation import Resource
from neuron_plugin.kubelet import (
    Advertisement,
    DeviceHandler,
    DevicePluginServer,
    DirectoryWatch,
    KubeletCounters,
    WatchedPluginServer,
)
from neuron_plugin.plugin.machine import advertised, with_numa_nodes
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.settings import PluginSettings, Registration


@dataclass(frozen=True, slots=True)
class Route:
    """A way to be registered, the directory it goes by, and that of the way not taken.

    One for all resources: what is registered both ways is disconnected when either ends.
    """

    server: type[DevicePluginServer]
    directory: Path
    other_directory: Path


def route(settings: PluginSettings) -> Route:
    """The way that the settings choose."""
    if settings.registration is Registration.WATCHER:
        return Route(WatchedPluginServer, settings.plugins_registry, settings.kubelet_dir)
    return Route(DevicePluginServer, settings.kubelet_dir, settings.plugins_registry)


class Offering:
    """The resources of a node, advertised from its state and registered with its kubelet."""

    def __init__(
        self,
        state: NodeState,
        handler: DeviceHandler,
        resources: Iterable[Resource],
        route: Route,
        counters: KubeletCounters,
        *,
        preference_deadline_seconds: float = 4.0,
        on_advertised: Callable[[], None] = lambda: None,
        numa_hints: bool = False,
    ) -> None:
        """Nothing is served before ``run``. ``numa_hints``: say on which NUMA node a device is, where that is known."""
        self._state = state
        self._numa_hints = numa_hints
        self._on_advertised = on_advertised
        self._watch = DirectoryWatch(route.directory)
        self._advertisements = {resource: Advertisement() for resource in resources}
        self.servers = [
            route.server(
                resource.value,
                handler,
                advertisement,
                self._watch,
                preference_deadline_seconds=preference_deadline_seconds,
                counters=counters,
                on_change=self._registration_changed,
                other_route=route.other_directory,
            )
            for resource, advertisement in self._advertisements.items()
        ]

    @property
    def serving(self) -> bool:
        """Whether the kubelet follows any resource: each stands for itself, and its allocatable tells which."""
        return any(server.registered.is_set() for server in self.servers)

    def _registration_changed(self) -> None:
        if self.serving:
            self._on_advertised()

    def refresh(self) -> None:
        """Advertise the state as it is now; the kubelet hears only of what changed."""
        machine = self._state.machine
        if machine is None:
            return
        for resource, advertisement in self._advertisements.items():
            devices = advertised(machine, self._state.ledger, resource, self._state.quarantine)
            advertisement.publish(with_numa_nodes(machine, resource, devices) if self._numa_hints else devices)

    async def run(self) -> None:
        """Keep every resource registered until ``stop``; one that fails leaves the others alone."""
        watching = asyncio.create_task(self._watch.run(), name="kubelet directory")
        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self.servers:
                    tasks.create_task(server.run(), name=f"register {server.resource}")
        finally:
            watching.cancel()

    async def stop(self) -> None:
        """End the streams and remove the sockets."""
        await asyncio.gather(*(server.stop() for server in self.servers))
