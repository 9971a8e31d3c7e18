"""Keeping one resource registered with the kubelet.

The kubelet forgets a plugin if it restarts, if a ListAndWatch stream ends or if a socket file is removed, and it never
asks for the plugin again. So registration is a loop: wait for kubelet.sock, serve on a new socket, register, and wait
for a cue that the registration is lost. Then stop that server *fully* and start over. While two registrations of one
resource are live, the kubelet (to 1.36) drops the newer one when the older one's stream ends. A failure of one resource
never ends the process or affects another resource.

A cue always comes from the present state of files and streams. Events only say when to look.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import ClassVar, Generic, TypeVar

import grpc

from neuron_plugin.backoff import Backoff
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.device_plugin import (
    API_VERSION,
    OPTIONS,
    DeviceHandler,
    DevicePluginService,
    GrpcContext,
    KubeletCounters,
)
from neuron_plugin.kubelet.socket_watch import (
    DirectoryWatch,
    Endpoint,
    EndpointError,
    SocketIdentity,
    answer_fault,
    channel_to,
    clear_strays,
    connection_fault,
    endpoint_path,
    identity_of,
)
from neuron_plugin.kubelet_files import KUBELET_SOCKET

_log = logging.getLogger(__name__)

REGISTER_DEADLINE_SECONDS = 15.0
"""The kubelet dials back for up to 10 s before it answers; a shorter deadline would lose its own error text."""
STANDING = "standing"
"""The token in the socket path of a resource in ``plugins_registry``, which never changes."""


class RegistrationState(Enum):
    """The state of one resource at the kubelet; its devices can only be allocated in `ADVERTISED`."""

    STOPPED = "stopped"
    WAITING = "waiting for kubelet.sock"
    REGISTERING = "registering"
    REGISTERED = "registered, waiting for the kubelet's ListAndWatch"
    ADVERTISED = "advertised"
    ENDING = "stopping the server of a lost registration"
    BACKING_OFF = "waiting before the next attempt"


class RegistrationError(Exception):
    """The kubelet did not register the resource; the text is the kubelet's, or says why it was not reached."""


@dataclass(frozen=True, slots=True)
class RegistrationTimes:
    """The times of a registration, in seconds.

    ``stream_deadline`` is how long the kubelet may take to open ListAndWatch after a successful Register. The back-off
    is reset only after a registration that lasted ``settled``, so that two plugins that replace each other do not do so
    in a fast loop. Only failures that last for ``patience`` are logged as a warning, because a starting kubelet creates
    its socket before it listens.
    """

    stream_deadline: float = 5.0
    settled: float = 10.0
    first_delay: float = 0.1
    longest_delay: float = 15.0
    patience: float = 3.0


Served = TypeVar("Served", bound=Endpoint)


