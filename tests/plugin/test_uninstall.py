from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.cluster import ApiError, KubernetesApi, LeaseName
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.writes import create_lease, delete_lease, utc_now
from neuron_plugin.plugin.node_lease import node_lease
from neuron_plugin.plugin.publisher import publication
from neuron_plugin.plugin.uninstall import installed_nodes, uninstall_nodes
from neuron_plugin.simulation import api_server
from tests.plugin.world import inventory
from tests.support.api_server import Fault, Match, StandInApiServer

NAMESPACE = "kube-system"


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        for name in ("worker-1", "worker-2", "other"):
            server.create_node({"metadata": {"name": name, "labels": {"zone": "a"}}})
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        for name in ("worker-1", "worker-2"):
            await install(api, name)
        yield api


async def install(api: KubernetesApi, name: str) -> None:
    """What a plugin says of its node."""
    await send(api, publication(name, inventory(device_name="Trainium1")), timeout_seconds=5)
    await lease(api, node_lease(NAMESPACE, name))


async def lease(api: KubernetesApi, name: LeaseName) -> None:
    await send(api, create_lease(name, duration_seconds=8, now=utc_now()), timeout_seconds=5)


def metadata(server: StandInApiServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(api_server.NODES, name)["metadata"]
    return found


def leases(server: StandInApiServer) -> list[str]:
    return [one["metadata"]["name"] for one in server.objects(api_server.LEASES)]


async def test_annotation_labels_and_lease_of_a_node_are_taken_back_and_nothing_else(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    assert await uninstall_nodes(api, ["worker-1"], NAMESPACE) == ["worker-1"]
    assert INVENTORY_KEY not in metadata(server, "worker-1").get("annotations", {})
    assert metadata(server, "worker-1")["labels"] == {"zone": "a"}
    assert leases(server) == ["neuron-plugin-worker-2"]
    assert INVENTORY_KEY in metadata(server, "worker-2")["annotations"]


async def test_the_condition_that_is_named_is_taken_back_and_no_other(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    ready, ours = {"type": "Ready", "status": "True"}, {"type": "NeuronDevicesHealthy", "status": "False"}
    conditions = [ours["type"], "NeuronDevicesReady"]
    for name in ("other", "worker-1"):
        server.patch_node(name, {"status": {"conditions": [ready, ours]}}, status=True)
    assert await installed_nodes(api, NAMESPACE) == ["worker-1", "worker-2"]
    assert await uninstall_nodes(api, ["other"], NAMESPACE) == []
    assert await installed_nodes(api, NAMESPACE, conditions) == ["other", "worker-1", "worker-2"]
    assert await uninstall_nodes(api, ["other", "worker-1"], NAMESPACE, conditions) == ["other", "worker-1"]
    for name in ("other", "worker-1"):
        assert server.get(api_server.NODES, name)["status"]["conditions"] == [ready]
    assert await uninstall_nodes(api, ["other"], NAMESPACE, conditions) == []


async def test_doing_it_again_is_harmless(api: KubernetesApi) -> None:
    assert await uninstall_nodes(api, ["worker-1", "worker-1"], NAMESPACE) == ["worker-1"]
    assert await uninstall_nodes(api, ["worker-1"], NAMESPACE) == []


async def test_a_node_that_is_gone_loses_the_lease_it_left(server: StandInApiServer, api: KubernetesApi) -> None:
    server.delete_node("worker-1")
    assert await uninstall_nodes(api, ["worker-1", "never-was"], NAMESPACE) == ["worker-1"]
    assert leases(server) == ["neuron-plugin-worker-2"]


async def test_installed_nodes_are_found_by_what_is_said_of_them_or_by_their_lease(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    await send(api, delete_lease(node_lease(NAMESPACE, "worker-1")), timeout_seconds=5)
    server.delete_node("worker-2")
    assert await installed_nodes(api, NAMESPACE) == ["worker-1", "worker-2"]


async def test_a_lease_that_was_given_up_is_found_by_the_node_it_is_of(api: KubernetesApi) -> None:
    """As every plugin leaves it when it ends."""
    await send(api, delete_lease(node_lease(NAMESPACE, "worker-1")), timeout_seconds=5)
    await uninstall_nodes(api, ["worker-1", "worker-2"], NAMESPACE)
    for node in ("worker-1", "gone"):
        await lease(api, replace(node_lease(NAMESPACE, node), holder=""))
    assert await installed_nodes(api, NAMESPACE) == ["worker-1"]


async def test_leases_of_others_are_none_of_ours(api: KubernetesApi) -> None:
    await lease(api, LeaseName(NAMESPACE, "neuron-plugin-leader", "some-pod"))
    await lease(api, LeaseName(NAMESPACE, "kube-scheduler", "kube-scheduler"))
    await lease(api, node_lease("default", "other"))
    assert await installed_nodes(api, NAMESPACE) == ["worker-1", "worker-2"]


async def test_installed_nodes_are_found_on_every_page_of_a_long_list(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_plugin.cluster.objects.PAGE_SIZE", 1)
    assert await installed_nodes(api, NAMESPACE) == ["worker-1", "worker-2"]
    for node in ("worker-1", "worker-2"):
        await send(api, delete_lease(node_lease(NAMESPACE, node)), timeout_seconds=5)
    assert await installed_nodes(api, NAMESPACE) == ["worker-1", "worker-2"]


@pytest.mark.parametrize("path", ["/nodes/worker-1", "/leases/neuron-plugin-worker-1"])
async def test_a_refusal_is_an_error(server: StandInApiServer, api: KubernetesApi, path: str) -> None:
    server.fail(Fault(Match(path=path), status=403))
    with pytest.raises(ApiError, match="403"):
        await uninstall_nodes(api, ["worker-1"], NAMESPACE)
