from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neuron_plugin.hardware import ResetState, device_key
from neuron_plugin.inspection.facts import Daemon, Facts, PciFunction
from neuron_plugin.inspection.findings import Level
from neuron_plugin.plugin.health import DeviceMemory, Memory, judge_once
from neuron_plugin.plugin.health_rules import Action, HealthRules, SignalRule
from neuron_plugin.simulation import SimulatedNode
from tests.inspection.cases import ask, facts_of, is_fine, the_finding, with_host
from tests.inspection.doubles import MakeNode


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


@pytest.mark.parametrize(
    ("size", "seen"), [(None, "LNC 2 (hardware default)"), (1, "LNC 1 (logical_nc_config)"), (2, "LNC 2 (logical")]
)
def test_a_legal_size_is_told_with_its_source(make_node: MakeNode, size: int | None, seen: str) -> None:
    facts = facts_of(make_node("trn2.3xlarge", logical_core_size=size))
    assert is_fine("logical-cores", facts)
    assert seen in ask("logical-cores", facts)[0].seen


@pytest.mark.parametrize("text", ["NEURON_LOGICAL_NC_CONFIG=4\n", "NEURON_LOGICAL_NC_CONFIG=3\n", "two\n"])
def test_an_illegal_size_is_a_warning_that_says_what_is_used(make_node: MakeNode, text: str) -> None:
    node = make_node("trn2.3xlarge", logical_core_size=1)
    node.paths.logical_nc_config.write_text(text)
    facts = facts_of(node)
    finding = the_finding("logical-cores", facts)
    assert finding.level is Level.WARNING
    assert finding.why.startswith("2 is used instead")
    assert str(node.paths.logical_nc_config) in finding.action
    assert is_fine("sysfs", facts)  # told once


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


def judged(node: SimulatedNode, settings: HealthRules, accepted: dict[str, int] | None = None) -> Facts:
    """Facts as a daemon with these policies, and with device 4's errors of old, would have them."""
    facts = facts_of(node)
    key = device_key(facts.machine.inventory.devices[4])
    memory = Memory({key: DeviceMemory(accepted)} if accepted else {})
    verdicts = judge_once(facts.machine.inventory, settings, memory)
    return replace(facts, machine=replace(facts.machine, verdicts=verdicts))


def test_the_daemons_policies_decide_what_a_signal_means(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(4, sram=2)
    assert the_finding("health", judged(node, HealthRules())).level is Level.PROBLEM
    assert is_fine("health", judged(node, HealthRules(sram_ecc=SignalRule(threshold=3))))
    assert is_fine("health", judged(node, HealthRules(sram_ecc=SignalRule(action=Action.IGNORE))))
    warned = the_finding("health", judged(node, HealthRules(sram_ecc=SignalRule(action=Action.WARN))))
    assert warned.level is Level.WARNING
    patient = the_finding("health", judged(node, HealthRules(sram_ecc=SignalRule(for_seconds=60))))
    assert (patient.level, "once this has lasted" in patient.why) == (Level.NOTE, True)


def test_errors_that_the_daemon_has_accepted_are_none(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_error_events(4, 5)
    unknown = the_finding("health", judged(node, HealthRules()))
    assert unknown.level is Level.WARNING
    assert unknown.seen.endswith("5 errors in health_status/hw_error_events, which may be old")
    old = {"health-status/hw_error_events": 5}
    assert is_fine("health", judged(node, HealthRules(), old))
    newer = the_finding("health", judged(node, HealthRules(), {"health-status/hw_error_events": 4}))
    assert newer.level is Level.WARNING
    assert newer.seen.endswith("4 of them old")


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
