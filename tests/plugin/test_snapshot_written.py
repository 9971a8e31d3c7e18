"""Whom a snapshot has assignments wait for, what it has written on pods, tells their owners, and advertises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.keys import UNHEALTHY_LABEL
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.plugin.inputs import (
    PENDING,
    Inputs,
    claim_allocations,
    named,
)
from neuron_plugin.plugin.settle import with_lost_records
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.plugin.writes import pod_events, pod_writes, wrongly_labelled
from neuron_plugin.topology import NO_CORES, Geometry
from tests.plugin.world import (
    CORE,
    DEVICE,
    INF2,
    NEURON,
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
    pod,
    reasons,
    ref,
    settled,
    sidecar,
    uid_of,
)

A, B, C = uid_of("a"), uid_of("b"), uid_of("c")


# Who waits for what.


def waiting(snapshot: Snapshot) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.pod.name, one.container, one.ids) for one in snapshot.waiting]


def test_p30_assignments_wait_in_the_order_of_their_times() -> None:
    snapshot = derive(
        inputs(assigned("a", app(1), sets=[[5]], time=9), assigned("b", app(1), sets=[[6]], time=3), pod("c", app(1)))
    )
    assert waiting(snapshot) == [("b", "app", (6,)), ("a", "app", (5,))]
    assert [one.reference.name for one in snapshot.unassigned] == ["c"]


def test_a_pod_that_runs_waits_for_nothing_though_it_has_neither_a_record_nor_an_assignment() -> None:
    assert not derive(with_lost_records(inputs(pod("a", app(1), started=True)))).unassigned


def test_p48_of_each_pod_the_set_of_its_next_container_waits() -> None:
    both = assigned("a", app(1, name="one"), app(2, name="two"), sets=[[5], [6, 7]])
    assert waiting(derive(inputs(both))) == [("a", "one", (5,))]
    served = inputs(both, recorded=[entry(A, "one", NEURON, 5)])
    assert waiting(derive(served)) == [("a", "two", (6, 7))]
    done = inputs(both, recorded=[entry(A, "one", NEURON, 5), entry(A, "two", NEURON, 6, 7)])
    assert waiting(derive(done)) == []


def test_an_answer_that_is_not_recorded_yet_serves_its_container() -> None:
    first = answer(5, pod=ref("a"), container="one")
    both = assigned("a", app(1, name="one"), app(2, name="two"), sets=[[5], [6, 7]])
    assert waiting(derive(inputs(both, pending=(first,)))) == [("a", "two", (6, 7))]


def test_a_set_of_which_another_pod_has_a_part_does_not_wait() -> None:
    snapshot = derive(
        inputs(assigned("a", app(2), sets=[[5, 6]]), pod("b", app(1)), recorded=[entry(B, "app", DEVICE, 6)])
    )
    assert waiting(snapshot) == []
    assert [one.reference.name for one in snapshot.unassigned] == ["a"]


@pytest.mark.parametrize("annotations", [{"NEURON_DEVS": "x"}, {"NEURON_DEVS": "77"}, {"NEURON_DEVS": "1,2"}])
def test_p49_an_assignment_that_cannot_be_followed_waits_for_nothing_and_is_reported(
    annotations: dict[str, str],
) -> None:
    snapshot = derive(inputs(pod("a", app(1), annotations=annotations)))
    assert not snapshot.waiting
    assert [one.reference.name for one in snapshot.unassigned] == ["a"]
    assert [(one.pod.name, one.reason) for one in pod_events(snapshot)] == [("a", "InvalidNeuronAssignment")]


def test_p66_a_pod_that_is_being_deleted_still_waits() -> None:
    assert waiting(derive(inputs(assigned("a", app(1), sets=[[5]], terminating=True)))) == [("a", "app", (5,))]


def test_a_waiting_set_is_not_free() -> None:
    snapshot = derive(inputs(assigned("a", app(1), sets=[[5]]), node=inventory(unhealthy={1: "sick"})))
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


def test_an_assigned_set_of_which_an_earlier_container_has_a_part_waits_no_more() -> None:
    two = assigned("a", init(2, CORE), app(2), sets=[[2, 3], [3, 4]])
    assert not derive(inputs(two, recorded=[entry(A, "init", CORE, 6, 7)])).waiting


# Swaps.


def swapped(**fields: Any) -> Inputs:
    """``b`` was given what ``a`` was assigned."""
    return inputs(
        assigned("a", app(1), sets=[[5]], time=1),
        assigned("b", app(1), sets=[[6]], time=2, **fields),
        recorded=[entry(B, "app", NEURON, 5)],
    )


def written(snapshot: Snapshot) -> list[tuple[object, ...]]:
    keys = ("NEURON_DEVS", "NEURON_ALLOC_TIME", "NEURON_ALLOCATED")
    return [(one.pod.name, *(one.annotations.get(key) for key in keys)) for one in pod_writes(snapshot)]


def test_p56_after_a_swap_the_set_left_over_waits_for_the_pod_whose_own_is_gone() -> None:
    assert waiting(derive(swapped())) == [("a", "app", (6,))]


def test_p56_p63_a_swap_is_written_on_the_unserved_pod_first() -> None:
    snapshot = derive(swapped())
    assert written(snapshot) == [("a", "6", "1", "false"), ("b", "5", "2", "true")]
    assert [write.correction for write in pod_writes(snapshot)] == [
        "pod default/a got another set than it was assigned: NEURON_DEVS=6",
        "pod default/b got another set than it was assigned: NEURON_DEVS=5",
    ]


def test_p56_a_pod_that_asks_for_something_else_takes_nothing_over() -> None:
    before = inputs(
        assigned("a", app(1, DEVICE), sets=[[5]], time=1),
        assigned("b", app(1), sets=[[6]], time=2),
        recorded=[entry(B, "app", NEURON, 5)],
    )
    assert waiting(derive(before)) == []
    assert [name for name, *_ in written(derive(before))] == ["b"]


def test_a_pod_whose_set_a_third_one_has_takes_nothing_from_an_equal_pod_that_waits() -> None:
    before = replace(swapped(), recorded=inputs(recorded=[entry(C, "app", DEVICE, 5)]).recorded)
    assert waiting(derive(before)) == [("b", "app", (6,))]
    assert not written(derive(before))


def test_when_both_of_a_swap_are_served_each_is_written_once() -> None:
    after = swapped().recorded.with_file([entry(A, "app", NEURON, 6), entry(B, "app", NEURON, 5)], 1.0)
    both = derive(replace(swapped(), recorded=after))
    assert written(both) == [("a", "6", "1", "true"), ("b", "5", "2", "true")]


def test_a_set_left_over_that_another_pod_has_by_now_waits_for_no_pod() -> None:
    before = swapped()
    taken = before.recorded.with_file([entry(B, "app", NEURON, 5), entry(C, "app", DEVICE, 6)], 1.0)
    assert waiting(derive(replace(before, recorded=taken))) == []


# What is written on pods.


def test_p55_an_assignment_that_came_true_is_only_marked() -> None:
    made = assigned("a", app(2), sets=[[2, 3]])
    (write,) = pod_writes(derive(inputs(made, recorded=[entry(A, "app", NEURON, 2, 3)])))
    assert (dict(write.annotations), write.correction) == ({"NEURON_ALLOCATED": "true"}, "")


def test_a_pod_that_says_what_it_has_is_left_alone() -> None:
    made = assigned("a", app(2), sets=[[2, 3]], allocated=True)
    assert not pod_writes(derive(inputs(made, recorded=[entry(A, "app", NEURON, 2, 3)])))


def test_a_pod_without_an_assignment_gets_what_it_has_and_no_event() -> None:
    snapshot = derive(inputs(pod("a", app(2, CORE)), recorded=[entry(A, "app", CORE, 2, 3)]))
    (write,) = pod_writes(snapshot)
    assert dict(write.annotations) == {"NEURON_CORES": "2,3", "NEURON_ALLOC_TIME": "0", "NEURON_ALLOCATED": "true"}
    assert not pod_events(snapshot)


def test_nothing_is_written_before_all_containers_are_recorded() -> None:
    both = pod("a", app(1, name="one"), app(1, name="two"))
    assert not pod_writes(derive(inputs(both, recorded=[entry(A, "one", NEURON, 5)])))
    pending = (answer(6, pod=ref("a"), container="two"),)
    assert not pod_writes(derive(inputs(both, recorded=[entry(A, "one", NEURON, 5)], pending=pending)))
    (write,) = pod_writes(derive(inputs(both, recorded=[entry(A, "one", NEURON, 5), entry(A, "two", NEURON, 6)])))
    assert write.annotations["NEURON_DEVS"] == "5|6"


def test_p46_the_annotation_says_what_was_given_and_not_what_was_drawn() -> None:
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "app", NEURON, 3, given=[0])]
    (write,) = pod_writes(derive(inputs(pod("a", init(4), app(1)), recorded=recorded)))
    assert write.annotations["NEURON_DEVS"] == "0,1,2,3|0"


def test_p49_what_made_an_assignment_unreadable_is_removed() -> None:
    bad = pod("a", app(1), annotations={"NEURON_CORES": "5", "AWS_NEURON_IDS": "x"})
    (write,) = pod_writes(derive(inputs(bad, recorded=[entry(A, "app", NEURON, 5)])))
    assert write.annotations["NEURON_CORES"] is None
    assert (write.annotations["NEURON_DEVS"], write.annotations["AWS_NEURON_IDS"]) == ("5", "5")


def test_p65_the_vendors_dialect_is_corrected_where_it_is_used() -> None:
    vendors = pod("a", app(1), annotations={"AWS_NEURON_IDS": "6", "NEURON_RESOURCE_TYPE": NEURON.value})
    (write,) = pod_writes(derive(inputs(vendors, recorded=[entry(A, "app", NEURON, 5)])))
    assert (write.annotations["NEURON_DEVS"], write.annotations["AWS_NEURON_IDS"]) == ("5", "5")
    assert write.correction


def test_a_vendors_list_that_cannot_say_two_resources_is_removed() -> None:
    both = pod("a", app(1, name="one"), app(1, CORE, "two"), annotations={"AWS_NEURON_IDS": "6"})
    recorded = [entry(A, "one", NEURON, 5), entry(A, "two", CORE, 0)]
    (write,) = pod_writes(derive(inputs(both, recorded=recorded)))
    assert write.annotations["AWS_NEURON_IDS"] is None
    assert (write.annotations["NEURON_DEVS"], write.annotations["NEURON_CORES"]) == ("5", "0")


def test_a_static_pods_mirror_says_what_the_kubelet_gave_it() -> None:
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    (write,) = pod_writes(derive(inputs(mirror, recorded=[entry(STATIC_UID, "app", NEURON, 5)])))
    assert (write.pod.uid, write.annotations["NEURON_DEVS"]) == (mirror.uid, "5")


def test_where_the_checkpoint_cannot_be_read_an_unlisted_init_container_keeps_no_assignment_from_being_marked() -> None:
    made = assigned("a", init(2), app(1), sets=[[2, 3], [2]])
    listed = [entry(A, "app", NEURON, 2)]
    assert not pod_writes(derive(inputs(made, recorded=listed)))
    (write,) = pod_writes(derive(inputs(made, recorded=listed, file={"unreadable": "future"})))
    assert dict(write.annotations) == {"NEURON_ALLOCATED": "true"}
    with_sidecar = assigned("a", sidecar(1), app(1), sets=[[3], [2]])
    assert not pod_writes(derive(inputs(with_sidecar, recorded=listed, file={"unreadable": "future"}))), (
        "it is listed, too"
    )
    init_alone = assigned("a", init(2), sets=[[2, 3]])
    assert not pod_writes(derive(inputs(init_alone, file={"unreadable": "future"}))), "nothing confirms it"


# What the owners of pods are told about.


def events(before: Inputs) -> list[tuple[str, str]]:
    return [(one.pod.name, one.reason) for one in pod_events(derive(before))]


def privileged(*containers: str, count: int = 1, **fields: Any) -> NeuronPod:
    return replace(pod("a", app(count), started=True, **fields), privileged=containers)


def test_a_privileged_container_with_a_part_of_the_node_has_an_event() -> None:
    (event,) = pod_events(derive(inputs(privileged("app"), recorded=[entry(A, "app", NEURON, 3)])))
    assert (event.pod, event.reason) == (ref("a"), "PrivilegedContainer")
    assert event.text == (
        "container app is privileged: it sees every Neuron device of the node, and only 3 of them are the pod's"
    )


@pytest.mark.parametrize(
    ("holder", "ids"),
    [
        (privileged("app", count=16), range(16)),
        (privileged("other"), [3]),
        (privileged(), [3]),
        (replace(privileged("app"), started=False), [3]),
        (privileged("app"), []),
    ],
)
def test_one_that_has_the_whole_node_or_no_device_or_has_not_started_has_none(
    holder: NeuronPod, ids: Sequence[int]
) -> None:
    assert events(inputs(holder, recorded=[entry(A, "app", NEURON, *ids)] if ids else [])) == []


def test_a_privileged_container_that_has_its_devices_by_a_claim_has_an_event() -> None:
    claims = (PodClaim("devices", "a-devices", (("app", ""),)),)
    holder = replace(pod("a", started=True), privileged=("app",), claims=claims)
    recorded = tuple(claim_allocations([A], "claim-uid", "a-devices", ["neuron-3"]))
    assert events(inputs(holder, recorded=recorded)) == [("a", "PrivilegedContainer")]
    of_another = replace(holder, privileged=("sidecar",))
    assert events(inputs(of_another, recorded=recorded)) == []


def test_p47_a_pod_without_an_assignment_whose_devices_are_not_linked_has_an_event() -> None:
    before = inputs(pod("a", app(4)), recorded=[entry(A, "app", NEURON, 0, 1, 5, 9)])
    assert events(before) == [("a", "UnlinkedDevices")]
    (event,) = pod_events(derive(before))
    assert event.text.startswith("aws.amazon.com/neuron ids 0, 1, 5, 9 of container app are not linked: ")


def test_p47_linked_devices_and_devices_that_were_assigned_so_have_none() -> None:
    assert events(inputs(pod("a", app(4)), recorded=[entry(A, "app", NEURON, 0, 1, 2, 3)])) == []
    so = assigned("a", app(4), sets=[[0, 1, 5, 9]])
    assert events(inputs(so, recorded=[entry(A, "app", NEURON, 0, 1, 5, 9)])) == []
    other = assigned("a", app(4), sets=[[0, 1, 2, 3]])
    got_another = inputs(other, recorded=[entry(A, "app", NEURON, 0, 1, 5, 9)])
    assert events(got_another) == [("a", "UnlinkedDevices")]


def constrained(**texts: str) -> NeuronPod:
    keys = {f"neuron-plugin.io/{key.replace('_', '-')}": text for key, text in texts.items()}
    cores = [app(1, CORE, name) for name in ("load", "serve")]
    return pod("a", *cores, annotations=keys)


def with_cores(made: NeuronPod, *cores: int) -> Inputs:
    recorded = [entry(A, name, CORE, core) for name, core in zip(("load", "serve"), cores, strict=False)]
    return inputs(made, recorded=recorded, node=inventory(device_name="Trainium1"))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            constrained(device_name="Trn2"),
            "neuron-plugin.io/device-name is trn2, and the devices of this node are trainium1 or trn1",
        ),
        (
            constrained(deny_devices="2"),
            "device 2 is not among those that neuron-plugin.io/allow-devices and neuron-plugin.io/deny-devices leave",
        ),
        (
            constrained(same_device="load,serve"),
            "neuron-plugin.io/same-device names containers load, serve, and they have devices 0,2",
        ),
    ],
)
def test_a_constraint_that_does_not_hold_without_the_extender_has_an_event(made: NeuronPod, text: str) -> None:
    (event,) = pod_events(derive(with_cores(made, 0, 4)))
    assert (event.reason, event.text) == ("ConstraintNotKept", text)


def test_constraints_that_hold_and_preferences_that_do_not_have_no_event() -> None:
    kept = constrained(device_name="trn1", allow_devices="0", same_device="load,serve", prefer_devices="7")
    assert events(with_cores(kept, 0, 1)) == []
    assert events(with_cores(constrained(device_name="trn2"))) == []


def test_a_constraint_that_cannot_be_read_has_an_event_and_its_pod_is_served() -> None:
    before = with_cores(constrained(allow_devices="x"), 0, 1)
    assert events(before) == [("a", "InvalidNeuronConstraint")]
    assert derive(before).ledger.mask_of(A) == 0b11


def test_a_request_that_cannot_be_served_has_an_event() -> None:
    both = pod("a", replace(app(1), limits={NEURON.value: "1", CORE.value: "1"}))
    assert events(inputs(both)) == [("a", "InvalidNeuronRequest")]


def test_the_unhealthy_devices_of_each_pod_are_known_with_their_reasons() -> None:
    node = inventory(unhealthy={1: "sick", 5: "sick", 9: MISSING})
    recorded = [entry(A, "app", NEURON, 0, 1), entry(B, "app", CORE, 18), entry(uid_of("unseen"), "app", NEURON, 5)]
    snapshot = derive(inputs(pod("a", app(2)), pod("b", app(1, CORE)), node=node, recorded=recorded))
    assert snapshot.unhealthy_devices == {ref("a"): {1: "sick"}, ref("b"): {9: MISSING}}


def test_what_is_disabled_or_held_down_is_no_unhealthy_device_of_its_pod() -> None:
    before = inputs(pod("a", app(1)), node=inventory(disabled=(1,)), recorded=[entry(A, "app", NEURON, 1)])
    assert not derive(before).unhealthy_devices


def test_a_pod_is_wrongly_labelled_until_its_label_says_what_its_devices_are() -> None:
    labelled = {UNHEALTHY_LABEL: "true"}
    pods = pod("a", app(1)), pod("b", app(1), labels=labelled), pod("c", app(1), labels=labelled), pod("d", app(1))
    recorded = [entry(uid_of(name), "app", NEURON, number) for number, name in enumerate("abcd")]
    snapshot = derive(inputs(*pods, node=inventory(unhealthy={0: "sick", 1: "sick"}), recorded=recorded))
    assert [one.reference.name for one in wrongly_labelled(snapshot)] == ["a", "c"]


def test_a_later_snapshot_has_the_same_event_again() -> None:
    before = inputs(pod("a", app(4)), recorded=[entry(A, "app", NEURON, 0, 1, 5, 9)])
    later = before.with_inventory(inventory(unhealthy={12: "sick"}))
    assert pod_events(derive(before)) == pod_events(derive(later))


# What is advertised.


def test_p57_what_is_in_use_as_cores_is_unhealthy_as_a_device_and_the_reverse() -> None:
    cores = derive(inputs(pod("a", app(1, CORE)), recorded=[entry(A, "app", CORE, 3)]))
    assert reasons(cores, NEURON) == reasons(cores, DEVICE)
    assert reasons(cores, NEURON) == {"1": "in use by pod default/a as aws.amazon.com/neuroncore"}
    assert len(healthy(cores, CORE)) == 32
    device = derive(inputs(pod("a", app(1, DEVICE)), recorded=[entry(A, "app", DEVICE, 1)]))
    assert set(reasons(device, CORE)) == {"2", "3"}
    assert len(healthy(device, DEVICE)) == 16


def test_p57_it_is_healthy_again_when_its_pod_is_gone() -> None:
    before = inputs(recorded=[entry(A, "app", CORE, 3)], ended={A: True})
    assert len(healthy(derive(settled(before)), NEURON)) == 16


SICK = inventory(unhealthy={1: "sick"})


def has_a_sick_device(holder: NeuronPod | None = None, uid: PodUid = A, **fields: Any) -> Snapshot:
    pods = [holder] if holder else []
    return derive(inputs(*pods, recorded=[entry(uid, "app", NEURON, 1)], node=SICK, **fields))


def test_a_broken_device_stays_healthy_under_the_name_by_which_a_live_pod_has_it() -> None:
    """Else kube-scheduler counts it twice: allocatable lacks it, and the pod's request is taken off, too."""
    snapshot = has_a_sick_device(pod("a", app(1)))
    assert reasons(snapshot, NEURON) == {}
    assert reasons(snapshot, DEVICE) == {"1": "sick"}
    assert reasons(snapshot, CORE) == {"2": "sick", "3": "sick"}
    assert snapshot.published_inventory.unhealthy == {1: "sick"}, "everybody else is told the truth"


