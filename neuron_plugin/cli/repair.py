"""``neuron-plugin repair``: empty a device, so that it can be reset, or its node rebooted or replaced."""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus

import msgspec

from neuron_plugin.cli.cluster import LOOK, add_cluster_flags, ask_cluster, node_name, state_reader
from neuron_plugin.cli.command import (
    CommandError,
    Exit,
    Line,
    Row,
    UsageError,
    add_output_flag,
    complain,
    count,
    plain,
    program,
    show,
    table,
)
from neuron_plugin.cli.cordon import change, device_ids
from neuron_plugin.cluster import ApiError, ApiServer
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.writes import evict_pod
from neuron_plugin.monitor.plan import UnknownNodeError
from neuron_plugin.monitor.repair import DevicePod, RepairReport, repair_report
from neuron_plugin.plugin.cordon import CordonError, change_disabled
from neuron_plugin.wording import named, named_set, plural

DESCRIPTION = """\
Take devices of a node out of service, and say who has them, where those pods would go, and whether
the devices are empty. Once they are, it says what can be done: reset, reboot, replace. Pods are
evicted only with --evict, through the eviction API, so PodDisruptionBudgets hold. Run it as often as
you like; --undo puts the devices back.

columns:
  HAS   all that the pod has on the node
  NODE  where it would go now: another node, or another set of the same one; "-" nowhere
  NOTE  what is in the way of its move, or what became of its eviction

Exit status 0 says that the devices are empty, 1 that a pod has one of them, or a process of an ended
pod does."""

EXAMPLES = """
neuron-plugin repair worker-1 --device 3 --dry-run
neuron-plugin repair worker-1 --device 3
neuron-plugin repair worker-1 --device 3 --evict --wait 300
neuron-plugin repair worker-1 --device 3 --undo
"""

AGAIN_SECONDS = 5.0
"""Between two tries with ``--wait``, as in kubectl drain."""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for devices and for their pods."""
    parser.add_argument("node", metavar="NODE", type=node_name, help="name of the node")
    parser.add_argument(
        *("--device", "--devices"),
        dest="devices",
        metavar="DEVICES",
        type=device_ids,
        required=True,
        help="device ids of the host, such as 3 or 5,7",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--evict", action="store_true", help="evict the pods that have another place now")
    what.add_argument("--dry-run", action="store_true", help="change nothing, not even what is in service")
    what.add_argument("--undo", action="store_true", help="put the devices back into service, as uncordon does")
    force = "with --evict: also pods that fit nowhere else now, and those that no controller makes again"
    parser.add_argument("--force", action="store_true", help=force)
    wait = "look (and with --evict try) again until the devices are empty, for so long (default: %(default)s)"
    parser.add_argument("--wait", metavar="SECONDS", type=count(0), default=0, help=wait)
    add_output_flag(parser)
    add_cluster_flags(parser, *LOOK)


def run(arguments: Namespace) -> int:
    """Disable the devices, and print which pods still have them."""
    if arguments.force and not arguments.evict:
        raise UsageError("--force is for --evict")
    if arguments.undo:
        change(arguments, disable=False)
        return Exit.SUCCESS
    try:
        report = ask_cluster(arguments, partial(_repair, arguments))
    except (CordonError, UnknownNodeError) as error:
        raise CommandError(str(error)) from error
    show(arguments.output, report, list(_lines(report, evicting=arguments.evict)))
    if not report.empty:
        left = plural(len(report.pods), "pod") if report.pods else "what has them is not known"
        left = "a process of an ended pod" if report.held_down and not report.pods else left
        verb = "is" if len(report.devices) == 1 else "are"
        complain(f"{named('device', report.devices)} of node {report.node} {verb} not empty: {left}")
    return Exit.SUCCESS if report.empty else Exit.FAILURE


async def _repair(arguments: Namespace, api: ApiServer) -> RepairReport:
    """The final report; the node is changed first, so that no new pod gets the devices meanwhile."""
    read_state = state_reader(arguments)
    evicted = dict[str, str]()
    if not arguments.dry_run:
        await change_disabled(api, arguments.node, arguments.devices, disable=True)
    until = time.monotonic() + arguments.wait
    while True:
        state = await read_state(api)
        report = await asyncio.to_thread(repair_report, state, arguments.node, arguments.devices)
        refused = dict[str, str]()
        for pod in report.pods if arguments.evict else ():
            if pod.uid not in evicted and pod.evictable and (arguments.force or (pod.target and pod.controller)):
                name = f"{pod.namespace}/{pod.name}"
                if why := await _evict(api, pod):
                    refused[name] = why
                else:
                    evicted[pod.uid] = name
        left = until - time.monotonic()
        if report.empty or left <= 0:
            kept_back = report.disabled or not arguments.dry_run
            found = {"disabled": kept_back, "evicted": tuple(evicted.values()), "refused": refused}
            return msgspec.structs.replace(report, **found)
        await asyncio.sleep(min(AGAIN_SECONDS, left))


async def _evict(api: ApiServer, pod: DevicePod) -> str:
    """Evict a pod. Returns why it was not evicted; empty if it was, or is gone already."""
    request = evict_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid)
    try:
        await send(api, request, timeout_seconds=PAGE_SECONDS)
    except ApiError as error:
        if error.missing or error.conflict:
            return ""
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "a PodDisruptionBudget does not allow it now"
        return error.message or str(error)
    return ""


def _lines(report: RepairReport, *, evicting: bool) -> Iterator[Line]:
    devices, node = named("device", report.devices), report.node
    verb, has = ("is", "it") if len(report.devices) == 1 else ("are", "them")
    again = f"{program()} repair {node} --device {','.join(map(str, report.devices))}"
    service = f"out of service: no new pod gets {has}"
    if not report.disabled:
        service = f"in service; without --dry-run {'it is' if verb == 'is' else 'they are'} taken out"
    yield from plain(f"{devices} of node {node} {verb} {service}")
    yield from plain(*(f"device {device}: {why}" for device, why in report.unhealthy.items()))
    rows: list[Row] = []
    for pod in report.pods:
        name = f"{pod.namespace}/{pod.name}"
        rows.append(
            {
                "POD": name,
                "HAS": named_set(pod.unit, pod.devices, pod.cores).replace(" ", ":"),
                "NODE": pod.target,
                "IDS": named_set(pod.target_unit, pod.target_devices, pod.target_cores).replace(" ", ":"),
                "NOTE": report.refused.get(name) or ("evicted" if name in report.evicted else pod.reason),
            }
        )
    if rows:
        yield from [*plain(""), *table(rows)]
    if report.warnings:
        yield from plain("", *report.warnings)
    yield from plain("")
    if not report.empty:
        if report.pods and not evicting:
            going = any(pod.target and not pod.reason for pod in report.pods)
            which, force = ("the pods that have another place", "") if going else ("the pods all the same", " --force")
            yield from plain(f"To evict {which}: {again} --evict{force}")
        if report.evicted:
            yield from plain(
                f"{plural(len(report.evicted), 'pod')} evicted. Look again, or give --wait, until they end."
            )
        if evicting and any(pod.evictable and pod.reason for pod in report.pods):
            yield from plain("With --force pods that fit nowhere else, or are not made elsewhere, are evicted, too.")
        return
    yield from plain(
        f"{devices} {verb} empty. What can be done, the least first (docs/repair.md):",
        *(
            f"  reset    on the node, as root: echo 1 > /sys/class/neuron_device/neuron{device}/reset"
            for device in report.devices
        ),
        f"  reboot   after: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data",
        "  replace  after the same: stop and start the instance, or terminate it",
        f"Then: {again} --undo",
    )
