"""The simulated API server, with a client that knows nothing of this project, and by its door without sockets.

What Kubernetes' own client finds in it is in test_official_client.py. Bookmarks, compactions, ends and cuts of watches
show in tests/cluster/test_reflector.py, what becomes of a write without an answer in
tests/placement/extender/test_binding_doubts.py.
"""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest

from neuron_plugin.cluster.api import ApiError, ApiRequest, Response, UnreachableError
from neuron_plugin.simulation.api_server_kinds import NODES, PODS
from tests.simulation.api_client import LEASES_PATH, MERGE, PODS_PATH, Client, Json, names, pod, until_watched
from tests.support.api_server import Fault, StandInApiServer

NOT_SERVED = "the server could not find the requested resource"
OF_NODES = "/api/v1/nodes/n"
JSON_BODY = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{PODS_PATH}/none", 'pods "none" not found'),
        (f"{LEASES_PATH}/none", 'leases.coordination.k8s.io "none" not found'),
        *((path, NOT_SERVED) for path in ("/api/v1/secrets", "/apis/apps/v1/deployments", "/", "/api/v1/pods/a")),
        *((path, NOT_SERVED) for path in ("/api/v1/namespaces/default/nodes", f"{PODS_PATH}/a/scale")),
        *((path, NOT_SERVED) for path in ("/api/v1/namespaces/ns/nodes/n1", "/api/v1/nodes/n1/binding")),
        *((path, NOT_SERVED) for path in (f"{PODS_PATH}/a/status/more", "/apis/events.k8s.io/v2/events")),
        ("/apis/coordination.k8s.io/v1/namespaces/ns/pods", NOT_SERVED),
    ],
)
async def test_what_is_not_there_is_404(client: Client, path: str, message: str) -> None:
    status, refusal = await client.ask("GET", path)
    assert (status, refusal["reason"], refusal["message"]) == (404, "NotFound", message)


