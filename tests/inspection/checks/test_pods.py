from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.inspection.facts import DeviceUser, Facts, NoSuchNode
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.plugin.container import ALLOCATION_KEY, reply_for
from tests.inspection.cases import (
    NODE,
    POD_UID,
    Cases,
    Spoil,
    api_pod,
    as_it_is,
    cluster,
    expect,
    facts_of,
    holding,
    is_fine,
    kubelet,
    rows,
    user,
    with_cluster,
    with_kubelet,
    with_users,
)
from tests.inspection.doubles import MakeNode
from tests.support.manifests import shipped_geometry

BOUND_NS = 1_789_352_350_678_418_384
DONE = {"NEURON_ALLOC_TIME": str(BOUND_NS), "NEURON_ALLOCATED": "true"}
WAITING = {**DONE, "NEURON_ALLOCATED": "false"}
STATIC_UID = "0123456789abcdef0123456789abcdef"
ONE, TWO = {"main": {"neurondevice": 1}}, {"main": {"neurondevice": 1}, "side": {"neurondevice": 1}}
BOTH = {"NEURON_DEVS": "2|3", "NEURON_ALLOCATED": "true"}
STATIC = replace(api_pod("static", ONE, {}), static_uid=STATIC_UID)
NOBODY = Unknown("no kubelet", "start it")


def holds(*ids: str) -> Spoil:
    """Pods one and two have these: ids, or ``resource:ids``."""
    words = zip(("one", "two"), (text.rpartition(":") for text in ids), strict=False)
    held = [(name, "main", resource or "neurondevice", own) for name, (resource, _, own) in words]
    return lambda well: holding(well, *held)


def lists(annotations: dict[str, str], *, held: bool = True, phase: str = "Running") -> Spoil:
    """The API server has a pod with these annotations, and the kubelet gave it device 2 if it is ``held``."""

    def spoil(well: Facts) -> Facts:
        facts = holding(well, ("train", "main", "neurondevice", "2")) if held else well
        return with_cluster(facts, pods=(api_pod("train", ONE, annotations, phase=phase),))

    return spoil


def waited(seconds: int) -> Spoil:
    """A pod is pending, so long after it was assigned device 2."""
    listed = lists({"NEURON_DEVS": "2", **WAITING}, held=False, phase="Pending")
    return lambda well: replace(listed(well), now_ns=BOUND_NS + seconds * 1_000_000_000)


def half(phase: str) -> Spoil:
    """The kubelet lists one container of two."""
    return lambda well: with_cluster(
        holding(well, ("train", "main", "neurondevice", "2")), pods=(api_pod("train", TWO, BOTH, phase=phase),)
    )


def inventory(instance_type: str, **changes: object) -> dict[str, str]:
    geometry = shipped_geometry(instance_type)
    said = {"present": tuple(range(geometry.device_count)), **changes}
    return {INVENTORY_KEY: write_inventory(NodeInventory(geometry, **said))}  # type: ignore[arg-type]  # fields by name


def published(annotations: dict[str, str]) -> Spoil:
    return lambda well: with_cluster(well, annotations=annotations)


def without_devices(well: Facts) -> Facts:
    nothing = replace(well.machine.inventory, devices=())
    return with_cluster(replace(well, machine=replace(well.machine, inventory=nothing)), annotations={})


def uses(*users: DeviceUser, pods: tuple[NeuronPod, ...] | None = None) -> Spoil:
    """Pod train has device 2, and these processes have devices open."""
    listed = (api_pod("train", ONE, {}),) if pods is None else pods
    return lambda well: with_users(
        with_cluster(holding(well, ("train", "main", "neurondevice", "2")), pods=listed), *users
    )


