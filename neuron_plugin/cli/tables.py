"""Tables: with lines and colour on a terminal; else plain columns, a row a line, for ``grep`` and ``awk``.

rich is used on terminals only. Elsewhere it would lay out for 80 columns, cut cells and wrap rows; and it takes 0.1 s
to import, which a pipe should not wait for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neuron_plugin.cli.drawing import Mark
from neuron_plugin.cli.text import printable

Row = Sequence[str]


def on_terminal() -> bool:
    """Whether a person looks at standard output directly."""
    return sys.stdout.isatty()


def print_table(headers: Row, rows: Sequence[Row], *, title: str = "", styles: Sequence[Row] = ()) -> None:
    """Print rows of cells. ``title`` and ``styles`` (rich's, by row and cell) are for terminals only."""
    if on_terminal():
        _print_rich(headers, rows, title, styles)
    else:
        print("\n".join(plain_lines(headers, rows)))


def plain_lines(headers: Row, rows: Sequence[Row]) -> list[str]:
    """Rows as lines, columns two or more blanks apart. Only the last column's cells hold blanks."""
    lines = [[printable(cell) or "-" for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def clear_terminal() -> None:
    """Start at the top of an empty screen."""
    print("\x1b[2J\x1b[H", end="")


def print_marks(lines: Sequence[Sequence[Mark]]) -> None:
    """Print drawn lines, in colour on terminals."""
    if not on_terminal():
        print("\n".join("".join(mark.character for mark in line) for line in lines))
        return
    from rich.console import Console  # noqa: PLC0415 - only terminals pay for rich
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console()
    for line in lines:
        console.print(Text.assemble(*line), no_wrap=True, crop=False, overflow="ignore")


def _print_rich(headers: Row, rows: Sequence[Row], title: str, styles: Sequence[Row]) -> None:
    from rich import box  # noqa: PLC0415 - only terminals pay for rich
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(printable(title)), title_justify="left")
    for header in headers:
        table.add_column(Text(header), overflow="fold")
    for number, row in enumerate(rows):
        of_row = styles[number] if styles else [""] * len(row)
        # Text, never str: a cell such as "[/dev/neuron0]" would be read as markup.
        table.add_row(*(Text(printable(cell) or "-", style) for cell, style in zip(row, of_row, strict=True)))
    Console().print(table)
