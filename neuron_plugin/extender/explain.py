"""``GET /inspect[/NODE]`` and ``GET /explain/NAMESPACE/POD``: the state of the moment for a person at a terminal.

Why does a pod fit a node or not: which set would it get, or which pods are in the way of which sets? The same functions
that decide are asked, so an explanation cannot differ from the scheduler's answer. What keeps kube-scheduler from a
node for other reasons is looked at where there is an API server to ask (``node_rules``), and else named as not looked
at. Plain text by default, JSON for ``?format=json``. Thousands of nodes take some 0.1-0.4 s, so answers are worked out
in a thread, from records that do not change: the scheduler is not kept waiting.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import (
    PREFIX,
    WRONG_PRODUCT,
    ContainerRequest,
    DeviceFacts,
    NeuronPod,
    PodRequest,
    Rejection,
    ids_of,
    ranges,
    usable_mask,
)
from neuron_plugin.extender.node_rules import (
    LOOKED_AT,
    NOT_LOOKED_AT,
    VOLUMES,
    NodeRules,
    NodeUse,
    PersistentVolume,
    PodRules,
    objections,
)
from neuron_plugin.extender.state import ClusterState, NodeInfo
from neuron_plugin.extender.views import node_view
from neuron_plugin.topology import Geometry, Unit, cores_in, valid_sets

if TYPE_CHECKING:
    from aiohttp import web

MOST_SETS = 4
"""Sets shown per container and node: those with the fewest pods in their way."""
MOST_NODES = 3
"""Nodes shown in text of those that give the same answer; the others are counted."""
MOST_HOLDERS = 5
"""Holders named in text per set; the others are counted."""

_HEADINGS = ("NODE", "TYPE", "FREE DEVICES", "USED CORES", "PODS", "STATE")


class BlockedSet(msgspec.Struct, frozen=True, rename="camel"):
    """A set that would do for ``container``, and what is in its way.

    Either ``unhealthy_devices`` and ``disabled_devices``, whose state no pod's end would change, or the pods that have
    a part of it.
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
    """One node's answer, by its Neuron devices alone. ``sets`` has what each container would get.

    ``blocked`` has what is in the way if nothing. ``objections`` are why kube-scheduler does not place the pod there
    whatever its devices are.
    """

    node: str
    fits: bool
    reason: str
    sets: tuple[str, ...] = ()
    blocked: tuple[BlockedSet, ...] = ()
    details: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's prospects. ``note`` has what holds for all nodes, such as that it is bound already.

    ``scheduler`` is the pod's schedulerName, where that was looked at. ``move`` says which move of other pods would
    make room, where the extender has found one, or that room is being made.
    """

    pod: str
    request: str
    note: str
    nodes: tuple[NodeExplanation, ...]
    scheduler: str = ""
    move: str = ""
    not_looked_at: tuple[str, ...] = (*LOOKED_AT, *NOT_LOOKED_AT)


def find_pod(state: ClusterState, namespace: str, name: str) -> NeuronPod | None:
    """The live Neuron pod of a name; the one that is not terminating where a name is there twice."""
    named = [pod for pod in state.pods.values() if (pod.reference.namespace, pod.reference.name) == (namespace, name)]
    return min(named, key=lambda pod: pod.terminating, default=None)


def explain(state: ClusterState, pod: NeuronPod) -> Explanation:
    """A pod's prospects on every node, fitting ones first. May run beside the loop that changes ``state``."""
    name, request = str(pod.reference), pod.request
    if isinstance(request, Rejection):
        return Explanation(name, "", request.detail, ())
    asked = ", ".join(map(_asked_text, request))
    if not request:
        return Explanation(name, "", "The pod asks for no Neuron resource: it fits every node.", ())
    if target := state.bound_to(pod.uid) or pod.node:
        return Explanation(name, asked, f"The pod is bound, or being bound, to {target}.", ())
    if isinstance(request[0].constraints, Rejection):
        return Explanation(name, asked, request[0].constraints.detail, ())
    nodes = [explain_node(info, request) for info in list(state.nodes.values())]
    nodes.sort(key=lambda each: (not each.fits, each.node))
    move = state.moves.get(pod.uid, "")
    if kept := state.reserved.get(pod.uid):
        move = f"Cores {ranges(cores_in(kept.mask))} of node {kept.node} are reserved for it: others are moved away."
    return Explanation(name, asked, "", tuple(nodes), move=move)


