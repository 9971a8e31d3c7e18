"""``neuron-plugin simulate``: a machine with Neuron hardware as a directory, and faults in it."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from neuron_plugin.allocation import IdListError, parse_ids
from neuron_plugin.cli.command import Exit, Parser, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import add_output_flag, plain, show, table
from neuron_plugin.hardware import ResetState
from neuron_plugin.inspection import plural, ranges
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.topology import Catalogue, Geometry, InstanceType, Unit, valid_counts

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedNode

Change: TypeAlias = "Callable[[SimulatedNode, Namespace], None]"

DESCRIPTION = """\
Write a machine with Neuron hardware into a directory, to try things without one.

The files are those of the Neuron driver, byte for byte, so whatever reads a machine can be pointed
there."""

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

FAULT_EXAMPLES = """
neuron-plugin simulate fault ./trn1 ecc 3 --sram 1
neuron-plugin simulate fault ./trn1 reset 3 failed
neuron-plugin simulate fault ./trn1 components 3 hbm,link_host
neuron-plugin simulate fault ./trn1 components 3 none
neuron-plugin simulate fault ./trn1 core-errors 3 --core 1 --kind hw_nc_ue_error --count 1
neuron-plugin simulate fault ./trn1 error-events 3 7
neuron-plugin simulate fault ./trn1 kmsg "nd3: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR on HBM 0"
neuron-plugin simulate fault ./trn1 device 5 gone
neuron-plugin simulate fault ./trn1 node 5 gone
neuron-plugin simulate fault ./trn1 driver gone
neuron-plugin simulate fault ./trn1 attribute 3 core_count --text garbage
"""

VERSION = 1
HEADERS = ("TYPE", "DEVICES", "PRODUCT", "CORES/DEVICE", "LNC", "MEMORY/DEVICE", "TOPOLOGY", "DEVICE-COUNTS")
_CORE_ERRORS = ("hw_error", "hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A machine as it was written; ``missing`` are the devices that never came up."""

    version: int = VERSION
    root: str
    instance_type: str
    devices: tuple[int, ...]
    missing: tuple[int, ...]
    driver_version: str


class TypeReport(msgspec.Struct, frozen=True, rename="camel"):
    """One instance type. ``cores_per_device`` are physical; ``device_counts`` are what one can ask for."""

    name: str
    devices: int
    product: str
    cores_per_device: int
    logical_core_size: int
    memory_gib_per_device: int
    topology: str
    device_counts: tuple[int, ...]


class TypesReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every known type, by ascending name."""

    version: int = VERSION
    types: tuple[TypeReport, ...]


def add_flags(parser: Parser) -> None:
    """The three actions."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    types = add_command(actions, "types", run_types, summary="list the instance types that can be simulated")
    add_output_flag(types)
    node = add_command(actions, "node", run, summary="write a machine into an empty directory", examples=NODE_EXAMPLES)
    node.add_argument("directory", type=Path, metavar="DIR", help="where to write; made if it does not exist")
    node.add_argument("--type", required=True, metavar="TYPE", help="EC2 instance type, see: simulate types")
    add_output_flag(node)
    node.add_argument("--lnc", type=int, metavar="N", help="logical core size set on the host (default: not set)")
    node.add_argument("--missing", default="", metavar="IDS", help="devices that never came up, such as 3,7")
    node.add_argument("--driver-version", default="", metavar="V", help="default: the newest that has this product")
    devices = "real character devices, as a container runtime needs them; takes root (default: plain files)"
    node.add_argument("--char-nodes", action="store_true", help=devices)
    counters = "leave out the counters that only monitors read, 100 files for each core"
    node.add_argument("--no-usage-counters", dest="usage_counters", action="store_false", help=counters)
    for each in (types, node):
        each.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")
    fault = add_command(
        actions,
        "fault",
        run_fault,
        summary="break something on a simulated machine, or repair it",
        examples=FAULT_EXAMPLES,
    )
    fault.add_argument("directory", type=Path, metavar="DIR", help="a directory that 'simulate node' wrote")
    _add_faults(fault.add_subparsers(title="what breaks", metavar="WHAT", dest="what", required=True))


