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
from neuron_plugin.plugin.settle import ADMISSION_SECONDS, VANISHED_SECONDS
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.plugin.writes import pod_events, pod_writes
from neuron_plugin.topology import NO_CORES, Unit
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    TRN1,
    devices,
    healthy,
    inputs,
    inventory,
    moment,
    pod_of,
    reasons,
    ref,
    settled,
    some_inputs,
    uid_of,
)
from tests.support.stories import rows

A = uid_of("a")


FORCE_DELETED = moment("has a=3 | killed a")


def lasting(before: Inputs, *, a: bool) -> Inputs:
    """The inputs when the hold-downs have lasted for so long that the kubelet is shown them."""
    return settled(settled(before, now=10.0, a=a), now=10.0 + ADMISSION_SECONDS, a=a)


def test_p60_held_down_cores_are_unhealthy_under_every_name_and_not_chosen() -> None:
    snapshot = derive(lasting(FORCE_DELETED, a=True))
    assert not any("3" in healthy(snapshot, resource) for resource in (NEURON, DEVICE))
    assert not {"6", "7"} & healthy(snapshot, CORE)
    assert not snapshot.free_mask & devices(3)
    assert set(reasons(snapshot)) == {"3"}
    assert snapshot.published_inventory.unhealthy == {3: reasons(snapshot)["3"]}
    assert snapshot.published_inventory.held_down == (3,)


def test_a_broken_device_is_not_published_as_held_down() -> None:
    before = lasting(FORCE_DELETED, a=True)
    sick = replace(before, inventory=replace(before.inventory, unhealthy={3: "ECC"}))
    published = derive(sick).published_inventory
    assert (published.unhealthy, published.held_down) == ({3: "ECC"}, ())
    assert reasons(derive(sick)) == {"3": "ECC"}


def test_p60_a_stopped_pods_sandbox_holds_its_cores_down_unseen_by_the_kubelet() -> None:
    held = settled(moment("has a=3 | stopped a"), now=10.0, a=True)
    soon = derive(replace(held, now=11.0))
    assert not soon.free_mask & devices(3)
    assert "3" in healthy(soon, NEURON)
    assert not soon.published_inventory.unhealthy
    later = derive(replace(held, now=10.0 + ADMISSION_SECONDS))
    assert "3" not in healthy(later, NEURON)


def test_p60_what_the_kubelet_gave_out_meanwhile_keeps_its_health_under_that_name() -> None:
    before = moment("b app:1 | has a=3 b=3 | killed a")
    snapshot = derive(lasting(before, a=True))
    assert "3" in healthy(snapshot, NEURON)
    assert reasons(snapshot, DEVICE) == {"3": "in use by pod default/b as aws.amazon.com/neuron"}
    assert not snapshot.published_inventory.unhealthy


@pytest.mark.parametrize("alive", [True, False, None], ids=["alive", "no process", "not to be seen"])
def test_what_a_vanished_pod_had_is_published_at_once_and_delays_admissions_before_it_rejects_one(
    alive: bool | None,  # noqa: FBT001 - a table
) -> None:
    """The cluster chooses it no more, and a pod that is bound to it already waits."""
    before = moment("has a=3 | listed 9.9")
    soon = derive(settled(before, a=alive))
    assert "3" in healthy(soon, NEURON)
    assert not soon.free_mask & devices(3)
    published = soon.published_inventory
    assert (published.held_down, published.vanished_pods) == ((3,), (A,))
    (held,) = soon.inputs.hold_downs
    assert held.advertised_from == 10.0 + ADMISSION_SECONDS > held.not_before


def test_a_vanished_pod_is_published_when_it_is_known_what_of_it_is_held_down() -> None:
    """Also when nothing of it is any more: whoever chooses waits for that."""
    gone = NodePods().with_pod(pod_of("a app:1 running")).without(A)
    before = replace(moment("has a=3"), pods=gone)
    held = settled(before, a=False)
    over = derive(settled(held, now=10.0 + VANISHED_SECONDS, a=False)).published_inventory
    assert (over.held_down, over.vanished_pods) == ((), (A,))
    unsettled = replace(moment("answers a/app=3"), pods=gone)
    assert derive(settled(unsettled, now=0.5)).published_inventory.vanished_pods == ()


