"""AWS Neuron devices for Kubernetes: device plugin, scheduler extender, node-local CLI."""

__version__ = "0.1.0"
