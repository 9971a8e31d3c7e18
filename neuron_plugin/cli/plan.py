"""``neuron-plugin plan``: evictions that make room for waiting pods, the effect of a drain, and how many pods fit."""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from neuron_plugin.allocation.shapes import DemandError
from neuron_plugin.allocation.utilization import duration_text
from neuron_plugin.cli.cluster import (
    LOOK,
    ROWS,
    add_cluster_flags,
    ask_cluster,
    ask_extender,
    cluster_state,
    list_labelled,
    node_name,
    types_from,
)
from neuron_plugin.cli.command import (
    CommandError,
    Exit,
    Form,
    Line,
    Row,
    UsageError,
    add_output_flag,
    complain,
    in_order,
    plain,
    program,
    show,
    table,
)
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.monitor.plan import MoveReport, PlanOptions, PlanReport, UnknownNodeError, plan
from neuron_plugin.planning import MoveRules, Standing
from neuron_plugin.wording import first_of, named_set, plural

MOST_PODS = 3
"""Named pods that wait for one reason; others are counted."""

DESCRIPTION = """\
Say what would make room for the pods that wait, and change nothing.

A pod can wait although enough is free: on several nodes, or not linked. For each such pod the cheapest
move is shown: pods that may be moved, and the sets that they fit elsewhere now. A pod may be moved if
its annotation neuron-plugin.io/movable is "true", and a controller (not a DaemonSet) makes it again;
with --by-priority also if its priority is lower than that of the waiting pod. What is promised to one
pod is taken into account for the next, pods of high priority first.

columns:
  STANDING  fits: now; links: enough is free, but not together, and a move helps; short: too little is
            free, and no move helps; rules: kube-scheduler allows no node that has room; group: its group
            does not fit; gate, nobody: another gate holds it back, no scheduler has looked at it; never: no
            open node could take it; unknown: what decides cannot be judged
  NODE      where it would go now, or after the move
  LOST      device-hours that the moved pods have worked since their start, or since their annotation
            neuron-plugin.io/last-checkpoint

All that kube-scheduler's own plugins look at is looked at: taints, affinity, spread, volumes, CPU,
memory and the rest. Exit status 1 also says that a pod of those asked about cannot start now."""

