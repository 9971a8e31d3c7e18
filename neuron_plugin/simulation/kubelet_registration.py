"""The Registration service of the stand-in kubelet, and its book-keeping of clients.

Clients are kept by resource name alone, as in ``pkg/kubelet/cm/devicemanager/plugin/v1beta1`` to Kubernetes 1.36. So
when an older stream of a resource ends, it is the *newer* client that is found under the name and disconnected.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_devices import DeviceManager
from neuron_plugin.simulation.kubelet_plugins import PluginCallError, PluginConnection

_SUPPORTED_VERSION = "v1beta1"
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_extended_resource_name(name: str) -> bool:
    """Whether a kubelet takes a resource of that name (``IsExtendedResourceName`` in ``pkg/apis/core/v1/helper``)."""
    domain, slash, part = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return bool(_DOMAIN.fullmatch(f"requests.{domain}") and _NAME_PART.fullmatch(part))


class PluginClients(pb_grpc.RegistrationServicer):
    """Takes registrations and follows the plugins' streams, in tasks of its own; `close` ends them.

    ``changed`` is called after anything that may have changed a capacity.
    """

    def __init__(
        self, directory: Path, devices: DeviceManager, *, dial_seconds: float, changed: Callable[[], None]
    ) -> None:
        self.registrations: Counter[str] = Counter()
        self._directory = directory
        self._devices = devices
        self._dial_seconds = dial_seconds
        self._changed = changed
        self._clients: dict[str, PluginConnection] = {}
        self._open: set[PluginConnection] = set()
        self._followers: set[asyncio.Task[None]] = set()

    async def Register(  # noqa: N802 - the API's name
        self,
        request: pb.RegisterRequest,
        context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty],
    ) -> pb.Empty:
        """Check, dial back, ask for options, answer; the stream is opened beside the answer.

        Every refusal has the status UNKNOWN, as Go gives it to a plain error.
        """
        try:
            await self._register(request)
        except PluginCallError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()

    async def close(self) -> None:
        """End every stream and connection, as a dying kubelet does."""
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for connection in tuple(self._open):
            await connection.close()
        self._open.clear()

    async def disconnect(self, resource: str) -> None:
        """Drop the present client of a resource without a reason, as the fault in the book-keeping does."""
        if (connection := self._clients.pop(resource, None)) is not None:
            await self._disconnect(connection)

    async def _register(self, request: pb.RegisterRequest) -> None:
        if request.version != _SUPPORTED_VERSION:
            raise PluginCallError(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{_SUPPORTED_VERSION}"]'
            )
        # A path joined the way Go does it: an absolute endpoint ends up below the directory, and is not there.
        await self.connect(request.resource_name, self._directory / request.endpoint.lstrip("/"))

    async def connect(self, resource: str, socket: Path) -> None:
        """Dial a plugin and follow it from now on, whoever served that resource before.

        Raises:
            PluginCallError: an impossible name, or the plugin does not answer.
        """
        if not is_extended_resource_name(resource):
            raise PluginCallError(f'the ResourceName "{resource}" is invalid')
        try:
            connection = await PluginConnection.dial(resource, socket, self._dial_seconds)
        except PluginCallError:
            self._clients.pop(resource, None)  # even that of a live registration beside this one
            raise
        self._accept(connection)

    def _accept(self, connection: PluginConnection) -> None:
        resource = connection.resource
        self._clients[resource] = connection
        self._open.add(connection)
        self._devices.connected(connection)
        self.registrations[resource] += 1
        follower = asyncio.create_task(self._follow(connection), name=f"ListAndWatch of {resource}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _follow(self, connection: PluginConnection) -> None:
        resource = connection.resource

        def receive(message: pb.ListAndWatchResponse) -> None:
            self._devices.received(resource, message)
            self._changed()

        await connection.follow(receive)
        # By name: this may be another, newer client.
        if (found := self._clients.pop(resource, None)) is not None:
            await self._disconnect(found)

    async def _disconnect(self, connection: PluginConnection) -> None:
        self._devices.disconnected(connection.resource)
        self._changed()
        self._open.discard(connection)
        await connection.close()
