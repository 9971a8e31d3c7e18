from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import AdvertisedDevice, Advertisement
from neuron_plugin.kubelet.device_plugin import (
    AllocationRefusedError,
    ContainerAllocation,
    DeviceNode,
    DevicePluginService,
    KubeletCounters,
    container_response,
    device_list,
    lowest_ids,
    preference_fault,
)
from neuron_plugin.kubelet.socket_watch import channel_to
from tests.kubelet.fakes import CORE, FakeHandler, devices, eventually

Status = grpc.StatusCode


@dataclass
class Served:
    stub: pb_grpc.DevicePluginAsyncStub
    service: DevicePluginService
    handler: FakeHandler
    advertisement: Advertisement
    counters: KubeletCounters

    async def allocate(self, *containers: Sequence[str]) -> pb.AllocateResponse:
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        return await self.stub.Allocate(pb.AllocateRequest(container_requests=requests), timeout=5)

    async def prefer(self, *demands: tuple[str, str, int]) -> list[list[str]]:
        requests = [
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=available.split(), must_include_deviceIDs=must.split(), allocation_size=size
            )
            for available, must, size in demands
        ]
        call = self.stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=requests), timeout=5)
        return [list(each.deviceIDs) for each in (await call).container_responses]


@asynccontextmanager
async def served(directory: Path, preference_deadline_seconds: float = 4.0) -> AsyncIterator[Served]:
    handler, advertisement, counters = FakeHandler(), Advertisement(devices(4, 3)), KubeletCounters()
    service = DevicePluginService(
        CORE, handler, advertisement, counters=counters, preference_deadline_seconds=preference_deadline_seconds
    )
    await service.start(directory / "s")
    async with channel_to(directory / "s") as channel:
        stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)
        yield Served(stub, service, handler, advertisement, counters)
    await service.stop()


async def refused(plugin: Served, *containers: Sequence[str]) -> tuple[Status, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await plugin.allocate(*containers)
    return error.value.code(), error.value.details() or ""


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["fault"] for record in caplog.records if record.message == "preference replaced"]


def health(message: object) -> list[tuple[str, str]]:
    assert isinstance(message, pb.ListAndWatchResponse)
    return [(device.ID, device.health) for device in message.devices]


# Options


async def test_the_options_ask_for_preferences_and_not_for_pre_start(directory: Path) -> None:
    async with served(directory) as plugin:
        options = await plugin.stub.GetDevicePluginOptions(pb.Empty())
    assert options == pb.DevicePluginOptions(get_preferred_allocation_available=True)


# ListAndWatch


async def test_p15_p20_a_stream_begins_with_the_full_list_unhealthy_devices_included(directory: Path) -> None:
    async with served(directory) as plugin:
        stream = plugin.stub.ListAndWatch(pb.Empty())
        assert health(await stream.read()) == [("0", "Healthy"), ("1", "Healthy"), ("2", "Healthy"), ("3", "Unhealthy")]
        stream.cancel()


async def test_p16_p17_one_message_for_each_change_and_none_for_none(directory: Path) -> None:
    async with served(directory) as plugin:
        stream = plugin.stub.ListAndWatch(pb.Empty())
        await stream.read()
        plugin.advertisement.publish(devices(4, 3))
        plugin.advertisement.publish(devices(2, 0))
        assert health(await stream.read()) == [("0", "Unhealthy"), ("1", "Healthy")]
        plugin.advertisement.publish(devices(2))
        assert health(await stream.read()) == [("0", "Healthy"), ("1", "Healthy")]
        stream.cancel()


async def test_p19_a_thousand_cancelled_streams_leave_nothing_behind(directory: Path) -> None:
    def footprint() -> tuple[int, int, int]:
        gc.collect()
        return len(asyncio.all_tasks()), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    async with served(directory) as plugin:

        async def open_some(count: int) -> None:
            streams = [plugin.stub.ListAndWatch(pb.Empty()) for _ in range(count)]
            for stream in streams:
                await stream.read()
            assert plugin.service.streams_open == count
            await plugin.allocate(["0"])  # waits for no stream
            for stream in streams:
                stream.cancel()
            await eventually(lambda: not plugin.service.streams_open)

        await open_some(1)
        before = footprint()
        for _ in range(20):
            await open_some(50)
        await eventually(lambda: footprint() <= before)
        assert footprint() == before
        assert plugin.service.streams_begun == 1001
        assert not plugin.advertisement._changed._waiters


async def test_ending_the_streams_ends_them_without_an_error(directory: Path) -> None:
    async with served(directory) as plugin:
        stream = plugin.stub.ListAndWatch(pb.Empty())
        await stream.read()
        await plugin.service.end_streams(1)
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is Status.OK


async def test_a_stream_opened_after_the_end_ends_at_once(directory: Path) -> None:
    async with served(directory) as plugin:
        await plugin.service.end_streams(1)
        assert await plugin.stub.ListAndWatch(pb.Empty()).read() is grpc.aio.EOF


