from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from neuron_plugin.http_server import ProbeAnswer, serve_status, serving, status_application

HEALTHY = ProbeAnswer()


@dataclass
class FakeStatus:
    live: ProbeAnswer = HEALTHY
    ready: ProbeAnswer = HEALTHY
    threads: list[str] = field(default_factory=list)

    async def liveness(self) -> ProbeAnswer:
        return self.live

    async def readiness(self) -> ProbeAnswer:
        return self.ready

    def collect(self) -> Iterable[Metric]:
        self.threads.append(threading.current_thread().name)
        yield GaugeMetricFamily("neuron_plugin_waiting", 'Pods that "wait".', value=3)

    def decisions(self) -> bytes:
        self.threads.append(threading.current_thread().name)
        return b'{"decisions": []}\n'


@pytest.fixture
def status() -> FakeStatus:
    return FakeStatus()


@pytest.fixture
async def port(status: FakeStatus) -> AsyncIterator[int]:
    async with serving(status_application(status), "127.0.0.1", 0) as port:
        yield port


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


@asynccontextmanager
async def running(status: FakeStatus, port: int) -> AsyncIterator[None]:
    task = asyncio.create_task(serve_status(status, "127.0.0.1", port), name="status under test")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_served(port: int, path: str) -> str:
    async with asyncio.timeout(10):
        while True:
            try:
                return (await get(port, path))[2]
            except aiohttp.ClientError:
                await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_p78_a_probe_passes_while_no_check_fails(status: FakeStatus, port: int, path: str) -> None:
    status.live = status.ready = ProbeAnswer({"synced": "", "leader": ""})

    assert await get(port, path) == (200, "text/plain; charset=utf-8", "ok\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_p78_a_failing_probe_gives_every_reason_a_line(status: FakeStatus, port: int, path: str) -> None:
    status.live = status.ready = ProbeAnswer({"synced": "no list yet", "leader": "", "stopping": "shutting down"})

    assert (await get(port, path))[::2] == (503, "no list yet\nshutting down\n")


async def test_liveness_and_readiness_are_two_questions(status: FakeStatus, port: int) -> None:
    status.ready = ProbeAnswer({"leader": "another replica leads"})

    assert (await get(port, "/healthz"))[0] == 200
    assert (await get(port, "/readyz"))[0] == 503


async def test_verbose_lists_every_check(status: FakeStatus, port: int) -> None:
    status.ready = ProbeAnswer({"synced": "", "leader": "another replica leads"})

    assert (await get(port, "/readyz?verbose"))[::2] == (
        503,
        "[+]synced ok\n[-]leader failed: another replica leads\n",
    )


async def test_an_excluded_check_does_not_count(status: FakeStatus, port: int) -> None:
    status.ready = ProbeAnswer({"synced": "no list yet", "leader": "another replica leads"})

    assert (await get(port, "/readyz?exclude=leader"))[::2] == (503, "no list yet\n")
    assert (await get(port, "/readyz?exclude=leader&exclude=synced&verbose"))[0] == 200


async def test_notes_are_shown_and_fail_nothing(status: FakeStatus, port: int) -> None:
    status.ready = ProbeAnswer({"registered": ""}, ("uevents are not received: no netlink",))

    assert (await get(port, "/readyz"))[::2] == (200, "ok\nuevents are not received: no netlink\n")


async def test_p79_metrics_are_collected_in_a_thread_and_prometheus_reads_them(status: FakeStatus, port: int) -> None:
    code, content_type, text = await get(port, "/metrics")

    (family,) = text_string_to_metric_families(text)
    assert (code, content_type.split(";")[0]) == (200, "text/plain")
    assert (family.name, family.samples[0].value) == ("neuron_plugin_waiting", 3)
    assert status.threads != [threading.main_thread().name]


async def test_decisions_are_json_made_in_a_thread(status: FakeStatus, port: int) -> None:
    assert await get(port, "/decisions") == (200, "application/json", '{"decisions": []}\n')
    assert status.threads != [threading.main_thread().name]


async def test_head_gets_no_body(port: int) -> None:
    assert (await get(port, "/healthz", "HEAD"))[::2] == (200, "")


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/other", 404), ("POST", "/healthz", 405)])
async def test_other_requests_are_refused(port: int, method: str, path: str, code: int) -> None:
    assert (await get(port, path, method))[0] == code


async def test_an_endless_head_is_refused_and_others_are_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /" + b"x" * 20_000)
    async with asyncio.timeout(10):
        assert b" 400 " in await reader.readline()
    writer.close()
    assert (await get(port, "/healthz"))[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_an_idle_connection_is_closed(status: FakeStatus, sent: bytes) -> None:
    async with serving(status_application(status), "127.0.0.1", 0, idle_seconds=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert (await reader.read()).endswith(b"ok\n" if b"\r\n" in sent else b"")
        writer.close()


async def test_bodies_are_limited_and_not_expanded(status: FakeStatus) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = status_application(status, max_body_bytes=1000)
    app.add_routes([web.post("/echo", echo)])
    small = gzip.compress(b" " * 10_000)
    async with serving(app, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/echo"
        async with session.post(url, data=small, headers={"Content-Encoding": "gzip"}) as response:
            assert await response.read() == small
        async with session.post(url, data=b"x" * 2000) as response:
            assert response.status == 413


async def test_a_page_that_fails_is_a_500_and_a_traceback_in_the_log(
    status: FakeStatus, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status, "decisions", lambda: 1 / 0)

    assert (await get(port, "/decisions"))[0] == 500
    assert (await get(port, "/healthz"))[0] == 200
    assert any(record.exc_info for record in caplog.records)


async def test_the_end_does_not_wait_for_callers(status: FakeStatus) -> None:
    async with serving(status_application(status), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await get(port, "/healthz")
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()


async def test_requests_in_flight_are_answered_at_the_end(status: FakeStatus) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        asked.set()
        await release.wait()
        return web.Response(text="late")

    app = status_application(status)
    app.add_routes([web.get("/slow", slow)])
    async with serving(app, "127.0.0.1", 0) as port:
        answer = asyncio.create_task(get(port, "/slow"), name="a request in flight")
        await asked.wait()
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert (await answer)[2] == "late"


async def test_an_address_in_use_is_logged_once_and_taken_when_it_is_free(
    status: FakeStatus, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        job = serve_status(status, "127.0.0.1", port, retry_seconds=0.01)
        task = asyncio.create_task(job, name="status under test")
        await asyncio.sleep(0.1)
    assert await until_served(port, "/readyz") == "ok\n"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (error,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "--health-port" in error.getMessage()


async def test_the_status_is_served_until_cancelled(status: FakeStatus) -> None:
    port = free_port()
    async with running(status, port):
        assert await until_served(port, "/healthz") == "ok\n"
    with pytest.raises(aiohttp.ClientError):
        await get(port, "/healthz")
    gc.collect()  # a leaked connection would warn here


def test_the_libraries_are_not_loaded_before_anything_is_served() -> None:
    code = "import sys, neuron_plugin.http_server; print(*{'aiohttp', 'prometheus_client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert done.stdout.strip() == ""
