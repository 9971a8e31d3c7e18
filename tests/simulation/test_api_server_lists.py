"""Lists of the stand-in API server, over HTTP."""

from __future__ import annotations

from neuron_plugin.simulation.api_server import StandInApiServer
from tests.simulation.api_client import Client, names, pod


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


async def test_a_label_selector_is_refused_not_passed_over(client: Client) -> None:
    assert (await client.ask("GET", "/api/v1/pods", params={"labelSelector": "app=x"}))[0] == 400


async def test_a_field_that_cannot_be_selected_by_is_400(client: Client) -> None:
    status, refusal = await client.ask("GET", "/api/v1/pods", params={"fieldSelector": "spec.priority=1"})
    assert (status, refusal["message"]) == (400, "field label not supported: spec.priority")
