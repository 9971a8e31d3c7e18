"""A simulated Kubernetes API server, for the demo, tests and planning.

Objects are kept in memory. Once started, the server speaks HTTP on loopback. It is also an ``ApiServer`` that answers
in the caller's task, without I/O and on the clock of the caller's loop. It behaves like Kubernetes 1.36 for the calls
that this project and kubectl make, and validates what this project writes. There is no garbage collection, and every
client is authorized unless a token or a guard is set. ``fail`` injects faults.

    api = SimulatedApiServer()
    await api.start()
    api.create_pod({"metadata": {"name": "a"}, "spec": {"containers": []}})
    kubeconfig = api.write_kubeconfig(directory / "kubeconfig")

Returned objects are the server's own: do not change them.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
from aiohttp import web

from neuron_plugin.cluster import ApiRequest, UnreachableError
from neuron_plugin.cluster.api import JSON, STRATEGIC_MERGE_PATCH, Response, refusal
from neuron_plugin.simulation.api_server_kinds import (
    NODES,
    PODS,
    AnyJson,
    Refusal,
    ServedKind,
    Target,
    parse_path,
)
from neuron_plugin.simulation.api_server_kubectl import read_protobuf
from neuron_plugin.simulation.api_server_objects import JSON_PATCH, PATCHES, Admission, ApiObjects
from neuron_plugin.simulation.api_server_requests import (
    OLD_OPENAPI,
    Fault,
    UnsentError,
    answer,
    refused,
    shown,
    take_fault,
    unsupported,
    watch_of,
)
from neuron_plugin.simulation.api_server_store import CutError, Inbox, ObjectChange, Watch

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


_PROTOBUF = "application/vnd.kubernetes.protobuf"
_APPLY_PATCH = "application/apply-patch+yaml"
_LOOPBACK = "127.0.0.1"
_MAX_BODY_BYTES = 4 << 20
_REMEMBERED_REQUESTS = 10_000
_TURNS_OF_AN_ACCEPT = 5
"""Event loop turns until aiohttp knows of an accepted connection: three in asyncio, plus some."""


class Guard(Protocol):
    """Authorizes requests."""

    def check(self, user: str, method: str, target: Target, *, watch: bool) -> None:
        """Raise a `Refusal` if the user may not do this. A user's token is the user's name."""


class SimulatedApiServer:
    """The server, with methods that play users, schedulers and kubelets.

    It listens on a free port and keeps it over ``stop`` and ``start``. ``admit_pod`` mutates each new pod. An empty
    ``token`` admits every client. With ``tls`` it serves HTTPS; ``ca`` is the PEM text of the CA for kubeconfigs.
    """

    def __init__(
        self,
        admit_pod: Admission | None = None,
        *,
        token: str = "",
        bookmark_seconds: float = 60.0,
        tls: ssl.SSLContext | None = None,
        ca: str = "",
    ) -> None:
        self._objects = ApiObjects(admit_pod)
        self._bookmark_seconds = bookmark_seconds
        self._token, self._tls, self._ca = token, tls, ca
        self._guard: Guard | None = None
        self._mounted: dict[str, Callable[[ApiRequest], Awaitable[Response]]] = {}
        self._faults: list[Fault] = []
        self._seen: deque[ApiRequest] = deque(maxlen=_REMEMBERED_REQUESTS)
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, after a ``stop`` on the same port and with the same objects."""
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        self._listening = socket.create_server((_LOOPBACK, self._port))
        self._port = self._listening.getsockname()[1]
        await web.SockSite(self._runner, self._listening, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Stop listening and cut all watches."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.cut_watches()
            # If a server is closed between accepting and announcing a connection, asyncio (3.11) leaks the open
            # connection, and its client waits forever. So accept no more, and let accepted connections arrive.
            if self._listening is not None:
                asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            await runner.cleanup()

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self._port}"

    def write_kubeconfig(self, path: Path, user: str = "") -> Path:
        """Write a kubeconfig (mode 0600) for a user, or with the server's token, and return its path."""
        cluster, token = {"server": self.url}, user or self._token
        if self._ca:
            cluster["certificate-authority-data"] = base64.b64encode(self._ca.encode()).decode()
        config: AnyJson = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulated",
            "clusters": [{"name": "simulated", "cluster": cluster}],
            "users": [{"name": "simulated", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}],
        }
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(config))  # JSON is YAML
        return path

    def rotate(self, *, token: str = "", tls: ssl.SSLContext | None = None, ca: str = "") -> None:
        """Change the token now, and the certificate and CA at the next ``start``."""
        self._token, self._tls, self._ca = token or self._token, tls or self._tls, ca or self._ca

    def guard_by(self, guard: Guard) -> None:
        """Authorize every HTTP request by ``guard`` from now on."""
        self._guard = guard

    # What users, schedulers and kubelets do.

    def create_pod(self, manifest: AnyJson) -> AnyJson:
        """Create a pod; see `create`. The default namespace is ``default``."""
        return self.create(PODS, manifest, "default")

    def create_node(self, manifest: AnyJson) -> AnyJson:
        """Create a node."""
        return self.create(NODES, manifest, "")

    def bind(self, namespace: str, name: str, *, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod, as a scheduler does."""
        metadata: AnyJson = {"name": name, "annotations": dict(annotations or {})}
        self._objects.bind(namespace, name, {"metadata": metadata, "target": {"kind": "Node", "name": node}})

    def mount(self, path: str, handler: Callable[[ApiRequest], Awaitable[Response]]) -> None:
        """Let ``handler`` answer all requests below a path."""
        self._mounted[path] = handler

    def serve_logs(self, logs: Callable[[str, str, str], str | None]) -> None:
        """Get container logs from ``logs``, by namespace, pod and container."""
        self._objects.logs = logs

    def patch_status(self, kind: ServedKind, name: str, status: AnyJson, namespace: str = "") -> AnyJson:
        """Patch an object's status; conditions are merged by type."""
        target = Target(kind, namespace, name, "status")
        return self._objects.patch(target, {"status": status}, STRATEGIC_MERGE_PATCH).value

    def change(
        self, kind: ServedKind, name: str, change: AnyJson, namespace: str = "", subresource: str = ""
    ) -> AnyJson:
        """Apply a merge patch to an object, or to one of its subresources."""
        return self._objects.patch(Target(kind, namespace, name, subresource), change).value

    def patch_pod(self, namespace: str, name: str, change: AnyJson) -> AnyJson:
        """Apply a merge patch to a pod."""
        return self.change(PODS, name, change, namespace)

    def set_pod_status(self, namespace: str, name: str, status: AnyJson) -> AnyJson:
        """Merge a change, such as ``{"phase": "Running"}``, into a pod's status."""
        return self.change(PODS, name, {"status": status}, namespace, "status")

    def patch_node(self, name: str, change: AnyJson, *, status: bool = False) -> AnyJson:
        """Apply a merge patch to a node, or to its status."""
        return self.change(NODES, name, change, "", "status" if status else "")

    def delete_node(self, name: str) -> None:
        """Delete a node."""
        self.delete(NODES, name)

    def delete(self, kind: ServedKind, name: str, namespace: str = "") -> None:
        """Delete an object. One with finalizers only gets its deletion time."""
        self._objects.delete(Target(kind, namespace, name))

    def delete_pod(self, namespace: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod. A running pod only gets its deletion time, unless ``grace_seconds`` is 0."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._objects.delete(Target(PODS, namespace, name), options)

    def get(self, kind: ServedKind, name: str, namespace: str = "") -> AnyJson:
        """Return an object."""
        return self._objects.read(Target(kind, namespace, name)).value

    def objects(self, kind: ServedKind) -> list[AnyJson]:
        """Return all objects of a kind, by namespace and name."""
        return [stored.value for stored in self._objects.collections[kind].objects()]

    def follow(self, *kinds: ServedKind) -> Inbox:
        """Return a queue of all changes of these kinds from now on."""
        inbox = Inbox()
        for kind in kinds:
            self._objects.collections[kind].followers.add(inbox)
        return inbox

    def unfollow(self, inbox: Inbox) -> None:
        """End a `follow`."""
        for collection in self._objects.collections.values():
            collection.followers.discard(inbox)

    def create(self, kind: ServedKind, manifest: AnyJson, namespace: str) -> AnyJson:
        """Create an object, in the namespace of its metadata or else in ``namespace``. A given UID is kept."""
        namespace = (manifest.get("metadata") or {}).get("namespace", namespace)
        return self._objects.create(kind, manifest, namespace).value

    # Faults.

    def fail(self, fault: Fault) -> None:
        """Inject a fault into the next requests that match it."""
        self._faults.append(fault)

    def forgive(self) -> None:
        """Remove all pending faults."""
        self._faults.clear()

    def compact(self) -> None:
        """Forget the history. New watches from older versions, and next pages of older lists, get a 410."""
        for collection in self._objects.collections.values():
            collection.compact()

    def expire_watches(self) -> None:
        """End all open watches with a 410 in the stream."""
        version = self._objects.versions.current
        self._send_to_watches(Refusal(410, f"too old resource version: {version} ({version + 1})"))

    def end_watches(self) -> None:
        """End all open watches cleanly."""
        self._send_to_watches(TimeoutError())

    def cut_watches(self) -> None:
        """Cut the connections of all open watches."""
        self._send_to_watches(CutError())

    def send_bookmarks(self) -> None:
        """Send a bookmark now on every open watch that wants bookmarks."""
        self._send_to_watches(None)

    def mute_watches(self) -> None:
        """Send nothing more on open watches, as on a dead connection."""
        for inbox in self._inboxes():
            inbox.put_nowait = partial(_put_end, inbox)  # type: ignore[method-assign]  # a dead connection

    @property
    def requests(self) -> list[ApiRequest]:
        """The latest requests, oldest first, including failed ones."""
        return list(self._seen)

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return len(self._inboxes())

    def _inboxes(self) -> list[Inbox]:
        return [inbox for collection in self._objects.collections.values() for inbox in collection.followers]

    def _send_to_watches(self, what: Exception | None) -> None:
        for inbox in self._inboxes():
            inbox.put_nowait(what)

    # Requests.

    def answer(self, request: ApiRequest) -> Response:
        """Answer a request at once, without faults."""
        try:
            return answer(self._objects, _own(request))
        except Refusal as refusal:
            return refused(refusal)

    async def _serve(self, request: ApiRequest, user: str | None = None) -> Response | Watch:
        """The answer to a request, or its watch. ``user`` is the bearer token of an HTTP request.

        Raises:
            CutError: cut the connection without an answer.
        """
        self._seen.append(request)
        fault = take_fault(self._faults, request)
        try:
            if fault and (injected := await fault.before()):
                return injected
            if user is not None:
                self._admit(request, user)
            for path, handler in self._mounted.items():
                if request.path.startswith(path):
                    return await handler(request)
            done = watch_of(self._objects, request, self._bookmark_seconds) or answer(self._objects, request)
            if fault:
                fault.after()
        except Refusal as refusal:
            return refused(refusal)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # such as a list in place of an object
            return refused(Refusal(400, f"the request cannot be handled: {error}"))
        return done

    def _admit(self, request: ApiRequest, user: str) -> None:
        if self._token and user != self._token:
            raise Refusal(401, "Unauthorized")
        if self._guard:
            watch = request.query.get("watch") == "true"
            self._guard.check(user, request.method, parse_path(request.path), watch=watch)

    # Without sockets: this is an ``ApiServer``.

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """See ``ApiServer``."""
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._serve(_own(request))
        except TimeoutError:
            raise _unreachable(request, "no answer in time") from None
        except CutError as cut:
            raise _unreachable(request, cut) from None
        if isinstance(response, Watch):
            raise TypeError("a watch is opened by stream()")
        return response

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """See ``ApiServer``."""
        try:
            opened = await self._serve(request)
        except CutError as cut:
            raise _unreachable(request, cut) from None
        if isinstance(opened, Watch):
            async with aclosing(self._heard(opened, request, silence_seconds)) as lines:
                yield lines
        elif opened.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(opened, request)
        else:
            yield _lines(opened.body)

    async def _heard(self, watch: Watch, request: ApiRequest, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch; a silent watch is given up as by the HTTP client."""
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
            except CutError as cut:
                raise _unreachable(request, cut) from None

    # Over HTTP.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            body = None if request.method == "GET" else await _body(request)
            asked = ApiRequest(request.method, request.path, dict(request.query), body, request.content_type)
            done = await self._serve(asked, token if scheme.lower() == "bearer" else "")
            if isinstance(done, Watch):
                return await self._show(done, request, self._accepted(asked, request))
        except Refusal as refusal:
            done = refused(refusal)
        except CutError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)  # never sent
        if request.method == "GET" and done.status == HTTPStatus.OK and (made := self._accepted(asked, request)):
            done = replace(done, body=msgspec.json.encode(made(msgspec.json.decode(done.body))))
        is_text = request.path == OLD_OPENAPI or (request.path.endswith("/log") and done.status == HTTPStatus.OK)
        content_type = "text/plain" if is_text else "application/json"
        return web.Response(body=done.body, status=done.status, content_type=content_type)

    def _accepted(self, asked: ApiRequest, request: web.Request) -> Callable[[AnyJson], AnyJson] | None:
        """See `shown`."""
        return shown(self._objects, asked, as_table="as=Table" in request.headers.get("Accept", ""))

    async def _show(
        self, watch: Watch, request: web.Request, made: Callable[[AnyJson], AnyJson] | None
    ) -> web.StreamResponse:
        """Stream a watch until it ends or the client leaves."""
        spoken = web.StreamResponse(headers={"Content-Type": "application/json"})
        with suppress(ConnectionError):  # the client left
            await spoken.prepare(request)
            if self._runner is None:  # stop() would wait for this handler
                raise CutError
            async with aclosing(watch.lines()) as lines:
                async for line in lines:
                    if request.transport is None or request.transport.is_closing():
                        break
                    if line:
                        await spoken.write(_made_of(line, made) if made else line)
        return spoken


def _made_of(line: bytes, made: Callable[[AnyJson], AnyJson]) -> bytes:
    """A line of a watch, its object converted by ``made``."""
    event = msgspec.json.decode(line)
    if event["type"] in {"ADDED", "MODIFIED", "DELETED"}:
        event["object"] = made(event["object"])
    return msgspec.json.encode(event) + b"\n"


async def _body(request: web.Request) -> AnyJson:
    data = await request.read()
    if not data:
        return {}
    try:
        if request.content_type == _PROTOBUF:
            return read_protobuf(data)
        if request.content_type == _APPLY_PATCH:
            raise Refusal(415, "it is not simulated: apply without --server-side")
        if request.content_type not in (JSON, *PATCHES):
            raise unsupported(JSON, *PATCHES)
        kind = list if request.content_type == JSON_PATCH else dict
        body: AnyJson = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise Refusal(400, f"the object provided is unrecognized (must be of type JSON): {error}") from error
    except ValueError as error:
        parse_path(request.path)  # refuses a kind that is not served
        raise Refusal(400, f"the request cannot be handled: {error}") from error
    return body


def _own(request: ApiRequest) -> ApiRequest:
    """A copy of a request: the caller may change its own body later."""
    if request.body is None:
        return request
    return replace(request, body=msgspec.json.decode(msgspec.json.encode(request.body)))


def _unreachable(request: ApiRequest, why: str | CutError) -> UnreachableError:
    unsent = isinstance(why, UnsentError)
    cause = "connection refused" if unsent else "cut" if isinstance(why, CutError) else why
    return UnreachableError(request.method, request.path, cause, may_have_arrived=not unsent)


async def _lines(body: bytes) -> AsyncIterator[bytes]:
    for line in body.splitlines():
        yield line


def _put_end(inbox: Inbox, item: ObjectChange | Exception | None) -> None:
    if isinstance(item, Exception):
        asyncio.Queue.put_nowait(inbox, item)
