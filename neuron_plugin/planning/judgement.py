"""The judgement of a waiting pod: where it fits, or why it waits, which pods are in the way and what would help.

This is the one place that says why a pod waits. Doors decide by it. Events, ``explain``, ``plan``, the page and metrics
print its value and add nothing.

A judgement holds for one kind of pod at one state of the cluster. ``node_answers`` has the answers of single nodes.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from neuron_plugin.allocation import (
    Capacity,
    NeuronPod,
    PodReference,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.placement import cores_asked, place, placement_mask
from neuron_plugin.allocation.pod import in_rank_order
from neuron_plugin.planning.groups import GroupPlan, anchors_of, domains_for, members_to_come, place_group
from neuron_plugin.planning.node_answers import (
    LEFT,
    NodeAnswer,
    are_old_pods,
    nearest_holders,
    node_answers,
    sentence_of,
)
from neuron_plugin.planning.population import likeness
from neuron_plugin.planning.scene import Allowed, Place, Scene
from neuron_plugin.planning.victims import PREEMPTION, RULES, Move, MoveRules, Relocation, cheapest_move, device_hours
from neuron_plugin.topology import CoreMask, Geometry
from neuron_plugin.wording import first_of

MOST_HOLDERS = 3
"""Pods in the way that a sentence names; the others are counted."""
UNTRIED_SECONDS = 10.0
"""The age of a pod from which on it is a finding that no scheduler has looked at it."""
IGNORED_SECONDS = 120.0
"""The same if nodes have pods with its scheduler's name: a busy scheduler takes its time."""
HELD_BY_OLD_PODS = "The old pods of the same Deployment hold it: with strategy.rollingUpdate.maxSurge 0 they end first"
HELD_UNDER_ANOTHER_NAME = (
    "Pods of lower priority hold Neuron devices under another resource name, and kube-scheduler does not preempt "
    "across resource names. Evict them by hand, or let the controller do it: make-room: act, make-room-by-priority."
)


class Standing(enum.StrEnum):
    """How a waiting pod stands."""

    FITS = "fits"
    LINKS = "links"
    """Enough is free, but not linked or not on one node, and a move of other pods would help."""
    SHORT = "short"
    """Too little is free, and no move helps."""
    RULES = "rules"
    """kube-scheduler's own rules leave it no node that has room."""
    NEVER = "never"
    """No open node could take it even if it were empty."""
    GROUP = "group"
    """The pods of its group are not all there, have no room together, or are checked before they start."""
    GATE = "gate"
    """Another scheduling gate holds it back."""
    NOBODY = "nobody"
    """No scheduler has looked at it."""
    UNKNOWN = "unknown"
    """It depends on something that cannot be judged; the sentence names it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A waiting pod: its ``place``, or why it waits.

    ``sentence`` is empty for a pod that fits. ``move`` would make room. ``in_the_way`` are the pods that hold the set
    nearest to being free, and ``helps`` says what else would help. ``lacks`` is the number of its group's pods without
    room.
    """

    pod: NeuronPod
    standing: Standing
    place: Place | None = None
    sentence: str = ""
    move: Move | None = None
    in_the_way: tuple[PodReference, ...] = ()
    helps: str = ""
    lacks: int = 0

    @property
    def held_under_another_name(self) -> bool:
        """Whether pods of lower priority hold the devices under a name across which kube-scheduler does not preempt."""
        return self.helps == HELD_UNDER_ANOTHER_NAME

    @property
    def text(self) -> str:
        """All of it, for an event."""
        if self.move:
            return f"{self.sentence}. {self.move.note}"
        parts = [self.sentence]
        if self.in_the_way:
            parts.append(f"In the way: {first_of(self.in_the_way, MOST_HOLDERS)}")
        parts.append(self.helps)
        return ". ".join(filter(None, parts))

    def for_others(self) -> Judgement:
        """The judgement for pods of the same kind that another controller has made."""
        return replace(self, helps="") if self.helps == HELD_BY_OLD_PODS else self


# Many pods at once: each has its sets before the next is looked at.


