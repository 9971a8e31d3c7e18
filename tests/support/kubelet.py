"""The simulated kubelet under the names that most tests know it by."""

from neuron_plugin.simulation.kubelet import KubeletOptions
from neuron_plugin.simulation.kubelet import SimulatedKubelet as StandInKubelet

__all__ = ["KubeletOptions", "StandInKubelet"]
