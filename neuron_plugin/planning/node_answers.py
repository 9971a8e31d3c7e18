"""The full answer of each node to a pod, and the sentence that sums the answers up.

A reason is a predicate of the node, such as ``is cordoned``, so nodes are counted by reason. kube-scheduler's counts
give reasons, too. A node that looks free but is full for kube-scheduler is not free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from neuron_plugin.allocation import (
    Capacity,
    Constraints,
    ContainerRequest,
    ContainerSet,
    DeviceFacts,
    NeuronPod,
    NodeInfo,
    Placement,
    PodReference,
    PodRequest,
    Rejection,
)
from neuron_plugin.allocation.group import is_key_of
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.narrowing import usable_mask
from neuron_plugin.allocation.rejection import LEFT_TO_OTHERS, WRONG_PRODUCT
from neuron_plugin.planning.rules import neuron_shortages
from neuron_plugin.planning.scene import Scene
from neuron_plugin.topology import CoreMask, Geometry, Unit, valid_sets
from neuron_plugin.wording import named, plural

MOST_REASONS = 6
"""Different reasons in one sentence; the others are counted."""
NO_NEURON = "no-neuron"
LEFT = LEFT_TO_OTHERS.predicate


@dataclass(frozen=True, slots=True)
class BlockedSet:
    """A set that suits a container, and what blocks it: pods, and devices that no pod's end would free."""

    container: str
    unit: Unit
    ids: tuple[int, ...]
    holders: tuple[PodReference, ...]
    unhealthy: tuple[int, ...] = ()
    disabled: tuple[int, ...] = ()
    reserved_for: tuple[PodReference, ...] = ()

    @property
    def weight(self) -> tuple[int, int]:
        """How much blocks the set: devices that no pod's end would free, then pods."""
        return len(self.unhealthy) + len(self.disabled), len(self.holders) + len(self.reserved_for)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node's answer to a pod, which fits if there are no ``reasons``: predicates of the node.

    ``placement`` has the free sets, even if kube-scheduler refuses the node. ``blocked`` are suitable sets that are not
    free, and ``details`` are further facts for people.
    """

    name: str
    has_neuron: bool
    reasons: tuple[str, ...] = ()
    placement: Placement = ()
    geometry: Geometry | None = None
    blocked: tuple[BlockedSet, ...] = ()
    details: tuple[str, ...] = ()

    def ids_of_placement(self) -> Iterator[tuple[ContainerSet, tuple[int, ...]]]:
        """The free sets, each with its ids."""
        for part in self.placement if self.geometry else ():
            if self.geometry:
                yield part, tuple(map(int, self.geometry.ids_of(part.request.resource.unit, part.mask)))

    @property
    def fits(self) -> bool:
        """Whether the pod could go there now."""
        return not self.reasons and bool(self.placement)


def node_answers(scene: Scene, pod: NeuronPod, names: Collection[str] | None = None) -> list[NodeAnswer]:
    """Every node's full answer to a pod; only of the nodes in ``names``, if given."""
    cluster, among, volumes = scene.cluster, scene.among(pod), scene.volumes(pod)
    avoided, names = cluster.why_avoided(pod), cluster.nodes if names is None else names
    left, answers = scene.left_to_others(pod, names), []
    for name in names:
        against = [*scene.against(pod, name, among, volumes), *filter(None, [avoided.get(name)])]
        if name in left:
            against.append(LEFT)
        answers.append(node_answer(scene, pod, name, tuple(against)))
    return answers


def node_answer(scene: Scene, pod: NeuronPod, name: str, against: tuple[str, ...] = ()) -> NodeAnswer:
    """One node's answer to a pod; ``against`` are kube-scheduler's reasons besides its counts of Neuron."""
    info = scene.node_for(pod, name)
    known = scene.answers.get((name, pod.requests))
    if known is None or known[0] is not info:
        known = scene.answers[name, pod.requests] = info, _answer_by_devices(info, pod.requests)
    answer, counts = known[1], list[str]()
    if not answer.has_neuron:
        return answer
    if answer.placement:  # else it is short of more than kube-scheduler's counts
        for resource, counted, asked in neuron_shortages(pod.rules, info.node.rules, scene.use(name)):
            why = "".join(f"; {text}" for text in _why_counted_less(info, resource))
            counts.append(f"has {counted} of {resource} left as kube-scheduler counts, the pod asks for {asked}{why}")
    return replace(answer, reasons=(*counts, *answer.reasons, *against)) if counts or against else answer


