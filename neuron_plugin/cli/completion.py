"""``neuron-plugin completion``: a script by which a shell completes commands, flags, choices and paths.

shtab writes it from the parser, so a new flag is in it at once, and the metavar of a flag says what completes it. The
script holds everything: no Python starts when Tab is pressed.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator

import shtab

from neuron_plugin.cli.command import Exit, Parser
from neuron_plugin.topology import catalogue

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that completes commands, flags, their choices, instance types and paths in your shell."""

EXAMPLES = """
source <(neuron-plugin completion bash)
neuron-plugin completion bash > ~/.local/share/bash-completion/completions/neuron-plugin
"""


def add_flags(parser: Parser) -> None:
    """The shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(arguments: Namespace) -> int:
    """Print the script."""
    from neuron_plugin.cli.main import build_parser
    from neuron_plugin.inspection import CHECKS

    parser = build_parser()
    paths = {"DIR": shtab.DIRECTORY, "FILE": shtab.FILE, "PATH": shtab.FILE}
    names = {"TYPE": sorted(catalogue()), "CHECK": [check.name for check in CHECKS]}
    for action in _actions(parser):
        if action.metavar in paths:
            action.complete = paths[action.metavar]  # type: ignore[attr-defined]  # how shtab wants it
        elif action.metavar in names:
            action.choices = names[action.metavar]
    print(shtab.complete(parser, arguments.shell))
    return Exit.SUCCESS


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of every command; each command is described by its line in the list of commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way to its arguments
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for listed in action._choices_actions:  # noqa: SLF001 - as above
                command = action.choices[listed.dest]
                command.description = listed.help  # zsh and fish show it beside the name: a line, not paragraphs
                yield from _actions(command)
