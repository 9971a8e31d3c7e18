"""A cluster at one moment, and hypothetical changes of it: pods that come and go.

The placement controller decides in an unchanged scene of its own state. Plans, groups and preemption fork it and try:
which node would be the best for one pod when another has gone, and what would kube-scheduler say then?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from neuron_plugin.allocation import (
    Capacity,
    Constraints,
    NeuronPod,
    NodeInfo,
    Placement,
    PlacementStrategy,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.group import NO_WISH, GroupName, TopologyWish
from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.node_rules import NodeUse, PlacedPod, PodRules
from neuron_plugin.allocation.placement import place
from neuron_plugin.allocation.pod import current_members, unknown_products
from neuron_plugin.allocation.utilization import Utilization
from neuron_plugin.planning.choice import NO_USES, Choices, PreferenceOrder
from neuron_plugin.planning.population import Altered, AnyPopulation, Population, likeness
from neuron_plugin.planning.rules import (
    AmongPods,
    PodInCluster,
    most_beside,
    neuron_shortages,
    objections,
    shortages,
)
from neuron_plugin.planning.volumes import NO_STORAGE, NO_VOLUMES, PodVolumes, Storage

MOST_TO_LOOK_AT = 1_000
"""Nodes times pods without a node. Up to this product, each node is checked for room that such pods need."""
DID_NOT_TAKE = "has not taken a pod of the same controller lately"
AVOIDED = "has failed the pre-flight check of the pod's group"
NOT_CHECKED = Rejection("not-checked", "The pod's group is to be checked before it starts and cannot be")
Place = tuple[str, Placement]
"""A node, and the sets of each container there."""


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """The state of a group that is checked first: why it ``waits``, and the nodes where its check has failed lately."""

    waits: str = ""
    avoided: frozenset[str] = frozenset()


NOT_AVOIDED = GroupStanding()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster at one moment.

    ``uses`` has the requests of all pods of each node. ``population`` has all placed pods by their labels, ``storage``
    the claims and volumes. ``kept`` has the reservations for pods that are not bound, by their ``kept_keys``. Pods in
    ``movable_namespaces`` may be moved unless they say otherwise; the pods ``left_alone`` may not. ``protected`` are
    pods whose eviction a budget has refused lately. ``min_counts`` has by group how many of its pods must be placed
    together at least, and ``wishes`` how near to each other its PodGroup wants them. ``templates`` has by group the
    requests of the pods that are made once their leader is placed, None if unknown. ``strategy`` is the default of
    pods, and ``preferences`` says when a pod's preferences decide. ``levels`` are the node labels of the network's
    levels, if configured. ``utilization`` has by node how much containers use their cores. ``checks`` has the state of
    groups that are checked before they start, if ``checks_groups``. ``roaming`` are pods that were handed to their
    schedulers without a node and are not bound. ``avoided`` has by owner the nodes that did not take one of its pods
    lately, each until some time. ``products`` are the names of the catalogue.
    """

    nodes: Mapping[str, NodeInfo]
    pods: Mapping[PodUid, NeuronPod]
    uses: Mapping[str, NodeUse] = field(default_factory=lambda: NO_USES)
    population: Population = field(default_factory=Population)
    storage: Storage = NO_STORAGE
    kept: Mapping[str, Reservation] = field(default_factory=dict)
    min_counts: Mapping[GroupName, int] = field(default_factory=dict)
    wishes: Mapping[GroupName, TopologyWish] = field(default_factory=dict)
    templates: Mapping[GroupName, NeuronPod | None] = field(default_factory=dict)
    movable_namespaces: Collection[str] = ()
    left_alone: Collection[PodUid] = ()
    protected: Collection[PodUid] = ()
    budgets: Collection[Budget] = ()
    strategy: PlacementStrategy = PlacementStrategy.PACK
    preferences: PreferenceOrder = PreferenceOrder.FIRST
    levels: Sequence[str] = ()
    utilization: Mapping[str, Utilization] = field(default_factory=dict)
    checks: Mapping[GroupName, GroupStanding] = field(default_factory=dict)
    checks_groups: bool = True
    roaming: Mapping[PodUid, NeuronPod] = field(default_factory=dict)
    avoided: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    products: frozenset[str] = frozenset()

    def refusal(self, pod: NeuronPod) -> Rejection | None:
        """Why no node can ever serve a waiting pod: it cannot be read, names nothing, or its check cannot be made."""
        if refusal := pod.refusal or self._why_not_checked(pod):
            return refusal
        constraints = pod.requests[0].constraints if pod.requests else None
        products = constraints.products if isinstance(constraints, Constraints) else frozenset[str]()
        if products <= self.products:
            return None
        seen = (info.node.facts.names for info in self.nodes.values())  # a self-made type is in no catalogue
        return unknown_products(products, self.products.union(*seen))

    def _why_not_checked(self, pod: NeuronPod) -> Rejection | None:
        """Why the check that a pod's group asks for cannot be made."""
        if not (pod.member and pod.member.preflight) or pod.place:
            return None
        why = ""
        if not self.checks_groups:
            why = "groups are not checked here: preflight.enabled and preflight.group.command of the chart switch it on"
        elif not pod.gated:
            why = "only groups that wait behind the placement gate are checked: set placement: gates in the chart"
        elif not self.is_gang(pod):
            why = "it is not said how many pods the group has: set neuron-plugin.io/group-size"
        detail = f"annotation {PREFLIGHT_KEY} asks for a check of the group, and {why}. Or remove the annotation"
        return replace(NOT_CHECKED, detail=detail) if why else None

    def check_of(self, pod: NeuronPod) -> GroupStanding:
        """The state of the check of a pod's group."""
        return self.checks.get(pod.group, NOT_AVOIDED) if pod.group else NOT_AVOIDED

    def why_avoided(self, pod: NeuronPod) -> dict[str, str]:
        """The nodes that a pod avoids even if they have free sets, each with why."""
        lately = dict.fromkeys(self.avoided.get(pod.owner, ()) if pod.controller else (), DID_NOT_TAKE)
        return lately | dict.fromkeys(self.check_of(pod).avoided, AVOIDED)

    def is_movable(self, pod: NeuronPod) -> bool:
        """Whether a pod, or its namespace, allows its eviction to make room."""
        return pod.reference.namespace in self.movable_namespaces if pod.movable is None else pod.movable

    def is_gang(self, pod: NeuronPod) -> bool:
        """Whether the pod is placed with its group or not at all."""
        return pod.group is not None and self.min_counts.get(pod.group, 0) > 0

    def members_of(self, group: GroupName) -> list[NeuronPod]:
        """The pods of a group as it is now, without those that are being deleted."""
        return current_members(pod for pod in self.pods.values() if pod.group == group)

    def wish_of(self, pod: NeuronPod) -> TopologyWish:
        """How near to each other the pods of a pod's group are to be."""
        own = pod.member.wish if pod.member else NO_WISH
        return self.wishes.get(pod.group or ("", ""), own) if own == NO_WISH else own

    def kept_for(self, pod: NeuronPod) -> list[Reservation]:
        """The reservations for a pod, and for its rank in its group, and the spare nodes of its group."""
        return [self.kept[key] for key in pod.kept_keys if key in self.kept]

    def lent_to(self, pod: NeuronPod) -> list[Reservation]:
        """The spare nodes of groups that a pod may use until they are needed, if it can be moved away."""
        if not (self.kept and pod.gated and pod.made_again and self.is_movable(pod)) or pod.group:
            return []
        return [kept for kept in self.kept.values() if kept.lent_below is not None and pod.priority < kept.lent_below]


