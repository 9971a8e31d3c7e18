"""Does the running daemon hear all that it could of the hardware?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, or_ok, unchecked, warning


def check_sources(facts: Facts) -> Iterator[Finding]:
    """Uevents, firmware's notices, sysfs, the kernel log and the memory of old errors, as the daemon says itself."""
    silent = facts.daemon.silent
    if isinstance(silent, Unknown):
        yield unchecked(silent)
        return
    findings = (
        warning(
            line,
            "the daemon goes on without it: what only this source tells is not noticed, or noticed later",
            "do what it says, or leave it where the source is not wanted; the others go on",
        )
        for line in silent
    )
    yield from or_ok(findings, "the daemon hears every source")
