"""``neuron-plugin version``: the version of this program."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from neuron_plugin.build import build
from neuron_plugin.cli.command import VERSION, add_output_flag, plain, show

DESCRIPTION = "Print the version of this program, the commit that it was built from, and the Python that runs it."

EXAMPLES = """
neuron-plugin version
neuron-plugin version -o json
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flag for the output."""
    add_output_flag(parser)


def run(arguments: Namespace) -> None:
    """Print the version; ``version`` in the document is the version of the document, as in all commands."""
    found = build()
    line = f"neuron-plugin {found.version} (commit {found.revision}, Python {found.python}, gRPC {found.grpc})"
    show(arguments.output, {"version": VERSION, "build": found._asdict()}, plain(line))
