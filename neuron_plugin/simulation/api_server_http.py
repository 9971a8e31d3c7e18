"""The stand-in API server's HTTP: who may come in, what goes wrong on purpose, and each verb's way to the objects."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from neuron_plugin.cluster import JSON
from neuron_plugin.simulation.api_server_access import Access, action_of
from neuron_plugin.simulation.api_server_faults import Fault, Faults
from neuron_plugin.simulation.api_server_kinds import ServedKind, Target, parse_path
from neuron_plugin.simulation.api_server_objects import PATCHES, ApiObjects
from neuron_plugin.simulation.api_server_selectors import Selector, selector
from neuron_plugin.simulation.api_server_status import (
    JsonObject,
    Refusal,
    bad_request,
    method_not_allowed,
    unauthorized,
    unsupported_media_type,
)
from neuron_plugin.simulation.api_server_watch import CutError, Watch, WatchList, WatchQuery, WatchState

if TYPE_CHECKING:
    from neuron_plugin.simulation.api_server_store import Snapshot, Stored

_REMEMBERED_REQUESTS = 10_000
_MAX_BODY_BYTES = 4 << 20
_CREATED = 201


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that came in, faulty or not, for tests to look at."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str


class ApiHttp:
    """The handler of all requests."""

    def __init__(self, objects: ApiObjects, *, token: str, watch_list: WatchList) -> None:
        self.objects = objects
        self.token = token
        self.watch_list = watch_list
        self.access = Access()
        self.faults = Faults()
        self.watches = WatchState()
        self.seen: deque[SeenRequest] = deque(maxlen=_REMEMBERED_REQUESTS)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.seen.append(SeenRequest(request.method, request.path, query, request.content_type))
        fault = self.faults.take(request.method, request.path, watch=query.get("watch") == "true")
        try:
            if fault is not None and (answer := await _trouble(request, fault)) is not None:
                return answer
            answer = await self._serve(request, query)
        except Refusal as refusal:
            return _json(refusal.status(), refusal.code)
        except CutError:
            return _cut(request)
        return _cut(request) if fault is not None and fault.lose_answer else answer

    async def _serve(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.token and (scheme.lower(), token) != ("bearer", self.token):
            raise unauthorized()
        target = parse_path(request.path)
        self.access.check(token, action_of(request.method, target, watch=query.get("watch") == "true"))
        if request.method == "GET":
            return await self._get(request, target, query)
        body = await _body(request)
        if target.subresource == "binding":
            return self._bind(request, target, body)
        return self._write(request, target, body)

    async def _get(self, request: web.Request, target: Target, query: dict[str, str]) -> web.StreamResponse:
        if target.subresource == "binding":
            raise method_not_allowed()
        if target.name:
            return _bytes(self.objects.read(target).encoded)
        if query.get("watch") == "true":
            return await self._watch(request, target, query)
        return _bytes(self._list(target, query))

    def _bind(self, request: web.Request, target: Target, body: JsonObject) -> web.Response:
        if request.method != "POST":
            raise method_not_allowed()
        return _json(self.objects.bind(target.namespace, target.name, body), _CREATED)

    def _write(self, request: web.Request, target: Target, body: JsonObject) -> web.Response:
        match request.method:
            case "POST" if not target.name:
                body.setdefault("metadata", {}).pop("uid", None)  # clients have no say in it
                return _bytes(self.objects.create(target.kind, body, target.namespace).encoded, _CREATED)
            case "PUT" if target.name:
                return _bytes(self.objects.update(target, body).encoded)
            case "PATCH" if target.name:
                if request.content_type not in PATCHES:
                    raise unsupported_media_type(", ".join(PATCHES))
                return _bytes(self.objects.patch(target, body, request.content_type).encoded)
            case "DELETE" if target.name and not target.subresource:
                return _bytes(self.objects.delete(target, body | _grace(request)).encoded)
        raise method_not_allowed()

    def _list(self, target: Target, query: dict[str, str]) -> bytes:
        """Answer one page, all pages of a list from one version."""
        collection = self.objects.collections[target.kind]
        start = 0
        if token := query.get("continue", ""):
            version, start = _read_continue(token)
            snapshot = collection.snapshot_at(version)
        else:
            snapshot = collection.snapshot()
        chosen, following = _page(target, query, snapshot, start)
        metadata = {"resourceVersion": str(snapshot.version)}
        if following:
            metadata["continue"] = _write_continue(snapshot.version, following)
        return _list_bytes(target.kind, metadata, chosen)

    async def _watch(self, request: web.Request, target: Target, query: dict[str, str]) -> web.StreamResponse:
        meant = _meant(target, query)
        wanted = WatchQuery.parse(query, self.watch_list)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        collection = self.objects.collections[target.kind]
        with contextlib.suppress(ConnectionError):  # the client left
            await Watch(target.kind, collection, meant, wanted, self.watches, answer.write).run(lambda: _gone(request))
        return answer


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _trouble(request: web.Request, fault: Fault) -> web.StreamResponse | None:
    """Do what the fault says before the request is served; an answer means that it is not served."""
    if fault.gate is not None:
        await fault.gate.wait()
    await asyncio.sleep(fault.delay_seconds)
    if fault.drop:
        return _cut(request)
    if fault.status:
        details = {} if fault.retry_after_seconds is None else {"retryAfterSeconds": fault.retry_after_seconds}
        raise Refusal(fault.status, "InjectedFault", "the stand-in API server was told to refuse this", **details)
    if fault.ends:
        return web.Response(body=b"", content_type="application/json")
    return None if fault.body is None else _bytes(fault.body)


def _cut(request: web.Request) -> web.Response:
    """Cut the connection under the request; what is returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def _body(request: web.Request) -> JsonObject:
    data = await request.read()
    if not data:
        return {}
    if request.content_type not in (JSON, *PATCHES):
        raise unsupported_media_type(", ".join((JSON, *PATCHES)))
    try:
        return msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {error}") from error