@dataclass(eq=False)
class RegisteredServer(ABC, Generic[Served]):
    """Keeps ``resource``, a resource or a DRA driver, registered with the kubelet while `run` runs.

    ``watch`` is shared by all servers of the daemon, which also runs it. ``changed`` is set when ``state`` or
    ``failure`` has changed. ``other_route`` is the directory of this name's socket for the other way of registration.
    ``registered`` is set exactly in state `ADVERTISED`. ``failure`` is why the last attempt failed, None after a
    success. ``socket_path`` is the current socket.
    """

    resource: str
    watch: DirectoryWatch
    _: KW_ONLY
    counters: KubeletCounters = field(default_factory=KubeletCounters)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    times: RegistrationTimes = RegistrationTimes()
    random: Random = field(default_factory=Random)  # spreads retries and names sockets, guards nothing
    other_route: Path | None = None

    def __post_init__(self) -> None:
        self.state = RegistrationState.STOPPED
        self.registered = asyncio.Event()
        self.failure: str | None = None
        self.socket_path: Path | None = None
        self._reported = ""
        self._failing_since = 0.0
        self._backoff = Backoff(
            self.random.random, first_seconds=self.times.first_delay, longest_seconds=self.times.longest_delay
        )
        self._look = asyncio.Event()
        self._stopping = False
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._kubelet_tried: SocketIdentity | None = None

    @abstractmethod
    async def _start(self, path: Path) -> Served:
        """Start a server instance at ``path``."""

    @abstractmethod
    async def _register(self, served: Served) -> str | None:
        """Return None once the kubelet has accepted us, or a cue that comes first."""

    @abstractmethod
    async def _until_cue(self, served: Served) -> str:
        """Wait until the registration is lost, and return the reason."""

    @abstractmethod
    async def _dial(self, path: Path, timeout_seconds: float) -> str | None:
        """Why our socket does not answer a call like the kubelet's; None if it does."""

    async def run(self) -> None:
        """Keep the name registered until `stop` or cancellation; after any failure, try again."""
        self._stopped.clear()
        with self.watch.listening(self._look):
            try:
                while True:
                    await self._wait_for_kubelet()
                    if self._stopping:
                        return
                    try:
                        cue = await self._serve_until_cue()
                    except (RegistrationError, EndpointError, OSError) as error:  # no descriptor, space or permission
                        self._fail(str(error))
                    except Exception:  # noqa: BLE001 - a bug in one resource must not end the others, or the process
                        _log.exception("registration failed", extra={"resource": self.resource})
                    else:
                        _log.info("registration ended", extra={"resource": self.resource, "cue": cue})
                    await self._back_off()
            finally:
                self._enter(RegistrationState.STOPPED)
                self._stopped.set()

    async def fault(self, timeout_seconds: float) -> str | None:
        """Why our socket does not answer a call like the kubelet's; None if it does, or there is none now.

        A running server may be unreachable because its file is removed, its thread stuck or its queue full.
        """
        return await self._dial(self.socket_path, timeout_seconds) if self.socket_path else None

    async def stop(self) -> None:
        """End the streams, remove the socket, and return when `run` has ended (under 2 s). May be called again."""
        self._stopping = True
        self._look.set()
        await self._stopped.wait()

    async def _wait_for_kubelet(self) -> None:
        while not self._stopping and self._kubelet_identity() is None:
            self._enter(RegistrationState.WAITING)
            await self._wait_to_look()

    async def _serve_until_cue(self) -> str:
        """Run one server instance from bind to its full stop; returns the reason for its end."""
        self._kubelet_tried = self._kubelet_identity()
        self._enter(RegistrationState.REGISTERING)
        for directory in filter(None, (self.watch.directory, self.other_route)):
            clear_strays(directory, self.resource)
        served = await self._start(endpoint_path(self.watch.directory, self.resource, self._socket_token()))
        self.socket_path = served.path
        try:
            cue = await self._register(served)
            if cue is None:
                self.counters.registrations[self.resource, "accepted"] += 1
                self._enter(RegistrationState.REGISTERED)
                cue = await self._until_cue(served)
            return cue
        finally:
            self._enter(RegistrationState.ENDING)
            self.socket_path = None
            await served.stop()

    def _socket_token(self) -> str:
        """The unique part of this instance's socket path; not the process id, which repeats between containers."""
        return f"{self.random.getrandbits(32):08x}"

    def _cue(self, served: Served) -> str | None:
        """Why the instance has to be replaced, by `stop` or by the state of files; None if it has not."""
        if self._stopping:
            return "the plugin is stopping"
        if self._kubelet_identity() != self._kubelet_tried:
            return f"{KUBELET_SOCKET} was recreated or removed"
        if not served.is_reachable():
            return f"our socket {served.path.name} was removed or replaced"
        return None

    async def _back_off(self) -> None:
        """Wait for the back-off, unless kubelet.sock is new: then try at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._backoff.next_seconds()
        while not self._stopping and loop.time() < until:
            if self._kubelet_identity() != self._kubelet_tried:
                self._backoff.reset()
                return
            self._enter(RegistrationState.BACKING_OFF)
            await self._wait_to_look(until)

    async def _wait_to_look(self, until: float | None = None) -> None:
        """Wait for a reason to look again: the directory, a stream, a call, `stop`, or the loop's time ``until``.

        Even without ``until`` the directory watch gives a hint every few seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._look.wait()
        self._look.clear()

    def _kubelet_identity(self) -> SocketIdentity | None:
        return identity_of(self.watch.directory / KUBELET_SOCKET)

    def _advertised(self) -> None:
        self.failure, self._reported = None, ""
        self._enter(RegistrationState.ADVERTISED)

    def _enter(self, state: RegistrationState) -> None:
        if state is self.state:
            return
        self.state = state
        if state is RegistrationState.ADVERTISED:
            self.registered.set()
            _log.info("registered and advertised", extra={"resource": self.resource})
        else:
            self.registered.clear()
            _log.debug("registration state", extra={"resource": self.resource, "state": state.value})
        self.changed.set()

    def _fail(self, text: str) -> None:
        """Count a failure, and log each reason once when attempts have failed for a while."""
        self.counters.registrations[self.resource, "failed"] += 1
        now = asyncio.get_running_loop().time()
        if self.failure is None:
            self._failing_since = now
        elif now - self._failing_since >= self.times.patience and text != self._reported:
            _log.warning("not registered", extra={"resource": self.resource, "reason": text})
            self._reported = text
        self.failure = text
        self.changed.set()


