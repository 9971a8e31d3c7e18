"""``neuron-plugin topology``: how a machine's devices are linked, who has them, and which sets are free."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from neuron_plugin.allocation import HolderLedger
from neuron_plugin.cli.command import CommandError, Exit, Subparsers, add_command, complain
from neuron_plugin.cli.device_columns import title_of
from neuron_plugin.cli.drawing import ASCII, UNICODE, Drawing, Mark, grids_of, undrawn
from neuron_plugin.cli.node_flags import HOLDERS, add_node_flags, node_from
from neuron_plugin.cli.occupancy import Occupancy
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.cli.tables import print_lines
from neuron_plugin.inspection.devices import report_of
from neuron_plugin.inspection.holders import HolderReading
from neuron_plugin.inspection.machine import Machine, look
from neuron_plugin.inspection.sets import TopologyReport, topology_report
from neuron_plugin.inspection.text import printable, ranges
from neuron_plugin.topology import Geometry

DESCRIPTION = """\
Draw the devices of this machine with their links and holders, and say what can be requested.

Each box is a device with its id; below it stands one mark a core: a letter for each pod (in colour on a terminal), "."
for a free core. A stub at the edge of a torus goes on at the opposite edge. A set of devices can be handed out together
when its devices are linked; the list says which counts exist and which of their sets are free now."""

EXAMPLES = """
neuron-plugin topology
neuron-plugin topology --ascii > topology.txt
neuron-plugin topology -o json | jq '.deviceSets[] | {count, free: (.freeSets | length)}'
neuron-plugin topology --root ./trn1       # a simulated machine, see: neuron-plugin simulate --help
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "topology",
        run,
        summary="draw the devices with their links and holders, and say which sets are free",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    add_output_flag(parser)
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    add_node_flags(parser, HOLDERS)


def run(arguments: Namespace) -> int:
    """Draw the machine.

    Raises:
        CommandError: there is no Neuron device.
    """
    node = node_from(arguments)
    seen = look(node.settings, os.environ)
    if seen.geometry is None:
        raise CommandError(f"no Neuron device: {seen.inventory.absence}")
    holders = HolderReading(node.settings.pod_resources_socket).read(seen.geometry)
    report, form = report_of(seen, holders), Form(arguments.output)
    told = topology_report(seen, seen.geometry, holders, report)
    if form is not Form.TEXT:
        print(document(form, told), end="")
        return Exit.FINE
    print_lines([_plain(title_of(report)), _plain("")])
    print_lines(drawn_lines(seen, seen.geometry, holders.ledger, ascii_only=arguments.ascii))
    print_lines([_plain(line) for line in ["", *request_lines(told)]])
    for note in report.notes:
        complain(f"note: {note}")
    return Exit.FINE


def drawn_lines(
    seen: Machine, geometry: Geometry, ledger: HolderLedger | None, *, ascii_only: bool
) -> list[Sequence[Mark]]:
    """The drawing and its legend."""
    strokes = ASCII if ascii_only or not _shows_unicode() else UNICODE
    occupancy = Occupancy(seen, geometry, ledger)
    marks, grids = occupancy.marks(), grids_of(geometry.topology, geometry.device_count)
    lines: list[Sequence[Mark]] = []
    for grid in grids:
        of_grid = {device: marks[device] for device in grid.places}
        lines += [*Drawing(grid, seen.links, of_grid, strokes).lines(), _plain("")]
    further = undrawn(grids, seen.links)
    if further:
        lines += [_plain("also linked: " + ", ".join(f"{one}-{other}" for one, other in further)), _plain("")]
    return lines + [[line.mark, *_plain(f"  {printable(line.text)}")] for line in occupancy.legend()]


def request_lines(told: TopologyReport) -> Iterator[str]:
    """Which counts a pod can request, and which sets of them are free."""
    devices, cores = ranges(sets.count for sets in told.device_sets), ranges(told.core_counts)
    yield f"Counts that can be requested: devices {devices}; cores {cores}."
    known = told.holders_known
    yield "Sets of devices that are free now:" if known else "Sets of devices, free unless a pod holds them:"
    for each in told.device_sets:
        listed = "  ".join(ranges(devices) for devices in each.free_sets)
        yield f"  {each.count:>2}: {len(each.free_sets):>2} of {len(each.sets):<2}  {listed}".rstrip()
    state = "free now" if known else "free unless a pod holds them"
    yield f"Counts of cores that are {state}: {ranges(told.free_core_counts) if told.free_core_counts else 'none'}."


def _plain(text: str) -> list[Mark]:
    return [Mark(character) for character in text]


def _shows_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
