"""``neuron-plugin simulate``: a machine with Neuron hardware as a directory, and faults in it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import IdListError, parse_ids
from neuron_plugin.cli import simulate_fault, simulate_types
from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.cli.simulate_types import known_types
from neuron_plugin.inspection.text import plural, ranges

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedNode

DESCRIPTION = """\
Write a machine with Neuron hardware into a directory, to try things without one.

The files are those of the Neuron driver, byte for byte, so whatever reads a machine can be pointed there."""

EXAMPLES = """
neuron-plugin simulate types
neuron-plugin simulate node ./trn1 --type trn1.32xlarge
neuron-plugin devices --root ./trn1
neuron-plugin simulate fault ./trn1 ecc 3 --sram 1
neuron-plugin simulate fault ./trn1 device 5 gone
neuron-plugin simulate fault ./trn1 device 5 back
"""

NODE_EXAMPLES = """
neuron-plugin simulate node ./trn1 --type trn1.32xlarge
neuron-plugin simulate node ./trn2 --type trn2.48xlarge --lnc 1
neuron-plugin simulate node ./broken --type inf2.48xlarge --missing 3,7
neuron-plugin simulate node ./old --type inf2.24xlarge --driver-version 2.10.11.0
"""

VERSION = 1


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A machine as it was written; ``missing`` are the devices that never came up."""

    version: int = VERSION
    root: str
    instance_type: str
    devices: tuple[int, ...]
    missing: tuple[int, ...]
    driver_version: str


def register(subparsers: Subparsers) -> None:
    """Add the command with its three."""
    parser = add_command(
        subparsers,
        "simulate",
        run_node,
        summary="write a simulated machine into a directory, and put faults into it",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    simulate_types.register(actions)
    _register_node(actions)
    simulate_fault.register(actions)


def run_node(arguments: Namespace) -> int:
    """Write a simulated machine.

    Raises:
        UsageError: no such type, a directory in use, or a machine that cannot be.
    """
    types = known_types(arguments.type, arguments.instance_types)
    from neuron_plugin.simulation import (
        SimulationError,
        write_node,
    )

    try:
        node = write_node(
            arguments.directory,
            arguments.type,
            driver_version=arguments.driver_version,
            logical_core_size=arguments.lnc,
            missing=_missing(arguments.missing),
            char_nodes=arguments.char_nodes,
            usage_counters=arguments.usage_counters,
            types=types,
        )
    except SimulationError as error:
        raise UsageError(str(error)) from error
    form = Form(arguments.output)
    print(_told(node) if form is Form.TEXT else document(form, _node_report(node)), end="")
    return Exit.FINE


def _register_node(actions: Subparsers) -> None:
    node = add_command(
        actions, "node", run_node, summary="write a machine into an empty directory", examples=NODE_EXAMPLES
    )
    node.add_argument("directory", type=Path, metavar="DIR", help="where to write; made if it does not exist")
    node.add_argument("--type", required=True, metavar="TYPE", help="EC2 instance type, see: simulate types")
    add_output_flag(node)
    node.add_argument("--lnc", type=int, metavar="N", help="logical core size set on the host (default: not set)")
    node.add_argument("--missing", default="", metavar="IDS", help="devices that never came up, such as 3,7")
    node.add_argument("--driver-version", default="", metavar="V", help="default: the newest that has this product")
    node.add_argument(
        "--char-nodes",
        action="store_true",
        help="real character devices, as a container runtime needs them; takes root (default: plain files)",
    )
    node.add_argument(
        "--no-usage-counters",
        dest="usage_counters",
        action="store_false",
        help="leave out the counters that only monitors read, 100 files for each core",
    )
    node.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")


def _missing(text: str) -> tuple[int, ...]:
    try:
        return parse_ids(text) if text else ()
    except IdListError as error:
        raise UsageError(f"--missing {text}: {error}") from error


def _told(node: SimulatedNode) -> str:
    description = node.description
    missing = f", without {ranges(description.missing)}" if description.missing else ""
    devices = plural(len(description.chips), "device")
    return (
        f"{node.root}: {description.instance_type}, {devices}{missing}, driver {description.driver_version}\n"
        f"Look at it: neuron-plugin devices --root {node.root}\n"
    )


def _node_report(node: SimulatedNode) -> NodeReport:
    description = node.description
    return NodeReport(
        root=str(node.root),
        instance_type=description.instance_type,
        devices=description.chips,
        missing=description.missing,
        driver_version=description.driver_version,
    )
