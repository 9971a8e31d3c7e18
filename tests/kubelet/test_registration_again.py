"""What ends a registration (the kubelet, or changes in its directory), and the next one that follows (P8 to P12)."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.device_plugin import DevicePluginService
from neuron_plugin.kubelet.registration import RegistrationState, RegistrationTimes
from neuron_plugin.kubelet.socket_watch import identity_of
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from tests.kubelet.fakes import CORE, DEVICE, QUICK, eventually, running_plugin
from tests.kubelet.registering import ScriptedRegistration, advertised_again, scripted_kubelet, sockets_of
from tests.support.kubelet import KubeletOptions, StandInKubelet

State = RegistrationState


async def test_p8_a_recreated_kubelet_sock_is_answered_at_once_for_every_resource(directory: Path) -> None:
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
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory, times=times, watch_seconds=60) as plugin:
        await plugin.observer.until(lambda: plugin.server.state is State.BACKING_OFF)
        async with StandInKubelet(directory) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4, timeout_seconds=2)


async def test_p8_a_new_kubelet_sock_that_does_not_listen_yet_is_tried_again_soon(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there from bind(2) on, so its identity says nothing about the listen(2) that follows."""

    class LongUnlessReset:
        def __init__(self, *_: object, **_named: object) -> None:
            self.delay = 60.0

        def next_seconds(self) -> float:
            return self.delay

        def reset(self) -> None:
            self.delay = 0.01

    monkeypatch.setattr("neuron_plugin.kubelet.registration.Backoff", LongUnlessReset)
    path = directory / KUBELET_SOCKET
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as not_yet:
        dead.bind(str(path))
        async with running_plugin(directory, watch_seconds=60) as plugin:
            await plugin.observer.until(lambda: plugin.server.state is State.BACKING_OFF)
            path.unlink()
            not_yet.bind(str(path))
            await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 4)


async def test_p6_readiness_falls_with_the_kubelet_and_comes_back_with_it(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        await kubelet.stop()
        await eventually(lambda: not plugin.server.registered.is_set())
        assert plugin.server.state is not State.ADVERTISED
        await kubelet.start()
        await asyncio.wait_for(plugin.server.registered.wait(), 5)


async def test_p8_it_is_back_before_the_first_pod_is_admitted_again(directory: Path) -> None:
    pod = KubeletPod("uid", "ns", "pod", (KubeletContainer("c", {CORE: 2}),))
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
        path.write_text("of another program")
        await advertised_again(kubelet, plugin, 2)
        assert path.read_text() == "of another program"


async def test_p10_a_stream_the_kubelet_ended_means_a_new_registration_from_a_fresh_server(directory: Path) -> None:
    times = RegistrationTimes(stream_deadline=60, settled=0, first_delay=0.02)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, times=times) as plugin:
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


async def test_p11_a_hung_kubelet_replaced_by_another_is_not_waited_for(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    waiting = asyncio.Event()

    async def hang(_request: pb.RegisterRequest) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with scripted_kubelet(directory, ScriptedRegistration(during=hang)), running_plugin(directory) as plugin:
        await asyncio.wait_for(waiting.wait(), 5)
        (directory / KUBELET_SOCKET).unlink()
        kubelet = StandInKubelet(directory)
        await kubelet.start()
        await advertised_again(kubelet, plugin, 1)
        await kubelet.stop()
    cues = [record.__dict__["cue"] for record in caplog.records if record.message == "registration ended"]
    assert "recreated or removed" in cues[0]
    assert plugin.observer.registrations[0] is None, "a Register call given up is no failure"


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


async def test_p11_a_directory_behind_a_symbolic_link_is_followed_by_events(directory: Path) -> None:
    real, link = directory / "real", directory / "link"
    real.mkdir()
    link.symlink_to(real)
    async with StandInKubelet(real) as kubelet, running_plugin(link, watch_seconds=60) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.restart()
        await advertised_again(kubelet, plugin, 2)


async def test_p11_a_symbolic_link_turned_to_another_directory_is_noticed_by_the_clock(directory: Path) -> None:
    first, second, link = directory / "first", directory / "second", directory / "link"
    first.mkdir()
    second.mkdir()
    link.symlink_to(first)
    async with (
        StandInKubelet(first) as old,
        StandInKubelet(second) as new,
        running_plugin(link, watch_seconds=0.05) as plugin,
    ):
        await old.wait_for_capacity(CORE, 4)
        link.unlink()
        link.symlink_to(second)
        await advertised_again(new, plugin, 1)
        await old.wait_for_capacity(CORE, 0)
        assert sockets_of(second) == [second / path.name for path in sockets_of(link)]


async def test_p11_a_kubelet_sock_replaced_between_the_look_and_the_call_means_another_registration(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock, other = directory / KUBELET_SOCKET, directory / "other"
    looked = 0

    def replace(_directory: Path, _resource: str) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            other.hardlink_to(sock)  # the same socket with another ctime, so not the one that was looked at
            other.unlink()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.clear_strays", replace)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, watch_seconds=60) as plugin:
        await advertised_again(kubelet, plugin, 1)
        await plugin.observer.until(lambda: plugin.server.state is State.ADVERTISED)
        assert looked == 2
        assert len(sockets_of(directory)) == 1


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
    start, stop = DevicePluginService.start, DevicePluginService.stop

    async def logged_start(self: DevicePluginService, path: Path, *, watcher: None) -> None:
        events.append("start")
        await start(self, path, watcher=watcher)

    async def slow_stop(self: DevicePluginService) -> None:
        events.append("stop")
        await asyncio.sleep(0.1)
        await stop(self)
        events.append("stopped")

    monkeypatch.setattr(DevicePluginService, "start", logged_start)
    monkeypatch.setattr(DevicePluginService, "stop", slow_stop)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for count in range(2, 4):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
            await advertised_again(kubelet, plugin, count)
    assert events == ["start", "stop", "stopped"] * 3


async def test_p12_no_register_call_begins_before_the_last_one_has_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: set[object] = set()
    at_most: list[int] = []

    async def slow_to_end(*_: object) -> None:
        under_way.add(call := object())
        at_most.append(len(under_way))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)  # far longer than the back-off
            under_way.remove(call)

    monkeypatch.setattr("neuron_plugin.kubelet.registration.register", slow_to_end)
    async with StandInKubelet(directory), running_plugin(directory):
        for calls in (1, 2):
            await eventually(lambda wanted=calls: len(at_most) == wanted)  # type: ignore[misc]  # a default binds the loop's value
            sockets_of(directory)[0].unlink()
        await eventually(lambda: len(at_most) == 3)
    assert at_most == [1, 1, 1]


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
