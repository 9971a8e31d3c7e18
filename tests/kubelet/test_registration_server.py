"""One server instance, the Register call, and the dial of a liveness probe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.device_plugin import OPTIONS, DevicePluginService
from neuron_plugin.kubelet.registration import REGISTER_DEADLINE_SECONDS, RegistrationError, dial, register
from neuron_plugin.kubelet.socket_watch import LONGEST_PATH_BYTES, EndpointError, channel_to, endpoint_path
from tests.kubelet.fakes import CORE, FakeHandler, devices, eventually, running_plugin
from tests.kubelet.registering import ScriptedRegistration, scripted_kubelet


async def start(path: Path, count: int = 2) -> DevicePluginService:
    service = DevicePluginService(CORE, FakeHandler(), Advertisement(devices(count)))
    await service.start(path)
    return service


async def test_a_started_server_answers_on_a_private_socket(directory: Path) -> None:
    before = os.umask(0o022)
    try:
        server = await start(directory / "s")
        assert stat.S_IMODE((directory / "s").stat().st_mode) == 0o600
        assert os.umask(0o022) == 0o022  # ours is back
    finally:
        os.umask(before)
    assert server.is_reachable()
    async with channel_to(directory / "s") as channel:
        options = await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=5)
    assert options.get_preferred_allocation_available
    await server.stop()


@pytest.mark.parametrize(("name", "said"), [("file", ""), ("absent/s", r" in .*/absent: is it writable")])
async def test_p3_a_path_that_takes_no_socket_is_a_clear_error(directory: Path, name: str, said: str) -> None:
    (directory / "file").touch()
    with pytest.raises(EndpointError, match=f"no socket can be made{said}"):
        await start(directory / name)


async def test_p4_the_longest_path_that_passes_can_be_served(directory: Path) -> None:
    short = endpoint_path(directory, CORE, "t")
    deep = directory / ("d" * (LONGEST_PATH_BYTES - len(os.fsencode(short)) - 1))
    deep.mkdir()
    path = endpoint_path(deep, CORE, "t")
    assert len(os.fsencode(path)) == LONGEST_PATH_BYTES
    server = await start(path)
    async with channel_to(path) as channel:
        await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=5)
    await server.stop()


async def test_p13_stop_is_quick_with_a_stream_that_is_not_read(directory: Path) -> None:
    server = await start(directory / "s", count=128)
    advertisement = server.advertisement
    async with channel_to(directory / "s") as channel:
        stream = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
        await stream.read()
        for unhealthy in range(100):  # until the flow control window is full
            advertisement.publish(devices(128, unhealthy))
            await asyncio.sleep(0)
        begun = time.monotonic()
        await server.stop()
        assert time.monotonic() - begun < 2
        stream.cancel()


# Register


async def test_p1_an_accepted_register_call_names_version_endpoint_and_resource(directory: Path) -> None:
    kubelet = ScriptedRegistration()
    async with scripted_kubelet(directory, kubelet):
        await register(directory / "e.sock", CORE)
    expected = pb.RegisterRequest(version="v1beta1", endpoint="e.sock", resource_name=CORE, options=OPTIONS)
    assert kubelet.requests == [expected]


async def test_a_kubelet_that_is_away_is_an_error_that_says_what_to_look_at(directory: Path) -> None:
    with pytest.raises(RegistrationError, match=r"no kubelet answers on .*\(No such file or directory\): is"):
        await register(directory / "e.sock", CORE)


async def test_no_answer_in_time_says_how_long_it_waited(directory: Path) -> None:
    within = r"did not answer Register of aws.amazon.com/neuroncore within 0.05 s"
    async with scripted_kubelet(directory, ScriptedRegistration(during=lambda _: asyncio.Event().wait())):
        with pytest.raises(RegistrationError, match=within):
            await register(directory / "e.sock", CORE, deadline_seconds=0.05)


def test_the_deadline_lies_beyond_the_kubelets_own_dial_of_10_seconds() -> None:
    assert REGISTER_DEADLINE_SECONDS > 10


# Dial


@contextlib.asynccontextmanager
async def silent(path: Path) -> AsyncIterator[None]:
    """Somebody who takes calls and never answers."""

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_unix_server(hold, path)
    yield
    over.set()
    server.close()


async def test_p78_a_served_socket_answers_even_before_the_kubelet_is_there(directory: Path) -> None:
    async with silent(directory / "kubelet.sock"), running_plugin(directory) as plugin:
        await eventually(lambda: plugin.server.socket_path is not None)
        assert plugin.server.socket_path
        assert await dial(plugin.server.socket_path, 5) is None


async def test_p78_a_socket_without_a_file_or_an_answer_is_a_fault(directory: Path) -> None:
    assert "No such file" in (await dial(directory / "gone.sock", 5) or "")
    async with silent(directory / "silent.sock"):
        assert await dial(directory / "silent.sock", 0.1) == "no answer within 0.1 s"
