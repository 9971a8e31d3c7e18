"""The five inputs as values: how each takes in what a watcher has seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Allocation, PodUid, Resource
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.plugin.container import ALLOCATION_KEY, Reply, read_reply, reply_for
from neuron_plugin.plugin.inputs import (
    MOST_ENDED,
    MOST_VANISHED,
    HoldDown,
    NodePods,
    Recorded,
    claim_allocations,
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
    pod_of,
    records,
    ref,
    uid_of,
)
from tests.support.stories import rows

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
        *({"id": 1}, {"id": ["a"]}, {"devices": "0,x"}, {"devices": None}, {"cores": [0]}),
        *({"lnc": "one"}, {"lnc": 1.5}, {"lnc": float("inf")}),
    ],
)
def test_a_reply_with_a_field_of_another_type_is_none_of_ours(fields: dict[str, object]) -> None:
    text = json.dumps({"id": "a", "devices": "0", "cores": "0,1", "lnc": 1} | fields)
    assert read_reply(text) is None


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


# What the record has shown.


RECORDS = rows("""
    an entry is as old as the first file that showed it: 5 a=1; 9 a=1 -> a=1@5
    a new entry for a container replaces the old one: 5 a=1; 9 a=2 -> a=2@9
    what the file has shown stays though a later file lacks it: 5 a=1; 9 - -> a=1@5 missing
    a file that was asked for when it was seen proves nothing: 5 a=1; 9 - asked 5 -> a=1@5 missing
    one that was asked for later shows that it is gone: 5 a=1; 9 - asked 8 -> a=1@5 gone
    and it stays gone: 5 a=1; 9 - asked 8; 10 - -> a=1@5 gone
    an entry that an older file lacked is whole again when it is back: 5 a=1; 9 - asked 8; 10 a=1 -> a=1@5
    an allocation that is over stays over while the file shows it: 5 a=1; over; 9 a=1 ->
    and another one counts: 5 a=1; over; 9 a=1; 10 a=1>2 -> a=1@10
    other ids of another plugin are another allocation: 5 theirs=1; over; 9 theirs=2 -> static=2@9
""")
"""What each file shows, and when; ``asked 8``: the kubelet had to write it at 8; ``over``: all allocations are."""


def after_files(steps: str) -> Recorded:
    made = Recorded()
    for step in steps.split("; "):
        if step == "over":
            made = made.without(list(made.entries))
            continue
        at, shown, *asked = step.split(" ")
        name, _, ids = shown.partition("=")
        entries = (
            records(shown.strip("-")) if name != "theirs" else [entry(STATIC_UID, "app", NEURON, int(ids), ours=False)]
        )
        made = made.with_file(entries, float(at), rewritten_at=float(asked[1]) if asked else None)
    return made


@pytest.mark.parametrize("steps", RECORDS)
def test_what_the_record_has_shown(steps: str) -> None:
    files, _, expected = steps.partition(" ->")
    names = {A: "a", STATIC_UID: "static"}
    said = [
        f"{names[key.uid]}={ranges(one.ids)}@{one.seen_at:g}" + (" gone" if one.gone else " missing" * one.missing)
        for key, one in after_files(files).entries.items()
    ]
    assert " ".join(said) == expected.strip()


def test_p83_an_allocation_that_is_over_is_forgotten_with_the_file_that_showed_it() -> None:
    for files in ("5 a=1; over; 9 -", "5 a=1; 9 -; over"):
        assert not after_files(files).over


def test_p83_a_claim_that_is_over_stays_over_while_the_file_shows_it_and_is_forgotten_with_that() -> None:
    listed = list(claim_allocations([A], "claim-uid", "a-devices", ["neuron-3"]))
    over = (made := Recorded().with_claims(listed, 5.0)).without(list(made.entries))
    assert not over.with_claims(listed, 9.0).entries
    assert over.with_claims(listed, 9.0).over
    assert not over.with_claims([], 9.0).over


PODS = rows("""
    p59 a terminal phase is an end, and its containers have stopped: a; a failed -> ended a
    p59 also after the pod is gone: a; a failed; gone a -> ended a
    podgc ends a pod whose containers may still run: a running; a running failed -> ended a! vanished a
    also after it is gone: a running; a running failed; gone a -> ended a! vanished a
    a rejection of a pod that ran does not say that it has stopped: a running; a failed -> ended a! vanished a
    also if it is shown again: a running; a failed; a failed -> ended a! vanished a
    a rejection of a pod that did not run: a failed -> ended a
    p66 a pod with a deletion timestamp has not ended: a terminating -> a
    a list replaces the pods and says when it began: a; list 7 b, c failed -> b ended c a! at 7
    a list that does not show the plugin's own pod ends no pod: list 3; a; list - b, c failed -> a b ended c at 3
    but the one that it shows as ended: a running; list - a running failed -> ended a! vanished a
    a list ends a pod that it shows as ended: a running; list 7 a running failed -> ended a! vanished a at 7
    # The kubelet may record an allocation after the end of its pod was seen.
    a list forgets no end that was seen before: stopped a; list 7 -> ended a at 7
    a pod that goes while it runs has vanished: a running; gone a -> ended a! vanished a
    also if a list lacks it: a running; list 7 -> ended a! vanished a at 7
    one that waits has not: a; gone a -> ended a!
    nor one that was seen to stop: a running; a succeeded; gone a -> ended a
