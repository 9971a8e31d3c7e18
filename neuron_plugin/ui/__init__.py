"""The picture: one page that shows the cluster's devices as they are, and how they were used."""

from neuron_plugin.ui.pages import Picture
