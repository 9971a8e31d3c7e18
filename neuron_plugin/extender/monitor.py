"""The monitor API: ``neuronnodes`` and ``neuronpods``, to list and to watch as Kubernetes resources are.

Read-only views for people, dashboards and controllers, as objects of ``neuron-plugin.io/v1``; ids are ascending and
comma separated, as in the annotations. Lists carry a resourceVersion, watches go on from one, bookmarks move it, and a
client that falls behind gets the 410 that every Kubernetes client answers with a new list. Answers are worked out in
threads, from records that do not change: thousands of objects take some tenths of a second, and the scheduler must not
wait for a dashboard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web
from msgspec import Raw

from neuron_plugin.allocation import NeuronPod, Rejection, format_ids, mask_union
from neuron_plugin.extender.state import Change, ClusterState, NodeInfo, Record
from neuron_plugin.topology import cores_in

API_VERSION = "neuron-plugin.io/v1"
BASE = f"/apis/{API_VERSION}"
NODE_LABEL = "neuron-plugin.io/node"
NAMESPACE_LABEL = "neuron-plugin.io/namespace"
BOOKMARK_SECONDS = 15.0
LONGEST_WATCH_SECONDS = 1800.0

_KINDS: Mapping[str, type[Record]] = {"NeuronNode": NodeInfo, "NeuronPod": NeuronPod}
_GONE = 410
_BAD_REQUEST = 400
_EXPIRED = ("Expired", "the resourceVersion is no longer known here: list again")
_MOST_DIGITS = 20  # of a 64-bit number

Json = dict[str, object]
_encode = msgspec.json.Encoder().encode


class _QueryError(ValueError):
    """A query parameter that is not understood; the text names it and what was expected."""


class Monitor:
    """Lists and watches of one state."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._changes = state.changes
        self._stopping = False

    def routes(self) -> list[web.RouteDef]:
        """Discovery and the two collections."""

        async def discovery(_: web.Request) -> web.Response:
            about = {"namespaced": False, "verbs": ["list", "watch"]}
            names = [{"name": f"{kind.lower()}s", "singularName": kind.lower(), "kind": kind} for kind in _KINDS]
            head = {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": API_VERSION}
            return _json(head | {"resources": [each | about for each in names]})

        async def nodes(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, "NeuronNode")

        async def pods(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, "NeuronPod")

        paths = {BASE: discovery, f"{BASE}/neuronnodes": nodes, f"{BASE}/neuronpods": pods}
        return [web.get(path, handler) for path, handler in paths.items()]

    def stop(self) -> None:
        """End every watch: the server goes down."""
        self._stopping = True
        self._changes.wake()

    async def _answer(self, request: web.Request, kind: str) -> web.StreamResponse:
        try:
            if request.query.get("fieldSelector") or request.query.get("labelSelector"):
                text = "selectors are not supported, expected a request for the whole collection"
                raise _QueryError(text)  # noqa: TRY301 - answered below like other queries that are not understood
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, kind)
        except _QueryError as error:
            return _json(_status(_BAD_REQUEST, "BadRequest", str(error)), _BAD_REQUEST)
        metadata, found = {"resourceVersion": str(self._changes.version)}, self._current(kind)
        items = await asyncio.to_thread(lambda: [Raw(_encode(_object(each))) for each in found])
        return _json({"apiVersion": API_VERSION, "kind": f"{kind}List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        position = _number(request, "resourceVersion")
        seconds = min(_number(request, "timeoutSeconds") or LONGEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS)
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        if position and not self._changes.knows(position):
            return _json(_status(_GONE, *_EXPIRED), _GONE)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        lines = b""
        if not position:
            found, position = self._current(kind), self._changes.version
            lines = await asyncio.to_thread(_events, found, _KINDS[kind])
        clock = asyncio.get_running_loop().time
        ends, marked = clock() + seconds, clock()
        while True:
            if lines:  # one write per batch; it waits while the client does not read, and the changes go on without it
                await response.write(lines)
            gone = request.transport is None or request.transport.is_closing()
            if gone or self._stopping or clock() >= ends:
                return response
            await self._changes.wait(position, within_seconds=min(BOOKMARK_SECONDS, seconds))
            if not self._changes.knows(position):
                await response.write(_event("ERROR", _status(_GONE, *_EXPIRED)))
                return response
            changes, position = self._changes.after(position), self._changes.version
            lines = await asyncio.to_thread(_events, changes, _KINDS[kind])
            if bookmarks and clock() - marked >= BOOKMARK_SECONDS:
                marked, metadata = clock(), {"resourceVersion": str(position)}
                lines += _event("BOOKMARK", {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata})

    def _current(self, kind: str) -> list[Change]:
        """The records of the moment, as the changes that would bring them about."""
        version_of = self._changes.version_of
        if kind == "NeuronNode":
            return [Change(version_of(name), None, info) for name, info in self._state.nodes.items()]
        return [Change(version_of(uid), None, pod) for uid, pod in self._state.pods.items()]


def _number(request: web.Request, key: str) -> int:
    text = request.query.get(key) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise _QueryError(f"{key} is {text[:40]!r}, expected a decimal number")
    return int(text)


def _json(content: Json, status: int = 200) -> web.Response:
    return web.Response(body=_encode(content), status=status, content_type="application/json")


def _status(code: int, reason: str, message: str) -> Json:
    """A failure, as a Kubernetes Status."""
    head: Json = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure"}
    return head | {"reason": reason, "message": message, "code": code}


def _events(changes: Iterable[Change], record: type[Record]) -> bytes:
    """The events of these changes for a watcher of one collection."""
    lines = []
    for change in changes:
        if isinstance(change.after or change.before, record):
            kind = "DELETED" if change.after is None else "MODIFIED" if change.before else "ADDED"
            lines.append(_event(kind, _object(change)))
    return b"".join(lines)


def _event(kind: str, content: Json) -> bytes:
    return _encode({"type": kind, "object": content}) + b"\n"


def _object(change: Change) -> Json:
    record = change.after or change.before
    if isinstance(record, NodeInfo):
        return node_object(record, change.version)
    return pod_object(record, change.version) if record else {}


def node_object(info: NodeInfo, version: int) -> Json:
    """A NeuronNode: what it has, what of it is free, who has the rest, and what keeps it closed."""
    labels = {NODE_LABEL: info.name}
    metadata = {"name": info.name, "uid": info.node.uid, "resourceVersion": str(version), "labels": labels}
    found: Json = {"apiVersion": API_VERSION, "kind": "NeuronNode", "metadata": metadata}
    closed = info.capacity.text if isinstance(info.capacity, Rejection) else ""
    inventory = info.node.inventory
    if isinstance(inventory, Rejection):
        details = [inventory.detail] if inventory.detail else []
        return found | {"spec": {}, "status": {"open": False, "reason": closed, "details": details}}
    geometry = inventory.geometry
    spec = {
        "instanceType": geometry.instance_type,
        "topology": geometry.topology.value,
        "devices": geometry.device_count,
        "coresPerDevice": geometry.cores_per_device,
    }
    holders = []
    for allocations in info.ledger.by_pod.values():
        pod, mask = allocations[0].pod, mask_union(allocations)
        ids = {"cores": format_ids(cores_in(mask)), "devices": format_ids(geometry.devices_touched(mask))}
        holders.append({"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} | ids)
    missing = (device for device in range(geometry.device_count) if device not in inventory.present)
    status = {
        "open": not closed,
        "reason": closed,
        "details": [reason.detail for _, reason in info.unclear],
        "freeDevices": format_ids(geometry.whole_devices(info.free_mask)),
        "freeCores": format_ids(cores_in(info.free_mask)),
        "usedDevices": format_ids(geometry.devices_touched(info.used_mask)),
        "usedCores": format_ids(cores_in(info.used_mask)),
        "unhealthyDevices": {str(device): why for device, why in inventory.unhealthy.items()},
        "missingDevices": format_ids(missing),
        "holders": holders,
    }
    return found | {"spec": spec, "status": status}


def pod_object(pod: NeuronPod, version: int) -> Json:
    """A NeuronPod: one live pod that asks for Neuron, what it asks for, where it is and what it was assigned."""
    namespace = pod.reference.namespace
    asked = [
        {"name": part.container, "kind": part.kind.value, "resource": part.resource.value, "count": part.count}
        for part in pod.requests
    ]
    status: Json = {"phase": "Terminating" if pod.terminating else "Bound" if pod.node else "Waiting"}
    if isinstance(pod.request, Rejection):
        status["problem"] = pod.request.detail
    elif isinstance(pod.assignment, Rejection):
        status["problem"] = pod.assignment.detail
    elif pod.assignment is not None:
        lists = [{"name": part.request.container, "ids": format_ids(part.ids)} for part in pod.assignment.containers]
        status |= {"allocated": pod.assignment.allocated, "containers": lists}
    metadata = {
        "name": pod.reference.name,
        "namespace": namespace,
        "uid": pod.uid,
        "resourceVersion": str(version),
        "labels": {NODE_LABEL: pod.node, NAMESPACE_LABEL: namespace},
    }
    spec = {"nodeName": pod.node, "priority": pod.priority, "containers": asked}
    return {"apiVersion": API_VERSION, "kind": "NeuronPod", "metadata": metadata, "spec": spec, "status": status}
