"""What follows from the inputs of one moment: which allocations are over, and what the others mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid, Resource
from neuron_plugin.plugin.inputs import (
    LISTED_SECONDS,
    UNSEEN_SECONDS,
    HoldDown,
    Inputs,
    NodePods,
    RecordedAllocation,
)
from neuron_plugin.plugin.settle import (
    ADMISSION_SECONDS,
    VANISHED_SECONDS,
    list_is_due,
    pods_of_kubelet_alone,
    pods_to_look_at,
    rewrite_is_due,
    settle,
    with_lost_records,
)
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.plugin.writes import pod_events, pod_writes
from neuron_plugin.topology import NO_CORES, Unit
from tests.plugin.world import (
    CORE,
    DEVICE,
    HOLD_DOWN_SECONDS,
    NEURON,
    STATIC_UID,
    TRN1,
    answer,
    app,
    assigned,
    assignment,
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
    uid_of,
)

A, B, C = uid_of("a"), uid_of("b"), uid_of("c")


def holders(snapshot: Snapshot) -> set[PodUid]:
    return set(snapshot.ledger.by_pod)


def forgotten(before: Inputs, uid: PodUid, *, rewritten: bool = True, now: float = 5.0) -> Inputs:
    """A later file without a pod's entries."""
    left = [one for key, one in before.recorded.entries.items() if key.uid != uid]
    return replace(before, recorded=before.recorded.with_file(left, now, rewritten_at=now if rewritten else None))


# When an allocation is over. Rule 1: UIDs that the API server made.


def test_an_allocation_of_a_live_pod_counts() -> None:
    before = inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)], listed_at=5.0)
    assert settled(before) == replace(before, now=10.0)
    assert derive(before).ledger.mask_of(A) == devices(3)


def test_a_pod_that_was_seen_to_end_is_over_at_once_where_its_processes_are_gone() -> None:
    after = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: True}))
    assert not after.recorded.entries
    assert not after.hold_downs


def test_a_pod_whose_containers_have_stopped_is_free_though_cgroups_cannot_be_seen() -> None:
    after = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: True}), a=None)
    assert not after.hold_downs


def test_a_pod_that_a_later_consistent_list_lacks_is_over() -> None:
    recorded = [entry(A, "app", NEURON, 3)]
    assert holders(derive(settled(inputs(recorded=recorded)))) == {A}
    assert holders(derive(settled(inputs(recorded=recorded, listed_at=0.0)))) == {A}
    assert not settled(inputs(recorded=recorded, listed_at=0.1)).recorded.entries


def test_while_the_api_server_says_that_a_pod_lives_it_counts_though_the_kubelet_forgot_it() -> None:
    before = inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)], listed_at=9.0)
    after = settled(forgotten(before, A))
    assert holders(derive(after)) == {A}


def test_while_the_api_server_says_that_a_pod_lives_it_counts_though_its_end_was_seen_before() -> None:
    after = settled(inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)], ended={A: True}))
    assert holders(derive(after)) == {A}


def test_an_api_server_that_is_away_ends_nothing() -> None:
    after = settled(forgotten(inputs(recorded=[entry(A, "app", NEURON, 3)]), A))
    assert holders(derive(after)) == {A}


# Rule 2: UIDs of which only the kubelet knows.


def test_a_static_pod_counts_though_no_list_shows_it() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)], listed_at=9.0)
    assert holders(derive(settled(before))) == {STATIC_UID}


def test_a_static_pod_counts_though_its_mirror_was_deleted() -> None:
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    recorded = [entry(STATIC_UID, "app", NEURON, 3)]
    with_mirror = derive(settled(inputs(mirror, recorded=recorded)))
    assert holders(with_mirror) == {mirror.uid}
    deleted = inputs(recorded=recorded, listed_at=9.0, ended={mirror.uid: False})
    assert holders(derive(settled(deleted))) == {STATIC_UID}


