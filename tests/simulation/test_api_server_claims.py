"""Claims, templates and slices on the simulated API server."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.claims import PLACED_TAINT
from neuron_plugin.simulation.api_server_kinds import CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, Refusal
from tests.simulation.api_client import MERGE, Client, Json, names
from tests.support.api_server import StandInApiServer

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FINALIZER = "resource.kubernetes.io/delete-protection"
POD = {"resource": "pods", "name": "a", "uid": "uid-a"}


def claim(name: str = "c", **metadata: Any) -> Json:
    request = {"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com"}}
    return {"metadata": {"name": name, **metadata}, "spec": {"devices": {"requests": [request]}}}


def allocation(device: str = "neuron-0", **parts: Any) -> Json:
    result = {"request": "neurons", "driver": "neuron.aws.com", "pool": "n1-neuron", "device": device}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    selector = {"nodeSelector": {"nodeSelectorTerms": [term]}}
    return {"allocation": {"devices": {"results": [result]}, **selector, **parts}}


def resource_slice(name: str = "n1-neuron", node: str = "n1", driver: str = "neuron.aws.com") -> Json:
    pool = {"name": f"{node}-neuron", "generation": 1, "resourceSliceCount": 1}
    taint = {"key": "neuron-plugin.io/unhealthy", "value": "unhealthy", "effect": "NoSchedule"}
    devices = [{"name": "neuron-0"}, {"name": "neuron-1", "taints": [taint]}]
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }


async def test_a_claim_with_a_finalizer_goes_when_it_is_taken_off(client: Client) -> None:
    await client.ask("POST", CLAIMS, claim(finalizers=[FINALIZER]))
    _, left = await client.ask("DELETE", f"{CLAIMS}/c")
    assert left["metadata"]["deletionTimestamp"]
    again = (await client.get(f"{CLAIMS}/c"))["metadata"]
    await client.ask("DELETE", f"{CLAIMS}/c")
    assert (await client.get(f"{CLAIMS}/c"))["metadata"] == again
    status, _ = await client.ask("PATCH", f"{CLAIMS}/c", {"metadata": {"finalizers": None}}, headers=MERGE)
    assert status == 200
    assert names(await client.get(CLAIMS)) == []


async def test_the_status_of_a_claim_brings_no_finalizer(client: Client) -> None:
    await client.ask("POST", CLAIMS, claim(finalizers=[FINALIZER]))
    change = {"metadata": {"finalizers": []}, "status": allocation()}
    _, after = await client.ask("PATCH", f"{CLAIMS}/c/status", change, headers=MERGE)
    assert after["metadata"]["finalizers"] == [FINALIZER]
    assert after["status"] == allocation()


@pytest.mark.parametrize(
    ("before", "change", "text"),
    [
        (allocation(), allocation("neuron-1"), "status.allocation: Invalid value: field is immutable"),
        (allocation(), allocation(allocationTimestamp="2026-01-01T00:00:00Z"), "field is immutable"),
        ({}, {"reservedFor": [POD]}, "may not be specified when `allocated` is not set"),
        (allocation(), {"reservedFor": [POD, POD]}, "status.reservedFor: Duplicate value"),
        (
            allocation(),
            {"reservedFor": [POD | {"uid": str(number)} for number in range(257)]},
            "status.reservedFor: Too many: 257: must have at most 256 items",
        ),
        (allocation() | {"reservedFor": [POD]}, {"reservedFor": [POD, POD | {"uid": "b"}]}, "new entries may not be"),
    ],
)
def test_a_status_that_cannot_be_is_refused(server: StandInApiServer, before: Json, change: Json, text: str) -> None:
    server.create(RESOURCE_CLAIMS, claim(finalizers=[FINALIZER]), "default")
    server.change(RESOURCE_CLAIMS, "c", {"status": before}, "default", "status")
    if "new entries" in text:
        server.delete(RESOURCE_CLAIMS, "c", "default")
    with pytest.raises(Refusal, match=text) as refusal:
        server.change(RESOURCE_CLAIMS, "c", {"status": change}, "default", "status")
    assert refusal.value.code == 422


def test_an_allocation_is_set_reserved_and_cleared(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, claim(), "default")
    for status in (allocation(), {"reservedFor": [POD]}, {"allocation": None, "reservedFor": None}):
        after = server.change(RESOURCE_CLAIMS, "c", {"status": status}, "default", "status")
    assert after["status"] == {}


def test_the_spec_of_a_claim_and_of_a_template_stays(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, claim(), "default")
    server.create(CLAIM_TEMPLATES, {"metadata": {"name": "t"}, "spec": claim()}, "default")
    for kind, name in ((RESOURCE_CLAIMS, "c"), (CLAIM_TEMPLATES, "t")):
        with pytest.raises(Refusal, match="field is immutable"):
            server.change(kind, name, {"spec": {"devices": None, "spec": None}}, "default")
        server.change(kind, name, {"metadata": {"labels": {"app": "a"}}}, "default")


async def test_slices_are_listed_changed_and_deleted_by_node_and_driver(client: Client) -> None:
    for name, node, driver in (("a", "n1", "neuron.aws.com"), ("b", "n2", "neuron.aws.com"), ("c", "n1", "efa")):
        await client.ask("POST", SLICES, resource_slice(name, node, driver))
    chosen = {"fieldSelector": "spec.nodeName=n1,spec.driver=neuron.aws.com"}
    assert names(await client.get(SLICES, **chosen)) == ["a"]
    status, _ = await client.ask("PATCH", f"{SLICES}/a", {"spec": {"devices": []}}, headers=MERGE)
    assert status == 200
    status, refused = await client.ask("PATCH", f"{SLICES}/a", {"spec": {"nodeName": "n2"}}, headers=MERGE)
    assert (status, "spec.nodeName: Invalid value: field is immutable" in refused["message"]) == (422, True)
    assert (await client.ask("DELETE", f"{SLICES}/a"))[0] == 200
    assert names(await client.get(SLICES)) == ["b", "c"]


async def test_kubectl_shows_what_claims_and_slices_have(server: StandInApiServer, client: Client) -> None:
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}

    async def cells(path: str) -> list[list[str]]:
        _, shown = await client.ask("GET", path, headers=table)
        return [row["cells"][:-1] for row in shown["rows"]]

    server.create(RESOURCE_SLICES, resource_slice(), "")
    assert await cells(SLICES) == [["n1-neuron", "n1", "neuron.aws.com", "n1-neuron", "2", "neuron-1=unhealthy"]]
    placed = resource_slice("placed", "n2", "neuron.aws.com")
    for device in placed["spec"]["devices"]:
        device["taints"] = [{"key": PLACED_TAINT, "effect": "NoSchedule"}, *device.get("taints", ())]
    server.create(RESOURCE_SLICES, placed, "")
    assert (await cells(SLICES))[1][-1] == "all=placed-by-gates,neuron-1=unhealthy"
    server.create(RESOURCE_CLAIMS, claim(finalizers=[FINALIZER]), "default")
    assert await cells(CLAIMS) == [["c", "pending", "", ""]]
    server.change(RESOURCE_CLAIMS, "c", {"status": allocation()}, "default", "status")
    assert await cells(CLAIMS) == [["c", "allocated", "neuron-0", "n1"]]
    server.change(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": [POD]}}, "default", "status")
    server.delete(RESOURCE_CLAIMS, "c", "default")
    assert await cells(CLAIMS) == [["c", "deleted,allocated,reserved", "neuron-0", "n1"]]
    _, found = await client.ask("GET", "/apis/resource.k8s.io/v1")
    assert {"resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"} <= {
        each["name"] for each in found["resources"]
    }
