"""The stand-in kubelet, judged by what kubelet 1.36 was seen to do."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from neuron_plugin.allocation.requests import Kind
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.channels import channel_to
from neuron_plugin.kubelet.sockets import is_served
from neuron_plugin.simulation.kubelet import SOCKET_NAME, KubeletOptions, StandInKubelet
from neuron_plugin.simulation.kubelet_devices import Capacity
from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, Container, Pod, PodRejectedError
from neuron_plugin.simulation.kubelet_registration import is_extended_resource_name
from tests.kubelet.fakes import CORE, DEVICE, eventually, seeded

asyncio.set_event_loop(None)  # see tests/kubelet/conftest.py

INIT, SIDECAR, APP = Kind.INIT, Kind.SIDECAR, Kind.APP


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="np-") as path:
        yield Path(path)


class RawPlugin(pb_grpc.DevicePluginServicer):
    """A plugin without manners: it answers what a test says, be it wrong, and keeps what it was asked."""

    def __init__(self, ids: Sequence[str] = ("d0", "d1", "d2", "d3"), *, prefers: bool = True) -> None:
        self.devices = [pb.Device(ID=each, health="Healthy") for each in ids]
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=prefers)
        self.options_error: str | None = None
        self.preference: Sequence[str] | None = None
        self.preference_error: str | None = None
        self.allocate_error: str | None = None
        self.answers = 1
        self.envs: dict[str, str] = {}
        self.gate: asyncio.Event | None = None
        self.start_error: str | None = None
        self.calls: list[str] = []
        self.preferences: list[tuple[set[str], set[str], int]] = []
        self.allocations: list[list[str]] = []
        self.starts: list[list[str]] = []
        self.stream_ends = asyncio.Event()
        self.news = asyncio.Event()

    async def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self, request: pb.Empty, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.DevicePluginOptions:
        del request
        self.calls.append("options")
        if self.options_error is not None:
            await context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    async def ListAndWatch(  # type: ignore[override]  # noqa: N802 - grpc.aio takes a coroutine, the stubs do not
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> None:
        del request
        self.calls.append("stream")
        while not self.stream_ends.is_set():
            self.news.clear()
            await context.write(pb.ListAndWatchResponse(devices=self.devices))
            await self.news.wait()

    async def GetPreferredAllocation(  # noqa: N802 - the API's name
        self, request: pb.PreferredAllocationRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.PreferredAllocationResponse:
        (demand,) = request.container_requests
        available, must = set(demand.available_deviceIDs), set(demand.must_include_deviceIDs)
        self.preferences.append((available, must, demand.allocation_size))
        if self.preference_error is not None:
            await context.abort(grpc.StatusCode.INTERNAL, self.preference_error)
        chosen = self.preference if self.preference is not None else sorted(available)[: demand.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(  # noqa: N802 - the API's name
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.AllocateResponse:
        (demand,) = request.container_requests
        ids = list(demand.devices_ids)
        self.allocations.append(ids)
        if self.gate is not None:
            await self.gate.wait()
        if self.allocate_error is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        response = pb.ContainerAllocateResponse(
            envs={"IDS": ",".join(sorted(ids)), **self.envs},
            devices=[pb.DeviceSpec(container_path=f"/dev/{i}", host_path=f"/dev/{i}", permissions="rw") for i in ids],
            cdi_devices=[pb.CDIDevice(name=f"example.com/dummy={i}") for i in ids],
            mounts=[pb.Mount(container_path="/c", host_path="/h", read_only=True)],
            annotations={"by": "plugin"},
        )
        return pb.AllocateResponse(container_responses=[response] * self.answers)

    async def PreStartContainer(  # noqa: N802 - the API's name
        self, request: pb.PreStartContainerRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.PreStartContainerResponse:
        self.starts.append(list(request.devices_ids))
        if self.start_error is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.start_error)
        return pb.PreStartContainerResponse()

    def set_health(self, device_id: str, health: str) -> None:
        for device in self.devices:
            if device_id == device.ID:
                device.health = health
        self.news.set()

    def end_stream(self) -> None:
        self.stream_ends.set()
        self.news.set()


async def register(directory: Path, endpoint: str, resource: str = CORE, version: str = "v1beta1") -> None:
    async with channel_to(directory / SOCKET_NAME) as channel:
        request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await pb_grpc.RegistrationStub(channel).Register(request, timeout=15)


@asynccontextmanager
async def serving(plugin: RawPlugin, path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    yield
    plugin.end_stream()
    await server.stop(0.2)


@asynccontextmanager
async def node(
    directory: Path,
    plugin: RawPlugin | None = None,
    *,
    seed: int = 0,
    options: KubeletOptions | None = None,
    count: int = 4,
) -> AsyncIterator[tuple[StandInKubelet, RawPlugin]]:
    """A kubelet with one plugin registered."""
    plugin = plugin or RawPlugin()
    kubelet = StandInKubelet(directory, random=seeded(seed), options=options)
    async with kubelet, serving(plugin, directory / "plugin.sock"):
        await register(directory, "plugin.sock")
        await kubelet.wait_for_capacity(CORE, count)
        yield kubelet, plugin


def pod(name: str, *containers: Container, uid: str | None = None) -> Pod:
    return Pod(uid or f"uid-{name}", "ns", name, containers)


def wants(count: int, name: str = "c", kind: Kind = APP, resource: str = CORE) -> Container:
    return Container(name, {resource: count}, kind)


async def rejection(kubelet: StandInKubelet, candidate: Pod) -> str:
    with pytest.raises(PodRejectedError) as error:
        await kubelet.admit(candidate)
    assert kubelet.rejections[candidate.uid] is error.value
    return str(error.value)


def ids_of(container: AdmittedContainer, resource: str = CORE) -> set[str]:
    return set(container.ids[resource])


# Registration


async def refusal(directory: Path, *arguments: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await register(directory, *arguments)
    assert error.value.code() is grpc.StatusCode.UNKNOWN
    return error.value.details() or ""


async def test_a_wrong_version_is_refused_in_the_kubelets_words(directory: Path) -> None:
    async with StandInKubelet(directory):
        text = await refusal(directory, "e", CORE, "v1alpha")
    assert text == 'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]'


async def test_a_wrong_resource_name_is_refused_in_the_kubelets_words(directory: Path) -> None:
    async with StandInKubelet(directory):
        assert await refusal(directory, "e", "dummy") == 'the ResourceName "dummy" is invalid'


@pytest.mark.parametrize("name", [CORE, "example.com/Dummy_1.x", "a/b"])
def test_names_the_kubelet_takes(name: str) -> None:
    assert is_extended_resource_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("dummy", "Example.com/x", "example.com/a/b", f"example.com/{'n' * 64}", "hugepages-2Mi"),
        *("kubernetes.io/x", "sub.kubernetes.io/x", "requests.example.com/x", "example.com/", "/x", "example.com/-x"),
        f"{'d' * 250}.com/x",
    ],
)
def test_names_the_kubelet_refuses(name: str) -> None:
    assert not is_extended_resource_name(name)


@pytest.mark.parametrize("endpoint", ["absent.sock", "/absolute/path.sock"])
async def test_a_socket_that_does_not_answer_is_refused_after_the_dial_time_out(directory: Path, endpoint: str) -> None:
    async with StandInKubelet(directory, options=KubeletOptions(dial_seconds=0.05)):
        text = await refusal(directory, endpoint)
    assert text == "failed to dial device plugin: context deadline exceeded"


async def test_failing_options_are_refused_and_the_resource_never_appears(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options_error = "no options today"
    async with StandInKubelet(directory) as kubelet, serving(plugin, directory / "plugin.sock"):
        text = await refusal(directory, "plugin.sock")
        assert kubelet.capacity(CORE) == Capacity(0, 0)
    assert text == "failed to get device plugin options: rpc error: code = Internal desc = no options today"
    assert plugin.calls == ["options"]


async def test_options_are_asked_for_before_register_returns_and_the_stream_follows(directory: Path) -> None:
    plugin = RawPlugin()
    async with StandInKubelet(directory) as kubelet, serving(plugin, directory / "plugin.sock"):
        await register(directory, "plugin.sock")
        assert plugin.calls[0] == "options"
        await kubelet.wait_for_capacity(CORE, 4)
        assert plugin.calls == ["options", "stream"]
        assert kubelet.registration_count(CORE) == 1


async def test_one_socket_may_serve_several_resources(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await register(directory, "plugin.sock", DEVICE)
        await kubelet.wait_for_capacity(DEVICE, 4)
        assert plugin.calls == ["options", "stream"] * 2


# Capacity and health


async def test_an_unhealthy_device_lowers_allocatable_alone(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.set_health("d1", "Unhealthy")
        assert await kubelet.wait_for_capacity(CORE, 3) == Capacity(4, 3)
        plugin.set_health("d1", "Healthy")
        assert await kubelet.wait_for_capacity(CORE, 4) == Capacity(4, 4)


async def test_any_other_health_text_is_unhealthy(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.set_health("d1", "healthy")
        await kubelet.wait_for_capacity(CORE, 3)


async def test_a_missing_device_lowers_both(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.devices.pop()
        plugin.news.set()
        assert await kubelet.wait_for_capacity(CORE, 3) == Capacity(3, 3)


async def test_a_duplicate_id_collapses_silently(directory: Path) -> None:
    async with node(directory, RawPlugin(["a", "b", "a"]), count=2) as (kubelet, _):
        assert kubelet.capacity(CORE) == Capacity(2, 2)


async def test_an_ended_stream_keeps_the_capacity_for_the_grace_and_is_never_opened_again(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(grace_seconds=0.05)) as (kubelet, plugin):
        plugin.end_stream()
        assert await kubelet.wait_for_capacity(CORE, 0) == Capacity(4, 0)
        await eventually(lambda: kubelet.capacity(CORE) == Capacity(0, 0))
        assert plugin.calls == ["options", "stream"]


async def test_waiting_in_vain_says_what_the_node_shows(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        with pytest.raises(TimeoutError, match=r"Capacity\(capacity=4, allocatable=4\) after 0.01 s"):
            await kubelet.wait_for_capacity(CORE, 5, timeout_seconds=0.01)


async def test_pod_status_shows_a_bad_device_as_unhealthy_and_an_absent_one_as_healthy(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0", "d1"]
        await kubelet.admit(pod("a", wants(2)))
        plugin.set_health("d0", "Unhealthy")
        await kubelet.wait_for_capacity(CORE, 3)
        assert kubelet.device_health("uid-a", "c") == {"d0": "Unhealthy", "d1": "Healthy"}
        del plugin.devices[0]
        plugin.news.set()
        await eventually(lambda: kubelet.capacity(CORE) == Capacity(3, 3))
        assert kubelet.device_health("uid-a", "c") == {"d0": "Healthy", "d1": "Healthy"}


# The book-keeping by name


async def test_when_an_old_stream_ends_the_newer_plugin_is_disconnected(directory: Path) -> None:
    newer = RawPlugin(["n0", "n1"])
    async with node(directory) as (kubelet, older), serving(newer, directory / "newer.sock"):
        await register(directory, "newer.sock")
        await kubelet.wait_for_capacity(CORE, 2)
        older.end_stream()
        assert await kubelet.wait_for_capacity(CORE, 0) == Capacity(2, 0)
        assert "no healthy devices present" in await rejection(kubelet, pod("a", wants(1)))


async def test_stop_wait_start_register_is_never_lost(directory: Path) -> None:
    async with node(directory) as (kubelet, older):
        older.end_stream()
        await kubelet.wait_for_capacity(CORE, 0)
        newer = RawPlugin(["n0", "n1"])
        async with serving(newer, directory / "newer.sock"):
            await register(directory, "newer.sock")
            assert await kubelet.wait_for_capacity(CORE, 2) == Capacity(2, 2)


async def test_a_failed_register_beside_a_live_one_makes_its_end_unnoticed(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(dial_seconds=0.05)) as (kubelet, plugin):
        await refusal(directory, "absent.sock")
        plugin.end_stream()
        await asyncio.sleep(0.05)
        assert kubelet.capacity(CORE) == Capacity(4, 4)


# Which devices


async def test_a_preference_of_the_asked_size_is_allocated_exactly(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d3", "d1"]
        admitted = await kubelet.admit(pod("a", wants(2)))
    assert plugin.preferences == [({"d0", "d1", "d2", "d3"}, set(), 2)]
    assert set(plugin.allocations[0]) == ids_of(admitted.container("c")) == {"d1", "d3"}


async def test_a_preference_is_asked_for_even_without_a_choice(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(4)))
    assert [size for _, _, size in plugin.preferences] == [4]


async def test_no_preference_is_asked_for_without_the_option(directory: Path) -> None:
    async with node(directory, RawPlugin(prefers=False)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2)))
    assert plugin.preferences == []
    assert len(plugin.allocations[0]) == 2


async def test_a_preference_too_long_is_cut_at_random(directory: Path) -> None:
    seen = set()
    for seed in range(12):
        async with node(directory, seed=seed) as (kubelet, plugin):
            plugin.preference = ["d0", "d1", "d2", "d3"]
            seen.add(frozenset(ids_of((await kubelet.admit(pod("a", wants(2)))).container("c"))))
    assert len(seen) > 2


async def test_a_preference_too_short_is_filled_up_at_random(directory: Path) -> None:
    seen = set()
    for seed in range(8):
        async with node(directory, seed=seed) as (kubelet, plugin):
            plugin.preference = ["d2"]
            got = ids_of((await kubelet.admit(pod("a", wants(2)))).container("c"))
            assert "d2" in got
            seen.add(frozenset(got))
    assert len(seen) > 1


async def test_unknown_and_unavailable_ids_of_a_preference_are_dropped(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0"]
        await kubelet.admit(pod("a", wants(1)))
        plugin.preference = ["d0", "ghost", "d2"]
        assert ids_of((await kubelet.admit(pod("b", wants(1)))).container("c")) == {"d2"}


async def test_ids_come_in_random_order(directory: Path) -> None:
    orders = set()
    for seed in range(8):
        async with node(directory, seed=seed) as (kubelet, plugin):
            await kubelet.admit(pod("a", wants(4)))
            orders.add(tuple(plugin.allocations[0]))
    assert len(orders) > 2


async def test_too_few_free_devices_reject_the_pod_with_both_numbers(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        await kubelet.admit(pod("a", wants(3)))
        text = await rejection(kubelet, pod("b", wants(2)))
    assert text == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{CORE}. Requested: 2, Available: 1, which is unexpected"
    )


async def test_a_resource_no_plugin_ever_registered_is_not_looked_at(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet:
        admitted = await kubelet.admit(pod("a", wants(2)))
    assert admitted.container("c").ids == {}
    assert admitted.container("c").waiting is None


async def test_an_error_of_the_preference_rejects_the_pod_and_leaks_nothing(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference_error = "thinking failed"
        text = await rejection(kubelet, pod("a", wants(2)))
        plugin.preference_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = Internal desc = thinking failed, which is unexpected"
    )


async def test_an_error_of_allocate_rejects_the_pod_and_restores_the_devices(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.allocate_error = "held by ns/b"
        text = await rejection(kubelet, pod("a", wants(4)))
        plugin.allocate_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = held by ns/b, "
        "which is unexpected"
    )


async def test_an_answer_without_containers_leaks_the_devices_until_another_pod_is_removed(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("other", wants(1)))
        plugin.answers = 0
        assert "no containers return in allocation response" in await rejection(kubelet, pod("a", wants(2)))
        plugin.answers = 1
        assert "Requested: 3, Available: 1" in await rejection(kubelet, pod("b", wants(3)))
        kubelet.finish("uid-other")
        await kubelet.admit(pod("c", wants(4)))


async def test_numa_affinity_prefers_aligned_devices_and_asks_only_where_there_is_a_choice(directory: Path) -> None:
    plugin = RawPlugin()
    for index, device in enumerate(plugin.devices):
        device.topology.nodes.add(ID=index // 2)
    async with node(directory, plugin, options=KubeletOptions(numa_affinity=frozenset({1}))) as (kubelet, _):
        aligned = await kubelet.admit(pod("a", wants(1)))
        assert ids_of(aligned.container("c")) < {"d2", "d3"}
        assert plugin.preferences == [({"d2", "d3"}, set(), 1)]
        kubelet.finish("uid-a")
        both = await kubelet.admit(pod("b", wants(2)))
        assert ids_of(both.container("c")) == {"d2", "d3"}
        kubelet.finish("uid-b")
        three = await kubelet.admit(pod("c", wants(3)))
        assert ids_of(three.container("c")) > {"d2", "d3"}
    assert plugin.preferences[1:] == [({"d0", "d1", "d2", "d3"}, {"d2", "d3"}, 3)]


async def test_numa_affinity_fills_a_preference_too_short_from_the_aligned_devices(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.preference = []
    for index, device in enumerate(plugin.devices):
        device.topology.nodes.add(ID=index // 2)
    async with node(directory, plugin, options=KubeletOptions(numa_affinity=frozenset({1}))) as (kubelet, _):
        assert ids_of((await kubelet.admit(pod("a", wants(1)))).container("c")) < {"d2", "d3"}


# Init containers


async def test_an_app_container_smaller_than_the_init_container_gets_a_part_without_being_asked(
    directory: Path,
) -> None:
    parts = set()
    for seed in range(8):
        async with node(directory, seed=seed) as (kubelet, plugin):
            plugin.preference = ["d1", "d2"]
            admitted = await kubelet.admit(pod("a", wants(2, "i", INIT), wants(1)))
            assert ids_of(admitted.container("c")) < {"d1", "d2"}
            assert len(plugin.preferences) == 1
            assert len(plugin.allocations) == 2
            parts |= ids_of(admitted.container("c"))
    assert parts == {"d1", "d2"}


async def test_an_app_container_larger_than_the_init_container_must_include_its_devices(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d2"]
        candidate = pod("a", wants(1, "i", INIT), wants(3))
        plugin.preference = None
        await kubelet.admit(candidate)
    assert plugin.preferences[1] == ({"d0", "d1", "d2", "d3"}, {"d0"}, 3)


async def test_p74_init_and_sidecar_share_and_the_app_has_another(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        admitted = await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1, "s", SIDECAR), wants(1)))
    init, sidecar, app = (ids_of(each) for each in admitted.containers)
    assert init == sidecar
    assert app.isdisjoint(sidecar)


async def test_the_same_id_is_allocated_to_several_containers_of_one_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2, "i", INIT), wants(1, "s", SIDECAR), wants(1, "x"), wants(2, "y")))
    taken = [set(ids) for ids in plugin.allocations]
    assert len(taken) == 4
    assert taken[1] < taken[0]
    assert set.union(*taken[1:]) == {"d0", "d1", "d2", "d3"}


# What a container receives


async def test_a_container_receives_all_the_plugin_answered(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0", "d1"]
        received = (await kubelet.admit(pod("a", wants(2)))).container("c")
    assert received.envs == {"IDS": "d0,d1"}
    assert {node.host_path for node in received.devices} == {"/dev/d0", "/dev/d1"}
    assert {node.permissions for node in received.devices} == {"rw"}
    assert set(received.cdi_devices) == {"example.com/dummy=d0", "example.com/dummy=d1"}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in received.mounts] == [
        ("/h", "/c", True)
    ]
    assert received.annotations == {"by": "plugin"}


async def test_two_resources_that_set_one_variable_flip_between_starts(directory: Path) -> None:
    other = RawPlugin(["e0"])
    other.envs = {"WHO": "other"}
    async with node(directory) as (kubelet, plugin), serving(other, directory / "other.sock"):
        plugin.envs = {"WHO": "plugin"}
        await register(directory, "other.sock", DEVICE)
        await kubelet.wait_for_capacity(DEVICE, 1)
        await kubelet.admit(pod("a", Container("c", {CORE: 1, DEVICE: 1})))
        values = {(await kubelet.start_container("uid-a", "c")).envs["WHO"] for _ in range(20)}
    assert values == {"plugin", "other"}


# Starts and restarts of containers


async def test_a_container_restart_has_the_same_devices_and_no_allocate(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        first = (await kubelet.admit(pod("a", wants(2)))).container("c")
        kubelet.stop_container("uid-a", "c")
        again = await kubelet.start_container("uid-a", "c")
        assert again == first
        other = await kubelet.admit(pod("b", wants(2)))
        assert ids_of(other.container("c")).isdisjoint(ids_of(first))
    assert len(plugin.allocations) == 2
    assert plugin.starts == []


async def test_pre_start_comes_before_every_start_if_asked_for(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    async with node(directory, plugin) as (kubelet, _):
        await kubelet.admit(pod("a", wants(2)))
        await kubelet.start_container("uid-a", "c")
    assert [sorted(ids) for ids in plugin.starts] == [["d0", "d1"]] * 2


async def test_a_failed_pre_start_holds_the_container_and_fails_no_pod(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    plugin.start_error = "reset under way"
    async with node(directory, plugin) as (kubelet, _):
        held = (await kubelet.admit(pod("a", wants(1)))).container("c")
        plugin.start_error = None
        started = await kubelet.start_container("uid-a", "c")
        assert kubelet.rejections == {}
    assert held.waiting == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = reset under way"
    )
    assert started.waiting is None


async def test_a_restart_with_the_plugin_away_works_only_without_pre_start(directory: Path) -> None:
    for required in (False, True):
        plugin = RawPlugin()
        plugin.options.pre_start_required = required
        async with node(directory, plugin) as (kubelet, _):
            await kubelet.admit(pod("a", wants(1)))
            plugin.end_stream()
            await kubelet.wait_for_capacity(CORE, 0)
            waiting = (await kubelet.start_container("uid-a", "c")).waiting
        assert ("has been stopped" in (waiting or "")) is required


async def test_after_the_grace_a_restart_fails_even_without_pre_start(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(grace_seconds=0.02)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(1)))
        plugin.end_stream()
        await eventually(lambda: kubelet.capacity(CORE) == Capacity(0, 0))
        held = await kubelet.start_container("uid-a", "c")
        assert "cannot allocate unregistered device" in await rejection(kubelet, pod("b", wants(1)))
    assert held.waiting == f"endpoint not found in cache for a registered resource: {CORE}"


# Admission and freeing


async def test_admission_is_serial_a_slow_allocate_delays_every_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        slow = asyncio.create_task(kubelet.admit(pod("slow", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plain = asyncio.create_task(kubelet.admit(pod("plain", Container("c"))))
        await asyncio.sleep(0.02)
        assert not plain.done()
        plugin.gate.set()
        await asyncio.gather(slow, plain)


async def test_devices_of_an_ended_pod_come_free_at_the_next_allocation(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        await kubelet.admit(pod("a", wants(4)))
        kubelet.finish("uid-a")
        assert len(ids_of((await kubelet.admit(pod("b", wants(4)))).container("c"))) == 4


async def test_a_rejected_pods_earlier_containers_come_free_too(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        assert "Requested: 3, Available: 2" in await rejection(kubelet, pod("a", wants(2, "x"), wants(3, "y")))
        await kubelet.admit(pod("b", wants(4)))


async def test_a_changed_request_of_a_known_container_is_rejected(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1)))
        text = await rejection(kubelet, pod("a", wants(2)))
    assert f'pod "uid-a" container "c" changed request for resource "{CORE}" from 1 to 2' in text


async def test_a_stream_that_ends_under_an_allocate_rejects_the_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plugin.end_stream()
        with pytest.raises(PodRejectedError, match="code = Canceled"):
            await admission
        plugin.gate.set()


# The kubelet's own restarts


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_start_wipes_sockets_directly_in_the_directory_and_nothing_else(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    for path in (directory / "stray.sock", directory / "sub" / "kept.sock", directory / SOCKET_NAME):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with StandInKubelet(directory):
        names = names_in(directory)
    assert names == ["kubelet.sock", "kubelet_internal_checkpoint", "sub"]
    assert (directory / "sub" / "kept.sock").is_socket()


async def test_a_stopped_kubelet_leaves_a_dead_socket_behind(directory: Path) -> None:
    async with StandInKubelet(directory):
        pass
    assert (directory / SOCKET_NAME).is_socket()
    with pytest.raises(grpc.aio.AioRpcError, match="Connection refused"):
        await register(directory, "e")


async def test_a_restart_remembers_allocations_and_forgets_plugins(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        before = (await kubelet.admit(pod("a", wants(3)))).container("c")
        await kubelet.restart()
        assert kubelet.capacity(CORE) == Capacity(0, 0)
        assert kubelet.rejections == {}
        async with serving(plugin_again := RawPlugin(), directory / "again.sock"):
            await register(directory, "again.sock")
            await kubelet.wait_for_capacity(CORE, 4)
            assert await kubelet.start_container("uid-a", "c") == before
            assert "Requested: 2, Available: 1" in await rejection(kubelet, pod("b", wants(2)))
        assert plugin_again.allocations == []
    assert len(plugin.allocations) == 1


async def test_a_pod_with_a_stopped_container_dies_if_the_plugin_is_not_back(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1)))
        await kubelet.admit(pod("b", wants(1)))
        kubelet.stop_container("uid-a", "c")
        await kubelet.restart()
        assert list(kubelet.rejections) == ["uid-a"]
        assert "no healthy devices present; cannot allocate unhealthy devices" in str(kubelet.rejections["uid-a"])


async def test_a_pod_with_devices_in_init_and_app_dies_as_well(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1)))
        await kubelet.restart()
        assert list(kubelet.rejections) == ["uid-a"]


async def test_a_stopped_container_whose_device_went_bad_is_refused_at_the_restart(directory: Path) -> None:
    plugin = RawPlugin()
    kubelet = StandInKubelet(directory, options=KubeletOptions(sync_delay=0.3))
    async with kubelet, serving(plugin, directory / "plugin.sock"):
        await register(directory, "plugin.sock")
        await kubelet.wait_for_capacity(CORE, 4)
        plugin.preference = ["d0"]
        await kubelet.admit(pod("a", wants(1)))
        kubelet.stop_container("uid-a", "c")
        plugin.set_health("d0", "Unhealthy")
        await kubelet.stop()
        restart = asyncio.create_task(kubelet.start())
        async with serving(second := RawPlugin(), directory.parent / f"{directory.name}-second.sock"):
            second.devices[0].health = "Unhealthy"
            await eventually(lambda: is_served(directory / SOCKET_NAME))
            await register(directory, f"../{directory.name}-second.sock")
            await restart
    assert "previously allocated devices are no longer healthy" in str(kubelet.rejections["uid-a"])


async def test_p73_a_pod_deleted_while_the_kubelet_is_down_leaves_nothing_assigned(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        await kubelet.admit(pod("a", wants(4)))
        await kubelet.stop()
        kubelet.finish("uid-a")
        await kubelet.start()
        async with serving(RawPlugin(), directory / "again.sock"):
            await register(directory, "again.sock")
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.admit(pod("b", wants(4)))
