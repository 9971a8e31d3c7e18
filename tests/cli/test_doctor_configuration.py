from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.cli.doctor_facts import Daemon, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, is_fine, the_finding

FILE = Path("/etc/neuron-plugin/config.yaml")


def going_by(facts: Facts, **daemon: object) -> Facts:
    return replace(facts, daemon=Daemon(**daemon))  # type: ignore[arg-type]  # fields by name


def test_a_configuration_that_can_be_used_is_fine(well: Facts) -> None:
    assert is_fine("configuration", going_by(well, file=FILE))


def test_one_with_which_the_daemon_does_not_start_is_a_problem(well: Facts) -> None:
    finding = the_finding("configuration", going_by(well, file=FILE, trouble="f has the unknown key 'helth'"))
    assert finding.level is Level.PROBLEM
    assert "helth" in finding.seen


@pytest.mark.parametrize("daemon", [{}, {"file": FILE, "trouble": Unknown("may not be read", "run this as root")}])
def test_one_that_is_not_known_is_not_checked(well: Facts, daemon: dict[str, object]) -> None:
    assert not the_finding("configuration", going_by(well, **daemon)).checked


def test_a_memory_that_is_not_known_is_a_note(well: Facts) -> None:
    facts = going_by(well, file=FILE, memory=Unknown("health.json is not there", "wait"))
    assert [finding.level for finding in ask("configuration", facts)] == [Level.OK, Level.NOTE]
    assert "are told like new ones" in the_finding("configuration", facts).why
