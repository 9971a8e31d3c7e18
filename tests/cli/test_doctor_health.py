from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neuron_plugin.cli.doctor_facts import Daemon, Facts
from neuron_plugin.cli.doctor_findings import Level
from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.health import device_key
from neuron_plugin.plugin.health.look import judge_once
from neuron_plugin.plugin.health.memory import DeviceMemory, Memory
from neuron_plugin.plugin.health.policy import Action, HealthSettings, SignalPolicy
from neuron_plugin.simulation.node import SimulatedNode
from tests.cli.doctor_cases import ask, facts_of, is_fine, the_finding
from tests.cli.doubles import MakeNode


def test_devices_without_errors_are_fine(well: Facts) -> None:
    assert is_fine("health", well)


@pytest.mark.parametrize(
    ("spoil", "level", "seen", "action"),
    [
        (lambda node: node.set_ecc(4, memory=1), Level.PROBLEM, "1 uncorrected memory error", "replace the instance"),
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


def judged(node: SimulatedNode, settings: HealthSettings, accepted: dict[str, int] | None = None) -> Facts:
    """Facts as a daemon with these policies, and with device 4's errors of old, would have them."""
    facts = facts_of(node)
    key = device_key(facts.machine.inventory.devices[4])
    memory = Memory({key: DeviceMemory(accepted)} if accepted else {})
    verdicts = judge_once(facts.machine.inventory, settings, memory)
    return replace(facts, machine=replace(facts.machine, verdicts=verdicts))


def test_the_daemons_policies_decide_what_a_signal_means(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(4, sram=2)
    assert the_finding("health", judged(node, HealthSettings())).level is Level.PROBLEM
    assert is_fine("health", judged(node, HealthSettings(sram_ecc=SignalPolicy(threshold=3))))
    assert is_fine("health", judged(node, HealthSettings(sram_ecc=SignalPolicy(action=Action.IGNORE))))
    warned = the_finding("health", judged(node, HealthSettings(sram_ecc=SignalPolicy(action=Action.WARN))))
    assert warned.level is Level.WARNING
    patient = the_finding("health", judged(node, HealthSettings(sram_ecc=SignalPolicy(after_seconds=60))))
    assert (patient.level, "once this has lasted" in patient.why) == (Level.NOTE, True)


def test_errors_that_the_daemon_has_accepted_are_none(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_error_events(4, 5)
    unknown = the_finding("health", judged(node, HealthSettings()))
    assert unknown.level is Level.WARNING
    assert unknown.seen.endswith("5 errors in health_status/hw_error_events, which may be old")
    old = {"health-status/hw_error_events": 5}
    assert is_fine("health", judged(node, HealthSettings(), old))
    newer = the_finding("health", judged(node, HealthSettings(), {"health-status/hw_error_events": 4}))
    assert newer.level is Level.WARNING
    assert newer.seen.endswith("4 of them old")


def test_a_heartbeat_is_shown_and_not_judged(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge", driver_version="2.30.2.0")
    node.set_attribute(0, "stats/hardware/health_status/healthcheck_heartbeat", "17\n")
    finding = the_finding("health", facts_of(node))
    assert (finding.level, finding.seen) == (Level.NOTE, "firmware's heartbeat reads 17 (neuron0)")
    assert "not judged" in finding.why


def test_p67_what_only_the_daemon_knows_of_a_device_is_a_problem(make_node: MakeNode) -> None:
    """Such as an error of the kernel log."""
    node = make_node("inf2.24xlarge")
    node.set_ecc(2, sram=1)
    facts = replace(facts_of(node), daemon=Daemon(held_back=(1, 2, 40)))
    told = [finding.seen for finding in ask("health", facts)]
    assert told == [
        "neuron2: 1 uncorrected SRAM error",
        "the daemon holds device 1 back, and this look finds nothing wrong",
    ]
