"""How a kubelet names its files, for commands that look at a node without loading gRPC."""

from __future__ import annotations

KUBELET_SOCKET = "kubelet.sock"
"""In the directory of device plugins: where plugins register. In that of PodResources: where it is served."""
CHECKPOINT = "kubelet_internal_checkpoint"
"""In the directory of device plugins: which pod has which devices."""
DRA_STATE = "dra_manager_state"
"""In the kubelet's root directory: which pod has which claim of DRA prepared."""
