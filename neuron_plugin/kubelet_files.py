"""The names of a kubelet's files, for commands that inspect a node without loading gRPC."""

from __future__ import annotations

KUBELET_SOCKET = "kubelet.sock"
"""In the directory of device plugins the socket for registration, in the directory of PodResources that API's
socket."""
CHECKPOINT = "kubelet_internal_checkpoint"
"""In the directory of device plugins: the devices of each pod."""
DRA_STATE = "dra_manager_state"
"""In the kubelet's root directory: the prepared DRA claims of each pod."""
