"""When an allocation is over, what is held down then, and until when.

The tables read as ``POD=DEVICES``. ``static`` is a pod by the kubelet's own UID, ``mirror`` the same pod by the API
server's, ``?`` a pod that is not known. A hold-down that is shown to the cluster has a ``+``, one that is shown to the
kubelet, too, a ``!``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.plugin.inputs import LISTED_SECONDS, UNSEEN_SECONDS, HoldDown, Inputs, NodePods, RecordedAllocation
from neuron_plugin.plugin.settle import (
    ADMISSION_SECONDS,
    UNLISTED_SECONDS,
    VANISHED_SECONDS,
    list_is_due,
    pods_of_kubelet_alone,
    pods_to_look_at,
    rewrite_is_due,
    settle,
    with_lost_records,
)
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.topology import NO_CORES
from tests.plugin.world import (
    CORE,
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
    forgotten,
    init,
    inputs,
    moment,
    pod,
    ref,
    settled,
    some_inputs,
    uid_of,
    who_has,
    who_holds_down,
)

A, B = uid_of("a"), uid_of("b")
NAMES = {A: "a", B: "b", STATIC_UID: "static", uid_of("static"): "mirror"}
STATIC_KEY = {"kubernetes.io/config.hash": STATIC_UID}
LIVE, MIRROR = pod("a", app(1)), pod("static", app(1), annotations=STATIC_KEY)
OWN, STATIC = [entry(A, "app", NEURON, 3)], [entry(STATIC_UID, "app", NEURON, 3)]


def has(after: Inputs) -> str:
    return who_has(derive(after))


held = who_holds_down


def at(now: float, before: Inputs, alive: bool | Mapping[PodUid, bool] | None) -> Inputs:  # noqa: FBT001 - a table
    """The inputs settled at a time; ``alive``: of each pod, or of some, whether a process lives."""
    return settled(before, now, alive if isinstance(alive, Mapping) else dict.fromkeys(NAMES, alive))


@dataclass
class Moment:
    """Inputs at one moment, and what follows. ``pending`` is how many answers still wait for the kubelet's record."""

    before: Inputs
    has: str
    held: str = ""
    alive: bool | None = False
    pending: int = 0
    now: float = 10.0


def unrecorded(rewritten_at: float) -> Inputs:
    return inputs(pending=(answer(3, at=5.0),), file={"rewritten_at": rewritten_at})


def unlisted(read_at: float, *pods: NeuronPod) -> Inputs:
    return inputs(*pods, pending=(answer(3),), file={"unreadable": "future", "read_at": read_at})