def test_a_pod_that_stopped_or_was_never_known_is_not_published_as_vanished() -> None:
    held = settled(moment("has a=3 | stopped a"), now=10.0, a=True)
    assert derive(held).published_inventory == held.inventory
    assert derive(moment("unknown 3")).published_inventory.vanished_pods == ()


# What counts.


def test_p46_what_was_given_counts_and_the_kubelets_ids_are_remembered() -> None:
    snapshot = derive(moment("a init:4 app:1 | has a/init=0-3 a=3>0"))
    assert [one.mask for one in snapshot.ledger.of(A)] == [devices(0, 1, 2, 3), devices(0)]
    assert snapshot.ledger.used_mask == devices(0, 1, 2, 3)


def test_entries_of_another_plugin_under_our_names_count() -> None:
    snapshot = derive(moment("theirs a=device:3"))
    assert snapshot.ledger.used_mask == devices(3)
    assert reasons(snapshot, NEURON) == {"3": f"in use by the pod with UID {A} as aws.amazon.com/neurondevice"}


def test_p28_after_a_change_of_lnc_what_is_in_use_counts_as_whole_devices() -> None:
    halved = inventory(replace(TRN1, cores_per_device=1), logical_core_size=2)
    before = moment("a app:core:1 | has a=core:3")
    snapshot = derive(before.with_inventory(halved))
    assert halved.geometry.ids_of(Unit.DEVICE, snapshot.ledger.used_mask) == (1,)
    assert "1" not in healthy(snapshot, NEURON)


# Who waits for what.

WAITING = rows("""
    p30 in the order of their bindings: a app:1=5 @9 | b app:1=6 @3 | c app:1 => a/app=5 b/app=6, unassigned c
    p48 the next container of a pod: a app.one:1=5 app.two:2=6,7 => a/one=5
    p48 the second one, when the first is served: a app.one:1=5 app.two:2=6,7 | has a/one=5 => a/two=6,7
    p48 none, when both are: a app.one:1=5 app.two:2=6,7 | has a/one=5 a/two=6,7 =>
    an answer serves its container: a app.one:1=5 app.two:2=6,7 | answers a/one=5 => a/two=6,7
    another pod has a part of the set: a app:2=5,6 | b app:1 | has b=device:6 => unassigned a
    an earlier container has a part of the set: a init:core:2=2,3 app:2=3,4 | has a/init=core:6,7 => unassigned a
    p49 an assignment that cannot be read: a app:1 NEURON_DEVS=x => unassigned a
    p66 a pod that is being deleted: a app:1=5 terminating => a/app=5
    a pod that runs: a app:1 started | lost =>
    p56 the set left over by a swap: a app:1=5 | b app:1=6 @2 | has b=5 => a/app=6
    p56 no other resource: a app:device:1=5 | b app:1=6 @2 | has b=5 => unassigned a
    a third pod has the set, and the equal one waits:
        a app:1=5 | b app:1=6 @2 | has c=device:5 => b/app=6, unassigned a
    a third pod has the set left over: a app:1=5 | b app:1=6 @2 | has b=5 c=device:6 => unassigned a
""")


@pytest.mark.parametrize(("text", "expected"), WAITING)
def test_whose_set_waits_and_who_has_none(text: str, expected: str) -> None:
    snapshot = derive(moment(text))
    waiting = " ".join(f"{one.pod.name}/{one.container}={format_ids(one.ids)}" for one in snapshot.waiting)
    unassigned = " ".join(one.reference.name for one in snapshot.unassigned)
    assert ", ".join(filter(None, (waiting, f"unassigned {unassigned}" * bool(unassigned)))) == expected


def test_a_waiting_set_is_not_free() -> None:
    snapshot = derive(moment("a app:1=5 | broken 1"))
    assert snapshot.free_mask == TRN1.all_mask & ~devices(1, 5)


def test_what_a_later_container_re_uses_of_its_init_container_is_known() -> None:
    snapshot = derive(moment("a init:4=0-3 app:1=1 | has a/init=0-3"))
    (one,), (both,) = snapshot.waiting, snapshot.inputs.pods.pods.values()
    assert (one.mask, one.reused_mask) == (devices(1), devices(1))
    assert snapshot.reusable_masks(both, NEURON) == (devices(0, 1, 2, 3), devices(0, 1, 2, 3))
    assert snapshot.reusable_masks(both, DEVICE) == (NO_CORES, NO_CORES)