class Held:
    """A call of the handler that has no answer until it is released."""

    def __init__(self, answer: object = ()) -> None:
        self.begun, self.released, self.cancelled = (asyncio.Event() for _ in range(3))
        self._answer = answer

    async def __call__(self, *_: object) -> Any:
        self.begun.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._answer


async def test_streams_outlive_a_call_under_way(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.handler.prefer = held = Held(["0"])
        stream = plugin.stub.ListAndWatch(pb.Empty())
        await stream.read()
        call = asyncio.create_task(plugin.prefer(("0 1", "", 1)))
        await held.begun.wait()
        ending = asyncio.create_task(plugin.service.end_streams(5))
        await asyncio.sleep(0.02)
        assert plugin.service.streams_open == 1
        held.released.set()
        assert await call == [["0"]]
        await ending
        assert await stream.read() is grpc.aio.EOF


async def test_streams_outlive_a_call_that_begins_while_its_preference_is_waited_after(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.handler.allocation = held = Held(ContainerAllocation())
        stream = plugin.stub.ListAndWatch(pb.Empty())
        await stream.read()
        await plugin.prefer(("0 1", "", 1))
        ending = asyncio.create_task(plugin.service.end_streams(5))
        call = asyncio.create_task(plugin.allocate(["0"]))
        await asyncio.wait_for(held.begun.wait(), 5)
        await asyncio.sleep(0.2)  # past the time that an Allocate is waited for
        assert plugin.service.streams_open == 1
        held.released.set()
        await call
        await ending
        assert await stream.read() is grpc.aio.EOF


async def test_patience_with_a_hung_call_ends(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.handler.prefer = held = Held()
        call = asyncio.create_task(plugin.prefer(("0 1", "", 1)))
        await held.begun.wait()
        async with asyncio.timeout(2):
            await plugin.service.end_streams(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
async def test_a_call_whose_kubelet_is_gone_is_cancelled_and_not_answered(
    directory: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async with served(directory) as plugin:
        plugin.handler.prefer = plugin.handler.allocation = held = Held()
        asked = plugin.allocate(["0"]) if method == "Allocate" else plugin.prefer(("3 2 1", "", 2))
        call = asyncio.create_task(asked)
        await held.begun.wait()
        call.cancel()
        await asyncio.wait_for(held.cancelled.wait(), 5)
    assert plugin.counters.refused_requests == {}
    assert faults(caplog) == []


# GetPreferredAllocation


async def test_p29_preferences_are_answered_container_by_container(directory: Path) -> None:
    async with served(directory) as plugin:
        assert await plugin.prefer(("2 1 0", "2", 2), ("1 0", "", 1)) == [["0", "2"], ["0"]]
    assert plugin.handler.preferences[0] == (["2", "1", "0"], ["2"], 2)


async def broken(*_: object) -> Sequence[str]:
    raise KeyError("decision")


async def everything(available: Sequence[str], *_: object) -> Sequence[str]:
    return available


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (broken, "failed: KeyError: 'decision'"),
        (Held(), "took longer than 0.05 s"),
        (everything, "names 0, 1, 2, expected 2 of 0, 1, 2 with 2"),
    ],
)
async def test_p33_in_place_of_a_choice_that_fails_is_late_or_wrong_there_is_a_valid_answer_and_never_an_error(
    directory: Path, caplog: pytest.LogCaptureFixture, choice: Callable[..., Awaitable[Sequence[str]]], fault: str
) -> None:
    async with served(directory, preference_deadline_seconds=0.05) as plugin:
        plugin.handler.prefer = choice
        assert await plugin.prefer(("2 1 0", "2", 2)) == [["0", "2"]]
    assert faults(caplog) == [fault]
    assert plugin.counters.preferences_replaced == {CORE: 1}


# Allocate


async def test_p39_one_response_for_each_request_in_order_with_its_ids_in_numeric_order(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.advertisement.publish(devices(12))
        answer = await plugin.allocate(["11", "2"], ["10", "9"])
    assert [dict(each.envs) for each in answer.container_responses] == [{"IDS": "2,11"}, {"IDS": "9,10"}]
    assert plugin.handler.allocations == [(CORE, ["2", "11"]), (CORE, ["9", "10"])]


@pytest.mark.parametrize(
    ("ids", "status", "text"),
    [
        ([["1", "77", "x"]], Status.NOT_FOUND, "has no device 77, x"),
        ([["2", "1", "1", "0", "0"]], Status.INVALID_ARGUMENT, "names 0, 1 twice"),
        ([["1"], ["1"]], Status.INVALID_ARGUMENT, "names 1 twice"),
        ([[]], Status.INVALID_ARGUMENT, "names no device ids"),
        ([["1"], []], Status.INVALID_ARGUMENT, "names no device ids"),
        ([], Status.INVALID_ARGUMENT, "names no device ids"),
        ([["0", "3"]], Status.FAILED_PRECONDITION, "device 3: unhealthy"),
        ([["0"], ["9"]], Status.NOT_FOUND, "no device 9"),
    ],
)
async def test_p38_a_bad_request_is_a_status_and_nothing_is_recorded(
    directory: Path, ids: list[list[str]], status: Status, text: str
) -> None:
    async with served(directory) as plugin:
        code, details = await refused(plugin, *ids)
    assert code is status
    assert text in details
    assert CORE in details
    assert plugin.handler.allocations == []
    assert plugin.counters.refused_requests == {(CORE, "Allocate"): 1}


async def test_the_daemons_refusal_reaches_the_kubelet_word_for_word(directory: Path) -> None:
    async def held(_resource: str, _ids: Sequence[str]) -> ContainerAllocation:
        raise AllocationRefusedError("device 0 of ns/b is held by ns/a")

    async with served(directory) as plugin:
        plugin.handler.allocation = held
        assert await refused(plugin, ["0"]) == (Status.FAILED_PRECONDITION, "device 0 of ns/b is held by ns/a")


async def test_an_accident_in_the_daemon_is_an_internal_error_that_names_the_resource(directory: Path) -> None:
    async def broken(_resource: str, _ids: Sequence[str]) -> ContainerAllocation:
        raise ZeroDivisionError("x")

    async with served(directory) as plugin:
        plugin.handler.allocation = broken
        code, details = await refused(plugin, ["0"])
    assert code is Status.INTERNAL
    assert details == f"Allocate of {CORE} failed: ZeroDivisionError: x"


async def test_p38_health_is_judged_by_the_latest_edition(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.advertisement.publish(devices(4, 0))
        assert (await refused(plugin, ["0"]))[0] is Status.FAILED_PRECONDITION
        assert len((await plugin.allocate(["3"])).container_responses) == 1


async def test_p51_concurrent_allocations_run_one_at_a_time_and_none_is_lost(directory: Path) -> None:
    async with served(directory) as plugin:
        plugin.advertisement.publish(devices(50))
        await asyncio.gather(*(plugin.allocate([str(each)]) for each in range(50)))
    assert sorted(ids[0] for _, ids in plugin.handler.allocations) == sorted(str(each) for each in range(50))


# PreStartContainer


async def test_pre_start_lets_every_container_start_even_on_an_unhealthy_device(directory: Path) -> None:
    async with served(directory) as plugin:
        answer = await plugin.stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["3", "1"]))
    assert answer == pb.PreStartContainerResponse()


# Checks


Demand = tuple[list[str], list[str], int]


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    available = draw(st.lists(st.integers(0, 200).map(str), unique=True, min_size=1, max_size=40))
    must = draw(st.lists(st.sampled_from(available), unique=True))
    return available, must, draw(st.integers(len(must), len(available)))


@given(demands())
def test_p29_the_lowest_ids_are_an_answer_the_kubelet_takes_exactly(demand: Demand) -> None:
    assert preference_fault(lowest_ids(*demand), *demand) is None


def test_the_lowest_ids_of_too_few_are_all_there_are() -> None:
    assert lowest_ids(["3", "1"], [], 5) == ["1", "3"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([], "names nothing, expected 2 of 1, 2, 3 with 1"),
        (["1"], "names 1, expected 2 of 1, 2, 3 with 1"),
        (["1", "2", "3"], "names 1, 2, 3, expected 2 of 1, 2, 3 with 1"),
        (["1", "1"], "names 1, 1, expected 2 of 1, 2, 3 with 1"),
        (["1", "7"], "names 1, 7, expected 2 of 1, 2, 3 with 1"),
        (["2", "3"], "names 2, 3, expected 2 of 1, 2, 3 with 1"),
        (["1", "3"], None),
    ],
)
def test_p29_an_answer_the_kubelet_would_not_take_exactly_is_a_fault(answer: list[str], fault: str | None) -> None:
    assert preference_fault(answer, ["1", "2", "3"], ["1"], 2) == fault


# Messages


def test_p21_no_topology_is_sent_unless_a_numa_node_is_known() -> None:
    message = device_list(Advertisement([AdvertisedDevice("0"), AdvertisedDevice("1", numa_nodes=(0, 1))]).latest)
    without, with_nodes = message.devices
    assert not without.HasField("topology")
    assert [node.ID for node in with_nodes.topology.nodes] == [0, 1]


def test_p53_everything_a_container_receives_reaches_the_wire() -> None:
    message = container_response(
        ContainerAllocation(
            envs={"NEURON_RT_VISIBLE_CORES": "2,3"},
            devices=(DeviceNode("/dev/neuron5", "/dev/neuron0", "rwm"),),
            cdi_devices=("aws.amazon.com/neuron=5",),
            annotations={"neuron-plugin.io/allocation": "x"},
        )
    )
    assert dict(message.envs) == {"NEURON_RT_VISIBLE_CORES": "2,3"}
    assert dict(message.annotations) == {"neuron-plugin.io/allocation": "x"}
    node = message.devices[0]
    assert (node.host_path, node.container_path, node.permissions) == ("/dev/neuron5", "/dev/neuron0", "rwm")
    assert [device.name for device in message.cdi_devices] == ["aws.amazon.com/neuron=5"]
