"""What waiting pods can expect, the cheapest move that opens a set for one, and what a drain takes.

Often enough is free and nothing fits: the free devices are spread over nodes, or are not linked. No choice made now
mends that, and preemption does not see it. Moving a pod that fits elsewhere *now* does.

A plan is made in thought on the records from which the placement controller decides, with the same choice of node and
set. It keeps every constraint of a pod, and what kube-scheduler looks at besides Neuron. A move is only proposed if
every victim has its set elsewhere. The opened set counts as given to the waiting pod by then, and so do the sets of the
victims before it.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from neuron_plugin.allocation import (
    Capacity,
    NeuronPod,
    NodeInfo,
    Placement,
    PlacementStrategy,
    PodRequest,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.node import capacity_of
from neuron_plugin.allocation.node_rules import NO_USE, NodeUse, PodRules, Volume, objections, shortages
from neuron_plugin.allocation.placement import cores_asked, place, placement_mask
from neuron_plugin.planning.choice import PACK, Choices, place_together
from neuron_plugin.topology import CoreMask, Geometry, valid_sets

_T = TypeVar("_T")

MOST_TRIALS = 2_000
"""Groups of victims looked at on one node for a pod of several requesting containers."""
SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster at one moment.

    ``uses`` has by node what all its pods ask for besides Neuron. ``volumes`` has by pod the volumes of its claims; a
    pod that is not there may go wherever else it may. ``movable_namespaces`` are those whose pods may be moved where
    they do not say otherwise; those of ``left_alone`` are not. ``protected`` are pods whose eviction a budget has
    refused lately. ``min_counts`` has by PodGroup how many of its pods must be placed for any to be. ``strategy`` is
    that of a pod without one.
    """

    nodes: Mapping[str, NodeInfo]
    pods: Mapping[PodUid, NeuronPod]
    uses: Mapping[str, NodeUse] = field(default_factory=dict)
    volumes: Mapping[PodUid, tuple[Volume, ...]] = field(default_factory=dict)
    min_counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    movable_namespaces: Collection[str] = ()
    left_alone: Collection[PodUid] = ()
    protected: Collection[PodUid] = ()
    strategy: PlacementStrategy = PACK

    def is_gang(self, pod: NeuronPod) -> bool:
        """Whether the pod is placed with its group or not at all."""
        return pod.group is not None and self.min_counts.get(pod.group, 0) > 0


@dataclass(frozen=True, slots=True)
class Relocation:
    """A pod that goes from one node to another, or to another set of the same. ``had_mask`` is what it has now.

    A pod that is preempted has no ``target``: where it goes is not looked at.
    """

    pod: NeuronPod
    source: str
    had_mask: CoreMask
    target: str
    placement: Placement

    @property
    def mask(self) -> CoreMask:
        """The cores that it gets."""
        return placement_mask(self.placement)


