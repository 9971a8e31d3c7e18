"""The common part of all commands: parsing, printing and errors.

A command is a module of this package with ``DESCRIPTION``, ``EXAMPLES``, ``add_flags(parser)`` and ``run(arguments)``,
which returns the exit status if the answer may be no. ``main`` has the table of commands and imports only the module of
the command that runs.

A document for scripts is an interface: within its ``version`` keys are added, and none is renamed or removed. The keys
are listed in ``docs/command-line.md``, and a test compares them with the code. Tables are plain columns that work with
``grep`` and ``awk``: no cell is cut and no row is folded. Rich is only used for colours: its import takes 0.1 s, and it
would fit the output of a pipe into 80 columns.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

import msgspec

Segment: TypeAlias = tuple[str, str]
"""A text and its style, named as in rich; empty for no style."""
Line: TypeAlias = Sequence[Segment]
Row: TypeAlias = Mapping[str, str | Segment]
"""The cells of a table's row by their headers."""


class Exit(enum.IntEnum):
    """Exit statuses of every command."""

    SUCCESS = 0
    FAILURE = 1
    """The command failed, or its answer is no; one line on standard error says why."""
    USAGE = 2
    """The command line, the environment or a file given there cannot be used."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it (128 + SIGINT)."""
    BROKEN_PIPE = 141
    """The reader of the output has closed it, as shells report it (128 + SIGPIPE)."""


VERSION = 1
"""The version of a command's JSON and YAML; it grows if a field is removed or changes its meaning."""

EXIT_STATUSES = """\
exit status: 0 success; 1 failure, or the answer is no: one line on standard error says why;
2 wrong call: unusable arguments or settings; 130 interrupted"""


class CommandError(Exception):
    """A command failed; the text says why and what to do, in one line."""

    status: Exit = Exit.FAILURE


class UsageError(CommandError):
    """The user's input cannot be used; the text names it and the expected value."""

    status = Exit.USAGE


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line and expands no abbreviations (they break when a flag is added)."""

    def __init__(self, **keywords: object) -> None:
        """Takes the keywords of ``ArgumentParser``."""
        keywords |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**keywords)  # type: ignore[arg-type]  # argparse passes its own keywords through add_parser

    def parse_known_args(  # type: ignore[override]  # argparse overloads it for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse an unknown argument here: argparse would leave it to the top parser and name that parser's help."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{_similar(unknown[0], self._option_string_actions)}"
            )
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Name a similar choice if there is one, instead of all choices; for commands never name all."""
        if action.choices is not None and value not in action.choices:
            is_command = action.dest == "command"
            other = f"; did you mean {MEANT[str(value)]}?" if is_command and str(value) in MEANT else ""
            if (suggestion := _similar(value, action.choices) or other) or is_command:
                raise argparse.ArgumentError(action, f"there is no {value}{suggestion}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Print the error and where the help is in one line, then exit."""
        for action in self._get_positional_actions():
            named = action.metavar in re.split(r"[:,] ", message)[1:]
            if named and action.choices and len(choices := [*action.choices]) <= MOST_NAMES:
                message += f"; {action.metavar} is {', '.join(choices[:-1])} or {choices[-1]}"
        complain(f"{message}; see: {self.prog} --help")
        sys.exit(Exit.USAGE)


MEANT = {
    "drain": "plan --drain NODE",
    "events": "describe pod POD",
    "get": "nodes or pods",
    "idle": "plan --idle",
    "list": "nodes or pods",
    "ls": "devices",
    "show": "describe",
    "status": "nodes",
    "cost": "usage",
    "top": "pods",
    "who": "devices",
    "why": "explain",
}
"""Words of kubectl and other tools, each with our command for it."""
_ALIKE = 0.7
"""The least similarity of two words (difflib's ratio). ``version`` and ``decisions`` are half alike."""


def _similar(typed: object, known: Iterable[object]) -> str:
    """The end of an error about an unknown word: names a similar known one."""
    import difflib

    words = difflib.get_close_matches(str(typed), map(str, known), n=1, cutoff=_ALIKE)
    return "".join(f"; did you mean {word}?" for word in words)


MOST_NAMES = 10
"""Names that an error about an unknown name shows; others are counted."""


def no_such(kind: str, name: str, known: Iterable[str]) -> CommandError:
    """The error about an unknown name: lists the known names, similar ones first."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=MOST_NAMES)
    listed = list(dict.fromkeys([*near, *names]))
    shown, more = ", ".join(listed[:MOST_NAMES]), len(listed) - MOST_NAMES
    there = f"there are {shown}{f' and {more} more' if more > 0 else ''}" if len(names) > 1 else f"there is {shown}"
    return CommandError(f"there is no {kind} {name}: {there if names else 'there is none at all'}")


Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - argparse gives it no public name
Run: TypeAlias = Callable[[argparse.Namespace], int | None]
"""Runs a command. Returns its exit status if the answer may be no; None is success."""


def add_command(
    subparsers: Subparsers, name: str, run: Run, *, summary: str, description: str = "", examples: str = ""
) -> Parser:
    """Add the command ``name``, which calls ``run``; returns its parser, for flags.

    ``summary`` is its line in the list of commands, ``description`` says more in its own help, and ``examples`` are
    lines to copy.
    """
    parts = [f"examples:\n{textwrap.indent(examples.strip(), '  ')}"] if examples else []
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description or f"{summary[:1].upper()}{summary[1:]}.",
        epilog="\n\n".join([*parts, EXIT_STATUSES]),
    )
    parser.set_defaults(run=run)
    return parser


def count(least: int) -> Callable[[str], int]:
    """The type of an argument that is a decimal number of ``least`` or more."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no count of {least} or more")

    return parse


