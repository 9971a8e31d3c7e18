"""``neuron-plugin version``: what an issue report has to name."""

from __future__ import annotations

import json
import platform
from argparse import Namespace

from neuron_plugin import __version__
from neuron_plugin.cli import machine
from neuron_plugin.cli.command import Exit, Subparsers, add_command

EXAMPLES = """
neuron-plugin version
neuron-plugin version -o json
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "version",
        run,
        summary="print the versions of this program, of Python and of the Neuron driver",
        examples=EXAMPLES,
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form (default: text)")
    machine.add_path_flags(parser)


def run(arguments: Namespace) -> int:
    """Print the versions; that there is no driver is fine here."""
    versions = {"neuronPlugin": __version__, "python": platform.python_version(), "driver": _driver(arguments)}
    if arguments.output == "json":
        print(json.dumps(versions))
    else:
        print(f"neuron-plugin {__version__}")
        print(f"Python {versions['python']}")
        print(f"Neuron driver {versions['driver'] or 'not found'}")
    return Exit.FINE


def _driver(arguments: Namespace) -> str | None:
    from neuron_plugin.hardware.inventory import read_inventory  # noqa: PLC0415 - nothing else here needs it

    version = read_inventory(machine.paths_of(arguments)).driver_version
    return version.text if version else None
