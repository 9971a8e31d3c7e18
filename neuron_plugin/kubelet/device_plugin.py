"""The DevicePlugin service of one resource: checks the kubelet's requests, lets the daemon decide, and answers.

The daemon decides as a `DeviceHandler`, in values free of protobuf. Two rules hold for every handler. It gets no
request for a device that is not advertised as healthy. A mistake in choosing a preference never becomes an error,
because an error fails the pod for good. A service is one gRPC server on one socket and counts its streams and calls. It
may only be stopped while no call is running: otherwise the kubelet fails the pod of that call.

Field meanings and numbers: ``protos/neuron_plugin/kubelet/_proto/deviceplugin/v1beta1/api.proto``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.advertisement import Advertisement, Edition, in_numeric_order
from neuron_plugin.kubelet.socket_watch import Endpoint

_log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
OPTIONS = pb.DevicePluginOptions(get_preferred_allocation_available=True)
"""The optional calls that the kubelet makes. Not PreStartContainer: with it, containers could not restart without the
plugin."""
_CALLS_SECONDS = 1.0  # for running calls before a stop; with the server's grace the whole stop takes less than 2 s
_ALLOCATE_FOLLOWS_SECONDS = 0.1  # after a preference the kubelet does nothing else first (``dm/manager.go``)

GrpcContext = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file for a container; ``permissions`` are letters of the device cgroup (r, w, m)."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """All that one container gets for the devices of one resource.

    ``cdi_devices`` are fully qualified names (``vendor.com/class=name``). ``annotations`` become annotations of the CRI
    container, never of the Pod. The kubelet records all of this in its checkpoint and uses it at each container start.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class AllocationRefusedError(Exception):
    """A gRPC error as the answer to Allocate: the kubelet fails the pod for good, with this text.

    ``code`` is INVALID_ARGUMENT for a malformed request, NOT_FOUND for ids that are not advertised, and
    FAILED_PRECONDITION if devices are unhealthy or the daemon finds a lasting conflict.
    """

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(text)
        self.code = code


class DeviceHandler(Protocol):
    """The daemon's decisions about devices; one handler may serve several resources.

    Calls may overlap if a kubelet restarts during a call; the call of the old kubelet is then cancelled. Otherwise a
    kubelet makes one call at a time.
    """

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose ``size`` of the ``available`` ids, including all of ``must_include``.

        Slow work belongs here, within the service's deadline. If this raises an error or returns an answer that the
        kubelet would change, the service answers with the lowest ids: an error would fail the pod for good.
        """

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Record and answer, normally from memory: the kubelet admits no other pod of the node meanwhile.

        ``ids`` are advertised as healthy, distinct and in numeric order. The kubelet has no deadline of its own.

        Raises:
            AllocationRefusedError: there is a lasting conflict. Nothing may have been recorded then.
        """


@dataclass(frozen=True, slots=True)
class KubeletCounters:
    """Counts of the plugin's exchange with the kubelet since its start; one object for all resources.

    ``registrations`` are counted by resource and outcome ("accepted" or "failed"), ``preferences_replaced`` by
    resource, ``refused_requests`` by resource and gRPC method.
    """

    registrations: Counter[tuple[str, ...]] = field(default_factory=Counter)
    preferences_replaced: Counter[str] = field(default_factory=Counter)
    refused_requests: Counter[tuple[str, ...]] = field(default_factory=Counter)


