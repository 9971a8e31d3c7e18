from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.inspection.facts import Facts, NoSuchNode
from neuron_plugin.inspection.findings import Level, Unknown
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.plugin.container import ALLOCATION_KEY, reply_for
from tests.inspection.cases import (
    NODE,
    POD_UID,
    api_pod,
    ask,
    facts_of,
    holding,
    is_fine,
    the_finding,
    user,
    with_cluster,
    with_kubelet,
    with_users,
)
from tests.inspection.doubles import MakeNode
from tests.support.manifests import shipped_geometry


def test_no_holder_is_fine(well: Facts) -> None:
    assert is_fine("holders", well)


def test_linked_sets_held_once_are_fine(well: Facts) -> None:
    facts = holding(
        well,
        ("train", "a", "neurondevice", "4,5,6,7"),
        ("train", "b", "neuroncore", "2"),
        ("infer", "main", "neuroncore", "3"),
        ("other", "main", "neuron", "0"),
    )
    assert is_fine("holders", facts)
    assert "3 pods with 12 logical cores" in ask("holders", facts)[0].seen


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (("neurondevice", "2"), ("neuroncore", "5"), "core 5"),
        (("neuron", "2"), ("neurondevice", "2"), "device 2"),
        (("neuroncore", "5"), ("neuroncore", "5"), "core 5"),
    ],
)
def test_silicon_with_two_pods_is_a_problem(
    well: Facts, first: tuple[str, str], second: tuple[str, str], shared: str
) -> None:
    finding = the_finding("holders", holding(well, ("one", "main", *first), ("two", "side", *second)))
    assert finding.level is Level.PROBLEM
    assert "default/one/main" in finding.seen
    assert "default/two/side" in finding.seen
    assert finding.seen.endswith(f"both hold {shared}")


def test_silicon_with_two_containers_of_a_pod_is_a_problem(well: Facts) -> None:
    facts = holding(well, ("one", "a", "neurondevice", "2"), ("one", "b", "neuroncore", "4"))
    assert "both hold core 4" in the_finding("holders", facts).seen


@pytest.mark.parametrize(
    ("resource", "ids"), [("neurondevice", "0,2,4,6"), ("neurondevice", "1,2"), ("neuroncore", "1,2")]
)
def test_unlinked_sets_are_a_warning(well: Facts, resource: str, ids: str) -> None:
    finding = the_finding("holders", holding(well, ("train", "main", resource, ids)))
    assert finding.level is Level.WARNING
    assert "no linked set" in finding.seen


def test_cores_that_are_not_aligned_are_a_warning_where_they_have_to_be(make_node: MakeNode) -> None:
    facts = facts_of(make_node("trn2.3xlarge"))
    finding = the_finding("holders", holding(facts, ("train", "main", "neuroncore", "1,2")))
    assert "holds aws.amazon.com/neuroncore 1-2, which is no aligned set here" in finding.seen


def test_a_container_counts_by_the_set_of_our_reply_and_not_by_the_kubelets_ids(well: Facts) -> None:
    assert well.machine.node_inventory is not None
    node = well.machine.node_inventory
    given = {ALLOCATION_KEY: reply_for(node, "1", node.geometry.devices_mask((0, 1, 2, 3))).annotation()}
    device = "aws.amazon.com/neurondevice"
    init = CheckpointEntry(POD_UID, "init", device, frozenset(map(str, range(16))), {}, ())
    main = CheckpointEntry(POD_UID, "main", device, frozenset({"0", "2", "4", "6"}), given, ())
    pod = api_pod("train", {"init": {"neurondevice": 16}, "main": {"neurondevice": 4}}, {}, init=True)
    facts = with_cluster(with_kubelet(well, recorded=(init, main)), pods=(pod,))
    assert is_fine("holders", facts)
    annotated = api_pod(
        "train",
        {"init": {"neurondevice": 16}, "main": {"neurondevice": 4}},
        {"NEURON_DEVS": f"{','.join(map(str, range(16)))}|0,1,2,3", **DONE},
        init=True,
    )
    assert is_fine("annotations", with_cluster(facts, pods=(annotated,)))


