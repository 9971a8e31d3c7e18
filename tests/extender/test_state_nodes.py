"""What hardware a node has, and what follows from its pods."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation import (
    INVENTORY_KEY,
    NO_ASSIGNMENT,
    UNREADABLE_ASSIGNMENT,
    ContainerKind,
    ContainerRequest,
    NeuronPod,
    NodeInventory,
    PodRequest,
    Rejection,
    Resource,
    assigned_allocations,
    write_inventory,
)
from neuron_plugin.extender.state import (
    NO_INVENTORY,
    NO_NEURON,
    OVERLAPPING_ASSIGNMENTS,
    STALE_PLUGIN,
    UNKNOWN_HEALTH,
    Capacity,
    NeuronNode,
    node_info,
)
from tests.extender.world import CORE, DEVICE, node_of, record_of
from tests.support.manifests import container, node_manifest, pod_manifest, shipped_geometry

TRN1 = shipped_geometry("trn1.32xlarge")
INF1 = shipped_geometry("inf1.6xlarge")
COMPLETE = NeuronNode("node", "uid", NodeInventory(TRN1, present=tuple(range(16))))
TYPE_LABEL = "node.kubernetes.io/instance-type"


def bare(instance_type: str, allocatable: dict[str, str] | None = None, /, **capacity: str) -> dict[str, Any]:
    """A node without an inventory, as the vendor's plugin leaves it."""
    quantities = {f"aws.amazon.com/{name}": count for name, count in capacity.items()}
    return {
        "metadata": {"name": "node", "uid": "u", "labels": {TYPE_LABEL: instance_type}},
        "status": {"capacity": quantities | {"cpu": "96"}, "allocatable": (allocatable or quantities) | {"cpu": "95"}},
    }


def bound(name: str, ids: str, amount: int = 1) -> NeuronPod:
    return record_of(pod_manifest(name, DEVICE, amount, node="node", annotations={"NEURON_DEVS": ids}))


def test_the_inventory_names_geometry_and_broken_devices() -> None:
    found = node_of(node_manifest("n", "trn2.48xlarge", unhealthy={3: "ECC"}, missing=[5])).inventory

    assert isinstance(found, NodeInventory)
    assert found.geometry == shipped_geometry("trn2.48xlarge")
    assert found.present == tuple(device for device in range(16) if device != 5)
    assert found.unhealthy == {3: "ECC"}
    assert found.geometry.whole_devices(found.healthy_mask) == tuple(d for d in range(16) if d not in (3, 5))


def test_nodes_of_one_type_share_their_geometry() -> None:
    whole, broken = (node_of(node_manifest("n", "trn2.48xlarge", unhealthy=each)) for each in ({}, {3: "ECC"}))

    assert isinstance(whole.inventory, NodeInventory)
    assert isinstance(broken.inventory, NodeInventory)
    assert whole.inventory.geometry is broken.inventory.geometry


@pytest.mark.parametrize(
    ("instance_type", "counts", "cores_per_device"),
    [
        ("trn1.32xlarge", {"neuron": "16", "neuroncore": "32"}, 2),
        ("trn2.48xlarge", {"neuron": "16", "neuroncore": "64"}, 4),
        ("trn2.48xlarge", {"neuron": "16", "neuroncore": "128"}, 8),
        ("trn2.48xlarge", {"neurondevice": "16"}, 4),
        ("inf1.6xlarge", {"neuroncore": "16"}, 4),
    ],
)
def test_without_an_inventory_instance_type_and_capacity_decide(
    instance_type: str, counts: dict[str, str], cores_per_device: int
) -> None:
    found = node_of(bare(instance_type, **counts)).inventory

    assert isinstance(found, NodeInventory)
    assert found.geometry.instance_type == instance_type
    assert found.geometry.cores_per_device == cores_per_device
    assert found.healthy_mask == found.geometry.all_mask


@pytest.mark.parametrize(
    ("given", "rejection"),
    [
        (bare("trn1.32xlarge"), NO_NEURON),
        (bare("m5.large"), NO_NEURON),
        (bare("trn1.32xlarge", neuron="0"), NO_NEURON),
        (bare("trn9.48xlarge", neuron="16"), NO_INVENTORY),
        (bare("", neuron="16"), NO_INVENTORY),
        (bare("trn1.32xlarge", neuron="15", neuroncore="30"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="16", neuroncore="31"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="16", neuroncore="64"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="garbage", neuroncore="-3"), NO_NEURON),
    ],
    ids=str,
)
def test_e09_what_type_and_capacity_leave_open_is_refused_and_not_guessed(
    given: dict[str, Any], rejection: Rejection
) -> None:
    assert node_of(given).inventory == rejection


def test_an_unhealthy_device_without_inventory_closes_the_node_because_its_id_is_not_known() -> None:
    found = node_of(bare("trn1.32xlarge", {"aws.amazon.com/neuron": "15"}, neuron="16")).inventory

    assert isinstance(found, Rejection)
    assert found == UNKNOWN_HEALTH
    assert "15" in found.detail


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"node.kubernetes.io/instance-type": "trn1.32xlarge"}, "trn1.32xlarge"),
        ({"node.kubernetes.io/instance-type": "ml.trn1.32xlarge"}, "trn1.32xlarge"),
        ({"beta.kubernetes.io/instance-type": "inf1.xlarge"}, "inf1.xlarge"),
        ({"node.kubernetes.io/instance-type": "a", "beta.kubernetes.io/instance-type": "b"}, "a"),
        ({}, "unset"),
    ],
    ids=str,
)
def test_the_instance_type_is_read_from_either_label_without_sagemakers_prefix(
    labels: dict[str, str], expected: str
) -> None:
    manifest = bare("", neuron="7")

    found = node_of({**manifest, "metadata": {**manifest["metadata"], "labels": labels}}).inventory

    assert isinstance(found, Rejection)
    assert expected in found.detail