def test_a_static_pod_is_over_when_a_rewritten_file_no_longer_has_it() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)])
    assert holders(derive(settled(forgotten(before, STATIC_UID, rewritten=False)))) == {STATIC_UID}
    assert not settled(forgotten(before, STATIC_UID)).recorded.entries


def test_an_entry_that_a_file_has_lost_is_a_reason_for_a_rewrite_only_where_the_kubelet_alone_knows() -> None:
    static = inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)])
    assert not rewrite_is_due(static, 10.0)
    assert rewrite_is_due(forgotten(static, STATIC_UID, rewritten=False), 10.0)
    assert not rewrite_is_due(forgotten(static, STATIC_UID), 10.0)
    known = inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)])
    assert not rewrite_is_due(forgotten(known, A, rewritten=False), 10.0)


def test_a_static_pod_of_which_one_container_is_left_in_the_file_has_not_ended() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "a", NEURON, 3), entry(STATIC_UID, "b", NEURON, 4)])
    less = before.recorded.with_file([entry(STATIC_UID, "b", NEURON, 4)], 5.0, rewritten_at=5.0)
    after = settled(replace(before, recorded=less))
    assert derive(after).ledger.mask_of(STATIC_UID) == devices(3, 4)


def test_a_static_pod_that_comes_back_under_its_uid_has_what_the_file_shows_now() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)])
    back = before.recorded.with_file([entry(STATIC_UID, "app", NEURON, 5)], 5.0)
    assert derive(settled(replace(before, recorded=back))).ledger.mask_of(STATIC_UID) == devices(5)


def test_without_an_api_server_the_file_says_of_every_pod_when_it_is_over() -> None:
    before = inputs(recorded=[entry(A, "app", NEURON, 3)], cluster=False)
    assert pods_of_kubelet_alone(before) == {A}
    assert holders(derive(settled(before))) == {A}
    assert not settled(forgotten(before, A)).recorded.entries


# Rule 3: answers that the file has not shown.


def test_an_answer_counts_before_the_file_shows_it() -> None:
    snapshot = derive(settled(inputs(pending=(answer(3),))))
    assert snapshot.ledger.used_mask == devices(3)
    assert "3" not in healthy(snapshot, DEVICE)


def test_an_answer_that_the_file_shows_counts_once_and_for_its_pod() -> None:
    shown = entry(A, "app", NEURON, 3)
    assert shown.reply
    after = settled(inputs(recorded=[shown], pending=(replace(answer(3), reply=shown.reply),)))
    assert not after.pending
    assert holders(derive(after)) == {A}


def test_equal_ids_alone_do_not_make_an_entry_that_of_an_answer() -> None:
    after = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], pending=(answer(3, reply_id="other"),)))
    assert len(after.pending) == 1


def test_an_answer_that_a_file_lacks_which_was_rewritten_a_second_later_was_never_recorded() -> None:
    def pending(rewritten_at: float) -> int:
        return len(settled(inputs(pending=(answer(3, at=5.0),), file={"rewritten_at": rewritten_at})).pending)

    assert [pending(at) for at in (4.0, 5.0, 5.0 + UNSEEN_SECONDS - 0.01, 5.0 + UNSEEN_SECONDS)] == [1, 1, 1, 0]


def test_an_answer_that_is_not_recorded_within_a_second_is_a_reason_for_a_rewrite() -> None:
    before = inputs(pending=(answer(3, at=5.0),))
    assert not rewrite_is_due(before, 5.9)
    assert rewrite_is_due(before, 5.0 + UNSEEN_SECONDS)


# While the checkpoint cannot be read.


def test_an_unreadable_checkpoint_ends_nothing_and_is_no_reason_for_a_rewrite() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)], pending=(answer(4),), file={"unreadable": "future"})
    assert settled(before, now=99.0) == replace(before, now=99.0)
    assert not rewrite_is_due(before, 99.0)