def test_of_a_broken_device_only_the_cores_that_a_pod_has_stay_healthy() -> None:
    snapshot = derive(inputs(pod("a", app(1, CORE)), recorded=[entry(A, "app", CORE, 2)], node=SICK))
    assert reasons(snapshot, CORE) == {"3": "sick"}
    assert reasons(snapshot, NEURON) == {"1": "sick"}


@pytest.mark.parametrize("holder", [pod("a", app(1), terminating=True), replace(pod("a", app(1)), ending=True)])
def test_a_broken_device_is_unhealthy_from_the_first_sign_of_its_pods_end_on(holder: NeuronPod) -> None:
    assert reasons(has_a_sick_device(holder), NEURON) == {"1": "sick"}


def test_a_broken_device_is_unhealthy_once_its_pod_is_doubted() -> None:
    assert reasons(has_a_sick_device(pod("a", app(1)), doubted=frozenset({A})), NEURON) == {"1": "sick"}
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    assert reasons(has_a_sick_device(mirror, STATIC_UID), NEURON) == {}
    assert reasons(has_a_sick_device(mirror, STATIC_UID, doubted=frozenset({STATIC_UID})), NEURON) == {"1": "sick"}


def test_a_broken_device_of_a_pod_that_no_api_server_shows_stays_healthy_while_the_kubelet_records_it() -> None:
    assert reasons(has_a_sick_device(uid=STATIC_UID), NEURON) == {}