@dataclass(frozen=True, slots=True)
class Move:
    """Victims that make room, and the sets that a pod gets then. ``loss`` is what they lose, in device-hours."""

    pod: NeuronPod
    node: str
    placement: Placement
    victims: tuple[Relocation, ...]
    loss: float

    @property
    def mask(self) -> CoreMask:
        """The cores that the pod gets."""
        return placement_mask(self.placement)

    @property
    def preempts(self) -> bool:
        """Whether the victims go because their priority is lower, wherever they may find another place."""
        return any(not victim.target for victim in self.victims)


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Who may be moved. ``by_priority``: also a pod of lower priority than the waiting one's, without its consent.

    With ``preempts`` every pod of lower priority may go, and none is looked for a new place.
    """

    most_victims: int = 4
    by_priority: bool = False
    preempts: bool = False

    def may_move(self, cluster: Cluster, victim: NeuronPod, waiting: NeuronPod) -> bool:
        """Whether a pod may be evicted for the waiting one.

        Nothing would make a pod without a controller again, and a member of a group would tear the group.
        """
        if victim.terminating or victim.uid in cluster.protected:
            return False
        if self.preempts:
            return victim.priority < waiting.priority
        if victim.uid in cluster.left_alone or not victim.controller or victim.group:
            return False
        namespace = victim.reference.namespace
        movable = namespace in cluster.movable_namespaces if victim.movable is None else victim.movable
        return not victim.refusal and (movable or (self.by_priority and victim.priority < waiting.priority))


RULES = MoveRules()
PREEMPTION = MoveRules(most_victims=64, preempts=True)

_KnownOpenings = dict[tuple[str, PodRequest, int, MoveRules], tuple[NodeInfo, list[tuple[NeuronPod, ...]]]]
"""By node, request, priority and rules: the node as it was looked at, and the groups of victims."""


class _Scene:
    """The cluster while a plan is made: some nodes are as they would be, and pods have gone and come in thought."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.changed: dict[str, NodeInfo] = {}
        self.gone: dict[str, tuple[NeuronPod, ...]] = {}
        self.come: dict[str, tuple[NeuronPod, ...]] = {}
        self._choices = Choices(cluster.nodes)
        self._eligible: dict[tuple[PodRules, tuple[Volume, ...]], frozenset[str]] = {}
        self.openings = _KnownOpenings()

    def fork(self) -> _Scene:
        """The same scene, to be changed on trial; what was worked out is shared."""
        trial = copy(self)
        trial.changed, trial.gone, trial.come = dict(self.changed), dict(self.gone), dict(self.come)
        return trial

    def adopt(self, trial: _Scene) -> None:
        """What was tried holds."""
        vars(self).update(vars(trial))

    def node(self, name: str) -> NodeInfo:
        """A node as it would be."""
        return self.changed.get(name) or self.cluster.nodes[name]

    def remove(self, pods: Sequence[NeuronPod], name: str) -> None:
        """These pods have gone from the node."""
        self.changed[name] = self.node(name).without({pod.uid for pod in pods})
        self.gone[name] = (*self.gone.get(name, ()), *pods)

    def put(self, pod: NeuronPod, name: str, placement: Placement) -> None:
        """The pod has come to the node."""
        self.changed[name] = self.node(name).with_pod(pod.reference, placement)
        self.come[name] = (*self.come.get(name, ()), pod)

    def eligible(self, pod: NeuronPod) -> frozenset[str]:
        """The nodes that kube-scheduler's rules leave to the pod whatever other pods are there."""
        volumes = self.cluster.volumes.get(pod.uid, ())
        key = pod.rules, volumes
        if key not in self._eligible:
            self._eligible[key] = frozenset(
                name
                for name, info in self.cluster.nodes.items()
                if not any(True for _ in objections(pod.rules, name, info.node.rules, volumes))
            )
        return self._eligible[key]

    def has_room(self, pod: NeuronPod, name: str) -> bool:
        """Whether the node has the CPU, memory, ports and the like for the pod."""
        use = self.cluster.uses.get(name, NO_USE)
        if name in self.gone or name in self.come:
            gone, come = self.gone.get(name, ()), self.come.get(name, ())
            amounts, ports = Counter(use.amounts), use.ports
            for other in gone:
                amounts.subtract(dict(other.rules.needs))
                ports -= other.rules.ports
            for other in come:
                amounts.update(dict(other.rules.needs))
                ports |= other.rules.ports
            use = NodeUse(amounts, ports)
        return not any(True for _ in shortages(pod.rules, self.cluster.nodes[name].node.rules, use))

    def best(
        self, pod: NeuronPod, *, skipped: Collection[str] = (), instance_type: str = ""
    ) -> tuple[str, Placement] | None:
        """The pod's best node, and its sets there; None if it fits nowhere."""
        called = _Called(self, pod, instance_type)
        answers = self._choices.answers(pod.requests, pod.strategy_or(self.cluster.strategy))
        name = answers.best(called, skipped, self.changed)
        placement = self.place(pod, name) if name else None
        return (name, placement) if placement else None

    def place(self, pod: NeuronPod, name: str) -> Placement | None:
        """The best sets that a node has for the pod."""
        capacity = self.node(name).capacity
        placed = capacity if isinstance(capacity, Rejection) else capacity.place(pod.requests)
        return None if isinstance(placed, Rejection) else placed

    def place_together(self, pods: Iterable[NeuronPod]) -> dict[PodUid, tuple[str, Placement]]:
        """A place for each pod that fits beside the others, the largest first; they are put there."""
        waiting = {pod.uid: pod for pod in pods}
        tried = self.fork()

        def best(pod: NeuronPod, changed: Mapping[str, NodeInfo]) -> str:
            tried.changed = {**self.changed, **changed}
            home = tried.best(pod)
            if home:
                tried.come[home[0]] = (*tried.come.get(home[0], ()), pod)
            return home[0] if home else ""

        places = place_together(waiting.values(), {**self.cluster.nodes, **self.changed}, best)
        for uid, (name, placement) in places.items():
            self.put(waiting[uid], name, placement)
        return places

    def rehome(
        self, pods: Iterable[NeuronPod], source: NodeInfo, *, skipped: Collection[str] = ()
    ) -> tuple[Relocation, ...]:
        """New sets for pods that have left ``source``, the node as it was with them, largest first.

        Pods that fit nowhere are left out. A pod stays on hardware of the kind that it has: what it runs was compiled
        for that.
        """
        instance_type = source.inventory.geometry.instance_type if source.inventory else ""
        ledger, relocations = source.ledger, list[Relocation]()
        for pod in sorted(pods, key=lambda pod: (-ledger.mask_of(pod.uid).bit_count(), pod.reference.name)):
            if pod.requests and (home := self.best(pod, skipped=skipped, instance_type=instance_type)):
                self.put(pod, *home)
                relocations.append(Relocation(pod, source.name, ledger.mask_of(pod.uid), *home))
        return tuple(relocations)


