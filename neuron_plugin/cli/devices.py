"""``neuron-plugin devices``: the Neuron devices of a machine, their health, and who holds them."""

from __future__ import annotations

import enum
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, complain
from neuron_plugin.cli.output import Line, add_output_flag, document, on_terminal, print_lines, table
from neuron_plugin.cli.target import HOLDERS, add_node_flags, node_from
from neuron_plugin.inspection import (
    DeviceReport,
    Health,
    HolderReading,
    Holders,
    Machine,
    MachineReport,
    Node,
    look,
    machine_report,
    neuron_ls_of,
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
           should list it)
  HOLDERS  who has it: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD/CONTAINER[2,3] for some of its
           cores; "-" no pod, "?" not known. Taken from the kubelet's checkpoint; where that cannot
           be read from PodResources, which does not list plain init containers

Exit status 1 also says that there is no Neuron device."""

EXAMPLES = """
neuron-plugin devices
neuron-plugin devices -o wide
neuron-plugin devices -o json | jq '.devices[] | select(.health != "healthy")'
neuron-plugin devices --watch
neuron-plugin devices --root ./trn1        # a simulated machine, see: neuron-plugin simulate --help
"""

WATCH_SECONDS = 2.0
_HEALTHY_STYLES = {Health.HEALTHY: "green", Health.WARNING: "yellow", Health.RESETTING: "yellow"}


class Form(enum.StrEnum):
    """What ``--output`` takes."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NEURON_LS = "neuron-ls"


_WITH_NOTES_INSIDE = {Form.JSON, Form.YAML}


@dataclass(frozen=True, slots=True)
class Sight:
    """A machine at one moment, its report, and the /proc with its processes."""

    machine: Machine
    report: MachineReport
    proc: Path = Path("/proc")


def add_flags(parser: ArgumentParser) -> None:
    """The form of the output, whether to watch, and which node."""
    add_output_flag(parser, Form, help_text="text, wide, json, yaml, or neuron-ls: JSON as 'neuron-ls -j' prints it")
    again = "print again whenever something changes, until Ctrl-C; JSON then comes one document a line"
    parser.add_argument("-w", "--watch", action="store_true", help=again)
    add_node_flags(parser, HOLDERS)


def run(arguments: Namespace) -> int:
    """Print the devices once, or for as long as they are watched."""
    node, form = node_from(arguments), Form(arguments.output)
    holders = HolderReading(node.settings.kubelet_dir, node.settings.pod_resources_socket)
    if arguments.watch:
        watch(form, changes(lambda: _sight(node, holders), lambda: time.sleep(WATCH_SECONDS)))
    return show_once(form, _sight(node, holders))


def _sight(node: Node, reading: HolderReading) -> Sight:
    machine = look(node.settings, os.environ)
    holders = reading.read(machine.node_inventory) if machine.node_inventory else Holders(None)
    return Sight(machine, machine_report(machine, holders), node.proc)


def changes(look_again: Callable[[], _T], pause: Callable[[], None]) -> Iterator[_T]:
    """What ``look_again`` finds, then each finding that differs from the last. Endless."""
    last: _T | None = None
    while True:
        sight = look_again()
        if sight != last:
            yield sight
        last = sight
        pause()


def show_once(form: Form, sight: Sight) -> int:
    """Print the report; returns the exit status.

    Raises:
        CommandError: there is no device.
    """
    report = sight.report
    if form in _WITH_NOTES_INSIDE:
        print(document(form, report), end="")
    elif form is Form.NEURON_LS and not report.absence:
        print(msgspec.json.format(_neuron_ls(sight), indent=4).decode())
    elif form in {Form.TEXT, Form.WIDE} and report.devices:
        print_lines(device_lines(form, report))
    for note in report.notes if form not in _WITH_NOTES_INSIDE else ():
        complain(f"note: {note}")
    if report.absence:
        raise CommandError(f"no Neuron device: {report.absence}")
    return Exit.SUCCESS


