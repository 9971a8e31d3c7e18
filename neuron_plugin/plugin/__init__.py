"""The node daemon: joins hardware, kubelet, cluster and allocation."""
