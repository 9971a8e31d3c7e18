from __future__ import annotations

from collections.abc import Callable

import pytest

from neuron_plugin.cli.doctor_facts import Facts
from neuron_plugin.cli.doctor_findings import Level
from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.simulation.node import SimulatedNode
from tests.cli.doctor_cases import facts_of, is_fine, the_finding
from tests.cli.doubles import MakeNode


def test_devices_without_errors_are_fine(well: Facts) -> None:
    assert is_fine("health", well)


@pytest.mark.parametrize(
    ("spoil", "level", "seen", "action"),
    [
        (lambda node: node.set_ecc(4, memory=1), Level.PROBLEM, "1 uncorrected memory errors", "replace the instance"),
        (lambda node: node.set_ecc(4, sram=2), Level.PROBLEM, "2 uncorrected SRAM errors", "replace the instance"),
        (lambda node: node.set_ecc(4, repairable=1), Level.WARNING, "1 repairable", "reboot"),
        (lambda node: node.set_reset(4, ResetState.FAILED), Level.PROBLEM, "reset failed", "reset it again"),
        (lambda node: node.set_reset(4, ResetState.RESETTING), Level.NOTE, "under way", "dmesg"),
        (lambda node: node.set_unhealthy_components(4, ["hbm"]), Level.PROBLEM, "hbm", "replace the instance"),
    ],
)
def test_what_is_wrong_with_a_device_is_told_with_its_remedy(
    make_node: MakeNode, spoil: Callable[[SimulatedNode], None], level: Level, seen: str, action: str
) -> None:
    node = make_node("inf2.24xlarge")
    spoil(node)
    finding = the_finding("health", facts_of(node))
    assert finding.level is level
    assert finding.seen.startswith("neuron4: ")
    assert seen in finding.seen
    assert action in finding.action


def test_a_missing_node_is_left_to_its_own_check(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.remove_node(2)
    assert is_fine("health", facts_of(node))
