"""A simulated node, kubelet, API server and scheduler, for the demo, tests and planning."""

from neuron_plugin.simulation.api_server import StandInApiServer
from neuron_plugin.simulation.api_server_http import ApiHttp, Fault, Match
from neuron_plugin.simulation.api_server_kinds import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    JsonObject,
    Refusal,
    Target,
    parse_path,
)
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_watch import WatchList
from neuron_plugin.simulation.cluster import NODE_NAME, SimulatedCluster, SimulatedPod
from neuron_plugin.simulation.kubelet import SOCKET_NAME, KubeletOptions, StandInKubelet
from neuron_plugin.simulation.kubelet_device_manager import (
    Allocation,
    AllocationError,
    Device,
    DeviceManager,
    Selection,
)
from neuron_plugin.simulation.kubelet_files import WriteFault
from neuron_plugin.simulation.kubelet_plugins import PluginCallError
from neuron_plugin.simulation.kubelet_pods import (
    AdmittedContainer,
    AdmittedPod,
    Container,
    Pod,
    PodRejectedError,
    static_pod,
)
from neuron_plugin.simulation.manifests import container, mirror_manifest, node_manifest, pod_manifest, shipped_geometry
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_tree import SimulationError
from neuron_plugin.simulation.node_writer import write_char_node
from neuron_plugin.simulation.scheduler import ExtenderCallError, StandInScheduler

__all__ = [
    "EVENTS",
    "LEASES",
    "NODES",
    "NODE_NAME",
    "PODS",
    "SOCKET_NAME",
    "AdmittedContainer",
    "AdmittedPod",
    "Allocation",
    "AllocationError",
    "ApiHttp",
    "ApiObjects",
    "Container",
    "Device",
    "DeviceManager",
    "ExtenderCallError",
    "Fault",
    "JsonObject",
    "KubeletOptions",
    "Match",
    "PluginCallError",
    "Pod",
    "PodRejectedError",
    "Refusal",
    "Selection",
    "SimulatedCluster",
    "SimulatedNode",
    "SimulatedPod",
    "SimulationError",
    "StandInApiServer",
    "StandInKubelet",
    "StandInScheduler",
    "Target",
    "WatchList",
    "WriteFault",
    "container",
    "mirror_manifest",
    "node_manifest",
    "parse_path",
    "pod_manifest",
    "shipped_geometry",
    "static_pod",
    "write_char_node",
    "write_node",
]