@dataclass(eq=False)
class DevicePluginServer(RegisteredServer[DevicePluginService]):
    """Keeps one resource registered by calls of the kubelet's Register."""

    handler: DeviceHandler
    advertisement: Advertisement
    _: KW_ONLY
    preference_deadline_seconds: float = 4.0

    async def _start(self, path: Path) -> DevicePluginService:
        service = DevicePluginService(
            self.resource,
            self.handler,
            self.advertisement,
            counters=self.counters,
            preference_deadline_seconds=self.preference_deadline_seconds,
            stream_changed=self._look,
        )
        await service.start(path, watcher=self if isinstance(self, WatcherRoute) else None)
        return service

    async def _register(self, served: DevicePluginService) -> str | None:
        """Call Register and return None, or a cue that comes first. The kubelet calls back on this loop meanwhile."""
        call = asyncio.create_task(register(served.path, self.resource), name=f"register {self.resource}")
        call.add_done_callback(lambda _: self._look.set())
        try:
            while not call.done():
                if cue := self._cue(served):
                    return cue
                await self._wait_to_look()
            return call.result()
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)  # ignores the result of the call, not our cancellation

    async def _until_cue(self, served: DevicePluginService) -> str:
        loop = asyncio.get_running_loop()
        registered_at = loop.time()
        overdue_at = registered_at + self.times.stream_deadline
        while (cue := self._cue(served)) is None:
            if served.streams_open:
                self._advertised()
            elif served.streams_begun:
                cue = "the kubelet ended the ListAndWatch stream"
                break
            elif loop.time() >= overdue_at:
                cue = f"no ListAndWatch within {self.times.stream_deadline:g} s of Register"
                break
            await self._wait_to_look(None if served.streams_open else overdue_at)
        if loop.time() - registered_at >= self.times.settled:
            self._backoff.reset()
        return cue

    async def _dial(self, path: Path, timeout_seconds: float) -> str | None:
        return await dial(path, timeout_seconds)


