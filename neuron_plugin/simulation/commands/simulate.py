"""``neuron-plugin simulate``: a machine with Neuron hardware as a directory, and faults in it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from neuron_plugin.allocation import IdListError
from neuron_plugin.allocation.resources import parse_ids, ranges
from neuron_plugin.cli.command import (
    VERSION,
    Parser,
    Run,
    Subparsers,
    UsageError,
    add_command,
    add_output_flag,
    count,
    matching,
    plain,
    program,
    show,
    table,
)
from neuron_plugin.hardware import GENERATIONS, ResetState
from neuron_plugin.hardware.device import CORE_ERROR_COUNTERS
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.topology import Catalogue, Unit, sets_by_count
from neuron_plugin.wording import plural

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedNode

DESCRIPTION = """\
Write a machine with Neuron hardware into a directory, to try things without one.

The files are those of the Neuron driver, byte for byte, so whatever reads a machine can be pointed
there."""

EXAMPLES = """
neuron-plugin simulate types
neuron-plugin simulate node ./trn1 --type trn1.32xlarge
neuron-plugin devices --root ./trn1
neuron-plugin simulate fault ./trn1 device 5 gone
"""

NODE_EXAMPLES = """
neuron-plugin simulate node ./trn2 --type trn2.48xlarge --lnc 1
neuron-plugin simulate node ./broken --type inf2.48xlarge --missing 3,7
neuron-plugin simulate node ./old --type inf2.24xlarge --driver-version 2.10.11.0
"""

FAULT_EXAMPLES = """
neuron-plugin simulate fault ./trn1 ecc 3 --sram 1
neuron-plugin simulate fault ./trn1 reset 3 failed
neuron-plugin simulate fault ./trn1 components 3 hbm,link_host
neuron-plugin simulate fault ./trn1 core-errors 3 --core 1 --kind hw_nc_ue_error --count 1
neuron-plugin simulate fault ./trn1 error-events 3 7
neuron-plugin simulate fault ./trn1 kmsg "nd3: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR on HBM 0"
neuron-plugin simulate fault ./trn1 device 5 gone
neuron-plugin simulate fault ./trn1 attribute 3 core_count --text garbage
"""

_HEADERS = (
    *("TYPE", "DEVICES", "PRODUCT", "CORES/DEVICE", "PHYSICAL", "LNC"),
    *("MEMORY/DEVICE", "TOPOLOGY", "DEVICE-COUNTS", "CORE-COUNTS"),
)


def add_flags(parser: Parser) -> None:
    """Add the actions."""
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
    for command in (types, node):
        command.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")
    summary = "break something on a simulated machine, or repair it"
    fault = add_command(actions, "fault", run_fault, summary=summary, examples=FAULT_EXAMPLES)
    fault.add_argument("directory", type=Path, metavar="DIR", help="a directory that 'simulate node' wrote")
    add_faults(fault, run_fault)
    # Imported here, because demo and playground import this module and do not need it.
    from neuron_plugin.simulation.commands.simulate_cluster import add_cluster_command

    add_cluster_command(actions)


def add_faults(parser: Parser, run: Run) -> Subparsers:
    """Add all faults as actions of ``run``; returns the subparsers, for more."""
    kinds = parser.add_subparsers(title="what breaks", metavar="WHAT", dest="what", required=True)
    for name, (summary, _, arguments) in FAULTS.items():
        kind = add_command(kinds, name, run, summary=summary)
        group = kind.add_mutually_exclusive_group(required=True) if name == "attribute" else kind
        for argument in arguments.split():
            (group if argument.startswith("--") else kind).add_argument(argument, **ARGUMENTS[argument])
    return kinds


def known_types(name: str, file: Path | None = None, *, flag: str = "--type") -> Catalogue:
    """The instance types, once ``name``, given by ``flag``, is one of them.

    Raises:
        UsageError: it is not.
        SettingsError: the file of further types cannot be used.
    """
    types = load_catalogue(file)
    if name not in types:
        raise UsageError(f"{flag} {name} is not known: see 'neuron-plugin simulate types'")
    return types


def run_types(arguments: Namespace) -> None:
    """List the known instance types."""
    reports, rows = [], []
    for _, instance in sorted(load_catalogue(arguments.instance_types).items()):
        report = {
            "name": instance.name,
            "devices": instance.devices,
            "product": instance.device_name,
            "coresPerDevice": instance.geometry.cores_per_device,
            "physicalCoresPerDevice": instance.cores_per_device,
            "logicalCoreSize": instance.logical_core_size,
            "memoryGibPerDevice": instance.memory_gib,
            "topology": instance.topology.value,
            "deviceCounts": (devices := tuple(sets_by_count(instance.geometry, Unit.DEVICE))),
            "coreCounts": (cores := tuple(sets_by_count(instance.geometry, Unit.CORE))),
        }
        reports.append(report)
        cells = report | {"memoryGibPerDevice": f"{instance.memory_gib}Gi"}
        cells |= {"deviceCounts": ranges(devices), "coreCounts": ranges(cores)}
        rows.append(dict(zip(_HEADERS, map(str, cells.values()), strict=True)))
    show(arguments.output, {"version": VERSION, "types": reports}, table(rows))


def run(arguments: Namespace) -> None:
    """Write a simulated machine.

    Raises:
        UsageError: an unknown type, a directory in use, or an impossible machine.
    """
    types = known_types(arguments.type, arguments.instance_types)
    generation = GENERATIONS.get(types[arguments.type].device_name)
    if generation and (arguments.lnc or 0) > (largest := generation.largest_logical_core_size):
        raise UsageError(f"--lnc {arguments.lnc} is not known to {generation.device_name}, expected at most {largest}")
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
    report = {
        "version": VERSION,
        "root": str(node.root),
        "instanceType": written.instance_type,
        "devices": written.chips,
        "missing": written.missing,
        "driverVersion": written.driver_version,
    }
    devices = plural(len(written.chips), "device") + (f", without {ranges(written.missing)}" if written.missing else "")
    lines = plain(
        f"{node.root}: {written.instance_type}, {devices}, driver {written.driver_version}",
        f"Look at it: {program()} devices --root {node.root}",
    )
    show(arguments.output, report, lines)


def run_fault(arguments: Namespace) -> None:
    """Make one change.

    Raises:
        UsageError: no simulated machine there, or an impossible change.
    """
    from neuron_plugin.simulation import SimulatedNode, SimulationError

    try:
        FAULTS[arguments.what][1](SimulatedNode.open(arguments.directory), arguments)
    except SimulationError as error:
        raise UsageError(str(error)) from error


def _set_ecc(node: SimulatedNode, to: Namespace) -> None:
    if to.sram is to.memory is to.repairable is None:
        raise UsageError("ecc changes nothing without --sram, --memory or --repairable COUNT")
    node.set_ecc(to.device, sram=to.sram, memory=to.memory, repairable=to.repairable)


def _set_attribute(node: SimulatedNode, to: Namespace) -> None:
    below = node.paths.sysfs / f"class/neuron_device/neuron{to.device}"
    if to.name not in node.description.device(to.device).overrides and not (below / to.name).is_file():
        raise UsageError(f"neuron{to.device} has no attribute {to.name}: expected a path below the device, {below}")
    if to.restore:
        node.restore_attribute(to.device, to.name)
    else:
        node.set_attribute(to.device, to.name, None if to.missing else to.text.replace("\\n", "\n"))


def _set_busy(node: SimulatedNode, to: Namespace) -> None:
    try:
        devices = parse_ids(to.devices)
    except IdListError as error:
        raise UsageError(f"{to.devices}: {error}") from error
    for device in devices:
        node.set_busy(device, {"busy": min(to.percent, 100), "idle": 0, "usual": None}[to.work])


Change: TypeAlias = "Callable[[SimulatedNode, Namespace], None]"

_COUNT = {"type": count(0), "metavar": "COUNT", "help": "what the counter reads"}
_ECC_COUNT = {"type": count(0), "metavar": "COUNT", "help": "default: as it is"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "device": {"type": int, "metavar": "DEVICE", "help": "device id, N of /dev/neuronN"},
    "presence": {"choices": ("gone", "back")},
    **dict.fromkeys(("--sram", "--memory", "--repairable"), _ECC_COUNT),
    "state": {"choices": ("resetting", "ready", "failed")},
    "names": {"metavar": "NAMES|none", "help": "such as hbm,link_host"},
    "--core": {"type": int, "default": 0, "metavar": "CORE", "help": "physical core of the device (default: 0)"},
    "--kind": {"choices": CORE_ERROR_COUNTERS, "default": CORE_ERROR_COUNTERS[0], "help": "default: %(default)s"},
    "--count": _COUNT | {"required": True},
    "count": _COUNT,
    "name": {"metavar": "NAME", "help": "path below the device, such as core_count"},
    "--text": {"help": "what it reads; \\n is a newline"},
    "--missing": {"action": "store_true", "help": "it is not there"},
    "--restore": {"action": "store_true", "help": "it reads as it should"},
    "text": {"help": "such as: nd3: NEURON_HW_ERR=DMA_ERROR on queue 4"},
    "--forged": {"action": "store_true", "help": "as a process writes it, not the kernel"},
    "work": {"choices": ("busy", "idle", "usual"), "help": "usual: busy while a pod has it"},
    "--percent": {"type": count(0), "default": 90, "metavar": "N", "help": "how busy (default: %(default)s)"},
    "devices": {"metavar": "DEVICES", "help": "device ids, such as 0-3,8"},
    "size": {"type": matching(r"[0-9]+|none", "logical core size: a number, or none"), "metavar": "N|none"},
}
FAULTS: dict[str, tuple[str, Change, str]] = {
    "ecc": ("counts of uncorrected memory errors", _set_ecc, "device --sram --memory --repairable"),
    "reset": (
        "state of its reset",
        lambda node, to: node.set_reset(to.device, ResetState[to.state.upper()]),
        "device state",
    ),
    "components": (
        "parts that firmware reports unhealthy",
        lambda node, to: node.set_unhealthy_components(to.device, [] if to.names == "none" else to.names.split(",")),
        "device names",
    ),
    "core-errors": (
        "counts of hardware errors on one core",
        lambda node, to: node.set_core_errors(to.device, to.core, **{to.kind: to.count}),
        "device --core --kind --count",
    ),
    "error-events": (
        "firmware's counter of hardware errors (driver 2.28)",
        lambda node, to: node.set_error_events(to.device, to.count),
        "device count",
    ),
    "use": ("how much its cores execute, in a playground", _set_busy, "devices work --percent"),
    "reset-failures": (
        "counts of failed resets",
        lambda node, to: node.set_reset_failures(to.device, to.count),
        "device count",
    ),
    "device": (
        "the whole device",
        lambda node, to: (node.remove_device if to.presence == "gone" else node.restore_device)(to.device),
        "device presence",
    ),
    "node": (
        "the device node /dev/neuronN only",
        lambda node, to: (node.remove_node if to.presence == "gone" else node.restore_node)(to.device),
        "device presence",
    ),
    "driver": (
        "the driver, with everything",
        lambda node, to: (node.unload_driver if to.presence == "gone" else node.load_driver)(),
        "presence",
    ),
    "attribute": ("one sysfs attribute of a device", _set_attribute, "device name --text --missing --restore"),
    "kmsg": (
        "a line in the kernel log",
        lambda node, to: node.log_kernel_message(to.text, by_kernel=not to.forged),
        "text --forged",
    ),
    "lnc": (
        "logical core size in the host's file; none removes it",
        lambda node, to: node.set_logical_core_size(None if to.size == "none" else int(to.size)),
        "size",
    ),
}
"""Each fault: its summary, its change, and the arguments of the change."""
