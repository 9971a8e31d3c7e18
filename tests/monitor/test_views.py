"""What a NeuronNode and a NeuronPod show. A stored answer of each holds the shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import NeuronPod, NodeInfo, NodeInventory, PodReference, PodUid
from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimRequest, ClaimResult, NeuronClaim, PodClaim
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.monitor.idle import idle_containers
from neuron_plugin.monitor.views import (
    NEURON_NODES,
    NEURON_PODS,
    DeviceCounts,
    NodeView,
    PodView,
    UtilizationView,
    node_view,
    pod_view,
    time_at,
)
from neuron_plugin.placement.claims import with_claims
from neuron_plugin.placement.history import History
from neuron_plugin.topology import Unit
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest, shipped_geometry
from tests.support.world import CORE, DEVICE, World, record_of

GOLDEN = Path(__file__).parent / "golden"


def golden_world() -> World:
    """A node with everything that can be shown of one, and pods in every phase."""
    world = World()
    manifest = node_manifest("trn-1", "trn1.32xlarge")
    inventory = NodeInventory(
        shipped_geometry("trn1.32xlarge"),
        present=tuple(range(15)),
        unhealthy={
            12: "uncorrected ECC errors: 3",
            14: "processes of pod ml/eval-3, which has ended, may still use it",
            15: "not listed by the driver",
        },
        disabled=(7,),
        held_down=(14,),
        device_name="Trainium1",
        driver_version="2.19.64",
        logical_core_size=1,
        physical_cores_per_device=2,
    )
    manifest["metadata"] |= {"uid": "node-uid-1", "annotations": {INVENTORY_KEY: write_inventory(inventory)}}
    world.show_node(manifest)
    world.state.history = History(lambda: 1_795_363_200.0)
    world.state.history.unhealthy("trn-1", {14, 15}, {12, 14, 15})
    world.state.history.renewals["trn-1"] = "2026-11-22T16:00:00.000000Z"
    world.state.utilization["trn-1"] = {
        PodUid("pod-uid-1"): {
            "main": ContainerUtilization(83, 64 * 2**30, 0, 4711),
            "eval": ContainerUtilization(0, 2**30, 1_795_362_000, 12),
        }
    }
    world.show_node({"metadata": {"name": "web-1", "uid": "node-uid-2"}})
    held = pod_manifest(
        "train-0",
        containers=[container("main", DEVICE, 4), container("eval", CORE, 1)],
        init_containers=[container("warm-up", CORE, 1)],
        node="trn-1",
        priority=100,
        annotations={"NEURON_DEVS": "0,1,2,3", "NEURON_CORES": "8|8", "NEURON_ALLOCATED": "true"},
    )
    waiting = pod_manifest("train-1", DEVICE, 8)
    for number, pod in enumerate((held, waiting), start=1):
        pod["metadata"] |= {"uid": f"pod-uid-{number}", "namespace": "ml"}
        pod["metadata"] |= {"creationTimestamp": "2026-11-21T16:00:00Z"} if pod is held else {}
        world.show(pod)
    return world


def views(world: World) -> tuple[list[NodeView], list[PodView]]:
    nodes = [node_view(world.state, info, 7) for info in world.state.nodes.values()]
    return nodes, [pod_view(world.state, pod, 7) for pod in world.state.pods.values()]


@pytest.mark.parametrize("number", [0, 1], ids=["neuronnodes", "neuronpods"])
def test_e06_an_answer_is_the_stored_one_and_reads_back_as_it_was(number: int) -> None:
    found = views(golden_world())[number]
    stored = (GOLDEN / ("neuronnodes.json", "neuronpods.json")[number]).read_bytes()

    assert msgspec.json.decode(msgspec.json.encode(found)) == msgspec.json.decode(stored)
    items = msgspec.json.decode(stored, type=list[msgspec.Raw])
    resource = (NEURON_NODES, NEURON_PODS)[number]
    assert [resource.decode(each) for each in items] == found


def shown(world: World, name: str) -> NodeView:
    return node_view(world.state, world.state.nodes[name], 7)


def test_e06_a_closed_node_says_why_and_in_detail_which_pod(world: World) -> None:
    world.node("node", "inf2.48xlarge", missing=[2])
    world.pod("stock", DEVICE, 1, node="node")

    status = shown(world, "node").status

    assert status.open is False
    assert status.reason == "A pod on the node uses Neuron and its assignment is not known yet"
    assert status.details == ("pod default/stock is bound and has no assignment yet",)
    assert status.missing_devices == (2,)


def test_e07_a_node_whose_plugin_is_silent_says_so_and_when_it_was_last_heard_of(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    world.state.history.renewals["node"] = "2026-01-01T00:00:00.000000Z"
    world.state.set_stale(frozenset({"node"}))

    status = shown(world, "node").status

    assert (status.open, status.stale, status.last_renewal) == (False, True, "2026-01-01T00:00:00.000000Z")
    assert status.reason == "The node's Neuron plugin does not renew its lease"


def test_devices_stand_beside_those_that_they_are_linked_to(world: World) -> None:
    world.node("ring", "inf2.48xlarge")
    world.node("pair", "trn3en.24xlarge")

    ring, unlinked = shown(world, "ring").spec, shown(world, "pair").spec

    assert ring.places[3:6] == ((0, 3), (1, 3), (1, 2)), "the second row goes back"
    assert ring.links[0] == (1, 11)
    assert (unlinked.places, unlinked.links) == (((0, 0), (0, 1), (0, 2), (0, 3)), ((),) * 4)


def test_two_tori_have_a_row_between_them(world: World) -> None:
    torus = shipped_geometry("trn1.32xlarge")
    inventory = NodeInventory(replace(torus, device_count=32), present=tuple(range(32)))
    manifest = node_manifest("node", "trn1.32xlarge")
    world.show_node(
        manifest | {"metadata": {"name": "node", "annotations": {INVENTORY_KEY: write_inventory(inventory)}}}
    )

    spec = shown(world, "node").spec

    assert (spec.places[15], spec.places[16]) == ((3, 3), (5, 0))
    assert spec.links[16] == (17, 19, 20, 28)


def test_e06_a_node_without_known_hardware_has_an_empty_spec_and_the_cause(world: World) -> None:
    manifest = node_manifest("node", "inf2.48xlarge")
    manifest["metadata"]["annotations"] = {"neuron-plugin.io/inventory": '{"version":2}'}
    world.show_node(manifest)

    found = shown(world, "node")

    assert (found.spec.instance_type, found.spec.devices) == ("", 0)
    assert found.status.open is False
    assert "version is 2, expected 1" in found.status.details[0]


def test_e06_a_cordoned_node_without_known_hardware_says_that_it_is_cordoned(world: World) -> None:
    world.show_node({"metadata": {"name": "web", "uid": "w"}, "spec": {"unschedulable": True}})

    assert shown(world, "web").status.cordoned


def test_a_cordoned_node_is_closed_and_says_why(world: World) -> None:
    manifest = node_manifest("node", "inf2.48xlarge")
    world.show_node({**manifest, "spec": {"unschedulable": True}})

    status = shown(world, "node").status

    assert (status.open, status.reason, status.cordoned) == (False, "The node is cordoned", True)
    assert (status.device_counts.free, status.device_counts.closed) == (0, 12)


def test_what_a_pod_has_and_what_is_broken_are_both_shown_and_every_device_counts_once(world: World) -> None:
    world.node("node", "trn1.32xlarge", unhealthy={2: "ECC", 8: "ECC", 9: "old pod"}, missing=[3, 15], held_down=[9])
    manifest = world.held("pod", "node", DEVICE, "0,1,2,3")

    node, pod = shown(world, "node"), pod_view(world.state, record_of(manifest))

    assert node.status.device_counts == DeviceCounts(used=4, used_broken=2, free=9, unhealthy=1, missing=1, held_down=1)
    assert node.status.holders[0].devices == (0, 1, 2, 3)
    assert [each.devices for each in pod.status.containers] == [(0, 1, 2, 3)]
    assert pod.status.problem == "device 2 unhealthy: ECC; device 3 missing"

    gone = {3: "missing: the driver does not list it"}
    world.node("node", "trn1.32xlarge", unhealthy=gone, missing=[3])
    assert pod_view(world.state, record_of(manifest)).status.problem == "device 3 missing: the driver does not list it"


@pytest.mark.parametrize(
    ("instance_type", "held", "largest"),
    [
        ("trn1.32xlarge", "", tuple(range(16))),
        ("trn1.32xlarge", "5", tuple(range(8, 16))),
        ("trn1.32xlarge", "5,12", (0, 1, 2, 3)),
        ("trn1.32xlarge", "0,5,10,15", (1,)),
        ("inf2.48xlarge", "3,4", tuple(range(5, 12))),
        ("inf2.48xlarge", "0,1,2,3,4,5,6,7,8,9,10,11", ()),
    ],
)
def test_the_largest_free_set_is_the_lowest_of_its_size(
    world: World, instance_type: str, held: str, largest: tuple[int, ...]
) -> None:
    world.node("node-1", instance_type)
    if held:
        world.held("train", "node-1", DEVICE, held)
    assert shown(world, "node-1").status.largest_free_set == largest


def used(
    pod: Mapping[str, Any], **containers: ContainerUtilization
) -> dict[PodUid, Mapping[str, ContainerUtilization]]:
    return {PodUid(pod["metadata"]["uid"]): containers}


def test_a_device_is_as_busy_as_its_cores_are_and_idle_only_if_all_of_its_containers_are(world: World) -> None:
    world.node("node", "trn1.32xlarge")
    half = world.held("half", "node", CORE, "0")
    rest = world.held("rest", "node", CORE, "1")
    idle, busy = ContainerUtilization(0, 2**30, idle_since=100), ContainerUtilization(60, 2**31)

    world.state.see_utilization("node", used(half, main=idle) | used(rest, main=busy))

    shared = shown(world, "node").status
    assert shared.utilization == {"0": UtilizationView(known=True, busy_percent=30, memory_bytes=3 * 2**30)}
    assert shared.idle_devices == ()

    later = ContainerUtilization(0, 0, idle_since=200)
    world.state.see_utilization("node", used(half, main=idle) | used(rest, main=later))

    assert shown(world, "node").status.idle_devices == (0,)
    assert shown(world, "node").status.utilization["0"].idle_since == time_at(200)


def test_a_device_is_not_called_idle_while_a_part_of_it_is_not_known(world: World) -> None:
    world.node("node", "trn1.32xlarge")
    known = world.held("known", "node", CORE, "0")
    world.held("unknown", "node", CORE, "1")

    world.state.see_utilization("node", used(known, main=ContainerUtilization(0, 0, idle_since=100)))

    assert shown(world, "node").status.utilization == {}
    assert shown(world, "node").status.idle_devices == ()


def test_what_a_container_does_is_shown_and_of_another_pods_nothing(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    manifest = world.held("pod", "node", DEVICE, "5")
    other = {PodUid("another"): {"main": ContainerUtilization(99, 0)}}

    world.state.see_utilization("node", other)
    assert pod_view(world.state, record_of(manifest)).status.containers[0].utilization == UtilizationView()

    world.state.see_utilization("node", used(manifest, main=ContainerUtilization(7, 2**30, 0, 5)))
    found = pod_view(world.state, record_of(manifest)).status.containers[0].utilization
    assert found == UtilizationView(known=True, busy_percent=7, memory_bytes=2**30)


def test_what_the_users_of_a_claim_do_is_shown_at_its_request(world: World) -> None:
    """The plugin names them after the claim, the state after the pod's own name for it and the request."""
    world.node("node", "trn1.32xlarge")
    reference = PodReference(PodUid("uid"), "ml", "pod")
    claimed = (PodClaim("dev", "pod-dev-1f", (("main", ""),)),)
    alone = NeuronPod(reference, (), node="node", rules=PodRules(resource_claims=True), claims=claimed)
    results = tuple(ClaimResult("neurons", "node-neuron", f"neuron-{number}") for number in range(4))
    request = ClaimRequest("neurons", Unit.DEVICE, 4)
    claim = NeuronClaim("c", "ml", "pod-dev-1f", requests=(request,), results=results, allocated=True, node="node")
    pod = with_claims(alone, {("ml", "pod-dev-1f"): claim}, DRA_DRIVER, ())
    assert pod
    world.state.put_pod(pod)

    known = ContainerUtilization(7, 2**30, idle_since=5)
    world.state.see_utilization("node", {PodUid("uid"): {"claim pod-dev-1f": known}})

    (part,) = pod_view(world.state, pod).status.containers
    assert (part.name, part.utilization.busy_percent, part.utilization.idle_since) == ("dev/neurons", 7, time_at(5))
    assert shown(world, "node").status.idle_devices == (0, 1, 2, 3)
    assert [one.container for one in idle_containers(world.state, 100.0)[0]] == ["dev/neurons"]


