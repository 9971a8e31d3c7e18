from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.channels import channel_to
from neuron_plugin.kubelet.server import ServerInstance
from neuron_plugin.kubelet.service import DevicePluginService
from neuron_plugin.kubelet.sockets import LONGEST_PATH_BYTES, EndpointError, endpoint_path, is_served
from tests.kubelet.fakes import CORE, FakeHandler, FakeObserver, devices


async def start(path: Path, count: int = 2) -> ServerInstance:
    service = DevicePluginService(CORE, FakeHandler(), Advertisement(devices(count)), observer=FakeObserver())
    return await ServerInstance.start(service, path)


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


async def test_p3_a_live_socket_is_not_stolen(directory: Path) -> None:
    first = await start(directory / "s")
    with pytest.raises(EndpointError, match="served by another process"):
        await start(directory / "s")
    assert first.is_reachable()
    assert is_served(directory / "s")
    await first.stop()


async def test_p3_a_regular_file_is_a_clear_error(directory: Path) -> None:
    (directory / "s").touch()
    with pytest.raises(EndpointError, match="is not a socket"):
        await start(directory / "s")


async def test_a_directory_that_is_not_there_is_a_clear_error(directory: Path) -> None:
    with pytest.raises(EndpointError, match=r"no socket can be made in .*/absent: is it writable"):
        await start(directory / "absent" / "s")


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


async def test_p5_stop_removes_the_socket_and_may_be_called_twice(directory: Path) -> None:
    server = await start(directory / "s")
    await server.stop()
    assert not (directory / "s").exists()
    await server.stop()


async def test_p5_an_old_servers_stop_leaves_a_newer_ones_socket(directory: Path) -> None:
    old = await start(directory / "old")
    new = await start(directory / "new")
    await old.stop()
    assert new.is_reachable()
    await new.stop()


async def test_p9_a_removed_or_replaced_socket_is_unreachable(directory: Path) -> None:
    server = await start(directory / "s")
    (directory / "s").unlink()
    assert not server.is_reachable()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(directory / "s"))
        assert not server.is_reachable()
    await server.stop()


async def test_p13_stop_is_quick_with_a_stream_nobody_reads(directory: Path) -> None:
    server = await start(directory / "s", count=128)
    advertisement = server.service._advertisement
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


async def test_a_client_after_the_stop_finds_nobody(directory: Path) -> None:
    await (await start(directory / "s")).stop()
    async with channel_to(directory / "s") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=5)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