@pytest.mark.parametrize(
    ("method", "path", "options", "expected"),
    [
        *((method, PODS_PATH, {}, 405) for method in ("DELETE", "PUT")),
        ("POST", f"{PODS_PATH}/a", {}, 405),
        ("POST", PODS_PATH, {"headers": {"Content-Type": "text/plain"}}, 415),
        ("PATCH", f"{PODS_PATH}/a", {"headers": {"Content-Type": "application/apply-patch+yaml"}}, 415),
        *(
            ("GET", PODS_PATH, {"params": query}, 400)
            for query in (
                *({"limit": "x"}, {"resourceVersion": "x"}, {"timeoutSeconds": "x"}, {"continue": "???"}),
                *({"watch": "1", "resourceVersion": "x"}, {"labelSelector": "app=x=y"}),
                {"labelSelector": "app=x=y", "watch": "true"},
            )
        ),
        ("GET", "/api/v1/events", {"params": {"labelSelector": "app=x=y"}}, 400),
        ("PUT", f"{PODS_PATH}/a", {"body": {"metadata": 7}, "headers": JSON_BODY}, 400),
        ("PATCH", f"{PODS_PATH}/a", {"body": {"metadata": 7}, "headers": MERGE}, 400),
        ("PATCH", f"{PODS_PATH}/a", {"body": {"metadata": {"labels": {"a": 1}}}, "headers": MERGE}, 400),
        ("PATCH", f"{PODS_PATH}/a", {"body": {"spec": {"containers": 7}}, "headers": MERGE}, 400),
        ("PATCH", OF_NODES, {"body": {"metadata": {"labels": 1}}, "headers": MERGE}, 400),
        *(
            ("POST", PODS_PATH, {"body": body}, 400)
            for body in (pod("x", nodeName=[1]), pod("x", containers=[1]), {"metadata": 1}, pod("x") | {"spec": 1})
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: Client, server: StandInApiServer, method: str, path: str, options: Json, expected: int
) -> None:
    kept = [server.create_pod(pod("a")), server.create_node({"metadata": {"name": "n"}})]
    status, refusal = await client.ask(method, path, **{"body": {}, **options})
    assert (status, refusal["kind"], refusal["status"], refusal["code"]) == (expected, "Status", "Failure", expected)
    assert [*server.objects(PODS), *server.objects(NODES)] == kept


async def test_the_server_chooses_uids_counts_every_write_and_remembers_requests(
    client: Client, server: StandInApiServer
) -> None:
    _, first = await client.ask("POST", PODS_PATH, {**pod("a"), "metadata": {"name": "a", "uid": "mine"}})
    assert first["metadata"]["uid"] != "mine"
    server.create_node({"metadata": {"name": "n1"}})
    _, third = await client.ask("POST", PODS_PATH, pod("b"))
    version = int(first["metadata"]["resourceVersion"]) + 2
    for body in ({}, {"status": {"phase": "Failed"}}):  # nothing is changed by these, so they are no writes
        _, same = await client.ask("PATCH", f"{PODS_PATH}/b", body, headers=MERGE)
        assert (same, int(same["metadata"]["resourceVersion"])) == (third, version)
    await client.get("/api/v1/pods", limit="2")
    assert (server.requests[-1].path, server.requests[-1].query) == ("/api/v1/pods", {"limit": "2"})
    assert (server.requests[-2].method, server.requests[-2].content_type) == ("PATCH", MERGE["Content-Type"])


async def test_a_token_lets_its_bearer_in_and_a_kubeconfig_is_for_its_owner_only(tmp_path: Path) -> None:
    async with StandInApiServer(token="secret") as server, aiohttp.ClientSession(server.url) as session:  # noqa: S106 - a stand-in's
        client = Client(session)
        for header, expected in (({}, 401), ({"Authorization": "Bearer guess"}, 401), ({}, 401)):
            assert (await client.ask("GET", "/api/v1/pods", headers=header))[0] == expected
        assert (await client.ask("GET", "/api/v1/pods", headers={"Authorization": "Bearer secret"}))[0] == 200
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = json.loads(path.read_text())
        assert config["users"][0]["user"] == {"token": "secret"}
        assert config["clusters"][0]["cluster"]["server"] == server.url
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


# Its end and its start.


async def test_a_server_stops_under_its_watches_and_comes_back_on_its_port_with_its_objects(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    url, watching = server.url, asyncio.create_task(client.watch("/api/v1/pods", 2, resourceVersion="1"), name="watch")
    await until_watched(server)
    async with asyncio.timeout(0.9):
        await server.stop()
    await asyncio.gather(watching, return_exceptions=True)
    with pytest.raises(aiohttp.ClientError):
        await client.get("/api/v1/pods")
    await server.start()
    assert (server.url, names(await client.get("/api/v1/pods"))) == (url, ["a"])


# Watches.


async def test_objects_enter_and_leave_a_selection(client: Client, server: StandInApiServer) -> None:
    server.create_pod(pod("a"))
    watching = asyncio.create_task(
        client.watch("/api/v1/pods", 3, resourceVersion="2", fieldSelector="status.phase=Running"), name="watch"
    )
    await until_watched(server)
    for phase in ("Running", "Failed", "Running"):
        server.set_pod_status("default", "a", {"phase": phase})
    entered, left, again = await watching
    assert [event["type"] for event in (entered, left, again)] == ["ADDED", "DELETED", "ADDED"]
    assert left["object"]["status"]["phase"] == "Running", "as it was last seen"
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (entered, left, again)]
    assert versions == sorted(set(versions))


async def test_a_watch_of_what_is_there_marks_no_end_and_refuses_to_be_asked_for_one(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    events = await client.watch_to_the_end("/api/v1/pods", timeoutSeconds="0", allowWatchBookmarks="true")
    found = [(event["type"], event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert found == [("ADDED", "2")], "an empty server is at version 1"
    query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    status, refusal = await client.ask("GET", "/api/v1/pods", params=query)
    assert (status, "feature gate WatchList" in refusal["message"]) == (422, True)


# The door without sockets.

POD = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": []}}
ITEM = "/api/v1/namespaces/default/pods/a"
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1"})


@pytest.fixture
def api() -> StandInApiServer:
    server = StandInApiServer()
    server.create_pod(POD)
    return server


@pytest.mark.looptime
async def test_a_silent_watch_is_given_up_and_a_refused_one_not_opened(api: StandInApiServer) -> None:
    now = {**WATCH.query, "resourceVersion": str(api._objects.versions.current)}
    began = asyncio.get_running_loop().time()
    async with api.stream(ApiRequest("GET", WATCH.path, now), silence_seconds=150) as lines:
        with pytest.raises(UnreachableError, match="silence"):
            await anext(lines)
    assert asyncio.get_running_loop().time() - began == pytest.approx(180)
    api.fail(Fault(status=410))
    with pytest.raises(ApiError, match="410"):
        async with api.stream(WATCH, silence_seconds=150):
            pass
    api.fail(Fault(ends=True))
    async with api.stream(WATCH, silence_seconds=150) as lines:
        assert [line async for line in lines] == []
    assert isinstance(await api.request(ApiRequest("GET", ITEM), timeout_seconds=1), Response)
