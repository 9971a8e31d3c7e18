"""How many physical cores make a logical one, and is that legal here?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_devices import NO_DEVICE
from neuron_plugin.cli.doctor_facts import Facts
from neuron_plugin.cli.doctor_findings import Finding, or_ok, unchecked, warning


def check_logical_cores(facts: Facts) -> Iterator[Finding]:
    """LNC: in force, and what was passed over."""
    if not facts.machine.inventory.devices:
        yield unchecked(NO_DEVICE)
        return
    lnc = facts.machine.inventory.logical_core_size
    yield from or_ok(
        (
            warning(
                text,
                f"{lnc.size} is used instead ({lnc.source}); a container that is told the other value fails at start",
                f"correct {facts.machine.paths.logical_nc_config}, or remove it, and restart the plugin",
            )
            for text in lnc.problems
        ),
        f"LNC {lnc.size} ({lnc.source})",
    )