def test_an_answer_that_pod_resources_does_not_list_is_kept_for_the_time_of_an_admission() -> None:
    def pending(read_at: float, *pods: NeuronPod) -> int:
        file = {"unreadable": "future", "read_at": read_at}
        return len(settled(inputs(*pods, pending=(answer(3),), file=file)).pending)

    assert pending(LISTED_SECONDS - 1) == 1
    assert pending(LISTED_SECONDS) == 0
    may_be_its = pod("a", init(1), app(1, CORE))
    assert pending(LISTED_SECONDS, may_be_its) == 1
    assert pending(LISTED_SECONDS, pod("a", app(1))) == 0
    assert pending(LISTED_SECONDS, pod("a", init(2), app(1, CORE))) == 0


# Hold-downs.


def force_deleted(**fields: Any) -> Inputs:
    return inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: False}, **fields)


def test_p60_what_a_force_deleted_pod_had_is_held_down_for_a_while_though_no_process_is_seen_yet() -> None:
    (held,) = settled(force_deleted(), now=10.0).hold_downs
    assert (held.uid, held.mask, held.not_before) == (A, devices(3), 10.0 + VANISHED_SECONDS)


def test_p60_it_is_held_down_for_as_long_as_a_process_of_the_pod_lives_and_no_longer() -> None:
    held = settled(force_deleted(), now=10.0, a=True)
    assert settled(held, now=5000.0, a=True).hold_downs
    assert settled(held, now=10.0 + VANISHED_SECONDS - 0.1, a=False).hold_downs
    assert not settled(held, now=10.0 + VANISHED_SECONDS, a=False).hold_downs


def test_p60_what_a_pod_had_that_stopped_is_free_at_once_when_its_sandbox_is_gone() -> None:
    held = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: True}), now=10.0, a=True)
    assert held.hold_downs
    assert not settled(held, now=10.1, a=False).hold_downs


def test_p60_where_cgroups_cannot_be_seen_time_decides_and_the_kubelet_sees_it() -> None:
    held = settled(force_deleted(), now=10.0, a=None)
    assert replace(held, now=10.0 + ADMISSION_SECONDS).advertised_hold_downs == held.hold_downs
    assert settled(held, now=10.0 + HOLD_DOWN_SECONDS - 0.1, a=None).hold_downs
    assert not settled(held, now=10.0 + HOLD_DOWN_SECONDS, a=None).hold_downs


def lasting(before: Inputs, *, a: bool) -> Inputs:
    """The inputs when the hold-downs have lasted for so long that the kubelet is shown them."""
    return settled(settled(before, now=10.0, a=a), now=10.0 + ADMISSION_SECONDS, a=a)


def test_p60_held_down_cores_are_unhealthy_under_every_name_and_not_chosen() -> None:
    snapshot = derive(lasting(force_deleted(), a=True))
    assert not any("3" in healthy(snapshot, resource) for resource in (NEURON, DEVICE))
    assert not {"6", "7"} & healthy(snapshot, CORE)
    assert not snapshot.free_mask & devices(3)
    assert set(reasons(snapshot)) == {"3"}
    assert snapshot.published_inventory.unhealthy == reasons_by_number(snapshot)
    assert snapshot.published_inventory.held_down == (3,)


def test_a_broken_device_is_not_published_as_held_down() -> None:
    before = lasting(force_deleted(), a=True)
    sick = replace(before, inventory=replace(before.inventory, unhealthy={3: "ECC"}))
    published = derive(sick).published_inventory
    assert (published.unhealthy, published.held_down) == ({3: "ECC"}, ())
    assert reasons(derive(sick)) == {"3": "ECC"}


def reasons_by_number(snapshot: Snapshot) -> dict[int, str]:
    return {int(number): reason for number, reason in reasons(snapshot).items()}


def test_p60_a_stopped_pods_sandbox_holds_its_cores_down_unseen_by_the_kubelet() -> None:
    held = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: True}), now=10.0, a=True)
    soon = derive(replace(held, now=11.0))
    assert not soon.free_mask & devices(3)
    assert "3" in healthy(soon, NEURON)
    assert not soon.published_inventory.unhealthy
    later = derive(replace(held, now=10.0 + ADMISSION_SECONDS))
    assert "3" not in healthy(later, NEURON)


