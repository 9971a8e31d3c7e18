"""Which pods have to go so that a pod fits: the one search behind moves, preemption and drains.

Often enough is free and nothing fits: the free devices are spread over nodes, or are not linked. Moving a pod that fits
elsewhere *now* mends that. Where no move helps, pods of lower priority may be evicted for one of higher priority, the
fewest and then the lowest.

A search runs on a copy of the placement controller's records, with the same choice of node and set. A move is only
proposed if every victim has its set elsewhere. By then the waiting pod counts as having the opened set, and earlier
victims as having theirs. Disruption budgets are summed over the victims that use them. A move that needs more than a
budget allows now is proposed only if it can go on once the first victims run elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from neuron_plugin.allocation import Capacity, NeuronPod, NodeInfo, Placement, PodRequest, Rejection
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.group import rank_text
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.pod import in_rank_order
from neuron_plugin.planning.scene import Cluster, Scene
from neuron_plugin.topology import CoreMask, valid_sets
from neuron_plugin.wording import first_of

_T = TypeVar("_T")

MOST_NAMED = 5
"""Pods in one warning."""
MOST_TRIALS = 2_000
"""Groups of victims looked at on one node for a pod of several requesting containers."""
SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Relocation:
    """A pod that goes from one node to another, or to another set of the same. ``had_mask`` are its present cores.

    A preempted pod has no ``target``: its next place is not looked for.
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
    """Victims that make room, and the sets that a pod gets then. ``loss`` is their loss in device-hours."""

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
    def note(self) -> str:
        """The effect of the move, as text."""
        moves = ", ".join(
            f"{victim.pod.reference} from node {victim.source} to {victim.target}"
            if victim.target
            else f"{victim.pod.reference} off node {victim.source}"
            for victim in self.victims
        )
        return f"Node {self.node} would have room after a move of {moves}: see neuron-plugin plan"

    @property
    def preempts(self) -> bool:
        """Whether the victims go because their priority is lower, with or without another place."""
        return any(not victim.target for victim in self.victims)

    def is_possible(self, cluster: Cluster, rules: MoveRules) -> bool:
        """Whether the move, found in an earlier state of the cluster, can be made as it is."""
        scene = Scene(cluster)
        waiting = cluster.pods.get(self.pod.uid)
        if waiting is None or waiting.node or waiting.terminating:
            return False
        for victim in self.victims:
            now, source = cluster.pods.get(victim.pod.uid), cluster.nodes.get(victim.source)
            if now is None or source is None or source.ledger.mask_of(now.uid) != victim.had_mask:
                return False
            if not rules.may_move(cluster, now, waiting):
                return False
            scene.remove((now,), victim.source)
        sets = [(waiting, self.node, self.placement)]
        sets += [(victim.pod, victim.target, victim.placement) for victim in self.victims if victim.target]
        for pod, name, placement in sets:
            if name not in cluster.nodes or isinstance(scene.node(name).capacity, Rejection):
                return False
            mask = placement_mask(placement)
            if mask & scene.own_node(pod, name).free_mask != mask or name not in scene.allowed(pod):
                return False
            scene.put(pod, name, placement)
        return True

    def made_on(self, nodes: Mapping[str, NodeInfo]) -> dict[str, NodeInfo]:
        """The nodes that the move changes, with the move made and the waiting pod in its sets."""
        changed: dict[str, NodeInfo] = {}
        for victim in self.victims:
            source = changed.get(victim.source) or nodes[victim.source]
            changed[victim.source] = source.without({victim.pod.uid})
        for name, pod, placement in (
            (self.node, self.pod, self.placement),
            *((victim.target, victim.pod, victim.placement) for victim in self.victims),
        ):
            changed[name] = (changed.get(name) or nodes[name]).with_pod(pod.reference, placement)
        return changed


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Which pods may be moved. ``by_priority``: also pods of lower priority than the waiting one, without consent.

    With ``preempts`` every pod of lower priority may go, and no new place is looked for.
    """

    most_victims: int = 4
    by_priority: bool = False
    preempts: bool = False

    def may_move(self, cluster: Cluster, victim: NeuronPod, waiting: NeuronPod) -> bool:
        """Whether a pod may be evicted for the waiting one.

        Nothing makes a pod without a controller again, and moving a member would split its group.
        """
        if victim.terminating or victim.uid in cluster.protected or Budget.protect(cluster.budgets, victim):
            return False
        if self.preempts:
            return victim.priority < waiting.priority
        if victim.uid in cluster.left_alone or not victim.made_again or victim.group:
            return False
        return not victim.refusal and (
            cluster.is_movable(victim) or (self.by_priority and victim.priority < waiting.priority)
        )


RULES = MoveRules()
PREEMPTION = MoveRules(most_victims=64, preempts=True)


def cheapest_move(
    scene: Scene,
    pod: NeuronPod,
    *,
    now: float = 0.0,
    rules: MoveRules = RULES,
    among: Collection[str] | None = None,
) -> Move | None:
    """The move that loses the fewest device-hours, then with the fewest victims, then with the smallest.

    If the rules preempt: the fewest victims, then the lowest priorities, then the fewest device-hours. Device-hours of
    idle pods count last, so idle pods go first. Before all of that come nodes that are kept for the pod and lent to
    others, then moves that budgets allow at once. ``now`` is in unix seconds. A set that is free is no move. The move
    is made in the scene. Only the nodes ``among`` are opened, if given.
    """
    ranked: list[tuple[bool, tuple[float, ...], str, int, float, tuple[NeuronPod, ...]]] = []
    eligible, own = scene.eligible(pod), {kept.node for kept in scene.cluster.kept_for(pod)}
    for name in eligible if among is None else eligible.intersection(among):
        info = scene.own_node(pod, name)
        inventory = info.inventory
        if inventory is None or isinstance(info.capacity, Rejection):
            continue
        for number, victims in enumerate(_known_openings(scene, info, pod, rules)):
            cores = [info.ledger.mask_of(victim.uid).bit_count() for victim in victims]
            loss = device_hours(zip(victims, cores, strict=True), inventory.geometry.cores_per_device, now)
            beyond = _beyond(scene, victims)
            if not all(budget.recovers for budget in beyond):
                continue  # a move that was begun could not be ended
            over = sum(len(pods) - budget.allowed for budget, pods in beyond.items())
            working = [one for one in zip(victims, cores, strict=True) if not _is_idle(one[0], name, scene)]
            at_work = device_hours(working, inventory.geometry.cores_per_device, now)
            rank: tuple[float, ...] = over, at_work, loss, len(victims), sum(cores)
            if rules.preempts:
                lowest = sorted((victim.priority for victim in victims), reverse=True)
                rank = over, len(victims), *lowest, at_work, loss
            ranked.append((name not in own, rank, name, number, loss, victims))
    ranked.sort(key=itemgetter(slice(4)))
    for _, rank, name, _, loss, victims in ranked:
        if move := _tried(scene, pod, name, victims, loss, int(rank[0]), rules):
            return move
    return None


def _is_idle(pod: NeuronPod, name: str, scene: Scene) -> bool:
    """Whether each container of a pod is known to have executed nothing for a while."""
    uses = scene.cluster.utilization.get(name, {}).get(pod.uid, {}).values()
    return bool(uses) and all(use.idle_since for use in uses)


def device_hours(victims: Iterable[tuple[NeuronPod, int]], cores_per_device: int, now: float) -> float:
    """The loss of these victims if they go now; each comes with the number of its cores."""
    hours = (cores * max(0.0, now - pod.work_since) / SECONDS_AN_HOUR for pod, cores in victims)
    return sum(hours) / cores_per_device


def _tried(
    scene: Scene, pod: NeuronPod, name: str, victims: Sequence[NeuronPod], loss: float, over: int, rules: MoveRules
) -> Move | None:
    """The move of these victims, if it serves the pod; it is then made in the scene."""
    trial, source = scene.fork(), scene.node(name)
    trial.remove(victims, name)
    placement = trial.place(pod, name)
    if placement is None or name not in trial.allowed(pod):
        return None
    trial.put(pod, name, placement)
    if not rules.preempts:
        relocations = rehome(trial, victims, source)
        if len(relocations) < len(victims):
            return None
    else:
        # Victims of one stage have to run elsewhere before the budget allows more.
        staged = [victim for pods in _beyond(scene, victims).values() for victim in pods] if over else []
        if staged and len(rehome(trial.fork(), staged, source)) < len(staged):
            return None
        relocations = tuple(Relocation(victim, name, source.ledger.mask_of(victim.uid), "", ()) for victim in victims)
    scene.adopt(trial)
    return Move(pod, name, placement, relocations, loss)


def _beyond(scene: Scene, victims: Collection[NeuronPod]) -> dict[Budget, list[NeuronPod]]:
    return Budget.beyond(scene.cluster.budgets, victims) if scene.cluster.budgets else {}


def _known_openings(scene: Scene, info: NodeInfo, pod: NeuronPod, rules: MoveRules) -> Sequence[tuple[NeuronPod, ...]]:
    """The openings of a node for a kind of pod, worked out once for each state of the node."""
    key = info.name, pod.requests, pod.priority, rules
    known = scene.openings.get(key)
    if known is None or known[0] is not info:
        pods = scene.cluster.pods
        candidates = [
            victim
            for uid in info.ledger.by_pod
            if (victim := pods.get(uid)) and victim.node and rules.may_move(scene.cluster, victim, pod)
        ]
        unlike = {
            tuple(victim.uid for victim in victims): victims
            for victims in openings(info, pod.requests, candidates, rules)
        }
        known = scene.openings[key] = info, list(unlike.values())
    return known[1]


def openings(
    info: NodeInfo,
    request: PodRequest,
    candidates: Sequence[NeuronPod],
    rules: MoveRules,
    *,
    most_trials: int = MOST_TRIALS,
) -> Iterator[tuple[NeuronPod, ...]]:
    """The candidates that would have to leave a node: for each valid set of one container, else groups of them.

    Groups come smallest first. If they preempt, only the first sufficient group is given: it has the lowest priorities.
    If there are too many groups, it is the shortest sufficient list of pods of the lowest priorities.
    """
    inventory, capacity, most = info.inventory, info.capacity, rules.most_victims
    if inventory is None or isinstance(capacity, Rejection):
        return
    if len(request) == 1 and not request[0].amounts:
        container, geometry = request[0], inventory.geometry
        masks = [(victim, info.ledger.mask_of(victim.uid)) for victim in candidates]
        within = int(info.free_mask)
        for _, mask in masks:
            within |= mask & inventory.healthy_mask & ~info.reserved_mask
        within &= usable_mask(geometry, container, capacity.facts.unused)
        for chosen in valid_sets(geometry, container.resource.unit, container.count):
            if chosen & within == chosen:
                victims = tuple(victim for victim, mask in masks if mask & chosen)
                if 0 < len(victims) <= most:
                    yield victims
        return
    if rules.preempts:
        candidates = sorted(candidates, key=lambda victim: victim.priority)

    def is_enough(group: Sequence[NeuronPod]) -> bool:
        freed = info.without({victim.uid for victim in group}).capacity
        return isinstance(freed, Capacity) and not isinstance(freed.place(request), Rejection)

    if not is_enough(candidates):
        return
    groups = (group for size in range(1, most + 1) for group in lowest_first(candidates, size))
    for group, _ in zip(groups, range(most_trials), strict=False):
        if is_enough(group):
            yield group
            if rules.preempts:
                return  # the fewest victims, among these the lowest priorities
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


def rehome(
    scene: Scene, pods: Iterable[NeuronPod], source: NodeInfo, *, skipped: Collection[str] = ()
) -> tuple[Relocation, ...]:
    """New sets for pods that have left ``source``, the node as it was with them, largest first.

    Pods that fit nowhere are left out. A pod stays on its kind of hardware: its model was compiled for it.
    """
    instance_type = source.inventory.geometry.instance_type if source.inventory else ""
    ledger, relocations = source.ledger, list[Relocation]()
    for pod in sorted(pods, key=lambda pod: (-ledger.mask_of(pod.uid).bit_count(), pod.reference.name)):
        if pod.requests and (home := scene.best(pod, skipped=skipped, instance_type=instance_type)):
            scene.put(pod, *home)
            relocations.append(Relocation(pod, source.name, ledger.mask_of(pod.uid), *home))
    return tuple(relocations)


@dataclass(frozen=True, slots=True)
class Drain:
    """How to empty a node: where its pods fit now, and the pods that fit nowhere or cannot be judged, with why.

    ``warnings`` are those of ``kubectl drain``: pods that nothing makes again, and budgets that refuse. They also name
    groups that lose a member.
    """

    node: str
    moved: tuple[Relocation, ...]
    stuck: tuple[tuple[NeuronPod, str], ...]
    warnings: tuple[str, ...] = ()


def drain(cluster: Cluster, name: str, devices: Collection[int] = ()) -> Drain:
    """Find each pod of a node a set on another node of the same type, largest first, as if all were free to move.

    With ``devices`` only the pods that have one of them go, and they may stay on the node: the devices are disabled.
    """
    scene, info = Scene(cluster), cluster.nodes[name]
    there = [pod for pod in cluster.pods.values() if pod.node == name and pod.request and not pod.terminating]
    # A drain leaves pods of DaemonSets, which are made on this node again.
    pods = [pod for pod in there if devices or pod.made_again or not pod.controller]
    if devices and info.inventory:
        mask = info.inventory.geometry.devices_mask(devices)
        pods = [pod for pod in pods if info.ledger.mask_of(pod.uid) & mask]
    elsewhere = () if devices else (name,)
    doubts = {pod.uid: str(why) for pod in pods if (why := cluster.refusal(pod) or scene.doubt(pod))}
    scene.remove(pods, name)
    moved = rehome(scene, [pod for pod in pods if pod.uid not in doubts], info, skipped=elsewhere)
    homes = {relocation.pod.uid for relocation in moved}
    stuck = [
        (pod, doubts.get(pod.uid) or _why_stuck(scene, pod, name, elsewhere)) for pod in pods if pod.uid not in homes
    ]
    return Drain(name, moved, tuple(stuck), tuple(_drain_warnings(cluster, pods if devices else there)))


def _why_stuck(scene: Scene, pod: NeuronPod, name: str, skipped: Collection[str]) -> str:
    own = scene.cluster.nodes[name].inventory
    instance_type = own.geometry.instance_type if own else ""
    if scene.best(pod, skipped=skipped):
        return f"fits on no other {instance_type} now, only on other hardware than it was compiled for"
    if not skipped:
        return "fits nowhere else now"
    alike = [
        info
        for other, info in scene.cluster.nodes.items()
        if other != name and info.inventory and info.inventory.geometry.instance_type == instance_type
    ]
    return "fits on no other node now" if alike else f"there is no other {instance_type} node"


def _drain_warnings(cluster: Cluster, pods: Sequence[NeuronPod]) -> Iterator[str]:
    for pod in pods:
        if pod.controller and not pod.made_again:
            yield f"{pod.reference} is of a DaemonSet: kubectl drain needs --ignore-daemonsets, and leaves it"
        elif not pod.controller:
            yield f"{pod.reference} has no controller: kubectl drain needs --force, and it is not made again"
    if local := [str(pod.reference) for pod in pods if pod.local_storage]:
        has = f"{first_of(local, MOST_NAMED)} {'has' if len(local) == 1 else 'have'} emptyDir volumes"
        yield f"{has}: kubectl drain needs --delete-emptydir-data, and what is in them is lost"
    for group, size in {pod.member.group: pod.member.size for pod in pods if pod.member}.items():
        lost = in_rank_order(pod for pod in pods if pod.group == group)
        number = size or len(cluster.members_of(group))
        ranks = [rank_text(pod.member.rank) for pod in lost if pod.member and pod.member.rank]
        which = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if len(ranks) == len(lost) else str(len(lost))
        names = ", ".join(pod.reference.name for pod in lost)
        if number > 1:
            yield f"group {'/'.join(group)} breaks without {names} ({which} of {number}): its framework must restart it"
    for budget, own in Budget.beyond(cluster.budgets, pods).items():
        then = "kubectl drain waits" if budget.allowed or budget.recovers else "kubectl drain does not end"
        yield f"{budget.text(own)}: {then}"
    shared = [pod for pod in pods if sum(budget.is_for(pod.labels) for budget in cluster.budgets) > 1]
    yield from (f"{pod.reference} has several PodDisruptionBudgets: the API server never evicts it" for pod in shared)


def how_many_fit(cluster: Cluster, pod: NeuronPod) -> dict[str, int]:
    """How many more copies of a pod fit each node, for nodes with room for any.

    Copies count towards CPU, memory and the like, but not towards rules among pods.
    """
    scene, fitting = Scene(cluster), dict[str, int]()
    allowed, known = scene.allowed(pod), dict[Capacity, int]()
    for name in sorted(cluster.nodes):
        capacity = cluster.nodes[name].capacity
        if isinstance(capacity, Rejection) or name not in allowed:
            continue
        if capacity not in known:
            copies = 0
            while not isinstance(capacity.place(pod.requests * (copies + 1)), Rejection):
                copies += 1
            known[capacity] = copies
        beside = next(scene.rooms(pod, [name]))
        if count := known[capacity] if beside is None else min(known[capacity], beside):
            fitting[name] = count
    return fitting