def known_types(name: str, file: Path | None = None) -> Catalogue:
    """The instance types, ``name`` among them.

    Raises:
        UsageError: it is not.
        SettingsError: the file of further types cannot be used.
    """
    types = load_catalogue(file)
    if name not in types:
        raise UsageError(f"--type {name} is not known: see 'neuron-plugin simulate types'")
    return types


def run_types(arguments: Namespace) -> int:
    """List the instance types that are known."""
    types = load_catalogue(arguments.instance_types)
    found = tuple(_type_report(types[name]) for name in sorted(types))
    rows = []
    for each in found:
        cells = list(map(str, msgspec.structs.astuple(each)))
        cells[5] += "Gi"
        rows.append([(cell, "") for cell in (*cells[:-1], ranges(each.device_counts))])
    show(arguments.output, TypesReport(types=found), table(HEADERS, rows))
    return Exit.SUCCESS


def _type_report(instance: InstanceType) -> TypeReport:
    size = instance.logical_core_size
    cores = instance.cores_per_device // size
    geometry = Geometry(instance.name, instance.topology, instance.devices, cores, instance.block_sizes)
    return TypeReport(
        instance.name,
        instance.devices,
        instance.device_name,
        instance.cores_per_device,
        size,
        instance.memory_gib,
        instance.topology.value,
        valid_counts(geometry, Unit.DEVICE),
    )


def run(arguments: Namespace) -> int:
    """Write a simulated machine.

    Raises:
        UsageError: no such type, a directory in use, or a machine that cannot exist.
    """
    types = known_types(arguments.type, arguments.instance_types)
    from neuron_plugin.simulation import SimulationError, write_node

    try:
        node = write_node(
            arguments.directory,
            arguments.type,
            driver_version=arguments.driver_version,
            logical_core_size=arguments.lnc,
            missing=parse_ids(arguments.missing) if arguments.missing else (),
            char_nodes=arguments.char_nodes,
            usage_counters=arguments.usage_counters,
            types=types,
        )
    except IdListError as error:
        raise UsageError(f"--missing {arguments.missing}: {error}") from error
    except SimulationError as error:
        raise UsageError(str(error)) from error
    written = node.description
    report = NodeReport(
        root=str(node.root),
        instance_type=written.instance_type,
        devices=written.chips,
        missing=written.missing,
        driver_version=written.driver_version,
    )
    without = f", without {ranges(report.missing)}" if report.missing else ""
    devices = plural(len(report.devices), "device") + without
    lines = plain(
        f"{report.root}: {report.instance_type}, {devices}, driver {report.driver_version}",
        f"Look at it: neuron-plugin devices --root {report.root}",
    )
    show(arguments.output, report, lines)
    return Exit.SUCCESS


def run_fault(arguments: Namespace) -> int:
    """Make one change.

    Raises:
        UsageError: no simulated machine there, or a change that cannot be made.
    """
    from neuron_plugin.simulation import SimulatedNode, SimulationError

    try:
        arguments.change(SimulatedNode.open(arguments.directory), arguments)
    except SimulationError as error:
        raise UsageError(str(error)) from error
    return Exit.SUCCESS