def watch(form: Form, sights: Iterable[Sight]) -> None:
    """Print each report; a note is printed once for as long as it stays true."""
    shown: frozenset[str] = frozenset()
    for number, sight in enumerate(sights):
        report = sight.report
        if form is Form.JSON:
            print(msgspec.json.encode(report).decode(), flush=True)
        elif form is Form.YAML:
            print(f"---\n{document(form, report)}", end="", flush=True)
        elif form is Form.NEURON_LS:
            print(_neuron_ls(sight).decode(), flush=True)
        else:
            if on_terminal():
                print("\x1b[2J\x1b[H", end="")  # an empty screen, from its top
            elif number:
                print()
            if report.devices:
                print_lines(device_lines(form, report))
            if on_terminal():
                print("Watching for changes; Ctrl-C ends.", flush=True)
        absence = [f"no Neuron device: {report.absence}"] if report.absence else []
        notes = frozenset([*report.notes, *absence] if form not in _WITH_NOTES_INSIDE else [])
        for note in sorted(notes - shown):
            complain(f"note: {note}")
        shown = notes


def _neuron_ls(sight: Sight) -> bytes:
    return msgspec.json.encode(neuron_ls_of(sight.machine, sight.report, sight.proc))


def device_lines(form: Form, report: MachineReport) -> list[Line]:
    """A row for each device; on a terminal the machine's title above. Reasons stand last, where there are any."""
    headers = ["DEVICE", "CORES", "PRODUCT", "ARCH", "LINKS", "NUMA", "HEALTH", "HOLDERS"]
    if form is Form.WIDE:
        headers += ["MEMORY", "NODE", "SERIAL", "RESET", "ECC(SRAM/MEM/REPAIRABLE)", "DRIVER"]
    if any(device.reasons for device in report.devices):
        headers.append("REASON")
    rows = []
    for device in report.devices:
        ecc = device.ecc
        cells = {
            "DEVICE": str(device.id),
            "CORES": ranges(device.cores),
            "PRODUCT": device.product,
            "ARCH": device.architecture,
            "LINKS": ",".join(map(str, device.connected)),
            "NUMA": "" if device.numa_node is None else str(device.numa_node),
            "HEALTH": device.health.value,
            "HOLDERS": _holders(device),
            "MEMORY": f"{device.memory_bytes // 2**30}Gi" if device.memory_bytes else "",
            "NODE": device.node,
            "SERIAL": device.serial_number,
            "RESET": device.reset or "",
            "ECC(SRAM/MEM/REPAIRABLE)": f"{ecc.sram}/{ecc.memory}/{ecc.repairable}" if ecc else "",
            "DRIVER": report.driver_version or "",
            "REASON": "; ".join(device.reasons),
        }
        styles = {
            "HEALTH": _HEALTHY_STYLES.get(device.health, "bold red"),
            "HOLDERS": "cyan" if device.holders else "dim",
            "REASON": "yellow",
        }
        rows.append([(cells[header], styles.get(header, "")) for header in headers])
    title: list[Line] = [[(title_of(report), "bold")]] if on_terminal() else []
    return [*title, *table(headers, rows)]


def _holders(device: DeviceReport) -> str:
    if device.holders is None:
        return "?" if device.cores else ""
    names = []
    for each in device.holders:
        part = "" if each.cores == device.cores else f"[{ranges(each.cores)}]"
        names.append(f"{each.namespace}/{each.pod}/{each.container}{part}")
    return ",".join(names)


def title_of(report: MachineReport) -> str:
    """The machine in one line."""
    present = sum(device.health not in {Health.MISSING, Health.SKIPPED} for device in report.devices)
    count = plural(report.device_count, "device")
    if present != report.device_count:
        count = f"{present} of {count}"
    parts = [
        f"{report.instance_type or 'unknown type'}: {count}",
        f"{plural(report.cores_per_device, 'core')} each (LNC {report.logical_core_size})",
        report.topology,
        f"driver {report.driver_version or 'unknown'}",
    ]
    return ", ".join(parts)