def test_an_assignment_is_the_cores_behind_the_ids_by_the_nodes_own_geometry() -> None:
    on_trn1, on_inf1 = (assigned_allocations(bound("pod", "1"), geometry) for geometry in (TRN1, INF1))

    assert not isinstance(on_trn1, Rejection)
    assert not isinstance(on_inf1, Rejection)
    assert (on_trn1[0].mask, on_inf1[0].mask) == (0b1100, 0xF0)


@pytest.mark.parametrize(
    ("pod", "rejection", "detail"),
    [
        (record_of(pod_manifest("pod", DEVICE, 1, node="node")), NO_ASSIGNMENT, "no assignment yet"),
        (bound("pod", "x"), UNREADABLE_ASSIGNMENT, "NEURON_DEVS='x'"),
        (bound("pod", "16"), UNREADABLE_ASSIGNMENT, "(16,)"),
        (
            record_of(pod_manifest("pod", containers=[container("main", CORE, "1.5")], node="node")),
            UNREADABLE_ASSIGNMENT,
            "1.5",
        ),
    ],
    ids=["none", "garbage", "beyond the node", "unreadable request"],
)
def test_a_pod_whose_allocation_is_not_clear_closes_the_node_with_its_reason(
    pod: NeuronPod, rejection: Rejection, detail: str
) -> None:
    info = node_info(COMPLETE, [pod])

    ((named, reason),) = info.unclear
    assert named == pod.reference
    assert info.capacity == reason == rejection
    assert detail in reason.detail


def test_an_unreadable_request_carries_no_assignment() -> None:
    pod = record_of(pod_manifest("pod", containers=[container("main", CORE, "-1")], annotations={"NEURON_CORES": "0"}))

    assert isinstance(pod.request, Rejection)
    assert pod.assignment is None


def test_a_node_without_hardware_is_closed_and_holds_nothing() -> None:
    info = node_info(NeuronNode("node", "uid", NO_NEURON), [bound("pod", "0")])

    assert info.capacity is NO_NEURON
    assert (info.used_mask, info.free_mask) == (0, 0)


def test_of_several_reasons_the_one_that_no_pods_end_mends_is_given() -> None:
    info = node_info(COMPLETE, [bound("odd", "x")], stale=True)

    assert info.capacity is STALE_PLUGIN


def test_overlapping_pods_close_the_node_and_both_stay_on_its_ledger() -> None:
    info = node_info(COMPLETE, [bound("a", "0,1", 2), bound("b", "1,2", 2), bound("c", "5")])

    assert info.capacity == OVERLAPPING_ASSIGNMENTS
    assert len(info.ledger.by_pod) == 3
    assert info.used_mask == 0b111111 | 0b11 << 10
    ((pod, reason),) = info.unclear
    assert pod.name == "b"
    assert reason.detail == "pod default/b is assigned cores that are assigned to default/a as well"


def test_containers_of_one_pod_that_share_cores_are_no_overlap() -> None:
    init, main = container("setup", CORE, 2), container("main", CORE, 2)
    keys = {"NEURON_CORES": "0,1|0,1"}
    pod = record_of(pod_manifest("pod", containers=[main], init_containers=[init], node="node", annotations=keys))

    info = node_info(COMPLETE, [pod])

    assert isinstance(info.capacity, Capacity)
    assert info.used_mask == 0b11


def test_an_open_node_has_the_capacity_of_what_is_healthy_and_free() -> None:
    node = NeuronNode("node", "uid", NodeInventory(TRN1, present=tuple(range(8))))

    info = node_info(node, [bound("pod", "0")])

    assert isinstance(info.capacity, Capacity)
    assert info.capacity.free_mask == info.free_mask == TRN1.devices_mask(range(1, 8))


def test_a_node_with_disabled_devices_gives_its_others_and_says_disabled_and_not_broken() -> None:
    text = write_inventory(NodeInventory(TRN1, present=tuple(range(16)), disabled=(5,)))
    node = node_of({"metadata": {"name": "node", "uid": "uid", "annotations": {INVENTORY_KEY: text}}})
    info = node_info(node, [bound("pod", "5")])

    assert isinstance(info.capacity, Capacity)
    assert info.used_mask == TRN1.device_mask(5), "who has it keeps it"
    assert info.free_mask == TRN1.all_mask & ~TRN1.device_mask(5)
    whole = info.capacity.place(asking_for(16))
    assert isinstance(whole, Rejection)
    assert whole.text == "The node's disabled Neuron devices leave no linked set of 16 devices"
    assert not isinstance(info.capacity.place(asking_for(8)), Rejection)


def asking_for(devices: int) -> PodRequest:
    return (ContainerRequest("app", ContainerKind.APP, Resource.NEURON, devices),)
