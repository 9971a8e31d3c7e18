from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from neuron_plugin.plugin import responder as module
from neuron_plugin.plugin.responder import MOST_CONNECTIONS, MOST_HEAD_BYTES, Page, Responder, text_page


async def hello() -> Page:
    return text_page("hello")


async def broken() -> Page:
    raise ValueError("no such thing")


async def until_listening(responder: Responder) -> int:
    async with asyncio.timeout(10):
        while responder.port is None:
            await asyncio.sleep(0.001)
    return responder.port


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[int]:
    responder = Responder({"/hello": hello, "/broken": broken})
    running = asyncio.create_task(responder.run("127.0.0.1", port), name="responder under test")
    try:
        yield await until_listening(responder)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def say(port: int, text: bytes) -> bytes:
    """What is answered to these bytes, up to the end of the connection."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(text)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                return await reader.read()
            return b""
        finally:
            writer.close()


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_a_page_is_served_whole_and_the_connection_closed() -> None:
    async with serving() as port:
        answer = await say(port, get("/hello"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Length: 6" in head
    assert b"Connection: close" in head
    assert b"Content-Type: text/plain; charset=utf-8" in head
    assert body == b"hello\n"


async def test_a_query_does_not_change_the_page() -> None:
    async with serving() as port:
        assert (await say(port, get("/hello?verbose=1"))).endswith(b"hello\n")


async def test_head_gets_the_head_alone() -> None:
    async with serving() as port:
        answer = await say(port, get("/hello", "HEAD"))
    assert b"Content-Length: 6" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (get("/other"), HTTPStatus.NOT_FOUND),
        (get("/hello", "POST"), HTTPStatus.METHOD_NOT_ALLOWED),
        (b"\xff\xfe\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"GET /" + b"x" * 2 * MOST_HEAD_BYTES + b"\r\n\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_what_is_no_request_for_a_page_is_refused(request_text: bytes, status: HTTPStatus) -> None:
    async with serving() as port:
        assert (await say(port, request_text)).startswith(f"HTTP/1.1 {status.value} ".encode())
        assert (await say(port, get("/hello"))).endswith(b"hello\n")


async def test_an_unknown_path_is_told_which_there_are() -> None:
    async with serving() as port:
        assert b"/hello /broken" in await say(port, get("/"))


async def test_a_page_that_cannot_be_made_is_a_500_and_a_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as port:
        assert (await say(port, get("/broken"))).startswith(b"HTTP/1.1 500 ")
        assert (await say(port, get("/hello"))).endswith(b"hello\n")
    assert any(record.exc_info for record in caplog.records)


async def test_a_silent_caller_is_sent_away_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONVERSATION_SECONDS", 0.05)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await say(port, get("/hello"))).endswith(b"hello\n")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_caller_that_leaves_in_between_is_nobodys_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hel")
        writer.close()
        await writer.wait_closed()
        assert (await say(port, get("/hello"))).endswith(b"hello\n")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_beyond_so_many_callers_at_once_the_next_is_sent_away() -> None:
    async with serving() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        assert await say(port, get("/hello")) == b""
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10):
            while not await say(port, get("/hello")):
                await asyncio.sleep(0.005)


async def test_a_taken_port_is_told_once_and_taken_when_it_is_free(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        responder = Responder({"/hello": hello})
        running = asyncio.create_task(responder.run("127.0.0.1", port), name="responder under test")
        await asyncio.sleep(0.05)
        assert responder.port is None
    assert await until_listening(responder) == port
    assert (await say(port, get("/hello"))).endswith(b"hello\n")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (error,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "--health-port" in error.getMessage()


async def test_the_end_does_not_wait_for_callers() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()
