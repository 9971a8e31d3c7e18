"""What the simulated kube-scheduler does about claims of a pod."""

from __future__ import annotations

import pytest

from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, Refusal
from neuron_plugin.simulation.claim_allocator import NotAllocatedError
from neuron_plugin.simulation.claim_controller import sync_claims
from neuron_plugin.simulation.scheduler_claims import allocations_on, claims_of, reserve
from tests.simulation.dra import a_cluster, claim_spec, claims, devices_of, only_claim, pod, pod_object
from tests.support.api_server import StandInApiServer


@pytest.fixture(autouse=True)
def cluster(server: StandInApiServer) -> None:
    a_cluster(server, nodes=2)


def shared(server: StandInApiServer, **status: object) -> None:
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()}, "default")
    server.change(RESOURCE_CLAIMS, "shared", {"status": status}, "default", "status")


def test_a_pod_waits_for_its_claim_to_be_made(server: StandInApiServer) -> None:
    made = server.create_pod(pod(template="one"))
    with pytest.raises(NotAllocatedError, match='pod "default/a": ResourceClaim not created yet'):
        claims_of(server, made)


def test_claims_of_one_node_never_share_a_device_and_pods_get_their_devices(server: StandInApiServer) -> None:
    for name in ("a", "b", "c"):
        server.create_pod(pod(name, template="four" if name == "b" else "one"))
        sync_claims(server)
        made = claims_of(server, pod_object(server, name))
        reserve(server, pod_object(server, name), made, allocations_on(server, made, "n1"))
    found = {each["metadata"]["name"][0]: devices_of(each) for each in claims(server)}
    assert found == {"a": ["neuron-0"], "b": [f"neuron-{number}" for number in range(4, 8)], "c": ["neuron-1"]}
    assert {each["status"]["reservedFor"][0]["name"] for each in claims(server)} == {"a", "b", "c"}


def test_an_allocated_claim_is_taken_as_it_is_and_keeps_its_pod_on_its_node(server: StandInApiServer) -> None:
    shared(server)
    (on_n1,) = allocations_on(server, claims(server), "n1")
    on_n1["devices"]["results"][0]["device"] = "neuron-3-cores-6-7"
    server.change(RESOURCE_CLAIMS, "shared", {"status": {"allocation": on_n1}}, "default", "status")
    with pytest.raises(NotAllocatedError, match="resourceclaim not available on the node"):
        allocations_on(server, claims(server), "n2")
    made = server.create_pod(pod(claim="shared"))
    reserve(server, made, claims(server), allocations_on(server, claims(server), "n1"))
    assert devices_of(only_claim(server)) == ["neuron-3-cores-6-7"]


def test_an_allocation_without_a_time_cannot_be_reserved(server: StandInApiServer) -> None:
    shared(server)
    (found,) = allocations_on(server, claims(server), "n1")
    timeless = {key: part for key, part in found.items() if key != "allocationTimestamp"}
    server.change(RESOURCE_CLAIMS, "shared", {"status": {"allocation": timeless}}, "default", "status")
    made = server.create_pod(pod(claim="shared"))
    with pytest.raises(Refusal, match="field is immutable"):
        reserve(server, made, claims(server), allocations_on(server, claims(server), "n1"))


def test_a_claim_that_goes_or_is_full_keeps_new_pods_waiting(server: StandInApiServer) -> None:
    shared(server)
    (found,) = allocations_on(server, claims(server), "n1")
    users = [{"resource": "pods", "name": f"p{number}", "uid": f"u{number}"} for number in range(256)]
    status = {"allocation": found, "reservedFor": users}
    server.change(RESOURCE_CLAIMS, "shared", {"status": status}, "default", "status")
    made = server.create_pod(pod(claim="shared"))
    with pytest.raises(NotAllocatedError, match="resourceclaim in use"):
        claims_of(server, made)
    server.change(RESOURCE_CLAIMS, "shared", {"metadata": {"finalizers": ["example.com/f"]}}, "default")
    server.delete(RESOURCE_CLAIMS, "shared", "default")
    with pytest.raises(NotAllocatedError, match='resourceclaim "shared" is being deleted'):
        claims_of(server, made)
