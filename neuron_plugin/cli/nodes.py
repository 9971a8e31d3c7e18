"""``neuron-plugin nodes``: the devices of every Neuron node of the cluster, and which are free."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from neuron_plugin.allocation.rejection import NO_NEURON
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.cluster import node_name
from neuron_plugin.cli.cluster_views import Views, add_view_flags, cluster_views, show_views
from neuron_plugin.cli.command import Form, Line, Row, in_order, no_such, plain, table
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.monitor.network import DomainView, NodeRoom, domain_tree, room_of
from neuron_plugin.monitor.views import NodeView, NodeViewStatus
from neuron_plugin.wording import plural

DESCRIPTION = """\
Show the Neuron nodes of the cluster: what each has, what of it is free, and whether new pods are
placed there. Works it out from the API server (the right to list nodes, pods and Leases is enough),
or asks a running extender with --extender.

columns:
  FREE          devices that are free as a whole and healthy, of all
  FREE-DEVICES  their ids
  FREE-CORES    cores that are free and healthy, of all
  UNHEALTHY     ids of the devices that are unhealthy or missing, whether a pod has them or not
  DISABLED      ids of the devices that an operator has taken out of service; see: neuron-plugin cordon
  PODS          how many pods have some of them, or were promised some; see: neuron-plugin pods -A --node NODE
  STATE         open, or why no new pod is placed there, such as that the node is cordoned
  IDLE          (wide) devices that pods have and whose cores execute nothing, see neuron-plugin pods
  RENEWED       (wide) when the node's plugin last renewed its Lease, by its own clock

