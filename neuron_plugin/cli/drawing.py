"""A machine's devices drawn as boxes with their links: a line, a ring folded into two rows, or tori of 4 x 4.

Pure values in and out. Each box has the device's id and one mark a core. Links between boxes that stand beside each
other are drawn, a torus' links around the edge are stubs at both ends, and any other link is left to the caller to
tell (``undrawn``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from neuron_plugin.topology import TORUS_SIDE, Topology

Links: TypeAlias = Mapping[int, frozenset[int]]

LONGEST_ROW = 8
"""Eight boxes of four cores are 80 columns."""

_GAP = 2  # columns between boxes; the link is as long
_MARGIN = 2  # columns before the first box, for stubs
_BOX_HEIGHT = 4
_NARROWEST = 4


class Mark(NamedTuple):
    """One character of a drawing; ``style`` is for terminals with colours."""

    character: str
    style: str = ""


class Place(NamedTuple):
    """Where a device stands."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Strokes:
    """The characters of a drawing.

    ``top`` and ``bottom`` are a box's corners, ``joints`` where a link leaves it: right, left, below, above.
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
    """Where devices stand. ``side`` of a grid whose rows and columns close around the edge, else 0."""

    places: Mapping[int, Place]
    side: int = 0

    def neighbours(self) -> Iterator[tuple[int, int]]:
        """Pairs of devices that stand beside each other, left or upper one first."""
        devices = {place: device for device, place in self.places.items()}
        for device, (row, column) in self.places.items():
            for beside in (Place(row, column + 1), Place(row + 1, column)):
                if beside in devices:
                    yield device, devices[beside]

    def around(self) -> Iterator[tuple[int, int]]:
        """Pairs of devices that are beside each other around the edge, right or lower one first."""
        devices = {place: device for device, place in self.places.items()}
        for number in range(self.side):
            yield devices[Place(number, self.side - 1)], devices[Place(number, 0)]
            yield devices[Place(self.side - 1, number)], devices[Place(0, number)]


def grids_of(topology: Topology, device_count: int) -> tuple[Grid, ...]:
    """The grids to draw, with linked ids beside each other."""
    ids = range(device_count)
    match topology:
        case Topology.TORUS:
            size = TORUS_SIDE * TORUS_SIDE
            blocks = [ids[first : first + size] for first in range(0, device_count, size)]
            return tuple(Grid(_in_rows(block, TORUS_SIDE), TORUS_SIDE if len(block) == size else 0) for block in blocks)
        case Topology.LINE:
            return (Grid(_as_snake(ids, LONGEST_ROW)),)
        case Topology.RING:  # folded in two where that fits: the ends meet
            return (Grid(_as_snake(ids, min(LONGEST_ROW, (device_count + 1) // 2))),)
        case _:
            return (Grid(_in_rows(ids, LONGEST_ROW)),)


def _in_rows(ids: Sequence[int], width: int) -> dict[int, Place]:
    return {device: Place(*divmod(number, width)) for number, device in enumerate(ids)}


def _as_snake(ids: Sequence[int], width: int) -> dict[int, Place]:
    """Rows that turn at each end, so that consecutive ids stay beside each other."""
    places = _in_rows(ids, width)
    return {
        device: Place(row, width - 1 - column) if row % 2 else Place(row, column)
        for device, (row, column) in places.items()
    }


class Drawing:
    """A canvas with one grid on it."""

    def __init__(self, grid: Grid, links: Links, marks: Mapping[int, Sequence[Mark]], strokes: Strokes) -> None:
        """``marks`` has an entry for every device of the grid, a mark for each core."""
        self._grid = grid
        self._links = links
        self._strokes = strokes
        self._inner = max(_NARROWEST, *(len(cores) for cores in marks.values())) + 2
        self._cells: dict[tuple[int, int], Mark] = {}
        for device in grid.places:
            self._draw_box(device, marks[device])
        for one, other in grid.neighbours():
            self._draw_link(one, other)
        for one, other in grid.around():
            self._draw_stubs(one, other)

    def lines(self) -> list[list[Mark]]:
        """The drawing, line by line, without blanks at the ends."""
        height = max(line for line, _ in self._cells) + 1
        ends = [max((column for at, column in self._cells if at == line), default=-1) for line in range(height)]
        first = 0 if self._grid.side else 1  # without stubs, no line and no margin for them
        blank = Mark(" ")
        return [
            [self._cells.get((line, column), blank) for column in range(ends[line] + 1)]
            for line in range(first, height)
        ]

    def _corner(self, device: int) -> tuple[int, int]:
        row, column = self._grid.places[device]
        return 1 + row * (_BOX_HEIGHT + 1), _MARGIN + column * (self._inner + 2 + _GAP)

    def _draw_box(self, device: int, cores: Sequence[Mark]) -> None:
        strokes, (line, column) = self._strokes, self._corner(device)
        left, right = column, column + self._inner + 1
        self._write(line, left, strokes.top[0] + strokes.edge * self._inner + strokes.top[1])
        self._write(line + 3, left, strokes.bottom[0] + strokes.edge * self._inner + strokes.bottom[1])
        for inner_line in (line + 1, line + 2):
            self._write(inner_line, left, strokes.side)
            self._write(inner_line, right, strokes.side)
        self._write(line + 1, left + 2, str(device), style="bold")
        for number, mark in enumerate(cores):
            self._cells[line + 2, left + 2 + number] = mark

    def _draw_link(self, one: int, other: int) -> None:
        if self._joined(one, other):
            if self._grid.places[one].row == self._grid.places[other].row:
                self._to_the_right_of(one, self._strokes.across)
            else:
                self._below(one, self._strokes.down)

    def _draw_stubs(self, one: int, other: int) -> None:
        if self._joined(one, other):
            (line, column), middle = self._corner(other), self._inner // 2 + 1
            if self._grid.places[one].row == self._grid.places[other].row:
                self._to_the_right_of(one, self._strokes.stub_across)
                self._write(line + 1, column - _GAP, self._strokes.stub_across)
            else:
                self._below(one, self._strokes.stub_down)
                self._write(line - 1, column + middle, self._strokes.stub_down)

    def _joined(self, one: int, other: int) -> bool:
        """Mark both boxes of a link where it leaves them; False where there is no link."""
        if other not in self._links.get(one, frozenset()):
            return False
        right, left, below, above = tuple(self._strokes.joints)
        (line, column), (far_line, far_column), middle = self._corner(one), self._corner(other), self._inner // 2 + 1
        if self._grid.places[one].row == self._grid.places[other].row:
            self._write(line + 1, column + self._inner + 1, right)
            self._write(far_line + 1, far_column, left)
        else:
            self._write(line + _BOX_HEIGHT - 1, column + middle, below)
            self._write(far_line, far_column + middle, above)
        return True

    def _to_the_right_of(self, device: int, text: str) -> None:
        line, column = self._corner(device)
        self._write(line + 1, column + self._inner + 2, text)

    def _below(self, device: int, text: str) -> None:
        line, column = self._corner(device)
        self._write(line + _BOX_HEIGHT, column + self._inner // 2 + 1, text)

    def _write(self, line: int, column: int, text: str, style: str = "") -> None:
        for number, character in enumerate(text):
            self._cells[line, column + number] = Mark(character, style)


def undrawn(grids: Sequence[Grid], links: Links) -> list[tuple[int, int]]:
    """Links that no grid shows, lower id first."""
    drawn = {frozenset(pair) for grid in grids for pair in (*grid.neighbours(), *grid.around())}
    pairs = {(min(one, other), max(one, other)) for one, others in links.items() for other in others}
    return sorted(pair for pair in pairs if frozenset(pair) not in drawn)
