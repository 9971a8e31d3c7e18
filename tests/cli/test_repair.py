"""``neuron-plugin repair``, on a cluster of two nodes: who has device 3, who goes where, and when it is empty."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.cli import cluster, repair
from neuron_plugin.cluster.pods import STATIC_POD_UID_KEY
from neuron_plugin.monitor.look import look
from neuron_plugin.simulation.api_server_kinds import NODES, PODS
from tests.cli.doubles import Background, Cli, Outcome
from tests.support.api_server import Budget, StandInApiServer, limit_disruptions
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
def server(background: Background) -> Iterator[StandInApiServer]:
    """On trn-1 device 3 is broken; ``row`` and ``one`` have it or not, ``rest`` fills what is left."""
    server = StandInApiServer()
    background.do(server.start())
    server.create_node(node_manifest("trn-1", "trn1.32xlarge", unhealthy=BROKEN))
    server.create_node(node_manifest("trn-2", "trn1.32xlarge"))
    server.create_pod(running("row", "0,1,2,3", app="row"))
    server.create_pod(running("other", "4"))
    yield server
    background.do(server.stop())


@pytest.fixture
def run(cli: Cli, server: StandInApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repair:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setattr(repair, "AGAIN_SECONDS", 0.01)
    return lambda *words: cli("repair", "trn-1", "--device", "3", *words, "--kubeconfig", kubeconfig)


def disabled(server: StandInApiServer) -> str | None:
    text: str | None = server.get(NODES, "trn-1")["metadata"]["annotations"].get(DISABLE_KEY)
    return text


def names(server: StandInApiServer) -> set[str]:
    """The pods that nothing has ended."""
    return {pod["metadata"]["name"] for pod in server.objects(PODS) if "deletionTimestamp" not in pod["metadata"]}


def gone(server: StandInApiServer, name: str) -> None:
    server.delete_pod("default", name, grace_seconds=0)


def test_it_disables_the_device_and_says_who_has_it_and_where_they_would_go(
    run: Repair, server: StandInApiServer
) -> None:
    said = run()
    assert said.out == (
        "device 3 of node trn-1 is out of service: no new pod gets it\n"
        "device 3: 1 uncorrected memory error\n"
        "\n"
        "POD          HAS          NODE   IDS           NOTE\n"
        "default/row  devices:0-3  trn-1  devices:8-11  -\n"
        "\n"
        "To evict the pods that have another place: neuron-plugin repair trn-1 --device 3 --evict\n"
    )
    assert (said.status, said.err) == (1, "neuron-plugin: device 3 of node trn-1 is not empty: 1 pod\n")
    assert disabled(server) == "3"
    assert names(server) == {"row", "other"}, "no pod is evicted unasked"


def test_a_dry_run_changes_nothing(run: Repair, server: StandInApiServer) -> None:
    said = run("--dry-run")
    assert said.out.startswith("device 3 of node trn-1 is in service; without --dry-run it is taken out\n")
    assert "devices:8-11" in said.out, "its pod is not shown the place that it has"
    assert (disabled(server), names(server)) == (None, {"row", "other"})


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


def test_a_document_has_ids_as_arrays(run: Repair) -> None:
    (pod,) = json.loads(run("-o", "json").out)["pods"]
    assert (pod["devices"], pod["targetDevices"]) == ([0, 1, 2, 3], [8, 9, 10, 11])
    assert (pod["cores"], pod["targetCores"]) == ([*range(8)], [*range(16, 24)])


def test_undo_puts_the_device_back(run: Repair, server: StandInApiServer) -> None:
    run()
    assert run("--undo").out == "node trn-1: device 3 enabled; no device is disabled now\n"
    assert disabled(server) is None


def test_a_disruption_budget_holds_an_eviction_up_and_it_is_tried_again(run: Repair, server: StandInApiServer) -> None:
    limit_disruptions(server, Budget("default", {"app": "row"}, 0))
    said = run("--evict")
    assert " ".join(said.rows[4][4:]) == "a PodDisruptionBudget does not allow it now"
    assert "PodDisruptionBudget default/row allows 0 disruptions now, 1 is needed: kubectl drain" in said.out
    assert names(server) == {"row", "other"}
    limit_disruptions(server, Budget("default", {"app": "row"}, 1))
    assert run("--evict").rows[4][4:] == ["evicted"]


def test_a_pod_without_another_place_or_a_controller_is_evicted_only_by_force(
    run: Repair, server: StandInApiServer
) -> None:
    gone(server, "row")
    server.create_pod(running("bare", "3", controller=""))
    server.create_pod(running("agent", "3", controller="DaemonSet"))
    said = run("--evict")
    assert "default/agent is of a DaemonSet: kubectl drain needs --ignore-daemonsets, and leaves it" in said.out
    assert "default/bare has no controller: kubectl drain needs --force, and it is not made again" in said.out
    notes = {row[0]: " ".join(row[4:]) for row in said.rows[4:6]}
    assert notes["default/agent"] == "its DaemonSet makes it here again"
    assert notes["default/bare"] == "no controller makes it again"
    assert "With --force pods that fit nowhere else" in said.out
    assert {"bare", "agent"} <= names(server)
    server.delete_pod("default", "agent", grace_seconds=0)
    for node in ("trn-1", "trn-2"):
        server.create_pod(running(f"full-{node}", ",".join(map(str, range(8, 16))), node=node))
    server.create_pod(running("low", "0,1,2,3,4,5,6,7", node="trn-2"))
    server.create_pod(running("rest", "0,1", node="trn-1"))
    for ids in ("2", "5", "6", "7"):
        server.create_pod(running(f"one-{ids}", ids, node="trn-1"))
    assert run("--evict").rows[4][2:] == ["-", "-", "fits", "nowhere", "else", "now"]
    assert run().out.endswith("To evict the pods all the same: neuron-plugin repair trn-1 --device 3 --evict --force\n")
    assert "bare" in names(server)
    assert run("--evict", "--force").status == 1
    assert "bare" not in names(server)


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


def test_a_pod_of_which_it_is_not_known_what_it_has_keeps_the_device_from_being_empty(
    run: Repair, server: StandInApiServer
) -> None:
    gone(server, "row")
    unreadable = running("odd", "5")
    unreadable["metadata"]["annotations"] = {"NEURON_DEVS": "five"}
    server.create_pod(unreadable)
    said = run()
    assert "what pod default/odd has is not known" in said.out
    assert said.status == 1


def test_a_static_pod_is_not_evicted_and_it_is_said_what_to_do(run: Repair, server: StandInApiServer) -> None:
    gone(server, "row")
    static = running("static", "3", controller="Node")
    static["metadata"]["annotations"] |= {STATIC_POD_UID_KEY: "0123456789abcdef"}
    server.create_pod(static)
    said = run("--evict", "--force")
    assert "it is static: its manifest has to go from the node" in said.out
    assert "static" in names(server)


def test_a_node_or_a_device_that_is_not_there_is_named(cli: Cli, server: StandInApiServer, tmp_path: Path) -> None:
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    said = cli("repair", "trn-9", "--device", "3", "--kubeconfig", config)
    assert (said.status, said.err) == (
        1,
        "neuron-plugin: there is no node trn-9: see 'kubectl get nodes' for the names\n",
    )
    for words in ((), ("--dry-run",)):
        said = cli("repair", "trn-1", "--device", "17", *words, "--kubeconfig", config)
        assert (said.status, "node trn-1 has no device 17: its devices are 0 to 15" in said.err) == (1, True)
    dry = cli("repair", "trn-9", "--device", "3", "--dry-run", "--kubeconfig", config)
    assert "there is no node trn-9: there are trn-1, trn-2" in dry.err


@pytest.mark.parametrize("words", [("--force",), ("--evict", "--undo"), ("--evict", "--dry-run")])
def test_flags_that_contradict_each_other_are_a_wrong_call(run: Repair, words: tuple[str, ...]) -> None:
    assert run(*words).status == 2
