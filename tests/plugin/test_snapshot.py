"""What follows from the inputs of one moment: who has what, who waits for what, what is advertised and published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.plugin.inputs import Inputs, NodePods
from neuron_plugin.plugin.settle import ADMISSION_SECONDS, VANISHED_SECONDS, with_lost_records
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.plugin.writes import pod_events, pod_writes
from neuron_plugin.topology import NO_CORES, Unit
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    SICK,
    STATIC_UID,
    TRN1,
    answer,
    app,
    assigned,
    devices,
    entry,
    healthy,
    init,
    inputs,
    inventory,
    moment,
    pod,
    reasons,
    ref,
    settled,
    sidecar,
    some_inputs,
    uid_of,
)

A, B, C = uid_of("a"), uid_of("b"), uid_of("c")


FORCE_DELETED = moment("has a=3", ended={A: False})


def lasting(before: Inputs, *, a: bool) -> Inputs:
    """The inputs when the hold-downs have lasted for so long that the kubelet is shown them."""
    return settled(settled(before, now=10.0, a=a), now=10.0 + ADMISSION_SECONDS, a=a)


def test_p60_held_down_cores_are_unhealthy_under_every_name_and_not_chosen() -> None:
    snapshot = derive(lasting(FORCE_DELETED, a=True))
    assert not any("3" in healthy(snapshot, resource) for resource in (NEURON, DEVICE))
    assert not {"6", "7"} & healthy(snapshot, CORE)
    assert not snapshot.free_mask & devices(3)
    assert set(reasons(snapshot)) == {"3"}
    assert snapshot.published_inventory.unhealthy == reasons_by_number(snapshot)
    assert snapshot.published_inventory.held_down == (3,)


def test_a_broken_device_is_not_published_as_held_down() -> None:
    before = lasting(FORCE_DELETED, a=True)
    sick = replace(before, inventory=replace(before.inventory, unhealthy={3: "ECC"}))
    published = derive(sick).published_inventory
    assert (published.unhealthy, published.held_down) == ({3: "ECC"}, ())
    assert reasons(derive(sick)) == {"3": "ECC"}


def reasons_by_number(snapshot: Snapshot) -> dict[int, str]:
    return {int(number): reason for number, reason in reasons(snapshot).items()}


def test_p60_a_stopped_pods_sandbox_holds_its_cores_down_unseen_by_the_kubelet() -> None:
    held = settled(moment("has a=3", ended={A: True}), now=10.0, a=True)
    soon = derive(replace(held, now=11.0))
    assert not soon.free_mask & devices(3)
    assert "3" in healthy(soon, NEURON)
    assert not soon.published_inventory.unhealthy
    later = derive(replace(held, now=10.0 + ADMISSION_SECONDS))
    assert "3" not in healthy(later, NEURON)


def test_p60_what_the_kubelet_gave_out_meanwhile_keeps_its_health_under_that_name() -> None:
    before = moment("b app:1 | has a=3 b=3", ended={A: False})
    snapshot = derive(lasting(before, a=True))
    assert "3" in healthy(snapshot, NEURON)
    assert reasons(snapshot, DEVICE) == {"3": "in use by pod default/b as aws.amazon.com/neuron"}
    assert not snapshot.published_inventory.unhealthy


@pytest.mark.parametrize("alive", [True, False, None], ids=["alive", "no process", "not to be seen"])
def test_what_a_vanished_pod_had_is_published_at_once_and_delays_admissions_before_it_rejects_one(
    alive: bool | None,  # noqa: FBT001 - a table
) -> None:
    """The cluster chooses it no more, and a pod that is bound to it already waits."""
    before = moment("has a=3", listed_at=9.9)
    soon = derive(settled(before, a=alive))
    assert "3" in healthy(soon, NEURON)
    assert not soon.free_mask & devices(3)
    published = soon.published_inventory
    assert (published.held_down, published.vanished_pods) == ((3,), (A,))
    (held,) = soon.inputs.hold_downs
    assert held.advertised_from == 10.0 + ADMISSION_SECONDS > held.not_before


def test_a_vanished_pod_is_published_when_it_is_known_what_of_it_is_held_down() -> None:
    """Also when nothing of it is any more: whoever chooses waits for that."""
    gone = NodePods().with_pod(pod("a", app(1), running=True)).without(A)
    before = replace(moment("has a=3"), pods=gone)
    held = settled(before, a=False)
    over = derive(settled(held, now=10.0 + VANISHED_SECONDS, a=False)).published_inventory
    assert (over.held_down, over.vanished_pods) == ((), (A,))
    unsettled = replace(inputs(pending=(answer(3, pod=ref("a"), container="app"),)), pods=gone)
    assert derive(settled(unsettled, now=0.5)).published_inventory.vanished_pods == ()


def test_a_pod_that_stopped_is_not_published_as_vanished() -> None:
    held = settled(moment("has a=3", ended={A: True}), now=10.0, a=True)
    assert derive(held).published_inventory == held.inventory


# What counts.


def test_p46_what_was_given_counts_and_the_kubelets_ids_are_remembered() -> None:
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "app", NEURON, 3, given=[0])]
    snapshot = derive(inputs(pod("a", init(4), app(1)), recorded=recorded))
    assert [one.mask for one in snapshot.ledger.of(A)] == [devices(0, 1, 2, 3), devices(0)]
    assert snapshot.ledger.used_mask == devices(0, 1, 2, 3)


def test_entries_of_another_plugin_under_our_names_count() -> None:
    snapshot = derive(inputs(recorded=[entry(A, "app", DEVICE, 3, ours=False)]))
    assert snapshot.ledger.used_mask == devices(3)
    assert reasons(snapshot, NEURON) == {"3": f"in use by the pod with UID {A} as aws.amazon.com/neurondevice"}


def test_p28_after_a_change_of_lnc_what_is_in_use_counts_as_whole_devices() -> None:
    halved = inventory(replace(TRN1, cores_per_device=1), logical_core_size=2)
    before = moment("a app:core:1 | has a=core:3")
    snapshot = derive(before.with_inventory(halved))
    assert halved.geometry.ids_of(Unit.DEVICE, snapshot.ledger.used_mask) == (1,)
    assert "1" not in healthy(snapshot, NEURON)


# Who waits for what.

FIRST, SECOND = assigned("a", app(1), sets=[[5]], time=1), assigned("b", app(1), sets=[[6]], time=2)
SWAPPED = [entry(B, "app", NEURON, 5)]
"""``b`` was given what ``a`` was assigned."""
WAITING = {
    "p30 in the order of their bindings": (
        moment("a app:1=5 @9 | b app:1=6 @3 | c app:1"),
        "a/app=5 b/app=6, unassigned c",
    ),
    "p48 the next container of a pod": (moment("a app.one:1=5 app.two:2=6,7"), "a/one=5"),
    "p48 the second one, when the first is served": (moment("a app.one:1=5 app.two:2=6,7 | has a/one=5"), "a/two=6,7"),
    "p48 none, when both are": (moment("a app.one:1=5 app.two:2=6,7 | has a/one=5 a/two=6,7"), ""),
    "an answer serves its container": (
        moment("a app.one:1=5 app.two:2=6,7", pending=(answer(5, pod=ref("a"), container="one"),)),
        "a/two=6,7",
    ),
    "another pod has a part of the set": (moment("a app:2=5,6 | b app:1 | has b=device:6"), ", unassigned a"),
    "an earlier container has a part of the set": (
        moment("a init:core:2=2,3 app:2=3,4 | has a/init=core:6,7"),
        ", unassigned a",
    ),
    "p49 an assignment that cannot be read": (
        inputs(pod("a", app(1), annotations={"NEURON_DEVS": "x"})),
        ", unassigned a",
    ),
    "p66 a pod that is being deleted": (moment("a app:1=5 terminating"), "a/app=5"),
    "a pod that runs": (with_lost_records(moment("a app:1 started")), ""),
    "p56 the set left over by a swap": (moment("a app:1=5 | b app:1=6 @2 | has b=5"), "a/app=6"),
    "p56 no other resource": (moment("a app:device:1=5 | b app:1=6 @2 | has b=5"), ", unassigned a"),
    "a third pod has the set, and the equal one waits": (
        moment("a app:1=5 | b app:1=6 @2 | has c=device:5"),
        "b/app=6, unassigned a",
    ),
    "a third pod has the set left over": (
        inputs(FIRST, SECOND, recorded=[*SWAPPED, entry(C, "app", DEVICE, 6)]),
        ", unassigned a",
    ),
}


@pytest.mark.parametrize(("before", "expected"), WAITING.values(), ids=WAITING)
def test_whose_set_waits_and_who_has_none(before: Inputs, expected: str) -> None:
    snapshot = derive(before)
    waiting = " ".join(f"{one.pod.name}/{one.container}={format_ids(one.ids)}" for one in snapshot.waiting)
    unassigned = " ".join(one.reference.name for one in snapshot.unassigned)
    assert waiting + (f", unassigned {unassigned}" if unassigned else "") == expected


def test_a_waiting_set_is_not_free() -> None:
    snapshot = derive(moment("a app:1=5 | broken 1"))
    assert snapshot.free_mask == TRN1.all_mask & ~devices(1, 5)


def test_what_a_later_container_re_uses_of_its_init_container_is_known() -> None:
    both = assigned("a", init(4), app(1), sets=[[0, 1, 2, 3], [1]])
    snapshot = derive(inputs(both, recorded=[entry(A, "init", NEURON, 0, 1, 2, 3)]))
    (one,) = snapshot.waiting
    assert (one.mask, one.reused_mask) == (devices(1), devices(1))
    assert snapshot.reusable_masks(both, NEURON) == (devices(0, 1, 2, 3), devices(0, 1, 2, 3))
    assert snapshot.reusable_masks(both, DEVICE) == (NO_CORES, NO_CORES)


def test_what_a_sidecar_was_given_of_an_init_set_is_not_reusable() -> None:
    three = pod("a", init(4), sidecar(1), app(1))
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "sidecar", NEURON, 3, given=[0])]
    snapshot = derive(inputs(three, recorded=recorded))
    assert snapshot.reusable_masks(three, NEURON) == (devices(0, 1, 2), devices(1, 2, 3))


# What is advertised.

HOLDER, DELETED = pod("a", app(1)), pod("a", app(1), terminating=True)
SICK_ONE, OFF = [entry(A, "app", NEURON, 1)], inventory(disabled=(3,))
MIRROR = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
SICK_STATIC = [entry(STATIC_UID, "app", NEURON, 1)]
AS_CORE, AS_DEVICE, AS_NEURON = (
    f"in use by pod default/a as aws.amazon.com/{name}" for name in ("neuroncore", "neurondevice", "neuron")
)
UNRECORDED = "in use by a pod that the kubelet has not recorded yet as aws.amazon.com/neuroncore"
ADVERTISED: dict[str, tuple[Inputs, dict[str, str], dict[str, str], dict[str, str]]] = {
    "p57 a core in use": (moment("a app:core:1 | has a=core:3"), {"1": AS_CORE}, {"1": AS_CORE}, {}),
    "p57 a device in use": (
        moment("a app:device:1 | has a=device:1"),
        {"1": AS_DEVICE},
        {},
        {"2": AS_DEVICE, "3": AS_DEVICE},
    ),
    "p57 a core whose pod is gone": (settled(moment("has a=core:3", ended={A: True})), {}, {}, {}),
    "a broken device of a live pod": (
        moment("a app:1 | has a=1 | broken 1"),
        {},
        {"1": "sick"},
        {"2": "sick", "3": "sick"},
    ),
    "a core of a broken device": (
        moment("a app:core:1 | has a=core:2 | broken 1"),
        {"1": "sick"},
        {"1": "sick"},
        {"3": "sick"},
    ),
    "p20 a missing device": (
        inputs(node=inventory(present=tuple(range(15)), unhealthy={15: MISSING})),
        {"15": MISSING},
        {"15": MISSING},
        {"30": MISSING, "31": MISSING},
    ),
    "a disabled device": (
        moment("off 3"),
        {"3": DISABLED_REASON},
        {"3": DISABLED_REASON},
        {"6": DISABLED_REASON, "7": DISABLED_REASON},
    ),
    "a disabled device of a live pod": (
        moment("a app:1 | has a=3 | off 3"),
        {},
        {"3": AS_NEURON},
        {"6": AS_NEURON, "7": AS_NEURON},
    ),
    "a core of a disabled device": (
        moment("a app:core:1 | has a=core:6 | off 3"),
        {"3": AS_CORE},
        {"3": AS_CORE},
        {"7": DISABLED_REASON},
    ),
    "p46 ids that the kubelet counts for their pod": (
        moment("a init:4 app:1 | has a/init=0-3 a=3>0"),
        {},
        dict.fromkeys("0123", AS_NEURON),
        {str(core): AS_NEURON for core in range(8)},
    ),
    "an answer that the kubelet has not recorded": (
        inputs(pending=(answer(3, resource=CORE),)),
        {"1": UNRECORDED},
        {"1": UNRECORDED},
        {},
    ),
}


@pytest.mark.parametrize(("before", "neuron", "device", "core"), ADVERTISED.values(), ids=ADVERTISED)
def test_which_ids_are_unhealthy_and_why(
    before: Inputs, neuron: dict[str, str], device: dict[str, str], core: dict[str, str]
) -> None:
    snapshot = derive(before)
    assert [reasons(snapshot, resource) for resource in (NEURON, DEVICE, CORE)] == [neuron, device, core]
    assert [len(healthy(snapshot, resource)) for resource in (NEURON, CORE)] == [16 - len(neuron), 32 - len(core)]


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (moment("a app:1 | has a=1 | broken 1"), {}),
        (moment("a app:1 terminating | has a=1 | broken 1"), {"1": "sick"}),
        (inputs(replace(HOLDER, ending=True), recorded=SICK_ONE, node=SICK), {"1": "sick"}),
        (moment("a app:1 | has a=1 | broken 1", doubted=frozenset({A})), {"1": "sick"}),
        (inputs(MIRROR, recorded=SICK_STATIC, node=SICK), {}),
        (moment("has static=1 | broken 1"), {}),
        (inputs(MIRROR, recorded=SICK_STATIC, node=SICK, doubted=frozenset({STATIC_UID})), {"1": "sick"}),
        (moment("a app:1 terminating | has a=3 | off 3"), {"3": DISABLED_REASON}),
        (moment("off 3 | broken 3"), {"3": "sick"}),
    ],
)
def test_a_broken_device_is_unhealthy_from_the_first_sign_of_its_pods_end_on(
    before: Inputs, shown: dict[str, str]
) -> None:
    """Before, kube-scheduler would count it twice: allocatable lacks it, and the pod's request is taken off, too."""
    assert reasons(derive(before), NEURON) == shown


