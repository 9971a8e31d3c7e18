"""The cluster's state for both doors: nodes, Neuron pods, and pods that are assumed at their chosen places.

One event loop owns it and every method is synchronous, so "choose and assume" is one step without a lock, and a slow
API server delays no decision. Pods are the only store: a node's ``NodeInfo`` follows from the pods bound there and from
assumed pods that the watch has not shown yet. It is never added to or subtracted from, so it cannot leak, go negative
or go stale. A pod's cores are free when its UID is forgotten.

Every change has a version. Followers of the state, such as watches of the monitor API, ask for the changes since the
version that they know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from neuron_plugin.allocation import (
    Assignment,
    Capacity,
    Dialect,
    NeuronNode,
    NeuronPod,
    NodeInfo,
    PlacementStrategy,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.claims import ClaimResult
from neuron_plugin.allocation.group import GroupName, TopologyWish
from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.allocation.node import Reservation, node_info
from neuron_plugin.allocation.node_rules import NO_USE, NodeUse, node_use
from neuron_plugin.allocation.pod import claim_user, current_members
from neuron_plugin.allocation.preflight import CheckScope, preflight_seen
from neuron_plugin.allocation.utilization import ContainerUtilization, Utilization
from neuron_plugin.cluster.pods import FinishedMember, PodUse
from neuron_plugin.placement.changes import Changes
from neuron_plugin.placement.history import History
from neuron_plugin.planning import Choices, Cluster, Scene
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.planning.population import Population
from neuron_plugin.planning.scene import GroupStanding
from neuron_plugin.planning.volumes import Storage


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """A pod as its bind makes it, until the watch shows it or the bind is known to have failed.

    ``pod`` has the node and the assignment of the bind, and ``dialects`` are those that the bind has to write: none if
    the pod has the assignment already. ``since`` is the monotonic time of the choice, then of the last write that may
    still take effect; ``confirmed``: the API server has the binding. ``chosen_from`` is the node's capacity at the
    choice; None if there was no choice. An unwritten choice ends at ``until``: no bind has come for it, or the pod
    waits for its turn on the node. ``claims`` are the devices for each of the pod's claims, by the claim's name.
    """

    pod: NeuronPod
    dialects: Collection[Dialect]
    since: float
    confirmed: bool = False
    chosen_from: Capacity | None = None
    until: float = inf
    claims: tuple[tuple[str, tuple[ClaimResult, ...]], ...] = ()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations that the bind writes."""
        assignment = self.pod.assignment if self.dialects else None
        return write_assignment(assignment, self.dialects) if isinstance(assignment, Assignment) else {}

    @property
    def expected(self) -> bool:
        """Whether no write has begun yet."""
        return self.until < inf


def has_the_same(pod: NeuronPod, other: NeuronPod) -> bool:
    """Whether two states of a pod use the same node alike, as far as is known: its cores and other resources."""
    assignments = pod.assignment, other.assignment
    if not all(isinstance(assignment, Assignment) for assignment in assignments):
        return False
    first, second = (assignment.containers for assignment in assignments if isinstance(assignment, Assignment))
    ours, theirs = pod.rules, other.rules
    asks_the_same = (ours.needs, ours.neuron, ours.ports) == (theirs.needs, theirs.neuron, theirs.ports)
    return pod.place == other.place and first == second and asks_the_same


def _size_said(pod: NeuronPod) -> int:
    """The size of a pod's group by the pod's own labels, as long as we place it; 0 if it does not say."""
    return pod.member.size if pod.member and (pod.gated or pod.promised) else 0


def in_line(pod: NeuronPod) -> tuple[int, float, str, str]:
    """The sort key of waiting pods: high priority first, then the oldest."""
    return -pod.priority, pod.created, pod.reference.namespace, pod.reference.name


