"""How every command prints: the flag ``--output``, documents for scripts, and lines and tables for people.

A document is an interface: within its ``version`` keys are added, and none is renamed or removed. The keys are listed
in ``docs/command-line.md``, and a test compares them with the code. Tables are plain columns, for ``grep`` and ``awk``
too: no cell is cut and no row folded. rich is used for colours only: a pipe must not wait the 0.1 s that it takes to
import, nor be laid out for 80 columns.
"""

from __future__ import annotations

import enum
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from neuron_plugin.cli.command import printable

Segment: TypeAlias = tuple[str, str]
"""A text and its style, in rich's words; the empty style is none."""
Line: TypeAlias = Sequence[Segment]


class Form(enum.StrEnum):
    """What ``--output`` takes, where a command has nothing more to offer."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    YAML = "yaml"


class ObjectForm(enum.StrEnum):
    """What ``--output`` takes where the output is Kubernetes objects."""

    YAML = "yaml"
    JSON = "json"


def add_output_flag(parser: ArgumentParser, forms: type[enum.StrEnum] = Form, *, help_text: str = "") -> None:
    """Add ``-o``, ``--output``; the first of ``forms`` is the default."""
    names = [form.value for form in forms]
    text = help_text or f"{', '.join(names[:-1])} or {names[-1]}"
    parser.add_argument(
        "-o", "--output", choices=names, default=names[0], metavar="FORM", help=f"{text} (default: {names[0]})"
    )


def show(form: str, content: object, lines: Iterable[Line]) -> None:
    """Print ``lines`` for people, or the document ``content`` for scripts, as ``--output`` says."""
    if form == Form.TEXT:
        print_lines(list(lines))
    else:
        print(document(form, content), end="")


def document(form: str, content: object) -> str:
    """``content`` as JSON or YAML, with a newline at its end: plain values, or a msgspec Struct."""
    if form == Form.JSON:
        return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
    import yaml

    return str(yaml.safe_dump(msgspec.to_builtins(content), sort_keys=False))


def plain(*texts: str) -> list[Line]:
    """Lines without a style."""
    return [[(printable(text), "")] for text in texts]


def table(headers: Sequence[str], rows: Iterable[Line]) -> list[Line]:
    """Cells two or more blanks apart; ``-`` for an empty one. Only cells of the last column may hold blanks."""
    cells = [
        [(printable(text) or "-", style) for text, style in row]
        for row in ([(each, "bold") for each in headers], *rows)
    ]
    widths = [max(len(text) for text, _ in column) + 2 for column in zip(*cells, strict=True)]
    lines: list[Line] = []
    for row in cells:
        line: list[Segment] = []
        for (text, style), width in zip(row, widths, strict=True):  # blanks without style: it could be a background
            line += [(text, style), (" " * (width - len(text)), "")]
        lines.append(line[:-1])
    return lines


def print_lines(lines: Sequence[Line]) -> None:
    """Print lines, in colour on a terminal that can, unless the user has set NO_COLOR (no-color.org)."""
    if not on_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        print("\n".join("".join(text for text, _ in line) for line in lines), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in lines:
        # Text, never str: "[/dev/neuron0]" would be read as markup.
        console.print(Text.assemble(*line), soft_wrap=True)


def on_terminal() -> bool:
    """Whether a person looks at standard output directly."""
    return sys.stdout.isatty()
