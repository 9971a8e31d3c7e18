from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.hardware import ResetState
from neuron_plugin.inspection.facts import ClusterFacts, Daemon, Facts, NodeFile
from neuron_plugin.inspection.findings import Level, Unknown
from neuron_plugin.plugin.health import Action, HealthRules, SignalRule, judge_once
from neuron_plugin.simulation import SimulatedNode, write_node
from tests.inspection.cases import ask, facts_of, is_fine, the_finding, with_host
from tests.inspection.doubles import MakeNode

CHIP = "Trainium1"


def test_a_current_driver_is_fine(well: Facts) -> None:
    assert is_fine("driver", well)
    assert "2.30.2.0" in ask("driver", well)[0].seen


def test_a_driver_that_is_not_loaded_is_a_problem(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.unload_driver()
    finding = the_finding("driver", facts_of(node))
    assert finding.level is Level.PROBLEM
    assert "not loaded" in finding.seen
    assert "modprobe neuron" in finding.action


@pytest.mark.parametrize(
    ("pci", "seen"),
    [((CHIP, CHIP), "though the PCI bus has 2 Trainium1 chips"), ((), "the PCI bus has no Neuron chip")],
)
def test_the_pci_bus_tells_a_missing_driver_from_missing_hardware(
    make_node: MakeNode, pci: tuple[str, ...], seen: str
) -> None:
    node = make_node("inf2.24xlarge")
    node.unload_driver()
    assert seen in the_finding("driver", with_host(facts_of(node), pci=pci)).seen


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("2.12.13.0", "knows host numbers only (fixed in 2.12.14)"),
        ("2.13.3.0", "does not show which devices are linked"),
        ("2.26.4.9", "can crash the kernel"),
        ("2.26.5.0", "does not work with the Neuron runtime of SDK 2.32"),
    ],
)
def test_a_known_fault_is_reported_up_to_the_version_that_fixed_it(tmp_path: Path, driver: str, said: str) -> None:
    node = write_node(tmp_path / "node", "trn1.2xlarge", driver_version=driver, usage_counters=False)
    findings = ask("driver", facts_of(node))
    assert said in findings[0].seen
    assert all(finding.why and finding.action for finding in findings)


def test_a_fault_of_products_that_are_not_here_is_not_reported(make_node: MakeNode) -> None:
    findings = ask("driver", facts_of(make_node("inf1.xlarge")))
    (finding,) = findings
    assert "can crash the kernel" in finding.seen
    assert finding.level is Level.NOTE
    assert "no newer driver supports Inf1" in finding.action


def test_inf1_chips_with_a_driver_that_dropped_them_are_a_problem(well: Facts) -> None:
    facts = with_host(well, pci=("Inferentia",))
    finding = the_finding("driver", facts)
    assert finding.level is Level.PROBLEM
    assert "2.24" in finding.action


def test_inf1_chips_with_a_driver_that_knows_them_are_none(make_node: MakeNode) -> None:
    facts = with_host(facts_of(make_node("inf1.xlarge")), pci=("Inferentia",))
    assert not [finding for finding in ask("driver", facts) if finding.level is Level.PROBLEM]


