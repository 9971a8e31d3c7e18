"""Ends of lists and watches, and what the reflector makes of them (T32)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.api import ApiRequest, Response, UnreachableError
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.reflector import Pace, Reflector
from tests.cluster.reflecting import (
    BOOKMARK,
    Follow,
    Manifest,
    watches,
)
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.scripted_server import ScriptedServer, listed, nothing


async def test_t46_an_api_server_gone_for_a_while_is_followed_again_without_a_restart(
    server: StandInApiServer, follow: Follow, pod: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "neuron_plugin.cluster")
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until_watching()
        await server.stop()
        await followed.until(lambda: len(followed.recorder.interruptions) > 5)
        assert followed.names == ["a"], "the last state is still served"
        server.create_pod(pod("b"))
        await server.start()
        await followed.until(lambda: followed.names == ["a", "b"])
    messages = [record.message for record in caplog.records]
    assert messages == ["API server watch failing", "API server watch working again"]


async def test_a_silent_watch_is_given_up_at_its_read_deadline(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    async with follow(pace=Pace(silence=0.1, backoff_first=0.002)) as followed:
        await followed.until_watching()
        server.mute_watches()
        server.create_pod(pod("a"))
        await followed.until(lambda: "unreachable" in followed.recorder.causes)
        await followed.until(lambda: followed.names == ["a"])


async def test_a_refusal_is_tried_again_no_sooner_than_the_server_asks(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    slept: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        enough.set()
        await asyncio.Event().wait()

    server.fail(Fault(Match(), status=429, retry_after_seconds=7))
    reflector = Reflector(api, PODS, lambda pod: pod, clock=Clock(sleep=sleep))
    running = asyncio.create_task(reflector.run(), name="reflector")
    await asyncio.wait_for(enough.wait(), 5)
    running.cancel()
    assert 7.0 <= slept[0] <= 7.1


async def test_a_watch_asks_for_bookmarks_and_four_to_five_minutes(server: StandInApiServer, follow: Follow) -> None:
    async with follow() as followed:
        await followed.until_watching()
    (query,) = watches(server)
    assert query["allowWatchBookmarks"] == "true"
    assert 240 <= int(query["timeoutSeconds"]) <= 300


# Back-off, in faked time.


async def run_for(
    seconds: float, lines: Callable[[], AsyncIterator[bytes]] = nothing, *, list_seconds: float = 0.0
) -> tuple[list[float], list[ApiRequest]]:
    """Follow for some faked time; return the waits between the watches, and all requests."""
    loop, opened = asyncio.get_running_loop(), list[float]()

    async def listing(request: ApiRequest) -> Response:
        assert "limit" in request.query
        await asyncio.sleep(list_seconds)
        return listed()

    def opening() -> AsyncIterator[bytes]:
        opened.append(loop.time())
        return lines()

    server = ScriptedServer(listing, opening)
    reflector: Reflector[Pod, Pod] = Reflector(server, PODS, lambda pod: pod, clock=Clock(loop.time, asyncio.sleep))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await reflector.run()
    return [after - before for before, after in itertools.pairwise(opened)], server.requests


def kinds(requests: list[ApiRequest]) -> list[str]:
    return ["watch" if "watch" in request.query else "list" for request in requests]


@pytest.mark.looptime
async def test_watches_that_end_at_once_are_backed_off() -> None:
    waits, _ = await run_for(600)
    assert 20 < len(waits) < 40
    assert all(before * 0.9 <= after * 2 for before, after in itertools.pairwise(waits))
    assert 15 <= waits[-1] <= 30.1


@pytest.mark.looptime
async def test_watches_that_say_one_thing_each_are_backed_off_too() -> None:
    async def bookmark() -> AsyncIterator[bytes]:
        yield BOOKMARK

    waits, _ = await run_for(3, bookmark)
    assert len(waits) < 8, "the library's informer: 9 470"


@pytest.mark.looptime
async def test_a_watch_that_lasted_makes_the_next_wait_short() -> None:
    async def five_minutes() -> AsyncIterator[bytes]:
        await asyncio.sleep(300)
        yield BOOKMARK

    waits, _ = await run_for(3600, five_minutes)
    assert len(waits) >= 10
    assert all(300 < wait <= 300.2 for wait in waits)


@pytest.mark.looptime
async def test_a_thousand_nodes_do_not_come_back_at_once() -> None:
    second_waits = {(await run_for(5))[0][3] for _ in range(20)}
    assert len(second_waits) > 15


# Where the next watch begins, in faked time.


async def silence() -> AsyncIterator[bytes]:
    """What the transport makes of a connection that is open and dead."""
    await asyncio.sleep(150)
    raise UnreachableError("GET", "/api/v1/pods", "silent", may_have_arrived=True)
    yield b""


@pytest.mark.looptime
async def test_t32_a_watch_that_sent_nothing_until_it_was_given_up_is_not_continued() -> None:
    """A server whose etcd was restored leaves out what is older than the version it was asked for."""
    _, requests = await run_for(400, silence)
    assert kinds(requests) == ["list", "watch"] * 3


@pytest.mark.looptime
async def test_t32_a_watch_that_fell_silent_after_a_bookmark_is_continued() -> None:
    async def died() -> AsyncIterator[bytes]:
        yield BOOKMARK
        async for line in silence():
            yield line

    _, requests = await run_for(200, died)
    assert kinds(requests) == ["list", "watch", "watch"]
    assert requests[2].query["resourceVersion"] == "9"


@pytest.mark.looptime
async def test_watches_that_end_at_once_are_continued_without_a_list() -> None:
    _, requests = await run_for(60)
    assert set(kinds(requests[1:])) == {"watch"}
    assert len(requests) > 6


@pytest.mark.looptime
@pytest.mark.parametrize("code", [500, 410, 429, 0])
async def test_t32_an_error_event_lists_again_whatever_it_says(code: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b'{"type":"ERROR","object":{"kind":"Status","code":%d,"message":"m"}}' % code

    _, requests = await run_for(1, broken)
    assert kinds(requests) == ["list", "watch"] * (len(requests) // 2)
    assert len(requests) > 2


@pytest.mark.looptime
async def test_slow_lists_before_watches_that_fail_do_not_make_the_waits_short() -> None:
    """A server that is too busy to keep a watch is not asked for everything as fast as it can answer."""

    async def expired() -> AsyncIterator[bytes]:
        yield b'{"type":"ERROR","object":{"kind":"Status","code":410}}'

    waits, _ = await run_for(600, expired, list_seconds=12)
    assert waits[-1] - 12 > 10
