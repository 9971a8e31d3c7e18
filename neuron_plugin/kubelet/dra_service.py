"""The services of a DRA driver on one standing socket: preparing claims, the health of devices, registration.

The kubelet's plugin watcher finds the socket in ``plugins_registry``, asks what it is and calls it. It notices a lost
connection by itself, and a kubelet that starts finds the socket where it is (pkg/kubelet/cm/dra/plugin, 1.36). So this
server only stays: it is started again where its socket is removed. The daemon decides as a `ClaimHandler`, in values
free of protobuf. An error of one claim makes its pod wait, and the kubelet asks again; it never fails a pod.

Field meanings and numbers: ``protos/neuron_plugin/kubelet/_proto/dra/v1/api.proto`` and ``drahealth/v1alpha1``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2 as health_pb
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.device_plugin import GrpcContext, KubeletCounters
from neuron_plugin.kubelet.registration import STANDING, RegistrationState
from neuron_plugin.kubelet.socket_watch import (
    DirectoryWatch,
    EndpointError,
    bind,
    channel_to,
    clear_strays,
    connection_fault,
    endpoint_path,
    identity_of,
)

_log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""What is served, as the kubelet names it; v1 is that of Kubernetes 1.34 and newer."""
LONGEST_MESSAGE = 1024
"""Characters of why a device is unhealthy."""
_GRACE_SECONDS = 2.0
"""For calls that are under way when the server stops."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """Which claim the kubelet means."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a claim, and the CDI devices that a container gets which uses its request."""

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """What is wrong with a device; an empty ``fault`` for a healthy one."""

    pool: str
    device: str
    fault: str = ""


class ClaimHandler(Protocol):
    """What the daemon decides about claims. Calls may overlap, also for one claim."""

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """The devices of each claim by its UID, or why it is not prepared. The claims are those of one pod.

        Idempotent: the same claim gets the same devices. The kubelet gives up after 45 seconds. A pod with a claim that
        is not prepared waits, and the kubelet asks again after a minute or so.
        """

    async def unprepare(self, claims: Sequence[ClaimReference]) -> None:
        """The kubelet has no pod of these claims any more, as far as it knows."""


@dataclass(frozen=True, slots=True)
class DraTimes:
    """Seconds. ``look`` is between two looks at our socket, ``health`` between two messages that say the same.

    ``health_counts`` is how long a message counts for the kubelet.
    """

    look: float = 2.0
    health: float = 30.0
    health_counts: int = 90


