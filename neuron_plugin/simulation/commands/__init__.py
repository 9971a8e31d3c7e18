"""The commands of the simulation: demo, playground and simulate. The command line finds them by name."""