class _Called:
    """The nodes that a pod may go to, looked at one by one, as the choice comes to them."""

    def __init__(self, scene: _Scene, pod: NeuronPod, instance_type: str) -> None:
        self._scene = scene
        self._pod = pod
        self._eligible = scene.eligible(pod)
        self._instance_type = instance_type

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name not in self._eligible:
            return False
        inventory = self._scene.cluster.nodes[name].inventory
        if self._instance_type and (not inventory or inventory.geometry.instance_type != self._instance_type):
            return False
        return self._scene.has_room(self._pod, name)


def cheapest_move(cluster: Cluster, pod: NeuronPod, *, now: float = 0.0, rules: MoveRules = RULES) -> Move | None:
    """The move that loses the fewest device-hours, then the one of fewest victims, then of the smallest.

    By rules that preempt: of fewest victims, then of the lowest priorities, then of the fewest device-hours. ``now`` is
    in unix seconds. A set that is free needs no move and is none.
    """
    return _cheapest_move(_Scene(cluster), pod, now, rules)


def _cheapest_move(scene: _Scene, pod: NeuronPod, now: float, rules: MoveRules) -> Move | None:
    """The cheapest move, made in the scene."""
    ranked: list[tuple[tuple[float, ...], str, int, float, tuple[NeuronPod, ...]]] = []
    for name in scene.eligible(pod):
        info = scene.node(name)
        inventory = info.inventory
        if inventory is None or isinstance(info.capacity, Rejection):
            continue
        key = name, pod.requests, pod.priority, rules
        if key not in scene.openings or scene.openings[key][0] is not info:
            openings = {
                tuple(victim.uid for victim in victims): victims for victims in _openings(scene, info, pod, rules)
            }
            scene.openings[key] = info, list(openings.values())
        for number, victims in enumerate(scene.openings[key][1]):
            cores = [info.ledger.mask_of(victim.uid).bit_count() for victim in victims]
            hours = (max(0.0, now - victim.work_since) / SECONDS_AN_HOUR for victim in victims)
            core_hours = sum(held * hour for held, hour in zip(cores, hours, strict=True))
            loss = core_hours / inventory.geometry.cores_per_device
            rank: tuple[float, ...] = loss, len(victims), sum(cores)
            if rules.preempts:
                rank = len(victims), *sorted((victim.priority for victim in victims), reverse=True), loss
            ranked.append((rank, name, number, loss, victims))
    ranked.sort(key=itemgetter(slice(3)))
    for _, name, _, loss, victims in ranked:
        trial = scene.fork()
        trial.remove(victims, name)
        placement = trial.place(pod, name)
        if placement is None or not trial.has_room(pod, name):
            continue
        trial.put(pod, name, placement)
        source = scene.node(name)
        if rules.preempts:
            had = source.ledger
            relocations = tuple(Relocation(victim, name, had.mask_of(victim.uid), "", ()) for victim in victims)
        else:
            relocations = trial.rehome(victims, source)
        if len(relocations) == len(victims):
            scene.adopt(trial)
            return Move(pod, name, placement, relocations, loss)
    return None


