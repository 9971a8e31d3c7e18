"""The five inputs as values: how each takes in what a watcher has seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Allocation, PodUid, Resource
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.plugin.container import ALLOCATION_KEY, Reply, read_reply, reply_for
from neuron_plugin.plugin.inputs import (
    MOST_ENDED,
    MOST_VANISHED,
    HoldDown,
    NodePods,
    PendingAnswer,
    Recorded,
    given_mask,
    made_by_api_server,
    recorded_allocation,
)
from neuron_plugin.topology import CoreMask, Unit
from tests.plugin.world import (
    CORE,
    NEURON,
    STATIC_UID,
    TRN1,
    TRN2,
    app,
    assigned,
    devices,
    entry,
    inputs,
    inventory,
    pod,
    ref,
    uid_of,
)

A = uid_of("a")


def checkpoint_entry(
    *ids: str, resource: Resource = NEURON, annotation: str = "", paths: tuple[str, ...] = ()
) -> CheckpointEntry:
    return CheckpointEntry(A, "app", resource.value, frozenset(ids), {ALLOCATION_KEY: annotation}, paths)


# Replies.


@given(
    mask=st.integers(1, TRN2.all_mask), reply_id=st.text("0123456789abcdef", min_size=1), lnc=st.sampled_from([1, 2])
)
def test_a_reply_reads_back_as_it_was_written(mask: int, reply_id: str, lnc: int) -> None:
    node = inventory(TRN2, logical_core_size=lnc)
    reply = reply_for(node, reply_id, CoreMask(mask))
    assert read_reply(reply.annotation()) == reply
    assert given_mask(reply, node) == mask


@given(text=st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_any_other_text_is_no_reply_of_ours(text: str) -> None:
    assert read_reply(text) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 1},
        {"id": ["a"]},
        {"devices": "0,x"},
        {"cores": [0]},
        {"lnc": "one"},
        {"lnc": 1.5},
        {"lnc": float("inf")},
        {"devices": None},
    ],
)
def test_a_reply_with_a_field_of_another_type_is_none_of_ours(fields: dict[str, object]) -> None:
    text = json.dumps({"id": "a", "devices": "0", "cores": "0,1", "lnc": 1} | fields)
    assert read_reply(text) is None


def test_p28_after_a_change_of_lnc_a_reply_counts_as_its_whole_devices() -> None:
    reply = reply_for(inventory(TRN1), "a", TRN1.mask_of(Unit.CORE, (3,)))
    halved = inventory(replace(TRN1, cores_per_device=1), logical_core_size=2)
    assert given_mask(reply, halved) == halved.geometry.devices_mask((1,))


# Entries of the checkpoint.


def test_an_entry_gives_numbers_in_order_and_our_reply() -> None:
    reply = Reply("r", (4, 5), (8, 9, 10, 11), 1)
    found = recorded_allocation(checkpoint_entry("10", "9", annotation=reply.annotation()))
    assert (found.key.uid, found.key.container, found.key.resource) == (A, "app", NEURON)
    assert found.ids == (9, 10)
    assert found.reply == reply
    assert found.on(inventory(), ref("a")) == Allocation(
        ref("a"), "app", NEURON, TRN1.mask_of(Unit.CORE, (8, 9, 10, 11)), devices(9, 10)
    )


def test_ids_that_are_no_numbers_name_no_core_of_ours() -> None:
    assert recorded_allocation(checkpoint_entry("3", "x", "", "-1", "٣", "99999")).ids == (3,)


def test_an_entry_of_another_plugin_counts_by_its_ids() -> None:
    found = recorded_allocation(checkpoint_entry("2", "3", resource=CORE, paths=("/dev/neuron1",)))
    assert found.on(inventory(), ref("a")).mask == TRN1.mask_of(Unit.CORE, (2, 3))


def test_an_entry_of_another_plugin_counts_by_the_devices_of_its_reply_that_its_ids_do_not_explain() -> None:
    found = recorded_allocation(checkpoint_entry("0", "x", paths=("/dev/neuron0", "/dev/neuron7", "/dev/kvm")))
    assert found.on(inventory(), ref("a")).mask == devices(0, 7)


def test_ids_outside_the_geometry_count_for_nothing() -> None:
    found = recorded_allocation(checkpoint_entry("15", "16", "4000"))
    assert found.on(inventory(), ref("a")).mask == devices(15)


def test_an_answer_counts_for_a_pod_of_its_own_until_the_kubelet_names_it() -> None:
    node = inventory()
    one, other = (
        PendingAnswer(reply_for(node, reply_id, devices(number)), NEURON, (number,), 0.0).on(node)
        for number, reply_id in ((1, "a"), (2, "b"))
    )
    assert (one.mask, other.mask) == (devices(1), devices(2))
    assert one.pod != other.pod


# What the record has shown.


def test_an_entry_is_as_old_as_the_first_file_that_showed_it() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    second = first.with_file([entry(A, "app", NEURON, 1)], 9.0)
    assert [one.seen_at for one in second.entries.values()] == [5.0]
    assert second.read_at == 9.0


def test_a_new_entry_for_a_container_replaces_the_old_one() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    second = first.with_file([entry(A, "app", NEURON, 2)], 9.0)
    assert [(one.ids, one.seen_at) for one in second.entries.values()] == [((2,), 9.0)]


def test_what_the_file_has_shown_stays_though_a_later_file_lacks_it() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    (kept,) = first.with_file([], 9.0).entries.values()
    assert (kept.missing, kept.gone) == (True, False)


def test_it_is_gone_once_a_file_lacks_it_that_the_kubelet_was_asked_to_write_after_it_was_seen() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    (kept,) = first.with_file([], 9.0, rewritten_at=5.0).entries.values()
    assert not kept.gone
    gone = first.with_file([], 9.0, rewritten_at=8.0)
    assert [one.gone for one in gone.entries.values()] == [True]
    assert [one.gone for one in gone.with_file([], 10.0).entries.values()] == [True]


def test_an_entry_that_an_older_file_lacked_is_whole_again_when_it_is_back() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    back = first.with_file([], 9.0, rewritten_at=8.0).with_file([entry(A, "app", NEURON, 1)], 10.0)
    assert [(one.missing, one.gone, one.seen_at) for one in back.entries.values()] == [(False, False, 5.0)]


def test_an_allocation_that_is_over_stays_over_while_the_file_shows_it() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    over = first.without(list(first.entries)).with_file([entry(A, "app", NEURON, 1)], 9.0)
    assert not over.entries
    again = over.with_file([entry(A, "app", NEURON, 1, given=[2])], 10.0)
    assert [one.ids for one in again.entries.values()] == [(1,)]


def test_an_entry_of_another_plugin_that_has_other_ids_is_another_allocation() -> None:
    first = Recorded().with_file([entry(STATIC_UID, "app", NEURON, 1, ours=False)], 5.0)
    over = first.without(list(first.entries))
    back = over.with_file([entry(STATIC_UID, "app", NEURON, 2, ours=False)], 9.0)
    assert [one.ids for one in back.entries.values()] == [(2,)]


def test_p83_an_allocation_that_is_over_is_forgotten_with_the_file_that_showed_it() -> None:
    first = Recorded().with_file([entry(A, "app", NEURON, 1)], 5.0)
    assert not first.without(list(first.entries)).with_file([], 9.0).over
    missing = first.with_file([], 9.0)
    assert not missing.without(list(missing.entries)).over


# Pods.


def test_the_pods_that_ask_are_in_the_order_of_their_assignments() -> None:
    pods = inputs(
        assigned("late", app(1), sets=[[1]], time=9),
        assigned("early", app(1), sets=[[2]], time=3),
        pod("monitor"),
        pod("unassigned", app(1)),
    ).pods
    assert [one.reference.name for one in pods.asking] == ["unassigned", "early", "late"]
    assert len(pods.pods) == 4


def test_a_static_pod_is_found_by_the_uid_that_the_kubelet_knows() -> None:
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    assert inputs(mirror).pods.by_kubelet_uid == {STATIC_UID: mirror}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_p59_a_terminal_phase_is_an_end_and_its_containers_have_stopped(phase: str) -> None:
    pods = NodePods().with_pod(pod("a", app(1))).with_pod(pod("a", app(1), phase=phase))
    assert (pods.pods, pods.ended) == ({}, {A: True})
    assert pods.without(A, stopped=False).ended == {A: True}


def test_podgc_ends_a_pod_whose_containers_may_still_run() -> None:
    pods = NodePods().with_pod(pod("a", app(1), started=True, running=True))
    ended = pods.with_pod(pod("a", app(1), phase="Failed", started=True, running=True))
    assert ended.ended == {A: False}
    assert ended.without(A).ended == {A: False}


def test_a_rejection_that_leaves_out_the_containers_of_a_pod_that_ran_does_not_say_that_they_stopped() -> None:
    ran = NodePods().with_pod(pod("a", app(1), started=True, running=True))
    assert ran.with_pod(pod("a", app(1), phase="Failed")).ended == {A: False}
    assert NodePods().with_pod(pod("a", app(1), phase="Failed")).ended == {A: True}


def test_p66_a_pod_with_a_deletion_timestamp_has_not_ended() -> None:
    assert A in NodePods().with_pod(pod("a", app(1), terminating=True)).pods


def test_a_list_replaces_the_pods_and_says_when_it_began() -> None:
    before = NodePods().with_pod(pod("a", app(1)))
    after = before.with_list([pod("b", app(1)), pod("c", app(1), phase="Failed")], 7.0)
    assert (set(after.pods), after.ended, after.listed_at) == ({uid_of("b")}, {uid_of("c"): True}, 7.0)


def test_a_list_that_does_not_show_the_plugins_own_pod_ends_no_pod() -> None:
    before = NodePods(listed_at=3.0).with_pod(pod("a", app(1)))
    after = before.with_list([pod("b", app(1)), pod("c", app(1), phase="Failed")], None)
    assert (set(after.pods), after.ended, after.listed_at) == ({A, uid_of("b")}, {uid_of("c"): True}, 3.0)


def test_a_list_ends_a_pod_that_it_shows_as_ended_also_where_it_proves_nothing_else() -> None:
    ran = NodePods().with_pod(pod("a", app(1), started=True, running=True))
    ended = pod("a", app(1), phase="Failed", started=True, running=True)
    for began_at in (None, 7.0):
        after = ran.with_list([ended], began_at)
        assert (after.pods, after.ended) == ({}, {A: False}), "its containers may still run"


def test_a_list_forgets_no_end_that_was_seen_before() -> None:
    """The kubelet may record an allocation after the end of its pod was seen."""
    assert NodePods().without(A, stopped=True).with_list([], 7.0).ended == {A: True}


def test_what_an_ended_pod_shows_later_does_not_say_that_its_containers_have_stopped() -> None:
    ran = NodePods().with_pod(pod("a", app(1), started=True, running=True))
    ended = pod("a", app(1), phase="Failed")
    assert ran.with_pod(ended).with_pod(ended).ended == {A: False}


def test_p83_only_the_latest_ends_are_remembered() -> None:
    pods = NodePods()
    for number in range(MOST_ENDED + 5):
        pods = pods.without(PodUid(str(number)), stopped=True)
    assert list(pods.ended) == [str(number) for number in range(5, MOST_ENDED + 5)]


@pytest.mark.parametrize(
    ("uid", "expected"),
    [(A, True), (A.upper(), True), (STATIC_UID, False), ("default/a", False), ("", False), (f"{A}-x", False)],
)
def test_the_api_servers_uids_are_told_from_a_static_pods_hash(uid: str, expected: bool) -> None:  # noqa: FBT001 - a table
    assert made_by_api_server(PodUid(uid)) is expected


# Hardware.


def test_p28_with_other_core_ids_a_hold_down_keeps_whole_devices() -> None:
    held = HoldDown(A, ref("a"), TRN1.mask_of(Unit.CORE, (3,)), 0.0, 0.0, 0.0, 0.0, 9.0, "why")
    halved = inventory(replace(TRN1, cores_per_device=1), logical_core_size=2)
    before = inputs(hold_downs=(held,))
    assert before.held_down_mask == TRN1.mask_of(Unit.CORE, (3,))
    assert before.with_inventory(halved).held_down_mask == halved.geometry.devices_mask((1,))
    for same_ids in (inventory(unhealthy={4: "sick"}), inventory(replace(TRN1, instance_type=""))):
        assert before.with_inventory(same_ids).held_down_mask == TRN1.mask_of(Unit.CORE, (3,))


def test_a_hold_down_is_shown_to_the_cluster_and_to_the_kubelet_from_two_times_on() -> None:
    held = HoldDown(A, ref("a"), devices(3), 0.0, 0.0, 2.0, 5.0, 9.0, "why")
    assert inputs(hold_downs=(held,), now=1.0).published_hold_downs == ()
    assert inputs(hold_downs=(held,), now=2.0).published_hold_downs == (held,)
    assert inputs(hold_downs=(held,), now=4.0).advertised_hold_downs == ()
    assert inputs(hold_downs=(held,), now=5.0).advertised_hold_downs == (held,)


# Vanished pods.


def test_a_pod_that_goes_while_it_runs_has_vanished() -> None:
    runs, waits = pod("a", app(1), running=True, started=True), pod("b", app(1))
    pods = NodePods().with_pod(runs).with_pod(waits)
    assert pods.without(A).vanished == (A,)
    assert pods.without(uid_of("b")).vanished == ()


def test_a_pod_with_claims_that_goes_while_it_runs_has_vanished_too() -> None:
    claiming = replace(pod("a", running=True), claims=(PodClaim("dev", "c"),))
    assert NodePods().with_pod(claiming).without(A).vanished == (A,)


def test_a_pod_that_was_seen_to_stop_or_has_no_neuron_or_is_a_mirror_has_not_vanished() -> None:
    runs = pod("a", app(1), running=True, started=True)
    stopped = pod("a", app(1), phase="Succeeded", started=True)
    assert NodePods().with_pod(runs).with_pod(stopped).without(A).vanished == ()
    for other in (
        pod("a", running=True, started=True),
        pod("a", app(1), running=True, started=True, annotations={"kubernetes.io/config.hash": STATIC_UID}),
    ):
        assert NodePods().with_pod(other).without(A).vanished == ()


def test_the_latest_vanished_pods_are_remembered_through_a_list() -> None:
    pods = NodePods()
    for number in range(MOST_VANISHED + 1):
        pods = pods.with_pod(pod(f"p{number}", app(1), running=True)).without(uid_of(f"p{number}"))
    assert len(pods.vanished) == MOST_VANISHED
    assert pods.with_list([], 5.0).vanished == pods.with_list([], None).vanished == pods.vanished
    assert pods.vanished[-1] == uid_of(f"p{MOST_VANISHED}")
