"""The simulated kubelet under the names that most tests know it by."""

from neuron_plugin.simulation.kubelet import KubeletOptions, KubeletStoppedError
from neuron_plugin.simulation.kubelet import SimulatedKubelet as StandInKubelet

__all__ = ["KubeletOptions", "KubeletStoppedError", "StandInKubelet"]
