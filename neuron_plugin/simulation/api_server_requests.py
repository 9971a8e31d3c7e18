"""How the simulated API server answers a request, over HTTP or without sockets, and its injected faults.

Requests and answers are values. The caller sends the lines of a watch.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.simulation.api_server_kinds import (
    NODES,
    OLD_EVENTS,
    PODS,
    AnyJson,
    Refusal,
    Selector,
    Target,
    invalid,
    label_selector,
    parse_path,
    selector,
)
from neuron_plugin.simulation.api_server_kubectl import core_event, discovery, review, table
from neuron_plugin.simulation.api_server_objects import PATCHES, ApiObjects
from neuron_plugin.simulation.api_server_store import CutError, Stored, Watch

OLD_OPENAPI = "/openapi/v2"
"""kubectl asks here for an unknown kind, and prints an answer of 406 that is plain text."""
_OTHER_KINDS = b"""only what 'kubectl api-resources' lists is kept here; \
'neuron-plugin playground run -f FILE' makes the pods of other kinds"""
_SWITCHED_OFF = "sendInitialEvents: Forbidden: not without the feature gate WatchList, which is off here"
_WRITTEN_ONLY = ("binding", "eviction")


def answer(objects: ApiObjects, request: ApiRequest) -> Response:
    """Answer a request that is no watch."""
    if request.method == "GET" and (document := discovery(request.path)):
        return Response(200, msgspec.json.encode(document))
    if request.method == "POST" and (document := review(request.path)):
        return Response(201, msgspec.json.encode(document))
    if request.path == OLD_OPENAPI:
        return Response(406, _OTHER_KINDS)
    target = parse_path(request.path)
    if request.method != "GET":
        body: AnyJson = request.body if isinstance(request.body, dict) else {}
        is_dry = request.query.get("dryRun") or (body.get("deleteOptions") or body).get("dryRun")
        return _write(objects.rehearsal() if is_dry else objects, request, target)
    if target.subresource in _WRITTEN_ONLY:
        raise _not_allowed()
    if target.subresource == "log":
        return Response(200, objects.log(target.namespace, target.name, request.query.get("container", "")).encode())
    return Response(200, objects.read(target).encoded if target.name else _list(objects, target, request))


def shown(objects: ApiObjects, request: ApiRequest, *, as_table: bool) -> Callable[[AnyJson], AnyJson] | None:
    """The conversion of what is read to a Table, or of events below ``/api/v1`` to core/v1; None for no conversion."""
    if not as_table:
        return core_event if OLD_EVENTS.fullmatch(request.path) else None
    kind = parse_path(request.path).kind
    include, told = request.query.get("includeObject", "Metadata"), dict[str, list[AnyJson]]()

    def table_of(read: AnyJson) -> AnyJson:
        pods = [stored.value for stored in objects.collections[PODS].objects()] if kind is NODES else ()
        made = table(kind, read, pods, include=include)
        told["columnDefinitions"] = [] if told else made["columnDefinitions"]  # only in the first event of a watch
        return made | told

    return table_of


def watch_of(objects: ApiObjects, request: ApiRequest, bookmark_seconds: float) -> Watch | None:
    """Return the watch of a request, or None if it is no watch."""
    if request.method != "GET":
        return None
    for name in ("limit", "resourceVersion", "timeoutSeconds"):
        int(request.query.get(name) or 0)
    if request.query.get("watch") not in {"true", "1"}:
        return None
    if (target := parse_path(request.path)).name:
        return None
    if request.query.get("sendInitialEvents") == "true":
        raise invalid("ListOptions.meta.k8s.io", "", _SWITCHED_OFF)
    collection = objects.collections[target.kind]
    return Watch(target.kind, collection, _meant(target, request), request.query, bookmark_seconds)


def refused(refusal: Refusal) -> Response:
    """Return the answer of a refusal."""
    return Response(refusal.code, msgspec.json.encode(refusal.status()))


def unsupported(*accepted: str) -> Refusal:
    """Return the refusal of a body with an unsupported content type."""
    text = "the body of the request was in an unknown format - accepted media types include: "
    return Refusal(415, text + ", ".join(accepted))


def _not_allowed() -> Refusal:
    return Refusal(405, "the server does not allow this method on the requested resource")


def _write(objects: ApiObjects, request: ApiRequest, target: Target) -> Response:
    body: AnyJson = request.body or {}
    match request.method:
        case "POST" if target.subresource == "binding":
            return Response(201, msgspec.json.encode(objects.bind(target.namespace, target.name, body)))
        case "POST" if target.subresource == "eviction":
            return Response(201, msgspec.json.encode(objects.evict(target.namespace, target.name, body)))
        case "POST" if not target.name:
            metadata = {name: value for name, value in (body.get("metadata") or {}).items() if name != "uid"}
            made = {**body, "metadata": metadata}  # the server chooses the UID
            if target.kind is PODS:
                made.pop("status", None)
            return Response(201, objects.create(target.kind, made, target.namespace).encoded)
        case "PATCH" if target.name and target.subresource not in _WRITTEN_ONLY:
            if request.content_type not in PATCHES:
                raise unsupported(*PATCHES)
            return Response(200, objects.patch(target, body, request.content_type).encoded)
        case "PUT" if target.name and target.subresource not in _WRITTEN_ONLY:
            return Response(200, objects.replace(target, body).encoded)
        case "DELETE" if target.name and not target.subresource:
            if (seconds := request.query.get("gracePeriodSeconds")) is not None:
                body |= {"gracePeriodSeconds": int(seconds)}
            return Response(200, objects.delete(target, body).encoded)
    raise _not_allowed()


def _list(objects: ApiObjects, target: Target, request: ApiRequest) -> bytes:
    """Answer one page. All pages of a list are from one version."""
    query, collection = request.query, objects.collections[target.kind]
    version = start = 0
    if token := query.get("continue", ""):
        try:
            version, start = map(int, base64.urlsafe_b64decode(token).split(b":"))
        except ValueError as error:
            raise Refusal(400, "continue key is not valid") from error
    snapshot = collection.snapshot_at(version) if version else collection.snapshot()
    meant, following = _meant(target, request), 0
    limit = int(query.get("limit", "0")) or len(snapshot.objects)
    chosen: list[Stored] = []
    for place in range(start, len(snapshot.objects)):
        if meant(snapshot.objects[place].value):
            if len(chosen) == limit:
                following = place
                break
            chosen.append(snapshot.objects[place])
    metadata: AnyJson = {"resourceVersion": str(snapshot.version)}
    if following:
        if not query.keys() & {"fieldSelector", "labelSelector"}:
            metadata["remainingItemCount"] = len(snapshot.objects) - following
        metadata["continue"] = base64.urlsafe_b64encode(f"{snapshot.version}:{following}".encode()).decode()
    head = {"kind": f"{target.kind.kind}List", "apiVersion": target.kind.version, "metadata": metadata}
    items = b",".join(stored.encoded for stored in chosen)
    return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"


def _meant(target: Target, request: ApiRequest) -> Selector:
    """Return the selector of the path's namespace and the query."""
    within = f"metadata.namespace={target.namespace}" if target.namespace else ""
    fields = request.query.get("fieldSelector", "").replace("involvedObject.", "regarding.")  # of older events
    by_fields = selector(target.kind, f"{fields},{within}")
    by_labels = label_selector(request.query.get("labelSelector", ""))
    return lambda candidate: by_fields(candidate) and by_labels(candidate)


