"""A cluster as values: what each node has, which pods have which cores there, and what would be after a change.

Plans are made of states that do not exist. So nothing here is derived from a watch or written back: a state is made
once (from the extender's, from its monitor API, or by a simulation), and every change is another state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from neuron_plugin.allocation import PodReference, PodRequest, PodUid, cores_asked
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """A pod that asks for Neuron. ``mask`` are the cores that it has on its node; none while it waits.

    ``movable``: the pod, or its namespace, says that it may be evicted to make room. ``recreated``: a controller makes
    it again. ``since`` is the time, in hours, from which its work would be lost. ``nodes`` are those that it may go to,
    where not all will do.
    """

    reference: PodReference
    request: PodRequest
    mask: CoreMask = NO_CORES
    priority: int = 0
    movable: bool = False
    recreated: bool = False
    since: float = 0.0
    nodes: frozenset[str] | None = None

    @property
    def uid(self) -> PodUid:
        """The pod's key."""
        return self.reference.uid

    def may_go_to(self, node: str) -> bool:
        """Whether nothing but Neuron could keep the pod from a node."""
        return self.nodes is None or node in self.nodes


@dataclass(frozen=True)
class NodeState:
    """One node with the pods on it. A node that is not ``open`` takes no pod; those on it can be moved away.

    Cores of pods that are not listed, because what they have is not known for certain, are no part of ``offered_mask``.
    """

    name: str
    geometry: Geometry
    offered_mask: CoreMask
    pods: tuple[PlannedPod, ...] = ()
    open: bool = True

    @cached_property
    def used_mask(self) -> CoreMask:
        """Every core that a pod has."""
        mask = 0
        for pod in self.pods:
            mask |= pod.mask
        return CoreMask(mask)

    @cached_property
    def free_mask(self) -> CoreMask:
        """The cores that a pod could be given."""
        return CoreMask(self.offered_mask & ~self.used_mask) if self.open else NO_CORES

    def with_pod(self, pod: PlannedPod) -> NodeState:
        """The node with one more pod."""
        return replace(self, pods=(*self.pods, pod))

    def without(self, uids: Collection[str]) -> NodeState:
        """The node without these pods."""
        return replace(self, pods=tuple(pod for pod in self.pods if pod.uid not in uids))

    def devices(self, mask: int) -> float:
        """How many devices so many cores are, in fractions where they are not whole ones."""
        return mask.bit_count() / self.geometry.cores_per_device


ClusterNodes = Mapping[str, NodeState]
"""A cluster: its nodes by name."""


def devices_asked(geometry: Geometry, request: PodRequest) -> float:
    """How many devices of such a node a request asks for."""
    return sum(cores_asked(geometry, part) for part in request) / geometry.cores_per_device


def place_on(nodes: ClusterNodes, name: str, pod: PlannedPod) -> dict[str, NodeState]:
    """The cluster with one more pod on a node."""
    return {**nodes, name: nodes[name].with_pod(pod)}
