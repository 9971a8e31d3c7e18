"""Flags that say which node a command is about, the same for every command that looks at one."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from neuron_plugin.inspection.node import USUAL_FILE, Node, configuration_file, node_of

_SETTINGS = {
    "sysfs": ("DIR", "where sysfs is mounted (default: ROOT/sys)"),
    "dev": ("DIR", "directory of the device nodes (default: ROOT/dev)"),
    "logical-core-file": ("FILE", "the host's LNC setting (default: ROOT/opt/aws/neuron/logical_nc_config)"),
    "instance-types": ("FILE", "YAML file of further instance types"),
    "instance-type": ("TYPE", "EC2 instance type, where the machine does not tell it"),
    "pod-resources-socket": (
        "PATH",
        "the kubelet's PodResources socket, which tells the holders (default: below ROOT)",
    ),
    "kubelet-dir": ("DIR", "the kubelet's directory of device plugins (default: below ROOT)"),
    "kubeconfig": ("FILE", "how to reach the API server, to check its view"),
    "node-name": ("NAME", "this node's name in Kubernetes (default: NODE_NAME, or the host's name)"),
}
"""Settings of the daemon that are flags here, too."""

HARDWARE = ("sysfs", "dev", "logical-core-file", "instance-types", "instance-type")
HOLDERS = (*HARDWARE, "pod-resources-socket")
EVERYTHING = tuple(_SETTINGS)


def add_node_flags(parser: ArgumentParser, settings: tuple[str, ...]) -> None:
    """Add ``--root``, ``--config`` and these settings of the daemon."""
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
    for name in settings:
        metavar, text = _SETTINGS[name]
        group.add_argument(f"--{name}", metavar=metavar, help=text)


def node_from(arguments: Namespace) -> Node:
    """The node that the command line means.

    Raises:
        SettingsError: a directory or file that is not there, or settings that cannot be used.
    """
    flags = vars(arguments)
    return node_of(flags, os.environ, configuration_file(flags))
