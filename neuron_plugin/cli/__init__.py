"""The command line ``neuron-plugin``, with one file for each command."""
