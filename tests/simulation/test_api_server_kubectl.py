"""What kubectl asks of the simulated API server, in the form in which it asks."""

from __future__ import annotations

import aiohttp
import pytest

from neuron_plugin.cluster import ObjectReference
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.simulation.api_server_kinds import (
    EVENTS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AnyJson,
)
from neuron_plugin.simulation.api_server_kubectl import read_protobuf
from tests.simulation.api_client import AS_TABLE, Client, pod
from tests.simulation.dra import CLAIMS, DRIVER, FINALIZER, SLICES, USER, allocation, claim, node_slice
from tests.support.api_server import StandInApiServer


async def test_openapi_says_that_dry_runs_are_known_and_describes_the_fields_that_are_read(client: Client) -> None:
    for name, about in (await client.get("/openapi/v3"))["paths"].items():
        for operations in (await client.get(about["serverRelativeURL"]))["paths"].values():
            kind = operations["patch"]["x-kubernetes-group-version-kind"]
            assert "/".join(filter(None, (kind["group"], kind["version"]))) in name.replace("api/v1", "v1")
            assert [each["name"] for each in operations["patch"]["parameters"]] == ["fieldValidation", "dryRun"]
    schemas = (await client.get("/openapi/v3/api/v1"))["components"]["schemas"]
    assert [kind["kind"] for kind in schemas["Pod"]["x-kubernetes-group-version-kind"]] == ["Pod"]
    containers = schemas["Pod"]["properties"]["spec"]["properties"]["containers"]
    resources = containers["items"]["properties"]["resources"]["properties"]
    assert resources["limits"] == {"type": "object", "additionalProperties": {"type": "string"}}
    statefulset = (await client.get("/openapi/v3/apis/apps/v1"))["components"]["schemas"]["StatefulSet"]
    assert "Only the fields that neuron-plugin reads" in statefulset["description"]


async def test_kubectl_prints_which_command_makes_the_pods_of_a_kind_that_is_not_served(
    server: StandInApiServer,
) -> None:
    async with aiohttp.ClientSession(server.url) as session, session.get("/openapi/v2") as answer:
        assert (answer.status, answer.content_type) == (406, "text/plain"), "of others kubectl prints no text"
        assert "playground run -f FILE" in await answer.text()


async def test_pods_and_nodes_come_as_a_table_where_one_is_asked_for(client: Client, server: StandInApiServer) -> None:
    server.create_node({"metadata": {"name": "worker"}, "status": {"capacity": {"aws.amazon.com/neuron": 2}}})
    server.create_pod(pod("a"))
    server.bind("default", "a", node="worker", annotations={"NEURON_DEVS": "0,1"})
    for path in ("/api/v1/pods", "/api/v1/namespaces/default/pods/a"):
        _, shown = await client.ask("GET", path, headers=AS_TABLE)
        assert [each["name"] for each in shown["columnDefinitions"]][:4] == ["Name", "Ready", "Status", "Node"]
        assert [row["cells"][:5] for row in shown["rows"]] == [["a", "0/1", "Pending", "worker", "0,1"]]
    _, nodes = await client.ask("GET", "/api/v1/nodes", headers=AS_TABLE)
    assert nodes["rows"][0]["cells"][:3] == ["worker", "NotReady", "2/2"]
    limits = {"limits": {"aws.amazon.com/neuron": 2}}
    server.create_pod(pod("b", nodeName="worker", containers=[{"name": "main", "resources": limits}]))
    _, nodes = await client.ask("GET", "/api/v1/nodes", headers=AS_TABLE)
    assert nodes["rows"][0]["cells"][2] == "0/2", "what is free of a full node"
    gated = pod("c", schedulingGates=[{"name": "quota"}])
    server.create_pod(gated)
    _, shown = await client.ask("GET", "/api/v1/namespaces/default/pods/c", headers=AS_TABLE)
    assert shown["rows"][0]["cells"][2] == "SchedulingGated"


def described(name: str) -> AnyJson:
    """An event about a pod."""
    event = create_event(
        ObjectReference("Pod", name, f"uid-of-{name}", "v1", "default"),
        reason="FailedScheduling",
        note=f"why {name}",
        action="Scheduling",
        reporter="neuron-plugin.io/test",
        instance="test",
        now=utc_now(),
    )
    assert event.body is not None
    return event.body | {"metadata": {"name": name, "namespace": "default"}}