def matching(pattern: str, expected: str) -> Callable[[str], str]:
    """The type of an argument that must match ``pattern``."""

    def parse(text: str) -> str:
        if re.fullmatch(pattern, text):
            return text
        raise argparse.ArgumentTypeError(f"{text!r} is no {expected}")

    return parse


def server_url(flag: str, text: str) -> str:
    """``text`` if it is an HTTP URL.

    Raises:
        UsageError: it is no HTTP URL.
    """
    if text.startswith(("http://", "https://")):
        return text
    raise UsageError(f"{flag} is {text!r}, expected it to begin with http:// or https://")


def program() -> str:
    """The name by which this program was called, so that a hint can be pasted into the same shell."""
    typed = sys.argv[0]
    if Path(typed).name == "kubectl-neuron":
        return "kubectl neuron"
    if typed.endswith(".py"):
        return f"{sys.executable} -m neuron_plugin"
    return Path(typed).name if shutil.which(Path(typed).name) == typed else typed


class Form(enum.StrEnum):
    """The choices of ``--output``."""

    TEXT = "text"
    """For people."""
    WIDE = "wide"
    """For people, with more columns in a table."""
    NAME = "name"
    """KIND/NAME of objects of the cluster, which kubectl accepts."""
    CSV = "csv"
    """A line for each number, for spreadsheets and bills."""
    JSON = "json"
    YAML = "yaml"


REPORT = (Form.TEXT, Form.JSON, Form.YAML)
TABLE = (Form.TEXT, Form.WIDE, Form.JSON, Form.YAML)
OBJECTS = (Form.YAML, Form.JSON)
"""The forms of commands whose output is Kubernetes objects."""


def add_output_flag(parser: argparse.ArgumentParser, forms: Sequence[Form] = REPORT) -> None:
    """Add ``-o``, ``--output``; the first of ``forms`` is the default."""
    names = [form.value for form in forms]
    text = f"{', '.join(names[:-1])} or {names[-1]} (default: {names[0]})"
    parser.add_argument("-o", "--output", choices=names, default=names[0], metavar="FORM", help=text)


def show(form: str, content: object, lines: Iterable[Line], *, nothing: str = "") -> None:
    """Print ``lines`` for people, or the document ``content`` for scripts, as ``--output`` says.

    Without any line, ``nothing`` is printed on standard error, so that standard output has no line to count.
    """
    if form in {Form.JSON, Form.YAML}:
        print(document(form, content), end="")
    elif found := list(lines):
        print_lines(found)
    elif nothing:
        complain(nothing)