def test_p71_a_broken_device_in_use_is_unhealthy_at_once_where_that_is_wanted() -> None:
    snapshot = has_a_sick_device(pod("a", app(1)))
    shown = snapshot.advertised(NEURON, unhealthy_in_use=True)
    assert {one.id: one.reason for one in shown if not one.healthy} == {"1": "sick"}


def test_a_doubt_ends_with_its_pod() -> None:
    before = inputs(recorded=[entry(A, "app", NEURON, 1)], node=SICK, ended={A: True}, doubted=frozenset({A, B}))
    assert settled(before).doubted == {B}


def test_a_disabled_device_is_unhealthy_under_every_name_and_not_chosen() -> None:
    snapshot = derive(inputs(node=inventory(disabled=(3,))))
    assert reasons(snapshot, NEURON) == reasons(snapshot, DEVICE) == {"3": DISABLED_REASON}
    assert reasons(snapshot, CORE) == {"6": DISABLED_REASON, "7": DISABLED_REASON}
    assert not snapshot.free_mask & devices(3)
    assert snapshot.published_inventory == snapshot.inventory


def test_who_has_a_disabled_device_keeps_it_and_its_status_shows_no_fault() -> None:
    """Its id stays healthy, for the scheduler subtracts what is in use from what is healthy."""
    node = inventory(disabled=(3,))
    snapshot = derive(inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)], node=node))
    assert reasons(snapshot, NEURON) == {}
    assert reasons(snapshot, DEVICE) == {"3": "in use by pod default/a as aws.amazon.com/neuron"}
    core = derive(inputs(pod("a", app(1, CORE)), recorded=[entry(A, "app", CORE, 6)], node=node))
    assert reasons(core, CORE) == {"7": DISABLED_REASON}
    ending = derive(inputs(pod("a", app(1), terminating=True), recorded=[entry(A, "app", NEURON, 3)], node=node))
    assert reasons(ending, NEURON) == {"3": DISABLED_REASON}, "before the kubelet counts it as free"
    assert not pod_events(core)