async def test_events_are_shown_in_their_older_form_by_the_object_they_are_about(
    client: Client, server: StandInApiServer
) -> None:
    for name in ("a", "b"):
        server.create(EVENTS, described(name), "default")
    selector = "involvedObject.name=b,involvedObject.namespace=default"
    listed = await client.get("/api/v1/namespaces/default/events", fieldSelector=selector)
    assert [(each["message"], each["involvedObject"]["name"]) for each in listed["items"]] == [("why b", "b")]
    assert (await client.get("/api/v1/namespaces/other/events"))["items"] == []
    assert (await client.get("/api/v1/events", fieldSelector="type=Warning"))["items"] == []
    (line,) = await client.watch("/api/v1/namespaces/default/events", 1, fieldSelector="involvedObject.name=b")
    assert (line["object"]["apiVersion"], line["object"]["message"]) == ("v1", "why b")
    _, shown = await client.ask("GET", "/api/v1/events", headers=AS_TABLE)
    assert [row["cells"][2:] for row in shown["rows"]] == [
        ["FailedScheduling", "pod/a", "why a"],
        ["FailedScheduling", "pod/b", "why b"],
    ]


async def test_the_rows_of_a_table_have_what_a_client_sorts_by(client: Client, server: StandInApiServer) -> None:
    made = server.create_pod(pod("a"))
    for include, kind in ((None, "PartialObjectMetadata"), ("Object", "Pod")):
        query = {"includeObject": include} if include else {}
        _, shown = await client.ask("GET", "/api/v1/pods", headers=AS_TABLE, params=query)
        (row,) = shown["rows"]
        assert row["object"]["kind"] == kind
    assert row["object"] == made


async def test_a_watch_is_shown_as_a_table_whose_columns_are_told_once(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    server.create_pod(pod("b"))
    lines = await client.watch_as_table("/api/v1/pods", 2)
    assert [(line["type"], [row["cells"][0] for row in line["object"]["rows"]]) for line in lines] == [
        ("ADDED", ["a"]),
        ("ADDED", ["b"]),
    ]
    assert [bool(line["object"]["columnDefinitions"]) for line in lines] == [True, False]


def field(number: int, value: bytes | int) -> bytes:
    """A protobuf field, short enough for one byte of each number."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def in_protobuf(kind: bytes, raw: bytes) -> bytes:
    return b"k8s\0" + field(1, field(1, b"v1") + field(2, kind)) + field(2, raw) + field(3, b"")


OPTIONS = field(1, 0) + field(2, field(1, b"uid-a"))


async def test_a_drain_evicts_and_a_namespace_is_created_in_protobuf(client: Client, server: StandInApiServer) -> None:
    server.create_pod({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {"containers": [], "nodeName": "n1"}})
    evicted = field(1, field(1, b"a") + field(3, b"default")) + field(2, OPTIONS)
    for path, kind, raw in (
        ("/api/v1/namespaces/default/pods/a/eviction", b"Eviction", evicted),
        ("/api/v1/namespaces", b"Namespace", field(1, field(1, b"team")) + field(2, b"") + field(3, b"")),
    ):
        headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
        assert (await client.ask("POST", path, data=in_protobuf(kind, raw), headers=headers))[0] == 201
    assert server.objects(PODS) == []
    assert server.get(NAMESPACES, "team")["metadata"]["name"] == "team"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"k8s", "starts with k8s"),
        (in_protobuf(b"Pod", b""), "Pod in protobuf, which is not read here"),
        (in_protobuf(b"Eviction", OPTIONS)[:-9], "is cut off"),
        (b"k8s\0\x08\x07", "or has other fields"),
    ],
)
def test_what_is_no_protobuf_of_kubectl_s_is_said(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_protobuf(body)


def test_options_of_a_deletion_are_read_and_unknown_fields_are_not() -> None:
    body = in_protobuf(b"DeleteOptions", OPTIONS + field(4, b"Background") + field(5, b"All") + b"\x80\x01\x96\x01")
    assert read_protobuf(body) == {"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-a"}, "dryRun": ["All"]}


BOTH = "all=placed-by-gates,neuron-1=unhealthy"


async def test_kubectl_shows_what_claims_and_slices_have(server: StandInApiServer, client: Client) -> None:
    async def cells(path: str) -> list[list[str]]:
        _, shown = await client.ask("GET", path, headers=AS_TABLE)
        return [row["cells"][:-1] for row in shown["rows"]]

    for node, placed in (("n1", False), ("n2", True)):
        server.create(RESOURCE_SLICES, node_slice(node, 2, (1,), placed=placed), "")
    shown = [f"n1-{DRIVER}", "n1", DRIVER, "n1-neuron", "2", "neuron-1=unhealthy"]
    assert await cells(SLICES) == [shown, [*(text.replace("n1", "n2") for text in shown[:5]), BOTH]]
    server.create(RESOURCE_CLAIMS, claim(finalizers=[FINALIZER]), "default")
    assert await cells(CLAIMS) == [["c", "pending", "", ""]]
    server.change(RESOURCE_CLAIMS, "c", {"status": allocation()}, "default", "status")
    assert await cells(CLAIMS) == [["c", "allocated", "neuron-0", "n1"]]
    server.change(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": [USER]}}, "default", "status")
    server.delete(RESOURCE_CLAIMS, "c", "default")
    assert await cells(CLAIMS) == [["c", "deleted,allocated,reserved", "neuron-0", "n1"]]
