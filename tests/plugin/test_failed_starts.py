"""Which devices pods fail to start on, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.plugin.failed_starts import failed_starts
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.snapshot import derive
from tests.plugin.world import CORE, app, assigned, init, inputs

NOW = 10_000.0


def a_pod(name: str, device: int, *runs: ContainerRun, controller: str = "") -> NeuronPod:
    made = assigned(name, app(1), sets=[[device]], allocated=True)
    return replace(made, runs=runs, controller=controller)


def failed(name: str, device: int, at: float, controller: str = "", seconds: float = 4.0) -> NeuronPod:
    """A pod whose container ended with an error ``seconds`` after its start, ``at`` seconds before now."""
    ended = NOW - at
    return a_pod(name, device, ContainerRun("app", ended - seconds, ended, failed=True), controller=controller)


def running(name: str, device: int, seconds: float = 300.0, controller: str = "") -> NeuronPod:
    return a_pod(name, device, ContainerRun("app", NOW - seconds), controller=controller)


def counts(*live: NeuronPod, past: tuple[NeuronPod, ...] = ()) -> Mapping[int, int | None]:
    made = inputs(*live)
    snapshot = derive(replace(made, pods=replace(made.pods, past=past)))
    return {device: one.count for device, one in failed_starts(snapshot, NOW).items() if one.count}


THREE = (failed("a", 3, at=90), failed("b", 3, at=60), failed("c", 3, at=30))


OTHER = running("other", 7)
TWO = THREE[:2]
LASTED = a_pod("well", 3, ContainerRun("app", NOW - 59, NOW - 20))
OF_ONE = tuple(replace(each, controller="Job/broken") for each in THREE)
BY_ANOTHER = running("other", 7, controller="Job/well")
ROWS: dict[str, tuple[tuple[NeuronPod, ...], tuple[NeuronPod, ...], int]] = {
    "pods that fail on one device one after the other, while another runs": ((OTHER,), THREE, 3),
    # Else the whole node may be at fault.
    "no pod runs elsewhere": ((), THREE, 0),
    "the one that runs elsewhere has just started": ((running("other", 7, seconds=10),), THREE, 0),
    "it runs on the same device": ((running("other", 3),), THREE, 0),
    "it was last seen running and is gone": ((), (*THREE, running("gone", 7)), 0),
    "one was last seen running on the device": ((OTHER,), (*THREE, running("gone", 3, seconds=10)), 0),
    "a pod that fails again and again is one pod": ((failed("b", 3, at=5), OTHER), TWO, 2),
    "a start that lasts ends the row": ((OTHER,), (*TWO, LASTED), 0),
    "and another one begins": ((OTHER,), (*TWO, LASTED, failed("c", 3, at=5), failed("d", 3, at=2)), 2),
    "an end that was requested ends the row however soon it came": (
        (OTHER,),
        (*THREE, a_pod("deleted", 3, ContainerRun("app", NOW - 14, NOW - 10))),
        0,
    ),
    "an end that is late": ((OTHER,), (*TWO, failed("c", 3, at=10, seconds=31)), 0),
    "an end that is well": ((OTHER,), (*TWO, a_pod("c", 3, ContainerRun("app", NOW - 14, NOW - 10))), 0),
    "an end of another container": (
        (OTHER,),
        (*TWO, a_pod("c", 3, ContainerRun("other", NOW - 14, NOW - 10, failed=True))),
        2,
    ),
    "an end on another device": ((OTHER,), (*TWO, failed("c", 4, at=10)), 2),
    # The pods of one controller may have a broken image.
    "pods of one controller": ((BY_ANOTHER,), OF_ONE, 0),
    "while a sibling runs": ((running("sibling", 7, controller="Job/broken"),), OF_ONE, 3),
    "pods of two controllers": ((BY_ANOTHER,), (*OF_ONE[:2], replace(OF_ONE[2], controller="Job/third")), 3),
    "what is long ago": ((OTHER,), (failed("a", 3, at=700), *THREE[1:]), 2),
    "a pod whose devices are not known": ((OTHER,), (*TWO, replace(THREE[2], assignment=None)), 2),
}


@pytest.mark.parametrize(("live", "past", "expected"), ROWS.values(), ids=ROWS)
def test_how_many_failed_starts_count_of_a_device(
    live: tuple[NeuronPod, ...], past: tuple[NeuronPod, ...], expected: int
) -> None:
    assert counts(*live, past=past).get(3, 0) == expected


def test_every_device_is_told_about_so_that_a_count_can_fall() -> None:
    found = failed_starts(derive(inputs()), NOW)
    assert {one.count for one in found.values()} == {0}
    assert len(found) == 16


def test_the_pods_are_named() -> None:
    made = inputs(running("other", 7))
    snapshot = derive(replace(made, pods=replace(made.pods, past=THREE)))
    text = failed_starts(snapshot, NOW)[3].worded()
    assert text == "3 failed starts of different pods in a row (default/a, default/b, default/c) while other pods run"


def test_nothing_is_said_of_a_device_while_a_pod_runs_on_it_until_that_has_lasted() -> None:
    made = inputs(running("other", 7), running("d", 3, seconds=4))
    found = failed_starts(derive(replace(made, pods=replace(made.pods, past=THREE))), NOW)
    assert 3 not in found, "neither suspected nor cleared"
    assert len(found) == 15
    lasted = inputs(running("other", 7), running("d", 3, seconds=31), running("e", 4, seconds=4))
    found = failed_starts(derive(replace(lasted, pods=replace(lasted.pods, past=THREE))), NOW)
    assert (found[3].count, found[4].count) == (0, 0), "cleared; and a start after no failure leaves nothing open"
    assert counts(running("other", 7), failed("d", 3, at=1), past=THREE) == {3: 4}


def test_a_row_is_one_of_a_core() -> None:
    """A pod that runs well on another core of the device says nothing about the core that never came back."""
    on_cores = [
        replace(assigned(name, app(1, CORE), sets=[[core]], allocated=True), runs=runs)
        for name, core, runs in (
            ("well", 6, (ContainerRun("app", NOW - 300),)),
            ("a", 7, (ContainerRun("app", NOW - 94, NOW - 90, failed=True),)),
            ("b", 7, (ContainerRun("app", NOW - 64, NOW - 60, failed=True),)),
            ("c", 7, (ContainerRun("app", NOW - 34, NOW - 30, failed=True),)),
        )
    ]
    assert counts(running("other", 7), on_cores[0], past=tuple(on_cores[1:])) == {3: 3}


def test_an_init_container_that_did_its_work_does_not_speak_for_the_container_that_fails() -> None:
    def with_init(name: str, at: float) -> NeuronPod:
        made = assigned(name, init(1), app(1), sets=[[3], [3]], allocated=True)
        ran = ContainerRun("init", NOW - at - 8, NOW - at - 6)
        return replace(made, runs=(ran, ContainerRun("app", NOW - at - 4, NOW - at, failed=True)))

    pods = tuple(with_init(name, at) for name, at in (("a", 90), ("b", 60), ("c", 30)))
    assert counts(running("other", 7), past=pods) == {3: 3}


def test_the_last_state_of_a_pod_that_goes_is_kept_and_pods_that_never_ran_are_not() -> None:
    known, idle = failed("a", 3, at=30), a_pod("b", 4)
    pods = NodePods().with_pod(running("a", 3)).with_pod(idle)
    pods = pods.with_pod(replace(known, phase="Failed")).without(idle.uid)
    assert [(each.uid, each.runs) for each in pods.past] == [(known.uid, known.runs)]
    assert pods.with_pod(replace(known, phase="Failed")).past == pods.past, "told again"


def as_seen(*states: NeuronPod) -> Mapping[int, int | None]:
    """What is counted of device 3 after the watch has shown these states of one pod, and two failures before."""
    pods = replace(NodePods(past=THREE[:2]), pods={}).with_pod(running("other", 7))
    for state in states:
        pods = pods.with_pod(state)
    made = inputs()
    gone = pods.without(states[-1].uid)
    of_live, of_gone = (
        {device: one.count for device, one in failed_starts(derive(replace(made, pods=seen)), NOW).items() if one.count}
        for seen in (pods, gone)
    )
    assert of_live == of_gone, "the deletion of the object changes nothing"
    return of_gone


def state_of(text: str) -> NeuronPod:
    """``deleted ended Failed``: a state of a pod with one container that is killed, as the decoder reads it."""
    words = text.split()
    (run,) = C.runs
    end = run.started + 4 if {"ended", "evicted"} & {*words} else 0.0
    killed = ContainerRun("app", run.started, end, failed="ended" in words and "deleted" not in words)
    phase = "Failed" if {"Failed", "evicted"} & {*words} else "Running"
    return replace(C, terminating="deleted" in words, phase=phase, runs=(killed,))


C = failed("c", 3, at=10)
STATES = {
    "it is deleted while it runs": ("lives; deleted; deleted ended; deleted ended Failed", 0),
    "deletion and end in one event": ("lives; deleted ended", 0),
    "deletion, end and phase in one event": ("lives; deleted ended Failed", 0),
    "it failed and is deleted then": ("lives; ended; deleted ended", 3),
    "and has its phase in the end": ("lives; ended; deleted ended; deleted ended Failed", 3),
    "it failed for good": ("lives; ended Failed", 3),
    # The kubelet gives its reason with the phase, when the last container has stopped (status_manager.go).
    "the kubelet ends it container by container": ("lives; ended; evicted", 0),
}
"""States of a pod that the watch shows; how many failed starts count then, after two of other pods."""


@pytest.mark.parametrize(("states", "count"), STATES.values(), ids=STATES)
def test_which_end_of_a_pod_is_a_failed_start(states: str, count: int) -> None:
    assert as_seen(*map(state_of, states.split("; "))) == ({3: count} if count else {})


def test_a_failure_that_was_known_stays_known_after_a_list() -> None:
    pods = NodePods().with_pod(state_of("lives")).with_pod(state_of("ended"))
    pods = pods.with_list([state_of("deleted ended")], 0.0)
    assert [run.failed for pod in pods.pods.values() for run in pod.runs] == [True]
