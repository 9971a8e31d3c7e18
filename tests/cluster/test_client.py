from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_plugin.cluster.api import ApiError, ApiRequest, UnreachableError, send
from neuron_plugin.cluster.client import ClientTimes, KubernetesApi
from tests.cluster.raw import CHUNKED, api_of, chunk, saying
from tests.support.api_server import Fault, Match, StandInApiServer

PODS = ApiRequest("GET", "/api/v1/pods")
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1", "allowWatchBookmarks": "true"})
MANIFEST = {"metadata": {"name": "a"}, "spec": {"containers": []}}


# Requests.


async def test_a_get_returns_status_and_bytes(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    response = await api.request(PODS, timeout_seconds=5)
    assert response.status == 200
    assert json.loads(response.body)["items"][0]["metadata"]["name"] == "a"


async def test_a_refusal_is_returned_not_raised(api: KubernetesApi) -> None:
    response = await api.request(ApiRequest("GET", "/api/v1/namespaces/default/pods/none"), timeout_seconds=5)
    assert response.status == 404
    assert json.loads(response.body)["reason"] == "NotFound"


async def test_selectors_arrive_as_they_were_meant(server: StandInApiServer, api: KubernetesApi) -> None:
    query = {"labelSelector": "a in (x, y),b!=c d", "fieldSelector": "spec.nodeName=n1", "limit": "500"}
    await api.request(ApiRequest("GET", "/api/v1/pods", query), timeout_seconds=5)
    assert server.requests[-1].query == query


async def test_a_patch_goes_out_with_its_content_type_and_its_nulls(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_pod({"metadata": {"name": "a", "annotations": {"old": "1"}}, "spec": {}})
    patch: dict[str, object] = {"metadata": {"annotations": {"old": None, "new": "ü"}}}
    request = ApiRequest("PATCH", "/api/v1/namespaces/default/pods/a", {}, patch, "application/merge-patch+json")
    body = await send(api, request, timeout_seconds=5)
    assert json.loads(body)["metadata"]["annotations"] == {"new": "ü"}
    assert server.requests[-1].content_type == "application/merge-patch+json"


async def test_a_request_says_who_asks_and_what_is_understood(tmp_path: Path) -> None:
    """Flow schemas and audit logs know a client by its name."""
    heads: list[str] = []

    async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", tmp_path, heads=heads) as api:
        await api.request(PODS, timeout_seconds=5)
    (lines,) = (head.splitlines() for head in heads)
    assert lines[0] == "GET /api/v1/pods HTTP/1.1"
    assert {"User-Agent: neuron-plugin", "Accept: application/json"} <= set(lines)


async def test_a_slow_server_is_given_up_at_the_deadline(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    with pytest.raises(UnreachableError, match=r"GET /api/v1/pods: no answer within 0\.05 s") as raised:
        await api.request(PODS, timeout_seconds=0.05)
    assert raised.value.may_have_arrived
    gate.set()


async def test_t45_a_slow_answer_holds_up_no_other(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), gate=(gate := asyncio.Event())))
    creation = ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST))
    slow = asyncio.create_task(api.request(creation, timeout_seconds=5), name="slow")
    assert (await api.request(PODS, timeout_seconds=1)).status == 200
    assert not slow.done()
    gate.set()
    assert (await slow).status == 201


async def test_t40_a_refused_connection_cannot_have_arrived(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()
    with pytest.raises(UnreachableError, match=r"no connection to 127\.0\.0\.1:\d+: Connect call failed") as raised:
        await api.request(PODS, timeout_seconds=5)
    assert not raised.value.may_have_arrived
    assert "ssl:" not in str(raised.value), "what aiohttp calls its settings"


async def test_t40_a_lost_answer_may_have_arrived_and_has(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), lose_answer=True))
    creation = ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST))
    with pytest.raises(UnreachableError) as raised:
        await api.request(creation, timeout_seconds=5)
    assert raised.value.may_have_arrived
    assert (await api.request(ApiRequest("GET", "/api/v1/namespaces/default/pods/a"), timeout_seconds=5)).status == 200


async def test_a_write_is_never_sent_twice_by_itself(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), drop=True))
    with pytest.raises(UnreachableError):
        await api.request(ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST)), timeout_seconds=5)
    assert sum(seen.method == "POST" for seen in server.requests) == 1


async def test_being_cancelled_passes_through(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    asking = asyncio.create_task(api.request(PODS, timeout_seconds=5), name="asking")
    while not server.requests:
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.set()


async def test_a_header_says_when_to_come_back_where_no_status_object_does(tmp_path: Path) -> None:
    """Priority and fairness, and a server that shuts down, answer with a line of text."""

    async with saying(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 18\r\n\r\nToo many requests.", tmp_path
    ) as api:
        with pytest.raises(ApiError) as raised:
            await send(api, PODS, timeout_seconds=5)
        with pytest.raises(ApiError) as raised_by_watch:
            async with api.stream(WATCH, silence_seconds=5):
                pytest.fail("it was opened")
    for error in (raised.value, raised_by_watch.value):
        assert (error.status, error.message, error.retry_after_seconds) == (429, "Too many requests.", 7.0)


@pytest.mark.parametrize("date", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "1.5", "", "1e9"])
async def test_a_header_that_is_no_number_of_seconds_says_nothing(tmp_path: Path, date: str) -> None:
    async with saying(f"HTTP/1.1 503 X\r\nRetry-After: {date}\r\nContent-Length: 0\r\n\r\n".encode(), tmp_path) as api:
        assert (await api.request(PODS, timeout_seconds=5)).retry_after_seconds is None


