"""PersistentVolumeClaims, PersistentVolumes and StorageClasses, as far as they limit nodes."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation.node_rules import NodeSelectorTerm

GENERAL_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of old volumes, and the ones that nodes have now."""
ZONE_LABELS = frozenset({*GENERAL_LABELS, *GENERAL_LABELS.values()})


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim: its bound volume, if any, else what it waits for.

    ``once``: its access mode is ReadWriteOncePod. ``lost``: its volume is gone. ``selected_node`` is where its volume
    is being made.
    """

    volume: str = ""
    storage_class: str = ""
    once: bool = False
    lost: bool = False
    terminating: bool = False
    selected_node: str = ""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume: the nodes that can use it by ``terms``, None means all, and by ``zones`` of its labels.

    ``driver`` and ``handle`` are the CSI driver and volume handle.
    """

    name: str
    terms: tuple[NodeSelectorTerm, ...] | None = None
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    driver: str = ""
    handle: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """How volumes of a class are made. ``waits`` is WaitForFirstConsumer; ``topologies`` of () allow every node."""

    provisioner: str
    waits: bool = False
    topologies: tuple[NodeSelectorTerm, ...] = ()