@pytest.mark.parametrize("ids", ["16", "neuron-0", "99999999999999999999"])
def test_ids_that_this_machine_does_not_have_are_a_problem(well: Facts, ids: str) -> None:
    finding = the_finding("holders", holding(well, ("train", "main", "neurondevice", ids)))
    assert finding.level is Level.PROBLEM
    assert f"holds aws.amazon.com/neurondevice {ids!r}" in finding.seen


def test_a_pod_that_has_ended_holds_nothing_though_an_old_kubelet_lists_it(well: Facts) -> None:
    facts = holding(well, ("old", "main", "neurondevice", "2"), ("new", "main", "neurondevice", "2"))
    ended = api_pod("old", {"main": {"neurondevice": 1}}, {}, phase="Succeeded")
    assert the_finding("holders", facts).level is Level.PROBLEM
    assert is_fine("holders", with_cluster(facts, pods=(ended,)))


def test_other_resources_are_ignored(well: Facts) -> None:
    assert is_fine("holders", holding(well, ("train", "main", "../nvidia.com/gpu", "GPU-1")))


def test_a_pod_on_a_sick_device_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    finding = the_finding("holders", holding(facts_of(node), ("train", "main", "neurondevice", "0,1,2")))
    assert finding.level is Level.WARNING
    assert "runs on device 1" in finding.seen


def test_a_pod_on_a_device_out_of_service_is_no_fault(well: Facts) -> None:
    held = holding(well, ("train", "main", "neurondevice", "2"))
    assert is_fine("holders", replace(held, machine=replace(held.machine, disabled=(2,))))


def test_a_node_that_the_api_server_does_not_know_is_a_problem(well: Facts) -> None:
    finding = the_finding("node-annotations", replace(well, cluster=NoSuchNode("the API server has no node wroker-1")))
    assert finding.level is Level.PROBLEM
    assert finding.seen == "the API server has no node wroker-1"
    assert "--node-name or NODE_NAME" in finding.action


def test_holders_that_are_not_known_are_not_checked(well: Facts) -> None:
    assert not the_finding(
        "holders", with_kubelet(well, pods=Unknown("no kubelet", "start it"), recorded=Unknown("no kubelet"))
    ).checked


def test_without_a_device_nothing_is_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    assert [finding.checked for finding in ask("holders", facts_of(node))] == [False]


BOUND_NS = 1_789_352_350_678_418_384
DONE = {"NEURON_ALLOC_TIME": str(BOUND_NS), "NEURON_ALLOCATED": "true"}
WAITING = {**DONE, "NEURON_ALLOCATED": "false"}


def one_device(annotations: dict[str, str], phase: str = "Running") -> NeuronPod:
    return api_pod("train", {"main": {"neurondevice": 1}}, annotations, phase=phase)


def held(facts: Facts, pod: NeuronPod, ids: str = "2", resource: str = "neurondevice") -> Facts:
    return with_cluster(holding(facts, ("train", "main", resource, ids)), pods=(pod,))


def test_no_pod_is_fine(well: Facts) -> None:
    assert is_fine("annotations", well)


def test_a_pod_annotated_with_what_it_holds_is_fine(well: Facts) -> None:
    assert is_fine("annotations", held(well, one_device({"NEURON_DEVS": "2", **DONE})))


def test_the_vendors_dialect_is_read_too(well: Facts) -> None:
    assert is_fine("annotations", held(well, one_device({"AWS_NEURON_IDS": "2", **DONE})))


def test_an_annotation_that_differs_from_the_kubelet_is_a_problem(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({"NEURON_DEVS": "3", **DONE})))
    assert finding.level is Level.PROBLEM
    assert "neurondevice 3, the kubelet gave 2" in finding.seen


def test_a_running_pod_of_which_the_kubelet_knows_nothing_is_a_problem(well: Facts) -> None:
    facts = with_cluster(well, pods=(one_device({"NEURON_DEVS": "3", **DONE}),))
    assert "the kubelet gave nothing" in the_finding("annotations", facts).seen


def test_a_running_pod_that_was_never_confirmed_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({"NEURON_DEVS": "2", **WAITING})))
    assert finding.level is Level.WARNING
    assert "NEURON_ALLOCATED is still false" in finding.seen


def test_a_running_pod_without_annotation_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({})))
    assert finding.level is Level.WARNING
    assert "without an annotation" in finding.seen


