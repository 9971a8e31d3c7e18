"""``neuron-plugin plan``: what would make room for waiting pods, what a drain takes, and what else fits."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

import msgspec

from neuron_plugin.allocation import PodReference, PodUid, format_ids
from neuron_plugin.cli.command import (
    CommandError,
    Exit,
    Line,
    UsageError,
    add_output_flag,
    complain,
    plain,
    show,
    table,
)
from neuron_plugin.cli.target import add_cluster_flags
from neuron_plugin.inspection import named, plural
from neuron_plugin.planning import (
    RULES,
    ClusterNodes,
    DemandError,
    MoveRules,
    PlannedPod,
    Policy,
    Prospect,
    Relocation,
    Standing,
    drain,
    how_many_more,
    parse_shape,
    prospects,
    shape_text,
)
from neuron_plugin.topology import CoreMask, Geometry, cores_in

DESCRIPTION = """\
Say what would make room for the pods that wait, and change nothing.

A pod can wait although enough is free: on several nodes, or not linked. For each such pod the cheapest
move is shown: pods that may be moved, and the sets that they fit elsewhere now. A pod may be moved if
its annotation neuron-plugin.io/movable is "true", and a controller (not a DaemonSet) makes it again;
with --by-priority also if its priority is lower than that of the waiting pod. What is promised to one
pod is taken into account for the next, pods of high priority first.

columns:
  STANDING  fits: now; pieces: enough is free, but not together; short: less is free; never: no open
            node could take it
  NODE      where it would go now, or after the move
  LOST      device-hours that the moved pods have worked since their start, or since their annotation
            neuron-plugin.io/last-checkpoint

Only Neuron is looked at: whether a node has the CPU and memory, and whether selectors, affinities and
taints let a pod go there, is for kube-scheduler to say. Exit status 1 also says that a pod of those
asked about fits nowhere now."""

EXAMPLES = """
neuron-plugin plan
neuron-plugin plan --extender http://127.0.0.1:12346 -o json
neuron-plugin plan --drain worker-3
neuron-plugin plan --shape neuron=4
neuron-plugin plan --cluster cluster.json          # of: neuron-plugin simulate cluster --save cluster.json
"""


class MoveReport(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that goes from a node to another, or to another set of the same, with its new ids."""

    pod: str
    source: str
    target: str
    devices: str
    cores: str


class PodReport(msgspec.Struct, frozen=True, rename="camel"):
    """The prospects of a pod. Without a ``node`` there are none. ``lost`` is in device-hours."""

    pod: str
    request: str
    standing: str
    node: str
    devices: str
    cores: str
    lost: float
    moves: tuple[MoveReport, ...]


class PlanReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document. ``more`` is how many more pods of the shape fit each node, and ``stuck`` what cannot be drained."""

    version: int = 1
    waiting: tuple[PodReport, ...] = ()
    left_out: tuple[str, ...] = ()
    drained: tuple[MoveReport, ...] = ()
    stuck: tuple[str, ...] = ()
    more: dict[str, int] = {}


def add_flags(parser: ArgumentParser) -> None:
    """What to plan, the rules, and which cluster."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--drain", metavar="NODE", help="where the pods of this node would go")
    shape = "what a new pod would need, and how many more of it fit; such as neuron=4 or neuroncore=2"
    what.add_argument("--shape", metavar="RESOURCE=N", help=shape)
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="of the pod of --shape (default: 0)")
    by_priority = "pods of a lower priority may be moved, too, without their consent"
    parser.add_argument("--by-priority", action="store_true", help=by_priority)
    most = "pods that one move may evict (default: %(default)s)"
    parser.add_argument(
        "--most-victims", type=int, choices=range(1, 17), default=RULES.most_victims, metavar="N", help=most
    )
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a cluster from a file, in place of a running one")
    add_output_flag(parser)
    add_cluster_flags(parser)


def run(arguments: Namespace) -> int:
    """Print the plan."""
    from neuron_plugin.cli.cluster_file import read_cluster
    from neuron_plugin.cli.cluster_views import cluster_views
    from neuron_plugin.extender.planned import SECONDS_AN_HOUR, planned

    if arguments.cluster:
        found = read_cluster(arguments.cluster)
        nodes, pods, now = found.nodes, found.pods, found.time
    else:
        arguments.watch = False
        (views,) = cluster_views(arguments, leases=True)
        nodes, pods, now = tuple(views.nodes), tuple(views.pods), time.time()
    try:
        cluster = planned(nodes, pods)
    except ValueError as error:
        raise CommandError(f"the cluster's nodes or pods cannot be read: {error}") from None
    policy, rules = Policy(), MoveRules(arguments.most_victims, arguments.by_priority)
    if arguments.drain:
        report, lines, missing = _drain(cluster.nodes, arguments.drain, policy)
    else:
        waiting = cluster.waiting
        if arguments.shape:
            try:
                request = parse_shape(arguments.shape)
            except DemandError as error:
                raise UsageError(f"--shape: {error}") from None
            new = PodReference(PodUid("new"), "", "new pod")
            waiting = [PlannedPod(new, request, priority=arguments.priority)]
        expected = prospects(cluster.nodes, waiting, policy, now=now / SECONDS_AN_HOUR, rules=rules)
        reports = tuple(_pod_report(cluster.nodes, each) for each in expected)
        more = how_many_more(cluster.nodes, waiting[0].request) if arguments.shape else {}
        left_out = () if arguments.shape else tuple(map(str, cluster.left_out))
        report = PlanReport(waiting=reports, left_out=left_out, more=more)
        lines = list(_lines(cluster.nodes, report))
        missing = sum(each.standing is not Standing.FITS for each in expected)
    show(arguments.output, report, lines)
    if missing:
        complain(f"{plural(missing, 'pod')} of those asked about fit nowhere now")
    return Exit.FAILURE if missing else Exit.SUCCESS


