"""A judgement of one pod, for people: where it fits, or why it waits; for a placed pod, the state of its devices.

Nothing is judged here: ``planning/judgement`` is printed. An explanation is made from immutable records, in a thread:
thousands of nodes take some tenths of a second, and no other call waits for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from neuron_plugin.allocation import NeuronPod, PodRequest, Rejection
from neuron_plugin.allocation.keys import GATE, PREFIX
from neuron_plugin.allocation.placement import lasting_cores
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.monitor.network import DomainView, NodeRoom, domain_tree, rooms_of
from neuron_plugin.monitor.views import pod_problem, why_released
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.planning import Cluster, Scene, Standing, judge_all
from neuron_plugin.planning.node_answers import NodeAnswer, node_answers
from neuron_plugin.topology import cores_in
from neuron_plugin.wording import first_of, named, plural

MOST_SETS = 4
"""Sets shown for each container on a node: those with the fewest pods in their way; the others are counted."""
MOST_NODES = 3
"""Nodes with the same answer that are shown in text; the others are counted."""
MOST_NAMES = 10
"""Pods named when another one is not known; the others are counted."""
MOST_HOLDERS = 5
"""Holders named in text for each set; the others are counted."""
MOST_DOMAINS = 3
"""Domains shown of the level that matters to a group: those with its pods, then those with the most free."""


class SetView(msgspec.Struct, frozen=True, rename="camel"):
    """A set of a container, and its obstacles, if any.

    ``unit`` is ``device`` or ``core``. ``holders`` are pods that have a part of it. The end of a pod does not free
    ``unhealthy_devices`` and ``disabled_devices``.
    """

    container: str
    unit: str
    ids: tuple[int, ...]
    holders: tuple[str, ...] = ()
    unhealthy_devices: tuple[int, ...] = ()
    disabled_devices: tuple[int, ...] = ()


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """One node's answer: all its ``reasons`` against the pod, and the ``sets`` that are free for it nevertheless.

    ``blocked`` has the occupied sets if none is free, and ``more_blocked`` the number of those not shown.
    """

    node: str
    fits: bool
    reasons: tuple[str, ...] = ()
    sets: tuple[SetView, ...] = ()
    blocked: tuple[SetView, ...] = ()
    more_blocked: int = 0
    details: tuple[str, ...] = ()


class GroupDomain(DomainView, frozen=True, rename="camel"):
    """A domain of the level that matters to a group, without its parts.

    ``group_pods`` is the number of its pods there, and ``spares`` the number of its spare nodes.
    """

    group_pods: int = 0
    spares: int = 0


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The judgement of a pod. ``standing`` is one of ``planning.Standing``, or ``placed`` for a pod that has its place.

    ``sentence`` says why it waits, or where it is and the state of its devices. ``helps`` says what would help,
    ``move`` which move of other pods would make room, or that room is being made. ``in_the_way`` are the pods that hold
    the set nearest to being free. ``gate`` says what our scheduling gate, or its end, means for a pod that is not
    bound. For a pod of a group, ``domains`` are the relevant parts of the network, and ``more_domains`` how many are
    not shown.
    """

    pod: str
    request: str
    standing: str
    sentence: str
    nodes: tuple[NodeExplanation, ...] = ()
    scheduler: str = ""
    helps: str = ""
    move: str = ""
    in_the_way: tuple[str, ...] = ()
    gate: str = ""
    domains: tuple[GroupDomain, ...] = ()
    more_domains: int = 0


class Question(msgspec.Struct, frozen=True):
    """A pod, and all facts that its explanation depends on, as of one moment.

    ``bound_to`` is the node that the pod is bound to, being bound to or was placed on. ``released`` says why it was
    handed to its scheduler without a place. ``move`` says that room is being made for it, and ``problem`` what is wrong
    with its devices. ``now`` is in unix seconds.
    """

    cluster: Cluster
    pod: NeuronPod
    bound_to: str
    move: str = ""
    released: str = ""
    problem: str = ""
    now: float = 0.0


