from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster.kinds import LEASES, NODES, PODS
from neuron_plugin.cluster.records import Lease, Node, Pod


def pod(value: dict[str, Any]) -> Pod:
    return PODS.decode(msgspec.json.encode(value))


def node(value: dict[str, Any]) -> Node:
    return NODES.decode(msgspec.json.encode(value))


def lease(value: dict[str, Any]) -> Lease:
    return LEASES.decode(msgspec.json.encode(value))


FULL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "6f1c",
        "resourceVersion": "812",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T04:04:05Z",
        "annotations": {"NEURON_DEVS": "2,3"},
        "labels": {"app": "train"},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "77", "controller": True},
        ],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    },
    "spec": {
        "nodeName": "trn1-a",
        "schedulerName": "neuron-scheduler",
        "priority": 1000,
        "initContainers": [
            {"name": "warm-up", "resources": {"limits": {"aws.amazon.com/neuroncore": "2"}}},
            {"name": "proxy", "restartPolicy": "Always"},
        ],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "resources": {
                    "limits": {"aws.amazon.com/neurondevice": "2", "cpu": "1k"},
                    "requests": {"aws.amazon.com/neurondevice": "2", "cpu": "500m"},
                },
            }
        ],
        "volumes": [{"name": "token"}],
    },
    "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z", "nominatedNodeName": "trn1-b", "podIP": "::1"},
}


def test_a_pod_has_the_fields_that_matter() -> None:
    found = pod(FULL)
    assert (found.name, found.namespace, found.uid, found.resource_version) == ("train-0", "ml", "6f1c", "812")
    assert (found.node_name, found.phase) == ("trn1-a", "Running")
    assert found.priority == 1000
    assert found.annotations == {"NEURON_DEVS": "2,3"}
    assert found.labels == {"app": "train"}


def test_containers_keep_their_order_and_their_quantities_as_written() -> None:
    found = pod(FULL)
    warm_up, _, main = (container for container, _ in found.containers)
    assert main.limits == {"aws.amazon.com/neurondevice": "2", "cpu": "1k"}
    assert main.requests["cpu"] == "500m"
    assert warm_up.limits == {"aws.amazon.com/neuroncore": "2"}


def test_containers_come_as_they_are_admitted_and_a_sidecar_is_an_init_container_that_always_restarts() -> None:
    found = [(container.name, kind) for container, kind in pod(FULL).containers]
    assert found == [("warm-up", ContainerKind.INIT), ("proxy", ContainerKind.SIDECAR), ("main", ContainerKind.APP)]


def test_an_app_container_that_always_restarts_is_no_sidecar() -> None:
    spec = {"containers": [{"name": "main", "restartPolicy": "Always"}]}
    assert [kind for _, kind in pod({"metadata": {}, "spec": spec}).containers] == [ContainerKind.APP]


@pytest.mark.parametrize(
    ("phase", "terminal"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True), ("", False)],
)
def test_t28_a_pod_that_ended_is_terminal(phase: str, terminal: bool) -> None:  # noqa: FBT001 - a table's column
    assert pod({"metadata": {}, "status": {"phase": phase}}).terminal is terminal


def test_t27_terminating_is_not_terminal() -> None:
    found = pod(FULL)
    assert found.terminating
    assert not found.terminal


@pytest.mark.parametrize(
    "bare",
    [
        {"metadata": {}},
        {"metadata": {"annotations": None, "labels": None}, "spec": {"containers": None, "initContainers": None}},
        {"metadata": {}, "spec": {"containers": [{"resources": None}], "priority": None}},
        {"metadata": {}, "spec": {"containers": [{"resources": {"limits": None, "requests": None}}]}},
    ],
)
def test_what_is_left_out_or_null_reads_as_empty(bare: dict[str, Any]) -> None:
    found = pod(bare)
    assert (found.annotations, found.labels, found.priority) == ({}, {}, 0)
    assert all((container.limits, container.requests) == ({}, {}) for container, _ in found.containers)
    assert (found.node_name, found.phase, found.terminating) == ("", "", False)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        pod(FULL).spec.node_name = "x"  # type: ignore[misc]  # that is what is tested


def test_a_node_has_the_fields_that_matter() -> None:
    found = node(
        {
            "metadata": {"name": "trn1-a", "labels": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}},
            "spec": {"unschedulable": True},
            "status": {
                "capacity": {"aws.amazon.com/neurondevice": "16"},
                "allocatable": {"aws.amazon.com/neurondevice": "15"},
                "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "images": [{"names": ["a"]}],
            },
        }
    )
    assert found.labels["node.kubernetes.io/instance-type"] == "trn1.32xlarge"
    assert found.capacity["aws.amazon.com/neurondevice"] == "16"
    assert found.allocatable["aws.amazon.com/neurondevice"] == "15"


def test_an_empty_node_has_no_resources() -> None:
    found = node({"metadata": {"name": "n"}, "status": {"capacity": None}})
    assert (found.capacity, found.allocatable) == ({}, {})


def test_a_lease_has_the_fields_that_matter() -> None:
    found = lease(
        {
            "metadata": {"name": "leader", "namespace": "kube-system", "resourceVersion": "5"},
            "spec": {
                "holderIdentity": "extender-1",
                "leaseDurationSeconds": 15,
                "leaseTransitions": 3,
                "renewTime": "2026-01-02T03:04:05.000006Z",
            },
        }
    )
    assert (found.holder, found.duration_seconds, found.transitions) == ("extender-1", 15, 3)


def test_a_released_lease_is_held_by_nobody() -> None:
    assert lease({"metadata": {}, "spec": {"holderIdentity": None}}).holder == ""
    assert lease({"metadata": {}}).duration_seconds == 0
