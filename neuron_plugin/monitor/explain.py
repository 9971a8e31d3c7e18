"""Why does a pod fit a node or not: which set would it get, or which pods are in the way of which sets?

The functions that decide are asked, so an explanation cannot differ from the answer that the pod gets. An explanation
is worked out from records that do not change, in a thread: thousands of nodes take some 0.1-0.4 s, and no other call
waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import msgspec

from neuron_plugin.allocation import (
    Constraints,
    ContainerRequest,
    DeviceFacts,
    NeuronPod,
    NodeInfo,
    PodRequest,
    Rejection,
)
from neuron_plugin.allocation.keys import GATE, PREFIX
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.node_rules import NO_USE, NOT_LOOKED_AT, VOLUMES, Volume, objections, shortages
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.allocation.rejection import WRONG_PRODUCT
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.planning import Cluster, Prospect, Standing, prospects
from neuron_plugin.scheduling.assumptions import GROUP_DOES_NOT_FIT
from neuron_plugin.scheduling.make_room import OTHER_NAME, note_of
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.topology import Geometry, Unit, cores_in, valid_sets

MOST_SETS = 4
"""Sets shown per container and node: those with the fewest pods in their way; the others are counted."""
MOST_NODES = 3
"""Nodes shown in text of those that give the same answer; the others are counted."""
MOST_NAMES = 10
"""Pods named when another one is not known; the others are counted."""
MOST_HOLDERS = 5
"""Holders named in text per set; the others are counted."""


class BlockedSet(msgspec.Struct, frozen=True, rename="camel"):
    """A set that would do for ``container``, and what is in its way.

    ``holders`` are pods that have a part of it. No pod's end would change the state of ``unhealthy_devices`` and
    ``disabled_devices``.
    """

    container: str
    ids: str
    holders: tuple[str, ...]
    unhealthy_devices: tuple[int, ...]
    disabled_devices: tuple[int, ...] = ()

    @property
    def weight(self) -> tuple[int, int]:
        """How much is in the way: devices that no pod's end would free, then pods."""
        return len(self.unhealthy_devices) + len(self.disabled_devices), len(self.holders)


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """One node's answer. ``fits`` is about its Neuron devices alone; ``sets`` has what each container would get.

    ``blocked`` has what is in the way if nothing, and ``more_blocked`` how many such sets are not shown. ``objections``
    are why kube-scheduler does not place the pod there whatever its devices are.
    """

    node: str
    fits: bool
    reason: str
    sets: tuple[str, ...] = ()
    blocked: tuple[BlockedSet, ...] = ()
    more_blocked: int = 0
    details: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's prospects. ``note`` has what holds for all nodes, such as that it is bound already.

    ``scheduler`` is the pod's schedulerName. ``gate`` says what our scheduling gate, or its end, means for a pod that
    is not bound. ``move`` says which move of other pods would make room, or that room is being made.
    """

    pod: str
    request: str
    note: str
    nodes: tuple[NodeExplanation, ...]
    scheduler: str = ""
    move: str = ""
    not_looked_at: tuple[str, ...] = NOT_LOOKED_AT
    gate: str = ""


class Question(msgspec.Struct, frozen=True):
    """A pod, and all that an explanation of it depends on, as of one moment.

    ``bound_to`` is the node that the pod is bound to, being bound to or was placed on. ``released`` says why it was
    handed to its scheduler without a place. ``refusal`` is why no node can serve the pod.
    ``move`` says that room is being made for it. ``volumes`` are those of its claims, None if they are not known.
    """

    cluster: Cluster
    pod: NeuronPod
    bound_to: str
    refusal: Rejection | None
    move: str
    volumes: tuple[Volume, ...] | None
    released: str = ""


def question(state: ClusterState, pod: NeuronPod, volumes: tuple[Volume, ...] | None = ()) -> Question:
    """What is asked about a pod now."""
    move = ""
    if kept := state.reserved.get(pod.uid):
        cores = f"Cores {ranges(cores_in(kept.mask))} of node {kept.node} are reserved for it"
        move = f"{cores}: it is placed there once the pods that have some of them have ended."
    cluster = state.cluster(volumes={pod.uid: volumes} if volumes else None)
    bound_to, released = state.bound_to(pod.uid) or pod.node, state.history.released.get(pod.uid, "")
    return Question(cluster, pod, bound_to, state.refusal(pod), move, volumes, released)


def find_pod(state: ClusterState, namespace: str, name: str) -> NeuronPod | None:
    """The live Neuron pod of a name; the one that is not terminating where a name is there twice."""
    named = [pod for pod in state.pods.values() if (pod.reference.namespace, pod.reference.name) == (namespace, name)]
    return min(named, key=lambda pod: pod.terminating, default=None)


def unknown_pod_text(state: ClusterState, namespace: str, name: str) -> str:
    """That there is no live Neuron pod of a name, and which there are: of the same name, else in the namespace."""
    pods = sorted(str(pod.reference) for pod in state.pods.values())
    alike = [pod for pod in pods if pod.endswith(f"/{name}")]
    near = alike or [pod for pod in pods if pod.startswith(f"{namespace}/")] or pods
    there = f"there {'are' if len(near) > 1 else 'is'} {_named(near, MOST_NAMES)}" if near else "no live pod does"
    return f"no live pod {namespace}/{name} asks for Neuron: {there}"


def explain(asked: Question) -> Explanation:
    """A pod's prospects on every node, fitting ones first."""
    pod, cluster = asked.pod, asked.cluster
    name, scheduler = str(pod.reference), pod.rules.scheduler_name
    gate = _gate_text(asked)
    if asked.refusal:
        return Explanation(name, _request_text(pod.requests), str(asked.refusal), (), scheduler, gate=gate)
    if not pod.requests:
        return Explanation(name, "", "The pod asks for no Neuron resource: it fits every node.", (), scheduler)
    if asked.bound_to:
        return Explanation(name, _request_text(pod.requests), _bound_text(asked), (), scheduler, gate=gate)
    (expected,) = prospects(cluster, [pod])
    nodes = [explain_node(cluster, info, pod, asked.volumes or ()) for info in cluster.nodes.values()]
    note = "" if expected.standing is Standing.FITS else expected.reason
    if cluster.is_gang(pod) and expected.standing is not Standing.FITS:
        torn = {"fits": False, "reason": GROUP_DOES_NOT_FIT.text}
        nodes = [msgspec.structs.replace(node, **torn) if node.fits else node for node in nodes]
    elif expected.standing in {Standing.PIECES, Standing.SHORT, Standing.NEVER}:
        note = OTHER_NAME if expected.held_under_another_name else ""
    nodes.sort(key=lambda node: (not node.fits, bool(node.objections), node.node))
    unknown = NOT_LOOKED_AT if asked.volumes is not None else (VOLUMES, *NOT_LOOKED_AT)
    move = asked.move or _move_text(expected)
    return Explanation(name, _request_text(pod.requests), note, tuple(nodes), scheduler, move, unknown, gate)


