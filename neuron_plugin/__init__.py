"""AWS Neuron devices for Kubernetes: device plugin, placement controller and commands."""

__version__ = "0.1.0"