def test_p60_what_the_kubelet_gave_out_meanwhile_keeps_its_health_under_that_name() -> None:
    before = inputs(
        pod("b", app(1)), recorded=[entry(A, "app", NEURON, 3), entry(B, "app", NEURON, 3)], ended={A: False}
    )
    snapshot = derive(lasting(before, a=True))
    assert "3" in healthy(snapshot, NEURON)
    assert reasons(snapshot, DEVICE) == {"3": "in use by pod default/b as aws.amazon.com/neuron"}
    assert not snapshot.published_inventory.unhealthy


def test_p60_an_ended_pods_entry_that_the_file_still_shows_starts_no_second_hold_down() -> None:
    held = settled(force_deleted(), now=10.0, a=True)
    shown_again = replace(held, recorded=held.recorded.with_file([entry(A, "app", NEURON, 3)], 12.0))
    after = settled(shown_again, now=12.0, a=True)
    assert after.hold_downs == held.hold_downs
    free = settled(after, now=20.0, a=False)
    again = replace(free, recorded=free.recorded.with_file([entry(A, "app", NEURON, 3)], 21.0))
    assert not settled(again, now=21.0).hold_downs
    assert not derive(settled(again, now=21.0)).ledger.used_mask


def test_an_entry_that_a_list_has_ended_counts_no_more_though_the_file_is_written_again() -> None:
    over = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], listed_at=5.0))
    again = replace(over, recorded=over.recorded.with_file([entry(A, "app", NEURON, 3)], 9.0))
    assert not derive(settled(again)).ledger.used_mask


def test_a_static_pod_that_the_kubelet_forgot_is_held_down_while_its_processes_live() -> None:
    before = forgotten(inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)]), STATIC_UID)
    held = settled(before, populated={STATIC_UID: True})
    assert [one.mask for one in held.published_hold_downs] == [devices(3)]
    assert not settled(held, now=20.0).hold_downs


@pytest.mark.parametrize("alive", [True, False, None], ids=["alive", "no process", "not to be seen"])
def test_what_a_vanished_pod_had_is_published_at_once_and_delays_admissions_before_it_rejects_one(
    alive: bool | None,  # noqa: FBT001 - a table
) -> None:
    """The cluster chooses it no more, and a pod that is bound to it already waits."""
    before = inputs(recorded=[entry(A, "app", NEURON, 3)], listed_at=9.9)
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
    before = replace(inputs(recorded=[entry(A, "app", NEURON, 3)]), pods=gone)
    held = settled(before, a=False)
    over = derive(settled(held, now=10.0 + VANISHED_SECONDS, a=False)).published_inventory
    assert (over.held_down, over.vanished_pods) == ((), (A,))
    unsettled = replace(inputs(pending=(answer(3, pod=ref("a"), container="app"),)), pods=gone)
    assert derive(settled(unsettled, now=0.5)).published_inventory.vanished_pods == ()


def test_a_pod_that_stopped_is_not_published_as_vanished() -> None:
    held = settled(inputs(recorded=[entry(A, "app", NEURON, 3)], ended={A: True}), now=10.0, a=True)
    assert derive(held).published_inventory == held.inventory


def test_a_static_pod_that_the_kubelet_forgot_before_it_started_holds_admissions_for_a_moment() -> None:
    held = settled(forgotten(inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)]), STATIC_UID))
    assert held.hold_downs
    assert not held.advertised_hold_downs
    assert not settled(held, now=10.0 + VANISHED_SECONDS).hold_downs


def test_the_api_server_is_asked_about_a_recorded_pod_that_it_has_never_shown() -> None:
    recorded = [entry(A, "app", NEURON, 3, seen_at=0.0)]
    assert not list_is_due(inputs(recorded=recorded), 1.0)
    assert list_is_due(inputs(recorded=recorded), 2.0)
    assert not list_is_due(inputs(pod("a", app(1)), recorded=recorded), 9.0)
    assert not list_is_due(inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)]), 9.0)