def _openings(scene: _Scene, info: NodeInfo, pod: NeuronPod, rules: MoveRules) -> Iterator[tuple[NeuronPod, ...]]:
    """Who would have to go: for each valid set of one container, else groups of victims, smallest first.

    Of groups that are preempted the first that is enough, which has the lowest priorities, is the only one. Where there
    are too many to look at each, it is the shortest list of those of the lowest priorities.
    """
    inventory, capacity, pods = info.inventory, info.capacity, scene.cluster.pods
    if inventory is None or isinstance(capacity, Rejection):
        return
    most = rules.most_victims
    movable = [
        (victim, info.ledger.mask_of(uid))
        for uid in info.ledger.by_pod
        if (victim := pods.get(uid)) and victim.node and rules.may_move(scene.cluster, victim, pod)
    ]
    if len(pod.requests) == 1:
        container, geometry = pod.requests[0], inventory.geometry
        within = int(info.free_mask)
        for _, mask in movable:
            within |= mask & inventory.healthy_mask & ~info.reserved_mask
        within &= usable_mask(geometry, container, capacity.facts.unused)
        for chosen in valid_sets(geometry, container.resource.unit, container.count):
            if chosen & within == chosen:
                victims = tuple(victim for victim, mask in movable if mask & chosen)
                if 0 < len(victims) <= most:
                    yield victims
        return
    if rules.preempts:
        movable.sort(key=lambda candidate: candidate[0].priority)
    candidates = [victim for victim, _ in movable]

    def is_enough(group: Sequence[NeuronPod]) -> bool:
        freed = info.without({victim.uid for victim in group}).capacity
        return isinstance(freed, Capacity) and not isinstance(freed.place(pod.requests), Rejection)

    if not is_enough(candidates):
        return
    groups = (group for size in range(1, most + 1) for group in lowest_first(candidates, size))
    for group, _ in zip(groups, range(MOST_TRIALS), strict=False):
        if is_enough(group):
            yield group
            if rules.preempts:
                return  # the fewest, and of these those of the lowest priorities
    if rules.preempts:
        sizes = range(len(candidates) + 1)
        size = bisect_left(sizes, 1, key=lambda size: int(is_enough(candidates[:size])))
        if size <= min(most, len(candidates)):
            yield tuple(candidates[:size])


def lowest_first(ranked: Sequence[_T], size: int) -> Iterator[tuple[_T, ...]]:
    """The groups of so many, ordered by their highest member, then by the next; ``ranked`` has the lowest in front."""
    if size == 0:
        yield ()
        return
    for top in range(size - 1, len(ranked)):
        for lower in lowest_first(ranked[:top], size - 1):
            yield (*lower, ranked[top])