def show_again(form: str, content: object, lines: Iterable[Line], *, first: bool) -> None:
    """Print one of a series of reports, for ``--watch``: on a terminal it replaces the last one."""
    if form == Form.JSON:
        print(msgspec.json.encode(content).decode(), flush=True)
    elif form == Form.YAML:
        print(f"---\n{document(form, content)}", end="", flush=True)
    elif on_terminal():
        print("\x1b[2J\x1b[H", end="")  # clear the screen
        print_lines(list(lines))
        print("Watching for changes; Ctrl-C ends.", flush=True)
    else:
        print_lines([*([] if first else plain("")), *lines])


def document(form: str, content: object) -> str:
    """``content`` as JSON or YAML, with a newline at its end: plain values, or a msgspec Struct."""
    if form == Form.JSON:
        return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
    import yaml

    return str(yaml.safe_dump(msgspec.to_builtins(content), sort_keys=False))


def plain(*texts: str) -> list[Line]:
    """Lines without a style."""
    return [[(printable(text), "")] for text in texts]


def table(rows: Sequence[Row], *, bare: bool = False) -> list[Line]:
    """Headers and rows, with two or more blanks between cells and ``-`` for an empty cell. No lines without rows.

    All rows must have the same headers, and only cells of the last column may contain blanks. A ``bare`` table has no
    headers.
    """
    heads = [[(header, "bold") for header in rows[0]]] if rows and not bare else []
    found = [[(cell, "") if isinstance(cell, str) else cell for cell in row.values()] for row in rows]
    cells = [[(printable(text) or "-", style) for text, style in row] for row in heads + found]
    widths = [max(len(text) for text, _ in column) + 2 for column in zip(*cells, strict=True)]
    lines: list[Line] = []
    for row in cells:
        line: list[Segment] = []
        for (text, style), width in zip(row, widths, strict=True):  # blanks have no style, as it may be a background
            line += [(text, style), (" " * (width - len(text)), "")]
        lines.append(line[:-1])
    return lines


_Item = TypeVar("_Item")


def in_order(items: Sequence[_Item], path: str) -> tuple[_Item, ...]:
    """The items of a document, sorted by the field at a path such as ``.status.phase``; unsorted without a path.

    Numbers in texts are compared as numbers, and lists by their length.

    Raises:
        UsageError: no item has the field; names similar fields.
    """
    fields = [field for field in path.strip("{}").split(".") if field]
    if not (fields and items):
        return tuple(items)
    documents = [msgspec.to_builtins(item, str_keys=True) for item in items]
    values = [reduce(_field, fields, document) for document in documents]
    if all(value is msgspec.UNSET for value in values):
        known = dict.fromkeys(known for document in documents for known in _paths(document))
        near = " or ".join(name for name in known if fields[-1].lower() in name.rpartition(".")[2].lower())
        hint = f"did you mean {near}?" if near else "see the fields with -o yaml"
        raise UsageError(f"--sort-by {path}: none of them has this field; {hint}")
    return tuple(items[place] for place in sorted(range(len(items)), key=lambda place: _rank(values[place])))


def _field(value: object, name: str) -> object:
    return value.get(name, msgspec.UNSET) if isinstance(value, dict) else msgspec.UNSET


def _paths(document: Mapping[str, object], at: str = "") -> Iterator[str]:
    for name, value in document.items():
        yield f"{at}.{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{at}.{name}")


def _rank(value: object) -> tuple[object, ...]:
    """The sort key of a field's value: missing and empty ones come first."""
    if isinstance(value, list | tuple | dict):
        return 1, float(len(value))
    if isinstance(value, int | float):
        return 1, float(value)
    if value is None or value is msgspec.UNSET:
        return (0,)
    return 2, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(value))]


def print_lines(lines: Sequence[Line]) -> None:
    """Print lines, in colour if the terminal supports it and NO_COLOR is not set (no-color.org)."""
    if not on_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        print("".join("".join(text for text, _ in line) + "\n" for line in lines), end="", flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in lines:
        # Text, never str: "[/dev/neuron0]" would be read as markup.
        console.print(Text.assemble(*line), soft_wrap=True)


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return bool(sys.stdout and sys.stdout.isatty())  # None: it is closed


def complain(message: str) -> None:
    """Print a message as one line on standard error."""
    print(f"neuron-plugin: {printable(' '.join(message.split()))}", file=sys.stderr)


def printable(text: str) -> str:
    """``text`` without control characters for terminals: names and attributes come from outside."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