class Scene:
    """The cluster during a trial: some nodes are as they would be, after hypothetical changes of pods."""

    def __init__(self, cluster: Cluster, choices: Choices | None = None) -> None:
        """``choices`` are the remembered choices of the cluster's nodes, if any."""
        self.cluster = cluster
        self.choices = choices or Choices(cluster.nodes, cluster.uses, cluster.levels)
        self.changed: dict[str, NodeInfo] = {}
        self.gone: dict[str, tuple[NeuronPod, ...]] = {}
        self.come: dict[str, tuple[NeuronPod, ...]] = {}
        self.group: GroupName | None = None
        """The group whose pods are placed together here, if any: ``fork``."""
        self.altered: Altered | None = None
        """The placed pods as they would be; None until they are asked for."""
        self._eligible: dict[tuple[PodRules, PodVolumes], frozenset[str]] = {}
        self._roaming: list[NeuronPod] | None = None
        self.answers: dict[object, tuple[NodeInfo, Any]] = {}
        """The answers of a node's devices to a request, and the node as it was then: ``node_answers``."""
        self.openings: dict[object, tuple[NodeInfo, list[tuple[NeuronPod, ...]]]] = {}
        """Groups of victims by kind of pod, and the node as it was then: ``victims``."""

    def fork(self, group: GroupName | None = None) -> Scene:
        """The same scene, to be changed on trial; computed results are shared.

        Pods of the ``group`` that come in it count as bound for other pods of the group.
        """
        trial = copy(self)
        trial.group = group or self.group
        trial.changed, trial.gone, trial.come = dict(self.changed), dict(self.gone), dict(self.come)
        trial.altered = None
        return trial

    def adopt(self, trial: Scene) -> None:
        """Take over the changes of a trial."""
        vars(self).update(vars(trial))

    def node(self, name: str) -> NodeInfo:
        """A node as it would be."""
        return self.changed.get(name) or self.cluster.nodes[name]

    def remove(self, pods: Collection[NeuronPod], name: str) -> None:
        """These pods have gone from the node."""
        uids = {pod.uid for pod in pods}
        self.changed[name] = self.node(name).without(uids)
        self.altered = None
        came = self.come.get(name, ())
        self.gone[name] = (*self.gone.get(name, ()), *(pod for pod in pods if pod not in came))
        if came:
            self.come[name] = tuple(pod for pod in came if pod.uid not in uids)

    def put(self, pod: NeuronPod, name: str, placement: Placement) -> None:
        """The pod has come to the node; it has used its reservation there."""
        self.changed[name] = self.own_node(pod, name).with_pod(pod.reference, placement)
        self.come[name] = (*self.come.get(name, ()), pod)
        if self.altered:
            self.altered.change(self._come_to(pod, name), 1)

    # kube-scheduler's rules.

    @property
    def population(self) -> AnyPopulation:
        """The placed pods as they would be."""
        if not (self.gone or self.come):
            return self.cluster.population
        if self.altered is None:
            gone = (pod.uid for pods in self.gone.values() for pod in pods)
            come = (self._come_to(pod, name) for name, pods in self.come.items() for pod in pods)
            self.altered = Altered(self.cluster.population, gone, come)
        return self.altered

    def _come_to(self, pod: NeuronPod, name: str) -> PlacedPod:
        placed = pod.on(name)
        return placed._replace(bound=True) if self.group and pod.group == self.group else placed

    def use(self, name: str) -> NodeUse:
        """The use of a node by its pods as kube-scheduler would count it, with their ports."""
        use = self.cluster.uses[name]
        gone, come = self.gone.get(name, ()), self.come.get(name, ())
        if not (gone or come):
            return use
        amounts, ports = Counter(use.amounts), use.ports
        for other in gone:
            amounts.subtract(dict((*other.rules.needs, *other.rules.neuron)))
            ports -= other.rules.ports
        for other in come:
            amounts.update(dict((*other.rules.needs, *other.rules.neuron)))
            ports |= other.rules.ports
        return NodeUse(amounts, ports)

    def rooms(self, pod: NeuronPod, names: Iterable[str]) -> Iterator[int | None]:
        """How many such pods each node takes by kube-scheduler's counts; None if nothing bounds them.

        On nodes that pods have left, the kubelet's counts of Neuron follow later, so they are not looked at.
        """
        known = self.choices.rooms(pod.rules)
        for name in names:
            if name in self.gone or name in self.come:
                rules = replace(pod.rules, neuron=()) if name in self.gone else pod.rules
                yield most_beside(rules, self.node(name).node.rules, self.use(name))
                continue
            if name not in known:
                known[name] = most_beside(pod.rules, self.node(name).node.rules, self.use(name))
            yield known[name]

    def volumes(self, pod: NeuronPod) -> PodVolumes:
        """The demands of the pod's PersistentVolumeClaims on a node."""
        if not pod.rules.claims:
            return NO_VOLUMES
        return self.cluster.storage.of(pod.reference.namespace, pod.rules.claims, self.population)

    def among(self, pod: NeuronPod) -> AmongPods | None:
        """The verdicts of the placed pods on the pod; None if there can be none."""
        if not (pod.rules.depends_on_pods or self.population.keeps_any_off()):
            return None
        return AmongPods(self.in_cluster(pod), self.cluster.nodes, self.population, self.choices.spread_nodes)

    def doubt(self, pod: NeuronPod) -> str:
        """Why it cannot be judged here where the pod can run: a rule of kube-scheduler; empty if none."""
        of_others = "it has resource claims of another driver" if pod.rules.resource_claims else ""
        doubt = of_others or self.volumes(pod).doubt
        return f"where it can run cannot be judged here, because {doubt}" if doubt else ""

    def against(self, pod: NeuronPod, name: str, among: AmongPods | None, volumes: PodVolumes) -> Iterator[str]:
        """All of kube-scheduler's reasons against the pod on a node, without its counts of Neuron."""
        node, rules = self.node(name).node, pod.rules
        yield from objections(rules, name, node.rules)
        yield from shortages(rules, node.rules, self.use(name))
        yield from volumes.objections(name, node.rules.labels)
        if volumes.attached:
            yield from filter(None, [self.too_many_attached(name, volumes)])
        if among:
            yield from among.why_not(name)

    def too_many_attached(self, name: str, volumes: PodVolumes) -> str:
        """The driver whose limit of attached volumes a node would exceed; empty if none."""
        return self.cluster.storage.too_many_attached(name, volumes, self.population.claimants(name))

    @staticmethod
    def in_cluster(pod: NeuronPod) -> PodInCluster:
        """A pod as the rules among pods see it; a gated one will be pinned to its node."""
        return PodInCluster(pod.rules, pod.labels, pinned=pod.gated)

    # The best place.

    def eligible(self, pod: NeuronPod) -> frozenset[str]:
        """The nodes that kube-scheduler would leave to the pod, without rules about other pods."""
        volumes = self.volumes(pod)
        key = pod.rules, volumes
        if key not in self._eligible:
            nodes = self.cluster.nodes.items() if not volumes.waits else ()
            self._eligible[key] = frozenset(
                name
                for name, info in nodes
                if not any(True for _ in objections(pod.rules, name, info.node.rules))
                and not any(True for _ in volumes.objections(name, info.node.rules.labels))
            )
        return self._eligible[key]

    def allowed(self, pod: NeuronPod, *, instance_type: str = "") -> Allowed:
        """The nodes that kube-scheduler would let the pod go to; of one instance type, if one is given."""
        return Allowed(self, pod, instance_type)

    def fitting(self, pod: NeuronPod) -> dict[Capacity, set[str]]:
        """The nodes that the pod may go to and that have sets for it, by capacity."""
        answers = self.choices.answers(pod.requests, pod.strategy_or(self.cluster.strategy))
        allowed = self.allowed(pod)
        changed = self.changed.keys()
        found = {
            capacity: allowed.of(names - changed if changed else names)
            for capacity, names in answers.by_capacity().items()
        }
        for name, info in self.changed.items():
            if isinstance(info.capacity, Capacity) and name in allowed:
                found.setdefault(info.capacity, set()).add(name)
        return {capacity: names for capacity, names in found.items() if names}

    def best(
        self,
        pod: NeuronPod,
        *,
        skipped: Collection[str] = (),
        instance_type: str = "",
        allowed: Container[str] | None = None,
    ) -> Place | None:
        """The pod's best allowed node, and its sets there; None if it fits nowhere. Places kept for it come first.

        Each pod that was handed to its scheduler without a node is left one linked set, on any node.
        """
        if allowed is None:
            allowed = self.allowed(pod, instance_type=instance_type)
        while found := self.best_alone(pod, skipped, allowed):
            if self.leaves_room(pod, found):
                return found
            skipped = {*skipped, found[0]}
        return None

    def best_alone(self, pod: NeuronPod, skipped: Collection[str], allowed: Container[str]) -> Place | None:
        """The same, without leaving sets to pods without a node."""
        if found := self._best_kept(pod, self.cluster.kept_for(pod), skipped, allowed):
            return found
        answers = self.choices.answers(pod.requests, pod.strategy_or(self.cluster.strategy))
        when, name = self.cluster.preferences, ""
        unwilling, own = self.choices.unwilling(pod.rules), pod.rules.prefers_nodes
        if when is PreferenceOrder.FIRST or not (own or unwilling):
            for preferred in self.allowed(pod).best_first() if own else (allowed,):
                both = _Both(preferred, allowed) if own else allowed
                name = answers.best(both, unwilling.union(skipped), self.changed, choices=self.choices)
                if name or unwilling:
                    break
        if not name and (own or unwilling):
            name = answers.best(allowed, skipped, self.changed, self.allowed(pod).scores, when, self.choices)
        if not name:
            return self._best_kept(pod, self.cluster.lent_to(pod), skipped, allowed)
        placement = self.place(pod, name)
        return (name, placement) if placement else None

    def _best_kept(
        self, pod: NeuronPod, kept: Iterable[Reservation], skipped: Collection[str], allowed: Container[str]
    ) -> Place | None:
        """The pod's sets on the first of these nodes that it may go to."""
        for name in (one.node for one in kept if one.node not in skipped and one.node in allowed):
            if placement := self.place(pod, name):
                return name, placement
        return None

    @property
    def roaming(self) -> list[NeuronPod]:
        """The pods that were handed to their schedulers without a node and fit, all at once.

        A pod that fits nowhere is left nothing: it would keep all others from all nodes.
        """
        if self._roaming is None:
            self._roaming = self.placeable(self.cluster.roaming.values())
        return self._roaming

    def leaves_room(self, pod: NeuronPod, place: Place) -> bool:
        """Whether each pod that was handed to its scheduler without a node still has a linked set on any node."""
        return not self.without_room([(pod, place)])

    def without_room(self, come: Sequence[tuple[NeuronPod, Place]]) -> set[str]:
        """The nodes where these pods leave no linked set to pods without a node, once all have come.

        If every node has a set left, but there are too few for all pods without a node, these are all of the nodes.
        """
        uids = {pod.uid for pod, _ in come}
        if not self.cluster.roaming or not (roaming := [other for other in self.roaming if other.uid not in uids]):
            return set()
        after, names = self.fork(), {name for _, (name, _) in come}
        for pod, (name, placement) in come:
            after.put(pod, name, placement)
        lacking = set(after.lacking_sets(names, roaming))
        return lacking or (set() if after.placeable(roaming) == roaming else names)

    def left_to_others(self, pod: NeuronPod, names: Collection[str]) -> set[str]:
        """The nodes with sets for the pod that must be left to pods without a node; none if there are too many."""
        if not 0 < len(self.cluster.roaming) * len(names) <= MOST_TO_LOOK_AT:
            return set()
        places = ((name, sets) for name in names if (sets := self.place(pod, name)))
        return {place[0] for place in places if not self.leaves_room(pod, place)}

    def alike(self, pods: Iterable[NeuronPod]) -> list[list[NeuronPod]]:
        """Pods grouped by request and by the nodes that they may go to."""
        found, anti_keys = defaultdict[object, list[NeuronPod]](list), self.population.anti_keys
        for pod in pods:
            found[likeness(pod, anti_keys), pod.owner, pod.group].append(pod)
        return list(found.values())

    def placeable(self, pods: Iterable[NeuronPod]) -> list[NeuronPod]:
        """The pods that fit, all at once."""
        trial, placed = self.fork(), []
        for pod in pods:
            if place := trial.best_alone(pod, (), trial.allowed(pod)):
                trial.put(pod, *place)
                placed.append(pod)
        return placed

    def lacking_sets(
        self, names: Iterable[str], roaming: Sequence[NeuronPod], pods: Sequence[NeuronPod] = ()
    ) -> list[str]:
        """The nodes without linked sets for ``pods`` together with all pods that may come.

        As many pods without a node may come as kube-scheduler's rules and counts allow there.
        """
        may_go = [(self.allowed(others[0]), others) for others in self.alike(roaming)]
        known, lacking = dict[object, bool](), list[str]()
        for name in names:
            info, amounts = self.node(name), self.use(name).amounts
            left = tuple(
                [(resource, offered - amounts.get(resource, 0)) for resource, offered in info.node.rules.neuron]
            )
            coming = [others for allowed, others in may_go if name in allowed]
            if info.reservations:  # what is kept for one of them is free to it
                info = _without(info, chain.from_iterable(pod.kept_keys for pod in chain(pods, *coming)))
            key = info.capacity, left, tuple(map(id, coming))
            if key not in known:
                known[key] = _have_sets(info.capacity, dict(left), pods, [*chain.from_iterable(coming)])
            if not known[key]:
                lacking.append(name)
        return lacking

    def place(self, pod: NeuronPod, name: str) -> Placement | None:
        """The pod's best sets on a node, its reservations included."""
        capacity = self.node_for(pod, name).capacity
        placed = capacity if isinstance(capacity, Rejection) else capacity.place(pod.requests)
        return None if isinstance(placed, Rejection) else placed

    def place_in(self, pod: NeuronPod, name: str, mask: int) -> Placement | None:
        """The pod's sets out of these cores of a node, if they are free or kept for the pod."""
        capacity = self.node_for(pod, name).capacity
        if isinstance(capacity, Rejection) or mask & ~capacity.free_mask:
            return None
        placed = place(capacity.geometry, mask, pod.requests, capacity.facts)
        return None if isinstance(placed, Rejection) else placed

    def node_for(self, pod: NeuronPod, name: str) -> NodeInfo:
        """A node as it would be for a pod: cores that are kept for or lent to the pod are free."""
        info = self.own_node(pod, name)
        return _without(info, (kept.pod.uid for kept in self.cluster.lent_to(pod))) if info.reservations else info

    def own_node(self, pod: NeuronPod, name: str) -> NodeInfo:
        """A node as it would be for a pod: cores that are kept for the pod are free."""
        info = self.node(name)
        return _without(info, pod.kept_keys) if info.reservations else info