@pytest.mark.parametrize("annotations", [{"NEURON_DEVS": "two"}, {"NEURON_DEVS": "2,3"}, {"NEURON_CORES": "2"}])
def test_an_annotation_that_cannot_be_followed_is_a_problem(well: Facts, annotations: dict[str, str]) -> None:
    finding = the_finding("annotations", held(well, one_device(annotations)))
    assert finding.level is Level.PROBLEM
    assert "default/train" in finding.seen


@pytest.mark.parametrize(("seconds", "fine"), [(1, True), (119, True), (600, False)])
def test_a_decision_may_wait_for_its_admission_but_not_for_ever(well: Facts, seconds: int, fine: bool) -> None:  # noqa: FBT001 - a case's expectation
    pod = one_device({"NEURON_DEVS": "2", **WAITING}, phase="Pending")
    facts = replace(with_cluster(well, pods=(pod,)), now_ns=BOUND_NS + seconds * 1_000_000_000)
    if fine:
        assert is_fine("annotations", facts)
    else:
        assert "10 minutes ago and has not been admitted" in the_finding("annotations", facts).seen


def test_a_container_that_is_not_listed_may_be_in_admission_until_the_pod_runs(well: Facts) -> None:
    annotations = {"NEURON_DEVS": "2|3", "NEURON_ALLOCATED": "true"}
    containers = {"main": {"neurondevice": 1}, "side": {"neurondevice": 1}}
    pending = api_pod("train", containers, annotations, phase="Pending")
    assert is_fine("annotations", held(well, pending))
    finding = the_finding("annotations", held(well, replace(pending, phase="Running")))
    assert "train/side: annotated aws.amazon.com/neurondevice 3, the kubelet gave nothing" in finding.seen


def test_pods_that_have_ended_or_ask_for_nothing_are_passed_over(well: Facts) -> None:
    ended = one_device({"NEURON_DEVS": "9", **DONE}, phase="Succeeded")
    assert is_fine("annotations", with_cluster(well, pods=(ended, api_pod("web", {"main": {}}, {}))))


def test_a_holder_that_the_api_server_does_not_have_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", holding(well, ("ghost", "main", "neuroncore", "2")))
    assert finding.level is Level.WARNING
    assert "default/ghost" in finding.seen


def test_without_the_kubelet_annotations_are_read_and_not_compared(well: Facts) -> None:
    facts = with_cluster(well, pods=(one_device({"NEURON_DEVS": "3", **DONE}),))
    assert is_fine("annotations", with_kubelet(facts, pods=Unknown("no kubelet"), recorded=Unknown("no kubelet")))


def test_without_an_api_server_nothing_is_checked(well: Facts) -> None:
    facts = replace(well, cluster=Unknown("no API server is known", "give --kubeconfig"))
    for name in ("annotations", "node-annotations"):
        assert [(finding.checked, finding.action) for finding in ask(name, facts)] == [(False, "give --kubeconfig")]


def inventory(instance_type: str, **changes: object) -> dict[str, str]:
    geometry = shipped_geometry(instance_type)
    said = {"present": tuple(range(geometry.device_count)), **changes}
    return {INVENTORY_KEY: write_inventory(NodeInventory(geometry, **said))}  # type: ignore[arg-type]  # fields by name


def test_a_true_inventory_is_fine(well: Facts) -> None:
    assert is_fine("node-annotations", well)


def test_an_inventory_of_another_machine_is_a_problem(well: Facts) -> None:
    finding = the_finding("node-annotations", with_cluster(well, annotations=inventory("inf2.24xlarge")))
    assert finding.level is Level.PROBLEM
    assert "inf2.24xlarge, 6 devices" in finding.seen
    assert "trn1.32xlarge, 16 devices" in finding.seen


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}'])
def test_an_inventory_that_cannot_be_read_is_a_problem(well: Facts, text: str) -> None:
    assert the_finding("node-annotations", with_cluster(well, annotations={INVENTORY_KEY: text})).level is Level.PROBLEM


