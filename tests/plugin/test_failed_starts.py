"""Which devices pods fail to start on, one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.pod import PodLife
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.plugin.failed_starts import failed_starts
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.snapshot import derive
from tests.plugin.world import inputs, pod_of
from tests.support.stories import rows

NOW = 10_000.0


def a_pod(text: str) -> NeuronPod:
    """``a fails 90`` or ``a@4 runs 300``: its container on device 3, or 4, failed 90 s ago, or has run for 300 s.

    ``ends 20`` is an end that was requested. Then may stand ``after 31`` (seconds from its start, else 4), ``of x``
    (its controller), ``in other`` (another container), ``core 7`` (of the device) or ``unknown`` (its devices are).
    """
    who, how, seconds, *rest = text.split()
    said = dict(zip(rest[::2], rest[1::2], strict=False))
    name, _, device = who.partition("@")
    ended = 0.0 if how == "runs" else NOW - float(seconds)
    started = NOW - float(seconds) if how == "runs" else ended - float(said.get("after", 4))
    asked = f"core:1={said['core']}" if "core" in said else f"1={device or 3}"
    run = ContainerRun(said.get("in", "app"), started, ended, failed=how == "fails")
    made = replace(pod_of(f"{name} app:{asked} allocated"), life=PodLife(runs=(run,)), controller=said.get("of", ""))
    return replace(made, assignment=None) if "unknown" in rest else made


def pods_of(text: str) -> tuple[NeuronPod, ...]:
    return tuple(a_pod(one) for one in text.split(", ") if one)


def seen(live: tuple[NeuronPod, ...], past: tuple[NeuronPod, ...] = ()) -> NodePods:
    return replace(inputs(*live).pods, past=past)


def counts(pods: NodePods) -> dict[int, int]:
    found = failed_starts(derive(replace(inputs(), pods=pods)), NOW)
    return {device: one.count for device, one in found.items() if one.count}


TWO, OTHER = "a fails 90, b fails 60", "other@7 runs 300"
THREE = f"{TWO}, c fails 30"
OF_ONE, BY_ANOTHER = "a fails 90 of broken, b fails 60 of broken", f"{OTHER} of well"
COUNTED = rows(f"""
    pods that fail on one device one after the other, while another runs: {OTHER} => {THREE} => 3
    # Else the whole node may be at fault.
    no pod runs elsewhere: => {THREE} => 0
    the one that runs elsewhere has just started: other@7 runs 10 => {THREE} => 0
    it runs on the same device: other runs 300 => {THREE} => 0
    it was last seen running and is gone: => {THREE}, gone@7 runs 300 => 0
    one was last seen running on the device: {OTHER} => {THREE}, gone runs 10 => 0
    a pod that fails again and again is one pod: b fails 5, {OTHER} => {TWO} => 2
    a start that lasts ends the row: {OTHER} => {TWO}, well ends 20 after 39 => 0
    and another one begins: {OTHER} => {TWO}, well ends 20 after 39, c fails 5, d fails 2 => 2
    an end that was requested ends the row however soon it came: {OTHER} => {THREE}, deleted ends 10 => 0
    an end that is late: {OTHER} => {TWO}, c fails 10 after 31 => 0
    an end that is well: {OTHER} => {TWO}, c ends 10 => 0
    an end of another container: {OTHER} => {TWO}, c fails 10 in other => 2
    an end on another device: {OTHER} => {TWO}, c@4 fails 10 => 2
    # The pods of one controller may have a broken image.
    pods of one controller: {BY_ANOTHER} => {OF_ONE}, c fails 30 of broken => 0
    while a sibling runs: sibling@7 runs 300 of broken => {OF_ONE}, c fails 30 of broken => 3
    pods of two controllers: {BY_ANOTHER} => {OF_ONE}, c fails 30 of third => 3
    what is long ago: {OTHER} => a fails 700, b fails 60, c fails 30 => 2
    a pod whose devices are not known: {OTHER} => {TWO}, c fails 30 unknown => 2
    a failure that is shown still: {OTHER}, d fails 1 => {THREE} => 4
    # A pod that runs well on another core of the device says nothing about the core that never came back.
    a row is one of a core:
        {OTHER}, well runs 300 core 6 => a fails 90 core 7, b fails 60 core 7, c fails 30 core 7 => 3
