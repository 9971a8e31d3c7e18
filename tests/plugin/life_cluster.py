"""What stands around a node in its random life: virtual time, the pods as they really are, the API server."""

from __future__ import annotations

import asyncio
import random
import selectors
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from random import Random

import msgspec

from neuron_plugin.allocation import ContainerKind, NeuronPod, NodeInventory, Rejection
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.allocation.placement import assignment_of, place
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.requests import ContainerSpec, pod_request
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, Reflector, Scope
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.pods import PODS as DECODED
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.cluster.reflector import Pace
from neuron_plugin.plugin.pod_watch import PodWatch
from neuron_plugin.simulation.api_server_kinds import NODES, PODS
from neuron_plugin.simulation.api_server_store import Inbox, ObjectChange, Watch
from neuron_plugin.topology import cores_in
from tests.plugin.world import ApiPod
from tests.support.api_server import Fault, StandInApiServer

NODE = "worker-1"


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


class Violation(AssertionError):  # noqa: N818 - it is the word for it
    """Something that must never happen."""


class AnyLife(ABC):
    """What two kinds of lives have in common: chance, an API server, what was seen, and one step after the other."""

    actions: Sequence[tuple[Callable[[], None], float]]
    pauses: tuple[float, ...]

    def __init__(self, seed: int, lag_seconds: float) -> None:
        random.seed(seed)  # what the daemon's back-off draws from
        self.chance = Random(seed)  # noqa: S311 - a life that can be lived again
        self.seen: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=60)
        self.violations: list[BaseException] = []
        self.api = LifeApi(self.chance, self.note, lag_seconds)
        self._loop = asyncio.get_running_loop()
        self._numbers = 0

    def note(self, text: str) -> None:
        self.trace.append(f"{self._loop.time():9.3f} {text}")

    def task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.violations.append(error)

    async def step(self) -> None:
        self.chance.choices(*zip(*self.actions, strict=True))[0]()
        await asyncio.sleep(self.chance.choice(self.pauses) * self.chance.random())
        self.check()

    @abstractmethod
    def check(self) -> None:
        """See whether something has happened that must never happen.

        Raises:
            Violation: it has.
        """


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


class LifeApi(StandInApiServer):
    """The API server of one node: slow, at times away, with watches that lag, stall and end."""

    def __init__(self, chance: Random, note: Callable[[str], None], lag_seconds: float) -> None:
        super().__init__()
        self.stalled_until = 0.0
        """Until then no watch delivers anything, though it looks alive."""
        self._chance = chance
        self._note = note
        self._lag_seconds = lag_seconds
        self._due = _Due(chance, lag_seconds)
        self._objects.collections[PODS].followers.add(self._due)
        self._shown: tuple[int, dict[str, NeuronPod]] = (0, {})
        self.create_node({"metadata": {"name": NODE}})

    # Pods, by UID.

    @property
    def pods(self) -> dict[str, NeuronPod]:
        version = self._objects.versions.current
        if version != self._shown[0]:
            found = (_decoded(stored.encoded) for stored in self._objects.collections[PODS].objects())
            self._shown = version, {pod.uid: pod for pod in found}
        return self._shown[1]

    def annotations(self, uid: str) -> dict[str, str]:
        return dict(self.get(PODS, self.pods[uid].reference.name, "default")["metadata"].get("annotations") or {})

    def put(self, pod: ApiPod) -> None:
        self.create_pod(msgspec.to_builtins(pod.wire))

    def show(self, uid: str, phase: str, *, started: bool | None = None, running: bool | None = None) -> None:
        """What a kubelet says of a pod and its containers; None stays as it is."""
        if pod := self.pods.get(uid):
            started = pod.life.started if started is None else started
            running = pod.running if running is None else running
            status = ApiPod("", phase=phase, started=started, running=running).wire.status
            self.set_pod_status("default", pod.reference.name, msgspec.to_builtins(status))

    def remove(self, uid: str) -> None:
        if pod := self.pods.get(uid):
            self.delete_pod("default", pod.reference.name, grace_seconds=0)

    @property
    def inventory(self) -> NodeInventory | None:
        """What the plugin has published."""
        text = (self.get(NODES, NODE)["metadata"].get("annotations") or {}).get(INVENTORY_KEY)
        return read_inventory(text) if text else None

    # Requests.

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        reads = request.method == "GET"
        most = 0.02 if reads else 0.005 + self._lag_seconds
        await asyncio.sleep(self._chance.expovariate(1) * most)
        if self._chance.random() < 0.01:
            self.fail(Fault(unsent=True))
        response = await super().request(request, timeout_seconds=timeout_seconds)
        if reads:
            await asyncio.sleep(self._chance.random() * 0.05)
        else:
            self._note(f"{request.method} {request.path}: {response.status}")
        return response

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        if self._chance.random() < 0.3:
            self.fail(Fault(status=410))
        query = {**request.query, "timeoutSeconds": str(self._chance.randint(5, 300))}
        async with super().stream(replace(request, query=query), silence_seconds=silence_seconds) as lines:
            yield lines

    async def _heard(self, watch: Watch, request: ApiRequest, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        async with aclosing(super()._heard(watch, request, silence_seconds)) as lines:
            async for line in lines:
                due = max(self._due.at.get(watch.version, 0.0), self.stalled_until)
                await asyncio.sleep(max(0.0, due - loop.time()))
                yield line

    # Whether it is there.

    @property
    def up(self) -> bool:
        return not self._faults

    def go_away(self) -> None:
        self.fail(Fault(unsent=True, times=10**9))
        self.cut_watches()

    # The extender.

    def assignment_for(self, containers: tuple[ContainerSpec, ...]) -> dict[str, str] | None:
        """The annotations with which the extender binds a pod here; None if it does not fit, or the node is closed."""
        inventory = self.inventory
        if inventory is None:
            return None
        geometry, free = inventory.geometry, int(inventory.healthy_mask)
        for pod in self.pods.values():
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


@lru_cache(1000)
def _decoded(encoded: bytes) -> NeuronPod:
    return neuron_pod(DECODED.decode(encoded))


class _Due(Inbox):
    """When each change of a pod is to reach the watches, by its version."""

    def __init__(self, chance: Random, lag_seconds: float) -> None:
        super().__init__()
        self.at: dict[int, float] = {}
        self._chance = chance
        self._lag_seconds = lag_seconds

    def put_nowait(self, item: ObjectChange | Exception | None) -> None:
        if isinstance(item, ObjectChange):
            lag = self._chance.expovariate(1) * self._lag_seconds
            self.at[item.version] = asyncio.get_running_loop().time() + lag


async def follow_pods(api: LifeApi, watch: PodWatch, chance: Random) -> None:
    """What ``PodWatch.run`` does for bound pods, on the loop's clock."""
    await asyncio.sleep(chance.random())
    clock = Clock(now=asyncio.get_running_loop().time, chance=chance.random)
    scope, pace = Scope(field_selector=f"spec.nodeName={NODE}"), Pace(backoff_limit=1.2)
    watch._reflector = Reflector(api, DECODED, neuron_pod, scope=scope, pace=pace, observer=watch, clock=clock)
    watch._reflector.subscribe(watch._changed)
    watch.tried.set()
    await watch._reflector.run()


def mirror_of(pod: LifePod) -> ApiPod:
    """The object that a kubelet makes for a static pod."""
    keys = {"kubernetes.io/config.hash": pod.uid}
    started = pod.state is State.RUNNING
    return ApiPod(pod.name, pod.containers, keys, pod.mirror_uid, "Running" if started else "Pending", started)
