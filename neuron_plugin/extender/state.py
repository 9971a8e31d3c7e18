"""The cluster as the verbs see it: nodes, Neuron pods, and pods assumed to be where filter or a bind put them.

One event loop owns it and every method is synchronous, so "choose and assume" is one step without a lock, and a slow
API server delays no verb. Pods are the only store: a node's ``NodeInfo`` follows from the pods bound there and from
assumed pods that the watch has not shown yet. Nothing is added to or subtracted from it, so nothing can leak, go
negative or go stale; a pod's cores are free when its UID is forgotten.

Every change has a version. What is derived from the state elsewhere (remembered verdicts, watches of the monitor API)
is brought up to date by asking for the changes since the version it knows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from types import MappingProxyType
from weakref import WeakValueDictionary

from neuron_plugin.allocation import (
    NO_ASSIGNMENT,
    NO_FACTS,
    UNREADABLE_ASSIGNMENT,
    Allocation,
    Assignment,
    DeviceFacts,
    Ledger,
    NeuronPod,
    NodeInventory,
    Placement,
    PodReference,
    PodRequest,
    PodUid,
    Rejection,
    amounts_used,
    assigned_allocations,
    mask_union,
    place_healthy,
)
from neuron_plugin.extender.neuron_node import (
    NO_INVENTORY,
    NO_NEURON,
    UNKNOWN_HEALTH,
    UNREADABLE_INVENTORY,
    NeuronNode,
)
from neuron_plugin.extender.timeline import Timeline
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry

# Why a node takes no Neuron pod, whatever the pod asks for. The rules for texts are those of ``Rejection``: no names,
# because kube-scheduler prints a count per distinct text. Log, event and /inspect say which pod or value it is.
UNKNOWN_NODE = Rejection("unknown-node", "The node is not known to the Neuron extender yet")
STALE_PLUGIN = Rejection("stale-plugin", "The node's Neuron plugin does not renew its lease")
OVERLAPPING_ASSIGNMENTS = Rejection(
    "overlapping-assignments", "Two pods on the node are assigned the same Neuron devices", may_pass=True
)
BOUND_ELSEWHERE = Rejection(
    "bound-elsewhere", "The pod is bound to another node or a bind to one is not decided yet", may_pass=True
)

NODE_REFUSALS = (
    UNKNOWN_NODE,
    NO_NEURON,
    NO_INVENTORY,
    UNREADABLE_INVENTORY,
    UNKNOWN_HEALTH,
    STALE_PLUGIN,
    UNREADABLE_ASSIGNMENT,
    NO_ASSIGNMENT,
    OVERLAPPING_ASSIGNMENTS,
    BOUND_ELSEWHERE,
)
"""Every reason that is not about what the pod asks for."""

MOST_CHANGES = 4_096
"""Changes remembered: a minute of a busy cluster. One keeps two records alive, some kilobytes on a full node."""

MOST_REJECTIONS = 256
"""Rejected admissions remembered until they are reported."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Capacity:
    """What an open node can give: all that a verdict depends on.

    A cluster of thousands of nodes has few distinct capacities. Each is one object (see ``capacity_of``), compared by
    identity, so that equal nodes share their verdicts for the price of a dictionary look-up.
    """

    geometry: Geometry
    healthy_mask: CoreMask
    free_mask: CoreMask
    facts: DeviceFacts = NO_FACTS

    def place(self, request: PodRequest) -> Placement | Rejection:
        """The best sets for a request, or why there are none."""
        return place_healthy(self.geometry, self.healthy_mask, self.free_mask, request, self.facts)


_capacities: WeakValueDictionary[tuple[Geometry, int, int, DeviceFacts], Capacity] = WeakValueDictionary()


