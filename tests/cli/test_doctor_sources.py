from __future__ import annotations

from dataclasses import replace

from neuron_plugin.cli.doctor_facts import Daemon, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import is_fine, the_finding


def test_a_daemon_that_hears_everything_is_fine(well: Facts) -> None:
    assert is_fine("sources", well)


def test_p70_a_source_that_does_not_work_is_a_warning_in_the_daemons_words(well: Facts) -> None:
    line = "kernel-log is not running: /dev/kmsg cannot be opened"
    finding = the_finding("sources", replace(well, daemon=Daemon(silent=(line,))))
    assert (finding.level, finding.seen) == (Level.WARNING, line)


def test_a_daemon_that_cannot_be_asked_is_not_checked(well: Facts) -> None:
    facts = replace(well, daemon=Daemon(silent=Unknown("no daemon answers", "run this in the plugin's pod")))
    assert not the_finding("sources", facts).checked
