"""Watches of the simulated API server, over HTTP."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.simulation.api_client import Client, pod, until_watched
from tests.support.api_server import StandInApiServer, WatchList


async def test_a_watch_shows_what_happens_after_its_version(client: Client, server: StandInApiServer) -> None:
    version = server.create_pod(pod("a"))["metadata"]["resourceVersion"]
    server.set_pod_status("default", "a", {"phase": "Running"})
    server.delete_pod("default", "a", grace_seconds=0)
    events = await client.watch("/api/v1/pods", 2, resourceVersion=version)
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == [int(version) + 1, int(version) + 2], "an end has a version of its own"


async def test_a_watch_without_a_version_begins_with_what_is_there(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    events = await client.watch("/api/v1/pods", 1)
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [("ADDED", "a")]


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


async def test_objects_get_and_lose_a_label(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("other"))
    server.create_pod({"metadata": {"name": "a", "labels": {"app": "x"}}, "spec": {}})
    watching = asyncio.create_task(client.watch("/api/v1/pods", 4, labelSelector="app=x"), name="watch")
    await until_watched(server)
    server.patch_pod("default", "other", {"metadata": {"labels": {"app": "z"}}})  # never selected: not shown
    for app in ("y", "x"):
        server.patch_pod("default", "a", {"metadata": {"labels": {"app": app}}})
    server.patch_pod("default", "a", {"metadata": {"labels": {"more": "1"}}})
    events = await watching
    assert [event["type"] for event in events] == ["ADDED", "DELETED", "ADDED", "MODIFIED"]
    assert {event["object"]["metadata"]["name"] for event in events} == {"a"}
    assert events[1]["object"]["metadata"]["labels"] == {"app": "x"}, "as it was last seen"


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


async def test_a_bookmark_never_overtakes_an_event(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(
        client.watch("/api/v1/pods", 2, resourceVersion="1", allowWatchBookmarks="true"), name="watch"
    )
    await until_watched(server)
    server.create_pod(pod("a"))
    server.send_bookmarks()
    assert [event["type"] for event in await watching] == ["ADDED", "BOOKMARK"]


async def test_a_watch_from_before_the_compaction_gets_its_410_inside_the_stream(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    server.compact()
    (error,) = await client.watch_to_the_end("/api/v1/pods", resourceVersion="1")
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    assert error["object"]["message"] == "too old resource version: 1 (2)"


async def test_an_open_watch_survives_a_compaction(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(client.watch("/api/v1/pods", 2, resourceVersion="1"), name="watch")
    await until_watched(server)
    server.create_pod(pod("a"))
    await asyncio.sleep(0.02)
    server.compact()
    server.create_pod(pod("b"))
    assert [event["object"]["metadata"]["name"] for event in await watching] == ["a", "b"]


async def test_open_watches_can_be_expired_ended_and_timed_out(client: Client, server: StandInApiServer) -> None:
    for end, expected in ((server.expire_watches, ["ERROR"]), (server.end_watches, [])):
        watching = asyncio.create_task(client.watch_to_the_end("/api/v1/pods", resourceVersion="1"), name="watch")
        await until_watched(server)
        end()
        assert [event["type"] for event in await watching] == expected
    assert await client.watch_to_the_end("/api/v1/pods", resourceVersion="1", timeoutSeconds="0") == []


async def test_open_watches_can_be_cut(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(client.watch("/api/v1/pods", 1, resourceVersion="1"), name="watch")
    await until_watched(server)
    server.cut_watches()
    with pytest.raises((aiohttp.ClientError, json.JSONDecodeError)):
        await watching