class WatcherRoute(RegisteredServer[Served], watcher_grpc.RegistrationServicer):
    """Registration by the kubelet's plugin watcher: ``watch`` is on ``plugins_registry``.

    The kubelet finds our socket within a second, calls GetInfo on it, connects, and reports the result by
    NotifyRegistrationStatus. It retries by itself, and a kubelet that starts finds the existing socket. There is one
    path per name, because the kubelet deregisters by name, in the right order for one path only.
    """

    plugin_type: ClassVar[str]
    """The kubelet's name for the kind of plugin, and the served versions."""
    versions: ClassVar[tuple[str, ...]]
    _accepted = False

    def _kubelet_identity(self) -> SocketIdentity | None:
        """None: with the plugin watcher, the kubelet comes to us and no file identifies it."""
        return None

    async def _wait_for_kubelet(self) -> None:
        """Serve at once: a stopped kubelet finds the socket when it starts."""

    def _socket_token(self) -> str:
        self._accepted = False
        return STANDING

    def _is_accepted(self, served: Served) -> bool:
        return self._accepted

    async def _register(self, served: Served) -> str | None:
        """Wait for the kubelet to find the socket and to accept it."""
        while not self._is_accepted(served):
            if cue := self._cue(served):
                return cue
            await self._wait_to_look()
        return None

    async def GetInfo(self, request: watcher_pb.InfoRequest, context: GrpcContext) -> watcher_pb.PluginInfo:
        """Describe this socket. There is no endpoint: the services are on the same socket."""
        return watcher_pb.PluginInfo(type=self.plugin_type, name=self.resource, supported_versions=self.versions)

    async def NotifyRegistrationStatus(
        self, request: watcher_pb.RegistrationStatus, context: GrpcContext
    ) -> watcher_pb.RegistrationStatusResponse:
        """Take the result. After a refusal the kubelet calls GetInfo again by itself, after a while."""
        if request.plugin_registered:
            self._accepted = True
            self._look.set()
        else:
            self._fail(f"the kubelet refused {self.resource}: {request.error or 'it gives no reason'}")
        return watcher_pb.RegistrationStatusResponse()


class WatchedPluginServer(WatcherRoute[DevicePluginService], DevicePluginServer):
    """Keeps one resource registered through the kubelet's plugin watcher.

    The watcher never notices that a stream ended (pkg/kubelet/pluginmanager, 1.36; connections are monitored for DRA
    only) until the socket is recreated. So after a lost stream this server stops fully and starts again on the same
    path.
    """

    plugin_type = "DevicePlugin"
    versions = (API_VERSION,)

    def _is_accepted(self, served: DevicePluginService) -> bool:
        """An open stream means that the kubelet has accepted."""
        return self._accepted or served.streams_begun > 0


async def register(endpoint: Path, resource: str, *, deadline_seconds: float = REGISTER_DEADLINE_SECONDS) -> None:
    """Register ``resource``, which ``endpoint`` serves, with the kubelet in the same directory.

    The kubelet dials ``endpoint`` and asks for the options before it answers. The status code of its errors is always
    UNKNOWN; only the text names the cause.

    Raises:
        RegistrationError: refused, not answered in time, or kubelet.sock is not served.
    """
    request = pb.RegisterRequest(version=API_VERSION, endpoint=endpoint.name, resource_name=resource, options=OPTIONS)
    kubelet = endpoint.parent / KUBELET_SOCKET
    async with channel_to(kubelet) as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=deadline_seconds)
        except grpc.aio.AioRpcError as error:
            match error.code():
                case grpc.StatusCode.UNAVAILABLE:
                    text = f"no kubelet answers on {kubelet} ({connection_fault(error)}): is the kubelet running?"
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    text = f"the kubelet did not answer Register of {resource} within {deadline_seconds:g} s"
                case code:
                    text = f"the kubelet refused {resource}: {error.details() or code.name}"
            raise RegistrationError(text) from error


async def dial(socket: Path, timeout_seconds: float) -> str | None:
    """Ask the device plugin on ``socket`` for its options, as the kubelet does. None if it answers, else the reason."""

    async def ask(channel: grpc.aio.Channel) -> None:
        await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=timeout_seconds)

    return await answer_fault(socket, ask, timeout_seconds)
