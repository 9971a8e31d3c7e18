"""What all commands have in common: how they are added to the parser, and how they say that something went wrong.

A command is a module with ``register(subparsers)``, which calls ``add_command``, and ``run(arguments) -> int``. Modules
of commands are all imported at every start, so what takes long to import (rich, grpc, aiohttp, kubernetes) is imported
by the functions that need it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NoReturn, TypeAlias

from neuron_plugin.inspection.text import printable

Run: TypeAlias = Callable[[argparse.Namespace], int]


class Exit(IntEnum):
    """Exit statuses of every command."""

    FINE = 0
    TROUBLE = 1
    """What was asked for could not be had; one line on standard error says why."""
    USAGE = 2
    """The command line, the environment or a file given there cannot be used."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it (128 + SIGINT)."""
    READER_GONE = 141
    """Whoever read the output stopped reading, as shells report it (128 + SIGPIPE)."""


EXIT_STATUSES = (
    "exit status: 0 fine; 1 trouble, told in one line on standard error; "
    "2 unusable arguments or settings; 130 interrupted"
)

_WIDTH = 120


class CommandError(Exception):
    """A command cannot do what it was asked to; the text says why and what to do. One line."""

    status: Exit = Exit.TROUBLE


class UsageError(CommandError):
    """What the user gave cannot be used; the text names it and what was expected."""

    status = Exit.USAGE


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line and expands no abbreviations (they break when a flag is added)."""

    def __init__(self, *, allow_abbrev: bool = False, **keywords: object) -> None:
        """Pass everything but ``allow_abbrev`` on."""
        super().__init__(
            allow_abbrev=allow_abbrev,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **keywords,  # type: ignore[arg-type]  # argparse passes its own keywords through add_parser
        )

    def parse_known_args(  # type: ignore[override]  # argparse overloads it for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is not known here and now: argparse would leave it to the topmost parser and name its help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the help is, in one line; then exit."""
        complain(f"{message}; see: {self.prog} --help")
        sys.exit(Exit.USAGE)


Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - argparse gives it no public name


def add_command(
    subparsers: Subparsers, name: str, run: Run, *, summary: str, description: str = "", examples: str = ""
) -> Parser:
    """Add the command ``name``, done by ``run``; returns its parser, for flags.

    ``summary`` is its line in the list of commands, ``description`` says more in its own help, and ``examples`` are
    lines to copy.
    """
    parts = [f"examples:\n{_indented(examples)}"] if examples else []
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=wrapped(description or _sentence(summary)),
        epilog="\n\n".join([*parts, wrapped(EXIT_STATUSES)]),
    )
    parser.set_defaults(run=run)
    return parser


def complain(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    line = " ".join(message.split())
    print(f"neuron-plugin: {printable(line)}", file=sys.stderr)


def _sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def wrapped(text: str) -> str:
    """Prose and rows of two columns, folded to the terminal; argparse would fold both alike, or none."""
    width = min(_WIDTH, shutil.get_terminal_size().columns - 2)
    lines: list[str] = []
    for line in text.splitlines():
        if lines and _goes_on(lines[-1], line):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * _hang(line), break_on_hyphens=False) for line in lines
    )


def _goes_on(before: str, line: str) -> bool:
    indent = len(line) - len(line.lstrip())
    return bool(before and line) and not before.endswith(":") and indent == _hang(before)


def _hang(line: str) -> int:
    """Where the text of a row begins; 0 in prose."""
    row = re.match(r" +\S+ {2,}", line)
    return row.end() if row else 0


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.strip().splitlines())
