"""Who has which cores of one node.

The kubelet says which ids it hands out, never when they come back. So nothing is "released" here: the ledger follows
from the pods that live, and an allocation is gone when its pod is. It cannot leak and cannot go negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NewType, Protocol

from neuron_plugin.allocation.requests import Amounts, ContainerKind
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import NO_CORES, CoreMask

PodUid = NewType("PodUid", str)


@dataclass(frozen=True, slots=True)
class PodReference:
    """A pod as messages name it and tables key it. Names are used again, UIDs are not."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container of a pod has under one resource name.

    ``mask`` are the cores that it was given. ``drawn_mask`` are the cores behind the ids that the kubelet has recorded
    for the container, where they are other ones. That is so for a part of a set that the pod's init containers had: the
    container is given a linked part, and the kubelet drew a random one. ``amounts`` are what the container asks of its
    devices, where its pod's request is known, and ``kind`` says when it needs them. ``claim`` is the name of the claim
    by which the pod has the cores, for all containers that use it; the kubelet then counts them under no resource name.
    """

    pod: PodReference
    container: str
    resource: Resource
    mask: CoreMask
    drawn_mask: CoreMask = NO_CORES
    amounts: Amounts = ()
    kind: ContainerKind = ContainerKind.APP
    claim: str = ""

    @property
    def kubelet_mask(self) -> CoreMask:
        """The cores behind the kubelet's ids."""
        return NO_CORES if self.claim else self.drawn_mask or self.mask

    @property
    def user(self) -> str:
        """Who has it, of the pod's parts: a container, or all that use a claim."""
        return f"claim {self.claim}" if self.claim else self.container


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


class HasCores(Protocol):
    """An allocation, or whatever else some cores belong to."""

    @property
    def mask(self) -> CoreMask:
        """The cores."""


def mask_union(parts: Iterable[HasCores]) -> CoreMask:
    """Every core of some allocations."""
    mask = 0
    for one in parts:
        mask |= one.mask
    return CoreMask(mask)
