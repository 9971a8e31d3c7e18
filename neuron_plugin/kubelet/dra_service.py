"""The services of a DRA driver on one standing socket: preparing claims, the health of devices, registration.

The kubelet's plugin watcher finds the socket in ``plugins_registry``, asks for its name and calls it. It notices a lost
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
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

import grpc

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2 as health_pb
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.device_plugin import GrpcContext
from neuron_plugin.kubelet.registration import RegistrationTimes, WatcherRoute
from neuron_plugin.kubelet.socket_watch import Endpoint, answer_fault

_log = logging.getLogger(__name__)

LONGEST_MESSAGE = 1024
"""Characters of why a device is unhealthy."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim, as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a claim, and the CDI devices for each container that uses its request."""

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """The health of a device; ``fault`` says what is wrong, and is empty for a healthy one."""

    pool: str
    device: str
    fault: str = ""


class ClaimHandler(Protocol):
    """What the daemon decides about claims. Calls may overlap, also for one claim."""

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """The devices of each claim by its UID, or why it is not prepared. All claims belong to one pod.

        Idempotent: the same claim gets the same devices. The kubelet gives up after 45 seconds. A pod with a claim that
        is not prepared waits, and the kubelet asks again after a minute or so.
        """

    async def unprepare(self, claims: Sequence[ClaimReference]) -> None:
        """The kubelet has no pod of these claims any more, as far as it knows."""


@dataclass(frozen=True, slots=True)
class HealthTimes:
    """Seconds: ``again`` is between two messages that say the same, ``counts`` how long one counts for the kubelet."""

    again: float = 30.0
    counts: int = 90


DRA_TIMES = RegistrationTimes(longest_delay=2.0, patience=0.0)
"""A driver is wanted at once where its socket can be made again, and nothing else says why it is not there."""


class _DraEndpoint(Endpoint):
    grace_seconds = 2.0


@dataclass(eq=False)
class DraServer(WatcherRoute[Endpoint], pb_grpc.DRAPluginServicer, health_grpc.DRAResourceHealthServicer):
    """Serves one driver for as long as ``run`` runs.

    The kubelet notices a lost connection to a driver by itself, so the server stays as long as its socket does.
    """

    plugin_type = "DRAPlugin"
    versions = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")  # v1 is that of Kubernetes 1.34 and newer

    handler: ClaimHandler
    _: KW_ONLY
    times: RegistrationTimes = DRA_TIMES
    health_times: HealthTimes = HealthTimes()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._health: tuple[ReportedHealth, ...] = ()
        self._health_changed = asyncio.Event()

    async def stop(self) -> None:
        """Remove the socket and end. Calls that are under way have a moment to be answered."""
        self._stopping = True
        self._wake()
        await super().stop()

    def show_health(self, devices: Sequence[ReportedHealth]) -> None:
        """Make this the health of all devices; the kubelet gets what differs."""
        if self._health != tuple(devices):
            self._health = tuple(devices)
            self._wake()

    def _wake(self) -> None:
        self._health_changed.set()
        self._health_changed = asyncio.Event()

    async def _start(self, path: Path) -> Endpoint:
        server, endpoint = grpc.aio.server(), _DraEndpoint()
        pb_grpc.add_DRAPluginServicer_to_server(self, server)
        health_grpc.add_DRAResourceHealthServicer_to_server(self, server)
        watcher_grpc.add_RegistrationServicer_to_server(self, server)
        await endpoint.listen(server, path)
        return endpoint

    async def _until_cue(self, served: Endpoint) -> str:
        self._accepted = False
        self._advertised()
        while (cue := self._cue(served)) is None:
            if self._accepted:  # by the kubelet that came after a restart
                self._accepted = False
                self.counters.registrations[self.resource, "accepted"] += 1
                self._advertised()
            await self._wait_to_look()
        return cue

    async def _dial(self, path: Path, timeout_seconds: float) -> str | None:
        return await dial_driver(path, timeout_seconds)

    # What the kubelet calls.

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: GrpcContext
    ) -> pb.NodePrepareResourcesResponse:
        """Prepare the claims of a pod; each has devices or an error of its own."""
        claims = [ClaimReference(claim.namespace, claim.name, claim.uid) for claim in request.claims]
        try:
            prepared = await self.handler.prepare(claims)
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
        await self.handler.unprepare(claims)
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
            now, counts = int(time.time()), self.health_times.counts
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
                async with asyncio.timeout(self.health_times.again):
                    await changed.wait()


async def dial_driver(socket: Path, timeout_seconds: float) -> str | None:
    """Ask the driver on ``socket`` for its name, as the kubelet does; None if it answers, else the reason."""

    async def ask(channel: grpc.aio.Channel) -> None:
        await watcher_grpc.RegistrationStub(channel).GetInfo(watcher_pb.InfoRequest(), timeout=timeout_seconds)

    return await answer_fault(socket, ask, timeout_seconds)
