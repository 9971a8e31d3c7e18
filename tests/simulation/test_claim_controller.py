"""The simulated kube-controller-manager: what becomes of claims."""

from __future__ import annotations

import pytest

from neuron_plugin.simulation.api_server_kinds import CLAIM_TEMPLATES, EVENTS, PODS, RESOURCE_CLAIMS
from neuron_plugin.simulation.claim_controller import POD_CLAIM_KEY, claim_names, sync_claims
from neuron_plugin.simulation.scheduler_claims import allocations_on, claims_of, reserve
from tests.simulation.dra import a_cluster, claim_spec, claims, devices_of, only_claim, pod, pod_object
from tests.support.api_server import StandInApiServer


@pytest.fixture(autouse=True)
def cluster(server: StandInApiServer) -> None:
    a_cluster(server)


def place(server: StandInApiServer, name: str = "a") -> None:
    """Do the scheduler's part."""
    made = claims_of(server, pod_object(server, name))
    reserve(server, pod_object(server, name), made, allocations_on(server, made, "n1"))
    server.bind("default", name, node="n1")


def test_the_claim_of_a_new_pod_is_made_and_named_in_its_status(server: StandInApiServer) -> None:
    server.create_pod(pod(template="one"))
    sync_claims(server)
    claim = only_claim(server)
    assert claim["metadata"]["name"].startswith("a-neurons-")
    assert claim["metadata"]["annotations"] == {POD_CLAIM_KEY: "neurons"}
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod_object(server)["metadata"]["uid"]
    assert claim_names(pod_object(server)) == {"neurons": claim["metadata"]["name"]}
    sync_claims(server)
    assert claims(server) == [claim]


def test_also_of_a_gated_pod_and_of_none_that_is_being_deleted(server: StandInApiServer) -> None:
    server.create_pod(pod("gated", template="one", schedulingGates=[{"name": "example.com/gate"}]))
    server.create_pod(pod("leaving", template="one", nodeName="n1"))
    server.delete_pod("default", "leaving")
    sync_claims(server)
    assert only_claim(server)["metadata"]["name"].startswith("gated-neurons-")


def test_an_event_says_once_that_a_template_is_not_there(server: StandInApiServer) -> None:
    made = server.create_pod(pod(template="late"))
    for _ in range(2):
        sync_claims(server)
    (event,) = server.objects(EVENTS)
    assert (event["regarding"]["uid"], event["reason"]) == (made["metadata"]["uid"], "FailedResourceClaimCreation")
    assert 'resource claim template "late": ' in event["note"]
    server.create(CLAIM_TEMPLATES, {"metadata": {"name": "late"}, "spec": {"spec": claim_spec()}}, "default")
    sync_claims(server)
    assert only_claim(server)


def test_the_claim_of_a_pod_that_has_ended_is_freed_and_deleted(server: StandInApiServer) -> None:
    server.create_pod(pod(template="one"))
    sync_claims(server)
    place(server)
    sync_claims(server)
    assert devices_of(only_claim(server)) == ["neuron-0"]
    server.patch_status(PODS, "a", {"phase": "Succeeded"}, "default")
    sync_claims(server)
    assert claims(server) == []


def test_the_claim_of_a_pod_that_is_being_deleted_stays(server: StandInApiServer) -> None:
    server.create_pod(pod(template="one"))
    sync_claims(server)
    place(server)
    server.delete_pod("default", "a")
    sync_claims(server)
    assert devices_of(only_claim(server)) == ["neuron-0"]


def test_a_shared_claim_is_deallocated_when_its_last_pod_has_ended_and_stays(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()}, "default")
    for name in ("a", "b"):
        server.create_pod(pod(name, claim="shared"))
        place(server, name)
    server.delete_pod("default", "a", grace_seconds=0)
    sync_claims(server)
    assert [each["name"] for each in only_claim(server)["status"]["reservedFor"]] == ["b"]
    assert devices_of(only_claim(server)) == ["neuron-0"]
    server.delete_pod("default", "b", grace_seconds=0)
    sync_claims(server)
    assert only_claim(server)["status"] == {"reservedFor": []}
    assert not only_claim(server)["metadata"].get("finalizers")


def test_a_deleted_claim_is_there_until_its_last_pod_has_ended(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()}, "default")
    server.create_pod(pod(claim="shared"))
    place(server)
    server.delete(RESOURCE_CLAIMS, "shared", "default")
    sync_claims(server)
    assert only_claim(server)["metadata"]["deletionTimestamp"]
    server.delete_pod("default", "a", grace_seconds=0)
    sync_claims(server)
    assert claims(server) == []


def test_an_allocation_that_nobody_has_reserved_yet_stays(server: StandInApiServer) -> None:
    server.create_pod(pod(template="one", schedulingGates=[{"name": "example.com/gate"}]))
    sync_claims(server)
    name = only_claim(server)["metadata"]["name"]
    (allocation,) = allocations_on(server, claims(server), "n1")
    server.change(RESOURCE_CLAIMS, name, {"status": {"allocation": allocation}}, "default", "status")
    sync_claims(server)
    assert devices_of(only_claim(server)) == ["neuron-0"]


def test_a_pod_that_names_its_node_itself_gets_an_allocated_claim_reserved(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()}, "default")
    server.create_pod(pod("a", claim="shared"))
    place(server)
    server.create_pod(pod("b", claim="shared", nodeName="n1"))
    sync_claims(server)
    assert [each["name"] for each in only_claim(server)["status"]["reservedFor"]] == ["a", "b"]
