from __future__ import annotations

from typing import Any

from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import neuron_node, neuron_pod
from neuron_plugin.simulation import container, node_manifest, pod_manifest
from tests.extender.world import CORE, DEVICE, World, record_of


def shown(world: World, name: str) -> dict[str, Any]:
    record: NodeRecord = world.state.nodes[name]
    return neuron_node(record, 7)


def test_e06_an_object_carries_version_uid_and_labels(world: World) -> None:
    world.node("node", "inf2.48xlarge")

    metadata = shown(world, "node")["metadata"]

    assert metadata["resourceVersion"] == "7"
    assert metadata["uid"] == world.state.nodes["node"].facts.uid
    assert metadata["labels"] == {"neuron-plugin.io/node": "node"}


def test_e06_a_closed_node_says_why_and_in_detail_which_pod(world: World) -> None:
    world.node("node", "inf2.48xlarge", missing=[2])
    world.pod("stock", DEVICE, 1, node="node")

    status = shown(world, "node")["status"]

    assert status["open"] is False
    assert status["reason"] == "A pod on the node uses Neuron and its assignment is not known yet"
    assert status["details"] == ["pod default/stock is bound and has no assignment yet"]
    assert status["missingDevices"] == "2"


def test_e06_a_node_without_known_hardware_has_an_empty_spec_and_the_cause(world: World) -> None:
    manifest = node_manifest("node", "inf2.48xlarge")
    manifest["metadata"]["annotations"] = {"neuron-plugin.io/inventory": '{"version":2}'}
    world.tell_node(manifest)

    found = shown(world, "node")

    assert found["spec"] == {}
    assert found["status"]["open"] is False
    assert "version is 2, expected 1" in found["status"]["details"][0]


def test_e06_phases_follow_binding_and_deletion() -> None:
    waiting = pod_manifest("pod", DEVICE, 1)
    bound = {**waiting, "spec": {**waiting["spec"], "nodeName": "node"}}
    ending = {**bound, "metadata": {**bound["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    phases = [neuron_pod(record_of(each), 1)["status"]["phase"] for each in (waiting, bound, ending)]  # type: ignore[index]  # JSON

    assert phases == ["Waiting", "Bound", "Terminating"]


def test_e06_a_pods_containers_are_told_with_kind_resource_and_ids() -> None:
    manifest = pod_manifest(
        "pod",
        containers=[container("main", CORE, 2)],
        init_containers=[container("setup", CORE, 2)],
        node="node",
        annotations={"NEURON_CORES": "0,1|0,1", "NEURON_ALLOCATED": "true"},
    )

    found: dict[str, Any] = neuron_pod(record_of(manifest), 1)

    assert [(each["name"], each["kind"], each["count"]) for each in found["spec"]["containers"]] == [
        ("setup", "init", 2),
        ("main", "app", 2),
    ]
    assert found["status"]["allocated"] is True
    assert [each["ids"] for each in found["status"]["containers"]] == ["0,1", "0,1"]


def test_e06_an_assignment_that_cannot_be_read_is_told_as_a_problem() -> None:
    found: dict[str, Any] = neuron_pod(record_of(pod_manifest("pod", CORE, 1, annotations={"NEURON_CORES": "x"})), 1)

    assert "NEURON_CORES='x'" in found["status"]["problem"]
