"""A node with Neuron: its hardware, its allocations, and its free cores.

``NeuronNode`` has the facts of a Node object, which ``cluster`` decodes. ``NodeInfo`` is derived from it and from the
pods on the node. It is immutable, so a plan can change a copy and ask the same functions as the placement controller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from neuron_plugin.allocation.inventory import NodeInventory
from neuron_plugin.allocation.narrowing import NO_FACTS, ByDevice, DeviceFacts
from neuron_plugin.allocation.node_rules import NodeRules
from neuron_plugin.allocation.placement import Assignment, Placement, place, why_not_ever
from neuron_plugin.allocation.pod import (
    Allocation,
    Ledger,
    NeuronPod,
    PodReference,
    PodUid,
    assigned_allocations,
    mask_union,
)
from neuron_plugin.allocation.preflight import Preflight
from neuron_plugin.allocation.rejection import CORDONED, OVERLAPPING_ASSIGNMENTS, STALE_PLUGIN, Rejection
from neuron_plugin.allocation.requests import ContainerKind, PodRequest
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry

ANY_NODE = NodeRules()


@dataclass(frozen=True, slots=True)
class NeuronNode:
    """The relevant parts of a Node object: its hardware, or why that is unknown, and its scheduling rules.

    ``preflight`` is the result of its pre-flight check. ``boot_id`` is the machine's current boot. ``address`` is its
    first internal IP. ``created`` is the object's creation time in unix seconds, 0 if unknown.
    """

    name: str
    uid: str
    inventory: NodeInventory | Rejection
    facts: DeviceFacts = NO_FACTS
    rules: NodeRules = ANY_NODE
    preflight: Preflight | None = None
    boot_id: str = ""
    address: str = ""
    created: float = 0.0

    @property
    def cordoned(self) -> bool:
        """Whether the node is unschedulable: only pods that tolerate it are placed there."""
        return self.rules.cordoned

    @property
    def unhealthy(self) -> Mapping[int, str]:
        """The reasons of unhealthy devices, by id; empty if the hardware is unknown."""
        return {} if isinstance(self.inventory, Rejection) else self.inventory.unhealthy


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Capacity:
    """The state of an open node that a verdict depends on.

    A cluster of thousands of nodes has few distinct capacities. Each is one object (see ``capacity_of``), compared by
    identity, so that equal nodes share their verdicts for the price of a dictionary look-up.
    """

    geometry: Geometry
    healthy_mask: CoreMask
    free_mask: CoreMask
    facts: DeviceFacts = NO_FACTS

    def place(self, request: PodRequest) -> Placement | Rejection:
        """The best sets for a request, or why there are none."""
        placement = place(self.geometry, self.free_mask, request, self.facts)
        if not isinstance(placement, Rejection) or not placement.may_pass:
            return placement
        return why_not_ever(self.geometry, self.healthy_mask, request, self.facts) or placement


_capacities: WeakValueDictionary[tuple[Geometry, int, int, DeviceFacts], Capacity] = WeakValueDictionary()


def capacity_of(
    geometry: Geometry, healthy_mask: CoreMask, free_mask: CoreMask, facts: DeviceFacts = NO_FACTS
) -> Capacity:
    """The only ``Capacity`` with these values; it lives as long as a node or a cached verdict refers to it."""
    key = (geometry, healthy_mask, free_mask, facts)
    capacity = _capacities.get(key)
    if capacity is None:
        capacity = _capacities[key] = Capacity(*key)
    return capacity


@dataclass(frozen=True, slots=True)
class Reservation:
    """Cores of a node that are kept for one waiting pod, because others are moved away for it or its promise is void.

    It is no allocation: other pods may still have the cores. A spare node of a group is lent to movable pods with a
    lower priority than ``lent_below``. ``lent_below`` is None if the cores are kept for one pod or one rank.
    """

    pod: PodReference
    node: str
    mask: CoreMask
    lent_below: int | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node at one moment: its hardware, allocations and capacity.

    ``unclear`` are pods whose allocation is uncertain, with the reason. They close the node: a guess could hand the
    same cores out twice. ``capacity`` is a ``Rejection`` if the node takes no Neuron pod. ``void`` are pods whose
    promise cannot be kept: an older promise or a bound pod has the cores, or a device has become unhealthy. No other
    pod gets their cores until the promise is removed. ``unchecked`` is why the pre-flight check closes the node.
    """

    node: NeuronNode
    ledger: Ledger
    unclear: tuple[tuple[PodReference, Rejection], ...]
    stale: bool
    capacity: Capacity | Rejection
    reservations: tuple[Reservation, ...] = ()
    void: tuple[PodReference, ...] = ()
    unchecked: Rejection | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def inventory(self) -> NodeInventory | None:
        """The node's hardware; None where it is not known."""
        return None if isinstance(self.node.inventory, Rejection) else self.node.inventory

    @property
    def closed(self) -> Rejection | None:
        """Why the node takes no new Neuron pod; None for an open node. A cordoned node counts as closed."""
        if isinstance(self.capacity, Rejection):
            return self.capacity
        return CORDONED if self.node.cordoned else None

    @property
    def details(self) -> tuple[str, ...]:
        """Why the node is closed, in detail: pods, annotations, values; empty if ``closed`` says it all."""
        unchecked = (self.unchecked,) if self.unchecked else ()
        reasons = (*(reason for _, reason in self.unclear), *unchecked)
        return tuple(reason.detail for reason in reasons if reason.detail)

    @property
    def used_mask(self) -> CoreMask:
        """Every core that a pod has or is assumed to have."""
        return self.ledger.used_mask

    @property
    def reserved_mask(self) -> CoreMask:
        """Every core that is kept for a waiting pod, free or not."""
        return mask_union(self.reservations)

    @property
    def free_mask(self) -> CoreMask:
        """Healthy cores that no pod has and none is kept."""
        taken_mask = self.used_mask | self.reserved_mask
        return CoreMask(self.inventory.healthy_mask & ~taken_mask) if self.inventory else NO_CORES

    def with_pod(self, pod: PodReference, placement: Placement) -> NodeInfo:
        """The node as it would be with one more pod."""
        more = tuple(
            Allocation(
                pod,
                container.request.name,
                container.request.resource,
                container.mask,
                amounts=container.request.amounts,
                kind=container.request.kind,
            )
            for container in placement
        )
        return _node_info(
            self.node,
            (*self.ledger.allocations, *more),
            self.unclear,
            stale=self.stale,
            reservations=self.reservations,
            unchecked=self.unchecked,
        )

    def without(self, uids: Collection[PodUid]) -> NodeInfo:
        """The node as it would be without these pods and their reservations."""
        return _node_info(
            self.node,
            tuple(allocation for allocation in self.ledger.allocations if allocation.pod.uid not in uids),
            tuple((pod, reason) for pod, reason in self.unclear if pod.uid not in uids),
            stale=self.stale,
            reservations=tuple(kept for kept in self.reservations if kept.pod.uid not in uids),
            unchecked=self.unchecked,
        )