def _drain(nodes: ClusterNodes, name: str, policy: Policy) -> tuple[PlanReport, list[Line], int]:
    if name not in nodes:
        raise CommandError(f"there is no node {name} with Neuron devices: see neuron-plugin nodes")
    found = drain(nodes, name, policy)
    moves = tuple(_move_report(nodes, each) for each in found.moved)
    report = PlanReport(drained=moves, stuck=tuple(_name(pod) for pod in found.stuck))
    rows = [[(cell, "") for cell in (each.pod, each.target, _ids(nodes, each))] for each in moves]
    rows += [[(name, ""), ("-", ""), ("fits on no other node now", "bold red")] for name in report.stuck]
    lines = table(("POD", "NODE", "IDS"), rows) if rows else plain(f"{name} has no pod with Neuron devices")
    return report, lines, len(report.stuck)


def _pod_report(nodes: ClusterNodes, found: Prospect) -> PodReport:
    move = found.move
    node, mask = (move.node, move.mask) if move else (found.node, found.mask)
    devices, cores = _id_texts(nodes[node].geometry, mask) if node else ("", "")
    return PodReport(
        _name(found.pod),
        shape_text(found.pod.request),
        found.standing.value,
        node,
        devices,
        cores,
        round(move.loss, 3) if move else 0.0,
        tuple(_move_report(nodes, each) for each in move.victims) if move else (),
    )


def _move_report(nodes: ClusterNodes, found: Relocation) -> MoveReport:
    texts = _id_texts(nodes[found.target].geometry, found.mask)
    return MoveReport(_name(found.pod), found.source, found.target, *texts)


def _name(pod: PlannedPod) -> str:
    return str(pod.reference) if pod.reference.namespace else pod.reference.name


def _id_texts(geometry: Geometry, mask: CoreMask) -> tuple[str, str]:
    """The devices that a set touches, and its cores."""
    return format_ids(geometry.devices_touched(mask)), format_ids(cores_in(mask))


def _ids(nodes: ClusterNodes, found: PodReport | MoveReport) -> str:
    """A set as people read it: whole devices, or cores."""
    name = found.node if isinstance(found, PodReport) else found.target
    if not name:
        return ""
    devices, cores = found.devices.split(","), found.cores.split(",")
    whole = len(cores) == len(devices) * nodes[name].geometry.cores_per_device
    return named("device", map(int, devices)) if whole else named("core", map(int, cores))


def _lines(nodes: ClusterNodes, report: PlanReport) -> Iterator[Line]:
    """A row for each pod, the moves of each below, and how many more fit."""
    if not report.waiting:
        yield from plain("no pod waits for Neuron devices")
    else:
        rows = []
        for each in report.waiting:
            style = "green" if each.standing == Standing.FITS else "yellow" if each.moves else "bold red"
            lost = f"{each.lost:.1f}" if each.moves else ""
            needs = f"move {plural(len(each.moves), 'pod')}" if each.moves else ""
            cells = (each.pod, each.request, each.standing, each.node, lost, _ids(nodes, each).replace(" ", ":"), needs)
            rows.append([(cell, style if number == _STANDING else "") for number, cell in enumerate(cells)])
        yield from table(("POD", "REQUEST", "STANDING", "NODE", "LOST", "IDS", "NEEDS"), rows)
    moves = [(pod, move) for pod in report.waiting for move in pod.moves]
    if moves:
        yield from plain("")
    for pod, move in moves:
        yield from plain(f"for {pod.pod}: {move.pod} from {move.source} to {move.target}, {_ids(nodes, move)}")
    if report.left_out:
        yield from plain("", f"left out, because their annotations constrain them: {', '.join(report.left_out)}")
    if report.more:
        several = ", ".join(f"{number} on {name}" for name, number in sorted(report.more.items()))
        yield from plain("", f"{sum(report.more.values())} more of this shape fit: {several}")


_STANDING = 2
