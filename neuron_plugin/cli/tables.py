"""Plain columns, a row a line, for people and for ``grep`` and ``awk``; on a terminal with colour.

Nothing is ever cut, and a row of a table never folded: one that is too long for the terminal is the terminal's to
wrap. rich is used on terminals only: elsewhere it would lay out for 80 columns, and a pipe should not wait the 0.1 s
that it takes to import.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TypeAlias

from neuron_plugin.inspection.text import printable

_NARROWEST_PROSE = 20

Segment: TypeAlias = tuple[str, str]
"""A text and its style, in rich's words; the empty style is none."""


def on_terminal() -> bool:
    """Whether a person looks at standard output directly."""
    return sys.stdout.isatty()


def in_colour() -> bool:
    """Whether to style the output: on terminals that can, unless the user has set NO_COLOR (no-color.org)."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Segment]], *, title: str = "") -> None:
    """Print rows of cells under their headers. The ``title`` is for people: it is left out where nobody looks."""
    lines = table_lines(headers, rows)
    print_lines([[(printable(title), "bold")], *lines] if title and on_terminal() else lines)


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[Segment]]) -> list[list[Segment]]:
    """Cells two or more blanks apart; ``-`` for an empty one. Only cells of the last column may hold blanks."""
    heading = [(header, "bold") for header in headers]
    cells = [[(printable(text) or "-", style) for text, style in row] for row in (heading, *rows)]
    widths = [max(len(text) for text, _ in column) for column in zip(*cells, strict=True)]
    return [_line(row, widths) for row in cells]


def print_lines(lines: Sequence[Sequence[Segment]]) -> None:
    """Print lines of segments, in colour where that is wanted."""
    if not in_colour():
        print("\n".join("".join(text for text, _ in line) for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in lines:
        # Text, never str: "[/dev/neuron0]" would be read as markup.
        console.print(Text.assemble(*line), soft_wrap=True)


def folded(line: Sequence[Segment], width: int) -> list[list[Segment]]:
    """A line of prose in lines of at most ``width``, its last segment below itself; not where that leaves no room."""
    *others, (text, style) = line
    indent = sum(len(segment) for segment, _ in others)
    if width - indent < _NARROWEST_PROSE:
        return [list(line)]
    first, *rest = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
    return [[*others, (first, style)], *([(" " * indent, ""), (part, style)] for part in rest)]


def clear_terminal() -> None:
    """Start at the top of an empty screen."""
    print("\x1b[2J\x1b[H", end="")


def _line(row: Sequence[Segment], widths: Sequence[int]) -> list[Segment]:
    *others, (last, last_style) = row
    padded = [
        segment
        for (text, style), width in zip(others, widths, strict=False)
        for segment in ((text, style), (" " * (width - len(text) + 2), ""))
    ]
    return [*padded, (last, last_style)]