def still_possible(cluster: Cluster, move: Move, rules: MoveRules) -> bool:
    """Whether a move that was found in an earlier state of the cluster can be made as it is."""
    scene = _Scene(cluster)
    waiting = cluster.pods.get(move.pod.uid)
    if waiting is None or waiting.node or waiting.terminating:
        return False
    for victim in move.victims:
        now, source = cluster.pods.get(victim.pod.uid), cluster.nodes.get(victim.source)
        if now is None or source is None or source.ledger.mask_of(now.uid) != victim.had_mask:
            return False
        if not rules.may_move(cluster, now, waiting):
            return False
        scene.remove((now,), victim.source)
    sets = [(waiting, move.node, move.placement)]
    sets += [(victim.pod, victim.target, victim.placement) for victim in move.victims if victim.target]
    for pod, name, placement in sets:
        if name not in cluster.nodes or isinstance(scene.node(name).capacity, Rejection):
            return False
        mask = placement_mask(placement)
        if mask & scene.node(name).free_mask != mask or name not in scene.eligible(pod):
            return False
        if not scene.has_room(pod, name):
            return False
        scene.put(pod, name, placement)
    return True


def after(nodes: Mapping[str, NodeInfo], move: Move) -> dict[str, NodeInfo]:
    """The nodes that a move changes, with the move made and the waiting pod in its sets."""
    changed: dict[str, NodeInfo] = {}
    for victim in move.victims:
        source = changed.get(victim.source) or nodes[victim.source]
        changed[victim.source] = source.without({victim.pod.uid})
    for name, pod, placement in (
        (move.node, move.pod, move.placement),
        *((victim.target, victim.pod, victim.placement) for victim in move.victims),
    ):
        changed[name] = (changed.get(name) or nodes[name]).with_pod(pod.reference, placement)
    return changed


@dataclass(frozen=True, slots=True)
class Drain:
    """What emptying a node takes: where its pods fit now, and those that fit nowhere or cannot be judged, with why."""

    node: str
    moved: tuple[Relocation, ...]
    stuck: tuple[tuple[NeuronPod, str], ...]


def drain(cluster: Cluster, name: str) -> Drain:
    """Find each pod of a node a set on another node of the same type, largest first, as if all were free to move."""
    scene = _Scene(cluster)
    pods = [pod for pod in cluster.pods.values() if pod.node == name and pod.request]
    judged = [pod for pod in pods if not (pod.refusal or pod.rules.depends_on_pods)]
    moved = scene.rehome(judged, cluster.nodes[name], skipped={name})
    homes = {relocation.pod.uid for relocation in moved}
    stuck = (pod for pod in pods if pod.uid not in homes)
    return Drain(name, moved, tuple((pod, why_not_judged(pod) or "fits on no other node now") for pod in stuck))


def why_not_judged(pod: NeuronPod) -> str:
    """Why no plan can say where a pod may go; empty if one can."""
    if refusal := pod.refusal:
        return str(refusal)
    if others := [gate for gate in pod.rules.gates if gate != GATE]:
        return f"it waits for its scheduling gate to be lifted: {', '.join(others)}"
    if pod.rules.depends_on_pods:
        return "pod affinity or a hard topology spread: other pods decide where it may go"
    return ""


def how_many_more(cluster: Cluster, pod: NeuronPod) -> dict[str, int]:
    """How many copies of a pod fit each node beside what is there, where any does."""
    scene, more = _Scene(cluster), dict[str, int]()
    known: dict[Capacity, int] = {}
    for name in sorted(scene.eligible(pod)):
        capacity = cluster.nodes[name].capacity
        if isinstance(capacity, Rejection):
            continue
        if capacity not in known:
            copies = 0
            while not isinstance(capacity.place(pod.requests * (copies + 1)), Rejection):
                copies += 1
            known[capacity] = copies
        if known[capacity]:
            more[name] = known[capacity]
    return more


class Standing(enum.StrEnum):
    """How a waiting pod stands, as far as can be judged."""

    FITS = "fits"
    PIECES = "pieces"
    """Enough is free, but on several nodes, not linked, or in parts of devices."""
    SHORT = "short"
    """Less is free than the pod asks for."""
    NEVER = "never"
    """No open node could take it even if it were empty."""
    UNKNOWN = "unknown"
    """Something that is not looked at decides; the reason says what."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a waiting pod can expect: the sets that it fits now, or the move that would open them, or why not.

    ``held_under_another_name``: pods of lower priority are in its way, and kube-scheduler would not evict them.
    """

    pod: NeuronPod
    standing: Standing
    node: str = ""
    placement: Placement = ()
    move: Move | None = None
    reason: str = ""
    held_under_another_name: bool = False