CASES: Cases = {
    "holders": {
        "no holder": (as_it_is, "ok"),
        "a device and a core of it, of two pods": (
            holds("2", "neuroncore:5"),
            "problem: default/one/main ~ default/two/main ~ both hold core 5",
        ),
        "a device under two names": (holds("neuron:2", "2"), "problem: both hold device 2"),
        "one core twice": (holds("neuroncore:5", "neuroncore:5"), "problem: both hold core 5"),
        "two containers of a pod": (
            lambda well: holding(well, ("one", "a", "neurondevice", "2"), ("one", "b", "neuroncore", "4")),
            "problem: both hold core 4",
        ),
        "devices that are not linked": (holds("0,2,4,6"), "warning: no linked set"),
        "two devices": (holds("1,2"), "warning: no linked set"),
        "cores of two devices": (holds("neuroncore:1,2"), "warning: no linked set"),
        **{
            f"an id that this machine does not have: {ids}": (
                holds(ids),
                f"problem: holds aws.amazon.com/neurondevice {ids!r}",
            )
            for ids in ("16", "neuron-0", "99999999999999999999")
        },
        "a pod that has ended, which an old kubelet lists": (
            lambda well: with_cluster(holds("2", "2")(well), pods=(api_pod("one", ONE, {}, phase="Succeeded"),)),
            "ok",
        ),
        "another resource": (holds("../nvidia.com/gpu:GPU-1"), "ok"),
        "a pod on a device out of service": (
            lambda well: replace(holds("2")(well), machine=replace(well.machine, disabled=(2,))),
            "ok",
        ),
        "holders that are not known": (kubelet(pods=NOBODY, recorded=NOBODY), "unchecked: no kubelet"),
    },
    "annotations": {
        "no pod": (as_it_is, "ok"),
        "a pod annotated with what it holds": (lists({"NEURON_DEVS": "2", **DONE}), "ok"),
        "one in the vendor's dialect": (lists({"AWS_NEURON_IDS": "2", **DONE}), "ok"),
        "one with other devices": (lists({"NEURON_DEVS": "3", **DONE}), "problem: neurondevice 3, the kubelet gave 2"),
        "one of which the kubelet knows nothing": (
            lists({"NEURON_DEVS": "3", **DONE}, held=False),
            "problem: the kubelet gave nothing",
        ),
        "one that runs and was never confirmed": (
            lists({"NEURON_DEVS": "2", **WAITING}),
            "warning: NEURON_ALLOCATED is still false",
        ),
        "one that runs without annotation": (lists({}), "warning: without an annotation"),
        "no ids": (lists({"NEURON_DEVS": "two"}), "problem: default/train"),
        "another count": (lists({"NEURON_DEVS": "2,3"}), "problem: default/train"),
        "another unit": (lists({"NEURON_CORES": "2"}), "problem: default/train"),
        "one that waits for its admission": (waited(119), "ok"),
        "one that waits for ever": (waited(600), "warning: 10 minutes ago and has not been admitted"),
        "one container of two, in admission": (half("Pending"), "ok"),
        "one container of two, that run": (
            half("Running"),
            "problem: train/side: annotated aws.amazon.com/neurondevice 3, the kubelet gave nothing",
        ),
        "one that has ended": (lists({"NEURON_DEVS": "9", **DONE}, held=False, phase="Succeeded"), "ok"),
        "one that asks for nothing": (cluster(pods=(api_pod("web", {"main": {}}, {}),)), "ok"),
        "a holder that the API server does not have": (holds("neuroncore:2"), "warning: default/one"),
        "a pod, and the kubelet is away": (
            lambda well: with_kubelet(lists({"NEURON_DEVS": "3", **DONE})(well), pods=NOBODY, recorded=NOBODY),
            "ok",
        ),
    },
    "node-annotations": {
        "a true inventory": (as_it_is, "ok"),
        "one of another machine": (
            published(inventory("inf2.24xlarge")),
            "problem: inf2.24xlarge, 6 devices ~ trn1.32xlarge, 16 devices",
        ),
        **{
            f"one that cannot be read: {text!r}": (published({INVENTORY_KEY: text}), "problem: read")
            for text in ("", "{", '{"version": 99}')
        },
        "none beside a running plugin": (published({}), "warning: patch nodes"),
        "none, and no plugin": (lambda well: with_kubelet(published({})(well), plugins=()), "ok"),
        "none, and no device": (without_devices, "ok"),
        "one without a plugin": (kubelet(plugins=()), f"note: kubectl annotate node {NODE} {INVENTORY_KEY}-"),
        "a node that the API server does not know": (
            lambda well: replace(well, cluster=NoSuchNode("the API server has no node wroker-1")),
            "problem: the API server has no node wroker-1 ~ --node-name or NODE_NAME",
        ),
    },
    "processes": {
        "a process of the pod that holds the device": (uses(user(2)), "ok"),
        "two of them": (uses(user(2), user(2)), "ok"),
        "one of a static pod": (uses(user(2, pod_uid=STATIC_UID), pods=(STATIC,)), "ok"),
        "one outside of pods": (
            uses(user(2, 3, pod_uid="")),
            "warning: process 4711 (python train.py) has devices 2-3 open and belongs to no pod ~ kill 4711",
        ),
        "one without a name": (
            uses(replace(user(2, pod_uid=""), command="")),
            "warning: process 4711 (its name is not known)",
        ),
        "one of a pod that has ended": (uses(user(2), pods=()), f"warning: of pod {POD_UID}, which has ended"),
        "one on a device that no pod was given": (
            uses(user(2, 7)),
            "warning: device 7 open, which the kubelet gave to no pod",
        ),
        "one of a pod, without an API server": (
            lambda well: replace(uses(user(2))(well), cluster=Unknown("no API server is known")),
            "ok",
        ),
        "no /proc": (lambda well: replace(well, users=Unknown("no /proc", "mount it")), "unchecked: no /proc"),
    },
}