def _answer_by_devices(info: NodeInfo, request: PodRequest) -> NodeAnswer:
    """A node's answer to all pods with this request, by its devices alone."""
    name, capacity = info.name, info.capacity
    if isinstance(capacity, Rejection):
        if capacity.code == NO_NEURON:
            return NodeAnswer(name, has_neuron=False, reasons=(capacity.predicate,))
        details = [*info.details]
        if isinstance(info.node.inventory, Rejection) and info.node.inventory.detail:
            details.append(info.node.inventory.detail)
        return NodeAnswer(name, has_neuron=True, reasons=(capacity.predicate,), details=tuple(details))
    placed, reason, amounts = _sets(capacity, request)
    if not isinstance(placed, Rejection):
        return NodeAnswer(name, has_neuron=True, placement=placed, geometry=capacity.geometry, details=amounts)
    blocked = [one for container in request for one in _blocked(info, container, capacity.facts.unused)]
    return NodeAnswer(name, has_neuron=True, reasons=(reason,), blocked=tuple(blocked), details=amounts)


@lru_cache(maxsize=4_096)
def _sets(capacity: Capacity, request: PodRequest) -> tuple[Placement | Rejection, str, tuple[str, ...]]:
    """The sets on any node of this capacity, or why there are none, and further facts for people."""
    placed, details = capacity.place(request), [*_amount_details(capacity, request)]
    if not isinstance(placed, Rejection):
        return placed, "", tuple(details)
    if placed is WRONG_PRODUCT:
        details.append(f"its devices are {' or '.join(sorted(capacity.facts.names))}")
    details += _left_out(capacity.geometry, request)
    return placed, _neuron_reason(capacity, request, placed), tuple(details)


def _neuron_reason(capacity: Capacity, request: PodRequest, rejection: Rejection) -> str:
    """Why there are no sets, with the numbers of this node."""
    geometry, free = capacity.geometry, capacity.free_mask
    in_devices = all(container.resource.unit is Unit.DEVICE for container in request)
    has, most = (
        (len(geometry.whole_devices(free)), geometry.device_count)
        if in_devices
        else (
            free.bit_count(),
            geometry.core_count,
        )
    )
    free_text = f"has {has} of {most} {'devices' if in_devices else 'cores'} free"
    match rejection.code:
        case "not-free":
            return free_text
        case "fragmented":
            return f"{free_text}, but no linked set of {max(container.count for container in request)}"
        case "unhealthy":
            lacking = geometry.devices_touched(geometry.all_mask & ~capacity.healthy_mask)
            return f"lacks {named('device', lacking)}"
        case "disabled":
            off = geometry.devices_touched(capacity.facts.disabled_mask)
            return f"has {named('device', off)} disabled"
        case _:
            return rejection.predicate


def _why_counted_less(info: NodeInfo, resource: str) -> Iterator[str]:
    """Why kube-scheduler counts fewer devices than are free."""
    inventory = info.inventory
    if inventory is None:
        return
    geometry = inventory.geometry
    for device in inventory.unhealthy:
        held = info.ledger.overlapping(geometry.device_mask(device))
        holders = dict.fromkeys(str(allocation.pod) for allocation in held if allocation.resource.value == resource)
        if holders:
            yield f"device {device}, which {', '.join(holders)} has, is broken and counts twice"


def _amount_details(capacity: Capacity, request: PodRequest) -> Iterator[str]:
    """The remaining part of each requested amount, by device."""
    facts, geometry = capacity.facts, capacity.geometry
    for name in sorted({name for container in request for name, _ in container.amounts}):
        has, used = dict(facts.amounts).get(name), dict(facts.used).get(name, (0,) * geometry.device_count)
        if has is None:
            yield f"how much {PREFIX}{name} a device has is not known"
            continue
        devices: dict[int, list[int]] = {}
        for device, amount in enumerate(used):
            devices.setdefault(has - amount, []).append(device)
        texts = (f"{left} on {named('device', ids)}" for left, ids in sorted(devices.items()))
        yield f"{PREFIX}{name} left, of {has} on each device: {', '.join(texts)}"


def _left_out(geometry: Geometry, request: PodRequest) -> Iterator[str]:
    constraints = request[0].constraints
    if isinstance(constraints, Constraints):
        devices = range(geometry.device_count)
        if left_out := [device for device in devices if not constraints.allowed_devices >> device & 1]:
            yield f"the pod's annotations leave out {named('device', left_out)}"


