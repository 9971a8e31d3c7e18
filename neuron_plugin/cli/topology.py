"""``neuron-plugin topology``: the links of a machine's devices, their holders, and the free sets.

The devices are drawn as boxes with their links. Each box has the device's id and one mark a core. Links between boxes
beside each other are drawn. Links around the edge of a torus are stubs at both ends. ``undrawn`` lists all other links.
"""

from __future__ import annotations

import os
import string
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from neuron_plugin.allocation import Ledger
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.cluster import SERVER, add_cluster_flags, add_node_argument, published
from neuron_plugin.cli.command import (
    CommandError,
    Form,
    Line,
    Segment,
    add_output_flag,
    complain,
    plain,
    show,
)
from neuron_plugin.cli.devices import title_of
from neuron_plugin.cli.target import HOLDERS, add_node_flags, node_from
from neuron_plugin.inspection import (
    HolderReading,
    ShownNode,
    TopologyReport,
    disabled_here,
    look,
    machine_report,
    shown_machine,
    topology_report,
)
from neuron_plugin.inspection.published import published_node, published_report
from neuron_plugin.topology import Grid, Unit, cores_in, grids_of
from neuron_plugin.wording import named

LinksByDevice: TypeAlias = Mapping[int, frozenset[int]]

DESCRIPTION = """\
Draw the devices of this machine, or of a node of the cluster by what its plugin has published, with
their links and holders, and say what can be requested.

Each box is a device with its id and one mark a core: a letter for each pod, "." for a free core. A
stub at the edge of a torus continues at the opposite edge."""

EXAMPLES = """
neuron-plugin topology
neuron-plugin topology trn1-2
neuron-plugin topology --ascii > topology.txt
neuron-plugin topology -o json | jq '.deviceSets[] | {count, free: (.freeSets | length)}'
neuron-plugin topology --root ./trn1       # a simulated machine, see: neuron-plugin simulate --help
"""

FREE, UNUSABLE, ABSENT, SHARED = (".", "green"), ("!", "bold red"), ("x", "dim"), ("#", "bold magenta")
_MEANINGS = {
    SHARED: "held by more than one pod (see: neuron-plugin devices)",
    FREE: "free",
    UNUSABLE: "not allocatable: unhealthy, disabled or held down (see: neuron-plugin devices)",
    ABSENT: "device missing",
}
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "yellow", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta", "bright_blue")


def add_flags(parser: ArgumentParser) -> None:
    """Add flags for output and node."""
    add_node_argument(parser)
    add_output_flag(parser)
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    add_node_flags(parser, HOLDERS)
    add_cluster_flags(parser, *SERVER)


def run(arguments: Namespace) -> None:
    """Draw the machine.

    Raises:
        CommandError: there is no Neuron device.
    """
    if arguments.node:
        _, info, has = published(arguments)
        shown, report = published_node(has, info.ledger), published_report(has, info.ledger)
    else:
        node = node_from(arguments)
        machine = look(node.settings, os.environ, disabled_here(node))
        holders = HolderReading(node.settings).read(machine.node_inventory)
        if (found := shown_machine(machine, holders)) is None:
            raise CommandError(f"no Neuron device: {machine.inventory.absence}")
        shown, report = found, machine_report(machine, holders)
    topology = topology_report(shown, report)
    lines = [*plain(title_of(report), ""), *picture(shown, ascii_only=arguments.ascii)]
    show(arguments.output, topology, [*lines, *plain("", *request_lines(topology))])
    for note in report.notes if arguments.output == Form.TEXT else ():
        complain(f"note: {note}")


