"""A simulated Kubernetes API server, for the demo, tests and planning.

It keeps pods, nodes, leases and events in memory and speaks their API over HTTP on loopback: lists with selectors and
pages, watches with bookmarks and everything that ends them, bindings, patches, preconditions, graceful deletion. It
promises what Kubernetes 1.36 documents and does for the few calls that this project makes, and nothing about others.
There is no admission, no validation and no garbage collection, and every client is let in.

    api = SimulatedApiServer()
    await api.start()
    api.create_node({"metadata": {"name": "worker-1"}})
    api.create_pod({"metadata": {"name": "a"}, "spec": {"containers": []}})
    api.bind("default", "a", node="worker-1", annotations={"NEURON_DEVS": "0"})
    kubeconfig = api.write_kubeconfig(directory / "kubeconfig")

Objects handed out are the server's own: read them, do not change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import JSON, STRATEGIC_MERGE_PATCH, Response
from neuron_plugin.simulation.api_server_kinds import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    AnyJson,
    Refusal,
    ServedKind,
    Target,
    label_selector,
    parse_path,
)
from neuron_plugin.simulation.api_server_kubectl import core_events, discovery, read_protobuf, table
from neuron_plugin.simulation.api_server_objects import Admission, ApiObjects
from neuron_plugin.simulation.api_server_patches import PATCHES
from neuron_plugin.simulation.api_server_requests import answer, refused, unsupported, watch_of
from neuron_plugin.simulation.api_server_store import CutError, Inbox, Watch

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path


__all__ = ["EVENTS", "LEASES", "NODES", "PODS", "SimulatedApiServer"]

_CORE_EVENTS = re.compile(r"/api/v1(?:/namespaces/([^/]+))?/events")
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_LOOPBACK = "127.0.0.1"
_MAX_BODY_BYTES = 4 << 20
"""Of a request."""
_TURNS_OF_AN_ACCEPT = 5
"""Turns of the event loop from accepting a connection until aiohttp knows of it: three in asyncio, and some."""


class SimulatedApiServer:
    """The server. Its methods play all others: users, schedulers, kubelets.

    It listens on a free port, and keeps it over ``stop`` and ``start``. ``admit_pod`` makes of each new pod what is
    stored.
    """

    def __init__(self, admit_pod: Admission | None = None) -> None:
        self._objects = ApiObjects(admit_pod)
        self._bookmark_seconds = 60.0
        self._tls: ssl.SSLContext | None = None
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None

    async def start(self) -> None:
        """Listen, after a ``stop`` again on the same port and with the same objects."""
        self._runner = web.AppRunner(self._application(), shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        self._listening = socket.create_server((_LOOPBACK, self._port))
        self._port = self._listening.getsockname()[1]
        await web.SockSite(self._runner, self._listening, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Stop listening and cut all watches."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self._send_to_watches(CutError())
            # asyncio (3.11) leaks, open, a connection whose server is closed between its acceptance and its
            # announcement; its client would wait for ever. So accept no more, and let the accepted ones arrive.
            if self._listening is not None:
                asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            await runner.cleanup()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self._port}"

    def write_kubeconfig(self, path: Path, user: str = "") -> Path:
        """Write a kubeconfig for this server and return its path (mode 0600); the user's token is its name."""
        config: AnyJson = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulated",
            "clusters": [{"name": "simulated", "cluster": {"server": self.url}}],
            "users": [{"name": "simulated", "user": {"token": user} if user else {}}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}],
        }
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(config))  # JSON is YAML
        return path

    # What users, schedulers and kubelets do.

    def create_pod(self, manifest: AnyJson) -> AnyJson:
        """Create a pod, in namespace ``default`` unless its metadata says otherwise; a UID given is kept."""
        return self.create(PODS, manifest, "default")

    def create_node(self, manifest: AnyJson) -> AnyJson:
        """Create a node."""
        return self.create(NODES, manifest, "")

    def bind(self, namespace: str, name: str, *, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod, as a scheduler would."""
        metadata: AnyJson = {"name": name, "annotations": dict(annotations or {})}
        self._objects.bind(namespace, name, {"metadata": metadata, "target": {"kind": "Node", "name": node}})

    def patch_status(self, kind: ServedKind, name: str, status: AnyJson, namespace: str = "") -> AnyJson:
        """Change an object's status; of its conditions those of the given types."""
        target = Target(kind, namespace, name, "status")
        return self._objects.patch(target, {"status": status}, STRATEGIC_MERGE_PATCH).value

    def change(
        self, kind: ServedKind, name: str, change: AnyJson, namespace: str = "", subresource: str = ""
    ) -> AnyJson:
        """Merge a change into an object, or with ``part`` into one of its subresources.

        Raises:
            Refusal: 404, there is none; 422, it would break a rule.
        """
        return self._objects.patch(Target(kind, namespace, name, subresource), change).value

    def delete(self, kind: ServedKind, name: str, namespace: str = "") -> None:
        """Delete an object; one with finalizers only begins to go."""
        self._objects.delete(Target(kind, namespace, name))

    def delete_pod(self, namespace: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod.

        On a node it only begins to end, unless ``grace_seconds`` is 0, as from its kubelet at the end.
        """
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._objects.delete(Target(PODS, namespace, name), options)

    def get(self, kind: ServedKind, name: str, namespace: str = "") -> AnyJson:
        """Return an object.

        Raises:
            Refusal: 404, there is none.
        """
        return self._objects.read(Target(kind, namespace, name)).value

    def objects(self, kind: ServedKind) -> list[AnyJson]:
        """Return all objects of a kind, by namespace and name."""
        return [stored.value for stored in self._objects.collections[kind].objects()]

    def follow(self, *kinds: ServedKind) -> Inbox:
        """Return all changes of these kinds from now on, in their order."""
        inbox = Inbox()
        for kind in kinds:
            self._objects.collections[kind].followers.add(inbox)
        return inbox

    def unfollow(self, inbox: Inbox) -> None:
        """Put no more changes into what `follow` returned."""
        for collection in self._objects.collections.values():
            collection.followers.discard(inbox)

    def create(self, kind: ServedKind, manifest: AnyJson, namespace: str) -> AnyJson:
        """Create an object, in ``namespace`` unless its metadata says otherwise; a UID given is kept."""
        namespace = (manifest.get("metadata") or {}).get("namespace", namespace)
        return self._objects.create(kind, manifest, namespace).value

    def _send_to_watches(self, what: Exception | None) -> None:
        for collection in self._objects.collections.values():
            for inbox in collection.followers:
                inbox.put_nowait(what)

    # Requests.

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            events = _CORE_EVENTS.fullmatch(request.path) if request.method == "GET" else None
            if request.method == "GET" and (document := discovery(request.path)):
                return _json(document)
            if events:  # as kubectl asks for them: events as /api/v1 has them
                labelled = label_selector(request.query.get("labelSelector", ""))
                wanted = request.query.get("fieldSelector", "")
                listed = core_events(filter(labelled, self.objects(EVENTS)), events[1] or "", wanted)
                listed["metadata"]["resourceVersion"] = str(self._objects.collections[EVENTS].version)
                as_table = "as=Table" in request.headers.get("Accept", "")
                return _json(table(EVENTS, listed) if as_table else listed)
            return await self._serve(request)
        except Refusal as refusal:
            return http_answer(refused(refusal))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a list for an object, say
            return http_answer(refused(Refusal(400, f"the request cannot be handled: {error}")))
        except CutError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)  # never sent

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        target, query = parse_path(request.path), dict(request.query)
        body = None if request.method == "GET" else await _body(request)
        asked = ApiRequest(request.method, request.path, query, body, request.content_type)
        if watch := watch_of(self._objects, asked, self._bookmark_seconds):
            return await self._show(watch, request)
        response = answer(self._objects, asked)
        if request.method == "GET" and "as=Table" in request.headers.get("Accept", ""):
            return _json(table(target.kind, msgspec.json.decode(response.body), self.objects(PODS)))
        return http_answer(response)

    async def _show(self, watch: Watch, request: web.Request) -> web.StreamResponse:
        """Speak until the watch ends, or the client has left."""
        shown = web.StreamResponse(headers={"Content-Type": "application/json"})
        with contextlib.suppress(ConnectionError):  # the client left
            await shown.prepare(request)
            if self._runner is None:  # it would be waited for
                raise CutError
            async with contextlib.aclosing(watch.lines()) as lines:
                async for line in lines:
                    if request.transport is None or request.transport.is_closing():
                        break
                    if line:
                        await shown.write(line)
        return shown


async def _body(request: web.Request) -> AnyJson:
    data = await request.read()
    if not data:
        return {}
    if request.content_type == _PROTOBUF:
        return read_protobuf(data)
    if request.content_type not in (JSON, *PATCHES):
        raise unsupported(JSON, *PATCHES)
    try:
        return msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise Refusal(400, f"the object provided is unrecognized (must be of type JSON): {error}") from error


def _json(value: AnyJson, status: int = 200) -> web.Response:
    return http_answer(Response(status, msgspec.json.encode(value)))


def http_answer(response: Response) -> web.Response:
    return web.Response(body=response.body, status=response.status, content_type="application/json")