def _have_sets(
    capacity: Capacity | Rejection, left: Mapping[str, int], pods: Sequence[NeuronPod], coming: Sequence[NeuronPod]
) -> bool:
    """Whether there are sets for pods, and for as many more as are ``left`` by kube-scheduler's counts.

    The largest come first, or the smallest.
    """
    by_size = sorted(coming, key=lambda pod: sum(asked for _, asked in pod.rules.neuron))
    for order in (by_size, by_size[::-1]):
        counts, together = Counter(left), list(pods)
        for pod in pods:
            counts.subtract(dict(pod.rules.neuron))
        for pod in order:
            if all(counts[name] >= asked for name, asked in pod.rules.neuron):
                counts.subtract(dict(pod.rules.neuron))
                together.append(pod)
        request = tuple(container for pod in together for container in pod.requests)
        if isinstance(capacity, Rejection) or isinstance(capacity.place(request), Rejection):
            return False
    return True


def _without(info: NodeInfo, keys: Iterable[str]) -> NodeInfo:
    found = {PodUid(key) for key in keys}
    return info.without(found) if any(kept.pod.uid in found for kept in info.reservations) else info


class Allowed:
    """The nodes that kube-scheduler would let a pod go to, looked at one by one, as the choice comes to them."""

    def __init__(
        self, scene: Scene, pod: NeuronPod, instance_type: str = "", among_nodes: Collection[str] | None = None
    ) -> None:
        """Only nodes in ``among_nodes``, if given."""
        self._scene = scene
        self._pod = pod
        self._instance_type = instance_type
        self._among_nodes = among_nodes
        self._avoided = scene.cluster.why_avoided(pod)
        self._volumes = scene.volumes(pod)
        self._among = scene.among(pod)
        self._feasible = scene.choices.feasible(pod.rules, self._volumes)
        self._plain = not (instance_type or self._among or self._volumes.attached or self._avoided)

    def __contains__(self, name: object) -> bool:
        scene = self._scene
        if not isinstance(name, str) or (self._among_nodes is not None and name not in self._among_nodes):
            return False
        if name in scene.gone or name in scene.come:
            if not self._leaves_as_changed(name):
                return False
        elif name not in self._feasible:
            return False
        return self._plain or self._is_allowed_among_others(name)

    def of(self, unchanged: AbstractSet[str]) -> set[str]:
        """The ``unchanged`` nodes of the scene that the pod may go to."""
        left = self._feasible.of(unchanged)
        return left if self._plain else set(filter(self._is_allowed_among_others, left))

    def _is_allowed_among_others(self, name: str) -> bool:
        if name in self._avoided:
            return False
        if self._instance_type:
            inventory = self._scene.cluster.nodes[name].inventory
            if not inventory or inventory.geometry.instance_type != self._instance_type:
                return False
        if self._volumes.attached and self._scene.too_many_attached(name, self._volumes):
            return False
        return not (self._among and any(True for _ in self._among.why_not(name)))

    def _leaves_as_changed(self, name: str) -> bool:
        """As ``choice.leaves``, without the kubelet's counts on nodes that pods have left: these follow later."""
        scene, rules = self._scene, self._pod.rules
        node, use = scene.cluster.nodes[name].node.rules, scene.use(name)
        if self._volumes.waits or (name not in scene.gone and any(True for _ in neuron_shortages(rules, node, use))):
            return False
        against = chain(
            shortages(rules, node, use), objections(rules, name, node), self._volumes.objections(name, node.labels)
        )
        return not any(True for _ in against)

    def scores(self, names: Sequence[str]) -> dict[str, int]:
        """The pod's preference score of each of these nodes."""
        return self._among_pods().scores(self._scene.in_cluster(self._pod), names)

    def best_first(self) -> Iterator[Container[str]]:
        """The nodes in the order of the pod's preference, as far as it is known without scores."""
        return self._among_pods().best_first(self._scene.in_cluster(self._pod), self._scene.choices.preferred_nodes)

    def _among_pods(self) -> AmongPods:
        scene = self._scene
        in_cluster, spread_nodes = scene.in_cluster(self._pod), scene.choices.spread_nodes
        return self._among or AmongPods(in_cluster, scene.cluster.nodes, scene.population, spread_nodes)


@dataclass(frozen=True, slots=True)
class _Both:
    """The nodes that are in both."""

    some: Container[str]
    others: Container[str]

    def __contains__(self, name: object) -> bool:
        return name in self.some and name in self.others
