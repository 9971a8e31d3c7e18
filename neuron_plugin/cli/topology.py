"""``neuron-plugin topology``: how a machine's devices are linked, who has them, and which sets are free."""

from __future__ import annotations

import os
import string
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from neuron_plugin.allocation import Ledger
from neuron_plugin.cli.command import CommandError, Exit, complain
from neuron_plugin.cli.devices import title_of
from neuron_plugin.cli.drawing import ASCII, UNICODE, drawn, grids_of, undrawn
from neuron_plugin.cli.output import Form, Line, Segment, add_output_flag, document, plain, print_lines
from neuron_plugin.cli.target import HOLDERS, add_node_flags, node_from
from neuron_plugin.inspection import (
    HolderReading,
    Machine,
    TopologyReport,
    look,
    machine_report,
    named,
    ranges,
    topology_report,
)
from neuron_plugin.topology import Geometry, Unit, cores_in

DESCRIPTION = """\
Draw the devices of this machine with their links and holders, and say what can be requested.

Each box is a device with its id; below it stands one mark a core: a letter for each pod (in colour
on a terminal), "." for a free core. A stub at the edge of a torus continues at the opposite edge. A
set of devices can be allocated together when its devices are linked; the list says which counts
exist and which of their sets are free now."""

EXAMPLES = """
neuron-plugin topology
neuron-plugin topology --ascii > topology.txt
neuron-plugin topology -o json | jq '.deviceSets[] | {count, free: (.freeSets | length)}'
neuron-plugin topology --root ./trn1       # a simulated machine, see: neuron-plugin simulate --help
"""

FREE, UNUSABLE, ABSENT, SHARED = (".", "green"), ("!", "bold red"), ("x", "dim"), ("#", "bold magenta")
_MEANINGS = {
    SHARED: "held by more than one pod (see: neuron-plugin devices)",
    FREE: "free",
    UNUSABLE: "not allocatable: unhealthy (see: neuron-plugin devices)",
    ABSENT: "device missing",
}
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "yellow", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta", "bright_blue")


def add_flags(parser: ArgumentParser) -> None:
    """The form of the output, and which node."""
    add_output_flag(parser)
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    add_node_flags(parser, HOLDERS)


def run(arguments: Namespace) -> int:
    """Draw the machine.

    Raises:
        CommandError: there is no Neuron device.
    """
    node = node_from(arguments)
    machine = look(node.settings, os.environ)
    has = machine.node_inventory
    if machine.geometry is None or has is None:
        raise CommandError(f"no Neuron device: {machine.inventory.absence}")
    holders = HolderReading(node.settings.kubelet_dir, node.settings.pod_resources_socket).read(has)
    report = machine_report(machine, holders)
    found = topology_report(machine, machine.geometry, holders, report)
    if arguments.output != Form.TEXT:
        print(document(arguments.output, found), end="")
        return Exit.SUCCESS
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf") and not arguments.ascii
    marks, legend = occupancy(machine, machine.geometry, holders.ledger)
    grids = grids_of(machine.geometry.topology, machine.geometry.device_count)
    lines: list[Line] = plain(title_of(report), "")
    for grid in grids:
        lines += [*drawn(grid, machine.links, marks, UNICODE if unicode else ASCII), []]
    if further := undrawn(grids, machine.links):
        lines += plain("also linked: " + ", ".join(f"{one}-{other}" for one, other in further), "")
    lines += [[mark, *plain(f"  {text}")[0]] for mark, text in legend.items()]
    print_lines([*lines, *plain("", *request_lines(found))])
    for note in report.notes:
        complain(f"note: {note}")
    return Exit.SUCCESS


def occupancy(
    machine: Machine, geometry: Geometry, known: Ledger | None
) -> tuple[dict[int, list[Segment]], dict[Segment, str]]:
    """A mark for each core, by device, and what the marks in use mean, pods first. From the 63rd on pods share a mark.

    ``known`` is None where the holders are not known.
    """
    ledger = known or Ledger()
    letters = [(letter, f"bold {_COLOURS[number % len(_COLOURS)]}") for number, letter in enumerate(_LETTERS)]
    containers: dict[str, list[str]] = {}
    for each in ledger.allocations:
        whole = each.resource.unit is Unit.DEVICE
        ids = geometry.whole_devices(each.mask) if whole else cores_in(each.mask)
        containers.setdefault(str(each.pod), []).append(f"{each.container} {named(each.resource.unit.value, ids)}")
    letter_of = dict(zip(containers, letters, strict=False))
    marks: dict[int, list[Segment]] = {}
    for device in range(geometry.device_count):
        marks[device] = []
        for core in cores_in(geometry.device_mask(device)):
            pods = {str(each.pod) for each in ledger.overlapping(1 << core)}
            if device not in machine.inventory.device_ids:
                mark = ABSENT
            elif pods:
                mark = letter_of.get(pods.pop(), SHARED) if len(pods) == 1 else SHARED
            else:
                mark = FREE if machine.usable_mask >> core & 1 else UNUSABLE
            marks[device].append(mark)
    meanings = dict(_MEANINGS)
    if known is None:
        meanings[FREE] = "free unless a pod holds it (holders are not known)"
    used = {mark for device_marks in marks.values() for mark in device_marks}
    legend = {mark: f"{pod}: {', '.join(containers[pod])}" for pod, mark in letter_of.items()}
    return marks, legend | {mark: text for mark, text in meanings.items() if mark in used}


def request_lines(report: TopologyReport) -> Iterator[str]:
    """Which counts a pod can request, and which sets of them are free."""
    devices, cores = ranges(sets.count for sets in report.device_sets), ranges(report.core_counts)
    yield f"Counts that can be requested: devices {devices}; cores {cores}."
    known = report.holders_known
    yield "Sets of devices that are free now:" if known else "Sets of devices, free unless a pod holds them:"
    for each in report.device_sets:
        listed = "  ".join(ranges(ids) for ids in each.free_sets)
        yield f"  {each.count:>2}: {len(each.free_sets):>2} of {len(each.sets):<2}  {listed}".rstrip()
    state = "free now" if known else "free unless a pod holds them"
    yield f"Counts of cores that are {state}: {ranges(report.free_core_counts) if report.free_core_counts else 'none'}."