class DraServer(pb_grpc.DRAPluginServicer, health_grpc.DRAResourceHealthServicer, watcher_grpc.RegistrationServicer):
    """Serves one driver for as long as ``run`` runs.

    ``changed`` is set when ``state`` has changed. ``registered`` is set while the kubelet has accepted the driver.
    """

    def __init__(
        self,
        driver: str,
        handler: ClaimHandler,
        watch: DirectoryWatch,
        *,
        counters: KubeletCounters | None = None,
        changed: asyncio.Event | None = None,
        times: DraTimes = DraTimes(),
    ) -> None:
        self.resource = driver
        self.registered = asyncio.Event()
        self.state = RegistrationState.STOPPED
        self.failure: str | None = None
        self.socket_path: Path | None = None
        self.counters = counters or KubeletCounters()
        self._handler = handler
        self._watch = watch
        self._changed = changed or asyncio.Event()
        self._times = times
        self._health: tuple[ReportedHealth, ...] = ()
        self._health_changed = asyncio.Event()
        self._look = asyncio.Event()
        self._stopping = False
        self._stopped = asyncio.Event()
        self._stopped.set()

    async def run(self) -> None:
        """Serve until `stop` or cancellation. Where the socket cannot be made, or is removed, try again."""
        self._stopped.clear()
        try:
            with self._watch.listening(self._look):
                while not self._stopping:
                    try:
                        await self._serve()
                    except (EndpointError, OSError) as error:
                        if str(error) != self.failure:
                            _log.warning("not registered", extra={"resource": self.resource, "reason": str(error)})
                        self.failure = str(error)
                        self._enter(RegistrationState.BACKING_OFF)
                        await self._wait()
        finally:
            self._enter(RegistrationState.STOPPED)
            self._stopped.set()

    async def stop(self) -> None:
        """Remove the socket and end. Calls that are under way have a moment to be answered."""
        self._stopping = True
        self._look.set()
        self._wake()
        await self._stopped.wait()

    async def fault(self, timeout_seconds: float) -> str | None:
        """Why our own socket does not answer, dialled as the kubelet does; None if it does, or there is none now."""
        return await dial_driver(self.socket_path, timeout_seconds) if self.socket_path else None

    def show_health(self, devices: Sequence[ReportedHealth]) -> None:
        """Make this the health of all devices; the kubelet gets what differs."""
        if self._health != tuple(devices):
            self._health = tuple(devices)
            self._wake()

    async def _serve(self) -> None:
        """One server instance from bind to its full stop, which comes when its socket is gone or `stop` is called."""
        clear_strays(self._watch.directory, self.resource)
        path = endpoint_path(self._watch.directory, self.resource, STANDING)
        server = grpc.aio.server()
        pb_grpc.add_DRAPluginServicer_to_server(self, server)
        health_grpc.add_DRAResourceHealthServicer_to_server(self, server)
        watcher_grpc.add_RegistrationServicer_to_server(self, server)
        bind(server, path)
        identity = identity_of(path)
        await server.start()
        self.socket_path = path
        try:
            self._enter(RegistrationState.REGISTERING)
            while not self._stopping and identity_of(path) == identity:
                await self._wait()
        finally:
            self.socket_path = None
            self._enter(RegistrationState.ENDING)
            await server.stop(_GRACE_SECONDS)

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.look):
                await self._look.wait()
        self._look.clear()

    def _wake(self) -> None:
        self._health_changed.set()
        self._health_changed = asyncio.Event()

    def _enter(self, state: RegistrationState) -> None:
        if state is self.state:
            return
        self.state = state
        if state is RegistrationState.ADVERTISED:
            self.failure = None
            self.registered.set()
            _log.info("registered and advertised", extra={"resource": self.resource})
        else:
            self.registered.clear()
        self._changed.set()

    # What the kubelet calls.

    async def GetInfo(self, request: watcher_pb.InfoRequest, context: GrpcContext) -> watcher_pb.PluginInfo:
        """Say what this socket is. No endpoint: the services are on this very socket."""
        return watcher_pb.PluginInfo(type=PLUGIN_TYPE, name=self.resource, supported_versions=VERSIONS)

    async def NotifyRegistrationStatus(
        self, request: watcher_pb.RegistrationStatus, context: GrpcContext
    ) -> watcher_pb.RegistrationStatusResponse:
        """Take the outcome. After a refusal the kubelet calls GetInfo again after a while, by itself."""
        if request.plugin_registered:
            self.counters.registrations[self.resource, "accepted"] += 1
            self._enter(RegistrationState.ADVERTISED)
        else:
            self.counters.registrations[self.resource, "failed"] += 1
            self.failure = f"the kubelet refused {self.resource}: {request.error or 'it gives no reason'}"
            _log.warning("not registered", extra={"resource": self.resource, "reason": self.failure})
            self._changed.set()
        return watcher_pb.RegistrationStatusResponse()

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: GrpcContext
    ) -> pb.NodePrepareResourcesResponse:
        """Prepare the claims of a pod; each has devices or an error of its own."""
        claims = [ClaimReference(claim.namespace, claim.name, claim.uid) for claim in request.claims]
        try:
            prepared = await self._handler.prepare(claims)
        except Exception as error:  # noqa: BLE001 - the kubelet gets every error as a text, and asks again
            _log.exception("Prepare failed", extra={"claims": [str(claim) for claim in claims]})
            prepared = dict.fromkeys(
                (claim.uid for claim in claims), f"Prepare failed: {type(error).__name__}: {error}"
            )
        response = pb.NodePrepareResourcesResponse()
        for claim in claims:
            answer = prepared.get(claim.uid, "the driver gave no answer")
            if isinstance(answer, str):
                self.counters.refused_requests[self.resource, "NodePrepareResources"] += 1
                response.claims[claim.uid].error = answer
                continue
            response.claims[claim.uid].SetInParent()
            for device in answer:
                response.claims[claim.uid].devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_devices,
                )
        return response

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: GrpcContext
    ) -> pb.NodeUnprepareResourcesResponse:
        """Take note; who still uses the devices shows elsewhere."""
        claims = [ClaimReference(claim.namespace, claim.name, claim.uid) for claim in request.claims]
        await self._handler.unprepare(claims)
        response = pb.NodeUnprepareResourcesResponse()
        for claim in claims:
            response.claims[claim.uid].SetInParent()
        return response

    async def NodeWatchResources(  # type: ignore[override]  # a coroutine that writes: see ``device_plugin.ListAndWatch``
        self, request: health_pb.NodeWatchResourcesRequest, context: GrpcContext
    ) -> None:
        """Send the health of all devices: at once, on each change, and again before it stops to count."""
        while not self._stopping:
            changed = self._health_changed
            now, counts = int(time.time()), self._times.health_counts
            response = health_pb.NodeWatchResourcesResponse()
            for device in self._health:
                response.devices.add(
                    device=health_pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                    health=health_pb.UNHEALTHY if device.fault else health_pb.HEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=counts,
                    message=device.fault[:LONGEST_MESSAGE],
                )
            await context.write(response)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.health):
                    await changed.wait()


async def dial_driver(socket: Path, timeout_seconds: float) -> str | None:
    """Ask the driver on ``socket`` what it is, as the kubelet does; None if it answers, else the reason."""
    async with channel_to(socket) as channel:
        try:
            stub = watcher_grpc.RegistrationStub(channel)
            await stub.GetInfo(watcher_pb.InfoRequest(), timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {timeout_seconds:g} s"
            return connection_fault(error)
    return None