async def test_t40_a_handshake_that_never_ends_is_given_up_and_cannot_have_arrived(tmp_path: Path) -> None:
    async def never(_writer: asyncio.StreamWriter) -> None:
        pytest.fail("it was asked")

    async with api_of(never, tmp_path, scheme="https", times=ClientTimes(connect=0.05)) as api:
        with pytest.raises(UnreachableError) as raised:
            await api.request(PODS, timeout_seconds=10)
        assert not raised.value.may_have_arrived
        with pytest.raises(UnreachableError):
            async with api.stream(WATCH, silence_seconds=10):
                pytest.fail("it was opened")


# Streams.


async def test_a_stream_hands_out_lines_until_the_server_ends_it(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        first = await anext(lines)
        server.patch_pod("default", "a", {"metadata": {"labels": {"x": "y"}}})
        second = await anext(lines)
        server.end_watches()
        assert [line async for line in lines] == []
    assert [json.loads(line)["type"] for line in (first, second)] == ["ADDED", "MODIFIED"]


async def test_an_event_larger_than_any_buffer_is_one_line(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod({"metadata": {"name": "a"}, "spec": {"hostname": "x" * 3_000_000}})
    async with api.stream(WATCH, silence_seconds=5) as lines:
        assert len(await anext(lines)) > 3_000_000


async def test_a_stream_that_is_refused_raises_what_the_server_said(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(status=410))
    with pytest.raises(ApiError) as raised:
        async with api.stream(WATCH, silence_seconds=5):
            pytest.fail("it was opened")
    assert raised.value.expired


async def test_a_silent_stream_is_unreachable(server: StandInApiServer, api: KubernetesApi) -> None:
    assert server.open_watches == 0
    with pytest.raises(UnreachableError, match="GET /api/v1/pods"):  # also where the answer begins too late
        async with api.stream(WATCH, silence_seconds=0.05) as lines:
            await anext(lines)


async def test_a_cut_stream_is_unreachable(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        await anext(lines)
        server.cut_watches()
        with pytest.raises(UnreachableError):
            await anext(lines)


async def test_leaving_a_stream_closes_its_connection(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        await anext(lines)
        assert server.open_watches == 1
    async with asyncio.timeout(5):
        while server.open_watches:
            server.send_bookmarks()  # only a write shows that the client has left
            await asyncio.sleep(0.005)


async def test_a_character_may_be_cut_in_two_by_a_chunk(tmp_path: Path) -> None:
    lines_sent = ['{"name":"ü"}', '{"name":"日"}']

    async def byte_by_byte(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for each in "".join(f"{line}\n" for line in lines_sent).encode():
            writer.write(chunk(bytes([each])))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with api_of(byte_by_byte, tmp_path) as api, api.stream(WATCH, silence_seconds=5) as lines:
        assert [line.decode() async for line in lines] == lines_sent


async def test_a_stream_cut_off_within_a_chunk_is_no_clean_end(tmp_path: Path) -> None:
    async with (
        saying(CHUNKED + chunk(b'{"n":1}\n') + b"ff\r\nand then", tmp_path) as api,
        api.stream(WATCH, silence_seconds=5) as lines,
    ):
        assert await anext(lines) == b'{"n":1}'
        with pytest.raises(UnreachableError):
            await anext(lines)


async def test_an_open_watch_has_a_pulse_that_a_vanished_server_does_not_answer(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    """No test can pull a cable; but the kernel shows the timer that notices a pulled one."""
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        await anext(lines)
        kind, _, ticks = timer_of_connection_to(server).partition(":")
    assert kind == "02", "a keepalive timer is running"
    assert int(ticks, 16) <= 15 * os.sysconf("SC_CLK_TCK")


def timer_of_connection_to(server: StandInApiServer) -> str:
    """``tr:tm->when`` of /proc/net/tcp (proc_pid_net(5))."""
    port, established = int(server.url.rpartition(":")[2]), "01"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    (timer,) = (row[5] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == established)
    return timer


async def test_a_line_that_was_cut_off_before_a_clean_end_is_dropped(tmp_path: Path) -> None:
    async with (
        saying(CHUNKED + chunk(b"one\ntw") + chunk(b"o\n\nthr") + chunk(b"ee") + b"0\r\n\r\n", tmp_path) as api,
        api.stream(WATCH, silence_seconds=5) as lines,
    ):
        assert [line async for line in lines] == [b"one", b"two", b""]


async def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron_plugin.cluster.client._BUFFER_BYTES", 1 << 16)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"x" * 100_000 + b"\n"))
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                writer.write(chunk(b"x" * 1000))
                await writer.drain()

    async with api_of(endless, tmp_path) as api, api.stream(WATCH, silence_seconds=5) as lines:
        assert len(await anext(lines)) == 100_000
        with pytest.raises(UnreachableError, match="LineTooLong"):
            await anext(lines)


def printed_by(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=True)  # noqa: S603 - our own interpreter and text
    return done.stdout


def test_importing_the_room_does_not_import_the_http_client() -> None:
    """It takes some of the start, and the kubelet is to be served first."""
    script = (
        "import sys, pkgutil, importlib, neuron_plugin.cluster as room\n"
        "for module in pkgutil.iter_modules(room.__path__): importlib.import_module(f'{room.__name__}.{module.name}')\n"
        "print([name for name in ('yaml', 'aiohttp') if name in sys.modules])"
    )
    assert printed_by(script) == "[]\n"
