from __future__ import annotations

import asyncio
import shutil
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.channels import channel_to
from neuron_plugin.kubelet.observer import RegistrationState
from neuron_plugin.kubelet.registration import DevicePluginServer, RegistrationTimes
from neuron_plugin.kubelet.server import ServerInstance
from neuron_plugin.kubelet.service import DevicePluginService, ServiceOptions
from neuron_plugin.kubelet.sockets import endpoint_path, endpoint_prefix, identity_of
from neuron_plugin.kubelet.watch import DirectoryWatch
from neuron_plugin.simulation.kubelet import SOCKET_NAME, KubeletOptions, StandInKubelet
from neuron_plugin.simulation.kubelet_pods import Container, Pod
from tests.kubelet.fakes import CORE, DEVICE, QUICK, FakeHandler, RunningPlugin, eventually, running_plugin, seeded

State = RegistrationState


def sockets_of(directory: Path, resource: str = CORE) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(endpoint_prefix(resource))]


def modes_of(directory: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in sockets_of(directory)]


async def advertised_again(kubelet: StandInKubelet, plugin: RunningPlugin, registrations: int) -> None:
    await eventually(lambda: kubelet.registration_count(CORE) >= registrations)
    await kubelet.wait_for_capacity(CORE, 4)
    assert not plugin.task.done()


@dataclass
class ScriptedRegistration(pb_grpc.RegistrationServicer):
    """A Registration service that answers as a test says, and keeps the requests."""

    requests: list[pb.RegisterRequest] = field(default_factory=list)
    refusal: str | None = None
    during: Callable[[pb.RegisterRequest], object] | None = None

    async def Register(  # noqa: N802 - the API's name
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        self.requests.append(request)
        if self.during is not None:
            outcome = self.during(request)
            if asyncio.iscoroutine(outcome):
                await outcome
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return pb.Empty()


@asynccontextmanager
async def scripted_kubelet(directory: Path, registration: ScriptedRegistration) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(registration, server)
    server.add_insecure_port(f"unix:{directory / SOCKET_NAME}")
    await server.start()
    yield
    await server.stop(None)


# The request


async def test_p1_the_request_names_version_file_resource_and_the_same_options_as_the_call(directory: Path) -> None:
    registration = ScriptedRegistration()
    async with scripted_kubelet(directory, registration), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: State.REGISTERED in plugin.observer.states)
        request = registration.requests[0]
        assert (request.version, request.resource_name) == ("v1beta1", CORE)
        assert "/" not in request.endpoint
        async with channel_to(directory / request.endpoint) as channel:
            options = await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        assert request.options == options == pb.DevicePluginOptions(get_preferred_allocation_available=True)


async def test_p2_options_are_answered_while_register_waits(directory: Path) -> None:
    answered: list[pb.DevicePluginOptions] = []

    async def dial_back(request: pb.RegisterRequest) -> None:
        async with channel_to(directory / request.endpoint) as channel:
            answered.append(await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=5))

    registration = ScriptedRegistration(during=dial_back)
    options = ServiceOptions(pre_start_required=True)
    async with scripted_kubelet(directory, registration), running_plugin(directory, options=options) as plugin:
        await plugin.observer.until(lambda: State.REGISTERED in plugin.observer.states)
        assert answered[0].pre_start_required
        assert answered[0] == registration.requests[0].options


# The usual way


async def test_a_registered_resource_is_advertised_and_says_so(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await asyncio.wait_for(plugin.server.registered.wait(), 5)
        await kubelet.wait_for_capacity(CORE, 4)
        assert plugin.server.state is State.ADVERTISED
        assert plugin.observer.states == [State.REGISTERING, State.REGISTERED, State.ADVERTISED]
        assert plugin.observer.registrations == [None]


async def test_the_socket_is_its_owners_alone(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        assert modes_of(directory) == [0o600]


async def test_without_a_kubelet_it_waits_and_binds_nothing(directory: Path) -> None:
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: State.WAITING in plugin.observer.states)
        assert sockets_of(directory) == []
        assert not plugin.server.registered.is_set()
        async with StandInKubelet(directory) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4)


