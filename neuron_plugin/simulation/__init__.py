"""A simulated node, kubelet, API server and scheduler, for the demo, tests and planning."""

from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.cluster import NODE_NAME, SCHEDULERS, PlacedBy, SimulatedCluster, pod_manifest
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_device_manager import AllocationError
from neuron_plugin.simulation.kubelet_plugins import PluginCallError
from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, AdmittedPod, Container, Pod, PodRejectedError
from neuron_plugin.simulation.live import live
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_tree import SimulationError
from neuron_plugin.simulation.node_writer import write_char_node
from neuron_plugin.simulation.scheduler import ExtenderCallError, SimulatedScheduler
from neuron_plugin.simulation.workloads import WorkloadError, WorkloadPod, pods_of