def prospects(
    cluster: Cluster,
    pods: Iterable[NeuronPod],
    *,
    now: float = 0.0,
    rules: MoveRules = RULES,
    preempting: Container[PodUid] = (),
    unmoved: Container[PodUid] = (),
) -> list[Prospect]:
    """The prospects of waiting pods, in the order given; each has its sets, or its move, before the next is looked at.

    So what is promised to two pods can be had by both. A group is looked at as a whole when its first member comes.
    Pods of lower priority may go for those of ``preempting``, where no move helps. For a pod of ``unmoved`` no move
    would be made, so it preempts though one would help.
    """
    scene, expected = _Scene(cluster), list[Prospect]()
    together: dict[tuple[str, str], tuple[dict[PodUid, Prospect], str]] = {}
    for pod in pods:
        if reason := why_not_judged(pod):
            standing = Standing.NEVER if pod.refusal else Standing.UNKNOWN
            expected.append(Prospect(pod, standing, reason=reason))
        elif pod.group and cluster.is_gang(pod):
            if pod.group not in together:
                together[pod.group] = _group(scene, pod.group, now, preempting)
            members, reason = together[pod.group]
            if reason:
                expected.append(Prospect(pod, _standing(scene, pod), reason=reason))
            elif pod.uid in members:
                expected.append(members[pod.uid])
            else:
                expected.append(Prospect(pod, Standing.SHORT, reason="the rest of its group is placed without it"))
        elif home := scene.best(pod):
            scene.put(pod, *home)
            expected.append(Prospect(pod, Standing.FITS, *home))
        else:
            standing = _standing(scene, pod)
            ways = [rules] if standing is Standing.PIECES else []
            if pod.uid in preempting and pod.preempts and standing is not Standing.NEVER:
                ways = [PREEMPTION, *ways] if pod.uid in unmoved else [*ways, PREEMPTION]
            move = next((move for way in ways if (move := _cheapest_move(scene, pod, now, way))), None)
            reason = "" if move else _reason(scene, pod, standing)
            helps_itself = pod.uid in preempting or standing is Standing.NEVER
            crossed = not helps_itself and _held_under_another_name(scene, pod)
            expected.append(Prospect(pod, standing, "", (), move, reason, crossed))
    return expected


def waiting_members(cluster: Cluster, group: tuple[str, str]) -> list[NeuronPod]:
    """The members of a group that have no node yet."""
    placed = {uid for info in cluster.nodes.values() for uid in info.ledger.by_pod}
    members = (pod for pod in cluster.pods.values() if pod.group == group)
    return [pod for pod in members if not (pod.node or pod.terminating or pod.uid in placed)]


def _group(
    scene: _Scene, group: tuple[str, str], now: float, preempting: Container[PodUid]
) -> tuple[dict[PodUid, Prospect], str]:
    """The prospects of the waiting members of a group, or why the group does not fit as a whole."""
    cluster, trial = scene.cluster, scene.fork()
    waiting = waiting_members(cluster, group)
    members = sum(pod.group == group and not pod.terminating for pod in cluster.pods.values())
    missing = cluster.min_counts[group] - (members - len(waiting))
    if len(waiting) < missing:
        return {}, f"{members} of the {cluster.min_counts[group]} pods of its group {group[1]} are there"
    places = trial.place_together(waiting)
    members_expected = {pod.uid: Prospect(pod, Standing.FITS, *places[pod.uid]) for pod in waiting if pod.uid in places}
    others = [pod for pod in waiting if pod.uid not in places and pod.uid in preempting and pod.preempts]
    for pod in others if len(places) < missing else ():
        if move := _cheapest_move(trial, pod, now, PREEMPTION):
            members_expected[pod.uid] = Prospect(pod, Standing.SHORT, move=move)
    if len(members_expected) < missing:
        room = f"{len(places)} of {len(waiting)} waiting pods have room, at least {missing} need it"
        return {}, f"its group {group[1]} does not fit as a whole: {room}"
    scene.adopt(trial)
    return members_expected, ""


