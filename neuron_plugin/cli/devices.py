"""``neuron-plugin devices``: the Neuron devices of a machine, their health, and who holds them."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from neuron_plugin.cli.command import (
    CommandError,
    Exit,
    Form,
    Line,
    add_output_flag,
    complain,
    on_terminal,
    show,
    show_again,
    table,
)
from neuron_plugin.cli.target import HOLDERS, add_node_flags, node_from
from neuron_plugin.inspection import (
    Health,
    HolderReading,
    MachineReport,
    disabled_here,
    look,
    machine_report,
    plural,
    ranges,
)

_T = TypeVar("_T")

DESCRIPTION = """\
Show the Neuron devices of this machine.

columns:
  CORES    logical cores (LNC applied), counted through the whole host, as in the pod annotation
           NEURON_CORES
  LINKS    the devices it is linked to
  HEALTH   healthy; warning (still allocatable); resetting (ends by itself); unhealthy (not
           allocatable); skipped (the driver lists it, but it cannot be used); missing (the driver
           should list it); disabled (healthy, and taken out of service: neuron-plugin cordon)
  HOLDERS  who has it: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD/CONTAINER[2,3] for some of its
           cores; "-" no pod, "?" not known. Taken from the kubelet's checkpoint; where that cannot
           be read from PodResources, which does not list plain init containers

Exit status 1 also says that there is no Neuron device."""

EXAMPLES = """
neuron-plugin devices
neuron-plugin devices -o json | jq '.devices[] | select(.health != "healthy")'
neuron-plugin devices --watch
neuron-plugin devices --root ./trn1        # a simulated machine, see: neuron-plugin simulate --help
"""

WATCH_SECONDS = 2.0
_HEALTHY_STYLES = {Health.HEALTHY: "green", Health.WARNING: "yellow", Health.RESETTING: "yellow"}


def add_flags(parser: ArgumentParser) -> None:
    """The form of the output, whether to watch, and which node."""
    add_output_flag(parser, list(Form))
    again = "print again whenever something changes, until Ctrl-C; JSON then comes one document a line"
    parser.add_argument("-w", "--watch", action="store_true", help=again)
    add_node_flags(parser, HOLDERS)


def run(arguments: Namespace) -> int:
    """Print the devices once, or for as long as they are watched."""
    node, form = node_from(arguments), Form(arguments.output)
    holders = HolderReading(node.settings.kubelet_dir, node.settings.pod_resources_socket)

    def report() -> MachineReport:
        machine = look(node.settings, os.environ, disabled_here(node))
        return machine_report(machine, holders.read(machine.node_inventory))

    if arguments.watch:
        watch(form, changes(report, lambda: time.sleep(WATCH_SECONDS)))
    return show_once(form, report())


def changes(look_again: Callable[[], _T], pause: Callable[[], None]) -> Iterator[_T]:
    """What ``look_again`` finds, then each finding that differs from the last. Endless."""
    last: _T | None = None
    while True:
        found = look_again()
        if found != last:
            yield found
        last = found
        pause()


def show_once(form: Form, report: MachineReport) -> int:
    """Print the report; returns the exit status.

    Raises:
        CommandError: there is no device.
    """
    for_people = form in {Form.TEXT, Form.WIDE}
    if report.devices or not for_people:
        show(form, report, device_lines(form, report))
    for note in report.notes if for_people else ():
        complain(f"note: {note}")
    if report.absence:
        raise CommandError(f"no Neuron device: {report.absence}")
    return Exit.SUCCESS


def watch(form: Form, reports: Iterable[MachineReport]) -> None:
    """Print each report; a note is printed once for as long as it stays true."""
    shown: frozenset[str] = frozenset()
    for number, report in enumerate(reports):
        show_again(form, report, device_lines(form, report) if report.devices else [], first=not number)
        if form in {Form.JSON, Form.YAML}:
            continue
        notes = frozenset([*report.notes, *([f"no Neuron device: {report.absence}"] if report.absence else [])])
        for note in sorted(notes - shown):
            complain(f"note: {note}")
        shown = notes


def device_lines(form: Form, report: MachineReport) -> list[Line]:
    """A row for each device; on a terminal the machine's title above. Reasons stand last, where there are any."""
    rows = []
    for device in report.devices:
        ecc, holders = device.ecc, []
        for each in device.holders or ():
            part = "" if each.cores == device.cores else f"[{ranges(each.cores)}]"
            holders.append(f"{each.namespace}/{each.pod}/{each.container}{part}")
        if device.holders is None and device.cores:
            holders = ["?"]
        cells = {
            "DEVICE": str(device.id),
            "CORES": ranges(device.cores),
            "PRODUCT": device.product,
            "ARCH": device.architecture,
            "LINKS": ",".join(map(str, device.connected)),
            "NUMA": "" if device.numa_node is None else str(device.numa_node),
            "HEALTH": "disabled" if device.disabled and device.health in _HEALTHY_STYLES else device.health.value,
            "HOLDERS": ",".join(holders),
        }
        if form is Form.WIDE:
            cells |= {
                "MEMORY": f"{device.memory_bytes // 2**30}Gi" if device.memory_bytes else "",
                "NODE": device.node,
                "SERIAL": device.serial_number,
                "RESET": device.reset or "",
                "ECC(SRAM/MEM/REPAIRABLE)": f"{ecc.sram}/{ecc.memory}/{ecc.repairable}" if ecc else "",
                "DRIVER": report.driver_version or "",
            }
        if any(each.reasons for each in report.devices):
            cells["REASON"] = "; ".join(device.reasons)
        styles = {
            "HEALTH": _HEALTHY_STYLES.get(device.health, "bold red"),
            "HOLDERS": "cyan" if device.holders else "dim",
            "REASON": "yellow",
        }
        rows.append([(text, styles.get(header, "")) for header, text in cells.items()])
    title: list[Line] = [[(title_of(report), "bold")]] if on_terminal() else []
    return [*title, *table(list(cells), rows)] if rows else title


def title_of(report: MachineReport) -> str:
    """The machine in one line."""
    present = sum(device.health not in {Health.MISSING, Health.SKIPPED} for device in report.devices)
    count = plural(report.device_count, "device")
    if present != report.device_count:
        count = f"{present} of {count}"
    return (
        f"{report.instance_type or 'unknown type'}: {count}, {plural(report.cores_per_device, 'core')} each "
        f"(LNC {report.logical_core_size}), {report.topology}, driver {report.driver_version or 'unknown'}"
    )
