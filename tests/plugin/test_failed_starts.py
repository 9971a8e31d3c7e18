"""Which devices pods fail to start on, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.plugin.failed_starts import StartRules, failed_starts
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.snapshot import derive
from tests.plugin.world import app, assigned, inputs

NOW = 10_000.0
RULES = StartRules(quick_seconds=30.0, window_seconds=600.0)


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
    return {device: one.count for device, one in failed_starts(snapshot, RULES, NOW).items() if one.count}


THREE = (failed("a", 3, at=90), failed("b", 3, at=60), failed("c", 3, at=30))


def test_pods_that_fail_on_one_device_one_after_the_other_are_counted_while_another_runs() -> None:
    assert counts(running("other", 7), past=THREE) == {3: 3}


def test_every_device_is_told_about_so_that_a_count_can_fall() -> None:
    found = failed_starts(derive(inputs()), RULES, NOW)
    assert {one.count for one in found.values()} == {0}
    assert len(found) == 16


def test_the_pods_are_named() -> None:
    made = inputs(running("other", 7))
    snapshot = derive(replace(made, pods=replace(made.pods, past=THREE)))
    text = failed_starts(snapshot, RULES, NOW)[3].worded()
    assert text == "3 failed starts of different pods in a row (default/a, default/b, default/c) while other pods run"


@pytest.mark.parametrize("others", [(), (running("other", 7, seconds=10),), (running("other", 3),)])
def test_without_a_pod_that_runs_elsewhere_the_whole_node_may_be_at_fault(others: tuple[NeuronPod, ...]) -> None:
    assert counts(*others, past=THREE) == {}


def test_a_pod_that_fails_again_and_again_is_one_pod() -> None:
    assert counts(failed("b", 3, at=5), running("other", 7), past=THREE[:2]) == {3: 2}


def test_a_start_that_lasts_ends_the_row() -> None:
    between = a_pod("well", 3, ContainerRun("app", NOW - 59, NOW - 20))
    assert counts(running("other", 7), past=(*THREE[:2], between)) == {}
    later = (failed("c", 3, at=5), failed("d", 3, at=2))
    assert counts(running("other", 7), past=(*THREE[:2], between, *later)) == {3: 2}


@pytest.mark.parametrize(
    "harmless",
    [
        failed("c", 3, at=10, seconds=31),
        a_pod("c", 3, ContainerRun("app", NOW - 14, NOW - 10, failed=False)),
        a_pod("c", 3, ContainerRun("other", NOW - 14, NOW - 10, failed=True)),
        failed("c", 4, at=10),
    ],
)
def test_an_end_that_is_late_or_well_or_elsewhere_is_no_failed_start(harmless: NeuronPod) -> None:
    assert counts(running("other", 7), past=(*THREE[:2], harmless)).get(3, 0) in {0, 2}


def test_the_pods_of_one_controller_may_have_a_broken_image() -> None:
    broken = tuple(replace(each, controller="Job/broken") for each in THREE)
    assert counts(running("other", 7, controller="Job/well"), past=broken) == {}
    assert counts(running("sibling", 7, controller="Job/broken"), past=broken) == {3: 3}
    mixed = (*broken[:2], replace(broken[2], controller="Job/third"))
    assert counts(running("other", 7, controller="Job/well"), past=mixed) == {3: 3}


def test_what_is_long_ago_says_nothing() -> None:
    old = failed("a", 3, at=700)
    assert counts(running("other", 7), past=(old, *THREE[1:])) == {3: 2}


def test_a_pod_whose_devices_are_not_known_is_left_out() -> None:
    unknown = replace(THREE[2], assignment=None)
    assert counts(running("other", 7), past=(*THREE[:2], unknown)) == {3: 2}


def test_the_last_state_of_a_pod_that_goes_is_kept_and_pods_that_never_ran_are_not() -> None:
    known, idle = failed("a", 3, at=30), a_pod("b", 4)
    pods = NodePods().with_pod(running("a", 3)).with_pod(idle)
    pods = pods.with_pod(replace(known, phase="Failed")).without(idle.uid)
    assert [(each.uid, each.runs) for each in pods.past] == [(known.uid, known.runs)]
    assert pods.with_pod(replace(known, phase="Failed")).past == pods.past, "told again"