def test_a_device_that_fails_while_it_is_disabled_is_unhealthy() -> None:
    assert reasons(derive(inputs(node=inventory(disabled=(3,), unhealthy={3: "sick"})))) == {"3": "sick"}


def test_p20_a_missing_device_is_listed_as_unhealthy() -> None:
    node = inventory(present=tuple(range(15)), unhealthy={15: MISSING})
    assert reasons(derive(inputs(node=node))) == {"15": MISSING}


def test_an_id_that_no_device_has_is_not_offered() -> None:
    """The ids of an instance type that is not known may have gaps."""
    offered = derive(inputs(node=inventory(present=(0, 2)))).advertised
    assert [one.id for one in offered(NEURON)] == ["0", "2"]
    assert [one.id for one in offered(CORE)] == ["0", "1", "4", "5"]


def test_p46_ids_that_the_kubelet_has_on_its_account_stay_healthy_whatever_was_given_for_them() -> None:
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "app", NEURON, 3, given=[0])]
    snapshot = derive(inputs(pod("a", init(4), app(1)), recorded=recorded))
    assert len(healthy(snapshot, NEURON)) == 16
    assert set(reasons(snapshot, DEVICE)) == {"0", "1", "2", "3"}


def test_a_device_says_that_the_kubelet_has_not_recorded_its_pod_yet() -> None:
    snapshot = derive(inputs(pending=(answer(3, resource=CORE),)))
    assert reasons(snapshot) == {
        "1": "in use by a pod that the kubelet has not recorded yet as aws.amazon.com/neuroncore"
    }
    assert named(PodReference(PodUid(f"{PENDING}x"), "", "")) == "a pod that the kubelet has not recorded yet"


def test_p21_no_topology_by_default() -> None:
    assert {one.numa_nodes for one in derive(inputs()).advertised(NEURON)} == {()}


@pytest.mark.parametrize(("resource", "ids"), [(NEURON, ("0", "1", "2", "3")), (CORE, ("0", "2", "5", "6"))])
def test_p21_hints_name_the_node_of_each_device_and_of_its_cores(resource: Resource, ids: Sequence[str]) -> None:
    found = {one.id: one.numa_nodes for one in derive(inputs(node=on(INF2))).advertised(resource, (-1, 0, 5))}
    assert [found[one] for one in ids] == [(), (0,), (5,), ()]


def on(geometry: Geometry) -> NodeInventory:
    return inventory(geometry)