def _move_text(expected: Prospect) -> str:
    return note_of(expected.move) if expected.move else ""


def _gate_text(asked: Question) -> str:
    """What our gate means for a pod: why it is held back, or what its end without a place means."""
    pod = asked.pod
    if pod.node or pod.terminating:
        return ""
    if pod.gated and pod.promised:
        return f"The gate {GATE} holds it back until all of its group have a place."
    if others := ", ".join(gate for gate in pod.rules.gates if gate != GATE):
        return f"It is not scheduled before this gate is lifted: {others}."
    if pod.gated:
        return f"The gate {GATE} holds it back until it can be placed."
    if asked.released and not pod.promised:
        return f"No node was chosen for it: {asked.released}. Its scheduler chooses the node, the plugin the devices."
    return ""


def _bound_text(asked: Question) -> str:
    """Where a pod is or was placed, and what it has there."""
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
    has = (
        f"{allocation.container}: {_ids(geometry, allocation.resource.unit, allocation.mask)}"
        for allocation in allocations
    )
    return f"{text}. It was assigned {'; '.join(has)}."


def _request_text(request: PodRequest) -> str:
    texts = []
    for container in request:
        amounts = [f"{amount} {PREFIX}{name}" for name, amount in container.amounts]
        texts.append(f"{container.name}: {' with '.join([f'{container.count} {container.resource.value}', *amounts])}")
    return ", ".join(texts)


