"""ResourceClaims are decoded as the driver understands them, and nothing in one can fail that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuron_plugin.allocation import Rejection
from neuron_plugin.allocation.claims import ClaimRequest, ClaimResult, NeuronClaim
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, RESOURCE_SLICES, allocation_of, neuron_claim
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.topology import Unit

DRIVER = "neuron.aws.com"


def decoded(spec: dict[str, Any], status: dict[str, Any] | None = None) -> NeuronClaim:
    manifest = {
        "metadata": {"name": "c", "namespace": "ml", "uid": "u", "resourceVersion": "7", "finalizers": ["x"]},
        "spec": {"devices": spec},
        "status": status or {},
    }
    return neuron_claim(RESOURCE_CLAIMS.decode(json.dumps(manifest).encode()), DRIVER)


def request(name: str = "r", **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **exactly}}


def selected(text: str) -> tuple[ClaimRequest, ...] | Rejection:
    return decoded({"requests": [request(selectors=[{"cel": {"expression": text}}])]}).requests


@pytest.mark.parametrize(
    ("exactly", "expected"),
    [
        ({}, ClaimRequest("r", Unit.DEVICE, 1)),
        ({"allocationMode": "ExactCount", "count": 8}, ClaimRequest("r", Unit.DEVICE, 8)),
        ({"allocationMode": "All"}, ClaimRequest("r", Unit.DEVICE, 0)),
        ({"deviceClassName": "neuroncore", "count": 2}, ClaimRequest("r", Unit.CORE, 2)),
    ],
)
def test_a_request_says_how_many_of_what(exactly: dict[str, Any], expected: ClaimRequest) -> None:
    assert decoded({"requests": [request(**exactly)]}).requests == (expected,)


def test_cores_can_be_a_parameter() -> None:
    config = {"opaque": {"driver": DRIVER, "parameters": {"kind": "NeuronConfig", "cores": 6}}}
    found = decoded({"requests": [request(deviceClassName="neuroncore")], "config": [config]})
    assert found.requests == (ClaimRequest("r", Unit.CORE, 6),)


def test_the_logical_core_size_is_read_from_what_was_allocated() -> None:
    def config(size: int) -> list[dict[str, Any]]:
        parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": size}
        return [{"requests": ["r"], "opaque": {"driver": DRIVER, "parameters": parameters}}]

    spec = {"requests": [request()], "config": config(1)}
    assert decoded(spec).logical_core_size == 1
    assert decoded(spec, {"allocation": {"devices": {"config": config(2)}}}).logical_core_size == 2


def test_a_claims_configuration_replaces_its_classs_and_two_of_its_own_may_not_differ() -> None:
    def config(size: int, source: str) -> dict[str, Any]:
        parameters = {"kind": "NeuronConfig", "logicalNeuronCore": size}
        return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}

    def found(*configs: dict[str, Any]) -> NeuronClaim:
        return decoded({"requests": [request()]}, {"allocation": {"devices": {"config": list(configs)}}})

    assert found(config(1, "FromClass"), config(2, "FromClaim")).logical_core_size == 2
    assert found(config(2, "FromClaim"), config(2, "FromClaim")).logical_core_size == 2
    assert "2 configurations that differ" in found(config(1, "FromClaim"), config(2, "FromClaim")).fault


@pytest.mark.parametrize("parameters", [{"kind": "Other"}, {"kind": "NeuronConfig", "logicalNeuronCore": 3}, [], "x"])
def test_a_configuration_that_cannot_be_followed_is_a_rejection(parameters: Any) -> None:
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    found = decoded({"requests": [request()], "config": config})
    assert isinstance(found.requests, Rejection)
    assert found.fault == found.requests.detail


def test_another_drivers_configuration_says_nothing() -> None:
    config = [{"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Gpu"}}}]
    assert decoded({"requests": [request()], "config": config}).requests == (ClaimRequest("r", Unit.DEVICE, 1),)


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_the_constraint_of_awss_templates_asks_for_devices_that_have_a_group(count: int) -> None:
    """Linked sets of the count are in one group by themselves."""
    attribute = f"resource.aws.com/devicegroup{count}_id"
    constraint = {"requests": ["r"], "matchAttribute": attribute}
    found = decoded({"requests": [request("other"), request(count=count)], "constraints": [constraint]})
    asked = (ClaimRequest("other", Unit.DEVICE, 1), ClaimRequest("r", Unit.DEVICE, count, ((attribute, None),)))
    assert found.requests == asked


@pytest.mark.parametrize("name", ["instanceType", "neuronDriverVersion"])
def test_what_all_devices_of_a_node_share_they_have_in_common(name: str) -> None:
    constraint = {"matchAttribute": f"neuron.aws.com/{name}"}
    found = decoded({"requests": [request("a"), request("b")], "constraints": [constraint]})
    assert found.requests == (ClaimRequest("a", Unit.DEVICE, 1), ClaimRequest("b", Unit.DEVICE, 1))


@pytest.mark.parametrize(
    "constraint",
    [
        {"matchAttribute": "example.com/rack"},
        {"matchAttribute": "resource.aws.com/devicegroup4_id"},  # of eight devices
        {"distinctAttribute": "neuron.aws.com/topology_x"},
    ],
)
def test_a_constraint_that_cannot_be_judged_is_named(constraint: dict[str, str]) -> None:
    found = decoded({"requests": [request(count=8)], "constraints": [constraint]}).requests
    assert isinstance(found, Rejection)
    assert next(iter(constraint.values())) in str(found)


def test_a_conjunction_of_comparisons_is_read() -> None:
    text = (
        "device.attributes[\"neuron.aws.com\"].deviceId == 5 && device.attributes['neuron.aws.com'].resourceType == 'x'"
    )
    found = selected(f"device.driver == '{DRIVER}' && {text}")
    assert not isinstance(found, Rejection)
    assert found[0].attributes == (("neuron.aws.com/deviceId", 5), ("neuron.aws.com/resourceType", "x"))


@pytest.mark.parametrize("attribute", ['neuron.aws.com"].networkNodeLayer1', 'example.com"].rack'])
def test_a_selector_for_an_attribute_that_is_not_known_is_a_rejection(attribute: str) -> None:
    found = selected(f'device.attributes["{attribute} == "x"')
    assert isinstance(found, Rejection)
    assert "cannot be judged here" in str(found)


@pytest.mark.parametrize("text", ["true", "device.attributes['a.b'].c > 3", "a || b", "device.driver == 'other'"])
def test_any_other_selector_is_a_rejection_that_says_what_was_expected(text: str) -> None:
    found = selected(text)
    assert isinstance(found, Rejection)
    assert "expected" in str(found)


@pytest.mark.parametrize(
    "one", [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": DRIVER}]}, request(adminAccess=True)]
)
def test_what_only_kube_scheduler_can_allocate_is_a_rejection(one: dict[str, Any]) -> None:
    found = decoded({"requests": [one]})
    assert isinstance(found.requests, Rejection)
    assert not found.fault


def test_a_claim_for_other_devices_asks_us_for_nothing() -> None:
    found = decoded({"requests": [request(deviceClassName="gpu.example.com")]})
    assert found.requests == ()
    assert found.others


def test_an_allocation_reads_back() -> None:
    results = (ClaimResult("r", "a-neuron", "neuron-3"), ClaimResult("r", "a-neuron", "neuron-4"))
    allocation: dict[str, Any] = dict(allocation_of(DRIVER, "a", results, "2026-11-26T00:00:00Z"))
    allocation["devices"]["results"].append({"request": "x", "driver": "other", "pool": "p", "device": "d"})
    reserved = [{"resource": "pods", "name": "p", "uid": "1"}, {"resource": "things", "name": "t", "uid": "2"}]
    found = decoded({"requests": [request(count=2)]}, {"allocation": allocation, "reservedFor": reserved})
    assert (found.allocated, found.node, found.results, found.reserved_for) == (True, "a", results, ("1",))
    assert (found.version, found.finalizers, str(found)) == ("7", ("x",), "ml/c")


def test_a_slice_of_any_shape_has_a_driver_or_none() -> None:
    assert RESOURCE_SLICES.decode(b'{"metadata": {}, "spec": {"driver": "a"}}').driver == "a"
    assert RESOURCE_SLICES.decode(b'{"metadata": {}, "spec": 7}').driver == ""


def test_a_template_of_which_no_claim_was_needed_asks_for_nothing() -> None:
    uses = [{"name": "nic", "resourceClaimTemplateName": "t"}, {"name": "dev", "resourceClaimName": "d"}]

    def names(*said: dict[str, str]) -> list[str]:
        metadata = {"name": "p", "namespace": "ml", "uid": "u"}
        manifest = {"metadata": metadata, "spec": {"resourceClaims": uses}, "status": {"resourceClaimStatuses": said}}
        return [one.claim for one in neuron_pod(PODS.decode(json.dumps(manifest).encode())).claims]

    assert names() == ["", "d"], "nobody has said so yet"
    assert names({"name": "nic"}) == ["d"]
    assert names({"name": "nic", "resourceClaimName": "p-nic-1"}) == ["p-nic-1", "d"]