def test_the_cgroup_of_a_static_pod_is_looked_up_by_the_kubelets_uid_and_not_its_mirrors() -> None:
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    before = forgotten(inputs(mirror, recorded=[entry(STATIC_UID, "app", NEURON, 3)]), STATIC_UID)
    held = settled(before, populated={STATIC_UID: True})
    assert pods_to_look_at(held) == {STATIC_UID}
    assert settled(held, now=99.0, populated={STATIC_UID: True}).hold_downs
    assert [str(one.pod) for one in held.hold_downs] == ["default/static"]


def test_what_a_static_pod_had_before_it_came_back_is_free_when_no_process_of_it_lives() -> None:
    before = forgotten(inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)]), STATIC_UID)
    held = settled(before, now=10.0, populated={STATIC_UID: True})
    back = replace(held, recorded=held.recorded.with_file([entry(STATIC_UID, "app", NEURON, 5)], 12.0))
    assert not settled(back, now=10.0 + VANISHED_SECONDS).hold_downs


def test_a_static_pod_that_comes_back_does_not_hold_down_for_ever_what_it_had_before() -> None:
    before = forgotten(inputs(recorded=[entry(STATIC_UID, "app", NEURON, 3)]), STATIC_UID)
    held = settled(before, now=10.0, populated={STATIC_UID: True})
    back = replace(held, recorded=held.recorded.with_file([entry(STATIC_UID, "app", NEURON, 5)], 12.0))
    assert settled(back, now=12.0, populated={STATIC_UID: True}).hold_downs
    assert not settled(back, now=10.0 + HOLD_DOWN_SECONDS, populated={STATIC_UID: True}).hold_downs


def test_all_containers_of_a_pod_are_held_down_together() -> None:
    recorded = [entry(A, "a", NEURON, 3), entry(A, "b", CORE, 8, 9), entry(B, "app", NEURON, 6)]
    after = settled(inputs(pod("b", app(1)), recorded=recorded, ended={A: False}), a=True)
    assert [one.mask for one in after.hold_downs] == [devices(3, 4)]


def lost_answers(*ids: int) -> Inputs:
    """Answers for containers of pod a which the kubelet never recorded."""
    pending = (answer(one, at=5.0, reply_id=str(one), pod=ref("a"), container=f"c{one}") for one in ids)
    return inputs(pending=tuple(pending), file={"rewritten_at": 9.0})


def test_all_that_was_given_to_a_pod_and_never_recorded_is_held_down_together() -> None:
    assert [one.mask for one in settled(lost_answers(3, 4), a=True).hold_downs] == [devices(3, 4)]


def test_whether_a_pod_that_was_never_recorded_has_a_process_is_looked_at() -> None:
    before = lost_answers(3)
    assert pods_to_look_at(before) == {A}
    after = 10.0 + VANISHED_SECONDS
    assert settled(settled(before, a=True), now=after, a=True).hold_downs
    assert not settled(settled(before, a=False), now=after, a=False).hold_downs
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    lost = replace(lost_answers(3).pending[0], pod=mirror.reference)
    assert pods_to_look_at(inputs(mirror, pending=(lost,), file={"rewritten_at": 9.0})) == {STATIC_UID}


def test_two_ended_pods_are_held_down_and_free_one_by_one() -> None:
    recorded = [entry(A, "app", NEURON, 3), entry(B, "app", NEURON, 6)]
    held = settled(inputs(recorded=recorded, ended={A: False, B: False}), a=True, b=True)
    assert [one.mask for one in settled(held, now=20.0, b=True).hold_downs] == [devices(6)]


def unknown(uid: PodUid) -> HoldDown:
    return HoldDown(uid, PodReference(uid, "", ""), devices(3), 0.0, 0.0, 0.0, 0.0, 999.0, "why", unknown=True)


