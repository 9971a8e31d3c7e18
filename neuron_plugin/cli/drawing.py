"""A machine's devices drawn as boxes with their links: a line, a ring folded into two rows, or tori of 4 x 4.

Pure values in and out. Each box has the device's id and one mark a core. Links between boxes that stand beside each
other are drawn, a torus' links around the edge are stubs at both ends; ``undrawn`` names all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from neuron_plugin.cli.output import Line, Segment
from neuron_plugin.topology import TORUS_SIDE, Topology

Links: TypeAlias = Mapping[int, frozenset[int]]
Pairs: TypeAlias = list[tuple[int, int]]

LONGEST_ROW = 8
"""Eight boxes of four cores are 80 columns."""

_GAP = 2  # columns between boxes; the link is as long
_MARGIN = 2  # columns before the first box, for stubs
_BOX_HEIGHT = 4
_NARROWEST = 4


@dataclass(frozen=True, slots=True)
class Strokes:
    """The characters of a drawing.

    ``top`` and ``bottom`` are a box's corners, ``joints`` where a link leaves it: right, left, below, above. ``across``
    and ``down`` are links, and as ``stub_...`` those around the edge.
    """

    top: str
    bottom: str
    edge: str
    side: str
    across: str
    down: str
    stub_across: str
    stub_down: str
    joints: str


UNICODE = Strokes("┌┐", "└┘", "─", "│", "──", "│", "╌╌", "╎", "├┤┬┴")
ASCII = Strokes("++", "++", "-", "|", "--", "|", "~~", ":", "||++")


@dataclass(frozen=True, slots=True)
class Grid:
    """Where devices stand, as (row, column). ``side`` is 0 unless rows and columns close around the edge."""

    places: Mapping[int, tuple[int, int]]
    side: int = 0

    def neighbours(self) -> Pairs:
        """Devices that stand beside each other, left or upper one first."""
        devices = {place: device for device, place in self.places.items()}
        beside = [
            (device, place)
            for device, (row, column) in self.places.items()
            for place in ((row, column + 1), (row + 1, column))
        ]
        return [(device, devices[place]) for device, place in beside if place in devices]

    def around(self) -> Pairs:
        """Devices that are beside each other around the edge, right or lower one first."""
        devices, last = {place: device for device, place in self.places.items()}, self.side - 1
        rows = [(devices[number, last], devices[number, 0]) for number in range(self.side)]
        return rows + [(devices[last, number], devices[0, number]) for number in range(self.side)]


def grids_of(topology: Topology, device_count: int) -> tuple[Grid, ...]:
    """The grids to draw, with linked ids beside each other: rows of a line or ring turn at each end."""
    if topology is Topology.TORUS:
        size = TORUS_SIDE * TORUS_SIDE
        blocks = [range(first, min(first + size, device_count)) for first in range(0, device_count, size)]
        return tuple(
            Grid(
                {device: divmod(number, TORUS_SIDE) for number, device in enumerate(block)},
                TORUS_SIDE if len(block) == size else 0,
            )
            for block in blocks
        )
    width = LONGEST_ROW
    if topology is Topology.RING:  # folded in two where that fits: the ends meet
        width = min(LONGEST_ROW, (device_count + 1) // 2)
    places = {device: divmod(device, width) for device in range(device_count)}
    if topology in {Topology.LINE, Topology.RING}:
        places = {each: (row, width - 1 - at if row % 2 else at) for each, (row, at) in places.items()}
    return (Grid(places),)


def drawn(grid: Grid, links: Links, marks: Mapping[int, Sequence[Segment]], strokes: Strokes) -> list[Line]:
    """The drawing, line by line, without blanks at the ends; ``marks`` has a mark for each core of every device."""
    inner = max(_NARROWEST, *(len(marks[device]) for device in grid.places)) + 2
    middle = inner // 2 + 1
    canvas: dict[tuple[int, int], Segment] = {}

    def write(line: int, column: int, text: str, style: str = "") -> None:
        for number, character in enumerate(text):
            canvas[line, column + number] = character, style

    corners = {}
    for device, (row, at) in grid.places.items():
        line, column = corners[device] = 1 + row * (_BOX_HEIGHT + 1), _MARGIN + at * (inner + 2 + _GAP)
        write(line, column, strokes.top[0] + strokes.edge * inner + strokes.top[1])
        for below in (1, 2):
            write(line + below, column, strokes.side)
            write(line + below, column + inner + 1, strokes.side)
        write(line + 3, column, strokes.bottom[0] + strokes.edge * inner + strokes.bottom[1])
        write(line + 1, column + 2, str(device), style="bold")
        for number, mark in enumerate(marks[device]):
            canvas[line + 2, column + 2 + number] = mark
    right, left, lower, upper = tuple(strokes.joints)
    joined = [(pair, strokes.across, strokes.down) for pair in grid.neighbours()]
    joined += [(pair, strokes.stub_across, strokes.stub_down) for pair in grid.around()]
    for (one, other), across, down in joined:
        if other not in links.get(one, frozenset()):
            continue
        (line, column), (far_line, far_column) = corners[one], corners[other]
        # A link is written after the one box and before the other: beside each other that is the same place.
        if grid.places[one][0] == grid.places[other][0]:
            write(line + 1, column + inner + 1, right + across)
            write(far_line + 1, far_column - _GAP, across + left)
        else:
            write(line + _BOX_HEIGHT - 1, column + middle, lower)
            write(line + _BOX_HEIGHT, column + middle, down)
            write(far_line - 1, far_column + middle, down)
            write(far_line, far_column + middle, upper)
    lines: list[Line] = []
    for line in range(0 if grid.side else 1, max(line for line, _ in canvas) + 1):  # without stubs, no line for them
        end = max((column for at, column in canvas if at == line), default=-1)
        lines.append([canvas.get((line, column), (" ", "")) for column in range(end + 1)])
    return lines


def undrawn(grids: Sequence[Grid], links: Links) -> Pairs:
    """Links that no grid shows, lower id first."""
    shown = {frozenset(pair) for grid in grids for pair in (*grid.neighbours(), *grid.around())}
    pairs = {(min(one, other), max(one, other)) for one, others in links.items() for other in others}
    return sorted(pair for pair in pairs if frozenset(pair) not in shown)