def judge_all(
    scene: Scene,
    pods: Iterable[NeuronPod],
    *,
    now: float = 0.0,
    rules: MoveRules | None = RULES,
    preempting: Container[PodUid] = (),
    unmoved: Container[PodUid] = (),
) -> list[Judgement]:
    """Waiting pods in the order given; each has its sets, or its move, before the next is looked at.

    So two pods are never promised the same set. A group is judged as a whole when its first member comes. If ``rules``
    is None, no moves are looked for. ``preempting`` pods may evict pods of lower priority if no move helps. No move
    would be made for ``unmoved`` pods, so they preempt even if a move would help. ``now`` is in unix seconds.
    """

    def ways_for(pod: NeuronPod) -> Sequence[MoveRules]:
        ways = [rules] if rules else []
        if pod.uid in preempting and pod.preempts:
            return [PREEMPTION, *ways] if pod.uid in unmoved else [*ways, PREEMPTION]
        return ways

    judged = list[Judgement]()
    together: dict[tuple[str, str], dict[PodUid, Judgement]] = {}
    known: dict[object, Judgement] = {}
    """Kinds of pods that found no place since the last change of the scene: other pods of the kind find none either."""
    anti_keys: Collection[str] = ()
    for pod in pods:
        if pod.group and scene.cluster.is_gang(pod) and not _why_not_judged(scene, pod, now):
            if pod.group not in together:
                known.clear()
                together[pod.group] = _judge_group(scene, pod, now, ways_for)
            judged.append(together[pod.group].get(pod.uid) or judge(scene, pod, now=now, rules=None))
            continue
        ways = ways_for(pod)
        has_own = pod.group or scene.cluster.kept_for(pod) or scene.cluster.lent_to(pod)
        is_alike = not (has_own or _why_not_judged(scene, pod, now))
        shared = pod.controller, pod.preempts, *ways
        if is_alike and known and (found := known.get((likeness(pod, anti_keys), *shared))):
            judged.append(replace(found, pod=pod))
            continue
        judgement = judge(scene, pod, now=now, ways=ways)
        if judgement.place:
            scene.put(pod, *judgement.place)
        if judgement.place or judgement.move:
            known.clear()
        elif is_alike:
            anti_keys = anti_keys if known else scene.population.anti_keys
            known[likeness(pod, anti_keys), *shared] = judgement
        judged.append(judgement)
    return judged


def judge(
    scene: Scene,
    pod: NeuronPod,
    *,
    now: float = 0.0,
    rules: MoveRules | None = RULES,
    ways: Sequence[MoveRules] | None = None,
) -> Judgement:
    """One waiting pod by itself. ``ways`` are the rules by which room may be made, in order: ``rules`` alone."""
    if why := _why_not_judged(scene, pod, now):
        return why
    if found := scene.best(pod):
        return _in_doubt(scene, pod) or Judgement(pod, Standing.FITS, found)
    answers = node_answers(scene, pod)
    standing = _standing(scene, pod, answers)
    waits = scene.volumes(pod).waits
    sentence = waits or sentence_of(answers)
    if standing is not Standing.NEVER and not waits:
        for way in ways if ways is not None else [rules] if rules else []:
            if (way.preempts or standing is Standing.LINKS) and (move := cheapest_move(scene, pod, now=now, rules=way)):
                return Judgement(pod, standing, sentence=sentence, move=move)
    if standing is Standing.LINKS:
        standing = Standing.SHORT  # no move helps
    if waits:
        return Judgement(pod, standing, sentence=sentence)  # the end of no pod would help
    holders = nearest_holders(scene, pod, answers) if standing in {Standing.SHORT, Standing.RULES} else ()
    helps, in_the_way = _what_helps(scene, pod, standing, holders), holders
    if not holders and any(answer.fits or LEFT in answer.reasons for answer in answers):
        in_the_way = tuple(other.reference for other in scene.cluster.roaming.values())
    return Judgement(pod, standing, None, sentence, None, in_the_way, helps)


