"""What is reserved for a pod that waits, or for a rank of a group, as it is written into the leader's Lease."""

from __future__ import annotations

import msgspec

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import CoreMask


class ReserveRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A reserve as the next leader finds it. ``cores`` are reserved on ``node``; ``at`` is in unix seconds.

    ``uid`` is the waiting pod's, or the name of a rank of a group. ``victims`` are UIDs. ``owners`` are the controllers
    of pods that were moved, as NAMESPACE/KIND/NAME. ``group`` is that of a rank or of a spare node, as NAMESPACE/NAME;
    ``lent_below`` as in ``Reservation``.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cores: str
    victims: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    at: float = 0.0
    group: str = ""
    lent_below: int | None = None

    @property
    def reservation(self) -> Reservation:
        """What is kept for the waiting pod, or for the rank."""
        mask = sum(1 << core for core in parse_ids(self.cores))
        return Reservation(
            PodReference(PodUid(self.uid), self.namespace, self.name), self.node, CoreMask(mask), self.lent_below
        )

    @property
    def is_spare(self) -> bool:
        """Whether it is a spare node of a group, and no rank's place."""
        return self.lent_below is not None

    @property
    def group_name(self) -> GroupName:
        """The group of a rank."""
        namespace, _, name = self.group.partition("/")
        return namespace, name


def is_sick(state: ClusterState, record: ReserveRecord) -> bool:
    """Whether a device of what is reserved is not healthy, or its node not known."""
    info = state.nodes.get(record.node)
    return info is None or info.inventory is None or bool(record.reservation.mask & ~info.inventory.healthy_mask)
