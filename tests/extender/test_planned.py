"""What plans take from the monitor API's objects, and what they never promise."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation import LAST_CHECKPOINT_KEY, MOVABLE_KEY
from neuron_plugin.extender.planned import PlannedCluster, planned
from neuron_plugin.extender.state import Reservation
from neuron_plugin.extender.views import NodeStatus, NodeView, node_view, pod_view
from neuron_plugin.topology import CoreMask, cores_in
from tests.extender.world import CORE, DEVICE, World, pod_of
from tests.support.manifests import container, node_manifest, pod_manifest


def cluster_of(world: World) -> PlannedCluster:
    state = world.state
    nodes = (node_view(state, info) for info in state.nodes.values())
    return planned(nodes, (pod_view(state, pod) for pod in state.pods.values()))


@pytest.fixture
def world() -> World:
    world = World()
    world.node("trn-1", "trn1.32xlarge")
    return world


def owned(name: str, amount: int = 1, controller: str = "ReplicaSet", **described: Any) -> dict[str, Any]:
    manifest = pod_manifest(name, DEVICE, amount, **described)
    manifest["metadata"]["ownerReferences"] = [{"kind": controller, "name": "web", "controller": True}]
    return manifest


def test_free_cores_and_holders_are_those_of_the_extender(world: World) -> None:
    world.node("inf-1", "inf2.48xlarge", unhealthy={3: "ECC"}, missing=[5])
    world.held("train", "trn-1", DEVICE, "0,1,2,3")
    world.held("serve", "inf-1", CORE, "0,1")
    found = cluster_of(world)
    for name, info in world.state.nodes.items():
        node = found.nodes[name]
        assert (node.free_mask, node.used_mask) == (info.free_mask, info.used_mask)
        assert node.geometry == info.node.inventory.geometry  # type: ignore[union-attr]
        assert {pod.uid: pod.mask for pod in node.pods} == {uid: info.ledger.mask_of(uid) for uid in info.ledger.by_pod}


def test_a_pods_work_counts_in_hours_from_its_last_checkpoint(world: World) -> None:
    world.held("train", "trn-1", DEVICE, "0")
    annotations = {"NEURON_DEVS": "1", LAST_CHECKPOINT_KEY: "1971-01-01T00:00:00Z"}
    world.pod("saved", DEVICE, 1, node="trn-1", annotations=annotations)
    since = {pod.reference.name: pod.since for pod in cluster_of(world).nodes["trn-1"].pods}
    assert since == {"train": 0, "saved": 365 * 24}


def test_requests_of_all_containers_are_kept(world: World) -> None:
    world.pod("pair", containers=[container("main", DEVICE, 4), container("eval", CORE, 1)])
    (pod,) = cluster_of(world).waiting
    (record,) = world.state.pods.values()
    assert pod.request == record.requests


def test_devices_that_are_disabled_are_not_offered() -> None:
    world = World()
    world.node("trn-1", "trn1.32xlarge")
    view = node_view(world.state, world.state.nodes["trn-1"])
    status = NodeStatus(open=True, disabled_devices="0,1", unhealthy_devices={"2": "ECC"}, missing_devices="3")
    (node,) = planned([NodeView(metadata=view.metadata, spec=view.spec, status=status)], []).nodes.values()
    assert cores_in(node.free_mask)[0] == 8


def test_a_closed_and_a_cordoned_node_take_no_pod_and_keep_those_they_have(world: World) -> None:
    manifest = node_manifest("trn-2", "trn1.32xlarge")
    world.show_node({**manifest, "spec": {"unschedulable": True}})
    world.held("train", "trn-1", DEVICE, "0")
    world.state.set_stale(frozenset({"trn-1"}))
    found = cluster_of(world).nodes
    assert {name: (node.open, node.free_mask, len(node.pods)) for name, node in found.items()} == {
        "trn-1": (False, 0, 1),
        "trn-2": (False, 0, 0),
    }


def test_waiting_pods_stand_in_the_order_of_their_priority(world: World) -> None:
    for name, priority in (("low", 1), ("b", 5), ("a", 5)):
        world.pod(name, DEVICE, 4, priority=priority)
    world.held("bound", "trn-1", DEVICE, "0")
    assert [pod.reference.name for pod in cluster_of(world).waiting] == ["a", "b", "low"]


def test_a_pod_whose_request_cannot_be_served_is_no_waiting_pod(world: World) -> None:
    world.pod("odd", containers=[container("main", CORE, "1.5")])
    found = cluster_of(world)
    assert (found.waiting, found.left_out) == ([], [])


@pytest.mark.parametrize(
    ("described", "moves"),
    [
        ({}, True),
        ({"controller": "DaemonSet"}, False),
        ({"annotations": {"neuron-plugin.io/allow-devices": "0-3"}}, False),
    ],
)
def test_a_pod_is_moved_only_if_it_is_made_again_and_nothing_but_counts_decides(
    world: World, described: dict[str, Any], *, moves: bool
) -> None:
    annotations = {"NEURON_DEVS": "0", MOVABLE_KEY: "true"} | described.pop("annotations", {})
    world.show(owned("v", node="trn-1", annotations=annotations, **described))
    (pod,) = cluster_of(world).nodes["trn-1"].pods
    assert (pod.movable, pod.recreated) == (True, moves)


def test_a_pod_that_terminates_is_not_moved(world: World) -> None:
    manifest = owned("v", node="trn-1", annotations={"NEURON_DEVS": "0"})
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(manifest)
    (pod,) = cluster_of(world).nodes["trn-1"].pods
    assert not pod.recreated


def test_cores_that_are_reserved_for_a_waiting_pod_are_promised_to_no_other(world: World) -> None:
    waiting = world.pod("waiting", DEVICE, 2)
    world.state.reserve(Reservation(pod_of(waiting), "trn-1", CoreMask(0b1111)))
    assert cluster_of(world).nodes["trn-1"].free_mask == world.state.nodes["trn-1"].free_mask
    assert world.state.nodes["trn-1"].free_mask & 0b1111 == 0
