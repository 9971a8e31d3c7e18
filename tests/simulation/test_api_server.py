"""The simulated API server over HTTP, with a client that knows nothing of this project."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import aiohttp
import pytest

from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, Refusal
from tests.support.api_server import StandInApiServer

if TYPE_CHECKING:
    from pathlib import Path
from tests.simulation.api_client import LEASES_PATH, MERGE, PODS_PATH, Client, pod

# Objects.


async def test_a_client_cannot_choose_a_uid(client: Client) -> None:
    body = pod("a")
    body["metadata"]["uid"] = "mine"
    _, made = await client.ask("POST", PODS_PATH, body)
    assert made["metadata"]["uid"] != "mine"


async def test_every_write_counts_the_version_up_for_all_kinds(client: Client, server: StandInApiServer) -> None:
    _, first = await client.ask("POST", PODS_PATH, pod("a"))
    server.create_node({"metadata": {"name": "n1"}})
    _, third = await client.ask("POST", PODS_PATH, pod("b"))
    assert int(third["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{PODS_PATH}/none", 'pods "none" not found'),
        ("/api/v1/nodes/none", 'nodes "none" not found'),
        (f"{LEASES_PATH}/none", 'leases.coordination.k8s.io "none" not found'),
        ("/api/v1/secrets", "the server could not find the requested resource"),
        ("/apis/apps/v1/deployments", "the server could not find the requested resource"),
        ("/api/v1/namespaces/default/nodes", "the server could not find the requested resource"),
        ("/api/v1/pods/a", "the server could not find the requested resource"),
        (f"{PODS_PATH}/a/scale", "the server could not find the requested resource"),
        ("/", "the server could not find the requested resource"),
    ],
)
async def test_what_is_not_there_is_404(client: Client, path: str, message: str) -> None:
    status, refusal = await client.ask("GET", path)
    assert (status, refusal["reason"], refusal["message"]) == (404, "NotFound", message)


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/api/v1/pods"), ("PUT", PODS_PATH), ("POST", f"{PODS_PATH}/a")]
)
async def test_a_verb_that_makes_no_sense_is_405(client: Client, method: str, path: str) -> None:
    assert (await client.ask(method, path, {}))[0] == 405


async def test_a_body_of_another_media_type_is_415(client: Client) -> None:
    assert (await client.ask("POST", PODS_PATH, {}, headers={"Content-Type": "text/plain"}))[0] == 415


async def test_the_latest_requests_are_remembered(client: Client, server: StandInApiServer) -> None:
    await client.get("/api/v1/pods", limit="2")
    await client.ask("PATCH", f"{PODS_PATH}/none", {}, headers=MERGE)
    first, second = server.requests
    assert (first.method, first.path, first.query) == ("GET", "/api/v1/pods", {"limit": "2"})
    assert (second.method, second.content_type) == ("PATCH", MERGE["Content-Type"])


# Who may come in.


async def test_with_a_token_only_its_bearer_comes_in(tmp_path: Path) -> None:
    async with StandInApiServer(token="secret") as server, aiohttp.ClientSession(server.url) as session:  # noqa: S106 - a stand-in's
        client = Client(session)
        assert (await client.ask("GET", "/api/v1/pods"))[0] == 401
        assert (await client.ask("GET", "/api/v1/pods", headers={"Authorization": "Bearer guess"}))[0] == 401
        assert (await client.ask("GET", "/api/v1/pods", headers={"Authorization": "Bearer secret"}))[0] == 200
        config = json.loads(server.write_kubeconfig(tmp_path / "kubeconfig").read_text())
        assert config["users"][0]["user"] == {"token": "secret"}


async def test_a_kubeconfig_is_for_its_owner_only(server: StandInApiServer, tmp_path: Path) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["clusters"][0]["cluster"]["server"] == server.url


# Playing the others.


def test_the_play_needs_no_running_server() -> None:
    server = StandInApiServer()
    server.create_node({"metadata": {"name": "n1"}, "status": {"capacity": {"aws.amazon.com/neurondevice": 16}}})
    server.create_pod({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {}})
    server.bind("default", "a", node="n1", annotations={"NEURON_DEVS": "0"})
    server.patch_node("n1", {"metadata": {"labels": {"zone": "a"}}})
    server.patch_node("n1", {"status": {"allocatable": {"aws.amazon.com/neurondevice": "15"}}}, status=True)
    (node,), (bound,) = server.objects(NODES), server.objects(PODS)
    assert node["status"]["capacity"] == {"aws.amazon.com/neurondevice": "16"}
    assert node["status"]["allocatable"] == {"aws.amazon.com/neurondevice": "15"}
    assert (bound["metadata"]["uid"], bound["spec"]["nodeName"]) == ("uid-a", "n1")
    server.delete_node("n1")
    assert [server.objects(kind) for kind in (NODES, LEASES, EVENTS)] == [[], [], []]
    with pytest.raises(Refusal, match='nodes "n1" not found'):
        server.get(NODES, "n1")
