"""What kubectl asks of the simulated API server, in the form in which it asks."""

from __future__ import annotations

import pytest

from neuron_plugin.cluster import ObjectReference, create_event, utc_now
from neuron_plugin.simulation import EVENTS
from tests.simulation.api_client import Client, pod
from tests.support.api_server import StandInApiServer

AS_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


async def test_every_kind_is_found_by_discovery(client: Client) -> None:
    found = set()
    groups = (await client.get("/apis"))["groups"]
    paths = [f"/api/{version}" for version in (await client.get("/api"))["versions"]]
    paths += [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
    for path in paths:
        found |= {(path, each["name"], each["namespaced"]) for each in (await client.get(path))["resources"]}
    assert found == {
        ("/api/v1", "pods", True),
        ("/api/v1", "nodes", False),
        ("/api/v1", "events", True),
        ("/api/v1", "persistentvolumeclaims", True),
        ("/api/v1", "persistentvolumes", False),
        ("/apis/coordination.k8s.io/v1", "leases", True),
        ("/apis/events.k8s.io/v1", "events", True),
        ("/apis/policy/v1", "poddisruptionbudgets", True),
    }


async def test_openapi_says_that_the_server_checks_fields(client: Client) -> None:
    for name, about in (await client.get("/openapi/v3"))["paths"].items():
        for operations in (await client.get(about["serverRelativeURL"]))["paths"].values():
            kind = operations["patch"]["x-kubernetes-group-version-kind"]
            assert "/".join(filter(None, (kind["group"], kind["version"]))) in name.replace("api/v1", "v1")
            assert operations["patch"]["parameters"] == [{"name": "fieldValidation", "in": "query"}]


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


async def test_events_are_shown_in_their_older_form_by_the_object_they_are_about(
    client: Client, server: StandInApiServer
) -> None:
    for name in ("a", "b"):
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
        server.create(EVENTS, event.body | {"metadata": {"name": name, "namespace": "default"}}, "default")
    selector = "involvedObject.name=b,involvedObject.namespace=default"
    listed = await client.get("/api/v1/namespaces/default/events", fieldSelector=selector)
    assert [(each["message"], each["involvedObject"]["name"]) for each in listed["items"]] == [("why b", "b")]
    assert (await client.get("/api/v1/namespaces/other/events"))["items"] == []
    _, shown = await client.ask("GET", "/api/v1/events", headers=AS_TABLE)
    assert [row["cells"][2:] for row in shown["rows"]] == [
        ["FailedScheduling", "pod/a", "why a"],
        ["FailedScheduling", "pod/b", "why b"],
    ]


@pytest.mark.parametrize(
    "body", [pod("x", nodeName=[1]), pod("x", containers=[1]), {"metadata": 1}, pod("x") | {"spec": 1}]
)
async def test_a_pod_of_another_shape_is_refused(client: Client, body: object) -> None:
    status, answer = await client.ask("POST", "/api/v1/namespaces/default/pods", body)
    assert (status, answer["reason"]) == (400, "BadRequest")