With --tree the nodes stand under the domains of the network that their labels name. NODES is how many
there are, WHOLE how many of them are open and free as a whole, and FREE as above; -o json is the same
with and without."""

EXAMPLES = """
neuron-plugin nodes
neuron-plugin nodes worker-1 -o wide
neuron-plugin nodes -l topology.kubernetes.io/zone=us-east-1a --sort-by .status.freeDevices
neuron-plugin nodes --sort-by .status.unhealthyDevices       # the worst last
neuron-plugin nodes --watch
neuron-plugin nodes --tree
neuron-plugin nodes -o json | jq '.nodes[] | select(.status.open | not) | .metadata.name'
kubectl -n kube-system port-forward svc/neuron-plugin-extender 12346 &
neuron-plugin nodes --extender http://127.0.0.1:12346
"""


class NodeTotals(msgspec.Struct, frozen=True, rename="camel"):
    """Sums over the shown nodes. Free devices of a closed node do not count as free.

    Each device is allocated, free or not available; ``unhealthy_used_devices`` are the used devices that are unhealthy
    or missing, and ``unhealthy_devices`` all such devices, used or not. ``gated_pods`` are the waiting pods that our
    scheduling gate holds back; ``promised_pods`` have their devices and are not bound yet.
    """

    nodes: int
    closed: int
    devices: int
    free_devices: int
    unhealthy_devices: int
    cores: int
    free_cores: int
    pods: int
    waiting_pods: int
    used_devices: int
    unhealthy_used_devices: int
    unavailable_devices: int
    gated_pods: int
    promised_pods: int


class NodesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``nodes``; its nodes are the monitor API's NeuronNodes."""

    version: int = 1
    nodes: Sequence[NodeView]
    totals: NodeTotals


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for nodes and output."""
    only = "only these nodes (default: all that have Neuron)"
    parser.add_argument("nodes", metavar="NODE", nargs="*", type=node_name, help=only)
    parser.add_argument("--all", action="store_true", help="nodes without Neuron devices, too")
    parser.add_argument("--tree", action="store_true", help="what is free in each domain of the network")
    add_view_flags(parser)


def run(arguments: Namespace) -> None:
    """Print the nodes once, or repeatedly with ``--watch``."""
    form = Form(arguments.output)
    for number, views in enumerate(cluster_views(arguments, NODES)):
        report = report_of(views, arguments.nodes, everything=arguments.all)
        report = msgspec.structs.replace(report, nodes=in_order(report.nodes, arguments.sort_by))
        bare = arguments.no_headers
        lines = tree_lines(report, bare=bare) if arguments.tree else node_lines(form, report, bare=bare)
        names = [f"node/{node.name}" for node in report.nodes]
        show_views(arguments, report, names, lines, first=not number, nothing=_NOTHING)


_NOTHING = "no node has Neuron devices; with --all the others are shown, too"


def report_of(views: Views, names: Sequence[str], *, everything: bool) -> NodesReport:
    """The report of the nodes of these names; without names, of all nodes with Neuron, or of all with ``everything``.

    Raises:
        CommandError: a node of this name does not exist.
    """
    if missing := sorted({*names} - {node.name for node in views.nodes}):
        raise no_such("node", missing[0], (node.name for node in views.nodes if node.status.reason != NO_NEURON.text))
    shown = [
        node
        for node in views.nodes
        if (node.name in names if names else everything or node.status.reason != NO_NEURON.text)
    ]
    free = [node.status for node in shown if node.status.open]
    holders = {holder.uid for node in shown for holder in node.status.holders}
    counts = [node.status.device_counts for node in shown]
    devices, used_devices = sum(node.spec.devices for node in shown), sum(count.used for count in counts)
    free_devices = sum(count.free for count in counts)
    totals = NodeTotals(
        nodes=len(shown),
        closed=len(shown) - len(free),
        devices=devices,
        free_devices=free_devices,
        unhealthy_devices=sum(
            count.unhealthy + count.missing + count.held_down + count.used_broken for count in counts
        ),
        cores=sum(node.spec.devices * node.spec.cores_per_device for node in shown),
        free_cores=sum(len(status.free_cores) for status in free),
        pods=len(holders),
        waiting_pods=sum(pod.status.phase == "Waiting" for pod in views.pods),
        used_devices=used_devices,
        unhealthy_used_devices=sum(count.used_broken for count in counts),
        unavailable_devices=devices - used_devices - free_devices,
        gated_pods=sum(pod.status.phase == "Waiting" and pod.status.gated for pod in views.pods),
        promised_pods=sum(pod.status.phase == "Promised" for pod in views.pods),
    )
    return NodesReport(nodes=shown, totals=totals)


def node_lines(form: Form, report: NodesReport, *, bare: bool = False) -> list[Line]:
    """A row for each node, and the totals; ``bare`` without headers and totals."""
    rows: list[Row] = []
    for node in report.nodes:
        spec, status = node.spec, node.status
        cores = spec.devices * spec.cores_per_device
        cells: dict[str, str | tuple[str, str]] = {
            "NODE": node.name,
            "TYPE": spec.instance_type,
            "FREE": f"{len(status.free_devices)}/{spec.devices}",
            "FREE-DEVICES": ranges(status.free_devices),
            "FREE-CORES": f"{len(status.free_cores)}/{cores}",
            "UNHEALTHY": (ranges({*map(int, status.unhealthy_devices), *status.missing_devices}), "yellow"),
            "DISABLED": ranges(status.disabled_devices),
            "PODS": str(len(status.holders)),
        }
        if form is Form.WIDE:
            cells |= {
                "PRODUCT": spec.product,
                "LNC": str(spec.logical_core_size or ""),
                "DRIVER": spec.driver_version,
                "ALLOCATED-CORES": ranges(status.used_cores),
                "IDLE": ranges(status.idle_devices),
                "RENEWED": status.last_renewal,
            }
        kept = [f"cores {ranges(each.cores)} reserved for {each.pod}" for each in status.reserved]
        state, style = _state(status)
        rows.append(cells | {"STATE": ("; ".join([state, *status.details, *kept]), style)})
    total = report.totals
    used_broken = total.unhealthy_used_devices
    broken = f" ({used_broken} of them unhealthy)" if used_broken else ""
    other = total.unhealthy_devices - used_broken
    summary = (
        f"{plural(total.nodes, 'node')}, {total.closed} closed; {plural(total.devices, 'device')}: "
        f"{total.free_devices} free, {total.used_devices} allocated{broken}, {total.unavailable_devices} not available"
        f"{f' ({other} of them unhealthy)' if other else ''}; "
        f"{total.free_cores} of {plural(total.cores, 'core')} free; {plural(total.pods, 'pod')} there, "
        f"{total.waiting_pods} waiting{f' ({total.gated_pods} gated)' if total.gated_pods else ''}"
    )
    return [*table(rows, bare=bare), *(plain("", summary) if rows and not bare else [])]


def _state(status: NodeViewStatus) -> tuple[str, str]:
    return ("open", "green") if status.open else (status.reason, "bold red")


def tree_lines(report: NodesReport, *, bare: bool = False) -> list[Line]:
    """A row for each domain of the network and for each node in it."""
    states = {node.name: _state(node.status) for node in report.nodes}
    rooms = {node.name: room_of(node) for node in report.nodes}
    return table(list(_tree_rows(domain_tree(rooms.values()), rooms, states, 0)), bare=bare)


def _tree_rows(
    domain: DomainView, rooms: Mapping[str, NodeRoom], states: Mapping[str, tuple[str, str]], depth: int
) -> Iterator[Row]:
    for part in domain.parts:
        yield _tree_row(f"{part.level.rpartition('/')[2]} {part.name}", part, ("", ""), depth)
        yield from _tree_rows(part, rooms, states, depth + 1)
    for name in domain.members:
        yield _tree_row(name, domain_tree([rooms[name]]), states[name], depth)


def _tree_row(title: str, domain: DomainView, state: tuple[str, str], depth: int) -> Row:
    free = f"{domain.free_devices}/{domain.devices}"
    counts = {"NODES": str(domain.nodes), "WHOLE": str(domain.whole), "FREE": free}
    return {"DOMAIN": f"{'  ' * depth}{title}", **counts, "STATE": state}
