"""A simulated Kubernetes API server, for the demo, tests and planning.

It keeps pods, nodes, leases and events in memory and speaks their API over HTTP on loopback: lists with selectors and
pages, watches with bookmarks and everything that ends them, bindings, patches, preconditions, graceful deletion. It
promises what Kubernetes 1.36 documents and does for the few calls that this project makes, and nothing about others.
There is no admission, no validation of specs and no garbage collection.

    async with StandInApiServer() as api:
        api.create_node({"metadata": {"name": "worker-1"}})
        api.create_pod({"metadata": {"name": "a"}, "spec": {"containers": []}})
        api.bind("default", "a", node="worker-1", annotations={"NEURON_DEVS": "0"})
        kubeconfig = api.write_kubeconfig(directory / "kubeconfig")

Objects handed out are the server's own: read them, do not change them.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from typing import TYPE_CHECKING, Self

import msgspec
from aiohttp import web

from neuron_plugin.cluster import MERGE_PATCH
from neuron_plugin.simulation.api_server_http import ApiHttp, Fault, Guard, SeenRequest
from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, JsonObject, ServedKind, Target
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_watch import WatchList

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["EVENTS", "LEASES", "NODES", "PODS", "StandInApiServer"]

_LOOPBACK = "127.0.0.1"
_TURNS_OF_AN_ACCEPT = 5
"""Turns of the event loop from accepting a connection until aiohttp knows of it: three in asyncio, and some."""


class StandInApiServer:
    """The server. Its methods play all others: users, schedulers, kubelets.

    An empty ``token`` lets every client in. It listens on a free port, and keeps it over ``stop`` and ``start``.
    ``watch_list`` says how it takes requests for ``sendInitialEvents``. With ``tls`` it serves HTTPS; ``ca`` is then
    the PEM text of the authority that clients are to trust.
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
        self._objects = ApiObjects()
        self._http = ApiHttp(self._objects, token=token, watch_list=watch_list)
        self._http.watches.bookmark_seconds = bookmark_seconds
        self._tls = tls
        self._ca = ca
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None

    # Life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, after a ``stop`` again on the same port and with the same objects."""
        self._http.watches.stopping = False
        self._runner = web.AppRunner(self._http.application(), shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        self._listening = socket.create_server((_LOOPBACK, self._port))
        self._port = self._listening.getsockname()[1]
        await web.SockSite(self._runner, self._listening, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Stop listening and cut all watches."""
        if self._runner is not None:
            self._http.watches.stopping = True  # a watch that is just being opened would be waited for
            self.cut_watches()
            # asyncio (3.11) leaks, open, a connection whose server is closed between its acceptance and its
            # announcement; its client would wait for ever. So accept no more, and let the accepted ones arrive.
            if self._listening is not None:
                asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self._port}"

    def guard_by(self, guard: Guard) -> None:
        """Ask ``guard`` about every request from now on."""
        self._http.guard = guard

    def write_kubeconfig(self, path: Path, user: str = "") -> Path:
        """Write a kubeconfig for this server and return its path (mode 0600): its CA, and its token or the user's."""
        token = user or self._http.token
        cluster: JsonObject = {"server": self.url}
        if self._ca:
            cluster["certificate-authority-data"] = base64.b64encode(self._ca.encode()).decode()
        config: JsonObject = {
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
        """Change the token at once; a certificate and its CA at the next ``start``."""
        self._http.token = token or self._http.token
        self._tls = tls or self._tls
        self._ca = ca or self._ca

    # What users, schedulers and kubelets do.

    def create_pod(self, manifest: JsonObject) -> JsonObject:
        """Create a pod, in namespace ``default`` unless its metadata says otherwise; a UID given is kept."""
        return self._create(PODS, manifest, "default")

    def create_node(self, manifest: JsonObject) -> JsonObject:
        """Create a node."""
        return self._create(NODES, manifest, "")

    def bind(self, namespace: str, name: str, *, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod, as a scheduler would."""
        metadata: JsonObject = {"name": name, "annotations": dict(annotations or {})}
        self._objects.bind(namespace, name, {"metadata": metadata, "target": {"kind": "Node", "name": node}})

    def patch_pod(self, namespace: str, name: str, change: JsonObject) -> JsonObject:
        """Merge-patch a pod, as a user would."""
        return self._objects.patch(Target(PODS, namespace, name), change, MERGE_PATCH).value

    def set_pod_status(self, namespace: str, name: str, status: JsonObject) -> JsonObject:
        """Merge-patch a pod's status, as a kubelet would: ``{"phase": "Running"}``."""
        return self._objects.patch(Target(PODS, namespace, name, "status"), {"status": status}, MERGE_PATCH).value

    def patch_node(self, name: str, change: JsonObject, *, status: bool = False) -> JsonObject:
        """Merge-patch a node, or its status."""
        return self._objects.patch(Target(NODES, "", name, "status" if status else ""), change, MERGE_PATCH).value

    def delete_pod(self, namespace: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod.

        On a node it only begins to end, unless ``grace_seconds`` is 0, as from its kubelet at the end.
        """
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._objects.delete(Target(PODS, namespace, name), options)

    def delete_node(self, name: str) -> None:
        """Delete a node."""
        self._objects.delete(Target(NODES, "", name))

    def get(self, kind: ServedKind, name: str, namespace: str = "") -> JsonObject:
        """Return an object.

        Raises:
            Refusal: 404, there is none.
        """
        return self._objects.read(Target(kind, namespace, name)).value

    def objects(self, kind: ServedKind) -> list[JsonObject]:
        """Return all objects of a kind, by namespace and name."""
        return [stored.value for stored in self._objects.collections[kind].snapshot().objects]

    # Faults.

    def fail(self, fault: Fault) -> None:
        """Let a fault happen to the next requests that match it."""
        self._http.faults.append(fault)

    def forgive(self) -> None:
        """Remove all faults that have not happened yet."""
        self._http.faults.clear()

    def compact(self) -> None:
        """Forget the history: watches from older versions and further pages of older lists get a 410.

        Open watches stay.
        """
        for collection in self._objects.collections.values():
            collection.compact()

    def expire_watches(self) -> None:
        """End all open watches with a 410 inside the stream."""
        for collection in self._objects.collections.values():
            collection.expire_followers()

    def end_watches(self) -> None:
        """End all open watches cleanly."""
        self._http.watches.endings += 1
        self._wake_watches()

    def cut_watches(self) -> None:
        """Cut the connections of all open watches."""
        self._http.watches.cuts += 1
        self._wake_watches()

    def send_bookmarks(self) -> None:
        """Send a bookmark on every open watch that asked for them, now."""
        self._http.watches.bookmarks += 1
        self._wake_watches()

    def mute_watches(self, *, muted: bool = True) -> None:
        """Keep watches open and silent, as behind a dead connection; what they leave out is never sent."""
        self._http.watches.muted = muted

    def drop_binding_annotations(self) -> None:
        """Forget the annotations of bindings from now on."""
        self._objects.keep_binding_annotations = False

    @property
    def requests(self) -> list[SeenRequest]:
        """The latest requests, oldest first."""
        return list(self._http.seen)

    @property
    def open_watches(self) -> int:
        """How many watches are being served."""
        return self._http.watches.open

    def _create(self, kind: ServedKind, manifest: JsonObject, namespace: str) -> JsonObject:
        namespace = (manifest.get("metadata") or {}).get("namespace", namespace)
        return self._objects.create(kind, manifest, namespace).value

    def _wake_watches(self) -> None:
        for collection in self._objects.collections.values():
            collection.wake()