def question(state: ClusterState, pod: NeuronPod, now: float = 0.0) -> Question:
    """The facts of the present state that an explanation of a pod needs."""
    move = ""
    if kept := state.reserved.get(pod.uid):
        info, cores = state.nodes.get(kept.node), f"Cores {ranges(cores_in(kept.mask))} of node {kept.node}"
        is_held = info is None or info.ledger.overlapping(kept.mask)
        when = "once the pods that have some of them have ended" if is_held else "when its turn comes"
        move = f"{cores} are reserved for it: it is placed there {when}."
    bound_to, released = state.bound_to(pod.uid) or pod.node, why_released(state, pod)
    problem = pod_problem(state, pod)
    return Question(state.snapshot(), pod, bound_to, move, released, problem, now)


class UnknownPodError(Exception):
    """There is no such pod; the text names the existing ones."""


def find_pod(state: ClusterState, namespace: str, name: str) -> NeuronPod:
    """The live Neuron pod of a name; if there are two, the one that is not terminating.

    The name of a group stands for one of its pods, a waiting one if any.

    Raises:
        UnknownPodError: there is no such pod.
    """
    named = [pod for pod in state.pods.values() if (pod.reference.namespace, pod.reference.name) == (namespace, name)]
    members = sorted(state.members_of((namespace, name)), key=lambda pod: (bool(pod.place), pod.reference.name))
    if found := named or members[:1]:
        return min(found, key=lambda pod: pod.terminating)
    raise UnknownPodError(unknown_pod_text((str(pod.reference) for pod in state.pods.values()), namespace, name))


def unknown_pod_text(known: Iterable[str], namespace: str, name: str) -> str:
    """The text that no ``known`` live pod has a name, with the pods of that name elsewhere, else of the namespace."""
    pods = sorted(known)
    alike = [pod for pod in pods if pod.endswith(f"/{name}")]
    near = alike or [pod for pod in pods if pod.startswith(f"{namespace}/")] or pods
    there = f"there {'are' if len(near) > 1 else 'is'} {first_of(near, MOST_NAMES)}" if near else "no live pod does"
    return f"no live pod {namespace}/{name} asks for Neuron: {there}"


def explain(asked: Question) -> Explanation:
    """The judgement of a pod, with every node's answer; nodes where it fits come first."""
    pod = asked.pod
    name, scheduler, request = str(pod.reference), pod.rules.scheduler_name, request_text(pod.requests)
    gate = _gate_text(asked)
    scene = Scene(asked.cluster)
    near = _domains_of_group(scene, pod) if pod.group else []
    domains, more = tuple(near[:MOST_DOMAINS]), len(near[MOST_DOMAINS:])
    if asked.bound_to:
        text = _bound_text(asked)
        return Explanation(
            name, request, "placed", text, scheduler=scheduler, gate=gate, domains=domains, more_domains=more
        )
    if refusal := asked.cluster.refusal(pod):
        return Explanation(name, request, Standing.NEVER, str(refusal), scheduler=scheduler, gate=gate)
    if not pod.requests:
        sentence = "The pod asks for no Neuron resource: it fits every node."
        return Explanation(name, "", Standing.FITS, sentence, scheduler=scheduler)
    (judged,) = judge_all(scene.fork(), [pod], now=asked.now)
    nodes = [_explained(answer) for answer in node_answers(scene, pod)]
    nodes.sort(key=_how_far)
    return Explanation(
        name,
        request,
        judged.standing,
        judged.sentence,
        tuple(nodes),
        scheduler,
        judged.helps,
        asked.move or (f"{judged.move.note}." if judged.move else ""),
        tuple(map(str, judged.in_the_way)),
        gate,
        domains,
        more,
    )