def test_everybody_else_hears_of_a_broken_device_at_once() -> None:
    snapshot = derive(moment("a app:1 | has a=1 | broken 1"))
    assert snapshot.published_inventory.unhealthy == {1: "sick"}
    shown = snapshot.advertised(NEURON, unhealthy_in_use=True)
    assert {one.id: one.reason for one in shown if not one.healthy} == {"1": "sick"}, "p71 where that is wanted"


def test_a_disabled_device_is_not_chosen_and_its_pods_are_not_told() -> None:
    snapshot = derive(moment("off 3"))
    assert not snapshot.free_mask & devices(3)
    assert snapshot.published_inventory == snapshot.inventory
    assert not pod_events(derive(moment("a app:core:1 | has a=core:6 | off 3")))


def test_an_id_that_no_device_has_is_not_offered() -> None:
    """The ids of an instance type that is not known may have gaps."""
    offered = derive(inputs(node=inventory(present=(0, 2)))).advertised
    assert [one.id for one in offered(NEURON)] == ["0", "2"]
    assert [one.id for one in offered(CORE)] == ["0", "1", "4", "5"]


@pytest.mark.parametrize(("resource", "ids"), [(NEURON, ("0", "1", "2", "3")), (CORE, ("0", "2", "5", "6"))])
def test_p21_hints_name_the_node_of_each_device_and_of_its_cores(resource: Resource, ids: Sequence[str]) -> None:
    offered = derive(moment("inf2")).advertised(resource, (-1, 0, 5))
    found = {one.id: one.numa_nodes for one in offered}
    assert [found[one] for one in ids] == [(), (0,), (5,), ()]


# In general.


@given(data=st.data())
def test_a_snapshot_is_a_function_of_its_inputs_and_nobody_has_a_core_that_no_input_gives(data: st.DataObject) -> None:
    made = data.draw(some_inputs())
    one, other = derive(made), derive(made)
    assert (one.ledger, one.waiting, pod_writes(one), pod_events(one)) == (
        other.ledger,
        other.waiting,
        pod_writes(other),
        pod_events(other),
    )
    for resource in Resource:
        assert one.advertised(resource) == other.advertised(resource)
    given_masks = 0
    for recorded in made.recorded.entries.values():
        given_masks |= recorded.on(made.inventory, ref("x")).mask
    for pending in made.pending:
        given_masks |= pending.on(made.inventory).mask
    assert one.ledger.used_mask & ~given_masks == 0
    for waiting in one.waiting:
        assert all(holder.pod.uid == waiting.pod.uid for holder in one.ledger.overlapping(waiting.mask))