def _add_faults(kinds: Subparsers) -> None:
    """A sub-command for each kind of fault, with the change that it makes."""

    def kind(name: str, change: Change, summary: str, *, of_device: bool = True) -> ArgumentParser:
        parser = add_command(kinds, name, run_fault, summary=summary)
        parser.set_defaults(change=change)
        if of_device:
            parser.add_argument("device", type=int, metavar="DEVICE", help="device id, N of /dev/neuronN")
        return parser

    ecc = kind("ecc", _set_ecc, "counts of uncorrected memory errors")
    for memory in ("sram", "memory", "repairable"):
        ecc.add_argument(f"--{memory}", type=_count, metavar="COUNT", help="default: as it is")
    reset = kind(
        "reset", lambda node, to: node.set_reset(to.device, ResetState[to.state.upper()]), "state of its reset"
    )
    reset.add_argument("state", choices=("resetting", "ready", "failed"))
    components = kind("components", _set_components, "parts that firmware reports unhealthy")
    components.add_argument("names", metavar="NAMES|none", help="such as hbm,link_host")
    errors = kind(
        "core-errors",
        lambda node, to: node.set_core_errors(to.device, to.core, **{to.kind: to.count}),
        "counts of hardware errors on one core",
    )
    errors.add_argument("--core", type=int, default=0, metavar="CORE", help="physical core of the device (default: 0)")
    errors.add_argument("--kind", choices=_CORE_ERRORS, default=_CORE_ERRORS[0], help="default: %(default)s")
    errors.add_argument("--count", type=_count, required=True, metavar="COUNT", help="what the counter reads")
    events = kind(
        "error-events",
        lambda node, to: node.set_error_events(to.device, to.count),
        "firmware's counter of hardware errors (driver 2.28)",
    )
    events.add_argument("count", type=_count, metavar="COUNT", help="what the counter reads")
    for name, summary, of_device in (
        ("device", "the whole device", True),
        ("node", "the device node /dev/neuronN only", True),
        ("driver", "the driver, with everything", False),
    ):
        kind(name, _set_presence, summary, of_device=of_device).add_argument("presence", choices=("gone", "back"))
    attribute = kind("attribute", _set_attribute, "one sysfs attribute of a device")
    attribute.add_argument("name", metavar="NAME", help="path below the device, such as core_count")
    what = attribute.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", help="what it reads; \\n is a newline")
    what.add_argument("--missing", action="store_true", help="it is not there")
    what.add_argument("--restore", action="store_true", help="it reads as it should")
    kmsg = kind(
        "kmsg",
        lambda node, to: node.log_kernel_message(to.text, by_kernel=not to.forged),
        "a line in the kernel log",
        of_device=False,
    )
    kmsg.add_argument("text", help="such as: nd3: NEURON_HW_ERR=DMA_ERROR on queue 4")
    kmsg.add_argument("--forged", action="store_true", help="as a process writes it, not the kernel")
    lnc = kind("lnc", _set_lnc, "logical core size in the host's file", of_device=False)
    lnc.add_argument("size", metavar="N|none", help="the size; none removes the file")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is no count of 0 or more")
    return int(text)


def _set_ecc(node: SimulatedNode, to: Namespace) -> None:
    if to.sram is to.memory is to.repairable is None:
        raise UsageError("ecc changes nothing without --sram, --memory or --repairable COUNT")
    node.set_ecc(to.device, sram=to.sram, memory=to.memory, repairable=to.repairable)


def _set_components(node: SimulatedNode, to: Namespace) -> None:
    node.set_unhealthy_components(to.device, [] if to.names == "none" else to.names.split(","))


def _set_presence(node: SimulatedNode, to: Namespace) -> None:
    gone = to.presence == "gone"
    if to.what == "driver":
        (node.unload_driver if gone else node.load_driver)()
    elif to.what == "node":
        (node.remove_node if gone else node.restore_node)(to.device)
    else:
        (node.remove_device if gone else node.restore_device)(to.device)


def _set_attribute(node: SimulatedNode, to: Namespace) -> None:
    if to.missing:
        node.remove_attribute(to.device, to.name)
    elif to.restore:
        node.restore_attribute(to.device, to.name)
    else:
        node.set_attribute(to.device, to.name, to.text.replace("\\n", "\n"))


def _set_lnc(node: SimulatedNode, to: Namespace) -> None:
    if to.size != "none" and not (to.size.isascii() and to.size.isdigit()):
        raise UsageError(f"lnc {to.size}: expected a number, or none")
    node.set_logical_core_size(None if to.size == "none" else int(to.size))
