"""``neuron-plugin help``: the help of a command, for who types the word."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

DESCRIPTION = "Print the help of a command, as the command's --help does; without a command the list of all."

EXAMPLES = """
neuron-plugin help
neuron-plugin help devices
neuron-plugin help simulate node
"""


def add_flags(parser: ArgumentParser) -> None:
    """Which command."""
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="a command, and its action where it has some")


def run(arguments: Namespace) -> int:
    """Print it: ``--help`` ends the program."""
    from neuron_plugin.cli.main import main

    return main([*arguments.words, "--help"])