def node_info(
    node: NeuronNode,
    pods: Iterable[NeuronPod],
    *,
    stale: bool = False,
    reservations: tuple[Reservation, ...] = (),
    promised: Iterable[NeuronPod] = (),
    unchecked: Rejection | None = None,
) -> NodeInfo:
    """The state of a node with these pods; ``stale``: its plugin has stopped renewing its Lease.

    ``unchecked`` is why the pre-flight check closes the node. ``promised`` are pods that were placed on the node and
    are not bound. Of two overlapping promises the younger is void.
    """
    inventory = node.inventory
    if isinstance(inventory, Rejection):
        return NodeInfo(node, Ledger(), (), stale, inventory, reservations)
    allocations: list[Allocation] = []
    unclear: list[tuple[PodReference, Rejection]] = []
    for pod in pods:
        assigned = _all_of_node(pod, inventory) or assigned_allocations(pod, inventory.geometry)
        if isinstance(assigned, Rejection):
            unclear.append((pod.reference, assigned))
        else:
            allocations += assigned
    used_mask, void = int(mask_union(allocations)), list[PodReference]()
    for pod in sorted(promised, key=_promise_age):
        assigned = assigned_allocations(pod, inventory.geometry)
        if isinstance(assigned, Rejection) or (mask := mask_union(assigned)) & (used_mask | ~inventory.healthy_mask):
            void.append(pod.reference)
            if not isinstance(assigned, Rejection):  # it may be bound there until its promise is removed
                reservations = (*reservations, Reservation(pod.reference, node.name, mask))
        else:
            used_mask |= mask
            allocations += assigned
    info = _node_info(
        node, tuple(allocations), tuple(unclear), stale=stale, reservations=reservations, unchecked=unchecked
    )
    return replace(info, void=tuple(void)) if void else info


