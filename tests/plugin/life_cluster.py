"""What stands around a node in its random life: virtual time, the pods as they really are, the API server."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Any

from neuron_plugin.allocation import ContainerKind, NodeInventory, Rejection
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.placement import assignment_of, place
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.requests import ContainerSpec, pod_request
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, Reflector, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.plugin.pod_watch import PodWatch
from neuron_plugin.topology import cores_in
from tests.plugin.world import ApiPod


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else is to be done."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_NothingToWaitFor(self))

    def time(self) -> float:
        return self.now


class _NothingToWaitFor(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for another one")
        self._loop.now += timeout
        return []


class State(Enum):
    """Where a pod is with its kubelet."""

    BOUND = auto()
    ADMITTED = auto()
    RUNNING = auto()
    STOPPED = auto()
    REJECTED = auto()


@dataclass(eq=False)
class LifePod:
    """A pod as it really is. ``uid`` is the kubelet's, ``mirror_uid`` that of a static pod's mirror, if there is one.

    ``given`` is what each container really received, in physical cores. ``populated`` is what its cgroup says: there
    may be a sandbox left when no container uses a device any more. ``initialized``: its init containers have ended.
    ``removed``: its API object, or its manifest, is
    gone. ``unrecorded``: the kubelet has lost a record of it. ``unseen``: the plugin has no way to know what the pod
    has. ``core_size`` is the LNC at the last answer.
    """

    name: str
    uid: str
    containers: tuple[ContainerSpec, ...]
    static: bool = False
    mirror_uid: str = ""
    state: State = State.BOUND
    given: dict[str, int] = field(default_factory=dict)
    ever_given: int = 0
    processes: bool = False
    opened: bool = False
    initialized: bool = False
    populated: bool = False
    removed: bool = False
    leaving: bool = False
    unrecorded: bool = False
    unseen: bool = False
    admitting: bool = False
    core_size: int = 1
    last_mask: int = 0

    def __str__(self) -> str:
        return f"{self.name}/{self.uid[:4]}"

    @property
    def used(self) -> int:
        """The physical cores that the pod uses, or is about to use."""
        going_on = (self.admitting or not self.removed) and self.state in {State.BOUND, State.ADMITTED, State.RUNNING}
        mask = 0
        for spec in self.containers if self.processes or going_on else ():
            ended = self.initialized and spec.kind is ContainerKind.INIT
            mask |= 0 if ended else self.given.get(spec.name, 0)
        return mask

    @property
    def mask_of_all_given(self) -> int:
        mask = 0
        for given in self.given.values():
            mask |= given
        return mask

    @property
    def mask(self) -> int:
        """The physical cores that no other pod may have now."""
        return 0 if self.unseen else self.used


def physical(inventory: NodeInventory, mask: int) -> int:
    """Logical cores as physical ones: core ``c`` of size ``n`` is the physical cores from ``c * n`` on."""
    size = inventory.logical_core_size
    if size == 1:
        return mask
    return sum(((1 << size) - 1) << core * size for core in cores_in(mask))


class ApiServerModel:
    """The objects of one node, the log of their changes, and whether anybody can be reached."""

    def __init__(self, chance: Random, note: Callable[[str], None], lag_seconds: float) -> None:
        self.up = True
        self.version = 1
        self.pods: dict[str, tuple[int, ApiPod]] = {}
        self.inventory: NodeInventory | None = None
        self.stalled_until = 0.0
        """Until then no watch delivers anything, though it looks alive."""
        self.log: list[tuple[int, str, ApiPod | None, float]] = []
        self.changed = asyncio.Event()
        self._chance = chance
        self._note = note
        self._lag_seconds = lag_seconds

    def put(self, pod: ApiPod) -> None:
        self.version += 1
        self.pods[pod.uid] = (self.version, pod)
        self._log(pod.uid, pod)

    def change(self, uid: str, **fields: object) -> None:
        if uid in self.pods:
            self.put(replace(self.pods[uid][1], **fields))  # type: ignore[arg-type]

    def remove(self, uid: str) -> None:
        if self.pods.pop(uid, None):
            self.version += 1
            self._log(uid, None)

    def _log(self, uid: str, pod: ApiPod | None) -> None:
        due = asyncio.get_running_loop().time() + self._chance.expovariate(1) * self._lag_seconds
        self.log.append((self.version, uid, pod, due))
        del self.log[:-500]
        self.changed.set()

    def list_pods(self) -> tuple[int, dict[str, tuple[int, ApiPod]]]:
        return self.version, dict(self.pods)

    # The plugin's writes.

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:  # noqa: ARG002 - the protocol's
        await asyncio.sleep(self._chance.expovariate(1) * (0.005 + self._lag_seconds))
        if not self.up or self._chance.random() < 0.01:
            raise UnreachableError(request.method, request.path, "away", may_have_arrived=False)
        assert request.body is not None
        metadata = request.body.get("metadata")
        if request.method == "PATCH" and isinstance(metadata, Mapping):
            annotations = metadata.get("annotations") or {}
            assert isinstance(annotations, Mapping)
            if "/pods/" not in request.path:
                self.inventory = read_inventory(annotations["neuron-plugin.io/inventory"])
            else:
                known = self.pods.get(str(metadata["uid"]))
                if known is None:
                    return Response(404, b"{}")
                merged = {**known[1].annotations, **annotations}
                self.put(replace(known[1], annotations={key: text for key, text in merged.items() if text is not None}))
                self._note(f"annotated {known[1].name} {dict(annotations)}")
        return Response(200, b"{}")

    # The extender.

    def assignment_for(self, containers: tuple[ContainerSpec, ...]) -> dict[str, str] | None:
        """The annotations with which the extender binds a pod here; None if it does not fit, or the node is closed."""
        if self.inventory is None:
            return None
        geometry, free = self.inventory.geometry, int(self.inventory.healthy_mask)
        for _, other in self.pods.values():
            pod = neuron_pod(other.wire)
            if pod.ended or not pod.requests:
                continue
            assigned = assigned_allocations(pod, geometry)
            if isinstance(assigned, Rejection):
                return None
            free &= ~mask_union(assigned)
        placement = place(geometry, free, pod_request(containers))
        time_ns = int(asyncio.get_running_loop().time() * 1e9)
        return (
            None if isinstance(placement, Rejection) else write_assignment(assignment_of(geometry, placement, time_ns))
        )


class PodWatchModel:
    """Feeds a daemon's real ``PodWatch`` from the model, as its reflector does."""

    def __init__(self, api: ApiServerModel, watch: PodWatch, chance: Random) -> None:
        self._api = api
        self._watch = watch
        self._chance = chance

    async def run(self) -> None:
        await asyncio.sleep(self._chance.random())
        loop = asyncio.get_running_loop()
        clock = Clock(now=loop.time, chance=self._chance.random)
        keep: Any = lambda pod: neuron_pod(pod.wire)  # noqa: E731 - the model's pods in place of the wire's
        self._reflector = Reflector(self._api, PODS, keep, observer=self._watch, clock=clock)  # type: ignore[arg-type]
        self._reflector._list = self._list  # type: ignore[method-assign]
        self._reflector.subscribe(self._watch._changed)
        self._watch._reflector = self._reflector
        self._watch.tried.set()
        must_list = True
        while True:
            try:
                if must_list:
                    await self._list()
                await self._follow()
            except UnreachableError:
                await asyncio.sleep(0.2 + self._chance.random())
            must_list = not self._reflector.synced.is_set() or self._chance.random() < 0.3

    async def _list(self) -> None:
        loop = asyncio.get_running_loop()
        reflector, began = self._reflector, loop.time()
        version_before = reflector._store.version
        await asyncio.sleep(self._chance.random() * 0.02)
        if not self._api.up:
            await asyncio.sleep(self._chance.choice((0.0, 5.0)))
            raise UnreachableError("GET", "pods", "away", may_have_arrived=False)
        version, pods = self._api.list_pods()
        await asyncio.sleep(self._chance.random() * 0.05)
        values = {uid: neuron_pod(pod.wire) for uid, (_, pod) in pods.items()}
        reflector._store.replace(values, version, version_at_start=version_before)
        reflector.listed_at = max(began, began if reflector.listed_at is None else reflector.listed_at)
        reflector.synced.set()
        self._watch.listed("pods", len(values), loop.time() - began)

    async def _follow(self) -> None:
        """Deliver the log in order, each event when it is due, until the watch breaks."""
        loop, store = asyncio.get_running_loop(), self._reflector._store
        ends_at = loop.time() + self._chance.uniform(5, 300)
        seen = store.version
        while loop.time() < ends_at:
            if not self._api.up:
                raise UnreachableError("GET", "pods", "broken off", may_have_arrived=False)
            self._api.changed.clear()
            for version, uid, pod, due in self._events_after(seen):
                await asyncio.sleep(max(0.0, max(due, self._api.stalled_until) - loop.time()))
                if not self._api.up:
                    raise UnreachableError("GET", "pods", "broken off", may_have_arrived=False)
                seen = version
                store.put(uid, version, None if pod is None else neuron_pod(pod.wire))
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._api.changed.wait()
            except TimeoutError:
                return

    def _events_after(self, seen: int) -> Iterator[tuple[int, str, ApiPod | None, float]]:
        place = len(self._api.log)
        while place and self._api.log[place - 1][0] > seen:
            place -= 1
        return iter(self._api.log[place:])


def mirror_of(pod: LifePod) -> ApiPod:
    """The object that a kubelet makes for a static pod."""
    keys = {"kubernetes.io/config.hash": pod.uid}
    started = pod.state is State.RUNNING
    return ApiPod(pod.name, pod.containers, keys, pod.mirror_uid, "Running" if started else "Pending", started)
