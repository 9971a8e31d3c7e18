"""A simulated node, kubelet, API server and scheduler, for the demo, tests and planning.

The module of a name is imported when the name is first used: a command that breaks a device needs no API server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuron_plugin.simulation.api_server import SimulatedApiServer
    from neuron_plugin.simulation.cluster import NODE_NAME, PlacedBy, SimulatedCluster, pod_manifest
    from neuron_plugin.simulation.kubelet import SimulatedKubelet
    from neuron_plugin.simulation.kubelet_device_manager import AllocationError, PluginCallError
    from neuron_plugin.simulation.kubelet_pods import (
        AdmittedContainer,
        AdmittedPod,
        KubeletContainer,
        KubeletPod,
        PodRejectedError,
    )
    from neuron_plugin.simulation.node import SimulatedNode, write_char_node, write_node
    from neuron_plugin.simulation.node_tree import SimulationError
    from neuron_plugin.simulation.scheduler import SCHEDULERS, ExtenderCallError, SimulatedScheduler
    from neuron_plugin.simulation.workloads import WorkloadError, WorkloadPod, pods_of

_MODULES = {
    "SimulatedApiServer": "api_server",
    "NODE_NAME": "cluster",
    "SCHEDULERS": "scheduler",
    "PlacedBy": "cluster",
    "SimulatedCluster": "cluster",
    "pod_manifest": "cluster",
    "SimulatedKubelet": "kubelet",
    "AllocationError": "kubelet_device_manager",
    "PluginCallError": "kubelet_device_manager",
    "AdmittedContainer": "kubelet_pods",
    "AdmittedPod": "kubelet_pods",
    "KubeletContainer": "kubelet_pods",
    "KubeletPod": "kubelet_pods",
    "PodRejectedError": "kubelet_pods",
    "SimulatedNode": "node",
    "write_node": "node",
    "SimulationError": "node_tree",
    "write_char_node": "node",
    "ExtenderCallError": "scheduler",
    "SimulatedScheduler": "scheduler",
    "WorkloadError": "workloads",
    "WorkloadPod": "workloads",
    "pods_of": "workloads",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
