from __future__ import annotations

from dataclasses import replace

from neuron_plugin.cli.doctor_facts import Facts
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, facts_of, is_fine, the_finding
from tests.cli.doubles import MakeNode


def test_a_whole_tree_is_fine(well: Facts) -> None:
    assert is_fine("sysfs", well)


def test_one_broken_attribute_of_several_devices_is_one_line(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for device in (2, 3, 5):
        node.set_attribute(device, "info/serial_number", "none")
    finding = the_finding("sysfs", facts_of(node))
    assert finding.level is Level.WARNING
    assert "/neuron2-3,5/info/serial_number reads 'none" in finding.seen


def test_what_may_not_be_read_is_not_checked_and_asks_for_root(well: Facts) -> None:
    path = "/sys/class/neuron_device/neuron0/reset"
    devices = (replace(well.machine.inventory.devices[0], problems=(f"{path} may not be read (denied): root can",)),)
    inventory = replace(well.machine.inventory, devices=devices)
    facts = replace(well, machine=replace(well.machine, inventory=inventory, geometry=None))
    finding = the_finding("sysfs", facts)
    assert not finding.checked
    assert path in finding.seen
    assert "root" in finding.action


def test_attributes_that_an_old_driver_cannot_have_are_no_finding(make_node: MakeNode) -> None:
    assert is_fine("sysfs", facts_of(make_node("trn1.2xlarge", driver_version="2.13.3.0")))


def test_an_attribute_that_an_old_driver_does_not_make_is_a_note(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.remove_attribute(2, "info/architecture/arch_type")
    finding = the_finding("sysfs", facts_of(node))
    assert finding.level is Level.NOTE
    assert "/neuron2/info/architecture/arch_type does not exist; NDv3 is assumed" in finding.seen


def test_counters_of_errors_that_are_nowhere_are_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for name in ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected"):
        node.remove_attribute(3, f"stats/hardware/{name}")
    finding = the_finding("sysfs", facts_of(node))
    assert finding.level is Level.WARNING
    assert finding.seen.endswith("/neuron3 has no counters of memory errors")


def test_blanked_links_are_a_note_with_the_missing_chip_as_the_cause(make_node: MakeNode) -> None:
    finding = the_finding("sysfs", facts_of(make_node(missing=(3,))))
    assert finding.level is Level.NOTE
    assert "prints no links" in finding.seen


def test_links_unlike_the_types_are_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(4, "connected_devices", "1, 2\n")
    finding = the_finding("sysfs", facts_of(node))
    assert finding.level is Level.WARNING
    assert "device 4 is linked otherwise than in a line" in finding.seen


def test_masked_cores_are_told(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    core = node.paths.sysfs / "devices/virtual/neuron_device/neuron0/neuron_core1"
    core.rename(core.with_name("elsewhere"))
    assert "dev_nc_map" in the_finding("sysfs", facts_of(node)).seen


def test_without_a_device_nothing_is_checked(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.unload_driver()
    facts = facts_of(node)
    for name in ("sysfs", "logical-cores", "health"):
        assert [finding.checked for finding in ask(name, facts)] == [False]
