from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_facts import Facts, PciFunction
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, facts_of, is_fine, the_finding, with_host
from tests.cli.doubles import MakeNode


@pytest.mark.parametrize("instance_type", ["inf1.6xlarge", "inf2.24xlarge", "trn1.2xlarge", "trn2.3xlarge"])
def test_a_complete_machine_is_fine(make_node: MakeNode, instance_type: str) -> None:
    facts = facts_of(make_node(instance_type))
    assert is_fine("devices", facts)
    assert instance_type in ask("devices", facts)[0].seen


@pytest.mark.parametrize(("missing", "seen"), [((3,), "neuron3 is missing"), ((3, 4, 9), "devices 3-4,9 are missing")])
def test_missing_chips_are_named(make_node: MakeNode, missing: tuple[int, ...], seen: str) -> None:
    finding = the_finding("devices", facts_of(make_node(missing=missing)))
    assert finding.level is Level.PROBLEM
    assert seen in finding.seen
    assert "trn1.32xlarge has 16" in finding.seen


def test_an_unknown_type_is_a_note_that_says_what_is_lost(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    product_name = node.paths.sysfs / "class/dmi/id/product_name"
    product_name.chmod(0o644)
    product_name.write_text("trn9.48xlarge\n")
    finding = the_finding("devices", facts_of(node))
    assert finding.level is Level.NOTE
    assert "trn9.48xlarge is not known" in finding.seen
    assert "--instance-types" in finding.action


def test_a_device_that_cannot_be_used_is_a_problem(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(5, "core_count", "many")
    finding = the_finding("devices", facts_of(node))
    assert finding.level is Level.PROBLEM
    assert "neuron5" in finding.seen
    assert "'many'" in finding.seen


def test_a_driver_without_devices_is_a_problem(make_node: MakeNode) -> None:
    finding = the_finding("devices", facts_of(make_node("trn1.2xlarge", missing=(0,))))
    assert finding.level is Level.PROBLEM
    assert "lists no device" in finding.seen


def test_without_the_driver_this_is_not_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    assert not the_finding("devices", facts_of(node)).checked


def test_a_chip_on_the_bus_without_a_device_is_a_problem(well: Facts) -> None:
    chips = tuple(PciFunction(f"0000:{number:02x}:00.0", "Trainium1") for number in range(17))
    finding = the_finding("devices", with_host(well, pci=chips))
    assert "has 17 Neuron chips, the driver lists 16" in finding.seen
    assert is_fine("devices", with_host(well, pci=chips[:16]))
