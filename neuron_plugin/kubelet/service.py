"""The DevicePlugin gRPC service of one resource.

Turns the kubelet's calls into questions to the daemon's handler and its answers into messages. One service belongs to
one server instance and counts that instance's streams and calls, because an instance may only be stopped when no call
is under way: the kubelet fails a pod whose Allocate is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import Advertisement, Subscription
from neuron_plugin.kubelet.devices import DeviceHandler, RefusalError, in_numeric_order
from neuron_plugin.kubelet.messages import container_response, device_list, status_of
from neuron_plugin.kubelet.observer import Observer
from neuron_plugin.kubelet.requests import PreferenceRequest, checked_ids, preferred_ids

_log = logging.getLogger(__name__)

_ALLOCATE_FOLLOWS_SECONDS = 0.1  # after a preference the kubelet does nothing else first (``dm/manager.go``)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the kubelet is told it may ask for, and how long a preference may take.

    ``pre_start_required`` has a price: a container cannot restart while the plugin is away.
    """

    pre_start_required: bool = False
    preferred_allocation: bool = True
    preference_deadline_seconds: float = 4.0

    def message(self) -> pb.DevicePluginOptions:
        """As GetDevicePluginOptions and Register state it; older kubelets read only the latter."""
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start_required,
            get_preferred_allocation_available=self.preferred_allocation,
        )


class DevicePluginService(pb_grpc.DevicePluginServicer):
    """The five methods a kubelet calls, for one resource on one socket."""

    def __init__(
        self,
        resource: str,
        handler: DeviceHandler,
        advertisement: Advertisement,
        *,
        observer: Observer,
        options: ServiceOptions | None = None,
        on_stream_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._resource = resource
        self._handler = handler
        self._advertisement = advertisement
        self._options = options or ServiceOptions()
        self._observer = observer
        self._on_stream_change = on_stream_change
        self._streams: set[Subscription] = set()
        self._ending = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._allocate_due_until = 0.0
        self.streams_begun = 0

    @property
    def streams_open(self) -> int:
        """How many ListAndWatch streams are open; one is the kubelet's."""
        return len(self._streams)

    async def end_streams(self, patience_seconds: float) -> None:
        """End every stream, once no other call is under way or patience runs out; new streams end at once."""
        try:
            async with asyncio.timeout(patience_seconds):
                await self._calls_ended()
        except TimeoutError:
            _log.warning("stopping with calls under way", extra={"resource": self._resource, "calls": self._calls})
        self._ending = True
        for stream in self._streams:
            stream.close()

    async def _calls_ended(self) -> None:
        """Wait for calls under way, and for the Allocate that follows a preference at once."""
        loop = asyncio.get_running_loop()
        await self._idle.wait()
        while (left := self._allocate_due_until - loop.time()) > 0:
            await asyncio.sleep(left)
            await self._idle.wait()

    async def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self,
        request: pb.Empty,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],  # noqa: ARG002 - the API's signature
    ) -> pb.DevicePluginOptions:
        """Say what the kubelet may ask for; asked while our Register is still waiting."""
        return self._options.message()

    # A coroutine that writes, not a generator: a generator cancelled in a write is closed by the garbage collector
    # only, and would be counted as an open stream until then.
    async def ListAndWatch(  # type: ignore[override]  # noqa: N802 - grpc.aio takes a coroutine, the stubs say generator
        self,
        request: pb.Empty,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse],
    ) -> None:
        """Send the whole list, and again whenever it has changed, until someone ends the stream."""
        with self._stream() as subscription:
            async for edition in subscription:
                await context.write(device_list(edition))

    async def GetPreferredAllocation(  # noqa: N802 - the API's name
        self,
        request: pb.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],
    ) -> pb.PreferredAllocationResponse:
        """Answer each container's demand; never with an error, which would fail the pod for good."""
        self._begin_call(context)
        answers = [await self._preferred(demand) for demand in request.container_requests]
        self._allocate_due_until = asyncio.get_running_loop().time() + _ALLOCATE_FOLLOWS_SECONDS
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
        )

    async def Allocate(  # noqa: N802 - the API's name
        self,
        request: pb.AllocateRequest,
        context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse],
    ) -> pb.AllocateResponse:
        """Answer one response for each request, in order, or an error; never an empty answer.

        Nothing is awaited between the check and the last answer, so calls are one at a time without a lock.
        """
        self._begin_call(context)
        try:
            return self._allocate(request)
        except Exception as error:  # noqa: BLE001 - every error gets its status in one place
            return await self._refuse(context, "Allocate", error)

    async def PreStartContainer(  # noqa: N802 - the API's name
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """Let a container start or hold it. Health is not checked: a container may restart on an unhealthy device."""
        self._begin_call(context)
        try:
            await self._handler.pre_start(self._resource, in_numeric_order(request.devices_ids))
        except Exception as error:  # noqa: BLE001 - every error gets its status in one place
            return await self._refuse(context, "PreStartContainer", error)
        return pb.PreStartContainerResponse()

    def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        demands = [each.devices_ids for each in request.container_requests]
        allocations = [
            self._handler.allocate(self._resource, ids)
            for ids in checked_ids(self._resource, self._advertisement.latest, demands)
        ]
        return pb.AllocateResponse(container_responses=[container_response(each) for each in allocations])

    async def _preferred(self, demand: pb.ContainerPreferredAllocationRequest) -> tuple[str, ...]:
        request = PreferenceRequest(
            available=tuple(demand.available_deviceIDs),
            must_include=tuple(demand.must_include_deviceIDs),
            size=demand.allocation_size,
        )
        deadline = self._options.preference_deadline_seconds
        answer = await preferred_ids(self._handler, self._resource, request, deadline)
        if answer.fault is not None:
            _log.error("preference replaced", extra={"resource": self._resource, "fault": answer.fault})
            self._observer.preference_replaced(self._resource, answer.fault)
        return answer.ids

    async def _refuse(
        self, context: grpc.aio.ServicerContext[_Request, _Response], method: str, error: Exception
    ) -> _Response:
        expected = isinstance(error, RefusalError)
        fields = {"resource": self._resource, "method": method, "error": str(error)}
        _log.log(
            logging.WARNING if expected else logging.ERROR,
            "refused",
            extra=fields,
            exc_info=None if expected else error,
        )
        self._observer.request_refused(self._resource, method, error)
        text = str(error) if expected else f"{method} of {self._resource} failed: {type(error).__name__}: {error}"
        return await context.abort(status_of(error), text)

    @contextmanager
    def _stream(self) -> Iterator[Subscription]:
        with self._advertisement.subscribe() as subscription:
            self._streams.add(subscription)
            self.streams_begun += 1
            if self._ending:
                subscription.close()
            self._on_stream_change()
            try:
                yield subscription
            finally:
                self._streams.discard(subscription)
                self._on_stream_change()

    def _begin_call(self, context: grpc.aio.ServicerContext[_Request, _Response]) -> None:
        """Count the call until gRPC has sent its answer, which is after the handler has returned."""
        self._calls += 1
        self._idle.clear()
        context.add_done_callback(self._end_call)  # type: ignore[arg-type]  # the stubs forget that their callback is a protocol

    def _end_call(self, _context: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()
