"""gRPC channels to the kubelet's sockets.

Each is opened for one conversation and closed after it: a kept channel would sit out gRPC's own reconnect back-off (a
second and more) just when a restarted kubelet wants us back within 100 ms.
"""

from __future__ import annotations

from pathlib import Path

import grpc

_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the default is the percent-encoded path, which some servers refuse
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the old one's back-off
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 16 << 20),  # the size the kubelet allows itself for PodResources
)


def channel_to(socket: Path) -> grpc.aio.Channel:
    """A channel to the Unix socket; it connects with the first call and is the caller's to close."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def connection_fault(error: grpc.aio.AioRpcError) -> str:
    """Why a socket could not be reached, in the system's words alone: gRPC wraps them in a line of its own."""
    return (error.details() or error.code().name).rpartition("error: ")[2]
