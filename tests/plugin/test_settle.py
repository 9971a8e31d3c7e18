"""When an allocation is over, what is held down then, and until when.

The tables read as ``POD=DEVICES``. ``static`` is a pod by the kubelet's own UID, ``mirror`` the same pod by the API
server's, ``?`` a pod that is not known. A hold-down that is shown to the cluster has a ``+``, one that is shown to the
kubelet, too, a ``!``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import PodUid
from neuron_plugin.plugin.inputs import LISTED_SECONDS, UNSEEN_SECONDS, Inputs
from neuron_plugin.plugin.settle import (
    ADMISSION_SECONDS,
    UNLISTED_SECONDS,
    VANISHED_SECONDS,
    list_is_due,
    pods_of_kubelet_alone,
    pods_to_look_at,
    rewrite_is_due,
    settle,
)
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.topology import NO_CORES
from tests.plugin.world import HOLD_DOWN_SECONDS, STATIC_UID, moment, records, settled, some_inputs, uid_of, who_has
from tests.plugin.world import who_holds_down as held
from tests.support.stories import rows

A, B = uid_of("a"), uid_of("b")
NAMES = {A: "a", B: "b", STATIC_UID: "static", uid_of("static"): "mirror"}
Alive = bool | Mapping[PodUid, bool] | None
ALIVE: Mapping[str, Alive] = {"alive": True, "gone": False, "unseen": None, "b-alive": {B: True}}
"""Whether processes live: of each pod, of none, not to be seen, or of one of them."""


def has(after: Inputs) -> str:
    return who_has(derive(after))


def at(now: float, before: Inputs, alive: Alive) -> Inputs:
    """The inputs settled at a time."""
    return settled(before, now, alive if isinstance(alive, Mapping) else dict.fromkeys(NAMES, alive))


def said(of: Inputs) -> str:
    """Who has what, what is held down, and how many answers still wait for the kubelet's record."""
    parts = (has(of), f"held {held(of)}" * bool(held(of)), f"{len(of.pending)} pending" * bool(of.pending))
    return ", ".join(filter(None, parts)) or "-"


MOMENTS = rows(f"""
    # Rule 1: UIDs that the API server made.
    a live pod: a app:1 | has a=3 | listed 5 => a=3
    a pod that was seen to stop, without processes: has a=3 | stopped a => -
    one whose cgroup cannot be seen: unseen | has a=3 | stopped a => -
    a pod before any list: has a=3 => a=3
    a pod that a list lacks which began when the file was read: has a=3 | listed 0 => a=3
    a pod that a later list lacks: has a=3 | listed 0.1 => held a=3+
    a live pod that the kubelet forgot: a app:1 | has a=3 | listed 9 | forgets a => a=3
    a live pod whose end was seen before: a app:1 | has a=3 | stopped a => a=3
    a pod that the kubelet forgot while the API server is away: has a=3 | forgets a => a=3
    # Rule 2: UIDs of which only the kubelet knows.
    a static pod that no list shows: has static=3 | listed 9 => static=3
    a static pod with its mirror: mirror app:1 | has static=3 => mirror=3
    a static pod whose mirror was deleted: has static=3 | listed 9 | killed static => static=3
    a static pod that a late file lacks: has static=3 | forgets static late => static=3
    a static pod that a rewritten file lacks: has static=3 | forgets static => held static=3+
    a static pod of which one container is left in the file:
        has static/a=3 static/b=4 | then static/b=4 rewritten => static=3,4
    a static pod that came back: has static=3 | then static=5 => static=5
    any pod without an API server: has a=3 | alone => a=3
    one that a rewritten file lacks: has a=3 | alone | forgets a => held a=3+
    # Rule 3: answers that the file has not shown.
    an answer: answers 3 => ?=3, 1 pending
    an answer with equal ids and another reply: has a=3 | answers 3 => ?=3 a=3, 1 pending
    an answer after the file: answers 3@5 | rewritten 4 => ?=3, 1 pending
    an answer at the same time: answers 3@5 | rewritten 5 => ?=3, 1 pending
    an answer shortly before: answers 3@5 | rewritten {5 + UNSEEN_SECONDS - 0.01} => ?=3, 1 pending
    an answer that was never recorded: answers 3@5 | rewritten {5 + UNSEEN_SECONDS} => held ?=3+
    # While the checkpoint cannot be read.
    a static pod and an answer, without a checkpoint:
        has static=3 | answers 4 | unreadable | now 99 => ?=4 static=3, 1 pending
    an answer during its admission: answers 3 | unreadable | read {LISTED_SECONDS - 1} => ?=3, 1 pending
    an answer that is not listed: answers 3 | unreadable | read {LISTED_SECONDS} => held ?=3+
    one that may be an init container's:
        a init:1 app:core:1 | answers 3 | unreadable | read {LISTED_SECONDS} => ?=3, 1 pending
    one that is an app container's: a app:1 | answers 3 | unreadable | read {LISTED_SECONDS} => held ?=3+
    one of another count: a init:2 app:core:1 | answers 3 | unreadable | read {LISTED_SECONDS} => held ?=3+
""")


