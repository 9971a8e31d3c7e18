"""The free devices in each part of the network: one tree for ``nodes --tree``, the page and explanations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.monitor.views import NodeView, device_counts
from neuron_plugin.planning.domains import domains_of


class NodeRoom(NamedTuple):
    """One node: level and name of each of its domains, the broadest first; its free devices, and all its devices."""

    name: str
    domains: tuple[tuple[str, str], ...]
    free: int
    devices: int


class DomainView(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the network: how many ``nodes`` it has, and how many of them are free as a ``whole``.

    ``parts`` are the domains in it, and ``members`` the nodes outside these. The whole network has no name.
    """

    level: str = ""
    name: str = ""
    nodes: int = 0
    whole: int = 0
    free_devices: int = 0
    devices: int = 0
    parts: tuple[DomainView, ...] = ()
    members: tuple[str, ...] = ()


def room_of(node: NodeView) -> NodeRoom:
    """The room of a node view."""
    return NodeRoom(node.name, tuple(node.spec.domains.items()), node.status.device_counts.free, node.spec.devices)


def rooms_of(nodes: Iterable[NodeInfo], levels: Iterable[str]) -> list[NodeRoom]:
    """The rooms of nodes with Neuron; ``levels`` are labels that name the network's levels."""
    named = tuple(levels)
    return [
        NodeRoom(
            info.name,
            tuple(domains_of(info.node.rules.labels, named).items()),
            device_counts(info).free,
            info.inventory.geometry.device_count,
        )
        for info in nodes
        if info.inventory
    ]


def domain_tree(rooms: Iterable[NodeRoom], level: str = "", name: str = "", depth: int = 0) -> DomainView:
    """The domain of these nodes; the first ``depth`` domains of each node are left out."""
    listed, members, parts = list(rooms), list[str](), dict[tuple[str, str], list[NodeRoom]]()
    for room in listed:
        if depth < len(room.domains):
            parts.setdefault(room.domains[depth], []).append(room)
        else:
            members.append(room.name)
    return DomainView(
        level,
        name,
        len(listed),
        sum(0 < room.devices == room.free for room in listed),
        sum(room.free for room in listed),
        sum(room.devices for room in listed),
        tuple(domain_tree(inside, *part, depth + 1) for part, inside in sorted(parts.items())),
        tuple(members),
    )
