"""What the simulated kube-scheduler and kube-controller-manager do about claims, and which devices are chosen."""

from __future__ import annotations

import pytest

from neuron_plugin.simulation.api_server_kinds import CLAIM_TEMPLATES, EVENTS, PODS, RESOURCE_CLAIMS, Refusal
from neuron_plugin.simulation.resource_claims import (
    NOT_ALLOCATED,
    POD_CLAIM_KEY,
    NotAllocatedError,
    allocate,
    allocations_on,
    claim_names,
    claims_of,
    offered_devices,
    reserve,
    sync_claims,
)
from tests.simulation.dra import (
    DRIVER,
    GROUP_OF_4,
    Json,
    a_cluster,
    claim_spec,
    claims,
    device_class,
    devices_of,
    exactly,
    linked,
    node_slice,
    only_claim,
    pod,
    pod_object,
)
from tests.support.api_server import StandInApiServer

CLASSES = {
    DRIVER: device_class(),
    "efa": device_class("efa"),
    "neuroncore": device_class(
        "neuroncore",
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].?resourceType.orValue("") == "core"',
    ),
}


def chosen(spec: Json, taken: tuple[int, ...] = (), tainted: tuple[int, ...] = ()) -> list[int]:
    """The numbers of the devices for a claim on a trn1.32xlarge."""
    devices = offered_devices([node_slice(tainted=tainted), node_slice("n2")], "n1")
    busy = {(DRIVER, "n1-neuron", f"neuron-{number}") for number in taken}
    found = allocate({"spec": spec}, CLASSES, devices, busy)["results"]
    return [int(each["device"].removeprefix("neuron-")) for each in found]


def selected(expression: str) -> Json:
    return claim_spec(exactly(allocationMode="All", selectors=[{"cel": {"expression": expression}}]))


@pytest.mark.parametrize(
    ("spec", "taken", "devices"),
    [
        (claim_spec(), (), [0]),
        (claim_spec(), (0, 1), [2]),
        (claim_spec(exactly(count=3)), (1,), [0, 2, 3]),
        (linked(4), (), [0, 1, 2, 3]),
        (linked(4), (2,), [4, 5, 6, 7]),
        (linked(8), (2,), list(range(8, 16))),
        (linked(16), (), list(range(16))),
        (claim_spec(exactly(allocationMode="All")), (), list(range(16))),
        (claim_spec(exactly("a"), exactly("b", count=2)), (0,), [1, 2, 3]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"distinctAttribute": GROUP_OF_4}]), (), [0, 4]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"matchAttribute": GROUP_OF_4}]), (1, 2, 3), [4, 5]),
        (selected(f'device.attributes["{DRIVER}"].deviceId < 2'), (), [0, 1]),
        (selected(f'(device.driver == "{DRIVER}") && device.attributes["{DRIVER}"].deviceId >= 14'), (), [14, 15]),
    ],
)
def test_the_first_devices_that_fit_are_chosen(spec: Json, taken: tuple[int, ...], devices: list[int]) -> None:
    assert chosen(spec, taken) == devices


@pytest.mark.parametrize(
    ("spec", "taken", "text"),
    [
        (claim_spec(exactly(count=17)), (), NOT_ALLOCATED),
        (linked(4), (0, 4, 8, 12), NOT_ALLOCATED),
        (linked(8), (7, 8), NOT_ALLOCATED),
        (linked(3, 4), (0, 1, 4, 5, 8, 9, 12, 13), NOT_ALLOCATED),
        (claim_spec(exactly(allocationMode="All")), (3,), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="efa")), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="neuroncore")), (), NOT_ALLOCATED),
        (claim_spec(constraints=[{"matchAttribute": "example.com/rack"}]), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="gone")), (), "request neurons: device class gone does not exist"),
        (selected("device.capacity.size() > 0"), (), "the selector 'device.capacity.size() > 0' is not simulated"),
        (claim_spec({"name": "r", "firstAvailable": []}), (), "request r: alternatives are not simulated"),
    ],
)
def test_a_claim_that_does_not_fit_says_why(spec: Json, taken: tuple[int, ...], text: str) -> None:
    with pytest.raises(NotAllocatedError) as error:
        chosen(spec, taken)
    assert str(error.value) == text


def test_a_taint_keeps_claims_off_that_do_not_tolerate_it() -> None:
    assert chosen(claim_spec(), tainted=(0,)) == [1]
    tolerated = {"key": "neuron-plugin.io/unhealthy", "operator": "Exists"}
    assert chosen(claim_spec(exactly(tolerations=[tolerated])), tainted=(0,)) == [0]
    with pytest.raises(NotAllocatedError):
        chosen(claim_spec(exactly(allocationMode="All")), tainted=(0,))


def test_configuration_comes_along_that_of_the_class_first() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "NeuronConfig"}}}
    known = device_class()
    known["spec"]["config"] = [opaque]
    spec = claim_spec(config=[opaque])
    found = allocate({"spec": spec}, {DRIVER: known}, offered_devices([node_slice()], "n1"), ())
    assert found["config"] == [
        {"source": "FromClass", "requests": ["neurons"], **opaque},
        {"source": "FromClaim", **opaque},
    ]


# In a cluster.


@pytest.fixture
def server() -> StandInApiServer:
    """Two nodes, by its door without sockets."""
    server = StandInApiServer()
    a_cluster(server, nodes=2)
    return server


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


# The controller.


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
    shared(server)
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
    shared(server)
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
    shared(server)
    server.create_pod(pod("a", claim="shared"))
    place(server)
    server.create_pod(pod("b", claim="shared", nodeName="n1"))
    sync_claims(server)
    assert [each["name"] for each in only_claim(server)["status"]["reservedFor"]] == ["a", "b"]