def explain_node(cluster: Cluster, info: NodeInfo, pod: NeuronPod, volumes: Collection[Volume] = ()) -> NodeExplanation:
    """What one node says to a pod."""
    rules, request = info.node.rules, pod.requests
    against = [*objections(pod.rules, info.name, rules, volumes)]
    against += shortages(pod.rules, rules, cluster.uses.get(info.name, NO_USE)) if info.inventory else []
    if isinstance(info.capacity, Rejection):
        details = [reason.detail for _, reason in info.unclear]
        if isinstance(info.node.inventory, Rejection) and info.node.inventory.detail:
            details.append(info.node.inventory.detail)
        return NodeExplanation(
            info.name, fits=False, reason=info.capacity.text, details=tuple(details), objections=tuple(against)
        )
    geometry, placed, facts = info.capacity.geometry, info.capacity.place(request), info.capacity.facts
    details = [
        _left_text(facts, geometry, name)
        for name in sorted({name for container in request for name, _ in container.amounts})
    ]
    if not isinstance(placed, Rejection):
        sets = (
            f"{container.request.name}: {_ids(geometry, container.request.resource.unit, container.mask)}"
            for container in placed
        )
        return NodeExplanation(
            info.name, fits=True, reason="", sets=tuple(sets), details=tuple(details), objections=tuple(against)
        )
    if placed is WRONG_PRODUCT:
        details.append(f"its devices are {' or '.join(sorted(facts.names))}")
    constraints = request[0].constraints
    if isinstance(constraints, Constraints):
        devices = range(geometry.device_count)
        left_out = [device for device in devices if not constraints.allowed_devices >> device & 1]
        details += [f"the pod's annotations leave out {_ids_text(Unit.DEVICE, left_out)}"] if left_out else []
    blocked = [(container, _blocked(info, container, facts.unused)) for container in request]
    return NodeExplanation(
        info.name,
        fits=False,
        reason=placed.text,
        blocked=tuple(blocked_set for _, sets in blocked for blocked_set in sets[:MOST_SETS]),
        more_blocked=sum(max(len(sets) - MOST_SETS, 0) for _, sets in blocked),
        details=tuple(details),
        objections=tuple(against),
    )


def _left_text(facts: DeviceFacts, geometry: Geometry, name: str) -> str:
    """What is left of an amount, by device."""
    has, used = dict(facts.amounts).get(name), dict(facts.used).get(name, (0,) * geometry.device_count)
    if has is None:
        return f"how much {PREFIX}{name} a device has is not known"
    devices: dict[int, list[int]] = {}
    for device, amount in enumerate(used):
        devices.setdefault(has - amount, []).append(device)
    texts = (f"{left} on {_ids_text(Unit.DEVICE, ids)}" for left, ids in sorted(devices.items()))
    return f"of {has} {PREFIX}{name} are left: {', '.join(texts)}"


def _blocked(info: NodeInfo, container: ContainerRequest, facts: DeviceFacts) -> list[BlockedSet]:
    """The sets of one container that its constraints allow, those nearest to being free first."""
    inventory, unit = info.inventory, container.resource.unit
    if inventory is None:
        return []
    geometry, disabled_mask, free_mask = inventory.geometry, inventory.disabled_mask, info.free_mask
    may_be_used = inventory.healthy_mask | disabled_mask
    usable, blocked = usable_mask(geometry, container, facts), []
    for mask in valid_sets(geometry, unit, container.count):
        if mask & usable == mask and mask & ~free_mask:
            unhealthy = geometry.devices_touched(mask & ~may_be_used)
            disabled = geometry.devices_touched(mask & disabled_mask)
            kept = [f"{reservation.pod} (reserved)" for reservation in info.reservations if reservation.mask & mask]
            holders = dict.fromkeys([*(str(allocation.pod) for allocation in info.ledger.overlapping(mask)), *kept])
            ids = _ids(geometry, unit, mask)
            blocked.append(BlockedSet(container.name, ids, tuple(holders), unhealthy, disabled))
    return sorted(blocked, key=lambda blocked_set: blocked_set.weight)


