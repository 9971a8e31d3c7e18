"""The node or daemon of a command, by its flags, the environment and the usual files."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

import msgspec

from neuron_plugin.inspection import InspectedNode, node_of
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import USUAL_FILE, SettingsError, configuration_file, description_of, load

HOLDERS = {
    "sysfs": "DIR",
    "dev": "DIR",
    "logical-core-file": "FILE",
    "instance-types": "FILE",
    "instance-type": "TYPE",
    "kubelet-dir": "DIR",
    "pod-resources-socket": "PATH",
}
"""Settings of the daemon that locate devices and their holders, and are flags here, too, with their metavars."""
EVERYTHING = HOLDERS | {"kubeconfig": "FILE", "node-name": "NAME", "mode": "MODE"}


def add_node_flags(parser: ArgumentParser, settings: dict[str, str]) -> None:
    """Add ``--root``, ``--config`` and flags for these settings of the daemon, with the daemon's descriptions."""
    group = parser.add_argument_group(
        "which node", "A flag wins over NEURON_PLUGIN_*, that over the daemon's own file."
    )
    group.add_argument(
        "--root", metavar="DIR", help="a simulated machine, or a host mounted at DIR (default: this machine)"
    )
    usual = f"the daemon's configuration (default: {USUAL_FILE} where that is, as in the plugin's pod)"
    group.add_argument("--config", metavar="FILE", help=usual)
    fields = {field.encode_name: field for field in msgspec.structs.fields(PluginSettings)}
    for name, metavar in settings.items():
        below = f" (default: ROOT{fields[name].default})" if isinstance(fields[name].default, Path) else ""
        group.add_argument(f"--{name}", metavar=metavar, help=description_of(fields[name]) + below)


def node_from(arguments: Namespace) -> InspectedNode:
    """The node of the command line.

    Raises:
        SettingsError: a directory or file does not exist, or settings cannot be used.
    """
    return node_of(vars(arguments), os.environ, configuration_file(vars(arguments)))


def settings_here() -> PluginSettings | ExtenderSettings:
    """Settings of the daemon of this pod or machine, from the environment and the file in the usual place.

    Plugin and extender have their files in the same place, each in its own pods.

    Raises:
        SettingsError: the file is neither daemon's.
    """
    file = configuration_file({})
    try:
        return load(PluginSettings, {}, os.environ, file)
    except SettingsError as error:
        with suppress(SettingsError):
            return load(ExtenderSettings, {}, os.environ, file)
        raise error from None
