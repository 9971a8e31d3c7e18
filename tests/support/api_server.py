"""The simulated API server as tests need it: it validates what it stores, and fails as a test asks.

It has two doors. Once started it listens on a socket; and it is an ``ApiServer`` itself, which answers in its caller's
task, without I/O and on the clock of the caller's loop. Faults are injected before a request reaches the server,
whichever way it came: refusals, delays, cut connections, watches that end.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Protocol, Self

import msgspec
from aiohttp import web

from neuron_plugin.cluster.api import MERGE_PATCH, ApiRequest, Response, UnreachableError, refusal
from neuron_plugin.simulation import SimulatedApiServer
from neuron_plugin.simulation.api_server import http_answer
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    NODES,
    PODS,
    AnyJson,
    Refusal,
    Target,
    invalid,
    parse_path,
)
from neuron_plugin.simulation.api_server_requests import answer, refused, watch_of
from neuron_plugin.simulation.api_server_store import CutError, Inbox, ObjectChange, Watch
from tests.support.api_validation import ValidatingObjects

_REMEMBERED_REQUESTS = 10_000
_SWITCHED_OFF = (
    "sendInitialEvents: Forbidden: "
    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
)
_NEEDS_MATCH = (
    "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
)


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods with these labels may still be evicted."""

    namespace: str
    labels: dict[str, str]
    allowed: int


class WatchList(Enum):
    """What the server does when asked for ``sendInitialEvents``."""

    SERVED = "served"
    REFUSED = "refused"
    IGNORED = "ignored"


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


