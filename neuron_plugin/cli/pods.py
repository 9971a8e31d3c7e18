"""``neuron-plugin pods``: the pods that ask for Neuron, and the devices and cores of their containers."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.allocation.utilization import duration_text
from neuron_plugin.cli.cluster import namespace_from, node_name, pod_from
from neuron_plugin.cli.cluster_views import Views, add_view_flags, cluster_views, show_views
from neuron_plugin.cli.command import CommandError, Form, Line, Row, UsageError, in_order, no_such, plain, table
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.monitor.explain import unknown_pod_text
from neuron_plugin.monitor.views import PodView
from neuron_plugin.wording import plural

DESCRIPTION = """\
Show the live pods of a namespace, or of all with -A, that ask for Neuron, container by container:
what each asks for, where it runs and which devices and cores it has. Works it out from the API
server (the right to list nodes and pods is enough, and the right to list Leases for USE and IDLE),
or asks a running extender with --extender.

columns:
  REQUEST  resource and count; aws.amazon.com/ is left out
  DEVICES  ids of the devices that the container's cores are on
  CORES    ids of its logical cores, counted through the whole node
  NODE     where the pod is bound, or where it was promised its devices
  USE      how much of the last minutes the container's cores executed, on average; "?" not known: the
           driver is older than 2.30.2, the plugin has not measured yet or writes no Lease, or its
           Lease may not be read
  IDLE     for how long they have executed nothing, if that is long (idle-after-seconds of the plugin)
  STATE    Waiting (it has no node); Gated (waiting, and held back by our scheduling gate); Released
           (waiting, and handed to its scheduler without a place); Promised (it has a node and devices
           and is not bound yet); Bound (there without an assignment yet); Assigned (the scheduler's
           choice); Allocated (the kubelet has recorded it); Terminating; and what is wrong with the
           pod's request, its assignment or its devices, or why it waits: see neuron-plugin explain"""

EXAMPLES = """
neuron-plugin pods
neuron-plugin pods train-0 train-1 -o wide
neuron-plugin pods -n ml -l app=train --watch
neuron-plugin pods -A --node worker-1 -o wide
neuron-plugin pods -A -o json | jq '.pods[] | select(.status.phase == "Waiting") | .metadata.name'
neuron-plugin plan --idle                  # what nothing uses, the largest first
"""


NO_REASONS: Mapping[str, str] = {}


class PodTotals(msgspec.Struct, frozen=True, rename="camel"):
    """Sums over the shown pods; a core of several containers of a pod counts once.

    ``gated`` are the waiting pods that our scheduling gate holds back. ``idle_devices`` are devices of idle containers;
    another container may use other cores of such a device.
    """

    pods: int
    waiting: int
    allocated: int
    nodes: int
    devices: int
    cores: int
    gated: int
    promised: int
    idle_devices: int = 0


class PodsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``pods``; its pods are the monitor API's NeuronPods. ``reasons`` says why some of them wait."""

    version: int = 1
    pods: Sequence[PodView]
    totals: PodTotals
    reasons: Mapping[str, str] = {}


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for pods and output."""
    only = "only these pods (default: all that ask for Neuron)"
    parser.add_argument("pods", metavar="[NAMESPACE/]POD", nargs="*", help=only)
    parser.add_argument("--node", metavar="NODE", type=node_name, default="", help="only pods on this node")
    add_view_flags(parser)


def run(arguments: Namespace) -> None:
    """Print the pods once, or repeatedly with ``--watch``."""
    if arguments.pods and arguments.all_namespaces:
        raise UsageError("names of pods and -A exclude each other: give NAMESPACE/POD")
    names = {"/".join(pod_from(arguments, name)) for name in arguments.pods}
    namespace = "" if names or arguments.all_namespaces else namespace_from(arguments)
    form, node, labels = Form(arguments.output), arguments.node, arguments.selector
    place = {f"in namespace {namespace}": namespace, f"on node {node}": node, f"with labels {labels}": labels}
    where = " ".join(["no live pod", *(text for text, given in place.items() if given), "asks for Neuron"])
    for number, views in enumerate(cluster_views(arguments, PODS)):
        if node and node not in {view.name for view in views.nodes}:
            raise no_such("node", node, (view.name for view in views.nodes if view.spec.devices))
        report = report_of(in_order(_chosen(views, names, namespace, node), arguments.sort_by), views.reasons)
        others = sorted({pod.metadata.namespace for pod in views.pods if node in {"", pod.place}})
        nothing = f"{where}; such pods are in {', '.join(others)}: give -n or -A" if others else where
        lines, listed = pod_lines(form, report, bare=arguments.no_headers), [f"pod/{pod.name}" for pod in report.pods]
        show_views(arguments, report, listed, lines, first=not number, nothing=nothing)


def _chosen(views: Views, names: set[str], namespace: str, node: str) -> list[PodView]:
    """The pods of these names, or of one namespace and one node; an empty name means all."""
    named = [(f"{pod.metadata.namespace}/{pod.name}", pod) for pod in views.pods]
    if missing := sorted(names - (known := {name for name, _ in named})):
        raise CommandError(unknown_pod_text(known, *missing[0].split("/")))
    return [
        pod
        for name, pod in named
        if (name in names or not names) and namespace in {"", pod.metadata.namespace} and node in {"", pod.place}
    ]


def report_of(pods: Iterable[PodView], reasons: Mapping[str, str] = NO_REASONS) -> PodsReport:
    """The document of some pods; ``reasons`` are of waiting pods."""
    shown = tuple(pods)
    devices, cores, idle = set[tuple[str, int]](), set[tuple[str, int]](), set[tuple[str, int]]()
    for pod in shown:
        for container in pod.status.containers if (place := pod.place) else ():
            had = {(place, number) for number in container.devices}
            devices |= had
            idle |= had if container.utilization.idle_since else set()
            cores |= {(place, number) for number in container.cores}
    totals = PodTotals(
        pods=len(shown),
        waiting=sum(pod.status.phase == "Waiting" for pod in shown),
        allocated=sum(pod.status.allocated for pod in shown),
        nodes=len({pod.place for pod in shown if pod.place}),
        devices=len(devices),
        cores=len(cores),
        gated=sum(pod.status.phase == "Waiting" and pod.status.gated for pod in shown),
        promised=sum(pod.status.phase == "Promised" for pod in shown),
        idle_devices=len(idle),
    )
    own = {name: reasons[name] for pod in shown if (name := f"{pod.metadata.namespace}/{pod.name}") in reasons}
    return PodsReport(pods=shown, totals=totals, reasons=own)


def pod_lines(form: Form, report: PodsReport, *, bare: bool = False) -> list[Line]:
    """A row for each container, and the totals; ``bare`` without headers and totals."""
    rows, now = list[Row](), time.time()
    for pod in report.pods:
        name = f"{pod.metadata.namespace}/{pod.name}"
        has = {container.name: container for container in pod.status.containers}
        for demand in pod.spec.containers or (None,):
            ids = has.get(demand.name) if demand else None
            cells: dict[str, str | tuple[str, str]] = {
                "POD": name,
                "CONTAINER": demand.name if demand else "",
                "NODE": pod.place,
                "REQUEST": f"{demand.resource.rpartition('/')[2]}:{demand.count}" if demand else "",
                "DEVICES": ranges(ids.devices) if ids else "",
                "CORES": ranges(ids.cores) if ids else "",
                "USE": "",
                "IDLE": "",
            }
            if ids and pod.spec.node_name:
                use = ids.utilization
                cells["USE"] = f"{use.busy_percent}%" if use.known else "?"
                cells["IDLE"] = (duration_text(now - use.idle_since.timestamp()) if use.idle_since else "", "yellow")
            if form is Form.WIDE:
                used = f"{ids.utilization.memory_bytes / 2**30:.1f}Gi" if ids and ids.utilization.known else ""
                cells |= {"KIND": demand.kind if demand else "", "PRIORITY": str(pod.spec.priority), "MEMORY": used}
            status = pod.status
            state = ": ".join(
                filter(None, (status.state, status.problem or status.released_plainly or report.reasons.get(name)))
            )
            style = "bold red" if status.problem else "green" if status.state == "Allocated" else "yellow"
            rows.append(cells | {"STATE": (state, style)})
    total = report.totals
    gated = f" ({total.gated} gated)" if total.gated else ""
    promised = f", {total.promised} promised" if total.promised else ""
    summary = (
        f"{plural(total.pods, 'pod')}, {total.waiting} waiting{gated}{promised}, {total.allocated} allocated: "
        f"{plural(total.devices, 'device')} and {plural(total.cores, 'core')} on {plural(total.nodes, 'node')}"
        + (f", {plural(total.idle_devices, 'device')} idle" if total.idle_devices else "")
    )
    return [*table(rows, bare=bare), *(plain("", summary) if rows and not bare else [])]
