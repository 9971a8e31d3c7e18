from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.registration import RegistrationState
from neuron_plugin.kubelet.socket_watch import channel_to, endpoint_path
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from tests.kubelet.fakes import CORE, DEVICE, QUICK, eventually, running_plugin, seeded
from tests.kubelet.registering import ScriptedRegistration, modes_of, scripted_kubelet, sockets_of
from tests.support.kubelet import StandInKubelet

State = RegistrationState


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
    async with scripted_kubelet(directory, registration), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: State.REGISTERED in plugin.observer.states)
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
            await second.observer.until(lambda: second.observer.states.count(State.BACKING_OFF) >= 2)
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


async def test_a_kubelet_that_listens_after_the_first_attempt_is_worth_no_warning(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: plugin.server.failure is not None)
        async with StandInKubelet(directory):
            await plugin.observer.until(plugin.server.registered.is_set)
    assert plugin.observer.counters.registrations[CORE, "failed"] == 1
    assert "not registered" not in caplog.messages


@pytest.mark.parametrize(("patience", "warnings"), [(0.0, 1), (60.0, 0)], ids=["that last", "that do not last"])
async def test_attempts_that_fail_are_worth_a_warning_only_if_they_last(
    directory: Path, caplog: pytest.LogCaptureFixture, patience: float, warnings: int
) -> None:
    """A kubelet that restarts is back within some tenths of a second, and each resource of each node would say so."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory, times=replace(QUICK, patience=patience)) as plugin:
        await plugin.observer.until(lambda: plugin.observer.counters.registrations[CORE, "failed"] >= 3)
    assert caplog.messages.count("not registered") == warnings


async def test_the_reason_of_a_failure_is_readable_until_the_resource_is_advertised(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: plugin.server.failure is not None)
        assert "is the kubelet running?" in (plugin.server.failure or "")
        assert plugin.observer.counters.registrations[CORE, "failed"] >= 1
        async with StandInKubelet(directory):
            await plugin.observer.until(plugin.server.registered.is_set)
            assert plugin.server.failure is None
            assert plugin.observer.counters.registrations[CORE, "accepted"] == 1


async def test_a_rewrite_reaches_the_kubelet_as_a_message_with_the_same_devices(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        checkpoint = directory / "kubelet_internal_checkpoint"
        before = checkpoint.stat().st_ino
        plugin.advertisement.rewrite()
        await eventually(lambda: checkpoint.stat().st_ino != before)
        assert kubelet.capacity(CORE).allocatable == 4


async def test_p6_a_resource_name_the_kubelet_does_not_take_never_ends_the_process(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory, "dummy") as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 2)
        assert not plugin.task.done()
    assert plugin.observer.registrations[0] == 'the kubelet refused dummy: the ResourceName "dummy" is invalid'


async def test_p6_a_kubelet_sock_that_is_not_served_is_retried(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 2)
        async with StandInKubelet(directory) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4)
    assert "Connection refused): is the kubelet running?" in (plugin.observer.registrations[0] or "")


async def test_p6_the_same_failure_is_logged_again_after_a_success(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> int:
        reasons = [record.__dict__.get("reason", "") for record in caplog.records]
        return sum("Connection refused" in reason for reason in reasons)

    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for outages in (1, 2):
            await plugin.observer.until(lambda: plugin.server.state is State.ADVERTISED)
            await kubelet.stop()
            await eventually(lambda wanted=outages: refusals() >= wanted)  # type: ignore[misc]  # a default binds the loop's value
            await kubelet.start()


async def test_p6_a_regular_file_named_kubelet_sock_is_no_kubelet(directory: Path) -> None:
    (directory / KUBELET_SOCKET).touch()
    async with running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: State.WAITING in plugin.observer.states)
        assert sockets_of(directory) == []


async def test_p7_no_stream_after_a_register_that_succeeded_means_a_new_socket_and_registration(
    directory: Path,
) -> None:
    registration = ScriptedRegistration()
    async with scripted_kubelet(directory, registration), running_plugin(directory, watch_seconds=60) as plugin:
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


@pytest.mark.parametrize(
    ("accident", "message", "times"),
    [(KeyError("a bug"), "registration failed", 3), (OSError(28, "No space left on device"), "not registered", 1)],
)
async def test_p14_an_accident_in_one_resource_is_logged_and_retried(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    accident: Exception,
    message: str,
    times: int,
) -> None:
    accidents = [accident] * 3

    def clear(_directory: Path, _resource: str) -> None:
        if accidents:
            raise accidents.pop()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.clear_strays", clear)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
    assert caplog.messages.count(message) == times


async def test_p14_a_directory_that_takes_no_socket_is_logged_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt has a socket name of its own, which is no news."""
    monkeypatch.setattr(
        "neuron_plugin.kubelet.registration.endpoint_path",
        lambda parent, resource, token: endpoint_path(parent / "absent", resource, token),
    )
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: plugin.observer.states.count(State.BACKING_OFF) >= 3)
    (logged,) = (record for record in caplog.records if record.message == "not registered")
    assert logged.__dict__["reason"].startswith(f"no socket can be made in {directory}/absent: is it writable")


WITHOUT_DESCRIPTORS = """
import asyncio, logging, os, pathlib, resource, sys
from tests.support.kubelet import StandInKubelet
from tests.kubelet.fakes import CORE, running_plugin

class Reasons(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), getattr(record, "reason", ""), sep=": ")

def take_all(taken):
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

async def main():
    logging.getLogger("neuron_plugin.kubelet").addHandler(Reasons())
    directory, taken = pathlib.Path(sys.argv[1]), []
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, most))
        take_all(taken)
        plugin.server.socket_path.unlink()
        while [state.name for state in plugin.observer.states].count("BACKING_OFF") < 4:
            take_all(taken)
            await asyncio.sleep(0.01)
        for each in taken:
            os.close(each)
        await asyncio.wait_for(plugin.server.registered.wait(), 20)
        await kubelet.wait_for_capacity(CORE, 4)
        print("back", plugin.server.state.name, sep=": ")

asyncio.run(main())
"""


def test_a_process_without_file_descriptors_says_so_once_and_is_back_when_it_has_some(directory: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)  # noqa: S603 - our own interpreter and text
    printed = done.stdout.splitlines()
    assert printed == [f"not registered: [Errno 24] Too many open files: '{directory}'", "back: ADVERTISED"], (
        done.stderr
    )
