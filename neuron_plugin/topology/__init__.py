"""Which Neuron device sets exist: instance types, links and allowed sets, as values."""
