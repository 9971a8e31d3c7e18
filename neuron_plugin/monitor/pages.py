"""``GET /inspect[/NODE]``, ``/explain/NAMESPACE/POD``, ``/plan`` and ``/usage``: for people at a terminal.

Plain text by default, JSON for ``?format=json``; plan and usage are always JSON. Slow answers are made in threads, from
immutable records: only the request waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Metric

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.allocation.shapes import DemandError
from neuron_plugin.cluster import ApiServer
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.monitor.explain import UnknownPodError, explain, explain_text, find_pod, question
from neuron_plugin.monitor.plan import PlanOptions, UnknownNodeError, plan
from neuron_plugin.monitor.usage import SinceError, UsageOptions, usage_report
from neuron_plugin.monitor.use import use_metric
from neuron_plugin.monitor.views import node_view
from neuron_plugin.placement.leadership import CONDITION, Readiness
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import cores_in

_HEADINGS = ("NODE", "TYPE", "FREE DEVICES", "ALLOCATED CORES", "PODS", "STATE")


class MonitorPages:
    """The monitor API and these pages, as the placement controller serves them."""

    on_both_ports = True

    def __init__(self) -> None:
        self._monitors: list[Monitor] = []

    def routes(self, state: ClusterState, api: ApiServer, ready: Readiness) -> list[web.RouteDef]:  # noqa: ARG002 - a protocol
        """The routes of all pages."""
        monitor = Monitor(state, ready)
        self._monitors.append(monitor)
        return [*monitor.routes(), *inspection_routes(state, ready)]

    def guard(self) -> list[Middleware]:
        """No middleware: callers need no credentials."""
        return []

    def metrics(self, state: ClusterState, *, leading: bool) -> Iterable[Metric]:
        """The devices by state, from the leader alone."""
        return use_metric(list(state.nodes.values()) if leading else [])

    async def run(self, state: ClusterState) -> None:
        """Nothing has to be done."""

    def stop(self) -> None:
        """Send watchers away."""
        for monitor in self._monitors:
            monitor.stop()


def inspection_routes(state: ClusterState, ready: Readiness) -> list[web.RouteDef]:
    """The routes of a state."""

    async def inspect(request: web.Request) -> web.Response:
        name = request.match_info.get("node")
        if name and name not in state.nodes:
            raise web.HTTPNotFound(text=f"node {name} is not known here\n")
        nodes = [state.nodes[node_name] for node_name in ([name] if name else sorted(state.nodes))]
        if request.query.get("format") == "json":
            body = await asyncio.to_thread(lambda: msgspec.json.encode([node_view(state, info) for info in nodes]))
            return web.Response(body=body, content_type="application/json")
        return web.Response(text=await asyncio.to_thread(inspect_text, nodes, details=bool(name)))

    async def explain_pod(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        try:
            pod = find_pod(state, namespace, name)
        except UnknownPodError as error:
            raise web.HTTPNotFound(text=f"{error}\n") from None
        explanation = await asyncio.to_thread(explain, question(state, pod, time.time()))
        if request.query.get("format") == "json":
            return web.Response(body=msgspec.json.encode(explanation), content_type="application/json")
        return web.Response(text=explain_text(explanation, request.query.getall("node", [])))

    async def plan_for(request: web.Request) -> web.Response:
        try:
            options = msgspec.convert(dict(request.query), PlanOptions, strict=False)
            report = await plan(state, options)
        except (msgspec.ValidationError, DemandError) as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        except UnknownNodeError as error:
            raise web.HTTPNotFound(text=f"{error}\n") from None
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def usage(request: web.Request) -> web.Response:
        account = state.history.device_hours
        if account is None:
            why_not = ready.conditions.get(CONDITION) or "the setting device-hours is off, or the account not read yet"
            raise web.HTTPServiceUnavailable(text=f"only the leader has the device-hours: {why_not}\n")
        try:
            report = usage_report(account, msgspec.convert(dict(request.query), UsageOptions, strict=False))
        except (msgspec.ValidationError, SinceError) as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    return [
        web.get("/usage", usage),
        web.get("/inspect", inspect),
        web.get("/inspect/{node}", inspect),
        web.get("/explain/{namespace}/{pod}", explain_pod),
        web.get("/plan", plan_for),
    ]


def inspect_text(nodes: Iterable[NodeInfo], *, details: bool) -> str:
    """A table of nodes; with ``details`` also the pods on their devices, and why a node is closed."""
    rows, below = [_HEADINGS], []
    for info in nodes:
        cells = ("-", "-", "-", "-")
        below += [f"  closed: {detail}" for detail in info.details]
        if info.inventory:
            geometry = info.inventory.geometry
            free, used = ranges(geometry.whole_devices(info.free_mask)), ranges(cores_in(info.used_mask))
            cells = (geometry.instance_type, free, used, str(len(info.ledger.by_pod)))
            below += [f"  unhealthy: device {device}: {why}" for device, why in info.inventory.unhealthy.items()]
            below += [f"  disabled: {ranges(info.inventory.disabled)}"] if info.inventory.disabled else []
        for uid, allocations in info.ledger.by_pod.items():
            below.append(f"  {allocations[0].pod} holds cores {ranges(cores_in(info.ledger.mask_of(uid)))}")
        rows.append((info.name, *cells, info.closed.text if info.closed else "open"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines + (below if details else [])) + "\n"