def with_node_rules(
    found: Explanation,
    pod: PodRules,
    nodes: Mapping[str, NodeRules],
    uses: Mapping[str, NodeUse],
    volumes: Collection[PersistentVolume] | None,
) -> Explanation:
    """The explanation with what kube-scheduler has against each node; a node that is not among ``nodes`` is gone.

    ``uses`` is what pods have, by node. ``volumes`` are those of the pod's claims, None if they are not known.
    """
    empty, needed = NodeUse(), volumes or ()
    judged = [
        msgspec.structs.replace(
            each,
            objections=tuple(objections(pod, nodes[each.node], uses.get(each.node, empty), needed)),
        )
        for each in found.nodes
        if each.node in nodes
    ]
    judged.sort(key=lambda each: (not each.fits, bool(each.objections), each.node))
    scheduler = pod.spec.scheduler_name
    unknown = NOT_LOOKED_AT if volumes is not None else (VOLUMES, *NOT_LOOKED_AT)
    return msgspec.structs.replace(found, nodes=tuple(judged), scheduler=scheduler, not_looked_at=unknown)


def _asked_text(part: ContainerRequest) -> str:
    amounts = [f"{amount} {PREFIX}{name}" for name, amount in part.amounts]
    return f"{part.container}: {' with '.join([f'{part.count} {part.resource.value}', *amounts])}"


def explain_node(info: NodeInfo, request: PodRequest) -> NodeExplanation:
    """What one node says to a request."""
    if isinstance(info.capacity, Rejection):
        details = [reason.detail for _, reason in info.unclear]
        if isinstance(info.node.inventory, Rejection) and info.node.inventory.detail:
            details.append(info.node.inventory.detail)
        return NodeExplanation(info.name, fits=False, reason=info.capacity.text, details=tuple(details))
    geometry, placed, facts = info.capacity.geometry, info.capacity.place(request), info.capacity.facts
    details = [
        _left_text(facts, geometry, name) for name in sorted({name for part in request for name, _ in part.amounts})
    ]
    if not isinstance(placed, Rejection):
        sets = (f"{part.request.container}: {_ids(geometry, part.request.resource.unit, part.mask)}" for part in placed)
        return NodeExplanation(info.name, fits=True, reason="", sets=tuple(sets), details=tuple(details))
    if placed is WRONG_PRODUCT:
        details.append(f"its devices are {' or '.join(sorted(facts.names))}")
    blocked = tuple(each for part in request for each in _blocked(info, part, facts.unused))
    return NodeExplanation(info.name, fits=False, reason=placed.text, blocked=blocked, details=tuple(details))


def _left_text(facts: DeviceFacts, geometry: Geometry, name: str) -> str:
    """What is left of an amount, by device."""
    has, used = dict(facts.amounts).get(name), dict(facts.used).get(name, (0,) * geometry.device_count)
    if has is None:
        return f"how much {PREFIX}{name} a device has is not known"
    devices: dict[int, list[int]] = {}
    for device, amount in enumerate(used):
        devices.setdefault(has - amount, []).append(device)
    each = (f"{left} on {_ids_text(Unit.DEVICE, ids)}" for left, ids in sorted(devices.items()))
    return f"of {has} {PREFIX}{name} are left: {', '.join(each)}"


def _blocked(info: NodeInfo, part: ContainerRequest, facts: DeviceFacts) -> list[BlockedSet]:
    """The sets of one container that its constraints allow and that are nearest to being free."""
    inventory, unit = info.inventory, part.resource.unit
    if inventory is None:
        return []
    geometry, disabled_mask, free_mask = inventory.geometry, inventory.disabled_mask, info.free_mask
    may_be_used = inventory.healthy_mask | disabled_mask
    usable, found = usable_mask(geometry, part, facts), []
    for mask in valid_sets(geometry, unit, part.count):
        if mask & usable == mask and mask & ~free_mask:
            unhealthy, disabled = (geometry.devices_touched(mask & kept) for kept in (~may_be_used, disabled_mask))
            lasting = unhealthy or disabled
            kept = [f"{each.pod} (reserved)" for each in info.reservations if each.mask & mask]
            pods = [str(one.pod) for one in info.ledger.overlapping(mask)]
            holders = () if lasting else dict.fromkeys(pods + kept)
            found.append(BlockedSet(part.container, _ids(geometry, unit, mask), tuple(holders), unhealthy, disabled))
    found.sort(key=lambda each: each.weight)
    return found[:MOST_SETS]


def _ids(geometry: Geometry, unit: Unit, mask: int) -> str:
    return _ids_text(unit, ids_of(geometry, unit, mask))


def _ids_text(unit: Unit, ids: Sequence[int]) -> str:
    return f"{unit}{'s' if len(ids) > 1 else ''} {ranges(ids)}"