def _why_not_judged(scene: Scene, pod: NeuronPod, now: float) -> Judgement | None:
    """Why no node is looked at for a pod."""
    if refusal := scene.cluster.refusal(pod):
        return Judgement(pod, Standing.NEVER, sentence=str(refusal))
    if others := [gate for gate in pod.rules.gates if gate != GATE]:
        return Judgement(
            pod, Standing.GATE, sentence=f"Waits for its scheduling gate to be lifted: {', '.join(others)}"
        )
    is_old = now and pod.created and now - pod.created > UNTRIED_SECONDS
    if is_old and not (pod.gated or pod.seen_by_scheduler or pod.released):
        name = pod.rules.scheduler_name
        served = {other.rules.scheduler_name for other in scene.cluster.pods.values() if other.node}
        known = f"; pods with Neuron run here under {', '.join(sorted(served))}" if served else ""
        why = f"schedulerName {name} is served by nobody here{known}"
        if name in served:  # pods that name their node themselves bypassed it, or it has ended since
            why = f"does the scheduler of schedulerName {name} run? Pods with Neuron of that name are on nodes"
        if name not in served or now - pod.created > IGNORED_SECONDS:
            return Judgement(pod, Standing.NOBODY, sentence=f"No scheduler has looked at it: {why}")
    return None


def _in_doubt(scene: Scene, pod: NeuronPod) -> Judgement | None:
    """The judgement of a pod that fits, but has rules that cannot be judged; else None."""
    if not (doubt := scene.doubt(pod)):
        return None
    kept = ". The pod keeps its gate: only the placement controller allocates its claims"
    sentence = f"{doubt[0].upper()}{doubt[1:]}{kept if pod.rules.claim_driver else ''}"
    return Judgement(pod, Standing.UNKNOWN, sentence=sentence)


# All nodes.


def _standing(scene: Scene, pod: NeuronPod, answers: Sequence[NodeAnswer]) -> Standing:
    """The standing of a pod that fits nowhere now. Free devices where it may not go count: others can move there."""
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
        could = any(
            info.inventory
            and not isinstance(
                place(info.inventory.geometry, info.inventory.healthy_mask, pod.requests, info.node.facts), Rejection
            )
            for info in scene.cluster.nodes.values()
            if info.unchecked or not isinstance(info.capacity, Rejection)
        )
        return Standing.RULES if could else Standing.NEVER
    lacks_sets_alone = any(answer.blocked and len(answer.reasons) == 1 for answer in answers)
    if any(answer.placement and answer.reasons for answer in answers) and not lacks_sets_alone:
        return Standing.RULES
    asked = {kind: sum(cores_asked(kind, container) for container in pod.requests) for kind in possible}
    return Standing.LINKS if any(free[kind] >= asked[kind] for kind in possible) else Standing.SHORT


def _what_helps(scene: Scene, pod: NeuronPod, standing: Standing, in_the_way: Sequence[PodReference]) -> str:
    if standing is Standing.NEVER or not in_the_way:
        return ""
    if are_old_pods(scene, pod, in_the_way):
        return HELD_BY_OLD_PODS
    if _held_under_another_name(scene, pod):
        return HELD_UNDER_ANOTHER_NAME
    holders = (scene.cluster.pods.get(holder.uid) for holder in in_the_way)
    known = [holder for holder in holders if holder]
    return ". ".join(budget.text(pods) for budget, pods in Budget.beyond(scene.cluster.budgets, known).items())