""")
"""Pods that are there, pods that are gone, and how many failed starts count of device 3."""


@pytest.mark.parametrize(("live", "past", "expected"), COUNTED)
def test_how_many_failed_starts_count_of_a_device(live: str, past: str, expected: str) -> None:
    assert counts(seen(pods_of(live), pods_of(past))).get(3, 0) == int(expected)


def test_every_device_is_told_about_so_that_a_count_can_fall_and_its_pods_are_named() -> None:
    found = failed_starts(derive(inputs()), NOW)
    assert ({one.count for one in found.values()}, len(found)) == ({0}, 16)
    found = failed_starts(derive(replace(inputs(), pods=seen(pods_of(OTHER), pods_of(THREE)))), NOW)
    text = "3 failed starts of different pods in a row (default/a, default/b, default/c) while other pods run"
    assert found[3].worded() == text


def test_nothing_is_said_of_a_device_while_a_pod_runs_on_it_until_that_has_lasted() -> None:
    def found(live: str) -> dict[int, int | None]:
        known = seen(pods_of(live), pods_of(THREE))
        return {device: one.count for device, one in failed_starts(derive(replace(inputs(), pods=known)), NOW).items()}

    soon = found(f"{OTHER}, d runs 4")
    assert 3 not in soon, "neither suspected nor cleared"
    assert len(soon) == 15
    lasted = found(f"{OTHER}, d runs 31, e@4 runs 4")
    assert (lasted[3], lasted[4]) == (0, 0), "cleared; and a start after no failure leaves nothing open"


def test_an_init_container_that_did_its_work_does_not_speak_for_the_container_that_fails() -> None:
    def with_init(name: str, at: float) -> NeuronPod:
        ran = ContainerRun("init", NOW - at - 8, NOW - at - 6)
        failed = ContainerRun("app", NOW - at - 4, NOW - at, failed=True)
        return replace(pod_of(f"{name} init:1=3 app:1=3 allocated"), life=PodLife(runs=(ran, failed)))

    past = tuple(with_init(name, at) for name, at in (("a", 90), ("b", 60), ("c", 30)))
    assert counts(seen(pods_of(OTHER), past)) == {3: 3}


def test_the_last_state_of_a_pod_that_goes_is_kept_and_pods_that_never_ran_are_not() -> None:
    known, idle = replace(a_pod("a fails 30"), phase="Failed"), pod_of("b app:1=4 allocated")
    pods = NodePods().with_pod(a_pod("a runs 300")).with_pod(idle).with_pod(known).without(idle.uid)
    assert [(each.uid, each.life.runs) for each in pods.past] == [(known.uid, known.life.runs)]
    assert pods.with_pod(known).past == pods.past, "told again"


def state_of(text: str) -> NeuronPod:
    """``deleted ended Failed``: a state of a pod with one container that is killed, as the decoder reads it."""
    words, made = text.split(), a_pod("c fails 10")
    (run,) = made.life.runs
    end = run.started + 4 if {"ended", "evicted"} & {*words} else 0.0
    killed = ContainerRun("app", run.started, end, failed="ended" in words and "deleted" not in words)
    phase = "Failed" if {"Failed", "evicted"} & {*words} else "Running"
    return replace(made, terminating="deleted" in words, phase=phase, life=PodLife(runs=(killed,)))


STATES = rows("""
    it is deleted while it runs: lives; deleted; deleted ended; deleted ended Failed => 0
    deletion and end in one event: lives; deleted ended => 0
    deletion, end and phase in one event: lives; deleted ended Failed => 0
    it failed and is deleted then: lives; ended; deleted ended => 3
    and has its phase in the end: lives; ended; deleted ended; deleted ended Failed => 3
    it failed for good: lives; ended Failed => 3
    # The kubelet gives its reason with the phase, when the last container has stopped (status_manager.go).
    the kubelet ends it container by container: lives; ended; evicted => 0
""")
"""States of a pod that the watch shows; how many failed starts count then, after two of other pods."""


@pytest.mark.parametrize(("states", "count"), STATES)
def test_which_end_of_a_pod_is_a_failed_start(states: str, count: str) -> None:
    pods = NodePods(past=pods_of(TWO)).with_pod(a_pod(OTHER))
    for state in states.split("; "):
        pods = pods.with_pod(state_of(state))
    for known in (pods, pods.without(state_of("lives").uid)):
        assert counts(known).get(3, 0) == int(count), "the deletion of the object changes nothing"


def test_a_failure_that_was_known_stays_known_after_a_list() -> None:
    pods = NodePods().with_pod(state_of("lives")).with_pod(state_of("ended"))
    pods = pods.with_list([state_of("deleted ended")], 0.0)
    assert [run.failed for pod in pods.pods.values() for run in pod.life.runs] == [True]
