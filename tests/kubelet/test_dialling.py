from __future__ import annotations

import asyncio
from pathlib import Path

from neuron_plugin.kubelet.dialling import dial
from tests.kubelet.fakes import eventually, running_plugin


async def test_p78_a_served_socket_answers_even_before_the_kubelet_is_there(directory: Path) -> None:
    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    kubelet = await asyncio.start_unix_server(hold, directory / "kubelet.sock")
    async with running_plugin(directory) as plugin:
        await eventually(lambda: plugin.server.socket_path is not None)
        assert plugin.server.socket_path
        assert await dial(plugin.server.socket_path, 5) is None
    over.set()
    kubelet.close()


async def test_p78_a_socket_without_a_file_is_a_fault_in_the_systems_words(directory: Path) -> None:
    fault = await dial(directory / "gone.sock", 5)
    assert fault
    assert "No such file" in fault


async def test_p78_a_socket_that_takes_calls_and_never_answers_is_a_fault(directory: Path) -> None:
    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    path = directory / "silent.sock"
    server = await asyncio.start_unix_server(hold, path)
    try:
        assert await dial(path, 0.1) == "no answer within 0.1 s"
    finally:
        over.set()
        server.close()
