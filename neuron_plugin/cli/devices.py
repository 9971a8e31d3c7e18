"""``neuron-plugin devices``: the Neuron devices of a machine, their health, and who holds them."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from neuron_plugin.allocation import NodeInfo, NodeInventory
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.cluster import ROWS, SERVER, add_cluster_flags, add_node_argument, published
from neuron_plugin.cli.command import (
    TABLE,
    CommandError,
    Form,
    Line,
    Row,
    UsageError,
    add_output_flag,
    complain,
    in_order,
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
    gather_users,
    look,
    machine_report,
)
from neuron_plugin.inspection.machine import DeviceUse, device_use, read_counters
from neuron_plugin.inspection.published import published_report
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.monitor.views import device_utilization
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.wording import plural

DESCRIPTION = """\
Show the Neuron devices of this machine, or of a node of the cluster by what its plugin has published.

columns:
  CORES    logical cores (LNC applied), counted through the whole host, as in the pod annotation
           NEURON_CORES
  LINKS    the devices it is linked to
  HEALTH   healthy; warning (still allocatable); resetting (ends by itself); unhealthy (not
           allocatable); skipped (the driver lists it, but it cannot be used); missing (the driver
           should list it); disabled (healthy, and taken out of service: neuron-plugin cordon)
  HOLDERS  who has it: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD/CONTAINER[2,3] for some of its
           cores; NAMESPACE/POD/claim:CLAIM for all containers that use a claim; "-" no pod, "?"
           not known. Taken from the kubelet's checkpoint and from its file of prepared claims; where
           the checkpoint cannot be read from PodResources, which lists no plain init containers
  USE      how much its cores executed, on average: with --use in two seconds, or between two looks of
           --watch; of NODE in the last minutes, where a pod has it; "?" not known: the driver is
           older than 2.30.2
  USED-MEMORY  device memory that is allocated by processes
  PROCESSES  (--processes) PID:COMMAND of the processes that have it open

