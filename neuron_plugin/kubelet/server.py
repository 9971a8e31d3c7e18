"""One server instance: one service on one socket, from bind to the last trace of it.

Instances are never reused and never share a path, because ``grpc``'s ``stop`` unlinks its path even if a newer server
has bound it since. The next instance of a resource starts only when this one has stopped fully: of two live
registrations of a resource the kubelet (to 1.36) drops the newer when the older's stream ends, and tells nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2_grpc import add_DevicePluginServicer_to_server
from neuron_plugin.kubelet.service import DevicePluginService
from neuron_plugin.kubelet.sockets import EndpointError, identity_of, require_vacant

_PATIENCE_SECONDS = 1.0  # for a call under way; with the grace below the whole stop stays under 2 s
_GRACE_SECONDS = 0.5  # for a stream that is stuck in a write


class ServerInstance:
    """A started server on ``path``; made by `start`."""

    def __init__(self, server: grpc.aio.Server, service: DevicePluginService, path: Path) -> None:
        self._server = server
        self._identity = identity_of(path)
        self.service = service
        self.path = path

    @classmethod
    async def start(
        cls, service: DevicePluginService, path: Path, *, beside: Callable[[grpc.aio.Server], None] = lambda _: None
    ) -> ServerInstance:
        """Bind ``path`` with mode 0600 and serve; ``beside`` adds what else is served there.

        Raises:
            EndpointError: something is there already, or the directory cannot be written to.
        """
        require_vacant(path)
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(service, server)
        beside(server)
        with _private_files():
            try:
                server.add_insecure_port(f"unix:{path}")
            except RuntimeError as error:
                trouble = "is it writable, and has this process file descriptors left?"  # gRPC does not say
                raise EndpointError(f"no socket can be made in {path.parent}: {trouble}") from error
        instance = cls(server, service, path)
        await server.start()
        return instance

    def is_reachable(self) -> bool:
        """Whether our own socket is still at our path: a server whose file is gone goes on, but nobody finds it."""
        return self._identity is not None and identity_of(self.path) == self._identity

    async def stop(self) -> None:
        """End the streams, then the server, which removes its socket."""
        await self.service.end_streams(_PATIENCE_SECONDS)
        await self._server.stop(_GRACE_SECONDS)


@contextmanager
def _private_files() -> Iterator[None]:
    """Make new files readable by their owner alone. Process-wide, so only for as long as a bind takes (no await)."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
