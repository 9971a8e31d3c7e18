"""The neuron-plugin command, one file a command."""
