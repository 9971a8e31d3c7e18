"""Other resources of simulated nodes besides Neuron, and their network labels.

A node has its instance type's CPU, memory and EFA, some disk, and with EFA also huge pages, as in EKS's image. Trainium
nodes have the network labels that cloud-controller-manager writes: layer 1 is the broadest, the highest number the
leaf. Eight nodes of a family share a leaf, and four trn2u nodes share an UltraServer. Sources: EC2's instance type
tables; ``pkg/providers/v1/topology.go`` of cloud-provider-aws (2026-07).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

CPU_NODE = "cpu"
"""The type of nodes without Neuron."""
MOST_PLUGINS = 16
"""Nodes with a real plugin by default. Each takes some 70 MB of memory, and 2 s of CPU to start."""
LEAF_NODES = 8
"""Nodes of a family on one leaf of the network."""
ULTRASERVER_NODES = 4
"""Trn2u nodes in an UltraServer."""


@dataclass(frozen=True, slots=True)
class MachineParts:
    """Other parts of an instance type than Neuron devices. ``layers`` is the number of its network labels."""

    cpus: int
    memory_gib: int
    efa: int = 0
    layers: int = 0


_USUAL, _TRN2 = MachineParts(128, 512), MachineParts(192, 2048, efa=16, layers=4)
_MACHINES: Mapping[str, MachineParts] = {
    CPU_NODE: MachineParts(32, 128),
    "inf1.xlarge": MachineParts(4, 8),
    "inf1.2xlarge": MachineParts(8, 16),
    "inf1.6xlarge": MachineParts(24, 48),
    "inf1.24xlarge": MachineParts(96, 192, efa=1),
    "inf2.xlarge": MachineParts(4, 16),
    "inf2.8xlarge": MachineParts(32, 128),
    "inf2.24xlarge": MachineParts(96, 384),
    "inf2.48xlarge": MachineParts(192, 768),
    "trn1.2xlarge": MachineParts(8, 32, layers=3),
    "trn1.32xlarge": MachineParts(128, 512, efa=8, layers=3),
    "trn1n.32xlarge": MachineParts(128, 512, efa=16, layers=3),
    "trn2.3xlarge": MachineParts(12, 128, efa=1, layers=4),
}
NODE_FAULTS = {"kubelet": ("restart", "stop", "start"), "machine": ("reboot", "lost", "back")}
"""Faults of a whole node."""
NODE_FAULTS_PATH = "/playground/nodes/"
"""The URL path of these faults, followed by node, part and change."""
CHECK_CLAIM = "neuron-plugin-preflight"
"""The claim template of pre-flight checks, in mode dra."""
_CPU_INSTANCE = "m7i.8xlarge"
_ZONE_NODES = 256
_LAYER_NODES = {3: (_ZONE_NODES, 32, LEAF_NODES), 4: (_ZONE_NODES, 64, 16, LEAF_NODES)}
"""Nodes of a family in a domain of each layer, by the number of layers."""


def machine_of(instance_type: str) -> MachineParts:
    """The parts of a type; of an unknown type, usual ones."""
    newer = instance_type.startswith(("trn2", "trn3"))
    return _MACHINES.get(instance_type, _TRN2 if newer else _USUAL)


def resources_of(instance_type: str) -> dict[str, str]:
    """A node's resources besides Neuron."""
    machine = machine_of(instance_type)
    huge = {"hugepages-2Mi": "10256Mi", "vpc.amazonaws.com/efa": str(machine.efa)} if machine.efa else {}
    plain = {"cpu": str(machine.cpus), "memory": f"{machine.memory_gib}Gi", "ephemeral-storage": "200Gi", "pods": "247"}
    return plain | huge


_OLD_LABELS = {
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
}
"""Label names from before 1.17, which nodes still have."""


def labels_of(name: str, instance_type: str, place: int) -> dict[str, str]:
    """The labels by kubelet and cloud-controller-manager of the ``place``-th node of a family, from 0."""
    zone = "abcdef"[place // _ZONE_NODES % 6]
    family, layers = instance_type.partition(".")[0], machine_of(instance_type).layers
    network = {
        f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{_digest(f'{family}/{layer}/{place // nodes}', 17)}"
        for layer, nodes in enumerate(_LAYER_NODES.get(layers, ()), 1)
    }
    known = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": _CPU_INSTANCE if instance_type == CPU_NODE else instance_type,
        "topology.kubernetes.io/region": "us-west-2",
        "topology.kubernetes.io/zone": f"us-west-2{zone}",
        "topology.k8s.aws/zone-id": f"usw2-az{'abcdef'.index(zone) + 1}",
        **network,
    }
    return known | {old: known[key] for old, key in _OLD_LABELS.items()}


def ultraserver_of(instance_type: str, place: int) -> dict[str, str]:
    """The driver's class attributes of a node in an UltraServer; empty for other types."""
    if not re.match(r"trn2\w*u\.", instance_type):
        return {}
    family, sizes = instance_type.partition(".")[0], (2, ULTRASERVER_NODES)
    servers = {f"server_id_{size}": _digest(f"{family}/server/{size}/{place // size}", 16) for size in sizes}
    return {**servers, **{f"node_id_{size}": str(place % size) for size in sizes}, "ultraserver_mode": "1,2,4"}


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