async def test_without_a_directory_it_waits_for_one(directory: Path) -> None:
    plugins = directory / "device-plugins"
    async with running_plugin(plugins, watch_seconds=0.02) as plugin:
        await plugin.observer.until(lambda: State.WAITING in plugin.observer.states)
        plugins.mkdir()
        async with StandInKubelet(plugins) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4)


async def test_p3_strays_of_a_killed_predecessor_are_removed(directory: Path) -> None:
    kubelet = StandInKubelet(directory)
    await kubelet.start()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(endpoint_path(directory, CORE, "killed")))
    async with running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        assert sockets_of(directory) == [plugin.server.socket_path]
    await kubelet.stop()


async def test_p3_p12_a_second_plugin_for_the_resource_waits_until_the_first_is_gone(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as first:
        await first.server.registered.wait()
        async with running_plugin(directory, count=3) as second:
            await second.observer.until(lambda: State.BACKING_OFF in second.observer.states)
            assert kubelet.registration_count(CORE) == 1
            await first.server.stop()
            await kubelet.wait_for_capacity(CORE, 3)
    reasons = [record.__dict__.get("reason", "") for record in caplog.records]
    assert any("a second plugin offers" in reason for reason in reasons)


async def test_p3_a_file_at_the_very_path_is_left_alone_and_another_name_is_taken(directory: Path) -> None:
    token = f"{seeded(7).getrandbits(32):08x}"
    blocked = endpoint_path(directory, CORE, token)
    blocked.write_text("precious")
    async with StandInKubelet(directory), running_plugin(directory, random=seeded(7)) as plugin:
        await plugin.server.registered.wait()
        assert State.BACKING_OFF in plugin.observer.states
        assert plugin.server.socket_path != blocked
    assert blocked.read_text() == "precious"


# Refusals


async def test_p6_a_refused_registration_is_retried_with_the_kubelets_words_logged_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registration = ScriptedRegistration(refusal="the ResourceName is invalid")
    async with scripted_kubelet(directory, registration), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 3)
        assert not plugin.server.registered.is_set()
        assert not plugin.task.done()
    assert plugin.observer.registrations[0] == f"the kubelet refused {CORE}: the ResourceName is invalid"
    assert [record.message for record in caplog.records].count("not registered") == 1
    assert len({request.endpoint for request in registration.requests}) == len(registration.requests)


async def test_p6_a_resource_name_the_kubelet_does_not_take_never_ends_the_process(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory, "dummy") as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 2)
        assert not plugin.task.done()
    assert plugin.observer.registrations[0] == 'the kubelet refused dummy: the ResourceName "dummy" is invalid'


async def test_p6_nobody_behind_kubelet_sock_is_retried(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / SOCKET_NAME))
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 2)
        async with StandInKubelet(directory) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4)
    assert "Connection refused): is the kubelet running?" in (plugin.observer.registrations[0] or "")


async def test_p6_a_regular_file_named_kubelet_sock_is_no_kubelet(directory: Path) -> None:
    (directory / SOCKET_NAME).touch()
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: State.WAITING in plugin.observer.states)
        assert sockets_of(directory) == []


async def test_p7_no_stream_after_a_register_that_succeeded_means_a_new_socket_and_registration(
    directory: Path,
) -> None:
    registration = ScriptedRegistration()
    async with scripted_kubelet(directory, registration), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: plugin.observer.registrations.count(None) >= 2)
        assert not plugin.server.registered.is_set()
    first, second = (request.endpoint for request in registration.requests[:2])
    assert first != second
    assert not (directory / first).exists()