class StandInApiServer(SimulatedApiServer):
    """The server. Its methods play all others: users, schedulers, kubelets.

    An empty ``token`` lets every client in. ``watch_list`` says how it takes requests for ``sendInitialEvents``. With
    ``tls`` it serves HTTPS; ``ca`` is then the PEM text of the authority that clients are to trust.
    """

    def __init__(
        self,
        *,
        token: str = "",
        watch_list: WatchList = WatchList.SERVED,
        bookmark_seconds: float = 60.0,
        tls: ssl.SSLContext | None = None,
        ca: str = "",
    ) -> None:
        super().__init__()
        self._validating = ValidatingObjects()
        self._objects = self._validating
        self._bookmark_seconds = bookmark_seconds
        self._token = token
        self.watch_list = watch_list
        self._tls = tls
        self._ca = ca
        self._guard: Guard | None = None
        self._faults: list[Fault] = []
        self._seen: deque[SeenRequest] = deque(maxlen=_REMEMBERED_REQUESTS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def guard_by(self, guard: Guard) -> None:
        """Ask ``guard`` about every request from now on."""
        self._guard = guard

    def write_kubeconfig(self, path: Path, user: str = "") -> Path:
        """As `SimulatedApiServer`, with the server's CA, and its token unless a user is given."""
        super().write_kubeconfig(path, user or self._token)
        if self._ca:
            config = msgspec.json.decode(path.read_bytes())
            authority = base64.b64encode(self._ca.encode()).decode()
            config["clusters"][0]["cluster"]["certificate-authority-data"] = authority
            path.write_bytes(msgspec.json.encode(config))
        return path

    def rotate(self, *, token: str = "", tls: ssl.SSLContext | None = None, ca: str = "") -> None:
        """Change the token at once; a certificate and its CA at the next ``start``."""
        self._token = token or self._token
        self._tls = tls or self._tls
        self._ca = ca or self._ca

    # What users, schedulers and kubelets do.

    def set_pod_status(self, namespace: str, name: str, status: AnyJson) -> AnyJson:
        """Merge-patch a pod's status, as a kubelet would: ``{"phase": "Running"}``."""
        return self._objects.patch(Target(PODS, namespace, name, "status"), {"status": status}, MERGE_PATCH).value

    def patch_pod(self, namespace: str, name: str, change: AnyJson) -> AnyJson:
        """Merge-patch a pod, as a user would."""
        return self._objects.patch(Target(PODS, namespace, name), change, MERGE_PATCH).value

    def patch_node(self, name: str, change: AnyJson, *, status: bool = False) -> AnyJson:
        """Merge-patch a node, or its status."""
        return self._objects.patch(Target(NODES, "", name, "status" if status else ""), change, MERGE_PATCH).value

    def delete_node(self, name: str) -> None:
        """Delete a node."""
        self._objects.delete(Target(NODES, "", name))

    # Faults.

    def fail(self, fault: Fault) -> None:
        """Let a fault happen to the next requests that match it."""
        self._faults.append(fault)

    def forgive(self) -> None:
        """Remove all faults that have not happened yet."""
        self._faults.clear()

    def compact(self) -> None:
        """Forget the history: watches from older versions and further pages of older lists get a 410.

        Open watches stay.
        """
        for collection in self._objects.collections.values():
            collection.compact()

    def expire_watches(self) -> None:
        """End all open watches with a 410 inside the stream."""
        version = self._objects.versions.current
        self._send_to_watches(Refusal(410, f"too old resource version: {version} ({version + 1})"))

    def end_watches(self) -> None:
        """End all open watches cleanly."""
        self._send_to_watches(TimeoutError())

    def cut_watches(self) -> None:
        """Cut the connections of all open watches."""
        self._send_to_watches(CutError())

    def send_bookmarks(self) -> None:
        """Send a bookmark on every open watch that asked for them, now."""
        self._send_to_watches(None)

    def mute_watches(self) -> None:
        """Keep all open watches open and silent, as behind a dead connection; what they leave out is never sent."""
        for collection in self._objects.collections.values():
            for inbox in collection.followers:
                inbox.put_nowait = partial(_put_end, inbox)  # type: ignore[method-assign]  # a dead connection

    def drop_binding_annotations(self) -> None:
        """Forget the annotations of bindings from now on."""
        self._validating.keep_binding_annotations = False

    def limit_disruptions(self, budget: Budget) -> None:
        """Let a disruption budget hold from now on, instead of the last one for these labels."""
        name = "-".join(budget.labels.values())
        target = Target(BUDGETS, budget.namespace, name)
        status = {"status": {"disruptionsAllowed": budget.allowed}}
        with suppress(Refusal):
            self._objects.delete(target)
        spec = {"selector": {"matchLabels": budget.labels}}
        self._objects.create(BUDGETS, {"metadata": {"name": name}, "spec": spec, **status}, budget.namespace)

    @property
    def requests(self) -> list[SeenRequest]:
        """The latest requests, oldest first."""
        return list(self._seen)

    @property
    def open_watches(self) -> int:
        """How many watches are being served."""
        return sum(len(collection.followers) for collection in self._objects.collections.values())

    # Requests without sockets: this is an ``ApiServer``.

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._answer(request)
        except TimeoutError:
            raise _unreachable(request, "no answer in time") from None
        assert isinstance(response, Response)
        return response

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        assert silence_seconds > 0
        opened = await self._answer(request)
        if isinstance(opened, Watch):
            async with aclosing(self._heard(opened, request, silence_seconds)) as lines:
                yield lines
        elif opened.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(opened, request)
        else:
            yield _lines(opened.body)

    def answer(self, request: ApiRequest) -> Response:
        """Answer a request at once, whatever faults are to come."""
        body = None if request.body is None else msgspec.json.decode(msgspec.json.encode(request.body))
        try:
            return answer(self._objects, replace(request, body=body))
        except Refusal as refusal:
            return refused(refusal)

    async def _answer(self, request: ApiRequest) -> Response | Watch:
        fault = self._see(request)
        try:
            if fault and (injected := await _injected(fault)):
                return injected
            done = watch_of(self._objects, request, self._bookmark_seconds) or self.answer(request)
        except Refusal as refusal:
            return refused(refusal)
        except CutError:
            arrived = not (fault and fault.unsent)
            raise _unreachable(request, "cut" if arrived else "connection refused", may_have_arrived=arrived) from None
        if fault and fault.lose_answer and not fault.status:
            raise _unreachable(request, "cut")
        return refused(_refusal(fault)) if fault and fault.lose_answer else done

    async def _heard(self, watch: Watch, request: ApiRequest, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch as its client hears them."""
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        async with aclosing(watch.lines()) as lines:
            try:
                async for line in lines:
                    if line:
                        heard_at = loop.time()
                        yield line.rstrip(b"\n")
                    elif loop.time() - heard_at >= silence_seconds:
                        raise _unreachable(request, "silence")
            except CutError:
                raise _unreachable(request, "cut") from None

    # Requests over HTTP.

    def _application(self) -> web.Application:
        application = super()._application()
        application.middlewares.append(self._intercept)
        return application

    @web.middleware
    async def _intercept(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """See every request, let a fault happen to it, check its token, and let the server do the rest."""
        query = dict(request.query)
        fault = self._see(ApiRequest(request.method, request.path, query, content_type=request.content_type))
        watch = query.get("watch") == "true"
        try:
            if fault and (injected := await _injected(fault)):
                return http_answer(injected)
            self._admit(request, watch=watch)
            if watch and query.get("sendInitialEvents") == "true":
                request = self._initial_events(request, query)
        except Refusal as refusal:
            return http_answer(refused(refusal))
        except CutError:
            return _cut(request)
        done = await handler(request)
        if not (fault and fault.lose_answer):
            return done
        return http_answer(refused(_refusal(fault))) if fault.status else _cut(request)

    def _see(self, request: ApiRequest) -> Fault | None:
        """Remember a request, and take the fault that is meant for it."""
        query = dict(request.query)
        self._seen.append(SeenRequest(request.method, request.path, query, request.content_type))
        return take_fault(self._faults, request.method, request.path, watch=query.get("watch") == "true")

    def _admit(self, request: web.Request, *, watch: bool) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._token and (scheme.lower(), token) != ("bearer", self._token):
            raise Refusal(401, "Unauthorized")
        if self._guard:
            self._guard.check(token, request.method, parse_path(request.path), watch=watch)

    def _initial_events(self, request: web.Request, query: dict[str, str]) -> web.Request:
        """The request for ``sendInitialEvents`` as this server takes it."""
        if self.watch_list is WatchList.REFUSED:
            raise invalid("ListOptions.meta.k8s.io", "", _SWITCHED_OFF)
        if query.get("resourceVersionMatch") != "NotOlderThan":
            raise invalid("ListOptions.meta.k8s.io", "", _NEEDS_MATCH)
        if self.watch_list is WatchList.SERVED:
            return request
        return request.clone(rel_url=request.rel_url.without_query_params("sendInitialEvents"))


def _put_end(inbox: Inbox, item: ObjectChange | Exception | None) -> None:
    """Leave everything out but the end of a watch."""
    if isinstance(item, Exception):
        asyncio.Queue.put_nowait(inbox, item)


async def _injected(fault: Fault) -> Response | None:
    """Do what the fault says before the request is served; an answer means that it is not served.

    Raises:
        CutError: the connection is to be cut.
        Refusal: the request is refused.
    """
    if fault.gate is not None:
        await fault.gate.wait()
    await asyncio.sleep(fault.delay_seconds)
    if fault.drop or fault.unsent:
        raise CutError
    if fault.status and not fault.lose_answer:
        raise _refusal(fault)
    return Response(200, b"") if fault.ends else None if fault.body is None else Response(200, fault.body)


def _unreachable(request: ApiRequest, why: str, *, may_have_arrived: bool = True) -> UnreachableError:
    return UnreachableError(request.method, request.path, why, may_have_arrived=may_have_arrived)


async def _lines(body: bytes) -> AsyncIterator[bytes]:
    for line in body.splitlines():
        yield line


def _refusal(fault: Fault) -> Refusal:
    details = {} if fault.retry_after_seconds is None else {"retryAfterSeconds": fault.retry_after_seconds}
    return Refusal(fault.status, "the test asked for this refusal", reason="InjectedFault", **details)


def _cut(request: web.Request) -> web.Response:
    """Cut the connection under the request; the answer is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
