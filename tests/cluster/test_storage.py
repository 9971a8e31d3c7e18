"""Storage, budgets and namespaces as the API server sends them, read into what rules look at."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.node_rules import NodeSelectorTerm, Requirement
from neuron_plugin.allocation.volumes import Claim, StorageClass, Volume
from neuron_plugin.cluster.objects import ApiResource
from neuron_plugin.cluster.storage import BUDGETS, CLAIMS, CSI_NODES, NAMESPACES, PERSISTENT_VOLUMES, STORAGE_CLASSES

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
IN_A = NodeSelectorTerm((Requirement(ZONE, "In", ("a",)),))
APP = (Requirement("app", "In", ("serve",)),)


def read(resource: ApiResource[Any], *, metadata: dict[str, Any] | None = None, **parts: Any) -> Any:
    metadata = {"name": "name", "namespace": "ml", **(metadata or {})}
    return resource.decode(msgspec.json.encode({"metadata": metadata, **parts}))


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        ({}, Claim()),
        ({"spec": {"volumeName": "v", "storageClassName": "fast"}}, Claim("v", "fast")),
        ({"spec": {"storageClassName": None, "accessModes": ["ReadWriteOncePod"]}}, Claim(once=True)),
        ({"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Lost"}}, Claim(lost=True)),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, Claim(terminating=True)),
        ({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}, Claim(selected_node="n")),
        (
            {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}, "spec": {}},
            Claim(storage_class="old"),
        ),
    ],
    ids=str,
)
def test_a_claim_says_what_it_is_bound_to_or_waits_for(said: dict[str, Any], claim: Claim) -> None:
    assert read(CLAIMS, **said).value == claim


def test_a_volume_says_where_it_can_be_used_and_by_which_driver() -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]}
    csi = {"driver": "ebs", "volumeHandle": "vol-1"}
    local = read(PERSISTENT_VOLUMES, spec={"nodeAffinity": {"required": required}, "csi": csi})
    old = read(PERSISTENT_VOLUMES, metadata={"labels": {OLD_ZONE: "a__b", "tier": "x"}}, spec={})

    assert local.value == Volume("name", (IN_A,), driver="ebs", handle="vol-1")
    assert old.value == Volume("name", zones=((OLD_ZONE, frozenset("ab")),))


def test_a_class_says_when_and_where_its_volumes_are_made() -> None:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    waits = read(STORAGE_CLASSES, provisioner="ebs", volumeBindingMode="WaitForFirstConsumer")
    at_once = read(STORAGE_CLASSES, provisioner="ebs", volumeBindingMode="Immediate", allowedTopologies=topologies)

    assert waits.value == StorageClass("ebs", waits=True)
    assert at_once.value == StorageClass("ebs", topologies=(IN_A,))


def test_a_node_says_how_many_volumes_of_a_driver_can_be_attached() -> None:
    drivers = [{"name": "ebs", "allocatable": {"count": 0}}, {"name": "a"}, {"name": "b", "allocatable": {}}]

    assert read(CSI_NODES, spec={"drivers": drivers}).value == {"ebs": 0}
    assert read(CSI_NODES, spec={"drivers": None}).value == {}


@pytest.mark.parametrize(
    ("generation", "policy", "status", "allowed", "recovers", "counts_unready"),
    [
        (2, None, {"disruptionsAllowed": 3, "observedGeneration": 2}, 3, False, True),
        (2, None, {"disruptionsAllowed": 3, "observedGeneration": 1}, 0, False, True),
        (0, None, {"expectedPods": 3, "desiredHealthy": 2}, 0, True, True),
        (0, "AlwaysAllow", {}, 0, False, False),
        (0, None, {"currentHealthy": 2, "desiredHealthy": 2}, 0, False, False),
        (0, None, {"currentHealthy": 1, "desiredHealthy": 2}, 0, False, True),
    ],
    ids=str,
)
def test_a_budget_allows_what_its_status_says_once_it_has_seen_the_last_change(
    generation: int,
    policy: str | None,
    status: dict[str, int],
    allowed: int,
    *,
    recovers: bool,
    counts_unready: bool,
) -> None:
    spec = {"selector": {"matchLabels": {"app": "serve"}}, "unhealthyPodEvictionPolicy": policy}
    budget = read(BUDGETS, metadata={"generation": generation}, spec=spec, status=status).value

    assert budget == Budget("ml", "name", APP, allowed, recovers, counts_unready)


@pytest.mark.parametrize(("text", "movable"), [("true", True), ("false", False), (None, False)])
def test_a_namespace_says_whether_its_pods_may_be_moved(text: str | None, *, movable: bool) -> None:
    annotations = {"neuron-plugin.io/movable": text} if text else {}

    assert read(NAMESPACES, metadata={"annotations": annotations}).movable is movable
