"""Are the device nodes there, and are they what containers need?

A runtime makes a container's node from the host's: same numbers, same mode. So a wrong host node is a wrong node in
every container.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterable, Iterator

from neuron_plugin.cli.doctor_devices import NO_DEVICE
from neuron_plugin.cli.doctor_facts import Facts, NodeFile, Unknown
from neuron_plugin.cli.doctor_findings import Finding, or_ok, problem, unchecked, warning
from neuron_plugin.cli.text import plural, ranges

_FOR_EVERYBODY = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def check_nodes(facts: Facts) -> Iterator[Finding]:
    """Present, character devices of this driver, and for everybody; none left over."""
    nodes = facts.host.nodes
    if isinstance(nodes, Unknown):
        yield unchecked(nodes)
    elif not facts.host.numbers and not nodes:
        yield unchecked(NO_DEVICE)
    else:
        listed = [node for node in nodes if node.device in facts.host.numbers]
        kind = " (plain files: simulated)" if facts.host.simulated else ""
        yield from or_ok(
            (*_missing(facts, listed), *_wrong(facts, listed), *_strays(facts, nodes)),
            f"{plural(len(listed), 'device node')}, for everybody to read and write{kind}",
        )


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
