"""Flags that say which node a command is about, the same for every command that looks at one."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec

from neuron_plugin.inspection.node import USUAL_FILE, Node, configuration_file, node_of
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import description_of

HOLDERS = {
    "sysfs": "DIR",
    "dev": "DIR",
    "logical-core-file": "FILE",
    "instance-types": "FILE",
    "instance-type": "TYPE",
    "pod-resources-socket": "PATH",
}
"""Settings of the daemon that say what is there and who holds it, flags here, too; and what each takes."""
EVERYTHING = HOLDERS | {"kubelet-dir": "DIR", "kubeconfig": "FILE", "node-name": "NAME"}


def add_node_flags(parser: ArgumentParser, settings: dict[str, str]) -> None:
    """Add ``--root``, ``--config`` and these settings of the daemon, as it describes them itself."""
    group = parser.add_argument_group(
        "which node", "A flag wins over NEURON_PLUGIN_*, that over the daemon's own file."
    )
    group.add_argument(
        "--root", metavar="DIR", help="a simulated machine, or a host mounted at DIR (default: this machine)"
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help=f"the daemon's configuration (default: {USUAL_FILE} where that is, as in the plugin's pod)",
    )
    fields = {field.encode_name: field for field in msgspec.structs.fields(PluginSettings)}
    for name, metavar in settings.items():
        below = f" (default: ROOT{fields[name].default})" if isinstance(fields[name].default, Path) else ""
        group.add_argument(f"--{name}", metavar=metavar, help=description_of(fields[name]) + below)


def node_from(arguments: Namespace) -> Node:
    """The node that the command line means.

    Raises:
        SettingsError: a directory or file that is not there, or settings that cannot be used.
    """
    flags = vars(arguments)
    return node_of(flags, os.environ, configuration_file(flags))
