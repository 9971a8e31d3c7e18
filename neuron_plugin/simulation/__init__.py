"""A simulated node, kubelet, API server and scheduler, for the demo, tests and planning.

The module of a name is imported when the name is first used: a command that breaks a device needs no API server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuron_plugin.simulation.cluster import NODE_NAME, PlacedBy, SimulatedCluster, pod_manifest
    from neuron_plugin.simulation.kubelet_pods import AdmittedPod, KubeletContainer, KubeletPod
    from neuron_plugin.simulation.node import SimulatedNode, write_node
    from neuron_plugin.simulation.node_tree import SimulationError
    from neuron_plugin.simulation.scheduler import ExtenderCallError

_NAMES = {
    "cluster": ("NODE_NAME", "PlacedBy", "SimulatedCluster", "pod_manifest"),
    "kubelet_pods": ("AdmittedPod", "KubeletContainer", "KubeletPod"),
    "node": ("SimulatedNode", "write_node"),
    "node_tree": ("SimulationError",),
    "scheduler": ("ExtenderCallError",),
}


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