def _blocked(info: NodeInfo, container: ContainerRequest, facts: DeviceFacts) -> list[BlockedSet]:
    """The sets that one container's constraints allow, the nearest to being free first."""
    inventory, unit = info.inventory, container.resource.unit
    if inventory is None:
        return []
    geometry, disabled_mask, free_mask = inventory.geometry, inventory.disabled_mask, info.free_mask
    may_be_used = inventory.healthy_mask | disabled_mask
    usable, blocked = usable_mask(geometry, container, facts), []
    for mask in valid_sets(geometry, unit, container.count):
        if mask & usable == mask and mask & ~free_mask:
            holders = dict.fromkeys(allocation.pod for allocation in info.ledger.overlapping(mask))
            kept = dict.fromkeys(kept.pod for kept in info.reservations if kept.mask & mask)
            blocked.append(
                BlockedSet(
                    container.name,
                    unit,
                    _ids(geometry, unit, mask),
                    tuple(holders),
                    _devices(geometry, mask & ~may_be_used),
                    _devices(geometry, mask & disabled_mask),
                    tuple(kept),
                )
            )
    return sorted(blocked, key=lambda blocked_set: blocked_set.weight)


@lru_cache(maxsize=4_096)
def _ids(geometry: Geometry, unit: Unit, mask: CoreMask) -> tuple[int, ...]:
    return tuple(map(int, geometry.ids_of(unit, mask)))


def _devices(geometry: Geometry, mask: int) -> tuple[int, ...]:
    return tuple(map(int, geometry.devices_touched(mask))) if mask else ()


# All nodes.


def sentence_of(answers: Sequence[NodeAnswer]) -> str:
    """Why a pod fits nowhere, as kube-scheduler counts it: nodes with Neuron first, every reason with its count."""
    neuron = [answer for answer in answers if answer.has_neuron]
    without = len(answers) - len(neuron)
    others = f"{_nodes(without)} {'has' if without == 1 else 'have'} no Neuron" if without else ""
    if not neuron:
        return f"No node has Neuron devices{f': {others}' if others else ''}"
    counted = Counter(reason for answer in neuron for reason in answer.reasons)
    in_order = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    texts = [_counted(count, reason) for reason, count in in_order[:MOST_REASONS]]
    if more := len(in_order) - MOST_REASONS:
        texts.append(f"and {plural(more, 'more reason')}") if more > 0 else None
    said = ", ".join(texts) or "nothing speaks against them one by one"
    return "; ".join(
        filter(None, [f"0 of {len(neuron)} Neuron {'node' if len(neuron) == 1 else 'nodes'}: {said}", others])
    )


_PLURALS = {
    "has": "have",
    "offers": "offer",
    "is": "are",
    "lacks": "lack",
    "does": "do",
    "gives": "give",
    "matches": "match",
}


def _counted(count: int, reason: str) -> str:
    verb, _, rest = reason.partition(" ")
    if verb not in {*_PLURALS, "cannot"}:
        return f"{count}: {reason}"
    return f"{count} {verb if count == 1 else _PLURALS.get(verb, verb)} {rest}"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def nearest_holders(scene: Scene, pod: NeuronPod, answers: Sequence[NodeAnswer]) -> tuple[PodReference, ...]:
    """The holders of the set that is nearest to being free, on the nodes without other reasons.

    Among sets with equally many holders, the old pods of its own Deployment come first, then the pods that have least.
    Pods of its own group do not count, nor do those that are not made yet.
    """
    own = {other.uid for other in scene.cluster.members_of(pod.group)} if pod.group else set()

    def is_own(other: PodReference) -> bool:
        return other.uid in own or (pod.group is not None and is_key_of(pod.group, other.uid))

    ways = [
        (answer.name, one)
        for answer in answers
        if len(answer.reasons) == 1
        for one in answer.blocked
        if not (one.unhealthy or any(map(is_own, (*one.holders, *one.reserved_for))))
    ]
    least = min((one.weight for _, one in ways), default=None)
    best: BlockedSet | None = min(
        ((name, one) for name, one in ways if one.weight == least),
        key=lambda way: (
            not are_old_pods(scene, pod, way[1].holders),
            sum(scene.node(way[0]).ledger.mask_of(holder.uid).bit_count() for holder in way[1].holders),
        ),
        default=("", None),
    )[1]
    return (*best.holders, *best.reserved_for) if best else ()


def are_old_pods(scene: Scene, pod: NeuronPod, others: Sequence[PodReference]) -> bool:
    """Whether these are pods that the pod's Deployment is replacing."""
    own = _deployment_of(pod)
    known = (scene.cluster.pods.get(other.uid) for other in others)
    return bool(own and others) and all(
        other and _deployment_of(other) == own and other.controller != pod.controller for other in known
    )


def _deployment_of(pod: NeuronPod) -> str:
    """The Deployment of a pod, by the name of its ReplicaSet and the hash in it; empty if it has none."""
    kind, _, name = pod.controller.partition("/")
    template = pod.labels.labels.get("pod-template-hash", "")
    return name.removesuffix(f"-{template}") if kind == "ReplicaSet" and template and name.endswith(template) else ""