EXAMPLES = """
neuron-plugin plan
neuron-plugin plan --extender http://127.0.0.1:12346 -o json
neuron-plugin plan --drain worker-3
neuron-plugin plan --shape neuron=4
neuron-plugin plan --idle -n ml --sort-by .deviceHours
neuron-plugin plan -l app=train
neuron-plugin plan -f cluster.json                 # of: kubectl get nodes,pods -A -o json > cluster.json
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for the plan, the rules and the cluster."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--drain", metavar="NODE", type=node_name, help="where the pods of this node would go")
    shape = "what a new pod would need, and how many more of it fit; such as neuron=4 or neuroncore=2"
    idle = "what containers have and do not use: what could be asked back; nothing is ever taken for it"
    what.add_argument("--idle", action="store_true", help=idle)
    what.add_argument("--shape", metavar="RESOURCE=N", help=shape)
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="of the pod of --shape (default: 0)")
    by_priority = "pods of a lower priority may be moved, too, without their consent"
    parser.add_argument("--by-priority", action="store_true", help=by_priority)
    most = "pods that one move may evict (default: %(default)s)"
    parser.add_argument(
        "--most-victims", type=int, choices=range(1, 17), default=MoveRules().most_victims, metavar="N", help=most
    )
    from_file = "nodes and pods from a file, in place of a running cluster"
    parser.add_argument("-f", "--filename", type=Path, metavar="FILE", help=from_file)
    add_output_flag(parser, [Form.TEXT, Form.NAME, Form.JSON, Form.YAML])
    add_cluster_flags(parser, "namespace", "all_namespaces", "selector", *ROWS, "extender", *LOOK)


def run(arguments: Namespace) -> int:
    """Print the plan."""
    if arguments.shape and arguments.output == Form.NAME:
        raise UsageError("-o name is for pods that are there: leave --shape out")
    if arguments.selector and (arguments.extender or arguments.filename or arguments.shape):
        other = "--extender" if arguments.extender else "--filename" if arguments.filename else "--shape"
        raise UsageError(f"-l asks the API server for the labels of pods, and {other} does not: give one of the two")
    options = PlanOptions(
        namespace="" if arguments.all_namespaces else arguments.namespace,
        idle=arguments.idle,
        drain=arguments.drain or "",
        shape=arguments.shape or "",
        priority=arguments.priority,
        by_priority=arguments.by_priority,
        most_victims=arguments.most_victims,
    )
    try:
        if arguments.extender and not arguments.filename:
            report = ask_extender(arguments.extender, "/plan", msgspec.to_builtins(options), PlanReport)
        else:
            from neuron_plugin.cli.cluster_file import read_cluster

            file = arguments.filename
            state = (
                read_cluster(file, types_from(arguments)) if file else cluster_state(arguments, judge=not options.idle)
            )
            report = asyncio.run(plan(state, options))
    except DemandError as error:
        raise UsageError(f"--shape: {error}") from None
    except UnknownNodeError as error:
        raise CommandError(str(error)) from None
    if arguments.selector:
        found = ask_cluster(arguments, lambda api: list_labelled(api, PODS, arguments.selector))
        report = report.of({f"{pod.namespace}/{pod.name}" for pod in found})
    listed = "idle" if options.idle else "drained" if options.drain else "waiting"
    report = msgspec.structs.replace(report, **{listed: in_order(getattr(report, listed), arguments.sort_by)})
    if arguments.output == Form.NAME:
        names = (name.rpartition("/")[2] for name in report.pods)
        lines: Iterable[Line] = plain(*(f"pod/{name}" for name in names))
    else:
        by_what = {"idle": _idle_lines, "drained": _drain_lines, "waiting": _lines}
        lines = by_what[listed](report, bare=arguments.no_headers)
    labels = f" with labels {arguments.selector}" if arguments.selector else ""
    nothing = {
        "idle": f"no container{f' of a pod{labels}' if labels else ''} is known to be idle{_unknown_text(report)}",
        "drained": f"{options.drain} has no pod{labels or ' with Neuron devices'}",
        "waiting": f"no pod{labels} waits for Neuron devices",
    }
    show(arguments.output, report, lines, nothing=nothing[listed])
    if missing := report.without_place:
        what = f"fit{'s' * (missing == 1)} nowhere else" if options.drain else "cannot start"
        complain(f"{plural(missing, 'pod')} of those asked about {what} now")
    return Exit.FAILURE if missing else Exit.SUCCESS


def _idle_lines(report: PlanReport, *, bare: bool) -> Iterator[Line]:
    now = time.time()
    yield from table(
        [
            {
                "POD": container.pod,
                "CONTAINER": container.container,
                "NODE": container.node,
                "IDS": named_set(container.unit, container.devices, container.cores).replace(" ", ":"),
                "IDLE": duration_text(now - container.idle_since.timestamp()),
                "DEVICE-HOURS": f"{container.device_hours:.1f}",
                "MEMORY": f"{container.memory_bytes / 2**30:.1f}Gi",
                "CONTROLLER": container.controller,
            }
            for container in report.idle
        ],
        bare=bare,
    )
    if report.idle and report.unknown and not bare:
        yield from plain("", _unknown_text(report).removeprefix("; "))


def _unknown_text(report: PlanReport) -> str:
    text = f"; of {plural(report.unknown, 'container')} this is not known, see: {program()} pods -h"
    return text if report.unknown else ""


def _drain_lines(report: PlanReport, *, bare: bool) -> Iterator[Line]:
    rows: list[Row] = [{"POD": move.pod, "NODE": move.target, "IDS": _moved(move)} for move in report.drained]
    rows += [{"POD": name, "NODE": "", "IDS": (report.reasons[name], "bold red")} for name in report.stuck]
    yield from table(rows, bare=bare)
    if report.warnings and not bare:
        yield from plain("", *report.warnings)


def _moved(move: MoveReport) -> str:
    return named_set(move.unit, move.devices, move.cores)


def _lines(report: PlanReport, *, bare: bool) -> Iterator[Line]:
    """A row for each pod with its moves below, the reasons of pods without room, and how many more pods fit."""
    rows: list[Row] = []
    for pod in report.waiting:
        style = "green" if pod.standing == Standing.FITS else "yellow" if pod.moves else "bold red"
        rows.append(
            {
                "POD": pod.pod,
                "REQUEST": pod.request,
                "STANDING": (pod.standing, style),
                "NODE": pod.node,
                "LOST": f"{pod.lost:.1f}" if pod.moves else "",
                "IDS": named_set(pod.unit, pod.devices, pod.cores).replace(" ", ":"),
                "NEEDS": f"move {plural(len(pod.moves), 'pod')}" if pod.moves else "",
            }
        )
    yield from table(rows, bare=bare)
    if bare:
        return
    below = [
        f"for {pod.pod}: {move.pod} from {move.source} to {move.target}, {_moved(move)}"
        for pod in report.waiting
        for move in pod.moves
    ]
    waiting = defaultdict[str, list[str]](list)
    for pod in report.waiting:
        waiting[pod.reason].append(pod.pod)
    below += [f"{first_of(pods, MOST_PODS)}: {reason}" for reason, pods in waiting.items() if reason]
    if below:
        yield from plain("", *below)
    if report.fitting:
        several = ", ".join(f"{number} on {name}" for name, number in sorted(report.fitting.items()))
        yield from plain("", f"{sum(report.fitting.values())} of this shape fit in all: {several}")