Exit status 1 also says that there is no Neuron device."""

EXAMPLES = """
neuron-plugin devices
neuron-plugin devices trn1-2
neuron-plugin devices trn1-2 --sort-by .health
neuron-plugin devices -o json | jq '.devices[] | select(.health != "healthy")'
neuron-plugin devices --watch
neuron-plugin devices --use
neuron-plugin devices --processes
neuron-plugin devices --root ./trn1        # a simulated machine, see: neuron-plugin simulate --help
"""

WATCH_SECONDS = 2.0
"""Between two reads with ``--watch``."""
_HEALTHY_STYLES = {Health.HEALTHY: "green", Health.WARNING: "yellow", Health.RESETTING: "yellow"}


def add_flags(parser: ArgumentParser) -> None:
    """Add flags for output, watching and node."""
    add_node_argument(parser)
    add_output_flag(parser, TABLE)
    processes = "show which processes have each device open, too; for those of pods as root on the node"
    parser.add_argument("--processes", action="store_true", help=processes)
    use = "measure for two seconds how much the cores of each device execute, and show what memory is allocated"
    parser.add_argument("--use", action="store_true", help=use)
    add_node_flags(parser, HOLDERS)
    add_cluster_flags(parser, "watch", *ROWS, *SERVER, "lease_namespace")


def run(arguments: Namespace) -> None:
    """Print the devices once, or repeatedly with ``--watch``."""
    reports = (
        msgspec.structs.replace(report, devices=in_order(report.devices, arguments.sort_by))
        for report in (_of_cluster(arguments) if arguments.node else _of_machine(arguments))
    )
    form, bare = Form(arguments.output), arguments.no_headers
    if arguments.watch:
        watch(form, reports, bare=bare)
    show_once(form, next(reports), bare=bare)


def _of_machine(arguments: Namespace) -> Iterator[MachineReport]:
    """Reports of this machine, or of the machine at --root, again and again."""
    node, first = node_from(arguments), None
    holders = HolderReading(node.settings)
    if arguments.use:
        first = read_counters(node.settings, look(node.settings, os.environ).inventory)
        time.sleep(WATCH_SECONDS)
    while True:
        machine, users = look(node.settings, os.environ, disabled_here(node)), None
        if arguments.processes:
            nodes = {int(device): machine.paths.dev / f"neuron{device}" for device in machine.inventory.device_ids}
            users = gather_users(nodes, node.proc, node.settings.kubelet_dir / KUBELET_SOCKET)
        use = None
        if first:
            last = read_counters(node.settings, machine.inventory)
            use, first = device_use(first, last), last
        yield machine_report(machine, holders.read(machine.node_inventory), users, use)
        time.sleep(WATCH_SECONDS)


def _of_cluster(arguments: Namespace) -> Iterator[MachineReport]:
    """Reports of a node of the cluster, again and again."""
    if arguments.use or arguments.processes:
        raise UsageError("--use and --processes look at the machine itself: leave NODE out, on that machine")
    while True:
        yield report_of(*published(arguments))
        time.sleep(WATCH_SECONDS)


def report_of(state: ClusterState, info: NodeInfo, has: NodeInventory) -> MachineReport:
    """The report of a node of the cluster, with the utilization that its plugin has published."""
    utilization = device_utilization(info, state.utilization_on(info.name)).items()
    known = {device: DeviceUse(use.busy_percent, use.memory_bytes) for device, use in utilization}
    return published_report(has, info.ledger, known)


def show_once(form: Form, report: MachineReport, *, bare: bool = False) -> None:
    """Print the report.

    Raises:
        CommandError: there is no device.
    """
    show(form, report, device_lines(form, report, bare=bare))
    for note in report.notes if form in {Form.TEXT, Form.WIDE} else ():
        complain(f"note: {note}")
    if report.absence:
        raise CommandError(f"no Neuron device: {report.absence}")


def watch(form: Form, reports: Iterable[MachineReport], *, bare: bool = False) -> None:
    """Print each report that differs from the last one; a note is printed once while it remains."""
    shown: frozenset[str] = frozenset()
    for number, (report, _) in enumerate(groupby(reports)):
        show_again(form, report, device_lines(form, report, bare=bare), first=not number)
        if form in {Form.JSON, Form.YAML}:
            continue
        notes = frozenset([*report.notes, *([f"no Neuron device: {report.absence}"] if report.absence else [])])
        for note in sorted(notes - shown):
            complain(f"note: {note}")
        shown = notes


def device_lines(form: Form, report: MachineReport, *, bare: bool = False) -> list[Line]:
    """The machine's title, and a row for each device. Reasons are in the last column, if there are any.

    ``bare``: only rows.
    """
    rows: list[Row] = []
    for device in report.devices:
        ecc, holders = device.ecc, []
        for holder in device.holders or ():
            cores = "" if len(holder.cores) == report.cores_per_device else f"[{ranges(holder.cores)}]"
            user = f"claim:{holder.claim}" if holder.claim else holder.container
            holders.append(f"{holder.namespace}/{holder.pod}/{user}{cores}")
        if device.holders is None and device.cores:
            holders = ["?"]
        health = "disabled" if device.disabled and device.health in _HEALTHY_STYLES else device.health.value
        cells: dict[str, str | tuple[str, str]] = {
            "DEVICE": str(device.id),
            "CORES": ranges(device.cores),
            "PRODUCT": device.product,
            "ARCH": device.architecture,
            "LINKS": ",".join(map(str, device.connected)),
            "NUMA": "" if device.numa_node is None else str(device.numa_node),
            "HEALTH": (health, _HEALTHY_STYLES.get(device.health, "bold red")),
            "HOLDERS": (",".join(holders), "cyan" if device.holders else "dim"),
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
        if any(device.used_memory_bytes is not None or device.busy_percent is not None for device in report.devices):
            busy, used = device.busy_percent, device.used_memory_bytes
            is_free = busy is None and used is None and device.holders == ()  # only pods' use is published
            unknown = "" if is_free else "?"
            cells["USE"] = unknown if busy is None else f"{busy}%"
            cells["USED-MEMORY"] = unknown if used is None else f"{used / 2**30:.1f}Gi"
        if any(device.processes is not None for device in report.devices):
            users = (f"{process.pid}:{''.join(process.command.split())}" for process in device.processes or ())
            cells["PROCESSES"] = ",".join(users)
        if any(device.reasons for device in report.devices):
            cells["REASON"] = ("; ".join(device.reasons), "yellow")
        rows.append(cells)
    title = [[(title_of(report), "bold")]] if rows and not bare else []
    return [*title, *table(rows, bare=bare)]


def title_of(report: MachineReport) -> str:
    """The machine in one line. A device is free if it can be given to a pod and no pod has any of it."""
    present = sum(device.health not in {Health.MISSING, Health.SKIPPED} for device in report.devices)
    count = plural(report.device_count, "device")
    if present != report.device_count:
        count = f"{present} of {count}"
    products = "/".join(sorted({device.product for device in report.devices if device.product}))
    title = (
        f"{report.instance_type or 'unknown type'}: {count}{products and f' ({products})'}, "
        f"{plural(report.cores_per_device, 'core')} each "
        f"(LNC {report.logical_core_size}), {report.topology}, driver {report.driver_version or 'unknown'}"
    )
    if not report.holders_known:
        return title
    usable = [device for device in report.devices if device.health in _HEALTHY_STYLES and not device.disabled]
    taken = [
        {*device.held_down_cores, *(core for holder in device.holders or () for core in holder.cores)}
        for device in usable
    ]
    free, cores = sum(not some for some in taken), sum(map(len, (device.cores for device in usable)))
    cores -= sum(map(len, taken))
    return f"{title}; {plural(free, 'device')} and {plural(cores, 'core')} free"
