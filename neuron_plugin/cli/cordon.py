"""``neuron-plugin cordon``: take devices of a node out of service, so that no new pod gets them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from neuron_plugin.allocation import IdListError
from neuron_plugin.allocation.resources import parse_ids, ranges
from neuron_plugin.cli.cluster import SERVER, add_cluster_flags, ask_cluster, node_name
from neuron_plugin.cli.command import VERSION, CommandError, add_output_flag, plain, show
from neuron_plugin.wording import named

DESCRIPTION = """\
Take devices of a node out of service: no new pod gets them, under any resource name, with or without
the extender. Pods that have them keep them.

It writes the annotation neuron-plugin.io/disable-devices on the Node, which the node's plugin
follows. Devices that are disabled already stay so. 'neuron-plugin uncordon' puts devices back, and
'neuron-plugin repair' also says who has a device and empties it."""

EXAMPLES = """
neuron-plugin cordon worker-1 5,7
neuron-plugin cordon worker-1 0-3
neuron-plugin uncordon worker-1 5
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add the arguments for node and devices."""
    parser.add_argument("node", metavar="NODE", type=node_name, help="name of the node")
    parser.add_argument(
        "devices", metavar="DEVICES", type=device_ids, help="device ids of the host, such as 5,7 or 0-3"
    )
    add_output_flag(parser)
    add_cluster_flags(parser, *SERVER)


def device_ids(text: str) -> tuple[int, ...]:
    """The type of a list of device ids."""
    try:
        return parse_ids(text)
    except IdListError as error:
        raise ArgumentTypeError(str(error)) from error


def run(arguments: Namespace) -> None:
    """Disable the devices, and print the disabled ones."""
    return change(arguments, disable=True)


def change(arguments: Namespace, *, disable: bool) -> None:
    """Change the disabled devices of a node, and print them.

    Raises:
        CommandError: the node could not be changed.
    """
    from neuron_plugin.plugin.cordon import CordonError, change_disabled

    try:
        before, after = ask_cluster(
            arguments, lambda api: change_disabled(api, arguments.node, arguments.devices, disable=disable)
        )
    except CordonError as error:
        raise CommandError(str(error)) from error
    differing, verb = set(before) ^ set(after), "disabled" if disable else "enabled"
    line = f"{named('device', differing)} {verb}" if differing else "nothing to change"
    left = f"disabled now: {ranges(after)} (pods that have them keep them)" if after else "no device is disabled now"
    document = {"version": VERSION, "node": arguments.node, "disabledBefore": list(before), "disabled": list(after)}
    show(arguments.output, document, plain(f"node {arguments.node}: {line}; {left}"))
