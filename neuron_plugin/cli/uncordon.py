"""``neuron-plugin uncordon``: put devices of a node back into service."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from neuron_plugin.cli.cluster import SERVER, add_cluster_flags, node_name
from neuron_plugin.cli.command import add_output_flag
from neuron_plugin.cli.cordon import change, device_ids

DESCRIPTION = """\
Put devices of a node back into service that 'neuron-plugin cordon' took out of it, or that the Node's
annotation neuron-plugin.io/disable-devices names; without DEVICES all of them.

A device that is unhealthy is given to no new pod all the same."""

EXAMPLES = """
neuron-plugin uncordon worker-1 5
neuron-plugin uncordon worker-1
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add the arguments for node and devices."""
    parser.add_argument("node", metavar="NODE", type=node_name, help="name of the node")
    devices = "device ids of the host, such as 5,7 or 0-3 (default: all that are disabled)"
    parser.add_argument("devices", metavar="DEVICES", type=device_ids, nargs="?", default=(), help=devices)
    add_output_flag(parser)
    add_cluster_flags(parser, *SERVER)


def run(arguments: Namespace) -> None:
    """Enable the devices, and print the ones that are still disabled."""
    return change(arguments, disable=False)