def capacity_of(
    geometry: Geometry, healthy_mask: CoreMask, free_mask: CoreMask, facts: DeviceFacts = NO_FACTS
) -> Capacity:
    """The one ``Capacity`` of these values; it lives as long as a node or a remembered verdict refers to it."""
    key = (geometry, healthy_mask, free_mask, facts)
    capacity = _capacities.get(key)
    if capacity is None:
        capacity = _capacities[key] = Capacity(*key)
    return capacity


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """A pod as its bind makes it, until the watch shows it or the bind is known to have failed.

    ``pod`` has the node and the assignment of the bind, which ``annotations`` carry. ``since`` is the monotonic time of
    the choice, then that of the last write that may still take effect; ``confirmed`` says that the API server has the
    binding. ``chosen_from`` is the node's capacity at the choice; None where nothing had to be chosen. ``until`` is the
    time at which a choice of filter ends for which no bind has come; nothing was written for it.
    """

    pod: NeuronPod
    annotations: Mapping[str, str]
    since: float
    confirmed: bool = False
    chosen_from: Capacity | None = None
    until: float = inf

    @property
    def expected(self) -> bool:
        """Whether the bind has not come yet."""
        return self.until < inf


@dataclass(frozen=True, slots=True)
class Reservation:
    """Cores of a node that are kept for one waiting pod, because others are moved away for it.

    It is no allocation: those others may still have the cores, and nothing is written on the pod.
    """

    pod: PodReference
    node: str
    mask: CoreMask


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node at one moment: its hardware, who has what, and what it can give.

    ``unclear`` are pods whose allocation is not known for certain, with the reason. A node with one is closed: to guess
    would hand the same cores out twice. ``capacity`` is the reason where a node takes no Neuron pod at all.
    """

    node: NeuronNode
    ledger: Ledger
    unclear: tuple[tuple[PodReference, Rejection], ...]
    stale: bool
    capacity: Capacity | Rejection
    reservations: tuple[Reservation, ...] = ()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def inventory(self) -> NodeInventory | None:
        """The node's hardware; None where it is not known."""
        return None if isinstance(self.node.inventory, Rejection) else self.node.inventory

    @property
    def used_mask(self) -> CoreMask:
        """Every core that a pod has or is assumed to have."""
        return self.ledger.used_mask

    @property
    def reserved_mask(self) -> CoreMask:
        """Every core that is kept for a waiting pod, whether it is free yet or not."""
        return mask_union(self.reservations)

    @property
    def free_mask(self) -> CoreMask:
        """Healthy cores that no pod has and that are kept for none."""
        taken_mask = self.used_mask | self.reserved_mask
        return CoreMask(self.inventory.healthy_mask & ~taken_mask) if self.inventory else NO_CORES


def node_info(
    node: NeuronNode,
    pods: Iterable[NeuronPod],
    *,
    stale: bool = False,
    reservations: tuple[Reservation, ...] = (),
) -> NodeInfo:
    """The state of a node that has these pods; ``stale`` says that its plugin has stopped renewing its Lease."""
    inventory = node.inventory
    if isinstance(inventory, Rejection):
        return NodeInfo(node, Ledger(), (), stale, inventory, reservations)
    allocations: list[Allocation] = []
    unclear: list[tuple[PodReference, Rejection]] = []
    for pod in pods:
        assigned = assigned_allocations(pod, inventory.geometry)
        if isinstance(assigned, Rejection):
            unclear.append((pod.reference, assigned))
        else:
            allocations += assigned
    ledger, healthy_mask = Ledger(tuple(allocations)), inventory.healthy_mask
    unclear += _overlaps(ledger)
    reasons = [reason for _, reason in unclear] + [STALE_PLUGIN] * stale
    if reasons:
        reason = min(reasons, key=lambda reason: reason.may_pass)
        return NodeInfo(node, ledger, tuple(unclear), stale, reason, reservations)
    taken_mask = ledger.used_mask | mask_union(reservations)
    free_mask, facts = CoreMask(healthy_mask & ~taken_mask), node.facts
    if any(one.amounts for one in allocations):
        facts = replace(facts, used=amounts_used(inventory.geometry, ledger.by_pod.values()))
    capacity = capacity_of(inventory.geometry, healthy_mask, free_mask, facts)
    return NodeInfo(node, ledger, (), stale, capacity, reservations)


def has_the_same(one: NeuronPod, other: NeuronPod) -> bool:
    """Whether two states of a pod have the same cores of the same node, as far as is known."""
    assignments = one.assignment, other.assignment
    if not all(isinstance(assignment, Assignment) for assignment in assignments):
        return False
    first, second = (each.containers for each in assignments if isinstance(each, Assignment))
    return one.node == other.node and first == second


