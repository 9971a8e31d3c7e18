"""The API server of a simulated node's life, whose watches show what happened as late as chance has it.

Plugin and extender follow it through the store they really use, so an event that a consistent list has overtaken, a
watch that was silent and a list in its place all come as they come in a cluster.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from neuron_plugin.allocation import INVENTORY_KEY, PodUid
from neuron_plugin.cluster import ApiError, ApiRequest, Pod, Response, UnreachableError
from neuron_plugin.cluster.reflector import Store
from tests.plugin.life_pods import LivePod, Shape

V = TypeVar("V")


class Watch(Generic[V]):
    """What one follower has been told; ``silent`` while its connection is broken."""

    def __init__(self, cluster: Cluster, keep: Callable[[Pod], V | None], *, of_node: bool) -> None:
        self.store: Store[V] = Store()
        self.silent = False
        self._cluster = cluster
        self._keep = keep
        self._of_node = of_node
        self._events: deque[tuple[int, PodUid, Pod | None]] = deque()
        cluster.watches.append(self)

    @property
    def behind(self) -> int:
        """How many events are still on their way."""
        return len(self._events)

    def tell(self, version: int, uid: PodUid, shown: Pod | None) -> None:
        """Something happened."""
        if shown is None or shown.node_name or not self._of_node:
            self._events.append((version, uid, shown))

    def deliver(self, most: int = 1) -> None:
        """Some of it arrives."""
        while self._events and most > 0 and not self.silent:
            version, uid, shown = self._events.popleft()
            if shown is None:
                self.store.remove(uid, version)
            else:
                self.store.put(uid, version, self._keep(shown))
            most -= 1

    def relist(self) -> None:
        """The events are lost; a consistent list takes their place."""
        self._events.clear()
        self.list_consistently()

    def list_consistently(self) -> None:
        """A list beside the watch, whose events come all the same."""
        shown = [pod.record() for pod in self._cluster.pods.values() if pod.bound or not self._of_node]
        kept = ((record.uid, self._keep(record)) for record in shown)
        entries = {uid: (self._cluster.versions[PodUid(uid)], value) for uid, value in kept if value is not None}
        self.store.replace(entries, self._cluster.version, version_at_start=self.store.version)


class Cluster:
    """Pods by name, as stored; what the plugin sends and what the extender binds ends here."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.pods: dict[str, LivePod] = {}
        self.version = 1
        self.versions: dict[PodUid, int] = {}
        self.watches: list[Watch[Any]] = []
        self.inventory = ""
        self.away_from_plugin = False
        self.binds_fail = 0.0
        self._numbers = itertools.count(1)

    # What users and controllers do.

    def create(self, name: str, shape: Shape) -> LivePod:
        """A pod, not bound yet."""
        pod = self.pods[name] = LivePod(name, PodUid(f"uid-{next(self._numbers)}"), shape)
        self.tell(pod)
        return pod

    def assign(self, pod: LivePod, annotations: Mapping[str, str]) -> None:
        """What the binding subresource does."""
        pod.bound = pod.active = True
        pod.annotations = {**pod.annotations, **annotations}
        self.tell(pod)

    def remove(self, pod: LivePod) -> None:
        """The object is gone."""
        del self.pods[pod.name]
        pod.stored = False
        self.tell(pod)
        del self.versions[pod.uid]

    def tell(self, pod: LivePod) -> None:
        """It has changed: every watch will show it as it is now."""
        self.version += 1
        self.versions[pod.uid] = self.version
        shown = pod.record() if pod.stored else None
        for watch in self.watches:
            watch.tell(self.version, pod.uid, shown)

    # What the plugin sends: cluster.api.ApiServer.

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        if self.away_from_plugin:
            raise UnreachableError(request.method, request.path, "an outage", may_have_arrived=False)
        kind, _, name = request.path.removesuffix("/status").rpartition("/")
        metadata: Any = (request.body or {}).get("metadata", {})
        if kind.endswith("/nodes"):
            self.inventory = metadata["annotations"][INVENTORY_KEY]
        elif kind.endswith("/pods"):
            return self._patch(name, metadata)
        return Response(200, b"{}")

    def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError("the watches are told directly")

    def _patch(self, name: str, metadata: Any) -> Response:
        pod = self.pods.get(name)
        if pod is None:
            return Response(404, b'{"reason": "NotFound"}')
        if pod.uid != metadata["uid"]:
            return Response(422, b'{"reason": "Invalid", "message": "metadata.uid: field is immutable"}')
        changed = {**pod.annotations, **metadata["annotations"]}
        pod.annotations = {key: value for key, value in changed.items() if value is not None}
        self.tell(pod)
        return Response(200, b"{}")

    # What the extender's binds ask for.

    def bind(self, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        fate = self.chance.random()
        if fate < self.binds_fail:
            raise _refused(500, "etcdserver: request timed out")
        found = self.pods.get(name)
        if found is None or found.uid != uid or found.bound:
            raise _refused(409, "precondition failed")
        self.assign(found, annotations)
        if fate < self.binds_fail * 2:
            raise UnreachableError("POST", "/binding", "no answer", may_have_arrived=True)

    def read(self, name: str) -> Response:
        found = self.pods.get(name)
        if found is None:
            return Response(404, b'{"reason": "NotFound"}')
        return Response(200, msgspec.json.encode(found.record()))


def _refused(status: int, message: str) -> ApiError:
    return ApiError(status=status, reason="Test", message=message, method="POST", path="/binding")