def _domains_of_group(scene: Scene, pod: NeuronPod) -> list[GroupDomain]:
    """The domains of the level that a pod's group wishes for, else of the lowest level that could hold it.

    Those with its pods come first, then those with the most free.
    """
    cluster, tree = scene.cluster, scene.choices.domains
    rooms = rooms_of(cluster.nodes.values(), cluster.levels)
    group, wish = pod.group or ("", ""), cluster.wish_of(pod)
    if len(tree.levels) == 1 or not rooms:
        return []
    members = cluster.members_of(group)
    held = Counter(member.place for member in members if member.place)
    spares = {kept.node for kept in cluster.kept_for(pod) if kept.lent_below is not None}
    size = max(len(members), pod.member.size if pod.member else 0, cluster.min_counts.get(group, 0))
    wished = tree.depth_of(wish.required or wish.preferred)
    levels = [level.name for level in (tree.levels if wished is None else tree.levels[wished - 1 : wished])]
    found = list[GroupDomain]()
    for level in reversed(levels if wished else levels[:-1]):
        parts = defaultdict[str, list[NodeRoom]](list)
        for room in rooms:
            if name := dict(room.domains).get(level):
                parts[name].append(room)
        found = [_group_domain(level, name, inside, held, spares) for name, inside in parts.items()]
        geometry = next(info.inventory.geometry for info in cluster.nodes.values() if info.inventory)
        needed = size * lasting_cores(pod.requests, geometry)
        if any(one.devices * geometry.cores_per_device >= needed for one in found):
            break
    return sorted(found, key=lambda one: (-one.group_pods, -one.free_devices, one.name))


def _group_domain(
    level: str, name: str, rooms: Sequence[NodeRoom], held: Counter[str], spares: Collection[str]
) -> GroupDomain:
    tree = domain_tree(room._replace(domains=()) for room in rooms)
    own = sum(held[room.name] for room in rooms)
    kept = sum(room.name in spares for room in rooms)
    counts = tree.nodes, tree.whole, tree.free_devices, tree.devices
    return GroupDomain(level, name, *counts, group_pods=own, spares=kept)


def _how_far(node: NodeExplanation) -> tuple[object, ...]:
    """The sort key of nodes: first where the pod fits, then by how little is in its way."""
    in_the_way = [_weight(blocked) for blocked in node.blocked]
    return not node.fits, not (node.sets or node.blocked), len(node.reasons), in_the_way, node.node


def _explained(answer: NodeAnswer) -> NodeExplanation:
    free = (
        SetView(part.request.name, part.request.resource.unit, tuple(ids)) for part, ids in answer.ids_of_placement()
    )
    by_container = defaultdict[str, list[SetView]](list)
    for blocked in answer.blocked:
        holders = (*map(str, blocked.holders), *(f"{pod} (reserved)" for pod in blocked.reserved_for))
        broken = blocked.unhealthy, blocked.disabled
        view = SetView(blocked.container, blocked.unit, blocked.ids, holders, *broken)
        by_container[blocked.container].append(view)
    shown = [view for sets in by_container.values() for view in sets[:MOST_SETS]]
    return NodeExplanation(
        answer.name,
        answer.fits,
        answer.reasons,
        tuple(free),
        tuple(shown),
        len(answer.blocked) - len(shown),
        answer.details,
    )


def _gate_text(asked: Question) -> str:
    """The effect of our gate on a pod: why it is held back, or what the gate's end without a place means."""
    pod = asked.pod
    if pod.node or pod.terminating:
        return ""
    if pod.gated and pod.promised:
        return f"The gate {GATE} holds it back until all of its group have a place."
    if pod.gated:
        return f"The gate {GATE} holds it back until it can be placed."
    if asked.released and not pod.promised:
        return f"No node was chosen for it: {asked.released}. Its scheduler chooses the node, the plugin the devices."
    return ""


def _bound_text(asked: Question) -> str:
    """Where a pod is or was placed, its devices there, and their problems."""
    pod, name = asked.pod, asked.bound_to
    text = f"The pod is bound, or being bound, to {name}"
    info = asked.cluster.nodes.get(name)
    if pod.promised and not pod.node:
        text = f"The pod was placed on {name}, where its scheduler is to bind it"
        if info and pod.reference in info.void:
            return f"{text}. What it was promised there is not free any more: the plugin chooses on the node."
    if info is None or info.inventory is None or not pod.assignment:
        return f"{text}."
    allocations = assigned_allocations(pod, info.inventory.geometry)
    if isinstance(allocations, Rejection):
        return f"{text}: {allocations.detail}."
    geometry = info.inventory.geometry
    units = ((allocation, allocation.resource.unit) for allocation in allocations)
    has = (f"{one.container}: {named(unit, geometry.ids_of(unit, one.mask))}" for one, unit in units)
    wrong = f" What is wrong: {asked.problem}." if asked.problem else ""
    return f"{text}. It was assigned {'; '.join(has)}.{wrong}"


