"""The kubelet of a node in its random life: the real device manager's model, a checkpoint, admission, and their faults.

It calls the plugin's real gRPC services, without sockets. What each reply gave is kept apart from all records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from neuron_plugin.allocation import ContainerKind, NodeInventory
from neuron_plugin.allocation.requests import ContainerSpec
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.kubelet import PodDevices, PodResourcesAbsentError
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.device_plugin import DevicePluginService
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.container import VISIBLE_CORES
from neuron_plugin.simulation.kubelet_device_manager import AllocationError, ListedDevice, PluginCallError, Selection
from neuron_plugin.topology import Unit
from tests.plugin.life_cluster import LifeApi, LifePod, State, physical
from tests.support.model_kubelet import RESOURCES, ModelKubelet


class RefusedError(PluginCallError):
    """The plugin answered an Allocate with an error."""


class CallContext:
    """A gRPC call as the service sees it."""

    def __init__(self, write: Callable[[Any], None] = lambda message: None) -> None:  # noqa: ARG005 - ignores it
        self._write = write
        self.ended: Callable[[object], None] = lambda context: None  # noqa: ARG005 - ignores it

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.ended = callback

    async def abort(self, _code: object, text: str) -> None:
        raise RefusedError(text)

    async def write(self, message: Any) -> None:
        self._write(message)


@dataclass
class Connection:
    """The plugin as one kubelet process sees it; ``calls`` end when the plugin does."""

    services: Mapping[str, DevicePluginService]
    lost: Callable[[], None]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    calls: set[asyncio.Task[Any]] = field(default_factory=set)


class Kubelet(ModelKubelet):
    """One node's kubelet; ``stop`` and ``start`` are its restarts. ``given`` and ``refused`` report to the life."""

    def __init__(
        self,
        chance: Random,
        api: LifeApi,
        note: Callable[[str], None],
        given: Callable[[], None],
        readmitted: Callable[[LifePod], None],
        refused: Callable[[LifePod, ContainerSpec, str, AllocationError], None],
        numa_affinity: frozenset[int] | None,
    ) -> None:
        super().__init__(chance, numa_affinity=numa_affinity)
        self.up = False
        self.process = 0
        self.started = asyncio.Event()
        """Set by each start."""
        self.pods: dict[str, LifePod] = {}
        self.write_fault = ""
        """"fail", "stall" or "late" for the next write."""
        self.agents_list = 0.0
        """How likely another client lists PodResources in the middle of an Allocate."""
        self.admitting: LifePod | None = None
        self._unwritten: tuple[LifePod, str] | None = None
        self.inventory: Callable[[], NodeInventory]
        self._api = api
        self._note = note
        self._given = given
        self._readmitted = readmitted
        self._refused = refused
        self._masks: dict[bytes, tuple[int, int]] = {}
        self._connection: Connection | None = None
        self._queue: deque[LifePod | None] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sees_api = False
        self._file_lock = asyncio.Lock()
        self._container = asyncio.Lock()
        self._reports: deque[Callable[[], None]] = deque()
        self._reported = asyncio.Event()
        self._reporting = asyncio.create_task(self._report_all(), name="kubelet status")

    # The process.

    def start(self, pods: Iterable[LifePod]) -> None:
        """Begin from the checkpoint, and admit every pod again."""
        self.up, self.process = True, self.process + 1
        self.started.set()
        loaded = self.begin()
        self.manager.sources_ready = False
        self._sees_api = False
        self._file_lock, self._container = asyncio.Lock(), asyncio.Lock()
        recorded = {(each.pod_uid, each.container): each for each in self.manager.entries()}
        known = [pod for pod in pods if not pod.removed and pod.state not in {State.STOPPED, State.REJECTED}]
        self.pods = {}
        for pod in known:
            kept = {spec.name for spec in pod.containers if (pod.uid, spec.name) in recorded}
            if pod.processes:
                pod.unrecorded = pod.unrecorded or len(kept) < len(pod.given)
            else:
                pod.given = {name: self._masks[recorded[pod.uid, name].response][0] for name in kept}
                pod.ever_given |= pod.mask_of_all_given  # also of a static pod that came back under its UID
        self._queue = deque(pod for pod in known if pod.static)
        self._note(f"kubelet started, checkpoint {'loaded' if loaded else 'not loaded'}, {len(recorded)} entries")
        self._tasks = [
            asyncio.create_task(self._sync(), name="kubelet sync"),
            asyncio.create_task(self._reach_api([pod for pod in known if not pod.static]), name="kubelet api"),
        ]

    def stop(self) -> None:
        self.up = False
        self._note("kubelet stopped")
        if self._connection:
            self._connection.lost()
            self._disconnect()
        for task in self._tasks:
            task.cancel()
        self.admitting = None
        if self._unwritten:  # a container starts after the write only, also one that starts again in a running pod
            pod, container = self._unwritten
            pod.given.pop(container, None)
            self._unwritten = None
        for pod in self.pods.values():
            if not pod.processes:
                pod.given = {}

    async def _reach_api(self, listed: list[LifePod]) -> None:
        while not self._api.up:
            await asyncio.sleep(0.5)
        self._sees_api = True
        self._queue.extend(pod for pod in listed if not pod.removed)
        self._queue.append(None)
        self._wake.set()

    async def _sync(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            pod = self._queue.popleft()
            if pod is None:
                self.manager.sources_ready = True
                continue
            async with self._container:
                known = pod.uid in self.pods  # listed at the start, and seen by the watch
                if not (known or pod.removed or pod.state in {State.STOPPED, State.REJECTED}):
                    await self._admit(pod)

    # The plugin.

    def connect(self, connection: Connection) -> None:
        self._connection = connection
        for resource, service in connection.services.items():
            messages: asyncio.Queue[Any] = asyncio.Queue()
            context = CallContext(messages.put_nowait)
            stream = service.ListAndWatch(pb.Empty(), context)  # type: ignore[arg-type]
            connection.tasks += [
                asyncio.create_task(stream, name=f"stream {resource}"),
                asyncio.create_task(self._follow(resource, messages), name=f"follow {resource}"),
            ]

    def disconnect(self) -> None:
        """The plugin has ended."""
        if self._connection:
            self._disconnect()
            for resource in RESOURCES:
                self.manager.mark_unhealthy(resource)

    def _disconnect(self) -> None:
        assert self._connection is not None
        for task in (*self._connection.tasks, *self._connection.calls):
            task.cancel()
        self._connection = None

    async def _follow(self, resource: str, messages: asyncio.Queue[Any]) -> None:
        while True:
            message = await messages.get()
            await asyncio.sleep(self._chance.random() * 0.005)
            nodes = ((each, tuple(node.ID for node in each.topology.nodes)) for each in message.devices)
            self.manager.update_devices(resource, [ListedDevice(each.ID, each.health, numa) for each, numa in nodes])
            with suppress(AllocationError):
                await self._write()

    async def _write(self) -> None:
        """Take a picture of the memory, then wait for the file's turn: the two are under different locks."""
        data, fault = self.manager.checkpoint_bytes(), self.write_fault
        if fault:
            self.write_fault = ""
            self._note(f"checkpoint write: {fault}")
        await asyncio.sleep(self._chance.random() * (0.5 if fault == "late" else 0.0005))
        async with self._file_lock:
            await asyncio.sleep(self._chance.uniform(1, 4) if fault == "stall" else self._chance.uniform(0.002, 0.03))
            if fault == "fail":
                raise AllocationError("failed to write the checkpoint: no space left on device")
            self.file.put(data)

    async def _call(self, rpc: Callable[[Any, Any], Awaitable[Any]], request: Any) -> Any:
        connection = self._connection
        if connection is None:
            raise PluginCallError("endpoint has been stopped")
        context = CallContext()
        task: asyncio.Task[Any] = asyncio.ensure_future(rpc(request, context))
        connection.calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current and current.cancelling():
                raise
            raise PluginCallError("the plugin has ended during the call") from None
        finally:
            connection.calls.discard(task)
            context.ended(context)

    # Pods.

    def deliver(self, pod: LifePod) -> None:
        """A pod is bound here, or its manifest was put on the node."""
        if self.up and not pod.removed and (pod.static or self._sees_api):
            self._queue.append(pod)
            self._wake.set()

    def forget(self, pod: LifePod) -> None:
        """The pod is no longer active."""
        self.pods.pop(pod.uid, None)

    @property
    def active(self) -> set[str]:
        return {*self.pods, *([self.admitting.uid] if self.admitting else [])}

    async def list(self) -> tuple[PodDevices, ...]:  # as the client's method is called
        """PodResources ``List``."""
        await asyncio.sleep(self._chance.random() * 0.01)
        if not self.up:
            raise PodResourcesAbsentError("no kubelet")
        self.manager.forget_pods(self.active)
        listed = []
        for pod in self.pods.values():
            entries = [
                ContainerDevices(spec.name, each.resource, tuple(sorted(each.ids)))
                for spec in pod.containers
                if spec.kind is not ContainerKind.INIT
                for each in self.manager.of_container(pod.uid, spec.name)
            ]
            listed.append(PodDevices("default", pod.name, tuple(entries)))
        await asyncio.sleep(self._chance.random() * 0.01)
        return tuple(listed)

    async def _admit(self, pod: LifePod) -> None:
        self.pods[pod.uid] = self.admitting = pod
        running = pod.processes and self._chance.random() < 0.9
        pause = self._chance.random() < 0.2
        pod.admitting = True
        try:
            for spec in pod.containers:
                await self._allocate(pod, spec, running=running)
                await asyncio.sleep(self._chance.random() * (0.3 if pause else 0.001))
            if not running and self._chance.random() < 0.03:
                raise AllocationError("OutOfcpu")  # noqa: TRY301 - what a later admission handler says
        except AllocationError as error:
            self._reject(pod, str(error))
        else:
            if not pod.processes and not pod.removed and pod.state is not State.STOPPED:
                pod.state = State.ADMITTED
                delay = self._chance.choice((0.05, 0.3, 1.0, 4.0))
                asyncio.get_running_loop().call_later(delay, self._start, pod, self.process)
        finally:
            self.admitting, pod.admitting = None, False
            if pod.removed and not pod.processes and pod.state is State.BOUND:
                pod.given = {}

    async def restart_container(self, pod: LifePod, spec: ContainerSpec) -> None:
        """A container starts again; the plugin is called only where nothing is recorded for it, as after a lost file.

        A failure keeps the container waiting, and it starts at a later attempt.
        """
        process = self.process
        async with self._container:
            for _ in range(3):
                missing = not any(True for _ in self.manager.of_container(pod.uid, spec.name))
                if not missing or self.process != process or pod.state is not State.RUNNING or pod.removed:
                    return
                before = pod.given.pop(spec.name, None)
                for each in pod.containers:
                    if each.kind is ContainerKind.INIT:  # it has ended long ago
                        pod.given.pop(each.name, None)
                self._note(f"{pod} restarts {spec.name}, which has no record")
                try:
                    await self._allocate(pod, spec)
                except AllocationError as error:
                    self._note(f"{pod} waits: {error}")
                    recorded = {self._masks[each.response] for each in self.manager.of_container(pod.uid, spec.name)}
                    if not recorded and before is not None and not self._chance.getrandbits(1):
                        return
                await asyncio.sleep(self._chance.random())

    async def _allocate(self, pod: LifePod, spec: ContainerSpec, *, running: bool = False) -> None:
        """All resources of one container, and then one write of the checkpoint."""
        manager, (resource,) = self.manager, spec.limits
        manager.running = {pod.uid: {spec.name}} if running else {}
        limits = {name: int(text) for name, text in spec.limits.items()}
        try:
            recorded = await manager.allocate(pod.uid, spec.name, limits, self.active, self)
        except AllocationError as error:
            if isinstance(error, RefusedError) or not isinstance(error, PluginCallError):
                self._refused(pod, spec, resource, error)
            raise
        for each in manager.of_container(pod.uid, spec.name) if recorded or not pod.processes else ():
            pod.given[spec.name], pod.core_size = self._masks[each.response]
            if recorded:
                self._note(f"gave {pod} {spec.name} {spec.kind.value} {resource} {sorted(each.ids, key=int)}")
            else:  # by an earlier answer: the plugin is not asked again
                self._readmitted(pod)
                pod.ever_given |= pod.mask_of_all_given
        self._given()
        if recorded:
            self._unwritten = pod, spec.name
            try:
                await self._write()
            finally:
                self._unwritten = None
        manager.offer_for_reuse(pod.uid, spec.name, spec.kind)

    async def preferred(self, selection: Selection) -> Sequence[str]:
        service = self._service(selection.resource)
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=selection.available,
            must_include_deviceIDs=selection.must_include,
            allocation_size=selection.size,
        )
        answer = await self._call(service.GetPreferredAllocation, request)
        return tuple(answer.container_responses[0].deviceIDs)

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        service = self._service(resource)
        if self._chance.random() < self.agents_list:
            self._note("another client lists PodResources during an Allocate")
            self.manager.forget_pods(self.active)
        answer = (await self._call(service.Allocate, request)).container_responses[0]
        response: bytes = answer.SerializeToString(deterministic=True)
        self.remember(response, answer)
        await asyncio.sleep(self._chance.random() * 0.002)
        return response

    def remember(self, response: bytes, answer: pb.ContainerAllocateResponse) -> None:
        """What a container receives by this answer, in physical cores; node and core numbers are the host's."""
        inventory = self.inventory()
        geometry = inventory.geometry
        if VISIBLE_CORES in answer.envs:
            mask: int = geometry.mask_of(Unit.CORE, parse_ids(answer.envs[VISIBLE_CORES]))
        else:
            mask = geometry.devices_mask(int(node.host_path.removeprefix("/dev/neuron")) for node in answer.devices)
        self._masks[response] = physical(inventory, mask), inventory.logical_core_size

    def _service(self, resource: str) -> DevicePluginService:
        if self._connection is None:
            raise PluginCallError("endpoint has been stopped")
        return self._connection.services[resource]

    def _reject(self, pod: LifePod, text: str) -> None:
        self._note(f"rejected {pod}: {text}")
        self.pods.pop(pod.uid, None)
        pod.state = State.REJECTED
        if pod.processes:
            asyncio.get_running_loop().call_later(self._chance.uniform(0.2, 3), self.processes_end, pod)
        else:
            pod.given = {}
        self.report(pod, "Failed", started=False, running=False)

    def _start(self, pod: LifePod, process: int) -> None:
        if self.process == process and self.up and not pod.removed and pod.state is State.ADMITTED:
            self._note(f"started {pod}")
            pod.state, pod.processes, pod.populated = State.RUNNING, True, True
            pod.opened = self._chance.random() < 0.8
            loop = asyncio.get_running_loop()
            loop.call_later(self._chance.choice((0.1, 2.0)), setattr, pod, "initialized", pod.state is State.RUNNING)
            self.report(pod, "Running", started=True, running=True)

    def processes_end(self, pod: LifePod) -> None:
        """The last process dies; a sandbox may be left for a while."""
        if pod.processes:
            self._note(f"processes of {pod} have ended")
        pod.processes = pod.opened = False
        if pod.state in {State.REJECTED, State.STOPPED} or pod.removed:
            pod.given = {}
        delay = self._chance.choice((0.0, 0.1, 1.0, 2.5))
        asyncio.get_running_loop().call_later(delay, self._sandbox_ends, pod)

    def _sandbox_ends(self, pod: LifePod) -> None:
        pod.populated = pod.processes

    # Status.

    def report(self, pod: LifePod, phase: str, **containers: bool) -> None:
        """Have the API server's object changed, after all that was reported before."""
        self._reports.append(lambda: self._api.show(pod.mirror_uid if pod.static else pod.uid, phase, **containers))
        self._reported.set()

    def report_end(self, pod: LifePod) -> None:
        """The containers of a deleted pod have ended: the object goes."""
        self._reports.append(lambda: self._api.remove(pod.mirror_uid if pod.static else pod.uid))
        self._reported.set()

    async def _report_all(self) -> None:
        while True:
            while not self._reports:
                self._reported.clear()
                await self._reported.wait()
            await asyncio.sleep(self._chance.expovariate(1) * 0.1)
            while not (self.up and self._api.up):
                await asyncio.sleep(0.5)
            self._reports.popleft()()
