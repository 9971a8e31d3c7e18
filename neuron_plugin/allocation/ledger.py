"""Who holds which cores of one node.

The kubelet says which ids it hands out, never when they come back. So nothing is "released" here: the ledger
follows from the pods that live, and a holder is gone when its pod's UID is. It cannot leak and cannot go negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NewType

from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import NO_CORES, CoreMask

PodUid = NewType("PodUid", str)


@dataclass(frozen=True, slots=True)
class PodReference:
    """The pod that holds something, for people and for keys. Names are re-used, UIDs are not."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container of a pod has under one resource name.

    ``mask`` are the cores that it was given. ``drawn_mask`` are the cores behind the ids that the kubelet has recorded
    for the container, where they are other ones: of a set that its pod's init containers had, the container is given
    a linked part in place of the kubelet's random one.
    """

    pod: PodReference
    container: str
    resource: Resource
    mask: CoreMask
    drawn_mask: CoreMask = NO_CORES

    @property
    def kubelet_mask(self) -> CoreMask:
        """The cores behind the kubelet's ids."""
        return self.drawn_mask or self.mask


@dataclass(frozen=True, slots=True)
class Holding:
    """Cores that one container holds under one resource name.

    ``drawn`` are those that the kubelet has on its account for it, empty where they are not known. They may be others:
    of what its pod's init containers had, a container is given a linked part in place of the kubelet's random one.
    """

    container: str
    resource: Resource
    mask: CoreMask
    drawn: CoreMask = field(default=NO_CORES, compare=False)

    @property
    def on_account(self) -> CoreMask:
        """What the kubelet has on its account for it, as far as is known."""
        return self.drawn or self.mask


@dataclass(frozen=True, slots=True)
class Holder:
    """A live pod and what its containers hold; init and app containers of one pod may overlap."""

    pod: PodReference
    holdings: tuple[Holding, ...]

    @property
    def mask(self) -> CoreMask:
        """Every core the pod holds."""
        return union_of(self.holdings)

    def held_as(self, resource: Resource) -> CoreMask:
        """Every core the pod holds under one resource name."""
        return union_of(holding for holding in self.holdings if holding.resource is resource)


@dataclass(frozen=True)
class Ledger:
    """All allocations of one node. It is derived, never edited: what is not in it is free.

    Allocations of one pod may overlap, because later containers re-use what plain init containers had.
    """

    allocations: tuple[Allocation, ...] = ()

    @cached_property
    def used_mask(self) -> CoreMask:
        """Every core that some pod has."""
        return mask_union(self.allocations)

    @cached_property
    def by_pod(self) -> Mapping[PodUid, tuple[Allocation, ...]]:
        """The allocations of each pod, in the order in which they were given here."""
        found: dict[PodUid, tuple[Allocation, ...]] = {}
        for one in self.allocations:
            found[one.pod.uid] = (*found.get(one.pod.uid, ()), one)
        return found

    def of(self, uid: PodUid) -> tuple[Allocation, ...]:
        """What one pod has."""
        return self.by_pod.get(uid, ())

    def mask_of(self, uid: PodUid) -> CoreMask:
        """Every core that one pod has: a union, since its containers may share cores."""
        return mask_union(self.of(uid))

    def used_as(self, resource: Resource) -> CoreMask:
        """Every core that is in use under one resource name."""
        return mask_union(one for one in self.allocations if one.resource is resource)

    def overlapping(self, mask: int) -> tuple[Allocation, ...]:
        """The allocations that share a core with ``mask``."""
        return tuple(one for one in self.allocations if one.mask & mask)


def mask_union(allocations: Iterable[Allocation]) -> CoreMask:
    """Every core of some allocations."""
    mask = 0
    for one in allocations:
        mask |= one.mask
    return CoreMask(mask)


@dataclass(frozen=True)
class HolderLedger:
    """An immutable account of a node's holders; a change is a new ledger."""

    holders: Mapping[PodUid, Holder] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Holder]:
        return iter(self.holders.values())

    @property
    def used_mask(self) -> CoreMask:
        """Every core that some pod holds."""
        return union_of(holding for holder in self for holding in holder.holdings)

    def held_as(self, resource: Resource) -> CoreMask:
        """Every core held under one resource name."""
        held = (holding for holder in self for holding in holder.holdings)
        return union_of(holding for holding in held if holding.resource is resource)

    def holders_of(self, mask: int) -> tuple[Holder, ...]:
        """The pods that hold a part of ``mask``."""
        return tuple(holder for holder in self if holder.mask & mask)

    def given_for(self, resource: Resource, drawn: CoreMask) -> CoreMask:
        """What containers were given for exactly these cores of the kubelet's; empty where no such call is known."""
        held = (holding for holder in self for holding in holder.holdings if holding.resource is resource)
        return union_of(holding for holding in held if holding.on_account == drawn)

    def with_holder(self, holder: Holder) -> HolderLedger:
        """The ledger in which this pod holds exactly this."""
        return HolderLedger({**self.holders, holder.pod.uid: holder})

    def with_holding(self, pod: PodReference, holding: Holding) -> HolderLedger:
        """The ledger in which one more container of a pod holds something; the same again changes nothing."""
        held = self.holders.get(pod.uid)
        others = tuple(other for other in (held.holdings if held else ()) if not _same_place(other, holding))
        return self.with_holder(Holder(pod, (*others, holding)))

    def without(self, uid: PodUid) -> HolderLedger:
        """The ledger after a pod's end."""
        return HolderLedger({other: holder for other, holder in self.holders.items() if other != uid})


def union_of(holdings: Iterable[Holding]) -> CoreMask:
    """Every core of some holdings."""
    mask = 0
    for holding in holdings:
        mask |= holding.mask
    return CoreMask(mask)


def _same_place(one: Holding, other: Holding) -> bool:
    return (one.container, one.resource) == (other.container, other.resource)
