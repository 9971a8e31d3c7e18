"""What this node offers the kubelet: one registered resource each, over one state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from neuron_plugin.allocation.resources import Resource
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.devices import DeviceHandler
from neuron_plugin.kubelet.observer import Observer
from neuron_plugin.kubelet.registration import DevicePluginServer
from neuron_plugin.kubelet.service import ServiceOptions
from neuron_plugin.kubelet.watch import DirectoryWatch
from neuron_plugin.plugin.machine import advertised
from neuron_plugin.plugin.node import NodeState


class Offering:
    """The resources of a node, advertised from its state and registered with its kubelet."""

    def __init__(
        self,
        state: NodeState,
        handler: DeviceHandler,
        resources: Iterable[Resource],
        kubelet_dir: Path,
        options: ServiceOptions,
        observer: Observer | None = None,
    ) -> None:
        """Nothing is served before ``run``."""
        self._state = state
        self._watch = DirectoryWatch(kubelet_dir)
        self._advertisements = {resource: Advertisement() for resource in resources}
        self.servers = [
            DevicePluginServer(resource.value, handler, advertisement, self._watch, options=options, observer=observer)
            for resource, advertisement in self._advertisements.items()
        ]

    @property
    def serving(self) -> bool:
        """Whether the kubelet follows any resource: each stands for itself, and its allocatable tells which."""
        return any(server.registered.is_set() for server in self.servers)

    def refresh(self) -> None:
        """Advertise the state as it is now; the kubelet hears only of what changed."""
        machine = self._state.machine
        if machine is None:
            return
        for resource, advertisement in self._advertisements.items():
            advertisement.publish(advertised(machine, self._state.ledger, resource))

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
