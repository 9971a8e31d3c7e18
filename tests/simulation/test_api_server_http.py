"""The simulated API server over HTTP: lists, writes, and faults."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.simulation.api_server_faults import take_fault
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.simulation.api_client import MERGE, PODS_PATH, Client, Json, names, pod, until_watched
from tests.support.api_server import Fault, Match, StandInApiServer

GET = ApiRequest("GET", "/")


def labelled(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "spec": {}}


# Lists.


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


@pytest.mark.parametrize("query", [{}, {"watch": "true"}])
@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/events"])
async def test_a_label_selector_that_cannot_be_read_is_400(client: Client, path: str, query: dict[str, str]) -> None:
    status, refusal = await client.ask("GET", path, params={"labelSelector": "app=x=y", **query})
    assert (status, refusal["kind"], refusal["status"]) == (400, "Status", "Failure")
    assert (refusal["reason"], refusal["code"]) == ("BadRequest", 400)
    assert refusal["message"].startswith("unable to parse requirement: found 'app=x=y'")


# Changes.


@pytest.mark.parametrize(
    "query",
    [{"limit": "x"}, {"resourceVersion": "x"}, {"watch": "1", "resourceVersion": "x"}, {"timeoutSeconds": "x"}],
)
async def test_a_query_that_cannot_be_meant_is_a_bad_request(client: Client, query: dict[str, str]) -> None:
    assert (await client.ask("GET", PODS_PATH, params=query))[0] == 400


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("change", [{"metadata": 7}, {"spec": {"containers": 7}}, {"metadata": {"labels": {"a": 1}}}])
async def test_a_change_that_cannot_be_meant_is_refused(
    client: Client, server: StandInApiServer, method: str, change: Json
) -> None:
    server.create_pod(pod("a"))
    headers = MERGE if method == "PATCH" else {"Content-Type": "application/json"}
    assert (await client.ask(method, f"{PODS_PATH}/a", change, headers=headers))[0] in {400, 422}
    server.create_node({"metadata": {"name": "n"}})
    assert (await client.ask(method, "/api/v1/nodes/n", {"metadata": {"labels": 1}}, headers=headers))[0] == 400


async def test_a_patch_that_changes_nothing_is_no_write(client: Client, server: StandInApiServer) -> None:
    made = server.create_pod({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {}})
    _, after = await client.ask("PATCH", f"{PODS_PATH}/a", {"metadata": {"labels": {"x": "y"}}}, headers=MERGE)
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_patch_of_the_pod_ignores_its_status(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    _, after = await client.ask("PATCH", f"{PODS_PATH}/a", {"status": {"phase": "Failed"}}, headers=MERGE)
    assert after["status"]["phase"] == "Pending"


async def test_a_stale_version_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    body = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}
    status, refusal = await client.ask("PATCH", f"{PODS_PATH}/a", body, headers=MERGE)
    assert (status, refusal["reason"]) == (409, "Conflict")
    assert refusal["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the '
        "latest version and try again"
    )


@pytest.mark.parametrize("content_type", ["application/apply-patch+yaml", "text/plain"])
async def test_a_patch_format_it_does_not_speak_is_415(
    client: Client, server: StandInApiServer, content_type: str
) -> None:
    server.create_pod(pod("a"))
    answer = await client.ask("PATCH", f"{PODS_PATH}/a", {}, headers={"Content-Type": content_type})
    assert answer[0] == 415


# Bindings.


async def test_a_collection_is_deleted_by_labels(client: Client, server: StandInApiServer) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        server.create_pod(labelled(name, app=app))
    status, answer = await client.ask("DELETE", PODS_PATH, params={"labelSelector": "app in (x)"})
    assert (status, answer["kind"], names(answer)) == (200, "PodList", ["a", "c"])
    assert names(await client.get("/api/v1/pods")) == ["b"]
    assert (await client.ask("DELETE", PODS_PATH, params={"labelSelector": "app in"}))[0] == 400
    assert names(await client.get("/api/v1/pods")) == ["b"]


async def test_a_collection_is_deleted_in_its_namespace_alone_and_gracefully(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a", nodeName="n1"))
    server.create_pod({"metadata": {"name": "b", "namespace": "other"}, "spec": {}})
    await client.ask("DELETE", PODS_PATH)
    assert names(await client.get("/api/v1/pods")) == ["a", "b"]
    assert "deletionTimestamp" in server.get(PODS, "a", "default")["metadata"]
    await client.ask("DELETE", PODS_PATH, params={"gracePeriodSeconds": "0"})
    assert names(await client.get("/api/v1/pods")) == ["b"]


@pytest.mark.parametrize("state", ["waiting", "ended", "forced"])
async def test_other_pods_are_gone_at_once(client: Client, server: StandInApiServer, state: str) -> None:
    server.create_pod(pod("a", **({} if state == "waiting" else {"nodeName": "n1"})))
    if state == "ended":
        server.set_pod_status("default", "a", {"phase": "Succeeded"})
    await client.ask("DELETE", f"{PODS_PATH}/a", {"gracePeriodSeconds": 0} if state == "forced" else None)
    assert server.objects(PODS) == []


# Faults.


@pytest.mark.parametrize(
    ("match", "meets"),
    [
        (Match(), True),
        (Match(method="GET"), True),
        (Match(method="POST"), False),
        (Match(path="/pods$"), True),
        (Match(path="/binding$"), False),
        (Match(watch=True), True),
        (Match(watch=False), False),
        (Match(method="GET", path="v1", watch=True), True),
    ],
)
def test_a_match_says_which_requests(match: Match, meets: bool) -> None:  # noqa: FBT001 - a table's column
    assert match.meets("GET", "/api/v1/pods", watch=True) is meets


def test_a_fault_is_used_up() -> None:
    faults: list[Fault] = []
    faults.append(Fault(times=2, status=500))
    taken = [take_fault(faults, GET) for _ in range(3)]
    assert [fault.status if fault else None for fault in taken] == [500, 500, None]


def test_faults_happen_in_their_order() -> None:
    faults = [Fault(status=status) for status in (500, 503)]
    taken = [take_fault(faults, GET) for _ in range(2)]
    assert [fault.status for fault in taken if fault] == [500, 503]


# Over HTTP.


async def test_a_fault_happens_to_what_it_is_meant_for_and_so_often(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(Match(method="GET", path="/pods$"), times=2, status=503, retry_after_seconds=1))
    assert (await client.ask("GET", "/api/v1/nodes"))[0] == 200
    refused = [(await client.ask("GET", "/api/v1/pods"))[0] for _ in range(3)]
    assert refused == [503, 503, 200]


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
