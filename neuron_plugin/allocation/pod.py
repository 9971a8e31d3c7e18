"""A pod that asks for Neuron, and the ledger of one node, for both daemons and the command line.

There is one record of a pod. ``cluster.neuron_pod`` decodes it from the API server's object.

The kubelet reports which ids it hands out, but not when it gets them back. So nothing is "released" here: the ledger is
derived from the live pods, and an allocation ends with its pod. It cannot leak.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NewType, Protocol

from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.group import GroupMember, GroupName, is_replica, rank_key, spare_key
from neuron_plugin.allocation.keys import DEVICE_NAME_KEY, GATE, MOVABLE_KEY, PLACEMENT_KEY
from neuron_plugin.allocation.node_rules import NO_LABELS, PlacedPod, PodLabels, PodRules
from neuron_plugin.allocation.placement import Assignment
from neuron_plugin.allocation.rejection import (
    INVALID_CONSTRAINT,
    NO_ASSIGNMENT,
    UNREADABLE_ASSIGNMENT,
    Rejection,
)
from neuron_plugin.allocation.requests import Amounts, ContainerKind, PodRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry, Unit

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
NO_RULES = PodRules()
_LONGEST_LABEL = 63
"""Characters of a label's value (apimachinery/pkg/util/validation)."""
_DIGEST = 8
"""Hexadecimal digits that distinguish long names with the same beginning."""


PodUid = NewType("PodUid", str)