def test_p60_an_unknown_pod_is_no_longer_held_down_when_the_api_server_or_the_file_names_it() -> None:
    assert settled(inputs(hold_downs=(unknown(A),)), a=True).hold_downs
    assert not settled(inputs(pod("a"), hold_downs=(unknown(A),)), a=True).hold_downs
    assert settled(inputs(pod("a", app(1)), hold_downs=(unknown(A),)), a=True).hold_downs, "what it has is not known"
    named_by_file = inputs(recorded=[entry(A, "app", NEURON, 3)], hold_downs=(unknown(A),))
    assert not settled(named_by_file, a=True).hold_downs
    assert not settled(inputs(hold_downs=(unknown(A),)), a=False).hold_downs


def test_nothing_is_looked_at_while_every_pod_lives() -> None:
    assert not pods_to_look_at(inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 3)]))


# What counts.


def test_a_live_pod_of_which_the_kubelet_has_lost_its_record_counts_by_its_annotation() -> None:
    running = assigned("a", app(2), sets=[[2, 3]], started=True)
    snapshot = derive(with_lost_records(inputs(running)))
    assert snapshot.ledger.mask_of(A) == devices(2, 3)
    assert not snapshot.waiting
    waiting_pod = assigned("a", app(2), sets=[[2, 3]])
    assert derive(with_lost_records(inputs(waiting_pod))).ledger.used_mask == NO_CORES


def test_a_container_without_a_record_counts_by_its_annotation_beside_one_that_has_one() -> None:
    both = assigned("a", app(1, name="x"), app(1, name="y"), sets=[[2], [3]], started=True)
    snapshot = derive(with_lost_records(inputs(both, recorded=[entry(A, "x", NEURON, 7)])))
    assert snapshot.ledger.mask_of(A) == devices(3, 7)


def test_a_container_whose_answer_is_not_recorded_yet_counts_by_it_and_not_by_its_annotation() -> None:
    running = assigned("a", app(1), sets=[[2]], started=True)
    swapped_away = answer(5, pod=ref("a"), container="app")
    known = with_lost_records(inputs(running, pending=(swapped_away,)))
    assert derive(known).ledger.used_mask == devices(5)


def test_a_pod_that_runs_waits_for_nothing_when_its_answer_turns_out_never_to_be_recorded() -> None:
    running = assigned("a", app(1), sets=[[2]], started=True)
    lost = answer(2, at=5.0, pod=ref("a"), container="app")
    after = settled(with_lost_records(inputs(running, pending=(lost,), file={"rewritten_at": 9.0})), a=True)
    assert not after.pending
    assert not derive(after).waiting


def test_a_pod_without_a_record_is_held_down_when_it_has_ended() -> None:
    running = assigned("a", app(1), sets=[[2]], started=True)
    known = with_lost_records(inputs(running))
    after = settled(replace(known, pods=known.pods.without(A)), now=10.0, a=True)
    assert not after.recorded.entries
    assert [one.mask for one in after.hold_downs] == [devices(2)]


def test_a_static_pod_without_a_record_counts_as_long_as_its_mirror_is_shown() -> None:
    key = {"kubernetes.io/config.hash": STATIC_UID}
    mirror = pod("static", app(1), annotations={**assignment(TRN1, [app(1)], [[2]]), **key}, started=True)
    known = with_lost_records(inputs(mirror))
    rewritten = replace(known, recorded=known.recorded.with_file([], 5.0, rewritten_at=4.0))
    assert not rewrite_is_due(known, 9.0)
    assert settled(rewritten).recorded.entries
    assert rewrite_is_due(replace(known, pods=known.pods.without(mirror.uid)), 9.0)
    gone = settled(replace(rewritten, pods=rewritten.pods.without(mirror.uid)), populated={STATIC_UID: True})
    assert [one.mask for one in gone.hold_downs] == [devices(2)]


def test_the_record_counts_and_not_the_annotation_where_both_are_there() -> None:
    running = assigned("a", app(1), sets=[[2]], started=True)
    both = with_lost_records(inputs(running, recorded=[entry(A, "app", NEURON, 5)]))
    assert derive(both).ledger.used_mask == devices(5)


def test_an_annotation_that_cannot_be_followed_counts_for_nothing() -> None:
    for found in ({"NEURON_DEVS": "x"}, {"NEURON_DEVS": "77"}, {}):
        running = pod("a", app(1), annotations=found, started=True)
        assert derive(with_lost_records(inputs(running))).ledger.used_mask == NO_CORES


