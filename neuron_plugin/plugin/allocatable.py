"""The Node's allocatable counts, lowered at once when devices have gone out of service.

A kubelet writes its node's status every 10 s. Until then a scheduler by counts sends pods that the kubelet rejects, and
a ReplicaSet replaces each at once: sixteen in eight seconds were seen. So the plugin writes the lower count itself,
which is what the kubelet is about to write. It never raises a count, and leaves alone what changes all day: devices
that are in use under another name.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.allocation import Resource
from neuron_plugin.cluster.writes import limit_allocatable
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.snapshot import Snapshot


class AllocatableKeeper:
    """Compares what is advertised with what the Node object shows."""

    def __init__(self, node_name: str, node: LocalNode, publisher: Publisher) -> None:
        self._node_name = node_name
        self._node = node
        self._publisher = publisher
        self._withdrawn: dict[Resource, frozenset[str]] = {}
        self._due: set[Resource] = set()
        self._written: Mapping[str, int] = {}

    def look(self, snapshot: Snapshot, shown: Mapping[str, int]) -> None:
        """Have a lower count written for each resource that lost ids, as long as the Node still shows the old count."""
        lower: dict[str, int] = {}
        for resource, advertisement in self._node.advertisements.items():
            devices = advertisement.latest.devices
            healthy = sum(device.healthy for device in devices)
            withdrawn = frozenset(
                device.id
                for device in devices
                if not device.healthy and snapshot.mask_of(resource, (int(device.id),)) & ~snapshot.offered_mask
            )
            if withdrawn - self._withdrawn.get(resource, frozenset()):
                self._due.add(resource)
            self._withdrawn[resource] = withdrawn
            if not advertisement.streams or shown.get(resource.value, 0) <= healthy:
                self._due.discard(resource)  # the kubelet does not follow, or all is said
            elif resource in self._due:
                lower[resource.value] = healthy
        if lower and lower != self._written:
            self._publisher.write("allocatable", limit_allocatable(self._node_name, lower))
        self._written = lower
