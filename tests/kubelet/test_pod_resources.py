from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.pod_resources import (
    ContainerDevices,
    PodDevices,
    PodResourcesAbsentError,
    PodResourcesClient,
    PodResourcesError,
)
from tests.kubelet.fakes import CORE, DEVICE


def entries(resource: str, *ids: str) -> list[pb.ContainerDevices]:
    """As the kubelet does it: one for each id."""
    return [pb.ContainerDevices(resource_name=resource, device_ids=[each]) for each in ids]


POD = pb.PodResources(
    name="pod",
    namespace="ns",
    containers=[
        pb.ContainerResources(name="a", devices=entries(CORE, "10", "9", "2") + entries(DEVICE, "7")),
        pb.ContainerResources(name="b"),
    ],
)
POD_DEVICES = PodDevices(
    "ns", "pod", (ContainerDevices("a", CORE, ("2", "9", "10")), ContainerDevices("a", DEVICE, ("7",)))
)


class Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(self, *failures: tuple[grpc.StatusCode, str]) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def fail(self, context: grpc.aio.ServicerContext[object, object]) -> None:
        self.calls += 1
        if self.failures:
            await context.abort(*(self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]))

    async def List(  # noqa: N802 - the API's name
        self, request: pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ListPodResourcesResponse:
        del request
        await self.fail(context)
        return pb.ListPodResourcesResponse(pod_resources=[POD])

    async def Get(  # noqa: N802 - the API's name
        self, request: pb.GetPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetPodResourcesResponse:
        raise NotImplementedError

    async def GetAllocatableResources(  # noqa: N802 - the API's name
        self, request: pb.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.AllocatableResourcesResponse:
        del request
        await self.fail(context)
        return pb.AllocatableResourcesResponse(devices=entries(CORE, "10", "9"))


@asynccontextmanager
async def client_of(lister: Lister, directory: Path, deadline: float = 5.0) -> AsyncIterator[PodResourcesClient]:
    server = grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{directory / 's'}")
    await server.start()
    yield PodResourcesClient(directory / "s", deadline_seconds=deadline)
    await server.stop(None)


async def test_the_entries_of_a_resource_are_summed_up_in_numeric_order(directory: Path) -> None:
    async with client_of(Lister(), directory) as client:
        assert await client.list() == (POD_DEVICES,)


async def test_allocatable_ids_come_by_resource(directory: Path) -> None:
    async with client_of(Lister(), directory) as client:
        assert await client.allocatable() == {CORE: ("9", "10")}


THROTTLED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
BROKEN, LOST = (grpc.StatusCode.INTERNAL, "broken"), (grpc.StatusCode.UNKNOWN, "checkpoint is not found")
FAILURES = {
    "p62 a throttled call is tried again": ([THROTTLED, THROTTLED, BROKEN], "INTERNAL: broken", 3),
    "p62 but not past its deadline": ([THROTTLED], "RESOURCE_EXHAUSTED: rejected by rate limit", 0),
    "any other error": ([BROKEN], "INTERNAL: broken", 1),
    "an error of the kubelet's own": ([LOST], "UNKNOWN: checkpoint is not found", 1),
}


@pytest.mark.parametrize(("failures", "said", "calls"), FAILURES.values(), ids=FAILURES)
async def test_p62_an_error_names_its_status_and_a_throttled_call_is_tried_again(
    directory: Path, failures: list[tuple[grpc.StatusCode, str]], said: str, calls: int
) -> None:
    lister = Lister(*failures)
    async with client_of(lister, directory, deadline=5.0 if calls else 0.2) as client:
        with pytest.raises(PodResourcesError, match=f"PodResources answered {said}"):
            await client.list()
    assert lister.calls == calls or (not calls and 2 <= lister.calls <= 5)


async def test_p62_no_socket_has_its_own_error_and_says_what_to_look_at(directory: Path) -> None:
    with pytest.raises(
        PodResourcesAbsentError, match=r"No such file.*is the kubelet running and the directory mounted"
    ):
        await PodResourcesClient(directory / "absent").list()


async def test_p62_a_dead_socket_is_absent_too(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "s"))
    with pytest.raises(PodResourcesAbsentError, match="Connection refused"):
        await PodResourcesClient(directory / "s").list()


async def test_the_kubelet_is_found_again_at_once_when_it_returns(directory: Path) -> None:
    client = PodResourcesClient(directory / "s")
    with pytest.raises(PodResourcesAbsentError):
        await client.list()
    async with client_of(Lister(), directory):
        assert await client.list() == (POD_DEVICES,)


async def test_a_hung_kubelet_is_given_up_at_the_deadline(directory: Path) -> None:
    class Hung(Lister):
        async def fail(self, context: grpc.aio.ServicerContext[object, object]) -> None:
            del context
            await asyncio.Event().wait()

    async with client_of(Hung(), directory, deadline=0.05) as client:
        with pytest.raises(PodResourcesError, match="DEADLINE_EXCEEDED"):
            await client.list()


async def test_a_list_beyond_grpcs_usual_four_megabytes_is_read(directory: Path) -> None:
    class Large(Lister):
        async def List(  # noqa: N802 - the API's name
            self, request: pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
        ) -> pb.ListPodResourcesResponse:
            del request, context
            return pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name="x" * (5 << 20))])

    async with client_of(Large(), directory) as client:
        assert len((await client.list())[0].name) == 5 << 20