def test_what_a_sidecar_was_given_of_an_init_set_is_not_reusable() -> None:
    snapshot = derive(moment("a init:4 sidecar:1 app:1 | has a/init=0-3 a/sidecar=3>0"))
    (three,) = snapshot.inputs.pods.pods.values()
    assert snapshot.reusable_masks(three, NEURON) == (devices(0, 1, 2), devices(1, 2, 3))


# What is advertised.

WHY = {
    **{
        name: f"in use by pod default/a as aws.amazon.com/{resource}"
        for name, resource in (("core", "neuroncore"), ("device", "neurondevice"), ("neuron", "neuron"))
    },
    "unrecorded": "in use by a pod that the kubelet has not recorded yet as aws.amazon.com/neuroncore",
    "missing": MISSING,
    "disabled": DISABLED_REASON,
    "sick": "sick",
}
"""Why an id is unhealthy; ``core``, ``device`` and ``neuron``: in use by pod a under that name."""
ADVERTISED = rows("""
    p57 a core in use: a app:core:1 | has a=core:3 => 1 core => 1 core => -
    p57 a device in use: a app:device:1 | has a=device:1 => 1 device => - => 2,3 device
    p57 a core whose pod is gone: has a=core:3 | stopped a | settled => - => - => -
    a broken device of a live pod: a app:1 | has a=1 | broken 1 => - => 1 sick => 2,3 sick
    a core of a broken device: a app:core:1 | has a=core:2 | broken 1 => 1 sick => 1 sick => 3 sick
    p20 a missing device: missing 15 => 15 missing => 15 missing => 30,31 missing
    a disabled device: off 3 => 3 disabled => 3 disabled => 6,7 disabled
    a disabled device of a live pod: a app:1 | has a=3 | off 3 => - => 3 neuron => 6,7 neuron
    a core of a disabled device: a app:core:1 | has a=core:6 | off 3 => 3 core => 3 core => 7 disabled
    p46 ids that the kubelet counts for their pod:
        a init:4 app:1 | has a/init=0-3 a=3>0 => - => 0,1,2,3 neuron => 0,1,2,3,4,5,6,7 neuron
    an answer that the kubelet has not recorded: answers core:6 => 3 unrecorded => 3 unrecorded => -
""")
"""A moment, and the ids that are unhealthy as ``neuron``, as ``neurondevice`` and as ``neuroncore``."""


def unhealthy(snapshot: Snapshot, resource: Resource) -> str:
    by_reason: dict[str, list[int]] = {}
    for number, reason in reasons(snapshot, resource).items():
        by_reason.setdefault(reason, []).append(int(number))
    names = {reason: name for name, reason in WHY.items()}
    return "; ".join(f"{format_ids(ids)} {names[reason]}" for reason, ids in by_reason.items()) or "-"


@pytest.mark.parametrize(("text", "neuron", "device", "core"), ADVERTISED)
def test_which_ids_are_unhealthy_and_why(text: str, neuron: str, device: str, core: str) -> None:
    snapshot = derive(moment(text))
    assert [unhealthy(snapshot, resource) for resource in (NEURON, DEVICE, CORE)] == [neuron, device, core]
    for resource, count in ((NEURON, 16), (CORE, 32)):
        assert len(healthy(snapshot, resource)) == count - len(reasons(snapshot, resource))


BREAKS = rows("""
    it lives: a app:1 | has a=1 | broken 1 => -
    it is being deleted: a app:1 terminating | has a=1 | broken 1 => 1 sick
    its end has begun: a app:1 ending | has a=1 | broken 1 => 1 sick
    it is doubted: a app:1 | has a=1 | broken 1 | doubts a => 1 sick
    a static pod with its mirror: mirror app:1 | has static=1 | broken 1 => -
    one without: has static=1 | broken 1 => -
    one that is doubted: mirror app:1 | has static=1 | broken 1 | doubts static => 1 sick
    a disabled device: a app:1 terminating | has a=3 | off 3 => 3 disabled
    one that is broken, too: off 3 | broken 3 => 3 sick
""")


@pytest.mark.parametrize(("text", "shown"), BREAKS)
def test_a_broken_device_is_unhealthy_from_the_first_sign_of_its_pods_end_on(text: str, shown: str) -> None:
    """Before, kube-scheduler would count it twice: allocatable lacks it, and the pod's request is taken off, too."""
    assert unhealthy(derive(moment(text)), NEURON) == shown


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
