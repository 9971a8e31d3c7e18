"""``GET /inspect[/NODE]`` and ``GET /explain/NAMESPACE/POD``: the state of the moment for a person at a terminal.

Plain text by default, one line a node, and JSON for ``?format=json``. Thousands of nodes take some 0.1-0.4 s, so it is
worked out in a thread, from records that do not change: the scheduler is not kept waiting by a curious person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from aiohttp import web

from neuron_plugin.allocation import format_ids
from neuron_plugin.extender.explain import explain, explain_text, find_pod
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import neuron_node
from neuron_plugin.extender.shapes import ClosedShape
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.topology import cores_in

_HEADINGS = ("NODE", "TYPE", "FREE DEVICES", "USED CORES", "PODS", "STATE")
_encode = msgspec.json.Encoder().encode


def inspection_routes(state: ClusterState) -> list[web.RouteDef]:
    """The routes."""

    async def inspect(request: web.Request) -> web.Response:
        name = request.match_info.get("node")
        if name and name not in state.nodes:
            raise web.HTTPNotFound(text=f"node {name} is not known here\n")
        records = [state.nodes[name]] if name else [state.nodes[each] for each in sorted(state.nodes)]
        if request.query.get("format") == "json":
            return _json(await asyncio.to_thread(_nodes_json, records))
        return web.Response(text=await asyncio.to_thread(inspect_text, records, details=bool(name)))

    async def explain_pod(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        record = find_pod(state, namespace, name)
        if record is None:
            raise web.HTTPNotFound(text=f"no live pod {namespace}/{name} that asks for Neuron is known here\n")
        if request.query.get("format") == "json":
            return _json(await asyncio.to_thread(lambda: _encode(explain(state, record))))
        return web.Response(text=await asyncio.to_thread(lambda: explain_text(explain(state, record))))

    return [
        web.get("/inspect", inspect),
        web.get("/inspect/{node}", inspect),
        web.get("/explain/{namespace}/{pod}", explain_pod),
    ]


def inspect_text(records: Iterable[NodeRecord], *, details: bool) -> str:
    """A table of nodes; with ``details`` also the holders, and why a node is closed."""
    records = list(records)
    lines = _table([_HEADINGS, *(_row(record) for record in records)])
    for record in records if details else ():
        lines += [f"  closed: {claim.detail}" for claim in record.unclear]
        if isinstance(record.hardware, Hardware):
            lines += [f"  unhealthy: device {device}: {why}" for device, why in record.hardware.unhealthy.items()]
        lines += [f"  {holder.pod} holds cores {format_ids(cores_in(holder.mask))}" for holder in record.ledger]
    return "\n".join(lines) + "\n"


def _row(record: NodeRecord) -> tuple[str, ...]:
    state = record.shape.refusal.text if isinstance(record.shape, ClosedShape) else "open"
    if not isinstance(record.hardware, Hardware):
        return (record.name, "-", "-", "-", "-", state)
    geometry = record.hardware.geometry
    return (
        record.name,
        geometry.instance_type,
        format_ids(geometry.whole_devices(record.free_mask)) or "-",
        format_ids(cores_in(record.used_mask)) or "-",
        str(len(record.ledger.holders)),
        state,
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _nodes_json(records: list[NodeRecord]) -> bytes:
    return _encode([neuron_node(record, 0) for record in records])


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