async def test_p14_one_resource_refused_does_not_touch_another(directory: Path) -> None:
    async with (
        StandInKubelet(directory) as kubelet,
        running_plugin(directory, "not-a-resource") as refused,
        running_plugin(directory, DEVICE) as accepted,
    ):
        await refused.observer.until(lambda: len(refused.observer.registrations) >= 3)
        await kubelet.wait_for_capacity(DEVICE, 4)
        assert accepted.observer.registrations == [None]


async def test_p14_an_accident_in_one_resource_is_logged_and_retried(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accidents = iter([OSError("no space left on device")])

    def clear(_directory: Path, _resource: str) -> Sequence[Path]:
        for accident in accidents:
            raise accident
        return []

    monkeypatch.setattr("neuron_plugin.kubelet.registration.clear_strays", clear)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
    assert "registration failed" in [record.message for record in caplog.records]


# What the kubelet does to us


async def test_p8_kubelet_sock_made_anew_is_answered_at_once_for_every_resource(directory: Path) -> None:
    """The goal is 100 ms; typically it takes under 20. The bound here leaves room for a busy machine."""
    resources = (CORE, DEVICE, "aws.amazon.com/neuron")
    async with (
        StandInKubelet(directory) as kubelet,
        running_plugin(directory, resources[0], watch_seconds=60, times=RegistrationTimes()),
        running_plugin(directory, resources[1], watch_seconds=60, times=RegistrationTimes()),
        running_plugin(directory, resources[2], watch_seconds=60, times=RegistrationTimes()),
    ):
        for resource in resources:
            await kubelet.wait_for_capacity(resource, 4)
        await kubelet.stop()
        await asyncio.sleep(0.3)  # long enough for a back-off to have begun
        begun = time.monotonic()
        await kubelet.start()
        for resource in resources:
            await kubelet.wait_for_capacity(resource, 4)
        assert time.monotonic() - begun < 2


async def test_p8_a_new_kubelet_sock_is_not_kept_waiting_by_a_back_off(directory: Path) -> None:
    times = RegistrationTimes(settled=0, first_delay=60, longest_delay=60)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / SOCKET_NAME))
    async with running_plugin(directory, times=times, watch_seconds=60) as plugin:
        await plugin.observer.until(lambda: plugin.server.state is State.BACKING_OFF)
        async with StandInKubelet(directory) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4, timeout_seconds=2)