class _Uses(dict[str, NodeUse]):
    """The requests of each node's pods besides Neuron, summed up when first asked for."""

    def __init__(self, use_of: Callable[[str], NodeUse]) -> None:
        super().__init__()
        self._use_of = use_of

    def __missing__(self, name: str) -> NodeUse:
        use = self[name] = self._use_of(name)
        return use


class ClusterState:
    """All facts that decisions depend on.

    ``nodes`` by name, live ``pods`` that ask for Neuron as the watch shows them, and pods that filter or binds have
    ``assumed`` and the watch has not shown yet. ``departed`` are pods that were deleted while they ran: their nodes
    have not reported yet that no process of them uses devices. ``reserved`` are cores kept for unbound pods, by the
    pod's UID or its rank in its group. ``uses`` has the requests of all pods of a node, and ``population`` all placed
    pods by their labels. ``min_counts`` and ``wishes`` are from PodGroups.

    ``gated`` are the pods without a place that our gate holds back. ``roaming`` were handed to their schedulers without
    a node. ``capacity_version`` counts the changes of any node's capacity, of hardware and all else, and of groups'
    needs.

    ``leased`` has the nodes whose plugin has written a Lease. Pods in ``movable_namespaces`` may be moved unless they
    say otherwise. ``utilization`` has by node how much containers use their cores, by its plugin: idle pods are moved
    first. ``history`` is for people, and decides nothing. ``choices`` are the answers to each demand as of now.
    """

    def __init__(
        self,
        version: int = 0,
        products: frozenset[str] = frozenset(),
        *,
        strategy: PlacementStrategy = PlacementStrategy.PACK,
        preferences: PreferenceOrder = PreferenceOrder.FIRST,
        levels: Collection[str] = (),
    ) -> None:
        """``version`` is the one before the first of ``changes``, ``products`` the names of the catalogue.

        ``strategy`` is the default of pods, ``preferences`` says when a pod's preferences count, and ``levels`` are the
        network's levels, if configured.
        """
        self.changes = Changes(version)
        self._products = products
        self._strategy = strategy
        self._preferences = preferences
        self.history = History()
        self.utilization: dict[str, Utilization] = {}
        self.min_counts: dict[GroupName, int] = {}
        self.wishes: dict[GroupName, TopologyWish] = {}
        self.templates: dict[GroupName, NeuronPod | None] = {}
        """By group, the requests of the pods that are made once its leader is placed; None if unknown."""
        self._sizes: dict[GroupName, int] = {}
        self._leasts: dict[GroupName, int] = {}
        """The sizes, less the pods that have succeeded."""
        self._finished: defaultdict[GroupName, dict[str, str]] = defaultdict(dict)
        """By group, the pods that have succeeded, each with its controller."""
        self._members: defaultdict[GroupName, dict[PodUid, NeuronPod]] = defaultdict(dict)
        self.leased: set[str] = set()
        self.gated: dict[PodUid, NeuronPod] = {}
        self.roaming: dict[PodUid, NeuronPod] = {}
        self.avoided: dict[str, dict[str, float]] = {}
        """By owner, the nodes that did not take one of its pods lately, and until when its pods avoid them."""
        self.capacity_version = 0
        self.movable_namespaces: frozenset[str] = frozenset()
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.storage = Storage()
        self.budgets: dict[str, Budget] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[PodUid, NeuronPod] = {}
        self._assumed: dict[PodUid, AssumedPod] = {}
        self._departed: dict[PodUid, tuple[NeuronPod, float]] = {}
        self._reserved: dict[str, Reservation] = {}
        self._kept_on: defaultdict[str, dict[str, Reservation]] = defaultdict(dict)
        self._by_node: defaultdict[str, dict[PodUid, None]] = defaultdict(dict)
        self._others: defaultdict[str, dict[str, PodUse]] = defaultdict(dict)
        self._uses = _Uses(self._use_of)
        self._stale: frozenset[str] = frozenset()
        self.checked = CheckScope(groups=True)
        """The scope of pre-flight checks; until it is known, all groups that ask for a check."""
        self.checks: dict[GroupName, GroupStanding] = {}
        """The state of groups that are checked before they start; other groups may be absent."""
        self.population = Population(self.namespaces)
        self.levels = tuple(levels)
        self.choices = Choices(self._nodes, self._uses, self.levels)
        self.nodes: Mapping[str, NodeInfo] = MappingProxyType(self._nodes)
        self.pods: Mapping[PodUid, NeuronPod] = MappingProxyType(self._pods)
        self.assumed: Mapping[PodUid, AssumedPod] = MappingProxyType(self._assumed)
        self.departed: Mapping[PodUid, tuple[NeuronPod, float]] = MappingProxyType(self._departed)
        self.reserved: Mapping[str, Reservation] = MappingProxyType(self._reserved)
        self.uses: Mapping[str, NodeUse] = MappingProxyType(self._uses)

    # Questions.

    @property
    def version(self) -> tuple[int, int]:
        """Differs whenever a decision could differ."""
        return self.changes.version, self.capacity_version

    def refusal(self, pod: NeuronPod) -> Rejection | None:
        """Why no node can ever serve the pod: a field of it cannot be read, or names something unknown."""
        return self._cluster().refusal(pod)

    def utilization_on(self, name: str) -> Utilization:
        """The utilization of cores by a node's containers, as its plugin has published it, by the names used here.

        For devices by a claim, the plugin knows the claim's name but not the request of the claim.
        """
        return {uid: self.utilization_of(uid, name) for uid in self.utilization.get(name, {})}

    def utilization_of(self, uid: PodUid, name: str) -> Mapping[str, ContainerUtilization]:
        """The same for one pod of the node; empty if unknown."""
        known, pod = self.utilization.get(name, {}).get(uid, {}), self._pods.get(uid)
        if pod is None or not pod.claims:
            return known
        users = {pod_claim.name: claim_user(pod_claim.claim) for pod_claim in pod.claims}
        asked = {container.name: users.get(container.name.partition("/")[0], "") for container in pod.requests}
        return {request: known[user] for request, user in asked.items() if user in known}

    def is_tight(self, name: str) -> bool:
        """Whether little CPU or memory of a node is left beside its pods, including assumed pods."""
        info = self._nodes.get(name)
        return info is not None and self._uses[name].is_tight(info.node.rules)

    def members_of(self, group: GroupName) -> list[NeuronPod]:
        """The pods of a group as it is now, without those that are being deleted."""
        return current_members(self._members.get(group, {}).values())

    def least_of(self, group: GroupName) -> int:
        """How many pods of a group must be placed for any to be: its PodGroup says so, or else its gated pods."""
        return self._leasts.get(group, 0)

    def scene(self) -> Scene:
        """The present state for decisions. It follows later changes: use it before anything else can run."""
        return Scene(self._cluster(), self.choices)

    def snapshot(self, *, left_alone: Collection[PodUid] = (), protected: Collection[PodUid] = ()) -> Cluster:
        """The present state for plans. It does not change, so any thread may plan with it."""
        for name in self._nodes:
            _ = self._uses[name]
        return replace(
            self._cluster(),
            nodes=dict(self._nodes),
            pods=dict(self._pods),
            uses=dict(self._uses),
            population=self.population.copy(),
            storage=self.storage.copy(),
            kept=dict(self._reserved),
            utilization=dict(self.utilization),
            min_counts=dict(self._leasts),
            wishes=dict(self.wishes),
            templates=dict(self.templates),
            checks=dict(self.checks),
            roaming=dict(self.roaming),
            avoided={owner: dict(nodes) for owner, nodes in self.avoided.items()},
            left_alone=left_alone,
            protected=protected,
        )

    def _cluster(self) -> Cluster:
        return Cluster(
            self._nodes,
            self._pods,
            self._uses,
            self.population,
            self.storage,
            self._reserved,
            self._leasts,
            self.wishes,
            self.templates,
            self.movable_namespaces,
            budgets=tuple(self.budgets.values()),
            strategy=self._strategy,
            preferences=self._preferences,
            levels=self.levels,
            utilization=self.utilization,
            checks=self.checks,
            checks_groups=self.checked.groups,
            roaming=self.roaming,
            avoided=self.avoided,
            products=self._products,
        )

    def waiting(self) -> list[NeuronPod]:
        """The pods that ask for Neuron and have no place: high priority first, then the oldest."""
        return sorted(filter(self.waits, self._pods.values()), key=in_line)

    def waits(self, pod: NeuronPod) -> bool:
        """Whether a pod asks for Neuron and has no place."""
        return bool(pod.request) and not (pod.terminating or pod.place or pod.uid in self._assumed)

    def bound_to(self, uid: PodUid) -> str:
        """The node that a pod is bound to, being bound to or placed on; empty if it has no place."""
        pod, assumed = self._pods.get(uid), self._assumed.get(uid)
        return (pod.place if pod else "") or (assumed.pod.place if assumed and not assumed.expected else "")

    # Changes from the watches.

    def put_node(self, node: NeuronNode) -> None:
        """A node was added or changed."""
        known = self._nodes.get(node.name)
        if node.preflight and not isinstance(node.inventory, Rejection):
            seen = preflight_seen(node.preflight, known.node.preflight if known else None, node.inventory)
            node = node if seen is node.preflight else replace(node, preflight=seen)
        if known is None or known.node != node:
            self.history.unhealthy(node.name, (known.node if known else node).unhealthy, node.unhealthy)
            self._rebuild(node)
            inventory = node.inventory
            vanished = () if isinstance(inventory, Rejection) else inventory.vanished_pods
            self._end_departed(PodUid(uid) for uid in vanished)

    def remove_node(self, name: str, uid: str) -> None:
        """A node is gone, unless another one has its name by now; its pods are remembered until they go, too."""
        before = self._nodes.get(name)
        if before is not None and before.node.uid == uid:
            del self._nodes[name]
            self._uses.pop(name, None)
            self.choices.forget(name)
            self.history.unhealthy(name, (), ())
            self.changes.add(name, before, None)

    def put_pod(self, pod: NeuronPod) -> None:
        """A live pod that asks for Neuron was added or changed.

        The watch's pod replaces the assumed one, once it shows the pod's node and assignment.
        """
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        if pod.terminating:
            self.history.ended(pod.reference, pod.node)
        touched, counted = self._nodes_of(pod.uid), self._counted(pod.uid)
        self._pods[pod.uid] = pod
        if before and before.group != pod.group:
            self._leave_group(before)
        if pod.group:
            self._members[pod.group][pod.uid] = pod
            if before is None or (before.group, _size_said(before)) != (pod.group, _size_said(pod)):
                self._count_group(pod.group, pod if before is None else None)
        assumed = self._assumed.get(pod.uid)
        if assumed and pod.place and (assumed.expected or pod.assignment is not None or pod.place != assumed.pod.place):
            del self._assumed[pod.uid]
        is_kept = counted is not None and has_the_same(counted, pod) and touched == self._nodes_of(pod.uid)
        if not is_kept or (counted and counted.promised and pod.node and self._has_void(pod.node)):
            self._moved(pod.uid, touched)
        self._count_placed(pod.uid)
        if pod.place:
            for key in pod.kept_keys:
                if (kept := self._reserved.get(key)) and (kept.lent_below is None or kept.node == pod.place):
                    self.release(key)
        if pod.gated and not pod.place:
            self.gated[pod.uid] = pod
        else:
            self.gated.pop(pod.uid, None)
        if pod.roams:
            self.roaming[pod.uid] = pod
        elif not pod.gated:
            self.roams_no_more(pod.uid)
        self.changes.add(pod.uid, before, pod)

    def remove_pod(self, uid: PodUid, *, kept_until: float = 0.0) -> None:
        """A pod is gone or terminal: its present and promised cores are free.

        With ``kept_until``, by the clock of the watches, its cores stay taken: it was deleted while it ran.
        """
        touched = self._nodes_of(uid)
        before = self._pods.pop(uid, None)
        self._assumed.pop(uid, None)
        self._count_placed(uid)
        self.gated.pop(uid, None)
        self.roams_no_more(uid)
        if before and before.node and kept_until:
            self._departed[uid] = before, kept_until
        if before:
            self._leave_group(before)
        self._moved(uid, touched)
        self.release(uid)
        if before is not None:
            self.history.ended(before.reference, before.node)
            self.changes.add(uid, before, None)

    def roams_no_more(self, uid: PodUid) -> None:
        """A pod that was handed to its scheduler without a node is bound, gone, or was not handed over after all."""
        if self.roaming.pop(uid, None):
            self.capacity_version += 1

    def _leave_group(self, pod: NeuronPod) -> None:
        if pod.group:
            del self._members[pod.group][pod.uid]
            if not self._members[pod.group]:
                del self._members[pod.group]
                self.templates.pop(pod.group, None)
            self._count_group(pod.group)

    def _count_group(self, group: GroupName, come: NeuronPod | None = None) -> None:
        """Count a group's size as its pods state it; a pod that has ``come`` to others does not make it smaller."""
        known = self._members.get(group, {}).values()
        sizes = [self._sizes.get(group, 0), _size_said(come)] if come else map(_size_said, known)
        self._sizes[group] = size = max(sizes, default=0)
        least = self.min_counts.get(group, 0) or size
        if finished := self._finished.get(group):
            controllers = {pod.controller for pod in self._members.get(group, {}).values()}
            least -= sum(controller in controllers for controller in finished.values())
        if least > 0:
            self._leasts[group] = least
        else:
            self._leasts.pop(group, None)
        if not size:
            del self._sizes[group]

    def see_finished(self, uid: str, before: FinishedMember | None, now: FinishedMember | None) -> None:
        """A pod of a group has succeeded, or is gone after that. It counts for other pods of the same controller."""
        for record, is_there in ((before, False), (now, True)):
            if record and is_there:
                self._finished[record.group][uid] = record.controller
            elif record:
                self._finished[record.group].pop(uid, None)
            if record:
                self._count_group(record.group)
                if not self._finished[record.group]:
                    del self._finished[record.group]
        self.needs_changed()

    def end_departed(self, now: float) -> None:
        """Free the cores that were kept until ``now`` for pods that were deleted while they ran."""
        self._end_departed([uid for uid, (_, until) in self._departed.items() if until <= now])

    def put_other(self, uid: str, before: PodUse | None, use: PodUse | None) -> None:
        """A bound pod without Neuron was added or changed, or is gone."""
        if self.population.put(uid, use.placed if use else None):
            self.capacity_version += 1
            self.changes.wake()
        if before and (use is None or use.node != before.node):
            others = self._others[before.node]
            others.pop(uid, None)
            if not others:
                del self._others[before.node]
            self._judge_again(before.node)
        if use:
            self._others[use.node][uid] = use
            self._judge_again(use.node)

    def set_min_count(self, group: tuple[str, str], count: int) -> None:
        """So many pods of a PodGroup must be placed for any to be; 0 if any number may be, or the group is gone."""
        if count != self.min_counts.pop(group, 0):
            self.capacity_version += 1
            self.changes.wake()
        if count:
            self.min_counts[group] = count
        self._count_group(group)

    def set_wish(self, group: GroupName, wish: TopologyWish | None) -> None:
        """How near to each other a PodGroup wants its pods; None if it does not say, or is gone."""
        if wish != self.wishes.pop(group, None):
            self.needs_changed()
        if wish:
            self.wishes[group] = wish

    def avoid(self, owner: str, node: str, until: float) -> None:
        """Place no pod of this owner on this node for a while: its scheduler refused the node."""
        self.avoided.setdefault(owner, {})[node] = until
        self.needs_changed()

    def end_avoided(self, now: float) -> None:
        """End the avoiding of nodes whose time is over."""
        for owner, nodes in list(self.avoided.items()):
            if left := {node: until for node, until in nodes.items() if until > now}:
                self.avoided[owner] = left
            else:
                del self.avoided[owner]
            if left != nodes:
                self.needs_changed()

    def needs_changed(self) -> None:
        """Storage, namespaces or budgets have changed: pods that fitted nowhere are judged again."""
        self.capacity_version += 1
        self.changes.wake()

    def put_namespace(self, name: str, labels: Mapping[str, str] | None, *, movable: bool = False) -> None:
        """A namespace was added or changed, or is gone (None)."""
        if labels is None:
            self.namespaces.pop(name, None)
        elif self.namespaces.get(name) != labels:
            self.namespaces[name] = labels
        self.movable_namespaces = (self.movable_namespaces - {name}) | (
            {name} if movable and labels is not None else set()
        )
        self.population.namespaces_changed()
        self.needs_changed()

    def set_stale(self, names: frozenset[str]) -> None:
        """The nodes whose plugin has stopped renewing its Lease."""
        changed, self._stale = self._stale ^ names, names
        for name in changed & self._nodes.keys():
            self._rebuild(self._nodes[name].node)

    def check(self, scope: CheckScope) -> None:
        """From now on nodes and groups in the scope take no pod before their check."""
        before, self.checked = self.checked, scope
        if scope._replace(groups=before.groups) != before:
            for info in list(self._nodes.values()):
                self._rebuild(info.node)

    def users_on(self, name: str) -> bool:
        """Whether a node has pods that ask for Neuron, besides its pre-flight check's."""
        return not all(self._is_check(self._counted_on(uid, name)) for uid in self._by_node.get(name, ()))

    def _is_check(self, pod: NeuronPod) -> bool:
        own = pod.reference.namespace == self.checked.namespace
        return own and pod.labels.labels.get(PREFLIGHT_KEY) == "node"

    def see_utilization(self, name: str, utilization: Utilization) -> None:
        """A node's plugin has published how much containers use their cores. Idle pods are moved first."""
        before = self.utilization.pop(name, {})
        if utilization:
            self.utilization[name] = utilization
        changed = [uid for uid in {**before, **utilization} if before.get(uid) != utilization.get(uid)]
        for uid in changed:
            if pod := self._pods.get(uid):
                self.changes.add(uid, pod, pod)
        if changed and (info := self._nodes.get(name)):
            self.changes.add(name, info, info)

    def _end_departed(self, uids: Iterable[PodUid]) -> None:
        """The nodes of these pods have seen their end: devices that processes may still use are unhealthy by now."""
        for uid in uids:
            if uid in self._departed:
                touched = self._nodes_of(uid)
                del self._departed[uid]
                self._moved(uid, touched)

    # Decisions.

    def assume(self, assumed: AssumedPod) -> None:
        """Count a pod as placed, or replace the assumption about it."""
        uid = assumed.pod.uid
        before = self._assumed.get(uid)
        if before and before.pod is assumed.pod:
            self._assumed[uid] = assumed
        else:
            touched = self._nodes_of(uid)
            self._assumed[uid] = assumed
            self._moved(uid, touched)
            self._count_placed(uid)

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
            self._count_placed(uid)

    def reserve(self, reservation: Reservation) -> None:
        """Keep cores for a pod that is not bound yet, in place of its earlier reservation.

        For a pod that is assumed there nothing changes: its cores count already.
        """
        key, name = reservation.pod.uid, reservation.node
        self.release(key)
        self._reserved[key] = self._kept_on[name][key] = reservation
        assumed, known = self._assumed.get(key), self._nodes.get(name)
        if known and not (assumed and assumed.pod.place == name):
            self._rebuild(known.node)

    def release(self, key: str) -> None:
        """Keep nothing for this pod, or for this rank of a group, any more."""
        if (reservation := self._reserved.pop(key, None)) is None:
            return
        name = reservation.node
        del self._kept_on[name][key]
        if not self._kept_on[name]:
            del self._kept_on[name]
        if (known := self._nodes.get(name)) and reservation in known.reservations:
            self._rebuild(known.node)

    # Derived facts.

    def _counted(self, uid: PodUid) -> NeuronPod | None:
        """The pod as its node counts it."""
        assumed, (departed, _) = self._assumed.get(uid), self._departed.get(uid, (None, 0.0))
        return assumed.pod if assumed else self._pods.get(uid) or departed

    def _counted_on(self, uid: PodUid, name: str) -> NeuronPod:
        """The pod as this node, one of its nodes, counts it."""
        assumed = self._assumed.get(uid)
        if assumed and assumed.pod.place == name:
            return assumed.pod
        return self._pods[uid] if uid in self._pods else self._departed[uid][0]

    def _nodes_of(self, uid: PodUid) -> set[str]:
        pod, assumed, departed = self._pods.get(uid), self._assumed.get(uid), self._departed.get(uid)
        names = (pod.place if pod else "", assumed.pod.place if assumed else "", departed[0].node if departed else "")
        return set(filter(None, names))

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
            if known := self._nodes.get(name):
                self._rebuild(known.node)

    def _has_void(self, name: str) -> bool:
        """Whether promises on a node overlap, so that it matters which pods are bound."""
        info = self._nodes.get(name)
        return info is not None and bool(info.void)

    def _judge_again(self, name: str, *, node_changed: bool = False) -> None:
        """A node, or kube-scheduler's count of its pods, has changed."""
        if name in self._nodes:
            self._uses.pop(name, None)
            self.choices.forget(name, node_changed=node_changed)
            self.capacity_version += 1

    def _use_of(self, name: str) -> NodeUse:
        """kube-scheduler's count of a node's pods, and their ports; nothing if the node has no Neuron."""
        info = self._nodes.get(name)
        if info is None or info.inventory is None:
            return NO_USE
        own = [self._counted_on(uid, name).rules for uid in self._by_node.get(name, ())]
        pods = [((*rules.needs, *rules.neuron), rules.ports) for rules in own]
        pods += [(other.needs, other.ports) for other in self._others.get(name, {}).values()]
        return node_use(pods)

    def _count_placed(self, uid: PodUid) -> None:
        """Count a pod by its labels where it is, as the rules among pods see it."""
        assumed = self._assumed.get(uid)
        pod = assumed.pod if assumed else self._pods.get(uid)
        if self.population.put(uid, pod.on(pod.place) if pod and pod.place else None):
            self.capacity_version += 1

    def _rebuild(self, node: NeuronNode) -> None:
        """Derive a node's state again: it, its pods or its reservations have changed.

        An assumed pod counts as assumed, not as the watch shows it.
        """
        name, before = node.name, self._nodes.get(node.name)
        pods = [self._counted_on(uid, name) for uid in self._by_node.get(name, ())]
        promised = [pod for pod in pods if pod.node != name]
        bound = [pod for pod in pods if pod.node == name] if promised else pods
        kept = tuple(self._kept_on.get(name, {}).values())
        unchecked = None
        if not isinstance(node.inventory, Rejection):
            unchecked = self.checked.closure(node.preflight, node.boot_id, node.inventory, busy=self.users_on(name))
        after = node_info(
            node, bound, stale=name in self._stale, reservations=kept, promised=promised, unchecked=unchecked
        )
        self._nodes[name] = after
        self._judge_again(name, node_changed=before is None or before.node is not node)
        if after != before:
            self.changes.add(name, before, after)