BOTH_STATIC = moment("has static/a=3 static/b=4")
RUNS = assigned("a", app(1), sets=[[2]], started=True)
MOMENTS = {
    # Rule 1: UIDs that the API server made.
    "a live pod": Moment(moment("a app:1 | has a=3", listed_at=5.0), "a=3"),
    "a pod that was seen to stop, without processes": Moment(moment("has a=3", ended={A: True}), ""),
    "one whose cgroup cannot be seen": Moment(moment("has a=3", ended={A: True}), "", alive=None),
    "a pod before any list": Moment(moment("has a=3"), "a=3"),
    "a pod that a list lacks which began when the file was read": Moment(moment("has a=3", listed_at=0.0), "a=3"),
    "a pod that a later list lacks": Moment(moment("has a=3", listed_at=0.1), "", "a=3+"),
    "a live pod that the kubelet forgot": Moment(forgotten(moment("a app:1 | has a=3", listed_at=9.0), A), "a=3"),
    "a live pod whose end was seen before": Moment(moment("a app:1 | has a=3", ended={A: True}), "a=3"),
    "a pod that the kubelet forgot while the API server is away": Moment(forgotten(moment("has a=3"), A), "a=3"),
    # Rule 2: UIDs of which only the kubelet knows.
    "a static pod that no list shows": Moment(moment("has static=3", listed_at=9.0), "static=3"),
    "a static pod with its mirror": Moment(inputs(MIRROR, recorded=STATIC), "mirror=3"),
    "a static pod whose mirror was deleted": Moment(
        moment("has static=3", listed_at=9.0, ended={MIRROR.uid: False}), "static=3"
    ),
    "a static pod that a late file lacks": Moment(
        forgotten(moment("has static=3"), STATIC_UID, rewritten=False), "static=3"
    ),
    "a static pod that a rewritten file lacks": Moment(forgotten(moment("has static=3"), STATIC_UID), "", "static=3+"),
    "a static pod of which one container is left in the file": Moment(
        replace(
            BOTH_STATIC,
            recorded=BOTH_STATIC.recorded.with_file([entry(STATIC_UID, "b", NEURON, 4)], 5.0, rewritten_at=5.0),
        ),
        "static=3,4",
    ),
    "a static pod that came back": Moment(
        replace(
            moment("has static=3"),
            recorded=moment("has static=3").recorded.with_file([entry(STATIC_UID, "app", NEURON, 5)], 5.0),
        ),
        "static=5",
    ),
    "any pod without an API server": Moment(moment("has a=3", cluster=False), "a=3"),
    "one that a rewritten file lacks": Moment(forgotten(moment("has a=3", cluster=False), A), "", "a=3+"),
    # Rule 3: answers that the file has not shown.
    "an answer": Moment(inputs(pending=(answer(3),)), "?=3", pending=1),
    "an answer that the file shows": Moment(
        moment("has a=3", pending=(replace(answer(3), reply=OWN[0].reply or answer(3).reply),)), "a=3"
    ),
    "an answer with equal ids and another reply": Moment(
        moment("has a=3", pending=(answer(3, reply_id="other"),)), "?=3 a=3", pending=1
    ),
    "an answer after the file": Moment(unrecorded(4.0), "?=3", pending=1),
    "an answer at the same time": Moment(unrecorded(5.0), "?=3", pending=1),
    "an answer shortly before": Moment(unrecorded(5.0 + UNSEEN_SECONDS - 0.01), "?=3", pending=1),
    "an answer that was never recorded": Moment(unrecorded(5.0 + UNSEEN_SECONDS), "", "?=3+"),
    # While the checkpoint cannot be read.
    "a static pod and an answer, without a checkpoint": Moment(
        moment("has static=3", pending=(answer(4),), file={"unreadable": "future"}), "?=4 static=3", pending=1, now=99.0
    ),
    "an answer during its admission": Moment(unlisted(LISTED_SECONDS - 1), "?=3", pending=1),
    "an answer that is not listed": Moment(unlisted(LISTED_SECONDS), "", "?=3+"),
    "one that may be an init container's": Moment(
        unlisted(LISTED_SECONDS, pod("a", init(1), app(1, CORE))), "?=3", pending=1
    ),
    "one that is an app container's": Moment(unlisted(LISTED_SECONDS, LIVE), "", "?=3+"),
    "one of another count": Moment(unlisted(LISTED_SECONDS, pod("a", init(2), app(1, CORE))), "", "?=3+"),
    # What annotations say where the kubelet has lost its record.
    "a pod that ended without a record": Moment(
        replace(with_lost_records(moment("a app:1=2 started")), pods=NodePods().with_pod(RUNS).without(A)),
        "",
        "a=2+",
        alive=True,
    ),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_who_has_what_and_what_is_held_down(moment: Moment) -> None:
    after = at(moment.now, moment.before, moment.alive)
    assert (has(after), held(after), len(after.pending)) == (moment.has, moment.held, moment.pending)
    if (has(moment.before), len(moment.before.pending)) == (moment.has, moment.pending):
        assert after == replace(moment.before, now=moment.now), "nothing is over, so nothing changes"


FORCE_DELETED, STOPPED = moment("has a=3", ended={A: False}), moment("has a=3", ended={A: True})
FORGOTTEN, MIRRORED = (forgotten(inputs(*pods, recorded=STATIC), STATIC_UID) for pods in ([], [MIRROR]))
FILES = {"own": OWN, "back": [entry(STATIC_UID, "app", NEURON, 5)]}
ALIVE: Mapping[str, bool | Mapping[PodUid, bool] | None] = {
    "alive": True,
    "gone": False,
    "unseen": None,
    "b-alive": {B: True},
}


def lost_answers(*ids: int, holder: PodReference | None = None) -> Inputs:
    """Answers for containers of pod a, or another, which the kubelet never recorded."""
    who = holder or ref("a")
    pending = (answer(one, at=5.0, reply_id=str(one), pod=who, container=f"c{one}") for one in ids)
    return inputs(*([MIRROR] if holder else []), pending=tuple(pending), file={"rewritten_at": 9.0})


def unknown(*pods: NeuronPod, recorded: Sequence[RecordedAllocation] = ()) -> Inputs:
    hold_down = HoldDown(A, PodReference(A, "", ""), devices(3), 0.0, 0.0, 0.0, 0.0, 999.0, "why", unknown=True)
    return inputs(*pods, recorded=recorded, hold_downs=(hold_down,))


TIMELINES = {
    "p60 force-deleted, no process seen yet": (FORCE_DELETED, "10 gone a=3+; 11.9 gone a=3+; 12 gone -"),
    "p60 force-deleted, processes live": (
        FORCE_DELETED,
        "10 alive a=3+; 12.9 alive a=3+; 13 alive a=3!; 5000 alive a=3!; 5000.1 gone -",
    ),
    "p60 stopped, the sandbox lives": (STOPPED, "10 alive a=3; 12.9 alive a=3; 13 alive a=3!"),
    "p60 stopped, the sandbox ends": (STOPPED, "10 alive a=3; 10.1 gone -"),
    "p60 cgroups cannot be seen": (FORCE_DELETED, "10 unseen a=3+; 13 unseen a=3!; 39.9 unseen a=3!; 40 unseen -"),
    "a list lacks the pod": (moment("has a=3", listed_at=9.9), "10 unseen a=3+; 13 unseen a=3!"),
    "p60 the file still shows the pod": (FORCE_DELETED, "10 alive a=3+; 12 alive a=3+ own; 20 gone -; 21 gone - own"),
    "a list has ended it, the file is written again": (moment("has a=3", listed_at=5.0), "10 gone a=3+; 12 gone - own"),
    "a static pod that the kubelet forgot": (FORGOTTEN, "10 alive static=3+; 20 gone -"),
    "a static pod that the kubelet forgot before it started": (FORGOTTEN, "10 gone static=3+; 12 gone -"),
    "a static pod came back, no process is left": (FORGOTTEN, "10 alive static=3+; 12 gone - back"),
    "a static pod came back, processes may be new": (
        FORGOTTEN,
        "10 alive static=3+; 12 alive static=3+ back; 40 alive - back",
    ),
    "a static pod with a mirror": (MIRRORED, "10 alive static=3+; 99 alive static=3!"),
    "all containers of a pod together": (
        inputs(
            pod("b", app(1)), recorded=[*OWN, entry(A, "b", CORE, 8, 9), entry(B, "app", NEURON, 6)], ended={A: False}
        ),
        "10 alive a=3,4+",
    ),
    "two pods one by one": (
        inputs(recorded=[*OWN, entry(B, "app", NEURON, 6)], ended={A: False, B: False}),
        "10 alive a=3+ b=6+; 20 b-alive b=6!",
    ),
    "answers that were never recorded": (lost_answers(3, 4), "10 alive a=3,4+; 12 alive a=3,4+; 20 gone -"),
    "p60 an unknown pod": (unknown(), "10 alive a=3!; 10.1 gone -"),
    "p60 the API server names it, and it asks for nothing": (unknown(pod("a")), "10 alive -"),
    "p60 it asks for devices, and it is not known which": (unknown(LIVE), "10 alive a=3!"),
    "p60 the file names it": (unknown(recorded=OWN), "10 alive -"),
}
"""Steps of time, whether processes live, and what is held down then; a file is read before."""


@pytest.mark.parametrize(("before", "steps"), TIMELINES.values(), ids=TIMELINES)
def test_what_is_held_down_from_when_until_when(before: Inputs, steps: str) -> None:
    assert (VANISHED_SECONDS, ADMISSION_SECONDS, HOLD_DOWN_SECONDS) == (2.0, 3.0, 30.0), "the table's times"
    for step in steps.split("; "):
        now, alive, *rest = step.split(" ")
        file = rest.pop() if rest[-1] in FILES else ""
        if file:
            before = replace(before, recorded=before.recorded.with_file(FILES[file], float(now)))
        before = at(float(now), before, ALIVE[alive])
        assert held(before) == " ".join(rest).replace("-", ""), step


def test_a_doubt_ends_with_its_pod() -> None:
    assert at(10.0, replace(STOPPED, doubted=frozenset({A, B})), alive=False).doubted == {B}


def test_a_hold_down_names_its_pod_and_keeps_its_own_times() -> None:
    (one,) = at(10.0, FORCE_DELETED, None).hold_downs
    assert (one.since, one.not_before, one.until) == (10.0, 10.0 + VANISHED_SECONDS, 10.0 + HOLD_DOWN_SECONDS)
    (one,) = at(10.0, MIRRORED, {STATIC_UID: True}).hold_downs
    assert str(one.pod) == "default/static"


@pytest.mark.parametrize(
    ("before", "looked_at"),
    [
        (moment("a app:1 | has a=3"), ""),
        (FORCE_DELETED, "a"),
        (at(10.0, MIRRORED, {STATIC_UID: True}), "static"),
        (lost_answers(3), "a"),
        (lost_answers(3, holder=MIRROR.reference), "static"),
    ],
)
def test_the_cgroups_that_decide_something_are_looked_at(before: Inputs, looked_at: str) -> None:
    assert " ".join(NAMES[uid] for uid in pods_to_look_at(before)) == looked_at


ANNOTATED_STATIC = with_lost_records(
    inputs(pod("static", app(1), annotations={**assignment(TRN1, [app(1)], [[2]]), **STATIC_KEY}, started=True))
)
REWRITTEN = replace(ANNOTATED_STATIC, recorded=ANNOTATED_STATIC.recorded.with_file([], 5.0, rewritten_at=4.0))


@pytest.mark.parametrize(
    ("before", "now", "due"),
    [
        (moment("has static=3"), 10.0, False),
        (forgotten(moment("has static=3"), STATIC_UID, rewritten=False), 10.0, True),
        (forgotten(moment("has static=3"), STATIC_UID), 10.0, False),
        (forgotten(moment("a app:1 | has a=3"), A, rewritten=False), 10.0, False),
        (inputs(pending=(answer(3, at=5.0),)), 5.9, False),
        (inputs(pending=(answer(3, at=5.0),)), 5.0 + UNSEEN_SECONDS, True),
        (moment("has static=3", pending=(answer(4),), file={"unreadable": "future"}), 99.0, False),
        (ANNOTATED_STATIC, 9.0, False),
        (replace(ANNOTATED_STATIC, pods=NodePods()), 9.0, True),
    ],
)
def test_a_rewrite_is_due_where_only_the_kubelet_knows_and_its_file_does_not_say(
    before: Inputs,
    now: float,
    due: bool,  # noqa: FBT001 - a table
) -> None:
    assert rewrite_is_due(before, now) is due


def test_without_an_api_server_only_the_kubelet_knows_of_any_pod() -> None:
    assert pods_of_kubelet_alone(inputs(recorded=[*OWN, *STATIC])) == {STATIC_UID}
    assert pods_of_kubelet_alone(inputs(recorded=[*OWN, *STATIC], cluster=False)) == {A, STATIC_UID}


def test_the_api_server_is_asked_about_a_recorded_pod_that_it_has_never_shown() -> None:
    assert not list_is_due(moment("has a=3"), UNLISTED_SECONDS - 0.1)
    assert list_is_due(moment("has a=3"), UNLISTED_SECONDS)
    assert not list_is_due(moment("a app:1 | has a=3"), 9.0)
    assert not list_is_due(moment("has static=3"), 9.0)


LOST = {
    "a pod that runs": (moment("a app:2=2,3 started"), "a=2,3"),
    "a pod that has not started": (moment("a app:2=2,3"), ""),
    "a container beside one that is recorded": (moment("a app.x:1=2 app.y:1=3 started | has a/x=7"), "a=3,7"),
    "one that was answered": (moment("a app:1=2 started", pending=(answer(5, pod=ref("a"), container="app"),)), "a=5"),
    "one that is recorded": (moment("a app:1=2 started | has a=5"), "a=5"),
    "an annotation that cannot be read": (inputs(pod("a", app(1), annotations={"NEURON_DEVS": "x"}, started=True)), ""),
    "one of no device": (inputs(pod("a", app(1), annotations={"NEURON_DEVS": "77"}, started=True)), ""),
    "none": (moment("a app:1 started"), ""),
}


@pytest.mark.parametrize(("before", "expected"), LOST.values(), ids=LOST)
def test_a_container_that_runs_without_a_record_counts_by_its_annotation(before: Inputs, expected: str) -> None:
    known = with_lost_records(before)
    assert has(known) == expected
    assert not (expected and derive(known).waiting)


def test_a_pod_that_runs_waits_for_nothing_when_its_answer_turns_out_never_to_be_recorded() -> None:
    lost = answer(2, at=5.0, pod=ref("a"), container="app")
    after = at(
        10.0, with_lost_records(moment("a app:1=2 started", pending=(lost,), file={"rewritten_at": 9.0})), alive=True
    )
    assert not after.pending
    assert not derive(after).waiting


def test_a_static_pod_without_a_record_counts_as_long_as_its_mirror_is_shown() -> None:
    assert has(at(10.0, REWRITTEN, alive=False)) == "mirror=2"
    assert held(at(10.0, replace(REWRITTEN, pods=NodePods()), alive=True)) == "static=2+"


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
