"""Patches, updates, bindings and deletions at the stand-in API server, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation import PODS
from neuron_plugin.simulation.api_server import StandInApiServer
from tests.simulation.api_client import LEASES_PATH, MERGE, PODS_PATH, Client, Json, names, pod

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
