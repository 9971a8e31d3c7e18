from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodUid
from neuron_plugin.allocation.group import GroupMember
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.placement.state import AssumedPod, ClusterState
from neuron_plugin.planning import Scene
from neuron_plugin.planning.groups import place_group
from neuron_plugin.topology import CoreMask
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, World, node_of, pod_of, record_of

TRN1 = "trn1.32xlarge"
LEAF = "topology.k8s.aws/network-node-layer-1"
MEMBER = GroupMember(("default", "ring"), 4)


def assumed(manifest: dict[str, Any], node: str) -> AssumedPod:
    """A bind puts the pod on device 0."""
    keys = {"NEURON_DEVS": "0"}
    metadata = {**manifest["metadata"], "annotations": keys}
    pod = record_of({**manifest, "metadata": metadata, "spec": {**manifest["spec"], "nodeName": node}})
    return AssumedPod(pod, (), since=0.0)


def test_t26_a_lone_delete_frees_exactly_that_pods_silicon(world: World) -> None:
    world.node("node", TRN1)
    first = world.held("first", "node", DEVICE, "0")
    world.held("second", "node", DEVICE, "1")

    world.gone(first)

    assert world.state.nodes["node"].used_mask == 0b1100
    assert len(world.state.pods) == 1


def test_t27_a_terminating_pod_holds_until_it_is_gone(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("pod", "node", DEVICE, "0")

    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(pod, phase="Running")
    assert world.state.nodes["node"].used_mask == 0b11

    world.gone(pod)
    assert world.state.nodes["node"].used_mask == 0


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_t28_a_terminal_phase_frees_though_the_object_stays(world: World, phase: str) -> None:
    world.node("node", TRN1)
    pod = world.held("pod", "node", DEVICE, "0")

    world.show(pod, phase=phase)

    assert world.state.nodes["node"].used_mask == 0
    assert not world.state.pods


def test_t29_finished_pods_of_the_first_list_hold_nothing(world: World) -> None:
    manifest = pod_manifest("done", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "0"})
    world.show(manifest, phase="Succeeded")
    world.node("node", TRN1)

    assert world.fits(DEVICE, 16, "node")


def test_t30_unbound_pods_hold_nothing_and_bound_ones_do_whatever_their_state(world: World) -> None:
    world.node("node", TRN1)
    world.pod("annotated", DEVICE, 1, annotations={"AWS_NEURON_IDS": "0", "NEURON_RESOURCE_TYPE": DEVICE.value})
    assert world.state.nodes["node"].used_mask == 0

    world.held("not-allocated-yet", "node", DEVICE, "1")
    ending = world.held("ending", "node", DEVICE, "2")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(ending, phase="Running")

    assert world.state.nodes["node"].used_mask == 0b111100


def test_t31_two_pods_of_one_name_are_two_records_in_either_order(world: World) -> None:
    world.node("node", TRN1)
    old = world.held("web-0", "node", DEVICE, "0")
    world.held("web-0", "node", DEVICE, "1")
    assert world.state.nodes["node"].used_mask == 0b1111

    world.gone(old)
    assert world.state.nodes["node"].used_mask == 0b1100

    world.gone(old)
    assert world.state.nodes["node"].used_mask == 0b1100


def test_t33_a_node_made_anew_is_judged_by_its_new_geometry(world: World) -> None:
    world.node("node", TRN1)
    old = world.state.nodes["node"]
    assert world.fits(DEVICE, 16, "node")

    world.state.remove_node("node", old.node.uid)
    assert world.why_not(DEVICE, 1, "node") == "The node is not known to the Neuron extender yet"
    world.node("node", "inf2.24xlarge")

    assert world.fits(DEVICE, 6, "node")
    assert not world.fits(DEVICE, 16, "node")