def test_no_inventory_beside_a_running_plugin_is_a_warning(well: Facts) -> None:
    finding = the_finding("node-annotations", with_cluster(well, annotations={}))
    assert finding.level is Level.WARNING
    assert "patch nodes" in finding.action
    assert is_fine("node-annotations", with_kubelet(with_cluster(well, annotations={}), plugins=()))
    nothing = replace(well.machine.inventory, devices=())
    without_devices = replace(well, machine=replace(well.machine, inventory=nothing))
    assert is_fine("node-annotations", with_cluster(without_devices, annotations={}))


def test_an_inventory_without_a_plugin_is_a_note_with_the_command_that_removes_it(well: Facts) -> None:
    finding = the_finding("node-annotations", with_kubelet(well, plugins=()))
    assert finding.level is Level.NOTE
    assert f"kubectl annotate node {NODE} {INVENTORY_KEY}-" in finding.action


def test_a_sick_device_that_the_node_does_not_tell_of_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge", missing=(4,))
    node.set_ecc(1, memory=1)
    facts = facts_of(node)
    finding = the_finding("node-annotations", with_cluster(facts, annotations=inventory("inf2.24xlarge")))
    assert finding.level is Level.WARNING
    assert finding.seen.endswith("1,4")
    said = inventory("inf2.24xlarge", present=(0, 1, 2, 3, 5), unhealthy={1: "memory"})
    assert is_fine("node-annotations", with_cluster(facts, annotations=said))


STATIC_UID = "0123456789abcdef0123456789abcdef"


def holding_two(well: Facts) -> Facts:
    pod = api_pod("train", {"main": {"neurondevice": 1}}, {})
    return with_cluster(holding(well, ("train", "main", "neurondevice", "2")), pods=(pod,))


def test_no_process_is_fine(well: Facts) -> None:
    assert is_fine("processes", well)
    assert ask("processes", well)[0].seen == "no process has a device open"


def test_a_process_of_the_pod_that_holds_the_device_is_fine(well: Facts) -> None:
    assert is_fine("processes", with_users(holding_two(well), user(2)))
    assert is_fine("processes", with_users(holding_two(well), user(2), user(2)))


def test_a_static_pods_process_is_known_by_the_uid_of_its_file(well: Facts) -> None:
    facts = holding_two(well)
    static = replace(api_pod("static", {"main": {"neurondevice": 1}}, {}), static_uid=STATIC_UID)
    assert is_fine("processes", with_users(with_cluster(facts, pods=(static,)), user(2, pod_uid=STATIC_UID)))


def test_a_process_outside_of_pods_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(holding_two(well), user(2, 3, pod_uid="")))
    assert finding.level is Level.WARNING
    assert "process 4711 (python train.py) has devices 2-3 open and belongs to no pod" in finding.seen
    assert "kill 4711" in finding.action


def test_a_process_without_a_name_is_reported_by_its_number(well: Facts) -> None:
    facts = with_users(holding_two(well), replace(user(2, pod_uid=""), command=""))
    assert "process 4711 (its name is not known)" in the_finding("processes", facts).seen


def test_a_process_of_a_pod_that_has_ended_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(with_cluster(holding_two(well), pods=()), user(2)))
    assert finding.level is Level.WARNING
    assert f"of pod {POD_UID}, which has ended" in finding.seen


def test_a_device_that_the_kubelet_gave_to_no_pod_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(holding_two(well), user(2, 7)))
    assert finding.level is Level.WARNING
    assert "device 7 open, which the kubelet gave to no pod" in finding.seen


def test_without_an_api_server_every_pod_passes_for_alive(well: Facts) -> None:
    facts = replace(holding_two(well), cluster=Unknown("no API server is known"))
    assert is_fine("processes", with_users(facts, user(2)))


def test_what_cannot_be_seen_is_said_beside_what_is(well: Facts) -> None:
    findings = ask(
        "processes", with_users(holding_two(well), user(2, pod_uid=""), hidden=Unknown("hidden", "run this as root"))
    )
    assert [(finding.level, finding.checked) for finding in findings] == [(Level.NOTE, False), (Level.WARNING, True)]
    (finding,) = ask("processes", with_users(well, hidden=Unknown("hidden", "run this as root")))
    assert not finding.checked


def test_without_proc_it_is_not_checked(well: Facts) -> None:
    assert not the_finding("processes", replace(well, users=Unknown("there is no /proc", "mount it"))).checked
