"""The live page: it shows the cluster's devices and their use over time."""

from neuron_plugin.ui.pages import Picture