@dataclass(frozen=True, slots=True)
class PodReference:
    """A pod's identity for messages and tables. Names are re-used, UIDs are not."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The cores that one container of a pod has under one resource name.

    ``mask`` are the cores that it was given. ``drawn_mask`` are the cores of the kubelet's recorded ids, if they
    differ. They differ if the container re-uses a part of a set of init containers: it gets a linked part, and the
    kubelet records a random one. ``amounts`` are the container's requested amounts, if its pod's request is known, and
    ``kind`` says when it needs them. ``claim`` is the name of the DRA claim that gives the cores to all containers that
    use it; the kubelet then counts them under no resource name.
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
        """The user of the cores in the pod: a container, or all containers that use a claim."""
        return claim_user(self.claim) if self.claim else self.container


def claim_user(claim: str) -> str:
    """The name of all containers that use this claim, as one user."""
    return f"claim {claim}"


class PlacementStrategy(enum.StrEnum):
    """Which of the fitting nodes a pod gets."""

    PACK = "pack"
    """The node where it costs later pods least."""
    SPREAD = "spread"
    """The node with the most free devices."""


@dataclass(frozen=True, slots=True)
class PodLife:
    """More facts about a pod that only the plugin of its node needs.

    ``started``: a container has started. ``ending``: deletion was requested, or an app container has ended for good.
    ``runs`` are the latest runs of its containers, ``privileged`` its privileged containers. ``assignment_keys`` are
    its annotations with ids, readable or not. ``refused_demands`` are the demands on the kubelet of containers whose
    request cannot be served. ``labelled_unhealthy``: it has ``UNHEALTHY_LABEL``.
    """

    started: bool = False
    ending: bool = False
    runs: tuple[ContainerRun, ...] = ()
    privileged: tuple[str, ...] = ()
    assignment_keys: tuple[str, ...] = ()
    refused_demands: frozenset[tuple[Resource, int]] = frozenset()
    labelled_unhealthy: bool = False


NO_LIFE = PodLife()


@dataclass(frozen=True, slots=True)
class NeuronPod:
    """The parts of a pod that decisions depend on: its request, node, assignment and scheduling rules.

    ``request`` is empty for a pod without Neuron, and a ``Rejection`` if it cannot be served. ``assignment`` is None if
    there is none or it is for another node, and a ``Rejection`` if its annotations cannot be used. ``static_uid`` is
    the kubelet's UID of a static pod; this object is then its mirror pod.

    ``promised`` is the node where a pod was placed that is not bound yet; empty for a pod that is being deleted.
    ``released``: the pod was released to its scheduler without a node, with some nodes excluded. ``unschedulable``: its
    scheduler finds no node; only set for a pod that we have placed or released.

    ``member`` is its membership in a group, ``ultraserver`` its place if the group has whole UltraServers.
    ``seen_by_scheduler``: some scheduler has reported on it. ``ready``: it is Ready. ``version`` is the object's
    resource version, while our gate holds the pod. ``labels`` are the pod's labels and namespace. ``strategy`` is read
    from its annotation, a ``Rejection`` if unknown. ``rules`` are for kube-scheduler's own plugins. ``preempts``: pods
    of lower priority may be evicted for this one.

    ``controller`` is the pod's controller as KIND/NAME; empty without one and for a static pod. ``movable`` says
    whether the pod may be evicted to make room, None if its namespace decides. ``created`` and ``last_checkpoint``, the
    time when it last saved its work, are in unix seconds, 0 if unknown. ``local_storage``: it has a volume that ends
    with the pod. ``rejection_message`` is the kubelet's message if it got no devices for the pod. ``claims`` are its
    DRA claims, of any driver. ``life`` is for the plugin of its node.
    """

    reference: PodReference
    request: PodRequest | Rejection
    node: str = ""
    promised: str = ""
    released: bool = False
    unschedulable: bool = False
    assignment: Assignment | Rejection | None = None
    priority: int = 0
    preempts: bool = True
    phase: str = ""
    terminating: bool = False
    running: bool = False
    ready: bool = False
    seen_by_scheduler: bool = False
    created: float = 0.0
    static_uid: str = ""
    member: GroupMember | None = None
    ultraserver: UltraServerPlace | None = None
    version: str = ""
    labels: PodLabels = NO_LABELS
    strategy: PlacementStrategy | Rejection | None = None
    controller: str = ""
    movable: bool | None = None
    last_checkpoint: float = 0.0
    local_storage: bool = False
    rejection_message: str = ""
    rules: PodRules = NO_RULES
    claims: tuple[PodClaim, ...] = ()
    life: PodLife = NO_LIFE

    @property
    def uid(self) -> PodUid:
        """The pod's key in every table."""
        return self.reference.uid

    @property
    def place(self) -> str:
        """The node that the pod is bound to or promised on; empty without one."""
        return self.node or self.promised

    @property
    def requests(self) -> PodRequest:
        """The request; empty if it cannot be served."""
        return () if isinstance(self.request, Rejection) else self.request

    @property
    def refusal(self) -> Rejection | None:
        """Why no node can serve the pod, whatever is free: request, constraint, group or strategy cannot be read."""
        constraints = self.requests[0].constraints if self.requests else None
        parts = self.request, constraints, self.strategy, self.member.unreadable if self.member else None
        return next((rejection for rejection in parts if isinstance(rejection, Rejection)), None)

    @property
    def group(self) -> GroupName | None:
        """The pod's group."""
        return self.member.group if self.member else None

    @property
    def owner(self) -> str:
        """The pod's controller, as NAMESPACE/KIND/NAME."""
        return f"{self.reference.namespace}/{self.controller}"

    @property
    def kept_keys(self) -> tuple[str, ...]:
        """The keys of the pod's reservations: its UID, its rank in its group, and its spare nodes."""
        if (member := self.member) is None:
            return (self.uid,)
        rank = () if member.rank is None else (rank_key(member.group, member.rank),)
        return (self.uid, *rank, *(spare_key(member.group, number) for number in range(1, member.spares + 1)))

    def on(self, node: str) -> PlacedPod:
        """The pod as placed on a node, where it is or would be."""
        rules = self.rules
        return PlacedPod(node, self.labels, self.node == node, self.terminating, rules.anti_affinity, rules.claims)

    @property
    def made_again(self) -> bool:
        """Whether its controller replaces the pod elsewhere; a DaemonSet replaces it only on the same node."""
        return bool(self.controller) and not self.controller.startswith("DaemonSet/")

    def strategy_or(self, default: PlacementStrategy) -> PlacementStrategy:
        """The pod's own strategy, or the default without a valid one."""
        return self.strategy if isinstance(self.strategy, PlacementStrategy) else default

    @property
    def work_since(self) -> float:
        """Since when an eviction loses the pod's work, in unix seconds: its assignment or last checkpoint."""
        assigned = self.assignment.alloc_time_ns / 1e9 if isinstance(self.assignment, Assignment) else 0.0
        return max(assigned, self.last_checkpoint)

    @property
    def kubelet_uid(self) -> PodUid:
        """The UID in the kubelet's checkpoint."""
        return PodUid(self.static_uid) if self.static_uid else self.reference.uid

    @property
    def ended(self) -> bool:
        """Whether the phase is terminal. All containers have stopped for good, unless PodGC has set the phase."""
        return self.phase in TERMINAL_PHASES

    @property
    def roams(self) -> bool:
        """Whether its scheduler may choose any node with a linked set for it."""
        return self.released and not (self.node or self.terminating or self.gated or self.unschedulable)

    @property
    def gated(self) -> bool:
        """Whether our gate holds the pod back."""
        return GATE in self.rules.gates


def in_rank_order(pods: Iterable[NeuronPod]) -> list[NeuronPod]:
    """The pods of a group by rank, then pods without a rank by name."""

    def key(pod: NeuronPod) -> tuple[bool, tuple[int, ...], str]:
        rank = pod.member.rank if pod.member else None
        return rank is None, rank or (), pod.reference.name

    return sorted(pods, key=key)


def current_members(pods: Iterable[NeuronPod]) -> list[NeuronPod]:
    """The pods of a group as it is now.

    A replica of a LeaderWorkerSet that was made again has the name of the last one. Some pods of that one may still be
    there; they were made before its leader.
    """
    members = [pod for pod in pods if not pod.terminating]
    leaders = [pod.created for pod in members if pod.member and is_replica(pod.member.group) and pod.member.leads]
    since = max(leaders, default=0.0)
    return [pod for pod in members if pod.created >= since]


