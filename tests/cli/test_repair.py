"""``neuron-plugin repair``, on a cluster of two nodes: who has device 3, who goes where, and when it is empty."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.cli import cluster, repair
from neuron_plugin.cluster.pods import STATIC_POD_UID_KEY
from neuron_plugin.monitor.look import look
from neuron_plugin.simulation.api_server_kinds import NODES, PODS
from tests.cli.doubles import Cli, Outcome
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

Repair = Callable[..., Outcome]

BROKEN = {3: "1 uncorrected memory error"}


def running(name: str, ids: str, *, controller: str = "ReplicaSet", node: str = "trn-1", **labels: str) -> Any:
    """A pod that runs with devices of a node."""
    pod = pod_manifest(name, Resource.NEURON, len(ids.split(",")), node=node, annotations={"NEURON_DEVS": ids})
    pod["metadata"]["labels"] = labels
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "state": {"running": {}}, "started": True}],
    }
    if controller:
        owner = {"apiVersion": "apps/v1", "kind": controller, "name": "owner", "uid": "owner-uid", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
    return pod


@pytest.fixture
def server(empty_server: StandInApiServer) -> StandInApiServer:
    """On trn-1 device 3 is broken; ``row`` and ``one`` have it or not, ``rest`` fills what is left."""
    empty_server.create_node(node_manifest("trn-1", "trn1.32xlarge", unhealthy=BROKEN))
    empty_server.create_node(node_manifest("trn-2", "trn1.32xlarge"))
    empty_server.create_pod(running("row", "0,1,2,3", app="row"))
    empty_server.create_pod(running("other", "4"))
    return empty_server


@pytest.fixture
def run(cli: Cli, server: StandInApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repair:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setattr(repair, "AGAIN_SECONDS", 0.01)
    return lambda *words: cli("repair", "trn-1", "--device", "3", *words, "--kubeconfig", kubeconfig)


def names(server: StandInApiServer) -> set[str]:
    """The pods that nothing has ended."""
    return {pod["metadata"]["name"] for pod in server.objects(PODS) if "deletionTimestamp" not in pod["metadata"]}


def gone(server: StandInApiServer, name: str) -> None:
    server.delete_pod("default", name, grace_seconds=0)


def test_its_pods_are_evicted_on_request_and_then_it_is_empty_and_what_can_be_done_is_said(
    run: Repair, server: StandInApiServer
) -> None:
    evicted = run("--evict")
    assert evicted.rows[4] == ["default/row", "devices:0-3", "trn-1", "devices:8-11", "evicted"]
    assert "1 pod evicted" in evicted.out
    assert (evicted.status, names(server)) == (1, {"other"})
    assert run().rows[4] == ["default/row", "devices:0-3", "-", "-", "it", "is", "being", "deleted"]
    gone(server, "row")
    empty = run()
    assert (empty.status, empty.err) == (0, "")
    assert empty.out.endswith(
        "device 3 is empty. What can be done, the least first (docs/repair.md):\n"
        "  reset    on the node, as root: echo 1 > /sys/class/neuron_device/neuron3/reset\n"
        "  reboot   after: kubectl drain trn-1 --ignore-daemonsets --delete-emptydir-data\n"
        "  replace  after the same: stop and start the instance, or terminate it\n"
        "Then: neuron-plugin repair trn-1 --device 3 --undo\n"
    )


def test_it_waits_until_the_pods_have_ended(run: Repair, server: StandInApiServer, monkeypatch: Any) -> None:
    looks = []

    async def counted(*arguments: Any, **more: Any) -> Any:
        looks.append(1)
        if len(looks) == 3:
            gone(server, "row")
        return await look(*arguments, **more)

    monkeypatch.setattr(cluster, "look", counted)
    said = run("--evict", "--wait", "60", "-o", "json")
    document = json.loads(said.out)
    assert (said.status, document["empty"], document["evicted"], document["pods"]) == (0, True, ["default/row"], [])
    assert len(looks) == 3


def test_a_process_of_an_ended_pod_keeps_the_device_from_being_empty(run: Repair, server: StandInApiServer) -> None:
    gone(server, "row")
    server.delete(NODES, "trn-1")
    reason = "processes of pod ml/a, which has ended, may still use it"
    server.create_node(node_manifest("trn-1", "trn1.32xlarge", unhealthy={3: reason}, held_down=[3]))
    said = run()
    assert f"device 3: {reason}" in said.out
    assert said.err == "neuron-plugin: device 3 of node trn-1 is not empty: a process of an ended pod\n"
    assert said.status == 1


def test_a_static_pod_is_not_evicted_and_it_is_said_what_to_do(run: Repair, server: StandInApiServer) -> None:
    gone(server, "row")
    static = running("static", "3", controller="Node")
    static["metadata"]["annotations"] |= {STATIC_POD_UID_KEY: "0123456789abcdef"}
    server.create_pod(static)
    said = run("--evict", "--force")
    assert "it is static: its manifest has to go from the node" in said.out
    assert "static" in names(server)
