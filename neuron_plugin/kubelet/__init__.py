"""The kubelet's sockets: device plugin service, registration, PodResources."""