def _all_of_node(pod: NeuronPod, inventory: NodeInventory) -> tuple[Allocation, ...]:
    """The allocation of a pod without an assignment whose only container asks for all devices or cores of its node."""
    if pod.assignment is not None or isinstance(pod.request, Rejection) or len(pod.request) != 1:
        return ()
    (asked,) = pod.request
    mask = inventory.geometry.devices_mask(inventory.present)
    if len(inventory.geometry.ids_of(asked.resource.unit, mask)) != asked.count:
        return ()
    return (Allocation(pod.reference, asked.name, asked.resource, mask, amounts=asked.amounts, kind=asked.kind),)


def _promise_age(pod: NeuronPod) -> tuple[int, str]:
    return pod.assignment.alloc_time_ns if isinstance(pod.assignment, Assignment) else 0, pod.uid


def _node_info(
    node: NeuronNode,
    allocations: tuple[Allocation, ...],
    unclear: tuple[tuple[PodReference, Rejection], ...],
    *,
    stale: bool,
    reservations: tuple[Reservation, ...],
    unchecked: Rejection | None,
) -> NodeInfo:
    inventory, ledger = node.inventory, Ledger(allocations)
    if isinstance(inventory, Rejection):
        return NodeInfo(node, ledger, unclear, stale, inventory, reservations)
    unclear = tuple(entry for entry in unclear if entry[1] != OVERLAPPING_ASSIGNMENTS)
    held = sum(allocation.mask.bit_count() for allocation in allocations)
    if held > ledger.used_mask.bit_count():  # some containers share cores
        unclear = (*unclear, *_overlaps(ledger))
    reasons = [reason for _, reason in unclear] + [STALE_PLUGIN] * stale + ([unchecked] if unchecked else [])
    if reasons:
        reason = min(reasons, key=lambda reason: reason.may_pass)
        return NodeInfo(node, ledger, unclear, stale, reason, reservations, unchecked=unchecked)
    taken_mask = ledger.used_mask | mask_union(reservations)
    free_mask, facts = CoreMask(inventory.healthy_mask & ~taken_mask), node.facts
    if any(allocation.amounts for allocation in allocations):
        facts = replace(facts, used=amounts_used(inventory.geometry, ledger.by_pod.values()))
    capacity = capacity_of(inventory.geometry, inventory.healthy_mask, free_mask, facts)
    return NodeInfo(node, ledger, (), stale, capacity, reservations)


def _overlaps(ledger: Ledger) -> list[tuple[PodReference, Rejection]]:
    """Pods that have cores of an earlier pod.

    Pods overlap for a moment when the plugin corrects two pods that the kubelet admitted in the other order. Between
    the two patches one pod's old cores look free and are not.
    """
    overlapping, seen = [], 0
    for uid, (first, *_) in ledger.by_pod.items():
        mask = ledger.mask_of(uid)
        if mask & seen:
            others = dict.fromkeys(
                str(allocation.pod) for allocation in ledger.overlapping(mask) if allocation.pod.uid != uid
            )
            detail = f"pod {first.pod} is assigned cores that are assigned to {', '.join(others)} as well"
            overlapping.append((first.pod, replace(OVERLAPPING_ASSIGNMENTS, detail=detail)))
        seen |= mask
    return overlapping


def amounts_used(geometry: Geometry, pods: Iterable[Iterable[Allocation]]) -> ByDevice:
    """How much of each amount pods have on each device; ``pods`` has the allocations of each pod in container order.

    Plain init containers run one after another, so a pod counts with the most that it needs at one time.
    """
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0] * geometry.device_count)
    for allocations in pods:
        lasting: defaultdict[tuple[str, int], int] = defaultdict(int)
        peak: defaultdict[tuple[str, int], int] = defaultdict(int)
        for allocation in allocations:
            devices = geometry.devices_touched(allocation.mask) if allocation.amounts else ()
            for name, amount in allocation.amounts:
                per_device = -(-amount // max(len(devices), 1))
                for device in devices:
                    key = name, device
                    peak[key] = max(peak[key], lasting[key] + per_device)
                    if allocation.kind is not ContainerKind.INIT:
                        lasting[key] += per_device
        for (name, number), amount in peak.items():
            totals[name][number] += amount
    return tuple((name, tuple(totals[name])) for name in sorted(totals))
