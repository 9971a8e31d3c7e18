"""What all commands have in common: how they are parsed, and how they say that something went wrong.

A command is a module of this package with ``DESCRIPTION``, ``EXAMPLES``, ``add_flags(parser)`` and ``run(arguments)``,
which returns the exit status. ``main`` has the table of commands and imports only the module of the one that runs.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NoReturn, TypeAlias

Run: TypeAlias = Callable[[argparse.Namespace], int]


class Exit(IntEnum):
    """Exit statuses of every command."""

    SUCCESS = 0
    FAILURE = 1
    """The command could not do what it was asked to; one line on standard error says why."""
    USAGE = 2
    """The command line, the environment or a file given there cannot be used."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it (128 + SIGINT)."""
    BROKEN_PIPE = 141
    """The reader of the output has closed it, as shells report it (128 + SIGPIPE)."""


EXIT_STATUSES = """\
exit status: 0 success; 1 failure, explained in one line on standard error;
2 unusable arguments or settings; 130 interrupted"""


class CommandError(Exception):
    """A command cannot do what it was asked to; the text says why and what to do, in one line."""

    status: Exit = Exit.FAILURE


class UsageError(CommandError):
    """The user's input cannot be used; the text names it and what was expected."""

    status = Exit.USAGE


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line and expands no abbreviations (they break when a flag is added)."""

    def __init__(self, **keywords: object) -> None:
        """Take what ``ArgumentParser`` takes."""
        keywords |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**keywords)  # type: ignore[arg-type]  # argparse passes its own keywords through add_parser

    def parse_known_args(  # type: ignore[override]  # argparse overloads it for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse an unknown argument here: argparse would leave it to the topmost parser and name its help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong and where the help is, then exit."""
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
    parts = [f"examples:\n{textwrap.indent(examples.strip(), '  ')}"] if examples else []
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description or f"{summary[:1].upper()}{summary[1:]}.",
        epilog="\n\n".join([*parts, EXIT_STATUSES]),
    )
    parser.set_defaults(run=run)
    return parser


def complain(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    print(f"neuron-plugin: {printable(' '.join(message.split()))}", file=sys.stderr)


def printable(text: str) -> str:
    """``text`` without characters that steer a terminal: names and attributes come from outside."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
