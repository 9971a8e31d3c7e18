"""The HTTP of the simulated API server: who may come in, the injected faults, and each verb's way to the objects."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
from aiohttp import web

from neuron_plugin.cluster import JSON
from neuron_plugin.simulation.api_server_kinds import JsonObject, Refusal, Selector, Target, parse_path, selector
from neuron_plugin.simulation.api_server_objects import PATCHES, ApiObjects
from neuron_plugin.simulation.api_server_watch import CutError, Watch, WatchList, WatchQuery, WatchState

if TYPE_CHECKING:
    from neuron_plugin.simulation.api_server_store import Stored

_REMEMBERED_REQUESTS = 10_000
_MAX_BODY_BYTES = 4 << 20


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
    before anything is done, ``status`` refuses instead of doing it (``retry_after_seconds`` goes with it);
    ``lose_answer`` does it and cuts the connection, so that a write is done and its writer does not know;
    ``ends`` answers a watch with 200 and ends it at once; ``body`` answers 200 with these bytes.
    """

    match: Match = field(default_factory=Match)
    times: int = 1
    gate: asyncio.Event | None = None
    delay_seconds: float = 0.0
    drop: bool = False
    status: int = 0
    retry_after_seconds: int | None = None
    lose_answer: bool = False
    ends: bool = False
    body: bytes | None = None


def take_fault(faults: list[Fault], method: str, path: str, *, watch: bool) -> Fault | None:
    """Return the first fault that is meant for a request, and count it."""
    fault = next((each for each in faults if each.match.meets(method, path, watch=watch)), None)
    if fault:
        fault.times -= 1
        if fault.times <= 0:
            faults.remove(fault)
    return fault