@dataclass(eq=False)
class DevicePluginService(Endpoint, pb_grpc.DevicePluginServicer):
    """The methods that the kubelet calls, for one resource on one socket.

    ``preference_deadline_seconds`` is how long the handler may take to choose a preference. ``stream_changed`` is set
    when a stream begins or ends.
    """

    resource: str
    handler: DeviceHandler
    advertisement: Advertisement
    _: KW_ONLY
    counters: KubeletCounters = field(default_factory=KubeletCounters)
    preference_deadline_seconds: float = 4.0
    stream_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._ending = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._allocate_due_until = 0.0
        self.streams_open = 0
        self.streams_begun = 0

    async def start(self, path: Path, *, watcher: watcher_grpc.RegistrationServicer | None = None) -> None:
        """Serve at ``path``; ``watcher`` answers the kubelet's plugin watcher on the same socket.

        Raises:
            EndpointError: another file than a socket is at the path, or the directory is not writable.
        """
        server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, server)
        if watcher:
            watcher_grpc.add_RegistrationServicer_to_server(watcher, server)
        await self.listen(server, path)

    async def stop(self) -> None:
        """End the streams, then the server, which removes its socket."""
        await self.end_streams(_CALLS_SECONDS)
        await super().stop()

    async def end_streams(self, patience_seconds: float) -> None:
        """End every stream as soon as no call is running, or after ``patience_seconds``; new streams end at once.

        The kubelet calls Allocate right after a preference, so a call counts as running for a moment after a
        preference.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience_seconds):
                await self._idle.wait()
                while (left := self._allocate_due_until - loop.time()) > 0:
                    await asyncio.sleep(left)
                    await self._idle.wait()
        except TimeoutError:
            _log.warning("stopping with calls running", extra={"resource": self.resource, "calls": self._calls})
        self._ending = True
        self.advertisement.wake()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: GrpcContext) -> pb.DevicePluginOptions:
        """Return the options; the kubelet calls this while our Register call is still waiting."""
        return OPTIONS

    # A coroutine that writes, which grpc.aio accepts, instead of the stubs' generator: a generator that is cancelled in
    # a write is only closed by the garbage collector, and would count as an open stream until then.
    async def ListAndWatch(self, request: pb.Empty, context: GrpcContext) -> None:  # type: ignore[override]
        """Send the whole list, and again with each newer edition, until the kubelet or `end_streams` ends it."""
        self.streams_open += 1
        self.streams_begun += 1
        self.advertisement.streams += 1
        self.stream_changed.set()
        sent: int | None = None
        try:
            while not self._ending:
                edition = self.advertisement.latest
                if edition.version == sent:
                    await self.advertisement.changed()
                else:
                    sent = edition.version
                    await context.write(device_list(edition))
        finally:
            self.streams_open -= 1
            self.advertisement.streams -= 1
            self.stream_changed.set()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: GrpcContext
    ) -> pb.PreferredAllocationResponse:
        """Choose ids for each container; never an error, which would fail the pod for good."""
        self._begin_call(context)
        response = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            available, must_include = tuple(container.available_deviceIDs), tuple(container.must_include_deviceIDs)
            ids = await self._preferred(available, must_include, container.allocation_size)
            response.container_responses.add(deviceIDs=ids)
        self._allocate_due_until = asyncio.get_running_loop().time() + _ALLOCATE_FOLLOWS_SECONDS
        return response

    async def _preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """The handler's choice if it is in time and the kubelet would use it unchanged, else the lowest ids."""
        deadline_seconds = self.preference_deadline_seconds
        try:
            async with asyncio.timeout(deadline_seconds):
                ids = await self.handler.preferred(self.resource, available, must_include, size)
                fault = preference_fault(ids, available, must_include, size)
        except TimeoutError:
            fault = f"took longer than {deadline_seconds:g} s"
        except Exception as error:  # noqa: BLE001 - any error here would fail the pod for good
            fault = f"failed: {type(error).__name__}: {error}"
        if fault is None:
            return in_numeric_order(ids)
        _log.error("preference replaced", extra={"resource": self.resource, "fault": fault})
        self.counters.preferences_replaced[self.resource] += 1
        return lowest_ids(available, must_include, size)

    async def Allocate(self, request: pb.AllocateRequest, context: GrpcContext) -> pb.AllocateResponse:
        """Return one response for each container, in order, or an error; never an empty answer."""
        self._begin_call(context)
        try:
            containers = [container.devices_ids for container in request.container_requests]
            checked = checked_ids(self.resource, self.advertisement.latest, containers)
            responses = [container_response(await self.handler.allocate(self.resource, ids)) for ids in checked]
        except AllocationRefusedError as error:
            code, text, exc_info = error.code, str(error), None
        except Exception as error:  # noqa: BLE001 - the kubelet gets every error as a status
            code, exc_info = grpc.StatusCode.INTERNAL, error
            text = f"Allocate of {self.resource} failed: {type(error).__name__}: {error}"
        else:
            return pb.AllocateResponse(container_responses=responses)
        level = logging.ERROR if exc_info else logging.WARNING
        _log.log(level, "Allocate refused", extra={"resource": self.resource, "error": text}, exc_info=exc_info)
        self.counters.refused_requests[self.resource, "Allocate"] += 1
        return await context.abort(code, text)

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: GrpcContext
    ) -> pb.PreStartContainerResponse:
        """Let every container start; the options do not ask for this call."""
        return pb.PreStartContainerResponse()

    def _begin_call(self, context: GrpcContext) -> None:
        """Count the call until gRPC has sent its answer, which is after the handler has returned."""
        self._calls += 1
        self._idle.clear()
        context.add_done_callback(self._end_call)  # type: ignore[arg-type]  # the stubs' callback is a protocol

    def _end_call(self, _context: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()


def checked_ids(resource: str, edition: Edition, containers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The ids of each container request in the edition's order; all are healthy there and requested once.

    Raises:
        AllocationRefusedError: there is no request, a request has no ids or an id twice, or an id is not advertised as
            healthy.
    """
    malformed = grpc.StatusCode.INVALID_ARGUMENT
    if not containers or not all(containers):
        raise AllocationRefusedError(f"a request for {resource} names no device ids, expected at least one", malformed)
    everything = [device_id for ids in containers for device_id in ids]
    if len(set(everything)) != len(everything):
        twice = [device_id for device_id, count in Counter(everything).items() if count > 1]
        text = f"a request for {resource} names {_listed(twice)} twice, expected each id once"
        raise AllocationRefusedError(text, malformed)
    known = {device.id: device for device in edition.devices}
    if unknown := [device_id for device_id in everything if device_id not in known]:
        text = f"{resource} has no device {_listed(unknown)}: it was never advertised, or is gone"
        raise AllocationRefusedError(text, grpc.StatusCode.NOT_FOUND)
    if unhealthy := [device_id for device_id in everything if not known[device_id].healthy]:
        reasons = (
            f"device {device_id}: {known[device_id].reason or 'unhealthy'}" for device_id in in_numeric_order(unhealthy)
        )
        raise AllocationRefusedError(f"{resource} cannot be allocated: {'; '.join(reasons)}")
    return [list(filter(set(ids).__contains__, known)) for ids in containers]


def preference_fault(
    ids: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int
) -> str | None:
    """Why ``ids`` are no valid preference; None if the kubelet would use them unchanged."""
    if len(ids) == len(set(ids)) == size and set(must_include) <= set(ids) <= set(available):
        return None
    wanted = f"{size} of {_listed(available)}" + (f" with {_listed(must_include)}" if must_include else "")
    return f"names {_listed(ids) or 'nothing'}, expected {wanted}"


def lowest_ids(available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
    """A preference without a decision: ``must_include``, then the lowest available ids.

    Shorter than ``size`` only if there are too few; the kubelet then adds others.
    """
    kept = in_numeric_order(set(must_include))
    others = in_numeric_order(set(available).difference(kept))
    return in_numeric_order((kept + others)[:size])


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(in_numeric_order(ids))


def device_list(edition: Edition) -> pb.ListAndWatchResponse:
    """An edition as the message that ListAndWatch sends."""
    message = pb.ListAndWatchResponse()
    for device in edition.devices:
        listed = message.devices.add(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
        for node in device.numa_nodes:
            listed.topology.nodes.add(ID=node)
    return message


def container_response(allocation: ContainerAllocation) -> pb.ContainerAllocateResponse:
    """The Allocate response for one container."""
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in allocation.devices
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )
