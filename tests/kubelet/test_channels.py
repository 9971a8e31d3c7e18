from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.channels import channel_to

SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame, with which an HTTP/2 server begins (RFC 9113, 6.5)


async def test_the_authority_is_localhost_and_not_the_path_which_some_servers_refuse(directory: Path) -> None:
    heads: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await heads.put(await reader.readuntil(b"user-agent"))
        writer.close()

    server = await asyncio.start_unix_server(listen, directory / "s")
    async with server, channel_to(directory / "s") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await pb_grpc.RegistrationStub(channel).Register(pb.RegisterRequest(), timeout=5)
    assert b":authority\x09localhost" in await asyncio.wait_for(heads.get(), 5)
