"""``neuron-plugin usage``: device-hours by owner and state: busy, idle, held, free or broken."""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from typing import get_args

import msgspec

from neuron_plugin.cli.cluster import ROWS, SERVER, add_cluster_flags, ask_cluster, ask_extender, lease_namespace_of
from neuron_plugin.cli.command import (
    CommandError,
    Form,
    Line,
    Row,
    UsageError,
    add_output_flag,
    in_order,
    plain,
    show,
    table,
)
from neuron_plugin.cluster import ApiServer
from neuron_plugin.monitor.usage import By, SinceError, UsageOptions, UsageReport, UsageRow, usage_report
from neuron_plugin.placement.account import AccountError, DeviceState, read_account
from neuron_plugin.placement.device_hours import CONFIG_MAP, read_written

DESCRIPTION = """\
Show whose Neuron devices were busy, idle or held in the last hours or days, and how many were free or
broken. All rows together are what the nodes had: 100 %. Reads what the placement controller has
written down, every two minutes, in the ConfigMap neuron-device-hours (the right to get it is enough),
or asks a running extender with --extender.

columns, in device-hours; a core of a device of two is half a device:
  BUSY     of pods, executing; a container that executed for 40 % of the time counts with 40 %
  IDLE     of pods, executing nothing
  UNKNOWN  of pods whose use is not known; without an owner: not looked at, as no controller led
  HELD     kept for a pod of this owner; without an owner: held down, or on a node that takes no pods
  FREE     of no pod, and to be had
  BROKEN   of no pod, and unhealthy, missing or disabled

Less than two days are added up from whole hours; two days and more, and nodes, from whole days in UTC.
"other" are the workloads or nodes beyond the 200 largest of an hour or day. With -n one namespace is
the whole."""

EXAMPLES = """
neuron-plugin usage
neuron-plugin usage --since 24h --by workload -n ml
neuron-plugin usage --since 30d --by workload --sort-by .deviceHours.idle
neuron-plugin usage --since 30d --by workload -o csv > october.csv
"""
_TENTHS = 1000
"""Tenths of a percent in 100 %."""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for time, grouping and cluster."""
    usual = UsageOptions()
    since = f"of the last hours or days, such as 36h or 35d (default: {usual.since})"
    parser.add_argument("--since", metavar="TIME", default=usual.since, help=since)
    names = get_args(By)
    by = f"{', '.join(names[:-1])} or {names[-1]} (default: {usual.by})"
    parser.add_argument("--by", metavar="WHAT", default=usual.by, choices=names, help=by)
    add_output_flag(parser, (Form.TEXT, Form.CSV, Form.JSON, Form.YAML))
    add_cluster_flags(parser, *SERVER, "namespace", "all_namespaces", *ROWS, "extender", "lease_namespace")


def run(arguments: Namespace) -> None:
    """Print the device-hours."""
    options = UsageOptions(arguments.since, arguments.by)
    try:
        _ = options.seconds
    except SinceError as error:
        raise UsageError(f"--{error}") from None
    wanted = "" if arguments.all_namespaces else arguments.namespace
    if wanted and options.by not in {"namespace", "workload"}:
        raise UsageError(f"--by {options.by} is of the whole cluster: give --by workload with -n")
    if arguments.extender:
        report = ask_extender(arguments.extender, "/usage", msgspec.to_builtins(options), UsageReport)
    else:
        report = _written_report(arguments, options)
    if wanted:
        rows = tuple(row for row in report.rows if row.namespace == wanted)
        hours = sum(sum(row.device_hours.values()) for row in rows)
        report = msgspec.structs.replace(report, rows=rows, device_hours=round(hours, 6))
    path, bare = arguments.sort_by, arguments.no_headers
    ordered = msgspec.structs.replace(report, rows=in_order(report.rows, path))
    if arguments.output == Form.CSV:
        _print_csv(ordered, bare=bare)
    else:
        nothing = f"no device-hours are counted {f'of namespace {wanted}' if wanted else 'yet'}"
        show(arguments.output, ordered, _lines(report, path, bare=bare), nothing=nothing)


def _written_report(arguments: Namespace, options: UsageOptions) -> UsageReport:
    async def read(api: ApiServer) -> tuple[str, bytes | None]:
        namespace = await lease_namespace_of(api, arguments)
        return namespace, (await read_written(api, namespace))[0]

    namespace, data = ask_cluster(arguments, read)
    if data is None:
        why = "is a placement controller there, with device-hours on? Else give its namespace by --lease-namespace"
        raise CommandError(f"there is no ConfigMap {namespace}/{CONFIG_MAP}: {why}")
    try:
        return usage_report(read_account(data), options)
    except AccountError as error:
        raise CommandError(f"ConfigMap {namespace}/{CONFIG_MAP}: {error}") from None


def _print_csv(report: UsageReport, *, bare: bool) -> None:
    """A line for each name, type and state."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not bare:
        head = ("since", "until", "namespace", "workload", "node", "instance_type", "state", "device_hours")
        writer.writerow(head)
    for row in report.rows:
        name = report.since.isoformat(), report.until.isoformat(), row.namespace, row.workload, row.node
        writer.writerows((*name, row.instance_type, state, hours) for state, hours in row.device_hours.items())


def _lines(report: UsageReport, path: str, *, bare: bool) -> list[Line]:
    """A row for each name over all types, and the sum."""
    by_state = report.by == "state"
    hours = defaultdict[tuple[str, str, str, str], defaultdict[str, float]](lambda: defaultdict(float))
    for row in report.rows:
        for state, amount in row.device_hours.items():
            hours[row.namespace, row.workload, row.node, state if by_state else ""][state] += amount
    merged = in_order(
        [UsageRow(space, workload, node, "", amounts) for (space, workload, node, _), amounts in hours.items()], path
    )
    sums = [sum(row.device_hours.values()) for row in merged]
    if not sum(sums):
        return []
    names, states = {"workload": ("namespace", "workload")}.get(report.by, (report.by,)), tuple(DeviceState)
    rows: list[Row] = [
        {
            **({"STATE": next(iter(row.device_hours))} if by_state else {n.upper(): getattr(row, n) for n in names}),
            "DEVICE-HOURS": f"{total:.1f}",
            "SHARE": f"{share / 10:.1f}%",
            **({} if by_state else {state.upper(): f"{row.device_hours[state]:.1f}" for state in states}),
        }
        for row, total, share in zip(merged, sums, _shares(sums), strict=True)
    ]
    if bare:
        return table(rows, bare=True)
    first, *_ = rows[0]
    whole = {state.upper(): f"{sum(row.device_hours.get(state, 0.0) for row in merged):.1f}" for state in states}
    whole |= {first: "TOTAL", "DEVICE-HOURS": f"{sum(sums):.1f}", "SHARE": "100.0%"}
    rows.append({header: whole.get(header, "") for header in rows[0]})
    return [*table(rows), *plain("", f"from {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC")]


def _shares(sums: Sequence[float]) -> list[int]:
    """Tenths of a percent that add up to 100 %: the rest of rounding goes to the shares that lose most."""
    exact = [_TENTHS * each / sum(sums) for each in sums]
    shares = [int(each) for each in exact]
    for place in sorted(range(len(sums)), key=lambda place: shares[place] - exact[place])[: _TENTHS - sum(shares)]:
        shares[place] += 1
    return shares
