"""Registration by the kubelet's plugin watcher: a socket in ``plugins_registry`` that says what it is.

The other way round than kubelet.sock: the kubelet finds our socket (within a second), asks it (``GetInfo``), connects
and says how that went. It tries again by itself, and a kubelet that starts finds the socket where it is. What it never
notices is a stream that ended (pkg/kubelet/pluginmanager, 1.36; connections are watched for DRA only), until the socket
is made anew. So ours is: stop fully, then serve again on the same path. The path stays one per resource, because the
kubelet deregisters by resource name, in order only for one path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc

from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.messages import API_VERSION
from neuron_plugin.kubelet.observer import RegistrationState
from neuron_plugin.kubelet.registration import DevicePluginServer
from neuron_plugin.kubelet.server import ServerInstance
from neuron_plugin.kubelet.service import DevicePluginService
from neuron_plugin.kubelet.sockets import SocketIdentity, standing_path

PLUGIN_TYPE = "DevicePlugin"


class WatchedPluginServer(DevicePluginServer):
    """Keeps one resource registered through the plugin watcher; its ``watch`` is on ``plugins_registry``."""

    _accepted = False

    def _kubelet_identity(self) -> SocketIdentity | None:
        """No file tells of this route's kubelet: it comes to us."""
        return None

    async def _wait_for_kubelet(self) -> None:
        """Serve at once: a kubelet that is away finds the socket when it starts."""

    async def _bind(self, service: DevicePluginService) -> ServerInstance:
        self._accepted = False
        questions = WatcherQuestions(self.resource, self._notified)
        return await ServerInstance.start(
            service,
            standing_path(self._watch.directory, self.resource),
            beside=partial(pb_grpc.add_RegistrationServicer_to_server, questions),
        )

    async def _register(self, instance: ServerInstance) -> None:
        """Wait to be found and taken, for as long as there is no kubelet. A stream says it, too."""
        while not (self._accepted or instance.service.streams_begun):
            self._require_no_cue(instance)
            await self._next_news()
        self._observer.registration_ended(self.resource, None)
        self._enter(RegistrationState.REGISTERED)

    def _notified(self, error: str | None) -> None:
        """Refused, the kubelet asks again after a while, by itself."""
        if error is None:
            self._accepted = True
            self._news.set()
            return
        self._observer.registration_ended(self.resource, error)
        self._trouble(f"the kubelet refused {self.resource}: {error}")


class WatcherQuestions(pb_grpc.RegistrationServicer):
    """What the plugin watcher asks and tells; ``notify`` hears None for a registration, else why there is none."""

    def __init__(self, resource: str, notify: Callable[[str | None], None]) -> None:
        self._resource = resource
        self._notify = notify

    async def GetInfo(  # noqa: N802 - the API's name
        self,
        request: pb.InfoRequest,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[pb.InfoRequest, pb.PluginInfo],  # noqa: ARG002 - the API's signature
    ) -> pb.PluginInfo:
        """Say what this socket is. No endpoint: the device plugin service is on this very socket."""
        return pb.PluginInfo(type=PLUGIN_TYPE, name=self._resource, supported_versions=[API_VERSION])

    async def NotifyRegistrationStatus(  # noqa: N802 - the API's name
        self,
        request: pb.RegistrationStatus,
        context: grpc.aio.ServicerContext[pb.RegistrationStatus, pb.RegistrationStatusResponse],  # noqa: ARG002 - as above
    ) -> pb.RegistrationStatusResponse:
        """Hear how it went."""
        self._notify(None if request.plugin_registered else request.error or "it does not say why")
        return pb.RegistrationStatusResponse()