class Guard(Protocol):
    """Decides who may do what. Without one every user may do everything."""

    def check(self, user: str, method: str, target: Target, *, watch: bool) -> None:
        """Let a request pass, or raise a `Refusal`. A user's token is its name."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that came in, faulty or not, for tests to look at."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str


class ApiHttp:
    """The handler of all requests. ``faults`` are those that have not happened yet."""

    def __init__(self, objects: ApiObjects, *, token: str, watch_list: WatchList) -> None:
        self.objects = objects
        self.token = token
        self.watch_list = watch_list
        self.guard: Guard | None = None
        self.faults: list[Fault] = []
        self.watches = WatchState()
        self.seen: deque[SeenRequest] = deque(maxlen=_REMEMBERED_REQUESTS)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        watch = query.get("watch") == "true"
        self.seen.append(SeenRequest(request.method, request.path, query, request.content_type))
        fault = take_fault(self.faults, request.method, request.path, watch=watch)
        try:
            if fault and (injected := await _injected(request, fault)):
                return injected
            answer = await self._serve(request, query, watch=watch)
        except Refusal as refusal:
            return _json(refusal.status(), refusal.code)
        except CutError:
            return _cut(request)
        return _cut(request) if fault and fault.lose_answer else answer

    async def _serve(self, request: web.Request, query: dict[str, str], *, watch: bool) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.token and (scheme.lower(), token) != ("bearer", self.token):
            raise Refusal(401, "Unauthorized")
        target = parse_path(request.path)
        if self.guard:
            self.guard.check(token, request.method, target, watch=watch)
        if request.method != "GET":
            return self._write(request, target, await _body(request))
        if target.subresource == "binding":
            raise Refusal(405, "the server does not allow this method on the requested resource")
        if target.name:
            return _bytes(self.objects.read(target).encoded)
        return await self._watch(request, target, query) if watch else _bytes(self._list(target, query))

    def _write(self, request: web.Request, target: Target, body: JsonObject) -> web.Response:
        match request.method:
            case "POST" if target.subresource == "binding":
                return _json(self.objects.bind(target.namespace, target.name, body), 201)
            case "POST" if not target.name:
                body.setdefault("metadata", {}).pop("uid", None)  # the server chooses it
                return _bytes(self.objects.create(target.kind, body, target.namespace).encoded, 201)
            case "PUT" if target.name and target.subresource != "binding":
                return _bytes(self.objects.update(target, body).encoded)
            case "PATCH" if target.name and target.subresource != "binding":
                if request.content_type not in PATCHES:
                    raise _unsupported(*PATCHES)
                return _bytes(self.objects.patch(target, body, request.content_type).encoded)
            case "DELETE" if target.name and not target.subresource:
                if (seconds := request.query.get("gracePeriodSeconds")) is not None:
                    body |= {"gracePeriodSeconds": int(seconds)}
                return _bytes(self.objects.delete(target, body).encoded)
        raise Refusal(405, "the server does not allow this method on the requested resource")

    def _list(self, target: Target, query: dict[str, str]) -> bytes:
        """Answer one page, all pages of a list from one version."""
        collection = self.objects.collections[target.kind]
        version, start = _place(query.get("continue", ""))
        snapshot = collection.snapshot_at(version) if version else collection.snapshot()
        meant, following = _meant(target, query), 0
        limit = int(query.get("limit", "0")) or len(snapshot.objects)
        chosen: list[Stored] = []
        for place in range(start, len(snapshot.objects)):
            if meant(snapshot.objects[place].value):
                if len(chosen) == limit:
                    following = place
                    break
                chosen.append(snapshot.objects[place])
        metadata = {"resourceVersion": str(snapshot.version)}
        if following:
            metadata["continue"] = base64.urlsafe_b64encode(f"{snapshot.version}:{following}".encode()).decode()
        head = {"kind": f"{target.kind.kind}List", "apiVersion": target.kind.version, "metadata": metadata}
        items = b",".join(stored.encoded for stored in chosen)
        return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"

    async def _watch(self, request: web.Request, target: Target, query: dict[str, str]) -> web.StreamResponse:
        meant = _meant(target, query)
        wanted = WatchQuery.parse(query, self.watch_list)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        collection = self.objects.collections[target.kind]
        with contextlib.suppress(ConnectionError):  # the client left
            await Watch(target.kind, collection, meant, wanted, self.watches).run(request, answer)
        return answer


async def _injected(request: web.Request, fault: Fault) -> web.Response | None:
    """Do what the fault says before the request is served; an answer means that it is not served."""
    if fault.gate is not None:
        await fault.gate.wait()
    await asyncio.sleep(fault.delay_seconds)
    if fault.drop:
        return _cut(request)
    if fault.status:
        details = {} if fault.retry_after_seconds is None else {"retryAfterSeconds": fault.retry_after_seconds}
        raise Refusal(fault.status, "the test asked for this refusal", reason="InjectedFault", **details)
    if fault.ends:
        return web.Response(body=b"", content_type="application/json")
    return None if fault.body is None else _bytes(fault.body)


def _cut(request: web.Request) -> web.Response:
    """Cut the connection under the request; the answer is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def _body(request: web.Request) -> JsonObject:
    data = await request.read()
    if not data:
        return {}
    if request.content_type not in (JSON, *PATCHES):
        raise _unsupported(JSON, *PATCHES)
    try:
        return msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise Refusal(400, f"the object provided is unrecognized (must be of type JSON): {error}") from error


def _unsupported(*accepted: str) -> Refusal:
    text = "the body of the request was in an unknown format - accepted media types include: "
    return Refusal(415, text + ", ".join(accepted))


def _meant(target: Target, query: dict[str, str]) -> Selector:
    """Return what the query selects, in the path's namespace."""
    if "labelSelector" in query:
        raise Refusal(400, "the simulated API server selects by fields only")
    within = f"metadata.namespace={target.namespace}" if target.namespace else ""
    return selector(target.kind, f"{query.get('fieldSelector', '')},{within}")


def _place(token: str) -> tuple[int, int]:
    """The version and the place of a further page; zeros for the first."""
    if not token:
        return 0, 0
    try:
        version, _, place = base64.urlsafe_b64decode(token).decode().partition(":")
        return int(version), int(place)
    except ValueError as error:
        raise Refusal(400, "continue key is not valid") from error


def _json(value: JsonObject, status: int = 200) -> web.Response:
    return _bytes(msgspec.json.encode(value), status)


def _bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
