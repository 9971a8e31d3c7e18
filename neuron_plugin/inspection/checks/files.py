"""What the driver makes on this machine: device nodes that containers can use, attributes that can be read.

A runtime makes a container's node from the host's: same numbers, same mode. So a wrong host node is a wrong node in
every container.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from neuron_plugin.hardware import Inventory, without_error_counters
from neuron_plugin.inspection.checks.devices import is_denied
from neuron_plugin.inspection.facts import Facts, NodeFile
from neuron_plugin.inspection.findings import Finding, note, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.text import named, plural, ranges
from neuron_plugin.inspection.unknown import NO_DEVICE, Unknown
from neuron_plugin.topology import Topology, links_of

_FOR_EVERYBODY = 0o666


def check_nodes(facts: Facts) -> Iterator[Finding]:
    """Present, character devices of this driver, and for everybody; none left over."""
    nodes = facts.host.nodes
    if isinstance(nodes, Unknown):
        yield unchecked(nodes)
    elif not facts.host.numbers and not nodes:
        yield unchecked(NO_DEVICE)
    else:
        listed = [node for node in nodes if node.device in facts.host.numbers]
        yield from or_ok(
            (*_missing(facts, listed), *_wrong(facts, listed), *_strays(facts, nodes)),
            f"{plural(len(listed), 'device node')}, for everybody to read and write{_simulated(facts, listed)}",
        )


def _simulated(facts: Facts, listed: Iterable[NodeFile]) -> str:
    if not facts.host.simulated:
        return ""
    return " (simulated)" if all(node.is_character for node in listed) else " (plain files: simulated)"


def _missing(facts: Facts, listed: Iterable[NodeFile]) -> Iterator[Finding]:
    missing = set(facts.host.numbers) - {node.device for node in listed}
    if missing:
        yield problem(
            f"there is no {_paths(facts, missing)}, though the driver lists {_it(missing)}",
            "containers with it fail with CreateContainerError, so it is offered as unhealthy",
            "run 'udevadm trigger --subsystem-match=neuron_device', or reload the driver",
        )


def _wrong(facts: Facts, listed: Iterable[NodeFile]) -> Iterator[Finding]:
    characters = [node for node in listed if node.is_character]
    if plain := [node.device for node in listed if not node.is_character and not facts.host.simulated]:
        yield problem(
            f"{_paths(facts, plain)} is no character device",
            "containers get a file that leads nowhere",
            "remove the file, then run 'udevadm trigger --subsystem-match=neuron_device'",
        )
    if stale := _devices(characters, lambda node: facts.host.numbers[node.device] not in {None, node.numbers}):
        yield problem(
            f"{_paths(facts, stale)} has other numbers than the driver's sysfs tells",
            "it is left from before the driver was loaded again: containers get a node that leads nowhere",
            "remove it, then run 'udevadm trigger --subsystem-match=neuron_device'",
        )
    major = facts.host.major
    if isinstance(major, int) and _devices(characters, lambda node: node.numbers[0] != major) and not stale:
        yield problem(
            f"the kernel knows the driver as major {major}, sysfs and the device nodes say another",
            "the nodes lead to another driver, or nowhere",
            "reload the driver, or reboot",
        )
    if closed := _devices(listed, lambda node: node.mode & _FOR_EVERYBODY != _FOR_EVERYBODY):
        modes = ", ".join(sorted({f"{node.mode:04o}" for node in listed if node.device in closed}))
        yield warning(
            f"{_paths(facts, closed)} has mode {modes}, expected 0666",
            "containers get the same mode: there only root can open the device",
            "restore the driver's rule (/lib/udev/rules.d/neuron-udev.rules) and run 'udevadm trigger'; until then "
            "'chmod 0666' them",
        )


def _strays(facts: Facts, nodes: Iterable[NodeFile]) -> Iterator[Finding]:
    strays = [node.device for node in nodes if node.device not in facts.host.numbers]
    if strays:
        yield warning(
            f"{_paths(facts, strays)} is there, but the driver lists no such device",
            "left over; the runtime on the host takes every such file for a device",
            "remove it, unless the driver is just being loaded",
        )


def _devices(nodes: Iterable[NodeFile], is_wrong: Callable[[NodeFile], bool]) -> list[int]:
    return [node.device for node in nodes if is_wrong(node)]


def _it(devices: Collection[int]) -> str:
    return "the device" if len(devices) == 1 else "the devices"


def _paths(facts: Facts, devices: Iterable[int]) -> str:
    return f"{facts.machine.paths.dev}/neuron{ranges(devices)}"


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
