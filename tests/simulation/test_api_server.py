"""The stand-in over HTTP, with a client that knows nothing of this project."""

from __future__ import annotations

import asyncio
import json
import stat
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from neuron_plugin.simulation.api_server import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    Fault,
    Match,
    Refusal,
    StandInApiServer,
    WatchList,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Json = dict[str, Any]
PODS_PATH = "/api/v1/namespaces/default/pods"
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Client:
    """A client that knows nothing of Kubernetes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Json]:
        async with self._session.request(method, path, json=body, **options) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **query: str) -> Json:
        status, body = await self.ask("GET", path, params=query)
        assert status == 200, body
        return body

    async def watch(self, path: str, events: int, **query: str) -> list[Json]:
        """Read so many events of a watch, then leave."""
        async with self._session.get(path, params={"watch": "true", **query}) as answer:
            assert answer.status == 200
            return [json.loads(await answer.content.readline()) for _ in range(events)]

    async def watch_to_the_end(self, path: str, **query: str) -> list[Json]:
        async with self._session.get(path, params={"watch": "true", **query}) as answer:
            return [json.loads(line) for line in (await answer.read()).splitlines()]


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def client(server: StandInApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(server.url) as session:
        yield Client(session)


def pod(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def until_watched(server: StandInApiServer, watches: int = 1) -> None:
    async with asyncio.timeout(5):
        while server.open_watches != watches:
            await asyncio.sleep(0.002)


# Objects.


async def test_an_object_is_created_with_what_a_server_adds(client: Client) -> None:
    status, made = await client.ask("POST", PODS_PATH, pod("a"))
    assert status == 201
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert made["metadata"]["namespace"] == "default"
    assert made["metadata"]["uid"]
    assert int(made["metadata"]["resourceVersion"]) > 0
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert await client.get(f"{PODS_PATH}/a") == made


async def test_a_client_cannot_choose_a_uid(client: Client) -> None:
    body = pod("a")
    body["metadata"]["uid"] = "mine"
    _, made = await client.ask("POST", PODS_PATH, body)
    assert made["metadata"]["uid"] != "mine"


async def test_every_write_counts_the_version_up_for_all_kinds(client: Client, server: StandInApiServer) -> None:
    _, first = await client.ask("POST", PODS_PATH, pod("a"))
    server.create_node({"metadata": {"name": "n1"}})
    _, third = await client.ask("POST", PODS_PATH, pod("b"))
    assert int(third["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 2


async def test_a_taken_name_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    status, refusal = await client.ask("POST", PODS_PATH, pod("a"))
    assert status == 409
    assert refusal == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "a" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "pods"},
        "code": 409,
    }


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{PODS_PATH}/none", 'pods "none" not found'),
        ("/api/v1/nodes/none", 'nodes "none" not found'),
        (f"{LEASES_PATH}/none", 'leases.coordination.k8s.io "none" not found'),
        ("/api/v1/secrets", "the server could not find the requested resource"),
        ("/apis/apps/v1/deployments", "the server could not find the requested resource"),
        ("/api/v1/namespaces/default/nodes", "the server could not find the requested resource"),
        ("/api/v1/pods/a", "the server could not find the requested resource"),
        (f"{PODS_PATH}/a/log", "the server could not find the requested resource"),
        ("/", "the server could not find the requested resource"),
    ],
)
async def test_what_is_not_there_is_404(client: Client, path: str, message: str) -> None:
    status, refusal = await client.ask("GET", path)
    assert (status, refusal["reason"], refusal["message"]) == (404, "NotFound", message)


@pytest.mark.parametrize(("method", "path"), [("DELETE", PODS_PATH), ("PUT", PODS_PATH), ("POST", f"{PODS_PATH}/a")])
async def test_a_verb_that_makes_no_sense_is_405(client: Client, method: str, path: str) -> None:
    assert (await client.ask(method, path, {}))[0] == 405


async def test_a_body_that_is_no_json_object_is_400(client: Client) -> None:
    assert (await client.ask("POST", PODS_PATH, [1]))[0] == 400


# Lists.


async def test_a_list_is_ordered_and_has_a_version(client: Client, server: StandInApiServer) -> None:
    for name in ("b", "a", "c"):
        server.create_pod(pod(name))
    listed = await client.get("/api/v1/pods")
    assert (listed["kind"], names(listed)) == ("PodList", ["a", "b", "c"])
    assert listed["metadata"] == {"resourceVersion": listed["items"][2]["metadata"]["resourceVersion"]}


async def test_pages_are_of_one_version(client: Client, server: StandInApiServer) -> None:
    for number in range(5):
        server.create_pod(pod(f"p{number}"))
    first = await client.get("/api/v1/pods", limit="2")
    server.delete_pod("default", "p3")
    server.create_pod(pod("p0a"))
    second = await client.get("/api/v1/pods", limit="2", **{"continue": first["metadata"]["continue"]})
    third = await client.get("/api/v1/pods", limit="2", **{"continue": second["metadata"]["continue"]})
    assert [names(page) for page in (first, second, third)] == [["p0", "p1"], ["p2", "p3"], ["p4"]]
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1
    assert "continue" not in third["metadata"]


async def test_a_page_that_ends_exactly_has_no_continuation(client: Client, server: StandInApiServer) -> None:
    for number in range(4):
        server.create_pod(pod(f"p{number}", nodeName="n1" if number < 2 else "n2"))
    listed = await client.get("/api/v1/pods", limit="2", fieldSelector="spec.nodeName=n1")
    assert names(listed) == ["p0", "p1"]
    assert "continue" not in listed["metadata"]


async def test_a_page_of_a_compacted_version_is_410(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    server.create_pod(pod("b"))
    first = await client.get("/api/v1/pods", limit="1")
    server.compact()
    status, refusal = await client.ask("GET", "/api/v1/pods", params={"continue": first["metadata"]["continue"]})
    assert (status, refusal["reason"]) == (410, "Expired")
    assert refusal["message"].startswith("The provided continue parameter is too old")


async def test_a_garbled_continuation_is_400(client: Client) -> None:
    assert (await client.ask("GET", "/api/v1/pods", params={"continue": "???"}))[0] == 400


async def test_lists_of_a_namespace_and_by_a_selector(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a", nodeName="n1"))
    elsewhere = pod("b", nodeName="n1")
    elsewhere["metadata"]["namespace"] = "other"
    server.create_pod(elsewhere)
    assert names(await client.get("/api/v1/namespaces/other/pods")) == ["b"]
    assert names(await client.get("/api/v1/pods", fieldSelector="spec.nodeName=n1")) == ["a", "b"]


async def test_a_label_selector_is_refused_not_passed_over(client: Client) -> None:
    assert (await client.ask("GET", "/api/v1/pods", params={"labelSelector": "app=x"}))[0] == 400


async def test_a_field_that_cannot_be_selected_by_is_400(client: Client) -> None:
    status, refusal = await client.ask("GET", "/api/v1/pods", params={"fieldSelector": "spec.priority=1"})
    assert (status, refusal["message"]) == (400, "field label not supported: spec.priority")


# Watches.


async def test_a_watch_tells_what_happens_after_its_version(client: Client, server: StandInApiServer) -> None:
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
    assert [event["type"] for event in await watching] == ["ADDED", "DELETED", "ADDED"]


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
    watching = asyncio.create_task(client.watch("/api/v1/pods", 1, resourceVersion="1"), name="watch")
    await until_watched(server)
    server.send_bookmarks()
    server.create_pod(pod("a"))
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


# Changes.


async def test_a_merge_patch_merges_removes_and_replaces(client: Client, server: StandInApiServer) -> None:
    server.create_pod({"metadata": {"name": "a", "annotations": {"keep": "1", "drop": "2"}}, "spec": {}})
    patch = {"metadata": {"annotations": {"drop": None, "new": "3"}}, "spec": {"tolerations": [1]}}
    status, after = await client.ask("PATCH", f"{PODS_PATH}/a", patch, headers=MERGE)
    assert status == 200
    assert after["metadata"]["annotations"] == {"keep": "1", "new": "3"}
    assert after["spec"]["tolerations"] == [1]


async def test_a_patch_that_changes_nothing_is_no_write(client: Client, server: StandInApiServer) -> None:
    made = server.create_pod({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {}})
    _, after = await client.ask("PATCH", f"{PODS_PATH}/a", {"metadata": {"labels": {"x": "y"}}}, headers=MERGE)
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_status_patch_keeps_metadata_and_ignores_the_spec(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a", nodeName="n1"))
    patch = {
        "metadata": {"annotations": {"x": "y"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n2"},
        "status": {"phase": "Running"},
    }
    _, after = await client.ask("PATCH", f"{PODS_PATH}/a/status", patch, headers=MERGE)
    assert after["metadata"]["annotations"] == {"x": "y"}
    assert "deletionTimestamp" not in after["metadata"]
    assert after["spec"]["nodeName"] == "n1"
    assert after["status"]["phase"] == "Running"


async def test_a_patch_of_the_pod_ignores_its_status(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    _, after = await client.ask("PATCH", f"{PODS_PATH}/a", {"status": {"phase": "Failed"}}, headers=MERGE)
    assert after["status"]["phase"] == "Pending"


async def test_a_patch_with_another_uid_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    status, refusal = await client.ask("PATCH", f"{PODS_PATH}/a/status", {"metadata": {"uid": "x"}}, headers=MERGE)
    assert status == 422
    assert "metadata.uid" in refusal["message"]


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_stale_version_is_refused(client: Client, server: StandInApiServer, method: str) -> None:
    server.create_pod(pod("a"))
    body = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}
    headers = MERGE if method == "PATCH" else {}
    status, refusal = await client.ask(method, f"{PODS_PATH}/a", body, headers=headers)
    assert (status, refusal["reason"]) == (409, "Conflict")
    assert refusal["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the '
        "latest version and try again"
    )


async def test_of_two_updates_of_one_version_one_wins(client: Client) -> None:
    _, made = await client.ask("POST", LEASES_PATH, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    claims = [{**made, "spec": {"holderIdentity": who}} for who in "bc"]
    answers = [await client.ask("PUT", f"{LEASES_PATH}/l", claim) for claim in claims]
    assert [status for status, _ in answers] == [200, 409]


async def test_a_lease_is_not_updated_without_a_version(client: Client) -> None:
    await client.ask("POST", LEASES_PATH, {"metadata": {"name": "l"}, "spec": {}})
    status, refusal = await client.ask("PUT", f"{LEASES_PATH}/l", {"metadata": {"name": "l"}, "spec": {}})
    assert status == 422
    assert "must be specified for an update" in refusal["message"]


@pytest.mark.parametrize("content_type", ["application/json-patch+json", "application/apply-patch+yaml", "text/plain"])
async def test_a_patch_format_it_does_not_speak_is_415(
    client: Client, server: StandInApiServer, content_type: str
) -> None:
    server.create_pod(pod("a"))
    answer = await client.ask("PATCH", f"{PODS_PATH}/a", {}, headers={"Content-Type": content_type})
    assert answer[0] == 415


# Bindings.


def binding(node: str = "n1", **metadata: Any) -> Json:
    return {"metadata": {"name": "a", **metadata}, "target": {"kind": "Node", "name": node}}


async def test_a_binding_writes_node_annotations_and_condition_at_once(
    client: Client, server: StandInApiServer
) -> None:
    made = server.create_pod({"metadata": {"name": "a", "annotations": {"old": "1", "both": "1"}}, "spec": {}})
    server.set_pod_status("default", "a", {"nominatedNodeName": "n9"})
    version = server.get(PODS, "a", "default")["metadata"]["resourceVersion"]
    body = binding(uid=made["metadata"]["uid"], annotations={"both": "2", "NEURON_DEVS": "0,1"})
    status, answer = await client.ask("POST", f"{PODS_PATH}/a/binding", body)
    assert (status, answer["kind"], answer["status"]) == (201, "Status", "Success")
    (event,) = await client.watch("/api/v1/pods", 1, resourceVersion=version)
    after = event["object"]
    assert after["spec"]["nodeName"] == "n1"
    assert after["metadata"]["annotations"] == {"old": "1", "both": "2", "NEURON_DEVS": "0,1"}
    assert [(entry["type"], entry["status"]) for entry in after["status"]["conditions"]] == [("PodScheduled", "True")]
    assert "nominatedNodeName" not in after["status"]


async def test_a_binding_of_a_bound_pod_is_refused_whatever_the_node(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a", nodeName="n1"))
    status, refusal = await client.ask("POST", f"{PODS_PATH}/a/binding", binding("n1"))
    assert (status, refusal["message"]) == (
        409,
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"',
    )


async def test_a_binding_for_another_name_is_400(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    body = {"metadata": {"name": "b"}, "target": {"name": "n1"}}
    status, refusal = await client.ask("POST", f"{PODS_PATH}/a/binding", body)
    assert (status, refusal["message"]) == (400, "name in URL does not match name in Binding object")


async def test_a_binding_of_a_pod_that_is_gone_is_404(client: Client) -> None:
    assert (await client.ask("POST", f"{PODS_PATH}/a/binding", binding()))[0] == 404


async def test_a_server_can_be_told_to_lose_a_bindings_annotations(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    server.drop_binding_annotations()
    await client.ask("POST", f"{PODS_PATH}/a/binding", binding(annotations={"NEURON_DEVS": "0"}))
    bound = server.get(PODS, "a", "default")
    assert bound["spec"]["nodeName"] == "n1"
    assert "annotations" not in bound["metadata"]


# Deletions.


async def test_a_pod_on_a_node_ends_gracefully(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a", nodeName="n1", terminationGracePeriodSeconds=7))
    _, after = await client.ask("DELETE", f"{PODS_PATH}/a")
    assert after["metadata"]["deletionTimestamp"]
    assert after["metadata"]["deletionGracePeriodSeconds"] == 7
    assert names(await client.get("/api/v1/pods")) == ["a"]
    await client.ask("DELETE", f"{PODS_PATH}/a?gracePeriodSeconds=0")
    assert names(await client.get("/api/v1/pods")) == []


@pytest.mark.parametrize("state", ["waiting", "ended", "forced"])
async def test_other_pods_are_gone_at_once(client: Client, server: StandInApiServer, state: str) -> None:
    server.create_pod(pod("a", **({} if state == "waiting" else {"nodeName": "n1"})))
    if state == "ended":
        server.set_pod_status("default", "a", {"phase": "Succeeded"})
    await client.ask("DELETE", f"{PODS_PATH}/a", {"gracePeriodSeconds": 0} if state == "forced" else None)
    assert server.objects(PODS) == []


async def test_a_deletion_for_another_uid_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    status, refusal = await client.ask("DELETE", f"{PODS_PATH}/a", {"preconditions": {"uid": "x"}})
    assert status == 409
    assert "Precondition failed: UID in precondition: x" in refusal["message"]


# Faults.


async def test_a_fault_happens_to_what_it_is_meant_for_and_so_often(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(Match(method="GET", path="/pods$"), times=2, status=503, retry_after_seconds=1))
    assert (await client.ask("GET", "/api/v1/nodes"))[0] == 200
    refused = [(await client.ask("GET", "/api/v1/pods"))[0] for _ in range(3)]
    assert refused == [503, 503, 200]


async def test_a_fault_can_be_taken_back(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(times=9, status=500))
    server.forgive()
    assert (await client.ask("GET", "/api/v1/pods"))[0] == 200


@pytest.mark.parametrize(("fault", "done"), [(Fault(drop=True), False), (Fault(lose_answer=True), True)])
async def test_a_cut_request_is_done_or_not(client: Client, server: StandInApiServer, fault: Fault, done: bool) -> None:  # noqa: FBT001 - a table's column
    server.fail(fault)
    with pytest.raises(aiohttp.ClientError):
        await client.ask("POST", PODS_PATH, pod("a"))
    assert bool(server.objects(PODS)) is done


async def test_a_watch_can_be_made_to_end_at_once(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(Match(watch=True), ends=True))
    assert await client.watch_to_the_end("/api/v1/pods") == []


async def test_a_request_can_be_held(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    asking = asyncio.create_task(client.get("/api/v1/pods"), name="held")
    await asyncio.sleep(0.02)
    assert not asking.done()
    gate.set()
    await asking


async def test_a_stopped_server_comes_back_on_its_port_with_its_objects(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    url = server.url
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await client.get("/api/v1/pods")
    await server.start()
    assert server.url == url
    assert names(await client.get("/api/v1/pods")) == ["a"]


async def test_stopping_does_not_wait_for_watches(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(client.watch("/api/v1/pods", 1, resourceVersion="1"), name="watch")
    await until_watched(server)
    async with asyncio.timeout(0.9):
        await server.stop()
    await asyncio.gather(watching, return_exceptions=True)


async def test_stopping_twice_is_harmless() -> None:
    server = StandInApiServer()
    await server.start()
    await server.stop()
    await server.stop()


# Who may come in.


async def test_with_a_token_only_its_bearer_comes_in(tmp_path: Path) -> None:
    async with StandInApiServer(token="secret") as server, aiohttp.ClientSession(server.url) as session:  # noqa: S106 - a stand-in's
        client = Client(session)
        assert (await client.ask("GET", "/api/v1/pods"))[0] == 401
        assert (await client.ask("GET", "/api/v1/pods", headers={"Authorization": "Bearer guess"}))[0] == 401
        assert (await client.ask("GET", "/api/v1/pods", headers={"Authorization": "Bearer secret"}))[0] == 200
        config = json.loads(server.write_kubeconfig(tmp_path / "kubeconfig").read_text())
        assert config["users"][0]["user"] == {"token": "secret"}


async def test_a_kubeconfig_is_for_its_owner_only(server: StandInApiServer, tmp_path: Path) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["clusters"][0]["cluster"]["server"] == server.url


# Playing the others.


def test_the_play_needs_no_running_server() -> None:
    server = StandInApiServer()
    server.create_node({"metadata": {"name": "n1"}, "status": {"capacity": {"aws.amazon.com/neurondevice": 16}}})
    server.create_pod({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {}})
    server.bind("default", "a", node="n1", annotations={"NEURON_DEVS": "0"})
    server.patch_node("n1", {"metadata": {"labels": {"zone": "a"}}})
    server.patch_node("n1", {"status": {"allocatable": {"aws.amazon.com/neurondevice": "15"}}}, status=True)
    (node,), (bound,) = server.objects(NODES), server.objects(PODS)
    assert node["status"]["capacity"] == {"aws.amazon.com/neurondevice": "16"}
    assert node["status"]["allocatable"] == {"aws.amazon.com/neurondevice": "15"}
    assert (bound["metadata"]["uid"], bound["spec"]["nodeName"]) == ("uid-a", "n1")
    server.delete_node("n1")
    assert [server.objects(kind) for kind in (NODES, LEASES, EVENTS)] == [[], [], []]
    with pytest.raises(Refusal, match='nodes "n1" not found'):
        server.get(NODES, "n1")