def test_t33_a_late_delete_of_the_old_node_leaves_the_new_one(world: World) -> None:
    world.node("node", TRN1)
    old = world.state.nodes["node"].node.uid
    world.node("node", "inf2.24xlarge")

    world.state.remove_node("node", old)
    assert world.fits(DEVICE, 6, "node")

    for _ in range(2):
        world.state.remove_node("node", world.state.nodes["node"].node.uid if world.state.nodes else old)
    assert not world.state.nodes


@pytest.mark.parametrize(
    "annotations",
    [
        {"NEURON_DEVS": "x"},
        {"NEURON_DEVS": "0,1,2"},
        {"NEURON_DEVS": "98"},
        {"NEURON_CORES": "0"},
        {"NEURON_DEVS": "0", "AWS_NEURON_IDS": "1"},
        {"NEURON_DEVS": "0", "NEURON_ALLOC_TIME": "yesterday"},
    ],
    ids=str,
)
def test_t34_an_assignment_that_cannot_be_read_closes_its_node_until_the_pod_ends(
    world: World, annotations: dict[str, str]
) -> None:
    world.node("node", TRN1)
    world.node("other", TRN1)
    pod = world.pod("odd", DEVICE, 1, node="node", annotations=annotations)

    found = world.filter(pod_manifest("new", DEVICE, 4))
    assert found.passed == ["other"]
    assert found.texts(may_pass=True) == {"node": "A pod on the node has a Neuron assignment that cannot be read"}

    world.gone(pod)
    assert world.fits(DEVICE, 4, "node")


def test_t35_a_pod_bound_by_others_closes_its_node_until_the_plugin_says_what_it_holds(world: World) -> None:
    world.node("node", TRN1)
    pod = world.pod("stock", DEVICE, 1, node="node")
    assert world.why_not(DEVICE, 4, "node") == "A pod on the node uses Neuron and its assignment is not known yet"

    pod["metadata"]["annotations"] = {"NEURON_DEVS": "5", "NEURON_ALLOCATED": "true"}
    world.show(pod, phase="Running")

    assert world.fits(DEVICE, 4, "node")
    assert world.state.nodes["node"].used_mask == 0b11 << 10


def test_t44_between_the_two_patches_of_a_swap_the_node_gives_nothing_away(world: World) -> None:
    world.node("node", TRN1)
    first = world.held("first", "node", DEVICE, "0")
    second = world.held("second", "node", DEVICE, "1")

    first["metadata"]["annotations"] = {"NEURON_DEVS": "1"}
    world.show(first)
    assert world.why_not(DEVICE, 1, "node") == "Two pods on the node are assigned the same Neuron devices"

    second["metadata"]["annotations"] = {"NEURON_DEVS": "0"}
    world.show(second)
    assert world.fits(DEVICE, 4, "node")
    holders = {str(each.pod): each.mask for each in world.state.nodes["node"].ledger.allocations}
    assert holders == {"default/first": 0b1100, "default/second": 0b11}


def test_e10_the_vendors_dialect_counts_like_our_own(world: World) -> None:
    world.node("node", TRN1)
    keys = {"AWS_NEURON_IDS": "4,5", "NEURON_RESOURCE_TYPE": CORE.value, "NEURON_ALLOCATED": "false"}
    world.pod("vendors", CORE, 2, node="node", annotations=keys)

    assert world.state.nodes["node"].used_mask == 0b110000


def test_an_assumed_pod_counts_until_the_watch_shows_the_assignment(world: World) -> None:
    world.node("node", TRN1)
    pod = world.pod("pod", DEVICE, 1)
    world.state.assume(assumed(pod, "node"))
    assert world.state.nodes["node"].used_mask == 0b11

    pod["metadata"]["annotations"] = {"NEURON_DEVS": "0"}  # the vendor's scheduler extension annotates before it binds
    world.show(pod)
    assert world.state.nodes["node"].used_mask == 0b11
    pod["metadata"]["annotations"] = {}
    pod["spec"]["nodeName"] = "node"
    world.show(pod)
    assert world.state.nodes["node"].used_mask == 0b11
    assert world.fits(DEVICE, 1, "node"), "bound and not annotated, but we know what we assumed"

    pod["metadata"]["annotations"] = {"NEURON_DEVS": "1"}
    world.show(pod)
    assert world.state.nodes["node"].used_mask == 0b1100
    assert not world.state.assumed