def _grace(request: web.Request) -> JsonObject:
    seconds = request.query.get("gracePeriodSeconds")
    return {} if seconds is None else {"gracePeriodSeconds": int(seconds)}


def _meant(target: Target, query: dict[str, str]) -> Selector:
    """Return what the query selects, in the path's namespace."""
    if "labelSelector" in query:
        raise bad_request("the stand-in API server selects by fields only")
    within = f"metadata.namespace={target.namespace}" if target.namespace else ""
    return selector(target.kind, f"{query.get('fieldSelector', '')},{within}")


def _page(target: Target, query: dict[str, str], snapshot: Snapshot, start: int) -> tuple[list[Stored], int]:
    """Return a page's objects and the place of the next page's first one; 0 if there is none."""
    meant = _meant(target, query)
    limit = int(query.get("limit", "0")) or len(snapshot.objects)
    chosen: list[Stored] = []
    for place in range(start, len(snapshot.objects)):
        if meant(snapshot.objects[place].value):
            if len(chosen) == limit:
                return chosen, place
            chosen.append(snapshot.objects[place])
    return chosen, 0


def _write_continue(version: int, place: int) -> str:
    return base64.urlsafe_b64encode(f"{version}:{place}".encode()).decode()


def _read_continue(token: str) -> tuple[int, int]:
    try:
        version, _, place = base64.urlsafe_b64decode(token).decode().partition(":")
        return int(version), int(place)
    except ValueError as error:
        raise bad_request("continue key is not valid") from error


def _list_bytes(kind: ServedKind, metadata: JsonObject, chosen: list[Stored]) -> bytes:
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.version, "metadata": metadata}
    items = b",".join(stored.encoded for stored in chosen)
    return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"


def _json(value: JsonObject, status: int = 200) -> web.Response:
    return _bytes(msgspec.json.encode(value), status)


def _bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
