"""``neuron-plugin completion``: a script by which a shell completes commands, flags, choices and paths.

shtab writes it from the parser, so a new flag is in it at once, and what a flag takes follows from its metavar. The
script holds everything: no Python starts when Tab is pressed, and shtab is imported by this command only.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator

from neuron_plugin.cli.command import Exit, Parser, Subparsers, add_command
from neuron_plugin.topology import catalogue

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that completes commands, flags, their choices, instance types and paths in your shell.

The first example lasts as long as the shell. The second one needs the package bash-completion."""

EXAMPLES = """
source <(neuron-plugin completion bash)
neuron-plugin completion bash > ~/.local/share/bash-completion/completions/neuron-plugin
neuron-plugin completion zsh > "${fpath[1]}/_neuron-plugin"
neuron-plugin completion fish > ~/.config/fish/completions/neuron-plugin.fish
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "completion",
        run,
        summary="print a script that completes this command in your shell",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(arguments: Namespace) -> int:
    """Print the script."""
    from neuron_plugin.cli.main import build_parser

    print(script(build_parser(), arguments.shell))
    return Exit.FINE


def script(parser: Parser, shell: str) -> str:
    """The script for one shell; ``parser`` is not for parsing afterwards, it offers what it would not demand."""
    import shtab

    paths = {"DIR": shtab.DIRECTORY, "FILE": shtab.FILE, "PATH": shtab.FILE}
    names = {"TYPE": sorted(catalogue()), "CHECK": _names_of_checks()}
    for action in _actions(parser):
        if action.metavar in paths:
            action.complete = paths[action.metavar]  # type: ignore[attr-defined]  # shtab's way to be told
        elif action.metavar in names:
            action.choices = names[action.metavar]
    return str(shtab.complete(parser, shell))


def _names_of_checks() -> list[str]:
    from neuron_plugin.inspection.checks.table import CHECKS

    return [check.name for check in CHECKS]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of every command; each command is described by its line in the list of commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way to its arguments
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for listed in action._choices_actions:  # noqa: SLF001 - as above
                command = action.choices[listed.dest]
                command.description = listed.help  # zsh and fish show it beside the name: a line, not paragraphs
                yield from _actions(command)
