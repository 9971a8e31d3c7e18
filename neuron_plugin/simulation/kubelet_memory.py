"""What the stand-in kubelet remembers of allocations.

Under pod UID, container and resource the ids and the answer to Allocate, and the names of the resources that were once
registered. Nothing else survives a restart; how this does, ``kubelet_checkpoint`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb


@dataclass(frozen=True, slots=True)
class Allocation:
    """The ids of one resource in one container, and the plugin's answer for them."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    response: pb.ContainerAllocateResponse


@dataclass(slots=True)
class Memory:
    """Allocations by (pod UID, container, resource), and the resources ever registered."""

    allocations: dict[tuple[str, str, str], Allocation] = field(default_factory=dict)
    resources: set[str] = field(default_factory=set)

    def record(self, allocation: Allocation) -> None:
        """Keep an answered Allocate."""
        self.allocations[allocation.uid, allocation.container, allocation.resource] = allocation

    def recorded(self, uid: str, container: str, resource: str) -> frozenset[str] | None:
        """The ids of one container and resource, None if nothing is recorded."""
        found = self.allocations.get((uid, container, resource))
        return found.ids if found else None

    def of_container(self, uid: str, container: str) -> Iterator[Allocation]:
        """Every allocation of one container."""
        return (each for each in self.allocations.values() if (each.uid, each.container) == (uid, container))

    def keep_only(self, uids: Iterable[str]) -> bool:
        """Forget the pods that are not among ``uids``; whether there were any."""
        kept = set(uids)
        gone = [key for key, allocation in self.allocations.items() if allocation.uid not in kept]
        for key in gone:
            del self.allocations[key]
        return bool(gone)

    def held_ids(self) -> dict[str, set[str]]:
        """The recorded ids of each resource."""
        held: dict[str, set[str]] = {}
        for allocation in self.allocations.values():
            held.setdefault(allocation.resource, set()).update(allocation.ids)
        return held