def picture(shown: ShownNode, *, ascii_only: bool = False) -> list[Line]:
    """The drawing of a node's devices with their links, and a legend of the marks."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf") and not ascii_only
    marks, legend = occupancy(shown)
    geometry = shown.inventory.geometry
    grids = grids_of(geometry.topology, geometry.device_count, LONGEST_ROW)
    lines: list[Line] = []
    for grid in grids:
        box = drawn(grid, shown.links, marks)
        lines += box if unicode else [[(text.translate(TO_ASCII), style) for text, style in line] for line in box]
        lines.append([])
    if further := undrawn(grids, shown.links):
        lines += plain("also linked: " + ", ".join(f"{device}-{other}" for device, other in further), "")
    return [*lines, *([mark, *plain(f"  {text}")[0]] for mark, text in legend.items())]


def occupancy(shown: ShownNode) -> tuple[dict[int, list[Segment]], dict[Segment, str]]:
    """A mark for each core, by device, and the legend of the marks, pods first. Pods from the 63rd on share a mark."""
    ledger, geometry = shown.ledger or Ledger(), shown.inventory.geometry
    letters = [(letter, f"bold {_COLOURS[number % len(_COLOURS)]}") for number, letter in enumerate(_LETTERS)]
    containers: dict[str, list[str]] = {}
    for allocation in ledger.allocations:
        whole = allocation.resource.unit is Unit.DEVICE
        ids = geometry.whole_devices(allocation.mask) if whole else cores_in(allocation.mask)
        containers.setdefault(str(allocation.pod), []).append(
            f"{allocation.user} {named(allocation.resource.unit.value, ids)}"
        )
    letter_of = dict(zip(containers, letters, strict=False))
    marks: dict[int, list[Segment]] = {}
    for device in range(geometry.device_count):
        marks[device] = []
        for core in cores_in(geometry.device_mask(device)):
            pods = {str(allocation.pod) for allocation in ledger.overlapping(1 << core)}
            if device not in shown.inventory.present:
                mark = ABSENT
            elif pods:
                mark = letter_of.get(pods.pop(), SHARED) if len(pods) == 1 else SHARED
            else:
                mark = FREE if shown.offered_mask >> core & 1 else UNUSABLE
            marks[device].append(mark)
    meanings = dict(_MEANINGS)
    if shown.ledger is None:
        meanings[FREE] = "free unless a pod holds it (holders are not known)"
    used = {mark for device_marks in marks.values() for mark in device_marks}
    legend = {mark: f"{pod}: {', '.join(containers[pod])}" for pod, mark in letter_of.items()}
    return marks, legend | {mark: text for mark, text in meanings.items() if mark in used}


def request_lines(report: TopologyReport) -> Iterator[str]:
    """The counts that a pod can request, and their free sets."""
    devices, cores = ranges(sets.count for sets in report.device_sets), ranges(report.core_counts)
    yield f"Counts that can be requested: devices {devices}; cores {cores}."
    if report.core_block_sizes:
        yield "Cores are aligned: 2, 4, 8 and so on begin at a multiple of their number, others at a device."
    known = report.holders_known
    yield "Sets of devices that are free now:" if known else "Sets of devices, free unless a pod holds them:"
    for device_set in report.device_sets:
        listed = "  ".join(ranges(ids) for ids in device_set.free_sets)
        yield f"  {device_set.count:>2}: {len(device_set.free_sets):>2} of {len(device_set.sets):<2}  {listed}".rstrip()
    state = "free now" if known else "free unless a pod holds them"
    yield f"Counts of cores that are {state}: {ranges(report.free_core_counts) if report.free_core_counts else 'none'}."


LONGEST_ROW = 8
"""Eight boxes of four cores are 80 columns."""

_GAP = 2  # columns between boxes; the link is as long
_MARGIN = 2  # columns before the first box, for stubs
_BOX_HEIGHT = 4
"""Lines from the top of a box to the top of the box below it, less one."""
_NARROWEST = 4
"""Characters inside a box."""


TO_ASCII = str.maketrans("┌┐└┘─│╌╎├┤┬┴", "++++-|~:||++")


def drawn(grid: Grid, links: LinksByDevice, marks: Mapping[int, Sequence[Segment]]) -> list[Line]:
    """The drawing, line by line, without blanks at the ends; ``marks`` has a mark for each core of every device."""
    inner = max(_NARROWEST, *(len(marks[device]) for device in grid.places)) + 2
    middle = inner // 2 + 1
    canvas: dict[tuple[int, int], Segment] = {}

    def write(line: int, column: int, text: str, style: str = "") -> None:
        canvas.update({(line, column + number): (character, style) for number, character in enumerate(text)})

    corners = {}
    for device, (row, at) in grid.places.items():
        line, column = corners[device] = 1 + row * (_BOX_HEIGHT + 1), _MARGIN + at * (inner + 2 + _GAP)
        blank = f"│{' ' * inner}│"
        for below, text in enumerate((f"┌{'─' * inner}┐", blank, blank, f"└{'─' * inner}┘")):
            write(line + below, column, text)
        write(line + 1, column + 2, str(device), style="bold")
        canvas.update({(line + 2, column + 2 + number): mark for number, mark in enumerate(marks[device])})
    joined = [(pair, "──", "│") for pair in grid.neighbours()] + [(pair, "╌╌", "╎") for pair in grid.around()]
    for (first, other), across, down in joined:
        if other not in links.get(first, frozenset()):
            continue
        (line, column), (far_line, far_column) = corners[first], corners[other]
        # A link is written at both boxes; between neighbours it is the same place.
        if grid.places[first][0] == grid.places[other][0]:
            write(line + 1, column + inner + 1, "├" + across)
            write(far_line + 1, far_column - _GAP, across + "┤")
        else:
            for at, text in ((line + 3, "┬"), (line + 4, down)):
                write(at, column + middle, text)
            for at, text in ((far_line - 1, down), (far_line, "┴")):
                write(at, far_column + middle, text)
    lines: list[Line] = []
    for line in range(0 if grid.wraps else 1, max(line for line, _ in canvas) + 1):  # without stubs, no line for them
        end = max((column for at, column in canvas if at == line), default=-1)
        lines.append([canvas.get((line, column), (" ", "")) for column in range(end + 1)])
    return lines


def undrawn(grids: Sequence[Grid], links: LinksByDevice) -> list[tuple[int, int]]:
    """Links that no grid shows, with the lower id first."""
    shown = {frozenset(pair) for grid in grids for pair in (*grid.neighbours(), *grid.around())}
    pairs = {(min(device, other), max(device, other)) for device, others in links.items() for other in others}
    return sorted(pair for pair in pairs if frozenset(pair) not in shown)