@pytest.mark.parametrize(("text", "expected"), MOMENTS)
def test_who_has_what_and_what_is_held_down(text: str, expected: str) -> None:
    known, _, file = text.removeprefix("unseen | ").partition(" | then ")
    before = moment(known)
    if file:
        entries, _, rewritten = file.partition(" ")
        recorded = before.recorded.with_file(records(entries), 5.0, rewritten_at=5.0 if rewritten else None)
        before = replace(before, recorded=recorded)
    now = before.now or 10.0
    after = at(now, before, None if text.startswith("unseen") else False)
    assert said(after) == expected
    if said(before) == expected:
        assert after == replace(before, now=now), "nothing is over, so nothing changes"


def test_an_answer_that_the_file_shows_is_pending_no_more() -> None:
    before = moment("has a=3 | answers 3")
    (entry,), (answer,) = before.recorded.entries.values(), before.pending
    assert entry.reply
    after = at(10.0, replace(before, pending=(replace(answer, reply=entry.reply),)), alive=False)
    assert said(after) == "a=3"


FORCE_DELETED, STOPPED, MIRRORED = "has a=3 | killed a", "has a=3 | stopped a", "mirror app:1 | has static=3"
TIMELINES = rows(f"""
    p60 force-deleted, no process seen yet: {FORCE_DELETED} => 10 gone a=3+; 11.9 gone a=3+; 12 gone -
    p60 force-deleted, processes live:
        {FORCE_DELETED} => 10 alive a=3+; 12.9 alive a=3+; 13 alive a=3!; 5000 alive a=3!; 5000.1 gone -
    p60 stopped, the sandbox lives: {STOPPED} => 10 alive a=3; 12.9 alive a=3; 13 alive a=3!
    p60 stopped, the sandbox ends: {STOPPED} => 10 alive a=3; 10.1 gone -
    p60 cgroups cannot be seen: {FORCE_DELETED} => 10 unseen a=3+; 13 unseen a=3!; 39.9 unseen a=3!; 40 unseen -
    a list lacks the pod: has a=3 | listed 9.9 => 10 unseen a=3+; 13 unseen a=3!
    p60 the file still shows the pod:
        {FORCE_DELETED} => 10 alive a=3+; 12 alive a=3+ file a=3; 20 gone -; 21 gone - file a=3
    a list has ended it, the file is written again: has a=3 | listed 5 => 10 gone a=3+; 12 gone - file a=3
    a static pod that the kubelet forgot: has static=3 | forgets static => 10 alive static=3+; 20 gone -
    a static pod that the kubelet forgot before it started:
        has static=3 | forgets static => 10 gone static=3+; 12 gone -
    a static pod came back, no process is left:
        has static=3 | forgets static => 10 alive static=3+; 12 gone - file static=5
    a static pod came back, processes may be new:
        has static=3 | forgets static => 10 alive static=3+; 12 alive static=3+ file static=5; 40 alive - file static=5
    a static pod with a mirror: {MIRRORED} | forgets static => 10 alive static=3+; 99 alive static=3!
    all containers of a pod together: b app:1 | has a=3 a/b=core:8,9 b=6 | killed a => 10 alive a=3,4+
    two pods one by one: has a=3 b=6 | killed a b => 10 alive a=3+ b=6+; 20 b-alive b=6!
    answers that were never recorded:
        answers a/c3=3@5 a/c4=4@5 | rewritten 9 => 10 alive a=3,4+; 12 alive a=3,4+; 20 gone -
    # What annotations say where the kubelet has lost its record.
    a pod that ended without a record: a app:1=2 started | lost | ends a => 10 alive a=2+
    p60 an unknown pod: unknown 3 => 10 alive a=3!; 10.1 gone -
    p60 the API server names it, and it asks for nothing: a | unknown 3 => 10 alive -
    p60 it asks for devices, and it is not known which: a app:1 | unknown 3 => 10 alive a=3!
    p60 the file names it: has a=3 | unknown 3 => 10 alive -
""")
"""Steps of time, whether processes live, and what is held down then; a file may be read before."""


@pytest.mark.parametrize(("text", "steps"), TIMELINES)
def test_what_is_held_down_from_when_until_when(text: str, steps: str) -> None:
    assert (VANISHED_SECONDS, ADMISSION_SECONDS, HOLD_DOWN_SECONDS) == (2.0, 3.0, 30.0), "the table's times"
    known, _, ends = text.partition(" | ends ")
    before = moment(known)
    if ends:
        before = replace(before, pods=before.pods.without(uid_of(ends)))
    for step in steps.split("; "):
        shown, _, file = step.partition(" file ")
        now, alive, expected = shown.split(" ", 2)
        if file:
            before = replace(before, recorded=before.recorded.with_file(records(file), float(now)))
        before = at(float(now), before, ALIVE[alive])
        assert held(before) == expected.replace("-", ""), step
        assert not ends or said(before) == f"held {expected}"