def _ids(geometry: Geometry, unit: Unit, mask: int) -> str:
    return _ids_text(unit, geometry.ids_of(unit, mask))


def _ids_text(unit: Unit, ids: Sequence[int]) -> str:
    return f"{unit}{'s' if len(ids) > 1 else ''} {ranges(ids)}"


def explain_text(explanation: Explanation, names: Collection[str] = ()) -> str:
    """An explanation as lines of text; of the nodes of these ``names`` alone, if there are any.

    Nodes that give the same answer are shown once, those with the least in the way first, and counted.
    """
    scheduler = f" (schedulerName: {explanation.scheduler})" if explanation.scheduler else ""
    lines = [f"{explanation.pod} asks for {explanation.request or 'nothing'}{scheduler}"]
    if explanation.note:
        lines.append(explanation.note[0].upper() + explanation.note[1:])
    if explanation.gate:
        lines.append(explanation.gate)
    alike = defaultdict[object, list[NodeExplanation]](list)
    for node in explanation.nodes:
        if not names or node.node in names:
            alike[node.fits, node.reason, node.sets, node.objections].append(node)
    for nodes in alike.values():
        nodes.sort(key=lambda node: [blocked_set.weight for blocked_set in node.blocked])
        differ = len({(node.blocked, node.details) for node in nodes}) > 1
        shown = nodes if names else nodes[: MOST_NODES if differ else 1]
        more = [node.node for node in nodes[len(shown) :]]
        for node in shown:
            lines += _node_lines(node, several=", " in explanation.request)
        if more:
            lines.append(f"  {len(more)} more like this: {_named(sorted(more), MOST_NODES)}")
    if explanation.move:
        lines.append(explanation.move)
    if explanation.nodes:
        lines.append(f"Not looked at: {', '.join(explanation.not_looked_at)}.")
    return "\n".join(lines) + "\n"


def _node_lines(node: NodeExplanation, *, several: bool) -> Iterator[str]:
    verdict = f"fits, would get {'; '.join(node.sets)}" if node.fits else node.reason
    if node.objections:
        verdict += f"{', but' if node.fits else '; and'} kube-scheduler leaves it out: {'; '.join(node.objections)}"
    yield f"{node.node}: {verdict}"
    yield from (f"  {detail}" for detail in node.details)
    together = defaultdict[tuple[str, str], list[str]](list)  # sets with the same in their way stand in one line
    for blocked_set in node.blocked:
        held = f"held by {_named(blocked_set.holders, MOST_HOLDERS)}" if blocked_set.holders else ""
        broken = (
            f"unhealthy or missing: {ranges(blocked_set.unhealthy_devices)}" if blocked_set.unhealthy_devices else ""
        )
        disabled = f"disabled: {ranges(blocked_set.disabled_devices)}" if blocked_set.disabled_devices else ""
        why = "; ".join(filter(None, (held, broken, disabled)))
        together[blocked_set.container, why or "free, but not all at once"].append(blocked_set.ids)
    for (container, why), ids in together.items():
        yield f"  {f'{container}: ' if several else ''}{' or '.join(ids)}: {why}"
    if node.more_blocked:
        yield f"  and {node.more_blocked} more sets with as much or more in their way"


def _named(names: Collection[str], most: int) -> str:
    """The first names, and how many others there are."""
    listed = ", ".join(list(names)[:most])
    return f"{listed} and {len(names) - most} others" if len(names) > most else listed
