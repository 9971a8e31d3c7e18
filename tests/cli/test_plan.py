from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import PodUid, Resource
from neuron_plugin.allocation.keys import LAST_CHECKPOINT_KEY, MOVABLE_KEY, UTILIZATION_KEY
from neuron_plugin.allocation.utilization import ContainerUtilization, write_utilization
from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS
from tests.cli.doubles import Background, Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

NEURON = Resource.NEURON
MOVABLE = {MOVABLE_KEY: "true", "NEURON_ALLOC_TIME": "1700000000000000000"}


def bound(name: str, node: str, ids: str, controller: str = "ReplicaSet", **annotations: str) -> Any:
    """A pod with devices on a node that a controller makes again and that may be moved."""
    keys = MOVABLE | annotations | {"NEURON_DEVS": ids}
    pod = pod_manifest(name, NEURON, len(ids.split(",")), node=node, annotations=keys)
    owner = {"apiVersion": "v1", "kind": controller, "name": "owner", "uid": "owner-uid", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    return pod


@pytest.fixture
def server(empty_server: StandInApiServer) -> StandInApiServer:
    for name in ("trn-1", "trn-2"):
        empty_server.create_node(node_manifest(name, "trn1.32xlarge"))
    empty_server.create_pod(bound("small", "trn-1", "5"))
    empty_server.create_pod(bound("rows", "trn-2", "0,1,2,3,4,5,6,7", **{MOVABLE_KEY: "false"}))
    empty_server.create_pod(pod_manifest("big", NEURON, 16))
    return empty_server


async def do(work: Callable[[], Any]) -> None:
    work()


def plan(cli: Cli, kubeconfig: Path, *arguments: object) -> Any:
    return json.loads(cli("plan", "--kubeconfig", kubeconfig, "--lease-namespace", "", "-o", "json", *arguments).out)


def test_the_move_that_makes_room_for_a_waiting_pod_is_shown(cli: Cli, kubeconfig: Path) -> None:
    shown = cli("plan", "--kubeconfig", kubeconfig, "--lease-namespace", "")
    assert shown.status == 1
    assert shown.err == "neuron-plugin: 1 pod of those asked about cannot start now\n"
    header, row, _, move = shown.rows
    assert header == ["POD", "REQUEST", "STANDING", "NODE", "LOST", "IDS", "NEEDS"]
    assert row[:4] == ["default/big", "neuron=16", "links", "trn-1"]
    assert row[5:] == ["devices:0-15", "move", "1", "pod"]
    assert " ".join(move) == "for default/big: default/small from trn-1 to trn-2, device 8"


def test_pods_that_wait_for_the_same_reason_have_one_sentence(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    for number in range(4):
        server.create_pod(pod_manifest(f"seven-{number}", NEURON, 7))
    shown = cli("plan", "--kubeconfig", kubeconfig, "--lease-namespace", "").out
    (line,) = [line for line in shown.splitlines() if "seven-3" not in line and "seven-0, " in line]
    assert line.startswith("default/seven-0, default/seven-1, default/seven-2 and 1 other: 0 of 2 Neuron nodes: ")


def test_what_is_lost_counts_from_the_last_checkpoint(cli: Cli, server: StandInApiServer, kubeconfig: Path) -> None:
    (before,) = plan(cli, kubeconfig)["waiting"]
    server.delete_pod("default", "small", grace_seconds=0)
    server.create_pod(bound("saved", "trn-1", "5", **{LAST_CHECKPOINT_KEY: "2026-01-01T00:00:00Z"}))
    (after,) = plan(cli, kubeconfig)["waiting"]
    assert before["lost"] - after["lost"] == pytest.approx((1767225600 - 1700000000) / 3600, abs=0.1)


def test_a_pod_with_constraints_is_planned_for_and_one_that_cannot_be_judged_is_listed_with_its_reason(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    server.create_pod(pod_manifest("listed", NEURON, 4, annotations={"neuron-plugin.io/allow-devices": "12-15"}))
    beside, claims = pod_manifest("beside", NEURON, 1), pod_manifest("claims", NEURON, 1)
    term = {"topologyKey": "zone", "labelSelector": {}}
    beside["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    claims["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    server.create_pod(beside)
    server.create_pod(claims)
    found = {pod["pod"].removeprefix("default/"): pod for pod in plan(cli, kubeconfig)["waiting"]}
    assert (found["listed"]["standing"], found["listed"]["unit"]) == ("fits", "device")
    assert found["listed"]["devices"] == [12, 13, 14, 15]
    assert (found["beside"]["standing"], found["claims"]["standing"]) == ("rules", "unknown")
    shown = cli("plan", "--kubeconfig", kubeconfig, "--lease-namespace", "")
    assert "default/beside: 0 of 2 Neuron nodes: 2 have no label zone" in shown.out
    text = "default/claims: Where it can run cannot be judged here, because it has resource claims of another driver"
    assert text in shown.out


def test_a_drain_shows_where_the_pods_would_go(cli: Cli, kubeconfig: Path) -> None:
    shown = cli("plan", "--kubeconfig", kubeconfig, "--lease-namespace", "", "--drain", "trn-1")
    assert shown.status == 0
    assert shown.rows == [["POD", "NODE", "IDS"], ["default/small", "trn-2", "device", "8"]]
    found = plan(cli, kubeconfig, "--drain", "trn-2")
    assert (found["stuck"], found["drained"][0]["target"]) == ([], "trn-1")


def test_what_kubectl_prints_makes_the_same_plan(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, tmp_path: Path
) -> None:
    items = [{**node, "kind": "Node"} for node in server.objects(NODES)]
    items += [{**pod, "kind": "Pod"} for pod in server.objects(PODS)]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    saved = json.loads(cli("plan", "-f", file, "-o", "json").out)
    assert [{**pod, "lost": 0} for pod in saved["waiting"]] == [
        {**pod, "lost": 0} for pod in plan(cli, kubeconfig)["waiting"]
    ]


def test_a_simulated_cluster_can_be_planned(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    small = ("--nodes", "trn1.32xlarge=4", "--pods", "50", "--seeds", "1", "--load", "1.2", "--waiting")
    assert cli("simulate", "cluster", *small, "--save", file).status == 0
    found = json.loads(cli("plan", "-f", file, "-o", "json").out)
    assert found["waiting"]
    assert {pod["standing"] for pod in found["waiting"]} <= {"fits", "links", "short"}
    assert any(pod["moves"] for pod in found["waiting"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "is no cluster: Object missing required field `items`"),
        ("x", "is no cluster"),
        ('{"items": [{"kind": "Node", "metadata": {"name": 3}}]}', "is no cluster"),
        ('{"items": [{"kind": "Pod", "metadata": []}]}', "is no cluster"),
    ],
)
def test_a_file_that_has_no_cluster_is_refused(cli: Cli, tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(text)
    shown = cli("plan", "-f", file)
    assert (shown.status, len(shown.err.splitlines())) == (2, 1)
    assert complaint in shown.err


def test_what_is_not_used_is_listed_with_the_most_device_hours_first(
    cli: Cli, background: Background, server: StandInApiServer, kubeconfig: Path
) -> None:
    now = int(time.time())
    uid_of = {pod["metadata"]["name"]: PodUid(pod["metadata"]["uid"]) for pod in server.objects(PODS)}
    used = {
        "trn-1": {uid_of["small"]: {"main": ContainerUtilization(0, 0, idle_since=now - 10 * 3600)}},
        "trn-2": {uid_of["rows"]: {"main": ContainerUtilization(0, 2**36, idle_since=now - 2 * 3600)}},
    }
    for node, utilization in used.items():
        annotations = {UTILIZATION_KEY: write_utilization(utilization)}
        lease = {"metadata": {"name": f"neuron-plugin-{node}", "annotations": annotations}}
        background.do(do(partial(server.create, LEASES, lease, "kube-system")))

    shown = cli("plan", "--idle", "--kubeconfig", kubeconfig)
    assert (shown.status, shown.err) == (0, "")
    header, first, second = shown.rows
    assert header == ["POD", "CONTAINER", "NODE", "IDS", "IDLE", "DEVICE-HOURS", "MEMORY", "CONTROLLER"]
    assert first == ["default/rows", "main", "trn-2", "devices:0-7", "2h", "16.0", "64.0Gi", "ReplicaSet/owner"]
    (of_rows, _) = json.loads(cli("plan", "--idle", "-o", "json", "--kubeconfig", kubeconfig).out)["idle"]
    since = datetime.fromtimestamp(now - 2 * 3600, UTC).isoformat().replace("+00:00", "Z")
    assert (of_rows["devices"], of_rows["idleSince"]) == ([*range(8)], since)
    assert second[:6] == ["default/small", "main", "trn-1", "device:5", "10h", "10.0"]
