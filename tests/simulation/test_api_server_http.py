"""The simulated API server over HTTP: lists, writes, and faults."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.simulation.api_server_faults import take_fault
from neuron_plugin.simulation.api_server_kinds import EVENTS, PODS
from tests.simulation.api_client import LEASES_PATH, MERGE, PODS_PATH, Client, Json, names, pod, until_watched
from tests.support.api_server import Fault, Match, StandInApiServer

GET = ApiRequest("GET", "/")


def labelled(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "spec": {}}


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


async def test_a_list_by_labels_shows_them_alone(client: Client, server: StandInApiServer) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        server.create_pod(labelled(name, app=app))
    server.create_pod(pod("bare", nodeName="n1"))
    assert names(await client.get("/api/v1/pods", labelSelector="app=x")) == ["a", "c"]
    assert names(await client.get("/api/v1/pods", labelSelector="!app", fieldSelector="spec.nodeName=n1")) == ["bare"]
    first = await client.get("/api/v1/pods", labelSelector="app=x", limit="1")
    rest = await client.get("/api/v1/pods", labelSelector="app=x", **{"continue": first["metadata"]["continue"]})
    assert names(first) + names(rest) == ["a", "c"]


async def test_events_as_kubectl_lists_them_are_selected_by_labels(client: Client, server: StandInApiServer) -> None:
    metadata = {"name": "e", "labels": {"app": "x"}}
    event = {"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A"}
    reporter = {"reportingController": "c", "reportingInstance": "i"}
    server.create(EVENTS, {"metadata": metadata, **event, **reporter}, "default")
    assert names(await client.get("/api/v1/events", labelSelector="app=x")) == ["e"]
    assert names(await client.get("/api/v1/events", labelSelector="app=y")) == []


@pytest.mark.parametrize("query", [{}, {"watch": "true"}])
@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/events"])
async def test_a_label_selector_that_cannot_be_read_is_400(client: Client, path: str, query: dict[str, str]) -> None:
    status, refusal = await client.ask("GET", path, params={"labelSelector": "app=x=y", **query})
    assert (status, refusal["kind"], refusal["status"]) == (400, "Status", "Failure")
    assert (refusal["reason"], refusal["code"]) == ("BadRequest", 400)
    assert refusal["message"].startswith("unable to parse requirement: found 'app=x=y'")


async def test_a_field_that_cannot_be_selected_by_is_400(client: Client) -> None:
    status, refusal = await client.ask("GET", "/api/v1/pods", params={"fieldSelector": "spec.priority=1"})
    assert (status, refusal["message"]) == (400, "field label not supported: spec.priority")


# Changes.


async def test_a_merge_patch_merges_removes_and_replaces(client: Client, server: StandInApiServer) -> None:
    server.create_pod({"metadata": {"name": "a", "annotations": {"keep": "1", "drop": "2"}}, "spec": {}})
    patch = {"metadata": {"annotations": {"drop": None, "new": "3"}}, "spec": {"tolerations": [{"key": "k"}]}}
    status, after = await client.ask("PATCH", f"{PODS_PATH}/a", patch, headers=MERGE)
    assert status == 200
    assert after["metadata"]["annotations"] == {"keep": "1", "new": "3"}
    assert after["spec"]["tolerations"] == [{"key": "k"}]


@pytest.mark.parametrize(
    "query",
    [{"limit": "x"}, {"resourceVersion": "x"}, {"watch": "1", "resourceVersion": "x"}, {"timeoutSeconds": "x"}],
)
async def test_a_query_that_cannot_be_meant_is_a_bad_request(client: Client, query: dict[str, str]) -> None:
    assert (await client.ask("GET", PODS_PATH, params=query))[0] == 400


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_dry_run_is_refused_and_writes_nothing(client: Client, server: StandInApiServer, method: str) -> None:
    made = server.create_pod(pod("a"))
    path = PODS_PATH if method == "POST" else f"{PODS_PATH}/a"
    assert (await client.ask(method, path, pod("b"), params={"dryRun": "All"}))[0] == 400
    assert server.objects(PODS) == [made]


async def test_an_object_is_replaced_whole_under_the_rules_of_a_patch(client: Client, server: StandInApiServer) -> None:
    made = server.create_pod({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"containers": []}})
    version = made["metadata"]["resourceVersion"]
    body = {"metadata": {"name": "a", "labels": {"z": "y"}, "resourceVersion": version}, "spec": made["spec"]}
    status, after = await client.ask("PUT", f"{PODS_PATH}/a", body)
    assert (status, after["metadata"]["labels"]) == (200, {"z": "y"})
    assert (await client.ask("PUT", f"{PODS_PATH}/a", body))[0] == 409
    assert (await client.ask("PUT", f"{PODS_PATH}/b", body))[0] == 404


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


async def test_a_stale_version_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    body = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}
    status, refusal = await client.ask("PATCH", f"{PODS_PATH}/a", body, headers=MERGE)
    assert (status, refusal["reason"]) == (409, "Conflict")
    assert refusal["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the '
        "latest version and try again"
    )


async def test_of_two_patches_of_one_version_one_wins(client: Client) -> None:
    _, made = await client.ask("POST", LEASES_PATH, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    claims = [{**made, "spec": {"holderIdentity": who}} for who in "bc"]
    answers = [await client.ask("PATCH", f"{LEASES_PATH}/l", claim, headers=MERGE) for claim in claims]
    assert [status for status, _ in answers] == [200, 409]


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


async def test_a_pod_on_a_node_ends_gracefully(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a", nodeName="n1", terminationGracePeriodSeconds=7))
    _, after = await client.ask("DELETE", f"{PODS_PATH}/a")
    assert after["metadata"]["deletionTimestamp"]
    assert after["metadata"]["deletionGracePeriodSeconds"] == 7
    assert names(await client.get("/api/v1/pods")) == ["a"]
    await client.ask("DELETE", f"{PODS_PATH}/a?gracePeriodSeconds=0")
    assert names(await client.get("/api/v1/pods")) == []


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


async def test_a_deletion_for_another_uid_is_refused(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    status, refusal = await client.ask("DELETE", f"{PODS_PATH}/a", {"preconditions": {"uid": "x"}})
    assert status == 409
    assert "Precondition failed: UID in precondition: x" in refusal["message"]


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


def test_without_faults_nothing_happens() -> None:
    assert take_fault([], GET) is None


def test_a_fault_is_used_up() -> None:
    faults: list[Fault] = []
    faults.append(Fault(times=2, status=500))
    taken = [take_fault(faults, GET) for _ in range(3)]
    assert [fault.status if fault else None for fault in taken] == [500, 500, None]


def test_faults_happen_in_their_order() -> None:
    faults = [Fault(status=status) for status in (500, 503)]
    taken = [take_fault(faults, GET) for _ in range(2)]
    assert [fault.status for fault in taken if fault] == [500, 503]


def test_a_fault_waits_for_the_request_it_is_meant_for() -> None:
    faults: list[Fault] = []
    faults.append(Fault(Match(method="POST"), status=500))
    assert take_fault(faults, GET) is None
    assert take_fault(faults, ApiRequest("POST", "/")) is not None


def test_what_was_cleared_does_not_happen() -> None:
    faults: list[Fault] = []
    faults.append(Fault(times=9))
    faults.clear()
    assert take_fault(faults, GET) is None


# Over HTTP.


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