def _standing(scene: _Scene, pod: NeuronPod) -> Standing:
    """Of a pod that fits nowhere now. Free devices where it may not go itself count, too: others can move there."""
    eligible, free = scene.eligible(pod), Counter[Geometry]()
    kinds: dict[tuple[Geometry, CoreMask, object], bool] = {}
    possible = set[Geometry]()
    for name in scene.cluster.nodes:
        info = scene.node(name)
        if info.inventory is None or isinstance(info.capacity, Rejection):
            continue
        geometry, healthy_mask, facts = info.inventory.geometry, info.inventory.healthy_mask, info.node.facts
        free[geometry] += info.free_mask.bit_count()
        if name in eligible:
            key = geometry, healthy_mask, facts
            if key not in kinds:
                kinds[key] = not isinstance(place(geometry, healthy_mask, pod.requests, facts), Rejection)
            if kinds[key]:
                possible.add(geometry)
    if not possible:
        return Standing.NEVER
    asked = {kind: sum(cores_asked(kind, container) for container in pod.requests) for kind in possible}
    return Standing.PIECES if any(free[kind] >= asked[kind] for kind in possible) else Standing.SHORT


def _held_under_another_name(scene: _Scene, pod: NeuronPod) -> bool:
    """Whether evictions of lower priority would open a node, though kube-scheduler sees no victims there.

    kube-scheduler looks for victims by the count of the resource that the pod asks for. Pods that hold the devices
    under another name lower what the node offers under this one, and are never its victims.
    """
    cluster = scene.cluster
    if not pod.preempts or all(other.priority >= pod.priority for other in cluster.pods.values() if other.node):
        return False
    asked = {container.resource for container in pod.requests}
    for name in scene.eligible(pod):
        info = cluster.nodes[name]
        lower = {
            uid: {allocation.resource for allocation in allocations}
            for uid, allocations in info.ledger.by_pod.items()
            if uid in cluster.pods and cluster.pods[uid].priority < pod.priority
        }
        if isinstance(info.capacity, Rejection) or all(names <= asked for names in lower.values()):
            continue
        opened = info.without(set(lower)).capacity
        under_this_name = info.without({uid for uid, names in lower.items() if names <= asked}).capacity
        if not isinstance(opened, Capacity) or isinstance(opened.place(pod.requests), Rejection):
            continue
        if isinstance(under_this_name, Rejection) or isinstance(under_this_name.place(pod.requests), Rejection):
            return True
    return False


def _reason(scene: _Scene, pod: NeuronPod, standing: Standing) -> str:
    """Why a pod fits nowhere and no move helps, by the reason that most nodes give."""
    eligible = scene.eligible(pod)
    texts: Counter[str] = Counter()
    for name in eligible:
        info = scene.node(name)
        capacity = info.capacity
        if standing is Standing.NEVER and info.inventory:  # what pods do there changes nothing
            geometry, facts = info.inventory.geometry, info.node.facts
            capacity = capacity_of(geometry, info.inventory.healthy_mask, info.inventory.healthy_mask, facts)
        placed = capacity if isinstance(capacity, Rejection) else capacity.place(pod.requests)
        texts[placed.text if isinstance(placed, Rejection) else "Too little CPU, memory, ports or the like"] += 1
    if not texts:
        volumes = scene.cluster.volumes.get(pod.uid, ())
        objected = (objections(pod.rules, name, info.node.rules, volumes) for name, info in scene.cluster.nodes.items())
        texts = Counter(next(reasons, "") for reasons in objected)
        ((text, count),) = texts.most_common(1) or (("", 0),)
        why = f": {text} ({count} of {len(scene.cluster.nodes)} nodes)" if text else ""
        return f"kube-scheduler's own rules leave it no node{why}"
    ((text, count),) = texts.most_common(1)
    more = "; no move of pods that may be moved makes room" if standing is Standing.PIECES else ""
    return f"{text} ({count} of {len(eligible)} nodes){more}"