def test_a_doubt_ends_with_its_pod() -> None:
    assert at(10.0, moment(f"{STOPPED} | doubts a b"), alive=False).doubted == {B}


def test_a_hold_down_names_its_pod_and_keeps_its_own_times() -> None:
    (one,) = at(10.0, moment(FORCE_DELETED), None).hold_downs
    assert (one.since, one.not_before, one.until) == (10.0, 10.0 + VANISHED_SECONDS, 10.0 + HOLD_DOWN_SECONDS)
    (one,) = at(10.0, moment(f"{MIRRORED} | forgets static"), {STATIC_UID: True}).hold_downs
    assert str(one.pod) == "default/static"


def test_the_cgroups_that_decide_something_are_looked_at() -> None:
    for text, looked_at in {
        "a app:1 | has a=3": "",
        FORCE_DELETED: "a",
        "answers a/app=3@5 | rewritten 9": "a",
        "mirror app:1 | answers mirror/app=3@5 | rewritten 9": "static",
    }.items():
        assert " ".join(NAMES[uid] for uid in pods_to_look_at(moment(text))) == looked_at
    held_down = at(10.0, moment(f"{MIRRORED} | forgets static"), {STATIC_UID: True})
    assert pods_to_look_at(held_down) == {STATIC_UID}


DUE = rows(f"""
    the file shows the static pod: has static=3 | now 10 => no
    a file that came by itself lacks it: has static=3 | forgets static late | now 10 => yes
    a file that was asked for lacks it: has static=3 | forgets static | now 10 => no
    it lacks a live pod of the API server: a app:1 | has a=3 | forgets a late | now 10 => no
    an answer may still be recorded: answers 3@5 | now 5.9 => no
    it was not in time: answers 3@5 | now {5 + UNSEEN_SECONDS} => yes
    a file that cannot be read: has static=3 | answers 4 | unreadable | now 99 => no
    a static pod without a record, whose mirror is shown: mirror app:1=2 started | lost | now 9 => no
    its mirror is gone: mirror app:1=2 started | lost | now 9 | gone => yes
""")


@pytest.mark.parametrize(("text", "due"), DUE)
def test_a_rewrite_is_due_where_only_the_kubelet_knows_and_its_file_does_not_say(text: str, due: str) -> None:
    before = moment(text.removesuffix(" | gone"))
    if text.endswith("gone"):
        before = replace(before, pods=moment("").pods)
    assert rewrite_is_due(before, before.now) is (due == "yes")


def test_without_an_api_server_only_the_kubelet_knows_of_any_pod() -> None:
    assert pods_of_kubelet_alone(moment("has a=3 static=3")) == {STATIC_UID}
    assert pods_of_kubelet_alone(moment("has a=3 static=3 | alone")) == {A, STATIC_UID}


def test_the_api_server_is_asked_about_a_recorded_pod_that_it_has_never_shown() -> None:
    assert not list_is_due(moment("has a=3"), UNLISTED_SECONDS - 0.1)
    assert list_is_due(moment("has a=3"), UNLISTED_SECONDS)
    assert not list_is_due(moment("a app:1 | has a=3"), 9.0)
    assert not list_is_due(moment("has static=3"), 9.0)


LOST = rows("""
    a pod that runs: a app:2=2,3 started => a=2,3
    a pod that has not started: a app:2=2,3 =>
    a container beside one that is recorded: a app.x:1=2 app.y:1=3 started | has a/x=7 => a=3,7
    one that was answered: a app:1=2 started | answers a/app=5 => a=5
    one that is recorded: a app:1=2 started | has a=5 => a=5
    an annotation that cannot be read: a app:1 NEURON_DEVS=x started =>
    one of no device: a app:1 NEURON_DEVS=77 started =>
    none: a app:1 started =>
""")


@pytest.mark.parametrize(("text", "expected"), LOST)
def test_a_container_that_runs_without_a_record_counts_by_its_annotation(text: str, expected: str) -> None:
    known = moment(f"{text} | lost")
    assert has(known) == expected
    assert not (expected and derive(known).waiting)


def test_a_pod_that_runs_waits_for_nothing_when_its_answer_turns_out_never_to_be_recorded() -> None:
    after = at(10.0, moment("a app:1=2 started | answers a/app=2@5 | rewritten 9 | lost"), alive=True)
    assert not after.pending
    assert not derive(after).waiting


def test_a_static_pod_without_a_record_counts_as_long_as_its_mirror_is_shown() -> None:
    known = moment("mirror app:1=2 started | lost")
    rewritten = replace(known, recorded=known.recorded.with_file([], 5.0, rewritten_at=4.0))
    assert has(at(10.0, rewritten, alive=False)) == "mirror=2"
    assert held(at(10.0, replace(rewritten, pods=moment("").pods), alive=True)) == "static=2+"


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
