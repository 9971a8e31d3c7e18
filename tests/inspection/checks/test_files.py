from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.inspection.facts import Facts, NodeFile
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.unknown import Unknown
from tests.inspection.cases import ask, facts_of, is_fine, the_finding, with_host
from tests.inspection.doubles import MakeNode


def real(well: Facts, *nodes: NodeFile, major: int | Unknown | None = 243) -> Facts:
    """Two devices with real character devices, some of them replaced."""
    usual = {device: NodeFile(device, is_character=True, mode=0o666, numbers=(243, device)) for device in range(2)}
    found = usual | {node.device: node for node in nodes}
    return with_host(
        well, simulated=False, nodes=tuple(found.values()), numbers={0: (243, 0), 1: (243, 1)}, major=major
    )


def test_plain_files_of_a_simulated_machine_are_fine_and_told(well: Facts) -> None:
    assert is_fine("device-nodes", well)
    assert ask("device-nodes", well)[0].seen.endswith(" (plain files: simulated)")


def test_character_devices_of_a_simulated_machine_are_told_as_what_they_are(well: Facts) -> None:
    facts = with_host(real(well), simulated=True)
    assert is_fine("device-nodes", facts)
    assert ask("device-nodes", facts)[0].seen.endswith("to read and write (simulated)")


def test_character_devices_for_everybody_are_fine(well: Facts) -> None:
    assert is_fine("device-nodes", real(well))


def test_missing_nodes_are_a_problem(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for device in (1, 2, 5):
        node.remove_node(device)
    finding = the_finding("device-nodes", facts_of(node))
    assert finding.level is Level.PROBLEM
    assert "/dev/neuron1-2,5" in finding.seen


@pytest.mark.parametrize(
    ("node", "level", "seen"),
    [
        (NodeFile(1, is_character=False, mode=0o666), Level.PROBLEM, "is no character device"),
        (NodeFile(1, is_character=True, mode=0o666, numbers=(248, 1)), Level.PROBLEM, "other numbers"),
        (NodeFile(1, is_character=True, mode=0o666, numbers=(243, 7)), Level.PROBLEM, "other numbers"),
        (NodeFile(1, is_character=True, mode=0o600, numbers=(243, 1)), Level.WARNING, "mode 0600, expected 0666"),
        (NodeFile(1, is_character=True, mode=0o664, numbers=(243, 1)), Level.WARNING, "mode 0664, expected 0666"),
        (NodeFile(5, is_character=True, mode=0o666, numbers=(243, 5)), Level.WARNING, "lists no such device"),
    ],
)
def test_a_wrong_node_is_told(well: Facts, node: NodeFile, level: Level, seen: str) -> None:
    finding = the_finding("device-nodes", real(well, node))
    assert finding.level is level
    assert seen in finding.seen
    assert f"neuron{node.device}" in finding.seen


def test_a_major_that_the_kernel_does_not_know_is_a_problem(well: Facts) -> None:
    assert "major 250" in the_finding("device-nodes", real(well, major=250)).seen


@pytest.mark.parametrize("major", [None, Unknown("no /proc/devices")])
def test_without_the_kernels_major_sysfs_is_enough(well: Facts, major: Unknown | None) -> None:
    assert is_fine("device-nodes", real(well, major=major))


def test_numbers_that_sysfs_does_not_tell_are_not_compared(well: Facts) -> None:
    assert is_fine("device-nodes", with_host(real(well), numbers={0: None, 1: None}))


def test_a_directory_that_may_not_be_read_is_not_checked(well: Facts) -> None:
    finding = the_finding("device-nodes", with_host(well, nodes=Unknown("no permission", "run this as root")))
    assert (finding.level, finding.checked) == (Level.NOTE, False)
    assert finding.seen == "not checked: no permission"


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


def test_links_to_a_device_that_is_not_usable_are_not_missed(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(2, "core_count", "x")
    facts = facts_of(node)
    assert [device.id for device in facts.machine.inventory.skipped] == [2]
    assert is_fine("sysfs", facts)