def request_text(request: PodRequest) -> str:
    """The request of each container, as text."""
    texts = []
    for container in request:
        amounts = [f"{amount} {PREFIX}{name}" for name, amount in container.amounts]
        texts.append(f"{container.name}: {' with '.join([f'{container.count} {container.resource.value}', *amounts])}")
    return ", ".join(texts)


# As text.


def explain_text(explanation: Explanation, names: Collection[str] = ()) -> str:
    """An explanation as lines of text; with ``names``, only of these nodes.

    Nodes that give the same answer are shown once and counted. Of nodes that differ only in what blocks the pod, the
    first ones are shown.
    """
    scheduler = f" (schedulerName: {explanation.scheduler})" if explanation.scheduler else ""
    lines = [f"{explanation.pod} asks for {explanation.request or 'nothing'}{scheduler}"]
    if sentence := explanation.sentence.removesuffix("."):
        lines.append(f"{sentence[0].upper()}{sentence[1:]}.")
    lines += [explanation.gate] if explanation.gate else []
    lines += [_domain_line(domain) for domain in explanation.domains]
    lines += [f"  {explanation.more_domains} more with less"] if explanation.more_domains else []
    alike = defaultdict[object, list[NodeExplanation]](list)
    for node in explanation.nodes:
        if not names or node.node in names:
            # The first reason has the numbers of the node where something is in the way.
            reasons = node.reasons[1:] if node.blocked else node.reasons
            alike[node.fits, bool(node.blocked), reasons, node.sets].append(node)
    for nodes in alike.values():
        differ = len({(node.blocked, node.details) for node in nodes}) > 1
        shown = nodes if names else nodes[: MOST_NODES if differ else 1]
        for node in shown:
            lines += _node_lines(node, several=", " in explanation.request)
        if more := [node.node for node in nodes[len(shown) :]]:
            how = "like this" if len({node.reasons for node in nodes}) == 1 else "with as much or more in the way"
            lines.append(f"  {len(more)} more {how}: {first_of(sorted(more), MOST_NODES)}")
    in_the_way = f"In the way: {first_of(explanation.in_the_way, MOST_HOLDERS)}" if explanation.in_the_way else ""
    below = in_the_way, explanation.move, explanation.helps
    lines += [f"{text.removesuffix('.')}." for text in below if text]
    return "\n".join(lines) + "\n"


def _domain_line(domain: GroupDomain) -> str:
    has = f"{domain.whole} of {plural(domain.nodes, 'node')} and {domain.free_devices} of {domain.devices} devices free"
    own = f"; {plural(domain.group_pods, 'pod')} of the group" if domain.group_pods else ""
    own += f", {plural(domain.spares, 'spare node')}" if domain.spares else ""
    return f"  {domain.level.rpartition('/')[2]} {domain.name}: {has}{own}"


def _weight(blocked: SetView) -> tuple[int, int]:
    return len(blocked.unhealthy_devices) + len(blocked.disabled_devices), len(blocked.holders)


def _set_text(view: SetView) -> str:
    return named(view.unit, view.ids)


def _node_lines(node: NodeExplanation, *, several: bool) -> Iterator[str]:
    sets = "; ".join(f"{view.container}: {_set_text(view)}" for view in node.sets)
    free = f"has {sets} free, but " if sets else ""
    verdict = f"fits, would get {sets}" if node.fits else free + "; ".join(node.reasons)
    yield f"{node.node}: {verdict}"
    yield from (f"  {detail}" for detail in node.details)
    together = defaultdict[tuple[str, str], list[str]](list)  # sets with the same obstacles stand in one line
    for blocked in node.blocked:
        held = f"held by {first_of(blocked.holders, MOST_HOLDERS)}" if blocked.holders else ""
        broken = f"unhealthy or missing: {ranges(blocked.unhealthy_devices)}" if blocked.unhealthy_devices else ""
        disabled = f"disabled: {ranges(blocked.disabled_devices)}" if blocked.disabled_devices else ""
        why = "; ".join(filter(None, (held, broken, disabled)))
        together[blocked.container, why or "free, but not all at once"].append(_set_text(blocked))
    for (container, why), ids in together.items():
        yield f"  {f'{container}: ' if several else ''}{' or '.join(ids)}: {why}"
    if node.more_blocked:
        yield f"  and {node.more_blocked} more sets with as much or more in their way"
