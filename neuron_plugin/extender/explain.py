"""Why a pod fits a node or does not: which set it would get, or which sets are in whose way.

The same functions that decide are asked here, so an explanation cannot differ from what the scheduler was told.
"""

from __future__ import annotations

import msgspec

from neuron_plugin.allocation import ContainerRequest, Holder, Placement, PodRequest, Rejection, format_ids, ids_of
from neuron_plugin.extender.claims import PodRecord, Unreadable
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.shapes import ClosedShape
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verdicts import placement_on
from neuron_plugin.topology import Geometry, Unit, valid_sets

MOST_SETS = 4
"""Sets shown per container and node: those with the fewest pods in their way."""


class BlockedSet(msgspec.Struct, frozen=True, rename="camel"):
    """A set that would do, the pods that hold a part of it, and its devices that may not be used."""

    ids: str
    holders: tuple[str, ...]
    unhealthy_devices: tuple[int, ...]


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """One node's answer. ``sets`` says what each container would get, ``blocked`` what stands in its way if nothing."""

    node: str
    fits: bool
    reason: str
    sets: tuple[str, ...] = ()
    blocked: tuple[BlockedSet, ...] = ()
    details: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's prospects. ``note`` says what holds for all nodes, such as that it is bound already."""

    pod: str
    request: str
    note: str
    nodes: tuple[NodeExplanation, ...]


def explain(state: ClusterState, record: PodRecord) -> Explanation:
    """A pod's prospects on every node, fitting ones first. May run beside the loop that changes ``state``."""
    pod = str(record.pod)
    if isinstance(record.request, Unreadable):
        return Explanation(pod, "", record.request.text, ())
    asked = ", ".join(f"{part.container}: {part.count} {part.resource.value}" for part in record.request)
    if not record.request:
        return Explanation(pod, "", "The pod asks for no Neuron resource: it fits every node.", ())
    if target := state.bound_to(record.uid) or record.node:
        return Explanation(pod, asked, f"The pod is bound, or being bound, to {target}.", ())
    nodes = [explain_node(node, record.request) for node in list(state.nodes.values())]
    nodes.sort(key=lambda each: (not each.fits, each.node))
    return Explanation(pod, asked, "", tuple(nodes))


def find_pod(state: ClusterState, namespace: str, name: str) -> PodRecord | None:
    """The live Neuron pod of a name; the one that is not terminating where a name is there twice."""
    found = [each for each in state.pods.values() if (each.pod.namespace, each.pod.name) == (namespace, name)]
    return min(found, key=lambda each: each.terminating, default=None)


def explain_text(found: Explanation) -> str:
    """An explanation as lines of text."""
    lines = [f"{found.pod} asks for {found.request or 'nothing'}"]
    if found.note:
        lines.append(found.note)
    for node in found.nodes:
        lines += _node_lines(node)
    return "\n".join(lines) + "\n"


def explain_node(node: NodeRecord, request: PodRequest) -> NodeExplanation:
    """What one node says to a request."""
    if isinstance(node.shape, ClosedShape):
        details = [claim.detail for claim in node.unclear]
        if not isinstance(node.hardware, Hardware) and node.hardware.detail:
            details.append(node.hardware.detail)
        return NodeExplanation(node.name, fits=False, reason=node.shape.refusal.text, details=tuple(details))
    placed = placement_on(node.shape, request)
    if not isinstance(placed, Rejection):
        return NodeExplanation(node.name, fits=True, reason="", sets=_sets(node.shape.geometry, placed))
    blocked = [each for part in request for each in _blocked(node, node.shape.geometry, part)]
    return NodeExplanation(node.name, fits=False, reason=placed.text, blocked=tuple(blocked))


def _sets(geometry: Geometry, placed: Placement) -> tuple[str, ...]:
    return tuple(
        f"{part.request.container}: {_ids(geometry, part.request.resource.unit, part.mask)}" for part in placed
    )


def _blocked(node: NodeRecord, geometry: Geometry, part: ContainerRequest) -> list[BlockedSet]:
    """The sets of one container that are nearest to being free."""
    unit = part.resource.unit
    found = [
        _obstacles(node, geometry, unit, mask)
        for mask in valid_sets(geometry, unit, part.count)
        if mask & ~node.free_mask
    ]
    found.sort(key=lambda each: (len(each.unhealthy_devices), len(each.holders)))
    return found[:MOST_SETS]


def _obstacles(node: NodeRecord, geometry: Geometry, unit: Unit, mask: int) -> BlockedSet:
    holders: tuple[Holder, ...] = node.ledger.holders_of(mask)
    healthy = node.hardware.healthy_mask if isinstance(node.hardware, Hardware) else 0
    return BlockedSet(
        _ids(geometry, unit, mask),
        tuple(str(holder.pod) for holder in holders),
        geometry.devices_touched(mask & ~healthy),
    )


def _ids(geometry: Geometry, unit: Unit, mask: int) -> str:
    ids = ids_of(geometry, unit, mask)
    return f"{unit}{'s' if len(ids) > 1 else ''} {format_ids(ids)}"


def _node_lines(node: NodeExplanation) -> list[str]:
    if node.fits:
        return [f"{node.node}: fits, would get {'; '.join(node.sets)}"]
    lines = [f"{node.node}: {node.reason}", *(f"  {detail}" for detail in node.details)]
    for each in node.blocked:
        held = f"held by {', '.join(each.holders)}" if each.holders else ""
        broken = f"unhealthy or missing: {format_ids(each.unhealthy_devices)}" if each.unhealthy_devices else ""
        lines.append(
            f"  {each.ids}: {'; '.join(part for part in (held, broken) if part) or 'free, but not all at once'}"
        )
    return lines
