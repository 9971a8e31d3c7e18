"""Are all devices there that this machine should have, are they well, and how many cores has each?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuron_plugin.hardware import Finding as Symptom
from neuron_plugin.hardware import Severity, Signal, SkippedDevice
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Finding, note, ok, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.text import named, plural, ranges
from neuron_plugin.inspection.unknown import NO_DEVICE, Unknown
from neuron_plugin.topology import Geometry


def check_devices(facts: Facts) -> Iterator[Finding]:
    """Devices the driver lists, against the instance type and the PCI bus."""
    machine = facts.machine
    if not facts.host.driver_loaded:
        yield unchecked(NO_DEVICE)
        return
    if machine.geometry is None and not machine.inventory.skipped:
        yield _none(facts)
    elif machine.geometry:
        yield _present(facts, machine.geometry)
    yield from (_skipped(device) for device in machine.inventory.skipped)
    if machine.missing:
        yield _missing(facts)
    yield from _unlike_pci(facts)


def _none(facts: Facts) -> Finding:
    return problem(
        f"no Neuron device: {facts.machine.inventory.absence}",
        "the plugin offers nothing, and pods that ask for Neuron stay Pending",
        "look for 'neuron' in 'dmesg'; two chips with one routing id make the driver unload itself: reboot then",
    )


def _present(facts: Facts, geometry: Geometry) -> Finding:
    inventory = facts.machine.inventory
    devices = plural(len(inventory.devices), f"{inventory.device_name or 'Neuron'} device")
    each = " each" if len(inventory.devices) > 1 else ""
    seen = f"{devices} with {plural(geometry.cores_per_device, 'logical core')}{each}"
    if facts.machine.instance:
        return ok(f"{seen}, {facts.machine.instance.name}")
    return note(
        f"{seen}; instance type {inventory.instance_type or 'not told by this machine'} is not known here",
        "a missing device cannot be noticed, and the sets that are handed out follow from the driver's links alone",
        "describe the type in a YAML file for --instance-types, or name it with --instance-type",
    )


def _skipped(device: SkippedDevice) -> Finding:
    if is_denied(device.reason):
        return unchecked(Unknown(f"neuron{device.id}: {device.reason}", "run this as root"))
    if device.incomplete:
        return warning(
            f"neuron{device.id} is not complete: {device.reason}",
            "it is offered as soon as the driver has made its attributes",
            "run this again in some seconds",
        )
    return problem(
        f"neuron{device.id} cannot be used: {device.reason}",
        "it is not offered, and no set that needs it can be handed out",
        "look for 'neuron' in 'dmesg'; reload the driver or reboot",
    )


def _missing(facts: Facts) -> Finding:
    missing, geometry = facts.machine.missing, facts.machine.geometry
    count = geometry.device_count if geometry else 0
    return problem(
        f"{_named(missing)} missing: {facts.machine.inventory.instance_type or 'the type'} has {count} devices",
        "no set with one that is missing can be handed out; on most types the driver also prints no links then",
        "look for 'neuron' in 'dmesg'; reboot, and replace the instance if that does not help",
    )


def _unlike_pci(facts: Facts) -> Iterator[Finding]:
    pci, inventory = facts.host.pci, facts.machine.inventory
    listed = len(inventory.devices) + len(inventory.skipped)
    if not isinstance(pci, Unknown) and listed and len(pci) > listed:
        yield problem(
            f"the PCI bus has {plural(len(pci), 'Neuron chip')}, the driver lists {listed}",
            "the driver could not bring some of them up",
            "look for 'neuron' in 'dmesg'; reboot, and replace the instance if that does not help",
        )


def _named(devices: tuple[int, ...]) -> str:
    return f"neuron{devices[0]} is" if len(devices) == 1 else f"devices {ranges(devices)} are"


def is_denied(text: str) -> bool:
    """Whether this is the complaint of ``hardware.sysfs`` about a file that only root may read."""
    return "may not be read" in text


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
