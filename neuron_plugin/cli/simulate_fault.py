"""``neuron-plugin simulate fault``: something breaks on a simulated machine, or is mended."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedNode

Change: TypeAlias = "Callable[[SimulatedNode, Namespace], None]"

EXAMPLES = """
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

_GONE, _BACK = "gone", "back"
_CORE_ERRORS = ("hw_error", "hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")
_RESET_STATES = ("resetting", "ready", "failed")


def register(actions: Subparsers) -> None:
    """Add the action with a sub-command for each kind of fault."""
    parser = add_command(
        actions, "fault", run, summary="break something on a simulated machine, or mend it", examples=EXAMPLES
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory that 'simulate node' wrote")
    kinds = parser.add_subparsers(title="what breaks", metavar="WHAT", dest="what", required=True)
    _register_counters(kinds)
    _register_core_errors(kinds)
    _register_presence(kinds)
    _register_attribute(kinds)
    _register_kmsg(kinds)
    lnc = _kind(kinds, "lnc", _lnc, "logical core size in the host's file")
    lnc.add_argument("size", metavar="N|none", help="the size; none removes the file")


def run(arguments: Namespace) -> int:
    """Make one change.

    Raises:
        UsageError: no simulated machine there, or a change that cannot be made.
    """
    from neuron_plugin.simulation import (
        SimulatedNode,
        SimulationError,
    )

    try:
        arguments.change(SimulatedNode.open(arguments.directory), arguments)
    except SimulationError as error:
        raise UsageError(str(error)) from error
    return Exit.FINE


def _kind(kinds: Subparsers, name: str, change: Change, summary: str) -> ArgumentParser:
    parser = add_command(kinds, name, run, summary=summary)
    parser.set_defaults(change=change)
    return parser


def _register_counters(kinds: Subparsers) -> None:
    ecc = _device_kind(kinds, "ecc", _ecc, "counts of uncorrected memory errors")
    for memory in ("sram", "memory", "repairable"):
        ecc.add_argument(f"--{memory}", type=_count, metavar="COUNT", help="default: as it is")
    reset = _device_kind(kinds, "reset", _reset, "state of the device's reset")
    reset.add_argument("state", choices=_RESET_STATES)
    components = _device_kind(kinds, "components", _components, "parts that firmware reports unhealthy")
    components.add_argument("names", metavar="NAMES|none", help="such as hbm,link_host")


def _register_core_errors(kinds: Subparsers) -> None:
    errors = _device_kind(kinds, "core-errors", _core_errors, "counts of hardware errors on one core")
    errors.add_argument("--core", type=int, default=0, metavar="CORE", help="physical core of the device (default: 0)")
    errors.add_argument("--kind", choices=_CORE_ERRORS, default=_CORE_ERRORS[0], help="default: %(default)s")
    errors.add_argument("--count", type=_count, required=True, metavar="COUNT", help="what the counter reads")
    events = _device_kind(kinds, "error-events", _error_events, "firmware's counter of hardware errors (driver 2.28)")
    events.add_argument("count", type=_count, metavar="COUNT", help="what the counter reads")


def _register_kmsg(kinds: Subparsers) -> None:
    kmsg = _kind(kinds, "kmsg", _kmsg, "a line in the kernel log")
    kmsg.add_argument("text", help="such as: nd3: NEURON_HW_ERR=DMA_ERROR on queue 4")
    kmsg.add_argument("--forged", action="store_true", help="as a process writes it, not the kernel")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is no count of 0 or more")
    return int(text)


def _register_presence(kinds: Subparsers) -> None:
    for name, change, summary in (
        ("device", _device, "the whole device"),
        ("node", _node, "the device node /dev/neuronN only"),
    ):
        _device_kind(kinds, name, change, summary).add_argument("presence", choices=(_GONE, _BACK))
    driver = _kind(kinds, "driver", _driver, "the driver, with everything")
    driver.add_argument("presence", choices=(_GONE, _BACK))


def _register_attribute(kinds: Subparsers) -> None:
    attribute = _device_kind(kinds, "attribute", _attribute, "one sysfs attribute of a device")
    attribute.add_argument("name", metavar="NAME", help="path below the device, such as core_count")
    what = attribute.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", help="what it reads; \\n is a newline")
    what.add_argument("--missing", action="store_true", help="it is not there")
    what.add_argument("--restore", action="store_true", help="it reads as it should")


def _device_kind(kinds: Subparsers, name: str, change: Change, summary: str) -> ArgumentParser:
    parser = _kind(kinds, name, change, summary)
    parser.add_argument("device", type=int, metavar="DEVICE", help="device id, N of /dev/neuronN")
    return parser


def _ecc(node: SimulatedNode, arguments: Namespace) -> None:
    counts = {"sram": arguments.sram, "memory": arguments.memory, "repairable": arguments.repairable}
    if all(count is None for count in counts.values()):
        raise UsageError("ecc changes nothing without --sram, --memory or --repairable COUNT")
    node.set_ecc(arguments.device, **counts)


def _reset(node: SimulatedNode, arguments: Namespace) -> None:
    from neuron_plugin.hardware import ResetState

    node.set_reset(arguments.device, ResetState[arguments.state.upper()])


def _components(node: SimulatedNode, arguments: Namespace) -> None:
    names = [] if arguments.names == "none" else arguments.names.split(",")
    node.set_unhealthy_components(arguments.device, names)


def _core_errors(node: SimulatedNode, arguments: Namespace) -> None:
    node.set_core_errors(arguments.device, arguments.core, **{arguments.kind: arguments.count})


def _error_events(node: SimulatedNode, arguments: Namespace) -> None:
    node.set_error_events(arguments.device, arguments.count)


def _kmsg(node: SimulatedNode, arguments: Namespace) -> None:
    node.log_kernel_message(arguments.text, by_kernel=not arguments.forged)


def _device(node: SimulatedNode, arguments: Namespace) -> None:
    change = node.remove_device if arguments.presence == _GONE else node.restore_device
    change(arguments.device)


def _node(node: SimulatedNode, arguments: Namespace) -> None:
    change = node.remove_node if arguments.presence == _GONE else node.restore_node
    change(arguments.device)


def _driver(node: SimulatedNode, arguments: Namespace) -> None:
    change = node.unload_driver if arguments.presence == _GONE else node.load_driver
    change()


def _attribute(node: SimulatedNode, arguments: Namespace) -> None:
    if arguments.missing:
        node.remove_attribute(arguments.device, arguments.name)
    elif arguments.restore:
        node.restore_attribute(arguments.device, arguments.name)
    else:
        node.set_attribute(arguments.device, arguments.name, arguments.text.replace("\\n", "\n"))


def _lnc(node: SimulatedNode, arguments: Namespace) -> None:
    text = arguments.size
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise UsageError(f"lnc {text}: expected a number, or none")
    node.set_logical_core_size(None if text == "none" else int(text))