@pytest.mark.parametrize(("annotations", "used"), [({"NEURON_DEVS": "3"}, 0b11 << 6), ({}, 0)], ids=["ours", "bare"])
def test_a_pod_that_shows_up_on_another_node_is_assumed_no_more(
    world: World, annotations: dict[str, str], used: int
) -> None:
    world.node("here", TRN1)
    world.node("there", TRN1)
    pod = world.pod("pod", DEVICE, 1)
    world.state.assume(assumed(pod, "here"))

    pod["spec"]["nodeName"] = "there"
    pod["metadata"]["annotations"] = annotations
    world.show(pod)

    assert not world.state.assumed
    assert world.state.nodes["here"].used_mask == 0
    assert world.state.nodes["there"].used_mask == used


def test_what_is_assumed_and_what_is_bound_on_two_nodes_counts_on_each_by_itself(world: World) -> None:
    world.node("here", TRN1)
    world.node("there", TRN1)
    pod = world.held("pod", "there", DEVICE, "3")
    world.state.assume(assumed(pod, "here"))

    assert world.state.nodes["here"].used_mask == 0b11
    assert world.state.nodes["there"].used_mask == 0b11 << 6


def test_a_deleted_pod_is_assumed_no_more_and_forgetting_it_again_changes_nothing(world: World) -> None:
    world.node("node", TRN1)
    pod = world.pod("pod", DEVICE, 1)
    world.state.assume(assumed(pod, "node"))

    world.gone(pod)
    world.state.forget(pod_of(pod).uid)
    world.state.confirm(pod_of(pod).uid)

    assert world.state.nodes["node"].used_mask == 0
    assert not world.state.assumed


def test_pods_assumed_on_a_node_that_comes_back_are_remembered(world: World) -> None:
    world.node("node", TRN1)
    uid = world.state.nodes["node"].node.uid
    world.state.assume(assumed(pod_manifest("pod", DEVICE, 1), "node"))

    world.state.remove_node("node", uid)
    world.node("node", TRN1)

    assert world.state.nodes["node"].used_mask == 0b11


def test_e07_a_stale_plugin_closes_its_node_and_frees_nothing(world: World) -> None:
    world.node("node", TRN1)
    world.held("holder", "node", DEVICE, "0")

    world.state.set_stale(frozenset({"node", "unknown"}))
    assert world.why_not(DEVICE, 1, "node") == "The node's Neuron plugin does not renew its lease"
    assert world.state.nodes["node"].used_mask == 0b11

    world.state.set_stale(frozenset())
    assert world.fits(DEVICE, 1, "node")


def test_a_pod_that_starts_is_no_change_of_the_state(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("pod", "node", DEVICE, "0")
    version = world.state.changes.version

    world.show(pod, phase="Running")

    assert world.state.changes.version == version


def test_a_thousand_comings_and_goings_leave_no_trace(world: World) -> None:
    world.node("node", TRN1)
    empty = world.state.nodes["node"]
    for number in range(1000):
        manifest = pod_manifest(f"pod-{number}", DEVICE, 1)
        world.show(manifest)
        world.state.assume(assumed(manifest, "node"))
        world.gone(manifest)

    assert world.state.nodes["node"] == empty
    assert not world.state.pods
    assert not world.state.assumed
    assert world.state.bound_to(PodUid("pod-1")) == ""


@pytest.mark.parametrize("node", ["node", "other", ""])
def test_a_reservation_ends_when_its_pod_is_bound_anywhere_or_gone(world: World, node: str) -> None:
    world.node("node", TRN1)
    world.node("other", TRN1)
    pod = world.pod("pod", DEVICE, 1)
    world.state.reserve(Reservation(pod_of(pod), "node", CoreMask(0b1111)))
    assert world.state.nodes["node"].free_mask & 0b1111 == 0
    if node:
        metadata = {**pod["metadata"], "annotations": {"NEURON_DEVS": "8"}}
        world.show({**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}})
    else:
        world.gone(pod)
    assert not world.state.reserved
    assert world.state.nodes["node"].free_mask & 0b1111 == 0b1111


