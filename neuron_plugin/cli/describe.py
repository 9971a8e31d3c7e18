"""``neuron-plugin describe``: everything about one node, or one pod, on one page.

The page combines the output of ``nodes``, ``pods``, ``devices``, ``topology`` and ``explain`` with the events.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInfo
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.cluster import LOOK, add_cluster_flags, ask_cluster, node_in, node_name, pod_from, state_reader
from neuron_plugin.cli.cluster_views import views_of
from neuron_plugin.cli.command import (
    CommandError,
    Form,
    Line,
    Parser,
    Row,
    Subparsers,
    add_command,
    plain,
    print_lines,
    table,
)
from neuron_plugin.cli.devices import device_lines
from neuron_plugin.cli.devices import report_of as machine_of
from neuron_plugin.cli.pods import pod_lines, report_of
from neuron_plugin.cli.topology import picture
from neuron_plugin.cluster import ApiServer
from neuron_plugin.inspection.published import published_node
from neuron_plugin.monitor.events import EventsView, events_about
from neuron_plugin.monitor.explain import UnknownPodError, explain, explain_text, find_pod, question
from neuron_plugin.monitor.views import node_view, pod_view
from neuron_plugin.placement.state import ClusterState

DESCRIPTION = """\
Show all that is known of a node, or of a pod that asks for Neuron: what it has, drawn with its links;
who has what; health; what is in use; why a pod waits, or why a node takes none; and its events."""

EXAMPLES = """
neuron-plugin describe node trn1-2
neuron-plugin describe pod train-0 -n ml
"""


def add_flags(parser: Parser) -> None:
    """Add the commands for a node and a pod."""
    kinds: Subparsers = parser.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    node = add_command(kinds, "node", run, summary="a node: its devices, their health, who has them, why it is closed")
    node.add_argument("name", metavar="NODE", type=node_name, help="the node")
    add_cluster_flags(node, *LOOK)
    pod = add_command(kinds, "pod", run, summary="a pod: what it has or why it waits, and which devices are wrong")
    pod.add_argument("name", metavar="[NAMESPACE/]POD", help="the pod")
    add_cluster_flags(pod, "namespace", *LOOK)


def run(arguments: Namespace) -> None:
    """Print the page."""
    is_pod = arguments.kind == "pod"
    namespace, name = pod_from(arguments, arguments.name) if is_pod else ("", arguments.name)
    read_state = state_reader(arguments)

    async def found(api: ApiServer) -> tuple[ClusterState, EventsView]:
        events = await events_about(api, arguments.kind.capitalize(), name, namespace)
        return await read_state(api), events

    state, events = ask_cluster(arguments, found)
    try:
        page = [*(_pod(state, find_pod(state, namespace, name)) if is_pod else _node(state, node_in(state, name)))]
    except UnknownPodError as error:
        raise CommandError(str(error)) from None
    print_lines([*page, *_events(events)])


def _node(state: ClusterState, info: NodeInfo) -> Iterator[Line]:
    view = node_view(state, info)
    status, counts = view.status, view.status.device_counts
    broken = f" ({counts.used_broken} of them unhealthy or missing)" if counts.used_broken else ""
    parts, said = [f"{counts.used} allocated{broken}", f"{counts.free} free"], {"used", "used_broken", "free"}
    others = {name: number for name, number in msgspec.structs.asdict(counts).items() if number and name not in said}
    parts += [f"{number} {name.replace('_', ' ')}" for name, number in others.items()]
    yield from _fields(
        {
            "Node": info.name,
            "State": "; ".join(["open" if status.open else status.reason, *status.details]),
            "Devices": ", ".join(parts) if info.inventory else "",
            "Reserved": "; ".join(f"cores {ranges(each.cores)} for {each.pod}" for each in status.reserved),
            "Plugin": f"renewed its Lease at {status.last_renewal}" if status.last_renewal else "",
        }
    )
    if has := info.inventory:
        yield from [*plain(""), *device_lines(Form.TEXT, machine_of(state, info, has))]
        yield from [*plain(""), *picture(published_node(has, info.ledger))]
    if pods := [pod for pod in views_of(state).pods if pod.place == info.name]:
        yield from [*plain(""), *pod_lines(Form.TEXT, report_of(pods))]


def _pod(state: ClusterState, pod: NeuronPod) -> Iterator[Line]:
    view, info = pod_view(state, pod), state.nodes.get(pod.place)
    yield from pod_lines(Form.TEXT, report_of([view]))[:-2]
    yield from plain("")
    yield from _fields(
        {
            "Priority": str(view.spec.priority),
            "Controller": view.spec.controller,
            "Group": view.spec.group,
            "Movable": "yes" if view.spec.movable else "no",
        }
    )
    yield from plain("", *explain_text(explain(question(state, pod, time.time()))).splitlines())
    if info and info.inventory:
        yield from plain("", f"{info.name}:")
        yield from picture(published_node(info.inventory, info.ledger))


def _events(found: EventsView) -> list[Line]:
    if found.problem:
        return plain("", f"events cannot be read: {found.problem}")
    rows: list[Row] = [
        {
            "LAST SEEN": event.at,
            "TYPE": (event.type, "yellow" if event.type == "Warning" else ""),
            "REASON": event.reason,
            "EVENT": event.note,
        }
        for event in found.events
    ]
    return [*plain(""), *(table(rows) or plain("no events"))]


def _fields(values: Mapping[str, str]) -> Iterable[Line]:
    """Names and values, without empty ones."""
    width = max(map(len, values)) + 3
    return plain(*(f"{f'{name}:':{width}}{value}" for name, value in values.items() if value))
