"""Can the daemon's settings be used, and is it known what it goes by?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, ok, problem, unchecked


def check_configuration(facts: Facts) -> Iterator[Finding]:
    """The daemon's file and environment, and its memory of old errors."""
    daemon = facts.daemon
    if isinstance(daemon.trouble, Unknown):
        yield unchecked(daemon.trouble)
    elif daemon.trouble:
        yield problem(
            daemon.trouble,
            "the daemon does not start with it; the other checks assume its defaults",
            "mend it: 'neuron-plugin run --print-config' with the same file and environment says when it is right",
        )
    elif daemon.file is None:
        yield unchecked(
            Unknown(
                "no configuration of the daemon's is known: its defaults are assumed",
                "give --config, or run this in the plugin's pod",
            )
        )
    else:
        yield ok(f"{daemon.file} can be used")
        if isinstance(daemon.memory, Unknown):
            yield note(
                f"which errors are old is not known: {daemon.memory.why}",
                "errors that the daemon has accepted, or that are older than it, are told like new ones",
                daemon.memory.action,
            )