def test_a_container_that_is_idle_since_no_date_is_not_shown_as_idle(world: World) -> None:
    world.node("node", "trn1.32xlarge")
    pod = world.held("pod", "node", DEVICE, "0")
    known = ContainerUtilization(0, 0, idle_since=2**53 - 1)
    world.state.see_utilization("node", {PodUid(pod["metadata"]["uid"]): {"main": known}})
    assert idle_containers(world.state, 100.0) == ([], 0)


def test_what_is_published_changes_the_pods_that_it_is_about_and_their_node(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    first, second = (world.held(f"pod-{number}", "node", DEVICE, str(number)) for number in (1, 2))
    seen, capacity = world.state.changes.version, world.state.capacity_version
    unchanged = used(second, main=ContainerUtilization(50, 0))

    world.state.see_utilization("node", used(first, main=ContainerUtilization(7, 0)) | unchanged)
    world.state.see_utilization("node", used(first, main=ContainerUtilization(0, 0, 100)) | unchanged)
    world.state.see_utilization("node", used(first, main=ContainerUtilization(0, 0, 100)) | unchanged)

    names = [
        change.after.name if isinstance(change.after, NodeInfo) else change.after.reference.name
        for change in world.state.changes.after(seen)
        if change.after
    ]
    assert names == ["pod-1", "pod-2", "node", "pod-1", "node"]
    assert world.state.capacity_version == capacity


@pytest.mark.parametrize(
    ("unix_seconds", "text"),
    [(1_795_363_200.9, "2026-11-22T16:00:00Z"), (0, None), (-1, None), (253_402_300_800, None), (2**53, None)],
)
def test_a_time_is_rfc_3339_to_the_second_and_null_where_there_is_no_such_date(
    unix_seconds: float, text: str | None
) -> None:
    assert msgspec.to_builtins(time_at(unix_seconds)) == text


def test_e06_holders_come_by_namespace_and_name(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    for number, (namespace, name) in enumerate((("b", "x"), ("a", "z"), ("a", "y"))):
        manifest = pod_manifest(name, DEVICE, 1, node="node", annotations={"NEURON_DEVS": str(number)})
        manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-{number}"}
        world.show(manifest)

    assert [(each.namespace, each.name) for each in shown(world, "node").status.holders] == [
        ("a", "y"),
        ("a", "z"),
        ("b", "x"),
    ]


def test_e06_a_member_of_a_group_is_constrained_because_its_group_decides_with_it(world: World) -> None:
    manifest = pod_manifest("member", DEVICE, 1)
    manifest["spec"]["schedulingGroup"] = {"podGroupName": "gang"}

    assert pod_view(world.state, record_of(manifest)).spec.constrained
    assert not pod_view(world.state, record_of(pod_manifest("single", DEVICE, 1))).spec.constrained


def test_e06_phases_follow_binding_and_deletion(world: World) -> None:
    waiting = pod_manifest("pod", DEVICE, 1)
    bound = {**waiting, "spec": {**waiting["spec"], "nodeName": "node"}}
    ending = {**bound, "metadata": {**bound["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    phases = [pod_view(world.state, record_of(each)).status.phase for each in (waiting, bound, ending)]

    assert phases == ["Waiting", "Bound", "Terminating"]


def test_e06_a_container_has_the_devices_of_its_cores_and_the_cores_of_its_devices(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    manifest = pod_manifest(
        "pod",
        containers=[container("main", CORE, 3), container("other", DEVICE, 1)],
        init_containers=[container("setup", CORE, 2)],
        node="node",
        annotations={"NEURON_CORES": "0,1|0,1,2", "NEURON_DEVS": "5", "NEURON_ALLOCATED": "true"},
    )

    found = pod_view(world.state, record_of(manifest))

    assert [(each.name, each.kind, each.count) for each in found.spec.containers] == [
        ("setup", "init", 2),
        ("main", "app", 3),
        ("other", "app", 1),
    ]
    assert found.status.allocated is True
    assert [(each.name, each.devices, each.cores) for each in found.status.containers] == [
        ("setup", (0,), (0, 1)),
        ("main", (0, 1), (0, 1, 2)),
        ("other", (5,), (10, 11)),
    ]


def test_e06_on_a_node_that_is_not_known_a_container_has_what_its_assignment_names(world: World) -> None:
    containers = [container("main", CORE, 2), container("other", DEVICE, 1)]
    annotations = {"NEURON_CORES": "0,1", "NEURON_DEVS": "5"}
    manifest = pod_manifest("pod", containers=containers, node="gone", annotations=annotations)

    status = pod_view(world.state, record_of(manifest)).status

    assert status.allocated is False
    assert [(each.devices, each.cores) for each in status.containers] == [((), (0, 1)), ((5,), ())]


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        ({"annotations": {"NEURON_CORES": "x"}}, "NEURON_CORES='x'"),
        ({"annotations": {"NEURON_CORES": "999"}, "node": "node"}, "core ids (999,)"),
        ({"containers": [container("main", CORE, "1.5")]}, "1.5"),
        ({"annotations": {"neuron-plugin.io/allow-devices": "x"}}, "neuron-plugin.io/allow-devices"),
    ],
    ids=["unreadable", "not-on-the-node", "request", "constraint"],
)
def test_e06_what_cannot_be_followed_is_a_problem(world: World, described: dict[str, object], problem: str) -> None:
    world.node("node", "inf2.48xlarge")
    manifest = pod_manifest("pod", CORE, 1, **described)  # type: ignore[arg-type]  # one of its keywords each

    status = pod_view(world.state, record_of(manifest)).status

    assert problem in status.problem
    assert status.containers == ()


def test_what_keeps_waiting_pods_off_all_nodes_is_no_problem_of_one_that_is_bound(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    says = {"NEURON_CORES": "0", "neuron-plugin.io/allow-devices": "x"}
    manifest = pod_manifest("pod", CORE, 1, node="node", annotations=says)
    assert pod_view(world.state, record_of(manifest)).status.problem == ""


@pytest.mark.parametrize(
    ("manifest", "state"),
    [
        (pod_manifest("p", DEVICE, 1), "Waiting"),
        (gated_manifest("p", DEVICE, 1), "Gated"),
        (gated_manifest("p", DEVICE, 1, promised=("node", "0")), "Promised"),
        (pod_manifest("p", DEVICE, 1, node="node"), "Bound"),
        (pod_manifest("p", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "0"}), "Assigned"),
        (
            pod_manifest("p", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "0", "NEURON_ALLOCATED": "true"}),
            "Allocated",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_pod_s_state_is_one_word(manifest: dict[str, Any], state: str) -> None:
    world = World(version=1)
    world.show_node(node_manifest("node", "trn1.32xlarge"))
    world.show(manifest)
    (pod,) = world.state.pods.values()
    assert pod_view(world.state, pod).status.state == state
