from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_facts import Facts, NodeFile, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, facts_of, is_fine, the_finding, with_host
from tests.cli.doubles import MakeNode


def real(well: Facts, *nodes: NodeFile, major: int | Unknown | None = 243) -> Facts:
    """Two devices with real character devices, some of them replaced."""
    usual = {device: NodeFile(device, is_character=True, mode=0o666, numbers=(243, device)) for device in range(2)}
    found = usual | {node.device: node for node in nodes}
    return with_host(
        well, simulated=False, nodes=tuple(found.values()), numbers={0: (243, 0), 1: (243, 1)}, major=major
    )


def test_plain_files_of_a_simulated_machine_are_fine_and_told(well: Facts) -> None:
    assert is_fine("device-nodes", well)
    assert "simulated" in ask("device-nodes", well)[0].seen


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