def test_p46_what_was_given_counts_and_the_kubelets_ids_are_remembered() -> None:
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "app", NEURON, 3, given=[0])]
    snapshot = derive(inputs(pod("a", init(4), app(1)), recorded=recorded))
    assert [one.mask for one in snapshot.ledger.of(A)] == [devices(0, 1, 2, 3), devices(0)]
    assert snapshot.ledger.used_mask == devices(0, 1, 2, 3)


def test_an_init_container_and_the_one_that_re_uses_its_set_count_once() -> None:
    recorded = [entry(A, "init", NEURON, 0, 1, 2, 3), entry(A, "app", NEURON, 0, 1, 2, 3)]
    snapshot = derive(inputs(pod("a", init(4), app(4)), recorded=recorded))
    assert snapshot.ledger.mask_of(A).bit_count() == 8


def test_entries_of_another_plugin_under_our_names_count() -> None:
    snapshot = derive(inputs(recorded=[entry(A, "app", DEVICE, 3, ours=False)]))
    assert snapshot.ledger.used_mask == devices(3)
    assert reasons(snapshot, NEURON) == {"3": f"in use by the pod with UID {A} as aws.amazon.com/neurondevice"}


def test_p28_after_a_change_of_lnc_what_is_in_use_counts_as_whole_devices() -> None:
    halved = inventory(replace(TRN1, cores_per_device=1), logical_core_size=2)
    before = inputs(pod("a", app(1, CORE)), recorded=[entry(A, "app", CORE, 3, node=inventory())])
    snapshot = derive(before.with_inventory(halved))
    assert halved.geometry.ids_of(Unit.DEVICE, snapshot.ledger.used_mask) == (1,)
    assert "1" not in healthy(snapshot, NEURON)


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


@given(data=st.data())
def test_settling_never_forgets_a_core_of_a_live_pod(data: st.DataObject) -> None:
    made = replace(data.draw(some_inputs()), now=data.draw(st.floats(0, 100)))
    alive = data.draw(st.sampled_from([True, False, None]))
    after = settle(made, dict.fromkeys(pods_to_look_at(made), alive), HOLD_DOWN_SECONDS)
    for key, one in made.recorded.entries.items():
        if key.uid in made.pods.pods:
            assert after.recorded.entries[key] == one
    assert settle(after, dict.fromkeys(pods_to_look_at(after), alive), HOLD_DOWN_SECONDS) == after
    if alive:  # whatever ended is held down, so that no core of a process is offered
        assert derive(made).ledger.used_mask & ~derive(after).ledger.used_mask & ~after.held_down_mask == NO_CORES


@st.composite
def some_inputs(draw: st.DrawFn) -> Inputs:
    """Few pods on few devices, in any state."""
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    device = st.integers(0, 5)
    pods: list[NeuronPod] = []
    recorded: list[RecordedAllocation] = []
    ended: dict[PodUid, bool] = {}
    for name in names:
        where = draw(device)
        if draw(st.booleans()):
            pods.append(draw(st.sampled_from([pod(name, app(1)), assigned(name, app(1), sets=[[where]])])))
        elif draw(st.booleans()):
            ended[uid_of(name)] = draw(st.booleans())
        if draw(st.booleans()):
            recorded.append(entry(uid_of(name), "app", draw(st.sampled_from([NEURON, DEVICE])), draw(device)))
    if draw(st.booleans()):
        recorded.append(entry(STATIC_UID, "app", CORE, draw(device)))
    made = inputs(
        *pods,
        recorded=recorded,
        ended=ended,
        listed_at=draw(st.sampled_from([None, 0.0, 5.0])),
        cluster=bool(pods) or draw(st.booleans()),
    )
    for uid in draw(st.sets(st.sampled_from([STATIC_UID, A, B]))):
        made = forgotten(made, uid, rewritten=draw(st.booleans()))
    return made
