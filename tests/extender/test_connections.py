from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from neuron_plugin.extender import server as module
from tests.extender.served import answers, closed, post, request_for, served


async def test_t09_ten_keep_alive_clients_pipelined_slow_and_half_closed_are_each_answered_in_order(port: int) -> None:
    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [f"ghost-{number}-{each}" for each in range(5)]
        everything = b"".join(map(request_for, names))
        middle = len(everything) // 2 + 7
        writer.write(everything[:middle])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(everything[middle:])
        half_closes = number % 3 == 0
        if half_closes:
            writer.write_eof()
        assert await answers(reader, 5) == names
        if half_closes:
            assert await reader.read() == b""
        await closed(writer)

    await asyncio.gather(*(client(number) for number in range(10)))


@pytest.mark.parametrize("count", [1, 2, 200])
async def test_t09_a_caller_that_half_closes_gets_every_answer_however_many_requests_it_had_pipelined(
    port: int, count: int
) -> None:
    """aiohttp reads no further than 32 requests ahead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    names = [f"ghost-{number}" for number in range(count)]
    writer.write(b"".join(map(request_for, names)))
    writer.write_eof()

    assert await answers(reader, count) == names
    assert await reader.read() == b""
    await closed(writer)


async def test_t09_a_caller_that_half_closes_while_its_answer_is_made_gets_it() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        asked.set()
        await gate.wait()
        return web.Response(text="late")

    async def quick(_: web.Request) -> web.Response:
        return web.Response(body=b"{}", content_type="application/json")

    async with served([web.get("/slow", slow), web.post("/quick", quick)]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        writer.write_eof()
        await post(port, "/quick", b"")  # one loop reads both: the end was read before this
        gate.set()

        assert (await reader.read()).endswith(b"late")
        await closed(writer)


async def test_a_watcher_that_closes_its_sending_side_is_let_go() -> None:
    """It looks the same as one that has gone, and an answer without end is not one that is due."""
    gone = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.001)
        gone.set()
        return response

    async with served([web.get("/watch", watch)]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()

        await gone.wait()
        await closed(writer)


@pytest.mark.parametrize(
    ("sent", "answered"),
    [(b"", 0), (b"POST /filter HTT", 0), (request_for("ghost") + b"POST /filter HTT", 1)],
    ids=["nothing", "half a head", "one and a half"],
)
async def test_t09_a_half_closed_connection_ends_once_nothing_is_due(port: int, sent: bytes, answered: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()

    assert (await reader.read()).count(b"200 OK") == answered
    await closed(writer)


async def test_t09_a_body_cut_short_by_a_half_close_is_told_so_and_the_connection_ends(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_for("whole") + request_for("cut")[:-10])
    writer.write_eof()

    assert await answers(reader, 1) == ["whole"]
    async with asyncio.timeout(5):  # aiohttp alone would linger ten seconds for the rest
        assert b"did not arrive" in await reader.read()
    await closed(writer)
