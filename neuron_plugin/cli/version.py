"""``neuron-plugin version``: what an issue report has to name."""

from __future__ import annotations

from argparse import Namespace

import msgspec

from neuron_plugin.build import build
from neuron_plugin.cli.command import Exit, Subparsers, add_command
from neuron_plugin.cli.node_flags import add_node_flags, node_from
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError

EXAMPLES = """
neuron-plugin version
neuron-plugin version -o json
"""


class Versions(msgspec.Struct, frozen=True, rename="camel"):
    """``revision`` is the git commit of the image, ``unknown`` elsewhere; ``driver`` is None where there is none."""

    neuron_plugin: str
    revision: str
    python: str
    grpc: str
    driver: str | None


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "version",
        run,
        summary="print the versions of this program, of what it runs on and of the Neuron driver",
        examples=EXAMPLES,
    )
    add_output_flag(parser)
    add_node_flags(parser, {"sysfs": "DIR"})


def run(arguments: Namespace) -> int:
    """Print the versions; that there is no driver is fine here."""
    found, form = Versions(*build(), _driver(arguments)), Form(arguments.output)
    print(_text(found) if form is Form.TEXT else document(form, found), end="")
    return Exit.FINE


def _text(found: Versions) -> str:
    return (
        f"neuron-plugin {found.neuron_plugin}, revision {found.revision}\n"
        f"Python {found.python}, gRPC {found.grpc}\n"
        f"Neuron driver {found.driver or 'not found'}\n"
    )


def _driver(arguments: Namespace) -> str | None:
    from neuron_plugin.hardware import MachinePaths, read_inventory

    try:
        settings = node_from(arguments).settings
    except SettingsError:
        if arguments.root or arguments.config:
            raise
        settings = PluginSettings()  # the file in the usual place is another daemon's: the extender has its own there
    version = read_inventory(MachinePaths(settings.sysfs, settings.dev, settings.logical_core_file)).driver_version
    return version.text if version else None
