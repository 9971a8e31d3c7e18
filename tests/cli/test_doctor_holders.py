from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import api_pod, ask, facts_of, holding, is_fine, the_finding, with_cluster, with_kubelet
from tests.cli.doubles import MakeNode


def test_nobody_holds_anything_is_fine(well: Facts) -> None:
    assert is_fine("holders", well)


def test_linked_sets_held_once_are_fine(well: Facts) -> None:
    facts = holding(
        well,
        ("train", "a", "neurondevice", "4,5,6,7"),
        ("train", "b", "neuroncore", "2"),
        ("infer", "main", "neuroncore", "3"),
        ("other", "main", "neuron", "0"),
    )
    assert is_fine("holders", facts)
    assert "3 pods with 12 logical cores" in ask("holders", facts)[0].seen


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (("neurondevice", "2"), ("neuroncore", "5"), "core 5"),
        (("neuron", "2"), ("neurondevice", "2"), "device 2"),
        (("neuroncore", "5"), ("neuroncore", "5"), "core 5"),
    ],
)
def test_silicon_with_two_pods_is_a_problem(
    well: Facts, first: tuple[str, str], second: tuple[str, str], shared: str
) -> None:
    finding = the_finding("holders", holding(well, ("one", "main", *first), ("two", "side", *second)))
    assert finding.level is Level.PROBLEM
    assert "default/one/main" in finding.seen
    assert "default/two/side" in finding.seen
    assert finding.seen.endswith(f"both hold {shared}")


def test_silicon_with_two_containers_of_a_pod_is_a_problem(well: Facts) -> None:
    facts = holding(well, ("one", "a", "neurondevice", "2"), ("one", "b", "neuroncore", "4"))
    assert "both hold core 4" in the_finding("holders", facts).seen


@pytest.mark.parametrize(
    ("resource", "ids"), [("neurondevice", "0,2,4,6"), ("neurondevice", "1,2"), ("neuroncore", "1,2")]
)
def test_unlinked_sets_are_a_warning(well: Facts, resource: str, ids: str) -> None:
    finding = the_finding("holders", holding(well, ("train", "main", resource, ids)))
    assert finding.level is Level.WARNING
    assert "no linked set" in finding.seen


def test_a_pod_that_re_uses_its_init_containers_devices_may_hold_another_set_than_listed(well: Facts) -> None:
    facts = holding(well, ("train", "main", "neurondevice", "0,2,4,6"))
    pod = api_pod("train", {"init": {"neurondevice": 16}, "main": {"neurondevice": 4}}, {}, init=True)
    assert is_fine("holders", with_cluster(facts, pods=(pod,)))


@pytest.mark.parametrize("ids", ["16", "neuron-0", "99999999999999999999"])
def test_ids_that_this_machine_does_not_have_are_a_problem(well: Facts, ids: str) -> None:
    finding = the_finding("holders", holding(well, ("train", "main", "neurondevice", ids)))
    assert finding.level is Level.PROBLEM
    assert f"holds aws.amazon.com/neurondevice {ids}" in finding.seen


def test_other_resources_are_nobodys_business_here(well: Facts) -> None:
    assert is_fine("holders", holding(well, ("train", "main", "../nvidia.com/gpu", "GPU-1")))


def test_a_pod_on_a_sick_device_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    finding = the_finding("holders", holding(facts_of(node), ("train", "main", "neurondevice", "0,1,2")))
    assert finding.level is Level.WARNING
    assert "runs on device 1" in finding.seen


def test_holders_that_are_not_known_are_not_checked(well: Facts) -> None:
    assert not the_finding("holders", with_kubelet(well, pods=Unknown("no kubelet", "start it"))).checked


def test_without_a_device_nothing_is_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    assert [finding.checked for finding in ask("holders", facts_of(node))] == [False]
