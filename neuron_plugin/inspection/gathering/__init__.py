"""How ``doctor`` learns the facts: everything that touches the machine, the kubelet, the daemon or the API server."""
