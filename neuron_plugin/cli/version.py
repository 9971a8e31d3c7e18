"""``neuron-plugin version``: which version this program is."""

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
    """The form of the output."""
    add_output_flag(parser)


def run(arguments: Namespace) -> None:
    """Print it; ``version`` in the document is the document's own, as everywhere."""
    found = build()
    line = f"neuron-plugin {found.version} (commit {found.revision}, Python {found.python}, gRPC {found.grpc})"
    show(arguments.output, {"version": VERSION, "build": found._asdict()}, plain(line))
