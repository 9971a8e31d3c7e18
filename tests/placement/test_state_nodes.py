"""What follows for a node from its hardware and its pods."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import (
    Capacity,
    ContainerKind,
    ContainerRequest,
    NeuronNode,
    NeuronPod,
    NodeInventory,
    PodRequest,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.allocation.rejection import (
    NO_ASSIGNMENT,
    NO_NEURON,
    OVERLAPPING_ASSIGNMENTS,
    STALE_PLUGIN,
    UNREADABLE_ASSIGNMENT,
)
from tests.support.manifests import container, pod_manifest, shipped_geometry
from tests.support.world import CORE, DEVICE, node_of, record_of

TRN1 = shipped_geometry("trn1.32xlarge")
INF1 = shipped_geometry("inf1.6xlarge")
COMPLETE = NeuronNode("node", "uid", NodeInventory(TRN1, present=tuple(range(16))))


def bound(name: str, ids: str, amount: int = 1) -> NeuronPod:
    return record_of(pod_manifest(name, DEVICE, amount, node="node", annotations={"NEURON_DEVS": ids}))


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