def explain_text(found: Explanation, names: Collection[str] = ()) -> str:
    """An explanation as lines of text; of the nodes of these ``names`` alone, if there are any.

    Nodes that give the same answer are shown once, those with the least in the way first, and counted.
    """
    scheduler = f" (schedulerName: {found.scheduler})" if found.scheduler else ""
    lines = [f"{found.pod} asks for {found.request or 'nothing'}{scheduler}"]
    if found.note:
        lines.append(found.note)
    alike = defaultdict[object, list[NodeExplanation]](list)
    for node in found.nodes:
        if not names or node.node in names:
            alike[node.fits, node.reason, node.sets, node.objections].append(node)
    for nodes in alike.values():
        nodes.sort(key=lambda each: [one.weight for one in each.blocked])
        differ = len({(node.blocked, node.details) for node in nodes}) > 1
        shown = nodes if names else nodes[: MOST_NODES if differ else 1]
        more = [node.node for node in nodes[len(shown) :]]
        for node in shown:
            lines += _node_lines(node, several=", " in found.request)
        if more:
            lines.append(f"  {len(more)} more like this: {_named(sorted(more), MOST_NODES)}")
    if found.move:
        lines.append(found.move)
    if found.nodes:
        lines.append(f"Not looked at: {', '.join(found.not_looked_at)}.")
    return "\n".join(lines) + "\n"


def _node_lines(node: NodeExplanation, *, several: bool) -> Iterator[str]:
    verdict = f"fits, would get {'; '.join(node.sets)}" if node.fits else node.reason
    if node.objections:
        verdict += f"{', but' if node.fits else '; and'} kube-scheduler leaves it out: {'; '.join(node.objections)}"
    yield f"{node.node}: {verdict}"
    yield from (f"  {detail}" for detail in node.details)
    for each in node.blocked:
        held = f"held by {_named(each.holders, MOST_HOLDERS)}" if each.holders else ""
        broken = f"unhealthy or missing: {ranges(each.unhealthy_devices)}" if each.unhealthy_devices else ""
        disabled = f"disabled: {ranges(each.disabled_devices)}" if each.disabled_devices else ""
        container = f"{each.container}: " if several else ""
        why = "; ".join(filter(None, (held, broken, disabled)))
        yield f"  {container}{each.ids}: {why or 'free, but not all at once'}"


def _named(names: Collection[str], most: int) -> str:
    """The first names, and how many others there are."""
    listed = ", ".join(list(names)[:most])
    return f"{listed} and {len(names) - most} others" if len(names) > most else listed


def inspection_routes(state: ClusterState) -> list[web.RouteDef]:
    """The routes."""
    from aiohttp import web

    async def inspect(request: web.Request) -> web.Response:
        name = request.match_info.get("node")
        if name and name not in state.nodes:
            raise web.HTTPNotFound(text=f"node {name} is not known here\n")
        nodes = [state.nodes[each] for each in ([name] if name else sorted(state.nodes))]
        if request.query.get("format") == "json":
            body = await asyncio.to_thread(lambda: msgspec.json.encode([node_view(state, info) for info in nodes]))
            return web.Response(body=body, content_type="application/json")
        return web.Response(text=await asyncio.to_thread(inspect_text, nodes, details=bool(name)))

    async def explain_pod(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        pod = find_pod(state, namespace, name)
        if pod is None:
            raise web.HTTPNotFound(text=f"no live pod {namespace}/{name} that asks for Neuron is known here\n")
        if request.query.get("format") == "json":
            body = await asyncio.to_thread(lambda: msgspec.json.encode(explain(state, pod)))
            return web.Response(body=body, content_type="application/json")
        names = request.query.getall("node", [])
        return web.Response(text=await asyncio.to_thread(lambda: explain_text(explain(state, pod), names)))

    return [
        web.get("/inspect", inspect),
        web.get("/inspect/{node}", inspect),
        web.get("/explain/{namespace}/{pod}", explain_pod),
    ]


def inspect_text(nodes: Iterable[NodeInfo], *, details: bool) -> str:
    """A table of nodes; with ``details`` also who has what, and why a node is closed."""
    rows, below = [_HEADINGS], []
    for info in nodes:
        cells = ("-", "-", "-", "-")
        below += [f"  closed: {reason.detail}" for _, reason in info.unclear]
        if info.inventory:
            geometry = info.inventory.geometry
            free, used = ranges(geometry.whole_devices(info.free_mask)), ranges(cores_in(info.used_mask))
            cells = (geometry.instance_type, free, used, str(len(info.ledger.by_pod)))
            below += [f"  unhealthy: device {device}: {why}" for device, why in info.inventory.unhealthy.items()]
            below += [f"  disabled: {ranges(info.inventory.disabled)}"] if info.inventory.disabled else []
        for uid, allocations in info.ledger.by_pod.items():
            below.append(f"  {allocations[0].pod} holds cores {ranges(cores_in(info.ledger.mask_of(uid)))}")
        rows.append((info.name, *cells, info.capacity.text if isinstance(info.capacity, Rejection) else "open"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines + (below if details else [])) + "\n"