@pytest.mark.parametrize(("name", "spoil", "expected"), rows(CASES))
def test_what_is_found(well: Facts, name: str, spoil: Spoil, expected: str) -> None:
    expect(name, spoil(well), expected)


def test_linked_sets_held_once_are_fine(well: Facts) -> None:
    linked = ("train", "a", "neurondevice", "4,5,6,7"), ("train", "b", "neuroncore", "2")
    facts = holding(well, *linked, ("infer", "main", "neuroncore", "3"), ("other", "main", "neuron", "0"))
    expect("holders", facts, "ok: 3 pods with 12 logical cores")


def test_cores_that_are_not_aligned_are_a_warning_where_they_have_to_be(make_node: MakeNode) -> None:
    facts = holding(facts_of(make_node("trn2.3xlarge")), ("train", "main", "neuroncore", "1,2"))
    expect("holders", facts, "warning: holds aws.amazon.com/neuroncore 1-2, which is no aligned set here")


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


def test_a_pod_on_a_sick_device_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    expect("holders", holding(facts_of(node), ("train", "main", "neurondevice", "0,1,2")), "warning: runs on device 1")


def test_without_a_device_nothing_is_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    expect("holders", facts_of(node), "unchecked: ")


def test_without_an_api_server_nothing_is_checked(well: Facts) -> None:
    facts = replace(well, cluster=Unknown("no API server is known", "give --kubeconfig"))
    for name in ("annotations", "node-annotations"):
        expect(name, facts, "unchecked: give --kubeconfig")


def test_a_sick_device_that_the_node_does_not_tell_of_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge", missing=(4,))
    node.set_ecc(1, memory=1)
    facts = facts_of(node)
    expect("node-annotations", with_cluster(facts, annotations=inventory("inf2.24xlarge")), "warning: 1,4\n")
    said = inventory("inf2.24xlarge", present=(0, 1, 2, 3, 5), unhealthy={1: "memory"})
    assert is_fine("node-annotations", with_cluster(facts, annotations=said))


def test_what_cannot_be_seen_is_said_beside_what_is(well: Facts) -> None:
    hidden = Unknown("hidden", "run this as root")
    expect("processes", with_users(uses()(well), user(2, pod_uid=""), hidden=hidden), "unchecked: hidden | warning: ")
    expect("processes", with_users(well, hidden=hidden), "unchecked: hidden")
    expect("processes", well, "ok: no process has a device open")
