"""Are all devices there that this machine should have?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, ok, problem, unchecked, warning
from neuron_plugin.cli.text import plural, ranges
from neuron_plugin.hardware.records import SkippedDevice
from neuron_plugin.topology.geometry import Geometry

NO_DEVICE = Unknown("there is no device", "mend what the checks above report first")


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
