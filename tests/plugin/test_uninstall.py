from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.cluster import ApiError, LeaseName
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.writes import create_lease, delete_lease, utc_now
from neuron_plugin.plugin.node_lease import node_lease
from neuron_plugin.plugin.publisher import publication
from neuron_plugin.plugin.uninstall import installed_nodes, uninstall_nodes
from neuron_plugin.simulation import api_server_kinds as kinds
from tests.plugin.world import inventory
from tests.support.api_server import Fault, Match, StandInApiServer

NAMESPACE = "kube-system"


@pytest.fixture
async def server() -> StandInApiServer:
    """Two nodes with a plugin, and one without."""
    server = StandInApiServer()
    for name in ("worker-1", "worker-2", "other"):
        server.create_node({"metadata": {"name": name, "labels": {"zone": "a"}}})
        if name != "other":
            await send(server, publication(name, inventory(device_name="Trainium1")), timeout_seconds=5)
            await lease(server, node_lease(NAMESPACE, name))
    return server


async def lease(server: StandInApiServer, name: LeaseName) -> None:
    await send(server, create_lease(name, duration_seconds=8, now=utc_now()), timeout_seconds=5)


def metadata(server: StandInApiServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(kinds.NODES, name)["metadata"]
    return found


def leases(server: StandInApiServer) -> list[str]:
    return [one["metadata"]["name"] for one in server.objects(kinds.LEASES)]


async def test_annotation_labels_and_lease_of_a_node_are_taken_back_and_nothing_else(server: StandInApiServer) -> None:
    assert await uninstall_nodes(server, ["worker-1", "worker-1"], NAMESPACE) == ["worker-1"]
    assert INVENTORY_KEY not in metadata(server, "worker-1").get("annotations", {})
    assert metadata(server, "worker-1")["labels"] == {"zone": "a"}
    assert leases(server) == ["neuron-plugin-worker-2"]
    assert INVENTORY_KEY in metadata(server, "worker-2")["annotations"]
    assert await uninstall_nodes(server, ["worker-1"], NAMESPACE) == [], "doing it again is harmless"


async def test_the_condition_that_is_named_is_taken_back_and_no_other(server: StandInApiServer) -> None:
    ready, ours = {"type": "Ready", "status": "True"}, {"type": "NeuronDevicesHealthy", "status": "False"}
    conditions = [ours["type"], "NeuronDevicesReady"]
    for name in ("other", "worker-1"):
        server.patch_node(name, {"status": {"conditions": [ready, ours]}}, status=True)
    assert await installed_nodes(server, NAMESPACE) == ["worker-1", "worker-2"]
    assert await uninstall_nodes(server, ["other"], NAMESPACE) == []
    assert await installed_nodes(server, NAMESPACE, conditions) == ["other", "worker-1", "worker-2"]
    assert await uninstall_nodes(server, ["other", "worker-1"], NAMESPACE, conditions) == ["other", "worker-1"]
    for name in ("other", "worker-1"):
        assert server.get(kinds.NODES, name)["status"]["conditions"] == [ready]
    assert await uninstall_nodes(server, ["other"], NAMESPACE, conditions) == []


async def test_a_node_that_is_gone_loses_the_lease_it_left(server: StandInApiServer) -> None:
    server.delete_node("worker-1")
    assert await uninstall_nodes(server, ["worker-1", "never-was"], NAMESPACE) == ["worker-1"]
    assert leases(server) == ["neuron-plugin-worker-2"]


async def test_installed_nodes_are_found_by_what_is_said_of_them_or_by_their_lease(server: StandInApiServer) -> None:
    await send(server, delete_lease(node_lease(NAMESPACE, "worker-1")), timeout_seconds=5)
    server.delete_node("worker-2")
    assert await installed_nodes(server, NAMESPACE) == ["worker-1", "worker-2"]


async def test_a_lease_that_was_given_up_is_found_by_the_node_it_is_of(server: StandInApiServer) -> None:
    """As every plugin leaves it when it ends."""
    await send(server, delete_lease(node_lease(NAMESPACE, "worker-1")), timeout_seconds=5)
    await uninstall_nodes(server, ["worker-1", "worker-2"], NAMESPACE)
    for node in ("worker-1", "gone"):
        await lease(server, replace(node_lease(NAMESPACE, node), holder=""))
    assert await installed_nodes(server, NAMESPACE) == ["worker-1"]


async def test_leases_of_others_are_none_of_ours(server: StandInApiServer) -> None:
    await lease(server, LeaseName(NAMESPACE, "neuron-plugin-leader", "some-pod"))
    await lease(server, LeaseName(NAMESPACE, "kube-scheduler", "kube-scheduler"))
    await lease(server, node_lease("default", "other"))
    assert await installed_nodes(server, NAMESPACE) == ["worker-1", "worker-2"]


async def test_installed_nodes_are_found_on_every_page_of_a_long_list(
    server: StandInApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_plugin.cluster.objects.PAGE_SIZE", 1)
    assert await installed_nodes(server, NAMESPACE) == ["worker-1", "worker-2"]
    for node in ("worker-1", "worker-2"):
        await send(server, delete_lease(node_lease(NAMESPACE, node)), timeout_seconds=5)
    assert await installed_nodes(server, NAMESPACE) == ["worker-1", "worker-2"]


@pytest.mark.parametrize("path", ["/nodes/worker-1", "/leases/neuron-plugin-worker-1"])
async def test_a_refusal_is_an_error(server: StandInApiServer, path: str) -> None:
    server.fail(Fault(Match(path=path), status=403))
    with pytest.raises(ApiError, match="403"):
        await uninstall_nodes(server, ["worker-1"], NAMESPACE)
