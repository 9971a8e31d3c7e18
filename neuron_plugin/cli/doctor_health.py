"""Is any device sick?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuron_plugin.cli.doctor_devices import NO_DEVICE
from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, or_ok, problem, unchecked, warning
from neuron_plugin.cli.text import named, plural, ranges
from neuron_plugin.hardware.health import Finding as Symptom
from neuron_plugin.hardware.health import Severity, Signal

_REMEDIES: Mapping[Signal, str] = {
    Signal.RESET_FAILED: "end what uses the device and reset it again; else reload the driver or reboot",
    Signal.SRAM_ECC: "drain the node and replace the instance; the count goes at a power cycle (stop and start)",
    Signal.MEMORY_ECC: "drain the node and replace the instance; the count goes at a power cycle (stop and start)",
    Signal.REPAIRABLE_ECC: "let the node drain at a good moment and reboot it: that repairs the memory",
    Signal.COMPONENTS: "drain the node and replace the instance",
}

_PASSING = {
    Signal.RESETTING: ("a container that opens it waits until that is over", "if it lasts for a minute, see 'dmesg'")
}
_LASTING = ("the device is not handed out once this has lasted, as the health settings say", "run this again later")


def check_health(facts: Facts) -> Iterator[Finding]:
    """What each device's health attributes say; its node has a check of its own."""
    verdicts = facts.machine.verdicts
    if not verdicts:
        yield unchecked(NO_DEVICE)
        return
    sick = (
        _told(device, symptom)
        for device, verdict in sorted(verdicts.items())
        for symptom in verdict.findings
        if symptom.signal is not Signal.NODE
    )
    yield from or_ok((*sick, *_held_back(facts)), f"{plural(len(verdicts), 'device')} without errors")
    yield from _heartbeats(facts)


def _told(device: int, symptom: Symptom) -> Finding:
    seen = f"neuron{device}: {symptom.text}"
    if symptom.severity is Severity.PASSING:
        return note(seen, *_PASSING.get(symptom.signal, _LASTING))
    remedy = _REMEDIES.get(symptom.signal, "see 'dmesg'")
    if symptom.severity is Severity.WARNING:
        return warning(seen, "the device is still handed out", remedy)
    return problem(seen, "the device is not handed out; pods that have it keep it", remedy)


def _held_back(facts: Facts) -> Iterator[Finding]:
    """What the daemon knows and a look cannot: errors of the kernel log, and of a while ago."""
    daemons = () if isinstance(facts.daemon.held_back, Unknown) else facts.daemon.held_back
    sound = {int(device) for device, verdict in facts.machine.verdicts.items() if verdict.healthy}
    if unseen := sound & set(daemons):
        yield problem(
            f"the daemon holds {named('device', unseen)} back, and this look finds nothing wrong",
            "it has seen an error that is not to be seen any more: in the kernel log, or of a while ago",
            "see the node's events NeuronDeviceUnhealthy for the reason, and 'dmesg'; it ends by the health settings",
        )


def _heartbeats(facts: Facts) -> Iterator[Finding]:
    beats: dict[str, list[int]] = {}
    for device in facts.machine.inventory.devices:
        if device.health.heartbeat is not None:
            beats.setdefault(device.health.heartbeat, []).append(device.id)
    if beats:
        yield note(
            f"firmware's heartbeat reads {', '.join(f'{beat} (neuron{ranges(ids)})' for beat, ids in beats.items())}",
            "it is not judged: the vendor documents neither its unit nor how often it has to change",
            "nothing; where other signs are bad, see whether it still changes",
        )
