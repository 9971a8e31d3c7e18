"""Watches of the simulated API server, over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.simulation.api_client import Client, pod, until_watched
from tests.support.api_server import StandInApiServer, WatchList


async def test_objects_enter_and_leave_a_selection(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    watching = asyncio.create_task(
        client.watch("/api/v1/pods", 3, resourceVersion="2", fieldSelector="status.phase=Running"), name="watch"
    )
    await until_watched(server)
    for phase in ("Running", "Failed", "Running"):
        server.set_pod_status("default", "a", {"phase": phase})
    entered, left, again = await watching
    assert [event["type"] for event in (entered, left, again)] == ["ADDED", "DELETED", "ADDED"]
    assert left["object"]["status"]["phase"] == "Running", "as it was last seen"
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (entered, left, again)]
    assert versions == sorted(set(versions))


async def test_initial_events_end_with_a_marked_bookmark(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    added, bookmark = await client.watch("/api/v1/pods", 2, **query)
    assert added["type"] == "ADDED"
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["kind"] == "Pod"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark["object"]["metadata"]["resourceVersion"] == added["object"]["metadata"]["resourceVersion"]


async def test_initial_events_may_be_switched_off() -> None:
    query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with (
        StandInApiServer(watch_list=WatchList.REFUSED) as server,
        aiohttp.ClientSession(server.url) as session,
        session.get("/api/v1/pods", params=query) as answer,
    ):
        assert answer.status == 422
        assert "WatchList feature gate" in (await answer.json())["message"]


async def test_initial_events_need_a_match(client: Client) -> None:
    status, refusal = await client.ask("GET", "/api/v1/pods", params={"watch": "true", "sendInitialEvents": "true"})
    assert status == 422
    assert "resourceVersionMatch" in refusal["message"]


async def test_bookmarks_come_in_time_and_on_request() -> None:
    async with (
        StandInApiServer(bookmark_seconds=0.02) as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        server.create_node({"metadata": {"name": "n"}})
        client = Client(session)
        (timed,) = await client.watch("/api/v1/pods", 1, resourceVersion="1", allowWatchBookmarks="true")
        assert (timed["type"], timed["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", "2")


async def test_who_did_not_ask_gets_no_bookmarks(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(client.watch_to_the_end("/api/v1/pods", resourceVersion="1"), name="watch")
    await until_watched(server)
    server.create_pod(pod("a"))
    server.send_bookmarks()
    await asyncio.sleep(0.02)
    server.end_watches()
    assert [event["type"] for event in await watching] == ["ADDED"]


async def test_a_watch_from_before_the_compaction_gets_its_410_inside_the_stream(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    server.compact()
    (error,) = await client.watch_to_the_end("/api/v1/pods", resourceVersion="1")
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert error["object"]["message"] == "too old resource version: 1 (2)"


async def test_open_watches_can_be_expired_ended_and_timed_out(client: Client, server: StandInApiServer) -> None:
    for end, expected in ((server.expire_watches, ["ERROR"]), (server.end_watches, [])):
        watching = asyncio.create_task(client.watch_to_the_end("/api/v1/pods", resourceVersion="1"), name="watch")
        await until_watched(server)
        end()
        assert [event["type"] for event in await watching] == expected
    assert await client.watch_to_the_end("/api/v1/pods", resourceVersion="1", timeoutSeconds="0") == []