# Faults.


class UnsentError(CutError):
    """There is no connection: the request did not arrive."""


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests have the fault, by default all. ``path`` is a regular expression to search for."""

    method: str = ""
    path: str = ""
    watch: bool | None = None


@dataclass(slots=True)
class Fault:
    """A fault for the next ``times`` matching requests. The fields apply in this order.

    - ``gate``, ``delay_seconds``: wait for the gate, then for so long;
    - ``drop``: cut the connection before anything is done; ``unsent``: there is no connection;
    - ``lose_answer``: do it, then cut the connection or answer ``status``, so that the client does not know;
    - ``status``: refuse, with ``retry_after_seconds``;
    - ``ends``: answer a watch with 200 and end it at once; ``body``: answer 200 with these bytes.
    """

    match: Match = field(default_factory=Match)
    times: int = 1
    gate: asyncio.Event | None = None
    delay_seconds: float = 0.0
    drop: bool = False
    unsent: bool = False
    status: int = 0
    retry_after_seconds: int | None = None
    lose_answer: bool = False
    ends: bool = False
    body: bytes | None = None

    async def before(self) -> Response | None:
        """Apply the fault before the request is served. If it returns an answer, the request is not served.

        Raises:
            CutError: cut the connection.
            Refusal: refuse the request.
        """
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.delay_seconds)
        if self.drop or self.unsent:
            raise UnsentError if self.unsent else CutError
        if self.status and not self.lose_answer:
            raise self.refusal()
        return Response(200, b"") if self.ends else None if self.body is None else Response(200, self.body)

    def after(self) -> None:
        """Apply the fault after the request is served.

        Raises:
            CutError: cut the connection.
            Refusal: answer as if the request were refused.
        """
        if self.lose_answer:
            raise self.refusal() if self.status else CutError

    def refusal(self) -> Refusal:
        """The refusal with ``status``."""
        details = {} if self.retry_after_seconds is None else {"retryAfterSeconds": self.retry_after_seconds}
        return Refusal(self.status, "the test asked for this refusal", reason="InjectedFault", **details)


def take_fault(faults: list[Fault], request: ApiRequest) -> Fault | None:
    """Return the first fault that matches a request, and count it."""
    watch = request.query.get("watch") == "true"
    for fault in faults:
        meant = fault.match.method in {"", request.method} and fault.match.watch in {None, watch}
        if meant and re.search(fault.match.path, request.path):
            fault.times -= 1
            if fault.times <= 0:
                faults.remove(fault)
            return fault
    return None