def _held_under_another_name(scene: Scene, pod: NeuronPod) -> bool:
    """Whether evictions of lower priority would open a node, though kube-scheduler sees no victims there.

    kube-scheduler looks for victims by the count of the resource that the pod asks for. Pods that hold the devices
    under another name lower the node's count of this resource, and are never its victims.
    """
    cluster = scene.cluster
    if (
        pod.gated
        or not pod.preempts
        or all(other.priority >= pod.priority for other in cluster.pods.values() if other.node)
    ):
        return False
    asked = {container.resource for container in pod.requests}
    for name in scene.eligible(pod):
        info = cluster.nodes[name]
        lower: dict[PodUid, set[Resource]] = {
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


# Groups.


def waiting_members(scene: Scene, group: tuple[str, str]) -> list[NeuronPod]:
    """The members of a group that have no node yet, in the order of their ranks."""
    placed = {uid for info in scene.cluster.nodes.values() for uid in info.ledger.by_pod}
    members = scene.cluster.members_of(group)
    return in_rank_order(pod for pod in members if not (pod.place or pod.uid in placed))


def _judge_group(
    scene: Scene, first: NeuronPod, now: float, ways_for: Callable[[NeuronPod], Sequence[MoveRules]]
) -> dict[PodUid, Judgement]:
    """The waiting members of a group: places for at least the missing number of them, or why the group waits."""
    group = first.group or ("", "")
    cluster, name = scene.cluster, group[1]
    waiting = waiting_members(scene, group)
    members, least, checked = cluster.members_of(group), cluster.min_counts[group], cluster.check_of(first)
    missing = max(least - (len(members) - len(waiting)), 1)
    refusal = next(filter(None, map(cluster.refusal, members)), "")
    if why := str(refusal) or ("" if len(waiting) < len(members) else checked.waits):
        return {pod.uid: Judgement(pod, Standing.GROUP, sentence=why) for pod in waiting}
    if len(waiting) < missing:
        leader = next((pod for pod in waiting if pod.member and pod.member.leads), None)
        if leader is None or group not in cluster.templates:
            text = f"{len(members)} of the {least} pods of its group {name} are there"
            return {pod.uid: Judgement(pod, Standing.GROUP, sentence=text) for pod in waiting}
        if (template := cluster.templates[group]) is None:
            return {leader.uid: judge(scene, leader, now=now)}  # the others are made once it is placed, on any node
        waiting += members_to_come(template, leader, members, least)
        missing = len(waiting)
    placed = place_group(scene, waiting, least=missing, wish=cluster.wish_of(first), anchors=anchors_of(scene, group))
    if isinstance(placed, GroupPlan):
        judged = {}
        for pod in waiting:
            if place_of := placed.places.get(pod.uid):
                scene.put(pod, *place_of)
                judged[pod.uid] = _in_doubt(scene, pod) or Judgement(pod, Standing.FITS, place_of)
            else:
                judged[pod.uid] = Judgement(pod, Standing.SHORT, sentence="The rest of its group is placed without it")
        return judged
    if waits := next(filter(None, (scene.volumes(pod).waits for pod in waiting)), ""):
        return {pod.uid: Judgement(pod, Standing.GROUP, sentence=waits) for pod in waiting}
    kinds = {info.inventory.geometry for info in cluster.nodes.values() if info.inventory}
    together = "together" if len(kinds) == 1 or not placed.most else "together, on nodes of one type,"
    most = f"there is room {together} for {placed.most} of {len(waiting)} waiting pods, at least {missing} need it"
    sentence = f"Its group {name} does not fit as a whole: {placed.reason or most}"
    if checked.avoided:
        avoided = first_of(sorted(checked.avoided), MOST_HOLDERS)
        sentence = f"{sentence}. Its pre-flight check has failed on {avoided}, where it is not placed for a while"
    if found := _make_room_for_group(scene, waiting, missing, now, ways_for, sentence):
        return found
    may_hold = frozenset().union(*domains_for(scene, cluster.wish_of(first), anchors_of(scene, group)))
    inventories = ((name, cluster.nodes[name].inventory) for name in may_hold)
    on_type = {name for name, one in inventories if one and placed.geometry in {None, one.geometry}}
    trial = scene.fork(group)
    for pod in waiting[: placed.most]:
        if place_of := trial.best(pod, allowed=Allowed(trial, pod, among_nodes=on_type)):
            trial.put(pod, *place_of)
    # The reasons against single nodes say more if not even one pod has room.
    if not placed.most and not placed.reason:
        sentence = f"{sentence}. {sentence_of(node_answers(trial, waiting[-1]))}"
    lacks = missing - placed.most
    in_the_way = _in_the_way_of_all(trial, waiting[placed.most :][:lacks], on_type)
    helps = _what_helps(scene, waiting[-1], Standing.SHORT, in_the_way)
    judgement = Judgement(first, Standing.GROUP, None, sentence, None, in_the_way, helps, lacks)
    return {pod.uid: replace(judgement, pod=pod) for pod in waiting}


def _in_the_way_of_all(trial: Scene, pods: Sequence[NeuronPod], names: Collection[str]) -> tuple[PodReference, ...]:
    """The holders of the sets nearest to being free, for each of a group's pods without room in turn."""
    cluster, found = trial.cluster, dict[PodReference, None]()
    answers, before = dict[str, NodeAnswer](), None
    for pod in pods:
        # Equal pods get the same answer from unchanged nodes, except where rules among pods decide.
        is_alike = before is not None and (pod.requests, pod.rules) == (before.requests, before.rules)
        asked = [name for name in names if name in trial.changed] if is_alike else names
        answers |= {answer.name: answer for answer in node_answers(trial, pod, asked)}
        holders, before = nearest_holders(trial, pod, [*answers.values()]), pod
        if not holders or len(found) > MOST_HOLDERS:
            break
        found |= dict.fromkeys(holders)
        for other in filter(None, (cluster.pods.get(holder.uid) for holder in holders)):
            if other.place in cluster.nodes:  # otherwise a place is only kept for it
                trial.remove([other], other.place)
        if place_of := trial.best(pod, allowed=Allowed(trial, pod, among_nodes=names)):
            trial.put(pod, *place_of)
    return tuple(found)


def _make_room_for_group(
    scene: Scene,
    waiting: Sequence[NeuronPod],
    missing: int,
    now: float,
    ways_for: Callable[[NeuronPod], Sequence[MoveRules]],
    sentence: str,
) -> dict[PodUid, Judgement]:
    """Places and moves by which a group would fit, with the fewest victims; empty if it would not fit as a whole.

    Victims are searched pod by pod, in one domain after the other if the group requires one. Then the group is placed
    as if they had gone, and its sets decide which of them go.
    """
    group, cluster = waiting[0].group or ("", ""), scene.cluster
    wish, anchors = cluster.wish_of(waiting[0]), anchors_of(scene, group)
    best: tuple[int, Scene, GroupPlan, list[Relocation]] | None = None
    for names in domains_for(scene, wish, anchors):
        served, victims = _victims_in(scene.fork(group), names, waiting, missing, now, ways_for)
        lasting = all(budget.recovers for budget in Budget.beyond(cluster.budgets, [one.pod for one in victims]))
        if not victims or not lasting or (best and best[0] <= len(victims)):
            continue
        opened = scene.fork()
        for victim in victims:
            opened.remove([victim.pod], victim.source)
            if victim.target:
                opened.put(victim.pod, victim.target, victim.placement)
        plan = place_group(opened, served, least=missing, wish=wish, anchors=anchors)
        if isinstance(plan, GroupPlan):
            best = len(victims), opened, plan, victims
    if best is None:
        return {}
    _, opened, plan, left = best
    judged = {}
    for pod in waiting:
        if place_of := plan.places.get(pod.uid):
            opened.put(pod, *place_of)
            node, placement = place_of
            mask = placement_mask(placement)
            own = [victim for victim in left if victim.source == node and victim.had_mask & mask]
            left = [victim for victim in left if victim not in own]
            judged[pod.uid] = Judgement(pod, Standing.FITS, place_of)
            if own and (inventory := opened.node(node).inventory):
                cores = ((victim.pod, victim.had_mask.bit_count()) for victim in own)
                loss = device_hours(cores, inventory.geometry.cores_per_device, now)
                move = Move(pod, node, placement, tuple(own), loss)
                judged[pod.uid] = Judgement(pod, Standing.LINKS, sentence=sentence, move=move)
    scene.adopt(opened)
    return judged


def _victims_in(
    trial: Scene,
    names: Collection[str],
    waiting: Sequence[NeuronPod],
    missing: int,
    now: float,
    ways_for: Callable[[NeuronPod], Sequence[MoveRules]],
) -> tuple[list[NeuronPod], list[Relocation]]:
    """At least as many pods of a group as are missing, and the victims on these nodes; none if they do not suffice."""
    served, left, victims = list[NeuronPod](), list[NeuronPod](), list[Relocation]()
    for pod in waiting:
        if found := trial.best(pod, allowed=Allowed(trial, pod, among_nodes=names)):
            trial.put(pod, *found)
            served.append(pod)
        else:
            left.append(pod)
    without = 0
    for pod in left:
        if len(served) >= missing:
            break
        tried = (cheapest_move(trial, pod, now=now, rules=rules, among=names) for rules in ways_for(pod))
        if move := next(filter(None, tried), None):
            victims += move.victims
            served.append(pod)
        elif (without := without + 1) > len(waiting) - missing:
            break  # the others cannot be enough any more
    return in_rank_order(served), victims if len(served) >= missing else []
