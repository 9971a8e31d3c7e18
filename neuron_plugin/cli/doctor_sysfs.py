"""Can everything be read that the driver tells, and does it agree with the type?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.cli.doctor_devices import NO_DEVICE, is_denied
from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, note, or_ok, unchecked, warning
from neuron_plugin.cli.text import named, plural, ranges
from neuron_plugin.hardware.health import without_error_counters
from neuron_plugin.hardware.records import Inventory
from neuron_plugin.topology.geometry import Topology
from neuron_plugin.topology.links import links_of

_ANY = "\0"
"""Stands for the number in a text that is the same for several devices."""


def check_sysfs(facts: Facts) -> Iterator[Finding]:
    """Attributes that are missing, refused or read as nonsense; links."""
    inventory = facts.machine.inventory
    if not inventory.devices:
        yield unchecked(NO_DEVICE)
        return
    yield from or_ok(
        (*_attributes(facts), *_counters(facts), *_links(facts)),
        f"all attributes of {plural(len(inventory.devices), 'device')} are read",
    )


def _attributes(facts: Facts) -> Iterator[Finding]:
    for text in _troubles(facts.machine.inventory):
        if is_denied(text):
            yield unchecked(Unknown(text, "run this as root"))
        elif text.endswith("is assumed"):
            yield note(
                text,
                "this driver does not make the attribute; the plugin, too, takes what is said here",
                "nothing, unless the driver should: see the check 'driver'",
            )
        else:
            yield warning(
                text,
                "what this attribute tells is not known to the plugin either",
                "look for 'neuron' in 'dmesg'; a driver that is newer than this program may write it differently",
            )


def _counters(facts: Facts) -> Iterator[Finding]:
    if devices := without_error_counters(facts.machine.inventory):
        yield warning(
            f"{facts.machine.paths.sysfs}/class/neuron_device/neuron{ranges(devices)} has no counters of memory errors",
            "a device with broken memory stays offered, unless something else tells of it",
            "look for files named *_ecc_uncorrected there; a driver that is newer than this program may name them "
            "otherwise",
        )


def _troubles(inventory: Inventory) -> list[str]:
    """What could not be read; the same attribute of several devices in one line."""
    lnc = set(inventory.logical_core_size.problems)  # told by the check of logical cores
    devices: dict[str, list[int]] = {}
    for device in inventory.devices:
        for text in device.problems:
            devices.setdefault(text.replace(f"/neuron{device.id}", f"/neuron{_ANY}"), []).append(device.id)
    alike = [text.replace(_ANY, ranges(ids)) for text, ids in devices.items()]
    return [text for text in inventory.problems if text not in lnc] + alike


def _links(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.geometry is None or machine.geometry.topology in {Topology.SINGLE, Topology.UNLINKED}:
        return
    if machine.links_are_assumed:
        yield note(
            "the driver prints no links between devices",
            "it does so while a chip is missing, and before 2.13.4: those of the instance type are used",
            "" if not machine.missing else "bring the missing device back",
        )
        return
    present = set(machine.inventory.device_ids)
    nominal = links_of(machine.geometry.topology, machine.geometry.device_count)
    if odd := [device for device in sorted(present) if machine.links[device] != nominal[device] & present]:
        yield warning(
            f"{named('device', odd)} {'is' if len(odd) == 1 else 'are'} linked otherwise than in a "
            f"{machine.geometry.topology.value}",
            "the sets that are handed out are those of the type: collectives may not run on them",
            "compare with 'neuron-plugin topology'; look for 'neuron' in 'dmesg'",
        )
