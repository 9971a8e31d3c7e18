"""What the simulated API server makes of a request, whichever way it came: over HTTP, or straight from a test.

A request and its answer are values. Only a watch takes time: its lines are the caller's to send. What goes wrong with a
request, when the server is told to do wrong, is below.
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
"""Where kubectl looks for a kind that it has not found elsewhere; it prints an answer of 406, if that is plain text."""
_OTHER_KINDS = b"""only what 'kubectl api-resources' lists is kept here; \
'neuron-plugin playground run -f FILE' makes the pods of other kinds"""
_SWITCHED_OFF = "sendInitialEvents: Forbidden: not without the feature gate WatchList, which is off here"
_WRITTEN_ONLY = ("binding", "eviction")


def answer(objects: ApiObjects, request: ApiRequest) -> Response:
    """Do what a request asks, unless it asks for a watch."""
    if request.method == "GET" and (document := discovery(request.path)):
        return Response(200, msgspec.json.encode(document))
    if request.method == "POST" and (document := review(request.path)):
        return Response(201, msgspec.json.encode(document))
    if request.path == OLD_OPENAPI:
        return Response(406, _OTHER_KINDS)
    target = parse_path(request.path)
    if request.method != "GET":
        return _write(objects.rehearsal() if _is_dry(request) else objects, request, target)
    if target.subresource in _WRITTEN_ONLY:
        raise _not_allowed()
    if target.subresource == "log":
        return Response(200, objects.log(target.namespace, target.name, request.query.get("container", "")).encode())
    return Response(200, objects.read(target).encoded if target.name else _list(objects, target, request))


def shown(objects: ApiObjects, request: ApiRequest, *, as_table: bool) -> Callable[[AnyJson], AnyJson] | None:
    """What makes of an object or a list that is read what its reader asked for; None: nothing is to be made of it.

    Events that are asked for below ``/api/v1`` have their older form there.
    """
    if not as_table:
        return core_event if OLD_EVENTS.fullmatch(request.path) else None
    kind = parse_path(request.path).kind
    include, told = request.query.get("includeObject", "Metadata"), dict[str, list[AnyJson]]()

    def table_of(read: AnyJson) -> AnyJson:
        pods = [stored.value for stored in objects.collections[PODS].objects()] if kind is NODES else ()
        made = table(kind, read, pods, include=include)
        told["columnDefinitions"] = [] if told else made["columnDefinitions"]  # a watch says them once
        return made | told

    return table_of


def watch_of(objects: ApiObjects, request: ApiRequest, bookmark_seconds: float) -> Watch | None:
    """Return the watch that a request asks for, with bookmarks after so many seconds of silence; None: it asks none."""
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
    """Return a refusal as it is answered."""
    return Response(refusal.code, msgspec.json.encode(refusal.status()))


def unsupported(*accepted: str) -> Refusal:
    """Return the refusal of a body in another format than those that are accepted."""
    text = "the body of the request was in an unknown format - accepted media types include: "
    return Refusal(415, text + ", ".join(accepted))


def _not_allowed() -> Refusal:
    return Refusal(405, "the server does not allow this method on the requested resource")


def _is_dry(request: ApiRequest) -> bool:
    """Whether a write is only tried: its query says so, or its options of a deletion."""
    body: AnyJson = request.body if isinstance(request.body, dict) else {}
    options = body.get("deleteOptions") or body
    return bool(request.query.get("dryRun") or options.get("dryRun"))


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
    """Answer one page, all pages of a list from one version."""
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
    """Return what the query selects, in the path's namespace."""
    within = f"metadata.namespace={target.namespace}" if target.namespace else ""
    fields = request.query.get("fieldSelector", "").replace("involvedObject.", "regarding.")  # of older events
    by_fields = selector(target.kind, f"{fields},{within}")
    by_labels = label_selector(request.query.get("labelSelector", ""))
    return lambda candidate: by_fields(candidate) and by_labels(candidate)


# What goes wrong.


class UnsentError(CutError):
    """There is no connection: the request has not arrived."""


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests: all by default. ``path`` is a regular expression found anywhere in the path."""

    method: str = ""
    path: str = ""
    watch: bool | None = None

    def meets(self, method: str, path: str, *, watch: bool) -> bool:
        """Whether a request is meant."""
        return (
            self.method in {"", method}
            and (self.watch is None or self.watch == watch)
            and re.search(self.path, path) is not None
        )


@dataclass(slots=True)
class Fault:
    """One fault of the server, for the next ``times`` requests that match.

    In this order: the request is held until ``gate`` is set, and ``delay_seconds``; ``drop`` cuts the connection
    before anything is done, and ``unsent`` lets a caller without sockets have none; ``status`` refuses instead of doing
    it (``retry_after_seconds`` goes with it); ``lose_answer`` does it and cuts the connection, or answers ``status``:
    a write is done and its writer does not know; ``ends`` answers a watch with 200 and ends it at once; ``body``
    answers 200 with these bytes.
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
        """Do what happens before the request is served; an answer means that it is not served.

        Raises:
            CutError: the connection is to be cut.
            Refusal: the request is refused.
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
        """Do what happens once the request is served.

        Raises:
            CutError: the connection is to be cut.
            Refusal: the request is answered as if it were refused.
        """
        if self.lose_answer:
            raise self.refusal() if self.status else CutError

    def refusal(self) -> Refusal:
        """The answer of ``status``."""
        details = {} if self.retry_after_seconds is None else {"retryAfterSeconds": self.retry_after_seconds}
        return Refusal(self.status, "the test asked for this refusal", reason="InjectedFault", **details)


def take_fault(faults: list[Fault], request: ApiRequest) -> Fault | None:
    """Return the first fault that is meant for a request, and count it."""
    watch = request.query.get("watch") == "true"
    fault = next((fault for fault in faults if fault.match.meets(request.method, request.path, watch=watch)), None)
    if fault:
        fault.times -= 1
        if fault.times <= 0:
            faults.remove(fault)
    return fault