def _overlaps(ledger: Ledger) -> list[tuple[PodReference, Rejection]]:
    """Pods that have what an earlier one has.

    It happens for a moment when the plugin corrects two pods that the kubelet admitted in the other order: between its
    two patches one pod's old cores look free and are not.
    """
    if sum(one.mask.bit_count() for one in ledger.allocations) == ledger.used_mask.bit_count():
        return []  # nothing is shared at all, not even by containers of one pod: nearly always
    found, seen = [], 0
    for uid, (first, *_) in ledger.by_pod.items():
        mask = ledger.mask_of(uid)
        if mask & seen:
            others = dict.fromkeys(str(one.pod) for one in ledger.overlapping(mask) if one.pod.uid != uid)
            detail = f"pod {first.pod} is assigned cores that are assigned to {', '.join(others)} as well"
            found.append((first.pod, replace(OVERLAPPING_ASSIGNMENTS, detail=detail)))
        seen |= mask
    return found


Record = NodeInfo | NeuronPod


@dataclass(frozen=True, slots=True)
class Change:
    """One node or pod before and after; None where it was not or is not there."""

    version: int
    before: Record | None
    after: Record | None


class Changes:
    """The latest changes of a state, numbered. ``start`` is the version before the first of them.

    Readers go through them at their own speed, and nothing is sent to them: a slow reader delays no other, and it finds
    out when the change that it needs next is no longer here.
    """

    def __init__(self, start: int) -> None:
        self.version = start
        """The version of the last change."""
        self._start = start
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._versions: dict[str, int] = {}
        self._news = asyncio.Event()

    def version_of(self, key: str) -> int:
        """The version of the last change of one object: a node's name or a pod's UID."""
        return self._versions.get(key, self._start)

    def knows(self, version: int) -> bool:
        """Whether every change after ``version`` is still here; never for a version of another process."""
        oldest = self._changes[0].version - 1 if self._changes else self.version
        return oldest <= version <= self.version

    def after(self, version: int) -> list[Change]:
        """The changes after a version that is still known, oldest first."""
        return list(islice(reversed(self._changes), self.version - version))[::-1]

    async def wait(self, version: int, *, within_seconds: float) -> None:
        """Wait until there is a change after ``version``, or ``wake`` is called, at most so long."""
        if self.version > version:
            return
        try:
            async with asyncio.timeout(within_seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """End every ``wait``."""
        self._news.set()
        self._news = asyncio.Event()

    def add(self, key: str, before: Record | None, after: Record | None) -> None:
        """Remember one more change."""
        self.version += 1
        self._changes.append(Change(self.version, before, after))
        if after is None:
            self._versions.pop(key, None)
        else:
            self._versions[key] = self.version
        self.wake()


class _Capacities(dict[str, Capacity | Rejection]):
    """By node name; a look-up of an unknown name gives a reason and never fails."""

    def __missing__(self, name: str) -> Rejection:
        return UNKNOWN_NODE


class ClusterState:
    """Everything that the verbs look at.

    ``nodes`` by name, live ``pods`` that ask for Neuron as the watch shows them, and pods that filter or binds have
    ``assumed`` and the watch has not shown yet; ``capacities`` by node name, where a subscript with an unknown name
    gives ``UNKNOWN_NODE``. ``reserved`` are cores kept for unbound pods. ``members`` are the live pods of each
    PodGroup; ``min_counts`` how many of them must be placed for any to be. ``rejections`` are pods that their kubelets
    got no devices for, and ``without_victims`` those for which no eviction opens a set, until they are reported.
    ``version`` is the one before the first of ``changes``.

    ``on_trial`` has nodes whose plugin was away lately, and until when they take their pods one by one, by the clock
    of the watches.

    ``movable_namespaces`` are those whose pods may be evicted to make room, where a pod does not say otherwise, and
    ``moves`` says of waiting pods which move of others would give them room, as of the planner's last look.

    ``renewals`` has by node name when its plugin last renewed its Lease, as the Lease says. It is for people. A renewal
    is no change of the state: on a large cluster thousands a second would leave no room for others in ``changes``.
    ``timeline`` is for people, too: it has who was evicted to make room, and since when devices are unhealthy.
    """

    def __init__(self, version: int = 0) -> None:
        self.changes = Changes(version)
        self._nodes: dict[str, NodeInfo] = {}
        self._capacities = _Capacities()
        self._pods: dict[PodUid, NeuronPod] = {}
        self._assumed: dict[PodUid, AssumedPod] = {}
        self._reserved: dict[PodUid, Reservation] = {}
        self._by_node: defaultdict[str, dict[PodUid, None]] = defaultdict(dict)
        self._stale: frozenset[str] = frozenset()
        self.min_counts: dict[tuple[str, str], int] = {}
        self.members: defaultdict[tuple[str, str], dict[PodUid, NeuronPod]] = defaultdict(dict)
        self.rejections: deque[NeuronPod] = deque(maxlen=MOST_REJECTIONS)
        self.without_victims: deque[PodReference] = deque(maxlen=MOST_REJECTIONS)
        self.on_trial: dict[str, float] = {}
        self.movable_namespaces: frozenset[str] = frozenset()
        self.moves: Mapping[PodUid, str] = {}
        self.renewals: dict[str, str] = {}
        self.timeline = Timeline()
        self.nodes: Mapping[str, NodeInfo] = MappingProxyType(self._nodes)
        self.capacities: Mapping[str, Capacity | Rejection] = self._capacities
        self.pods: Mapping[PodUid, NeuronPod] = MappingProxyType(self._pods)
        self.assumed: Mapping[PodUid, AssumedPod] = MappingProxyType(self._assumed)
        self.reserved: Mapping[PodUid, Reservation] = MappingProxyType(self._reserved)

    def put_node(self, node: NeuronNode) -> None:
        """A node was added or changed."""
        known = self._nodes.get(node.name)
        if known is None or known.node != node:
            self.timeline.unhealthy(node.name, (known.node if known else node).unhealthy, node.unhealthy)
            self._rebuild(node)

    def remove_node(self, name: str, uid: str) -> None:
        """A node is gone, unless another one has its name by now; its pods are remembered until they go, too."""
        before = self._nodes.get(name)
        if before is not None and before.node.uid == uid:
            del self._nodes[name], self._capacities[name]
            self.on_trial.pop(name, None)
            self.timeline.unhealthy(name, (), ())
            self.changes.add(name, before, None)

    def put_pod(self, pod: NeuronPod) -> None:
        """A live pod that asks for Neuron was added or changed.

        What the watch shows replaces what was assumed, once it shows where the pod is and what it was assigned.
        """
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        if pod.terminating:
            self.timeline.ended(pod.reference, pod.node)
        touched, counted = self._nodes_of(pod.uid), self._counted(pod.uid)
        self._pods[pod.uid] = pod
        if pod.group:
            self.members[pod.group][pod.uid] = pod
        assumed = self._assumed.get(pod.uid)
        if assumed and pod.node and (assumed.expected or pod.assignment is not None or pod.node != assumed.pod.node):
            del self._assumed[pod.uid]
        if counted is None or not has_the_same(counted, pod) or touched != self._nodes_of(pod.uid):
            self._moved(pod.uid, touched)
        if pod.node:
            self.release(pod.uid)
        self.changes.add(pod.uid, before, pod)

    def remove_pod(self, uid: PodUid) -> None:
        """A pod is gone or terminal: whatever it had or was to get is free."""
        touched = self._nodes_of(uid)
        before = self._pods.pop(uid, None)
        self._assumed.pop(uid, None)
        if before and before.group:
            del self.members[before.group][uid]
            if not self.members[before.group]:
                del self.members[before.group]
        self._moved(uid, touched)
        self.release(uid)
        if before is not None:
            self.timeline.ended(before.reference, before.node)
            self.changes.add(uid, before, None)

    def assume(self, assumed: AssumedPod) -> None:
        """Count a pod as placed, or replace what is assumed of the same pod."""
        touched, before = self._nodes_of(assumed.pod.uid), self._assumed.get(assumed.pod.uid)
        self._assumed[assumed.pod.uid] = assumed
        if before is None or before.pod is not assumed.pod:
            self._moved(assumed.pod.uid, touched)

    def confirm(self, uid: PodUid) -> None:
        """The API server has this pod's binding. Nothing happens if the pod has ended meanwhile."""
        if assumed := self._assumed.get(uid):
            self._assumed[uid] = replace(assumed, confirmed=True)

    def forget(self, uid: PodUid) -> None:
        """This pod's bind is known to have failed, or will not come. A second time changes nothing."""
        if uid in self._assumed:
            touched = self._nodes_of(uid)
            del self._assumed[uid]
            self._moved(uid, touched)

    def reserve(self, reservation: Reservation) -> None:
        """Keep cores for a pod that is not bound yet, in place of what was kept for it before."""
        self.release(reservation.pod.uid)
        self._reserved[reservation.pod.uid] = reservation
        self._rebuild_if_known(reservation.node)

    def release(self, uid: PodUid) -> None:
        """Keep nothing for this pod any more."""
        if reservation := self._reserved.pop(uid, None):
            self._rebuild_if_known(reservation.node)

    def set_min_count(self, group: tuple[str, str], count: int) -> None:
        """So many pods of a PodGroup must be placed for any to be; 0 if any number may be, or the group is gone."""
        self.min_counts.pop(group, None)
        if count:
            self.min_counts[group] = count

    def set_stale(self, names: frozenset[str]) -> None:
        """The nodes whose plugin has stopped renewing its Lease."""
        changed, self._stale = self._stale ^ names, names
        for name in changed & self._nodes.keys():
            self._rebuild(self._nodes[name].node)

    def imagine(self, node: NeuronNode, *, without: str = "", beside: Iterable[NeuronPod] = ()) -> NodeInfo:
        """A node as it is, or would be without one pod and what is kept for it, or with others beside them.

        An assumed pod counts by what was assumed, not by what the watch shows of it.
        """
        pods, name = [], node.name
        for uid in self._by_node.get(name, ()):
            assumed = self._assumed.get(uid)
            if uid != without:
                pods.append(assumed.pod if assumed and assumed.pod.node == name else self._pods[uid])
        kept = tuple(each for uid, each in self._reserved.items() if each.node == name and uid != without)
        return node_info(node, (*pods, *beside), stale=name in self._stale, reservations=kept)

    def admitting(self, node: str) -> list[NeuronPod]:
        """The pods that are bound to a node or being bound, and whose devices its kubelet has not confirmed."""
        found = []
        for uid in self._by_node.get(node, ()):
            assumed, pod = self._assumed.get(uid), self._counted(uid)
            is_bound = pod is not None and pod.node == node and not (assumed and assumed.expected)
            if pod and is_bound and isinstance(pod.assignment, Assignment) and not pod.assignment.allocated:
                found.append(pod)
        return found

    def _counted(self, uid: PodUid) -> NeuronPod | None:
        """The pod as its node counts it."""
        assumed = self._assumed.get(uid)
        return assumed.pod if assumed else self._pods.get(uid)

    def bound_to(self, uid: PodUid) -> str:
        """The node that a pod is bound to or being bound to; empty when it is free to go anywhere."""
        pod, assumed = self._pods.get(uid), self._assumed.get(uid)
        return (pod.node if pod else "") or (assumed.pod.node if assumed and not assumed.expected else "")

    def _nodes_of(self, uid: PodUid) -> set[str]:
        pod, assumed = self._pods.get(uid), self._assumed.get(uid)
        return {name for name in (pod.node if pod else "", assumed.pod.node if assumed else "") if name}

    def _moved(self, uid: PodUid, before: set[str]) -> None:
        """A pod was on the nodes ``before`` and may be on others now."""
        after = self._nodes_of(uid)
        for name in before - after:
            del self._by_node[name][uid]
            if not self._by_node[name]:
                del self._by_node[name]
        for name in after - before:
            self._by_node[name][uid] = None
        for name in before | after:
            self._rebuild_if_known(name)

    def _rebuild_if_known(self, name: str) -> None:
        if known := self._nodes.get(name):
            self._rebuild(known.node)

    def _rebuild(self, node: NeuronNode) -> None:
        """Derive a node's state again."""
        name, before = node.name, self._nodes.get(node.name)
        after = self.imagine(node)
        self._nodes[name], self._capacities[name] = after, after.capacity
        if after != before:
            self.changes.add(name, before, after)
