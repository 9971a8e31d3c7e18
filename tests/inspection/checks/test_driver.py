from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import Facts, PciFunction
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.simulation import write_node
from tests.inspection.cases import ask, facts_of, is_fine, the_finding, with_host
from tests.inspection.doubles import MakeNode

CHIP = PciFunction("0000:10:1c.0", "Trainium1")


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
    make_node: MakeNode, pci: tuple[PciFunction, ...], seen: str
) -> None:
    node = make_node("inf2.24xlarge")
    node.unload_driver()
    assert seen in the_finding("driver", with_host(facts_of(node), pci=pci)).seen


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("2.12.13.0", "knows host numbers only (mended in 2.12.14)"),
        ("2.13.3.0", "does not tell which devices are linked"),
        ("2.14.4.0", "has no counters of memory errors"),
        ("2.26.4.9", "can crash the kernel"),
        ("2.26.5.0", "does not work with the Neuron runtime of SDK 2.32"),
        ("2.27.9.0", "may count a repairable memory error"),
        ("2.30.1.0", "does not tell which parts of a device are broken"),
    ],
)
def test_known_trouble_is_told_up_to_the_version_that_mended_it(tmp_path: Path, driver: str, said: str) -> None:
    node = write_node(tmp_path / "node", "trn1.2xlarge", driver_version=driver, usage_counters=False)
    findings = ask("driver", facts_of(node))
    assert said in findings[0].seen
    assert all(finding.why and finding.action for finding in findings)


def test_trouble_of_products_that_are_not_here_is_not_told(make_node: MakeNode) -> None:
    findings = ask("driver", facts_of(make_node("inf1.xlarge")))
    (finding,) = findings
    assert "can crash the kernel" in finding.seen
    assert finding.level is Level.NOTE
    assert "no newer driver supports Inf1" in finding.action


def test_inf1_chips_with_a_driver_that_dropped_them_are_a_problem(well: Facts) -> None:
    facts = with_host(well, pci=(PciFunction("0000:00:1f.0", "Inferentia"),))
    finding = the_finding("driver", facts)
    assert finding.level is Level.PROBLEM
    assert "2.24" in finding.action


def test_inf1_chips_with_a_driver_that_knows_them_are_none(make_node: MakeNode) -> None:
    facts = with_host(facts_of(make_node("inf1.xlarge")), pci=(PciFunction("0000:00:1f.0", "Inferentia"),))
    assert not [finding for finding in ask("driver", facts) if finding.level is Level.PROBLEM]


def test_a_version_that_cannot_be_read_is_told_with_what_follows(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    (node.paths.sysfs / "module/neuron/version").unlink()
    finding = the_finding("driver", facts_of(node))
    assert finding.level is Level.WARNING
    assert "host numbers" in finding.why


def test_without_a_pci_bus_to_look_at_nothing_is_said_of_it(well: Facts) -> None:
    assert isinstance(well.host.pci, Unknown)
    assert is_fine("devices", well)