""")
"""What is seen of pods; then who there is, who has ended (``!``: its containers may still run), who has vanished."""


def asking(text: str) -> str:
    name, _, states = text.partition(" ")
    return f"{name} app:1 {states.replace('running', 'started running').replace('succ', 'started succ')}"


@pytest.mark.parametrize("steps", PODS)
def test_which_pods_there_are_and_which_have_ended(steps: str) -> None:
    happens, expected = steps.split(" -> ")
    pods = NodePods()
    for step in happens.split("; "):
        verb, _, rest = step.partition(" ")
        if verb == "list":
            began, _, shown = rest.partition(" ")
            pods = pods.with_list(
                [pod_of(asking(one)) for one in shown.split(", ") if one], None if began == "-" else float(began)
            )
        elif verb in {"gone", "stopped"}:
            pods = pods.without(uid_of(rest), stopped=verb == "stopped")
        else:
            pods = pods.with_pod(pod_of(asking(step)))
    names = {uid_of(name): name for name in "abc"}
    said = [names[uid] for uid in pods.pods]
    said += ["ended", *(names[uid] + "!" * (not stopped) for uid, stopped in pods.ended.items())] if pods.ended else []
    said += ["vanished", *(names[uid] for uid in pods.vanished)] if pods.vanished else []
    said += [f"at {pods.listed_at:g}"] if pods.listed_at is not None else []
    assert " ".join(said) == expected


def test_a_pod_without_neuron_or_a_mirror_has_not_vanished() -> None:
    for other in (
        pod("a", running=True, started=True),
        pod("a", app(1), running=True, started=True, annotations={"kubernetes.io/config.hash": STATIC_UID}),
    ):
        assert NodePods().with_pod(other).without(A).vanished == ()


def test_the_pods_that_ask_are_in_the_order_of_their_bindings() -> None:
    """A LIST does not tell that order: those that it shows first come in the order of their assignments."""
    early, late = (assigned(name, app(1), sets=[[time]], time=time) for name, time in (("early", 3), ("late", 9)))
    others = pod("monitor"), pod("unassigned", app(1))

    def order(pods: NodePods) -> list[str]:
        return [one.reference.name for one in pods.asking]

    watched = NodePods()
    for one in (late, *others, early):
        watched = watched.with_pod(one)
    assert order(watched) == ["unassigned", "late", "early"]
    assert order(watched.with_list([early, late, *others], began_at=1.0)) == ["unassigned", "late", "early"]
    assert order(NodePods().with_list([late, *others, early], began_at=1.0)) == ["unassigned", "early", "late"]


def test_a_static_pod_is_found_by_the_uid_that_the_kubelet_knows() -> None:
    mirror = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
    assert inputs(mirror).pods.by_kubelet_uid == {STATIC_UID: mirror}


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


# Vanished pods.


def test_a_pod_with_claims_that_goes_while_it_runs_has_vanished_too() -> None:
    claiming = replace(pod("a", running=True), claims=(PodClaim("dev", "c"),))
    assert NodePods().with_pod(claiming).without(A).vanished == (A,)


def test_the_latest_vanished_pods_are_remembered_through_a_list() -> None:
    pods = NodePods()
    for number in range(MOST_VANISHED + 1):
        pods = pods.with_pod(pod(f"p{number}", app(1), running=True)).without(uid_of(f"p{number}"))
    assert len(pods.vanished) == MOST_VANISHED
    assert pods.with_list([], 5.0).vanished == pods.with_list([], None).vanished == pods.vanished
    assert pods.vanished[-1] == uid_of(f"p{MOST_VANISHED}")