def test_what_is_kept_elsewhere_for_an_assumed_pod_is_nobody_else_s(world: World) -> None:
    for name in ("a", "b"):
        world.node(name, TRN1)
    pod = world.pod("pod", DEVICE, 1)
    world.state.assume(assumed(pod, "a"))
    world.state.reserve(Reservation(pod_of(pod), "a", CoreMask(0b11)))
    assert world.state.nodes["a"].reserved_mask == 0, "they are its own already"
    world.state.reserve(Reservation(pod_of(pod), "b", CoreMask(0b11)))
    assert world.state.nodes["b"].reserved_mask == 0b11
    world.state.release(pod_of(pod).uid)
    assert world.state.nodes["b"].reserved_mask == 0
    world.state.reserve(Reservation(pod_of(pod), "a", CoreMask(0b11)))
    world.state.forget(pod_of(pod).uid)
    assert world.state.nodes["a"].reserved_mask == 0b11


def test_explanations_and_plans_see_the_network_by_the_levels_that_are_named() -> None:
    state = ClusterState(levels=["row", "rack"])
    manifest = node_manifest("node", TRN1)
    manifest["metadata"]["labels"]["rack"] = "r1"
    state.put_node(node_of(manifest))
    scenes = state.scene(), Scene(state.snapshot())
    assert [scene.choices.domains.level_names() for scene in scenes] == [["row", "rack", "node"]] * 2


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_placed_as_if_nothing_of_earlier_states_was_remembered(world: World, seed: int) -> None:
    draw, placed = Random(seed), list[PodUid]()  # noqa: S311 - clusters, not secrets
    for step in range(60):
        name = draw.choice("abcdef")
        match draw.randrange(4):
            case 0:
                manifest = node_manifest(name, TRN1)
                manifest["metadata"]["labels"][LEAF] = draw.choice("xy")
                manifest["status"]["allocatable"] |= {"cpu": "16", "pods": "110"}
                world.show_node(manifest)
            case 1 if placed:
                world.state.remove_pod(draw.choice(placed))
            case _ if name in world.state.nodes:
                manifest = world.pod(f"pod-{step}", DEVICE, draw.choice((1, 4, 8)))
                manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(draw.choice((1, 6)))
                asked = record_of(manifest)
                found, inventory = world.state.scene().place(asked, name), world.state.nodes[name].inventory
                if found and isinstance(inventory, NodeInventory):
                    said = assignment_of(inventory.geometry, found, step)
                    world.state.put_pod(replace(asked, node=name, assignment=said))
                    placed.append(asked.uid)
        amount, group = draw.choice((4, 16)), list[NeuronPod]()
        for rank in range(4):
            manifest = world.pod(f"g-{rank}", DEVICE, amount)
            manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "6"
            group.append(replace(record_of(manifest), member=MEMBER))
        assert place_group(world.state.scene(), group) == place_group(Scene(world.state.snapshot()), group), step


def test_the_size_of_a_group_follows_what_its_pods_say(world: World) -> None:
    manifest = gated_manifest("w0", DEVICE, 4)
    keys = {"neuron-plugin.io/group": "ring", "neuron-plugin.io/group-size": "4"}
    sizes = []
    for more in ({}, {"neuron-plugin.io/group-size": "2"}, {"neuron-plugin.io/group": "other"}):
        world.show({**manifest, "metadata": {**manifest["metadata"], "annotations": keys | more}})
        sizes.append([world.state.least_of(("default", name)) for name in ("ring", "other")])
    assert sizes == [[4, 0], [2, 0], [0, 4]]
