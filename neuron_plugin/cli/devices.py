"""``neuron-plugin devices``: the Neuron devices of a machine, their health, and who holds them."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TypeVar

from neuron_plugin.cli.command import Subparsers, add_command
from neuron_plugin.cli.device_output import Form, Sight, show, watch
from neuron_plugin.cli.node_flags import HOLDERS, add_node_flags, node_from
from neuron_plugin.cli.output import add_output_flag
from neuron_plugin.inspection.devices import report_of
from neuron_plugin.inspection.holders import HolderReading, Holders
from neuron_plugin.inspection.machine import look
from neuron_plugin.inspection.node import Node

_T = TypeVar("_T")

DESCRIPTION = """\
Show the Neuron devices of this machine.

columns:
  CORES    logical cores (LNC applied), counted through the whole host, as in the pod annotation NEURON_CORES
  LINKS    the devices it is linked to
  HEALTH   healthy; warning (still handed out); resetting (ends by itself); unhealthy (not handed out);
           skipped (the driver lists it, but it cannot be used); missing (the driver should list it)
  HOLDERS  who has it: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD/CONTAINER[2,3] for some of its cores; "-" nobody,
           "?" not known. The kubelet tells them, except for what plain init containers hold

Exit status 1 also says that there is no Neuron device."""

EXAMPLES = """
neuron-plugin devices
neuron-plugin devices -o wide
neuron-plugin devices -o json | jq '.devices[] | select(.health != "healthy")'
neuron-plugin devices --watch
neuron-plugin devices --root ./trn1        # a simulated machine, see: neuron-plugin simulate --help
"""

WATCH_SECONDS = 2.0


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "devices",
        run,
        summary="show the Neuron devices of this machine, their health and who holds them",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    add_output_flag(parser, Form, told="text, wide, json, yaml, or neuron-ls: JSON as 'neuron-ls -j' prints it")
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="print again whenever something changes, until Ctrl-C; JSON then comes one document a line",
    )
    add_node_flags(parser, HOLDERS)


def run(arguments: Namespace) -> int:
    """Print the devices once, or for as long as they are watched."""
    look_again, form = Look(node_from(arguments)), Form(arguments.output)
    if arguments.watch:
        watch(form, changes(look_again, lambda: time.sleep(WATCH_SECONDS)))
    return show(form, look_again())


class Look:
    """Looks at a node's machine and its holders, again and again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._holders = HolderReading(node.settings.pod_resources_socket)

    def __call__(self) -> Sight:
        """What is there now."""
        seen = look(self._node.settings, os.environ)
        holders = self._holders.read(seen.geometry) if seen.geometry else Holders(None)
        return Sight(seen, report_of(seen, holders), self._node.proc)


def changes(look: Callable[[], _T], pause: Callable[[], None]) -> Iterator[_T]:
    """What ``look`` finds, then each finding that differs from the last. Endless."""
    last: _T | None = None
    while True:
        sight = look()
        if sight != last:
            yield sight
        last = sight
        pause()
