"""A stand-in node, kubelet and API server, for the demo, the tests and planning."""