def test_a_version_that_cannot_be_read_is_reported_with_what_follows(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    (node.paths.sysfs / "module/neuron/version").unlink()
    finding = the_finding("driver", facts_of(node))
    assert finding.level is Level.WARNING
    assert "host numbers" in finding.why


def test_without_a_pci_bus_to_look_at_nothing_is_said_of_it(well: Facts) -> None:
    assert isinstance(well.host.pci, Unknown)
    assert is_fine("devices", well)


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
    chips = ("Trainium1",) * 17
    finding = the_finding("devices", with_host(well, pci=chips))
    assert "has 17 Neuron chips, the driver lists 16" in finding.seen
    assert is_fine("devices", with_host(well, pci=chips[:16]))


@pytest.mark.parametrize(
    ("size", "seen"), [(None, "LNC 2 (hardware default)"), (1, "LNC 1 (logical_nc_config)"), (2, "LNC 2 (logical")]
)
def test_a_legal_size_is_reported_with_its_source(make_node: MakeNode, size: int | None, seen: str) -> None:
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
    assert is_fine("sysfs", facts)  # reported once


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
def test_what_is_wrong_with_a_device_is_reported_with_its_remedy(
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
    key = facts.machine.inventory.devices[4].serial_number
    memory = {key: accepted} if accepted else {}
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
    facts = replace(facts_of(node), daemon=Daemon(unhealthy=(1, 2, 40)))
    said = [finding.seen for finding in ask("health", facts)]
    assert said == [
        "neuron2: 1 uncorrected SRAM error",
        "the daemon reports device 1 unhealthy, and sysfs shows no error",
    ]


def real(well: Facts, *nodes: NodeFile) -> Facts:
    """Two devices with real character devices, some of them replaced."""
    usual = {device: NodeFile(device, is_character=True, mode=0o666, numbers=(243, device)) for device in range(2)}
    found = usual | {node.device: node for node in nodes}
    return with_host(well, simulated=False, nodes=tuple(found.values()), numbers={0: (243, 0), 1: (243, 1)})


def test_plain_files_of_a_simulated_machine_are_fine_and_reported(well: Facts) -> None:
    assert is_fine("device-nodes", well)
    assert ask("device-nodes", well)[0].seen.endswith(" (plain files: simulated)")


def test_character_devices_of_a_simulated_machine_are_reported_as_what_they_are(well: Facts) -> None:
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
def test_a_wrong_node_is_reported(well: Facts, node: NodeFile, level: Level, seen: str) -> None:
    finding = the_finding("device-nodes", real(well, node))
    assert finding.level is level
    assert seen in finding.seen
    assert f"neuron{node.device}" in finding.seen


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
    facts = replace(well, machine=replace(well.machine, inventory=inventory))
    finding = the_finding("sysfs", facts)
    assert not finding.checked
    assert path in finding.seen
    assert "root" in finding.action


def test_attributes_that_an_old_driver_cannot_have_are_no_finding(make_node: MakeNode) -> None:
    assert is_fine("sysfs", facts_of(make_node("trn1.2xlarge", driver_version="2.13.3.0")))


def test_an_attribute_that_an_old_driver_does_not_make_is_a_note(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(2, "info/architecture/arch_type", None)
    finding = the_finding("sysfs", facts_of(node))
    assert finding.level is Level.NOTE
    assert "/neuron2/info/architecture/arch_type does not exist; NDv3 is assumed" in finding.seen


def test_masked_cores_are_reported(make_node: MakeNode) -> None:
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


def disabling(facts: Facts, text: str, *daemon: int) -> Facts:
    """What the Node's annotation says, and what the daemon has out of service."""
    assert isinstance(facts.cluster, ClusterFacts)
    annotations = {**facts.cluster.annotations, DISABLE_KEY: text}
    return replace(
        facts,
        cluster=replace(facts.cluster, annotations=annotations),
        daemon=replace(facts.daemon, disabled=daemon),
        machine=replace(facts.machine, disabled=daemon),
    )


def test_devices_out_of_service_are_a_note_that_says_how_to_put_them_back(well: Facts) -> None:
    assert is_fine("disabled", well)
    finding = the_finding("disabled", disabling(well, "3, 5", 3, 5))
    assert finding.level is Level.NOTE
    assert finding.seen == "devices 3,5 are out of service"
    assert "neuron-plugin uncordon NODE 3,5" in finding.action


def test_without_an_api_server_the_daemon_says_what_is_out_of_service(well: Facts) -> None:
    facts = replace(disabling(well, "", 3), cluster=Unknown("no API server is known"))
    assert the_finding("disabled", facts).seen == "device 3 is out of service"
    (unseen,) = ask("disabled", replace(facts, daemon=replace(facts.daemon, disabled=Unknown("no daemon answers"))))
    assert not unseen.checked


def test_a_list_that_cannot_be_read_is_a_warning_beside_what_the_daemon_goes_by(well: Facts) -> None:
    warning, note = ask("disabled", disabling(well, "3;5", 3))
    assert (warning.level, note.seen) == (Level.WARNING, "device 3 is out of service")
    assert "reads '3;5'" in warning.seen


def test_an_id_that_is_no_device_of_the_machine_is_a_warning(well: Facts) -> None:
    warning, note = ask("disabled", disabling(well, "3,57", 3))
    assert (warning.level, note.seen) == (Level.WARNING, "device 3 is out of service")
    assert "names device 57, this machine has 0 to " in warning.seen


def test_a_daemon_that_does_not_follow_the_annotation_is_a_warning(well: Facts) -> None:
    _, warning = ask("disabled", disabling(well, "3,5", 3))
    assert warning.level is Level.WARNING
    assert warning.seen == "the daemon has 3 out of service, the annotation says 3,5"