async def test_p6_readiness_falls_with_the_kubelet_and_comes_back_with_it(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        await kubelet.stop()
        await eventually(lambda: not plugin.server.registered.is_set())
        assert plugin.server.state is not State.ADVERTISED
        await kubelet.start()
        await asyncio.wait_for(plugin.server.registered.wait(), 5)


async def test_p8_it_is_back_before_the_first_pod_is_admitted_again(directory: Path) -> None:
    pod = Pod("uid", "ns", "pod", (Container("c", {CORE: 2}),))
    options = KubeletOptions(sync_delay=1.0)
    async with StandInKubelet(directory, options=options) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
        held = (await kubelet.admit(pod)).containers[0].ids
        kubelet.stop_container("uid", "c")
        await kubelet.restart()
        assert kubelet.rejections == {}
        assert (await kubelet.start_container("uid", "c")).ids == held


async def test_p9_our_own_socket_deleted_means_a_new_registration(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        gone = plugin.server.socket_path
        assert gone is not None
        gone.unlink()
        await advertised_again(kubelet, plugin, 2)
        assert plugin.server.socket_path != gone


async def test_p9_our_own_socket_replaced_means_a_new_registration_and_the_other_is_left_alone(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        path = plugin.server.socket_path
        assert path is not None
        path.unlink()
        path.write_text("somebody else's")
        await advertised_again(kubelet, plugin, 2)
        assert path.read_text() == "somebody else's"


async def test_p10_a_stream_the_kubelet_ended_means_a_new_registration_from_a_fresh_server(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        before = plugin.server.socket_path
        await kubelet.disconnect(CORE)
        await advertised_again(kubelet, plugin, 2)
        assert plugin.server.socket_path not in (None, before)
        assert sockets_of(directory) == [plugin.server.socket_path]


async def test_p11_two_restarts_within_a_second(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.restart()
        await kubelet.restart()
        await advertised_again(kubelet, plugin, 2)


async def test_p11_a_restart_while_registering(directory: Path) -> None:
    waiting = asyncio.Event()

    async def hang(_request: pb.RegisterRequest) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with running_plugin(directory) as plugin:
        async with scripted_kubelet(directory, ScriptedRegistration(during=hang)):
            await asyncio.wait_for(waiting.wait(), 5)
        async with StandInKubelet(directory) as kubelet:
            await advertised_again(kubelet, plugin, 1)


async def test_p11_a_hung_kubelet_replaced_by_another_is_not_waited_for(directory: Path) -> None:
    waiting = asyncio.Event()

    async def hang(_request: pb.RegisterRequest) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with scripted_kubelet(directory, ScriptedRegistration(during=hang)), running_plugin(directory) as plugin:
        await asyncio.wait_for(waiting.wait(), 5)
        (directory / SOCKET_NAME).unlink()
        kubelet = StandInKubelet(directory)
        await kubelet.start()
        await advertised_again(kubelet, plugin, 1)
        await kubelet.stop()
    assert "made anew or removed" in (plugin.observer.registrations[0] or "")


async def test_p11_a_kubelet_away_for_long_is_met_when_it_returns(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.stop()
        await plugin.observer.until(lambda: len([each for each in plugin.observer.registrations if each]) >= 5)
        await kubelet.start()
        await advertised_again(kubelet, plugin, 2)


async def test_p11_a_replaced_directory_is_noticed_by_the_clock(directory: Path) -> None:
    plugins = directory / "device-plugins"
    plugins.mkdir()
    async with StandInKubelet(plugins) as kubelet, running_plugin(plugins, watch_seconds=0.05) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        shutil.move(plugins, directory / "old")
        plugins.mkdir()
        other = StandInKubelet(plugins)
        await other.start()
        await advertised_again(other, plugin, 1)
        await other.stop()
        shutil.rmtree(plugins)
        shutil.move(directory / "old", plugins)


async def test_p12_the_old_server_is_gone_before_the_new_registration_is_sent(directory: Path) -> None:
    others: list[list[str]] = []

    def look(request: pb.RegisterRequest) -> None:
        others.append([path.name for path in sockets_of(directory) if path.name != request.endpoint])

    registration = ScriptedRegistration(during=look)
    async with scripted_kubelet(directory, registration), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 4)
    assert others[:4] == [[], [], [], []]


async def test_p12_no_server_starts_before_the_last_one_has_stopped_fully(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    start, stop = ServerInstance.start, ServerInstance.stop

    async def logged_start(service: DevicePluginService, path: Path) -> ServerInstance:
        events.append("start")
        return await start(service, path)

    async def slow_stop(self: ServerInstance) -> None:
        events.append("stop")
        await asyncio.sleep(0.1)
        await stop(self)
        events.append("stopped")

    monkeypatch.setattr(ServerInstance, "start", logged_start)
    monkeypatch.setattr(ServerInstance, "stop", slow_stop)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for count in range(2, 4):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
            await advertised_again(kubelet, plugin, count)
    assert events == ["start", "stop", "stopped"] * 3


async def test_p12_capacity_survives_many_registrations_in_a_row(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for count in range(2, 8):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
            await advertised_again(kubelet, plugin, count)
        await asyncio.sleep(0.1)
        assert kubelet.capacity(CORE).allocatable == 4


async def test_pushing_each_other_out_slows_down(directory: Path) -> None:
    """Registrations that never settle back off, so two plugins cannot fight at full speed."""
    times = RegistrationTimes(settled=60, first_delay=0.05, longest_delay=30)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, times=times):
        begun = time.monotonic()
        for _ in range(4):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
        await kubelet.wait_for_capacity(CORE, 4)
        assert time.monotonic() - begun > (0.05 + 0.1 + 0.2 + 0.4) / 2


# Stopping


async def test_p13_stopping_ends_the_stream_and_removes_the_socket_quickly(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2
        assert sockets_of(directory) == []
        assert plugin.server.state is State.STOPPED
        await kubelet.wait_for_capacity(CORE, 0)
        assert kubelet.capacity(CORE).capacity == 4


async def test_p13_a_second_stop_is_harmless(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        await asyncio.gather(plugin.server.stop(), plugin.server.stop())
        await plugin.server.stop()


@pytest.mark.parametrize("state", [State.WAITING, State.BACKING_OFF])
async def test_p13_stopping_interrupts_every_wait(directory: Path, state: State) -> None:
    if state is State.BACKING_OFF:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(directory / SOCKET_NAME))
    times = RegistrationTimes(first_delay=60, longest_delay=60)
    async with running_plugin(directory, times=times, watch_seconds=60) as plugin:
        await plugin.observer.until(lambda: plugin.server.state is state)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2


async def test_p13_stopping_interrupts_a_register_call(directory: Path) -> None:
    waiting = asyncio.Event()

    async def hang(_request: pb.RegisterRequest) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with scripted_kubelet(directory, ScriptedRegistration(during=hang)), running_plugin(directory) as plugin:
        await asyncio.wait_for(waiting.wait(), 5)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2
    assert sockets_of(directory) == []


async def test_cancelling_run_tidies_up_as_stopping_does(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        plugin.task.cancel()
        await asyncio.gather(plugin.task, return_exceptions=True)
        assert plugin.task.cancelled()
        assert sockets_of(directory) == []
        assert plugin.server.state is State.STOPPED


async def test_a_server_that_never_ran_can_be_stopped_and_then_does_not_run(directory: Path) -> None:
    server = DevicePluginServer(CORE, FakeHandler(), Advertisement(), DirectoryWatch(directory))
    await server.stop()
    await asyncio.wait_for(server.run(), 5)
    assert server.state is State.STOPPED


async def test_stopping_lets_an_admission_finish_that_is_under_way(directory: Path) -> None:
    """The kubelet fails a pod for good if the stream ends between its preference and its Allocate, or during either."""
    release = asyncio.Event()

    async def slow(available: Sequence[str], _must: Sequence[str], size: int) -> Sequence[str]:
        await release.wait()
        return sorted(available, key=int)[:size]

    pod = Pod("uid", "ns", "pod", (Container("c", {CORE: 2}),))
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        plugin.handler.prefer = slow
        await kubelet.wait_for_capacity(CORE, 4)
        admission = asyncio.create_task(kubelet.admit(pod))
        await eventually(lambda: bool(plugin.handler.preferences))
        stopping = asyncio.create_task(plugin.server.stop())
        await asyncio.sleep(0.02)
        assert kubelet.capacity(CORE).allocatable == 4
        release.set()
        assert (await admission).containers[0].ids == {CORE: ("0", "1")}
        await stopping
        await kubelet.wait_for_capacity(CORE, 0)


async def test_every_life_has_a_socket_name_of_its_own(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, times=QUICK) as plugin:
        seen = set()
        for count in range(1, 5):
            await advertised_again(kubelet, plugin, count)
            path = plugin.server.socket_path
            assert path is not None
            assert identity_of(path) is not None
            seen.add(path)
            await kubelet.disconnect(CORE)
    assert len(seen) == 4


async def test_p13_a_cancellation_is_not_lost_while_a_register_call_is_being_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, given_up, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_close(*_: object) -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
            await closed.wait()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.announce", slow_to_close)
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await asyncio.wait_for(called.wait(), 5)
        sockets_of(directory)[0].unlink()
        await asyncio.wait_for(given_up.wait(), 5)
        plugin.task.cancel()
        await asyncio.sleep(0)
        closed.set()
        await asyncio.wait({plugin.task}, timeout=5)
        assert plugin.task.cancelled()
