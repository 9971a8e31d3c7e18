from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.cli.doctor_facts import ApiPod, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import api_pod, ask, holding, is_fine, the_finding, with_cluster, with_kubelet

BOUND_NS = 1_789_352_350_678_418_384
DONE = {"NEURON_ALLOC_TIME": str(BOUND_NS), "NEURON_ALLOCATED": "true"}
WAITING = {**DONE, "NEURON_ALLOCATED": "false"}


def one_device(annotations: dict[str, str], phase: str = "Running") -> ApiPod:
    return api_pod("train", {"main": {"neurondevice": 1}}, annotations, phase=phase)


def held(facts: Facts, pod: ApiPod, ids: str = "2", resource: str = "neurondevice") -> Facts:
    return with_cluster(holding(facts, ("train", "main", resource, ids)), pods=(pod,))


def test_no_pod_is_fine(well: Facts) -> None:
    assert is_fine("annotations", well)


def test_a_pod_annotated_with_what_it_holds_is_fine(well: Facts) -> None:
    assert is_fine("annotations", held(well, one_device({"NEURON_DEVS": "2", **DONE})))


def test_the_vendors_dialect_is_read_too(well: Facts) -> None:
    assert is_fine("annotations", held(well, one_device({"AWS_NEURON_IDS": "2", **DONE})))


def test_an_annotation_that_differs_from_the_kubelet_is_a_problem(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({"NEURON_DEVS": "3", **DONE})))
    assert finding.level is Level.PROBLEM
    assert "neurondevice 3, the kubelet gave 2" in finding.seen


def test_a_running_pod_of_which_the_kubelet_knows_nothing_is_a_problem(well: Facts) -> None:
    facts = with_cluster(well, pods=(one_device({"NEURON_DEVS": "3", **DONE}),))
    assert "the kubelet gave nothing" in the_finding("annotations", facts).seen


def test_a_running_pod_that_was_never_confirmed_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({"NEURON_DEVS": "2", **WAITING})))
    assert finding.level is Level.WARNING
    assert "NEURON_ALLOCATED is still false" in finding.seen


def test_a_running_pod_without_annotation_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", held(well, one_device({})))
    assert finding.level is Level.WARNING
    assert "without an annotation" in finding.seen


@pytest.mark.parametrize("annotations", [{"NEURON_DEVS": "two"}, {"NEURON_DEVS": "2,3"}, {"NEURON_CORES": "2"}])
def test_an_annotation_that_cannot_be_followed_is_a_problem(well: Facts, annotations: dict[str, str]) -> None:
    finding = the_finding("annotations", held(well, one_device(annotations)))
    assert finding.level is Level.PROBLEM
    assert "default/train" in finding.seen


@pytest.mark.parametrize(("seconds", "fine"), [(1, True), (119, True), (600, False)])
def test_a_decision_may_wait_for_its_admission_but_not_for_ever(well: Facts, seconds: int, fine: bool) -> None:  # noqa: FBT001 - a case's expectation
    pod = one_device({"NEURON_DEVS": "2", **WAITING}, phase="Pending")
    facts = replace(with_cluster(well, pods=(pod,)), now_ns=BOUND_NS + seconds * 1_000_000_000)
    if fine:
        assert is_fine("annotations", facts)
    else:
        assert "10 minutes ago and has not been admitted" in the_finding("annotations", facts).seen


def test_a_container_that_re_uses_an_init_containers_devices_may_be_listed_with_others(well: Facts) -> None:
    containers = {"init": {"neurondevice": 4}, "main": {"neurondevice": 1}}
    pod = api_pod("train", containers, {"NEURON_DEVS": "0,1,2,3|0", **DONE}, init=True)
    assert is_fine("annotations", held(well, pod, ids="2"))


def test_pods_that_have_ended_or_ask_for_nothing_are_passed_over(well: Facts) -> None:
    ended = replace(one_device({"NEURON_DEVS": "9", **DONE}), neuron=None, phase="Succeeded")
    assert is_fine("annotations", with_cluster(well, pods=(ended, api_pod("web", {"main": {}}, {}))))


def test_a_holder_that_the_api_server_does_not_have_is_a_warning(well: Facts) -> None:
    finding = the_finding("annotations", holding(well, ("ghost", "main", "neuroncore", "2")))
    assert finding.level is Level.WARNING
    assert "default/ghost" in finding.seen


def test_without_the_kubelet_annotations_are_read_and_not_compared(well: Facts) -> None:
    facts = with_cluster(well, pods=(one_device({"NEURON_DEVS": "3", **DONE}),))
    assert is_fine("annotations", with_kubelet(facts, pods=Unknown("no kubelet")))


def test_without_an_api_server_nothing_is_checked(well: Facts) -> None:
    facts = replace(well, cluster=Unknown("no API server is known", "give --kubeconfig"))
    for name in ("annotations", "node-annotations"):
        assert [(finding.checked, finding.action) for finding in ask(name, facts)] == [(False, "give --kubeconfig")]