def node_label(node: str) -> str:
    """A node's name as a label's value of at most 63 characters; a longer name is cut and ends with a digest."""
    if len(node) <= _LONGEST_LABEL:
        return node
    digest = hashlib.sha256(node.encode()).hexdigest()[:_DIGEST]
    return f"{node[: _LONGEST_LABEL - _DIGEST - 1].rstrip('.-')}-{digest}"


def unknown_products(named: frozenset[str], known: Collection[str]) -> Rejection | None:
    """The refusal of a pod whose annotation names unknown products: with a misspelt name it would wait for ever."""
    if not (unknown := named.difference(known)):
        return None
    names = f"{', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}"
    return replace(INVALID_CONSTRAINT, detail=f"annotation {DEVICE_NAME_KEY} has unknown names: {names}")


def placement_strategy(text: str) -> PlacementStrategy | Rejection | None:
    """Read the value of ``PLACEMENT_KEY``; None for an empty text."""
    if not (name := text.strip()):
        return None
    if name in set(PlacementStrategy):
        return PlacementStrategy(name)
    detail = f"annotation {PLACEMENT_KEY} is {text[:40]!r}, expected {' or '.join(PlacementStrategy)}"
    return replace(INVALID_CONSTRAINT, detail=detail)


def is_movable(annotations: Mapping[str, str]) -> bool | None:
    """Whether a pod, or a namespace for its pods, allows evictions that make room; None without the annotation."""
    text = annotations.get(MOVABLE_KEY)
    return None if text is None else text.strip().lower() == "true"


def assigned_allocations(pod: NeuronPod, geometry: Geometry) -> tuple[Allocation, ...] | Rejection:
    """The allocations of a pod's assignment on a node of this geometry; only this function decides that.

    A pod without an assignment, with one that cannot be read, or with ids that the node does not have is rejected:
    the extender then closes the node to new pods, the plugin serves the pod like one without an assignment.
    """
    if isinstance(pod.request, Rejection):
        return replace(UNREADABLE_ASSIGNMENT, detail=pod.request.detail)
    if isinstance(pod.assignment, Rejection):
        return pod.assignment
    if not pod.request:
        return ()
    if pod.assignment is None:
        return replace(NO_ASSIGNMENT, detail=f"pod {pod.reference} is bound and has no assignment yet")
    allocations = []
    for container in pod.assignment.containers:
        unit = container.request.resource.unit
        mask = geometry.mask_of(unit, container.ids)
        if mask.bit_count() != len(container.ids) * (geometry.cores_per_device if unit is Unit.DEVICE else 1):
            return replace(
                UNREADABLE_ASSIGNMENT,
                detail=f"pod {pod.reference} has {unit} ids {container.ids}, and its node is a "
                f"{geometry.instance_type} of {geometry.device_count} devices with {geometry.cores_per_device} "
                "cores each",
            )
        asked = container.request
        what = (pod.reference, asked.name, asked.resource, CoreMask(mask))
        allocations.append(Allocation(*what, amounts=asked.amounts, kind=asked.kind))
    return tuple(allocations)


@dataclass(frozen=True)
class Ledger:
    """All allocations of one node, derived and immutable. Cores without an allocation are free.

    Allocations of one pod may overlap, because later containers re-use the cores of plain init containers.
    """

    allocations: tuple[Allocation, ...] = ()

    @cached_property
    def used_mask(self) -> CoreMask:
        """Every core that a pod has."""
        return mask_union(self.allocations)

    @cached_property
    def by_pod(self) -> Mapping[PodUid, tuple[Allocation, ...]]:
        """The allocations of each pod, in their order in ``allocations``."""
        allocations: dict[PodUid, tuple[Allocation, ...]] = {}
        for allocation in self.allocations:
            allocations[allocation.pod.uid] = (*allocations.get(allocation.pod.uid, ()), allocation)
        return allocations

    def of(self, uid: PodUid) -> tuple[Allocation, ...]:
        """The allocations of one pod."""
        return self.by_pod.get(uid, ())

    def mask_of(self, uid: PodUid) -> CoreMask:
        """Every core that one pod has: a union, since its containers may share cores."""
        return mask_union(self.by_pod.get(uid, ()))

    def used_as(self, resource: Resource) -> CoreMask:
        """Every core that is in use under one resource name."""
        return mask_union(allocation for allocation in self.allocations if allocation.resource is resource)

    def overlapping(self, mask: int) -> tuple[Allocation, ...]:
        """The allocations that share a core with ``mask``."""
        return tuple(allocation for allocation in self.allocations if allocation.mask & mask)


class HasCores(Protocol):
    """An allocation, reservation or anything else with cores."""

    @property
    def mask(self) -> CoreMask:
        """The cores."""


def mask_union(parts: Iterable[HasCores]) -> CoreMask:
    """Every core of some allocations."""
    mask = 0
    for holding in parts:
        mask |= holding.mask
    return CoreMask(mask)
