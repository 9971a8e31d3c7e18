"""A stand-in kubelet: the part of one that device plugins see, over the same sockets and messages.

For the demo, for tests and for trying a plugin without a cluster. It serves Registration and PodResources, dials
plugins back, admits pods one after the other and remembers what it allocated, and it does so with the order, the texts
and the faults of Kubernetes 1.36, as far as they concern a plugin. It runs no containers: what a container would have
received is there to be read. Time is the event loop's; chance comes from the given random source.

    async with StandInKubelet(Path("/run/sim/device-plugins"), Path("/run/sim/pod-resources")) as kubelet:
        await kubelet.wait_for_capacity("aws.amazon.com/neuroncore", 32)
        admitted = await kubelet.admit(pod)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import CHECKPOINT
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2_grpc import add_RegistrationServicer_to_server
from neuron_plugin.kubelet._proto.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from neuron_plugin.simulation.kubelet_checkpoint import read_memory, write_memory
from neuron_plugin.simulation.kubelet_containers import received
from neuron_plugin.simulation.kubelet_devices import AllocationError, Capacity, DeviceManager
from neuron_plugin.simulation.kubelet_plugins import PluginCallError
from neuron_plugin.simulation.kubelet_pod_resources import PodResourcesService, RateLimit
from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, AdmittedPod, Pod, PodRejectedError
from neuron_plugin.simulation.kubelet_registration import PluginClients
from neuron_plugin.simulation.kubelet_watcher import PluginWatcher

SOCKET_NAME = "kubelet.sock"
PRE_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """How this kubelet is set; the defaults are Kubernetes 1.36's, times in seconds.

    ``sync_delay`` is how long after kubelet.sock appeared the pods of before are admitted again.
    """

    dial_seconds: float = 10.0
    grace_seconds: float = 300.0
    sync_delay: float = 0.1
    pod_resources_per_second: float = 100.0
    pod_resources_burst: int = 10
    pod_resources_get: bool = True
    numa_affinity: frozenset[int] | None = None
    reconcile_seconds: float = 1.0


class KubeletStoppedError(Exception):
    """The kubelet ended in the middle of an admission; at its next start the pod is admitted again."""


@dataclass(slots=True)
class _LivePod:
    pod: Pod
    running: set[str] = field(default_factory=set)


class StandInKubelet:
    """One node's kubelet, on ``directory`` and, if given, ``pod_resources_directory`` and ``plugins_registry``."""

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        plugins_registry: Path | None = None,
    ) -> None:
        self.rejections: dict[str, PodRejectedError] = {}
        self.registrations: Counter[str] = Counter()
        self._directory = directory
        self._pod_resources_directory = pod_resources_directory
        self._plugins_registry = plugins_registry
        self._watching: asyncio.Task[None] | None = None
        self._random = random or Random()  # noqa: S311 - the order of Go's maps, guards nothing
        self._options = options or KubeletOptions()
        self._pods: dict[str, _LivePod] = {}
        self._admission = asyncio.Lock()
        self._stops = 0
        self._changed = asyncio.Event()
        self._servers: list[tuple[grpc.aio.Server, Path]] = []
        self._begin_process()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # The process.

    async def start(self) -> None:
        """Wipe the directory's sockets, serve, and admit the pods of before again."""
        _wipe_sockets(self._directory)
        registration = grpc.aio.server()
        add_RegistrationServicer_to_server(self._clients, registration)
        await self._serve(registration, self._directory / SOCKET_NAME)
        if self._pod_resources_directory is not None:
            await self._serve_pod_resources(self._pod_resources_directory / SOCKET_NAME)
        self._watch_plugins()
        if self._pods:
            await asyncio.sleep(self._options.sync_delay)
        await self._admit_again()
        self._devices.sources_ready = True

    async def stop(self) -> None:
        """End as a kubelet does: streams end, calls are cut off, dead socket files stay behind."""
        self._stops += 1
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._clients.close()
        for server, path in self._servers:
            await server.stop(None)
            _leave_dead_socket(path)
        self._servers.clear()
        self.registrations.update(self._clients.registrations)
        self._begin_process()

    async def restart(self) -> None:
        """Stop and start; running containers go on, allocations are remembered, plugins are not."""
        await self.stop()
        await self.start()

    def spoil_checkpoint(self) -> None:
        """While it is stopped: the next start cannot read what was allocated, and goes on."""
        (self._directory / CHECKPOINT).write_text("spoiled")
        self._begin_process()

    # Resources.

    def capacity(self, resource: str) -> Capacity:
        """What the node shows of a resource, without the up to 10 s until the API server hears of it."""
        return self._devices.capacity(resource)

    def registration_count(self, resource: str) -> int:
        """Accepted registrations of a resource since the beginning, over all restarts."""
        return self.registrations[resource] + self._clients.registrations[resource]

    async def wait_for_capacity(self, resource: str, allocatable: int, *, timeout_seconds: float = 10.0) -> Capacity:
        """Wait until so many devices are allocatable.

        Raises:
            TimeoutError: names what the node showed instead.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while (shown := self.capacity(resource)).allocatable != allocatable:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{resource}: {self.capacity(resource)} after {timeout_seconds:g} s") from error
        return shown

    async def disconnect(self, resource: str) -> None:
        """Drop a live plugin for no reason it could know of, as the kubelet's book-keeping by name can."""
        await self._clients.disconnect(resource)

    # Pods.

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Allocate for every container in order, then start them. One pod at a time, as on a node.

        Raises:
            PodRejectedError: the pod has failed for good.
            KubeletStoppedError: neither that nor admitted.
        """
        async with self._admission:
            self._pods[pod.uid] = _LivePod(pod)
            await self._allocate_or_fail(self._pods[pod.uid])
        containers = [await self.start_container(pod.uid, each.name) for each in pod.containers]
        return AdmittedPod(pod, tuple(containers))

    async def start_container(self, uid: str, name: str) -> AdmittedContainer:
        """Start or restart a container of a live pod: PreStartContainer where asked for, never Allocate.

        If PreStartContainer fails, the answer says so (``waiting``) and the container may be started again.
        """
        live = self._pods[uid]
        container = live.pod.container(name)
        allocations = list(self._memory.of_container(uid, name))
        self._random.shuffle(allocations)
        waiting = None
        try:
            for each in allocations:
                await self._pre_start(each.resource, sorted(each.ids))
        except PluginCallError as error:
            waiting = str(error)
        if waiting is None and container.kind is not ContainerKind.INIT:
            live.running.add(name)
        return received(container, allocations, waiting)

    async def resize(self, uid: str) -> None:
        """Admit a live pod again with other CPU or memory; no plugin is asked, and nothing a pod holds changes.

        Raises:
            PodRejectedError: it is not granted, and the pod runs on as it was.
        """
        async with self._admission:
            await self._allocate(self._pods[uid])

    def stop_container(self, uid: str, name: str) -> None:
        """A container of a live pod has died; what it holds stays its own."""
        self._pods[uid].running.discard(name)

    def finish(self, uid: str) -> None:
        """A pod has ended or was deleted and its containers are dead. Its devices come free at some later call."""
        del self._pods[uid]

    def device_health(self, uid: str, container: str) -> Mapping[str, str]:
        """The health of each id a container holds, as the pod's status shows it: an absent device looks Healthy."""
        return {
            each: device.health if (device := self._devices.devices(allocation.resource).get(each)) else "Healthy"
            for allocation in self._memory.of_container(uid, container)
            for each in allocation.ids
        }

    async def _allocate(self, live: _LivePod) -> None:
        pod = live.pod
        try:
            for container in pod.containers:
                await self._devices.allocate(pod, container, running=container.name in live.running)
        except AllocationError as error:
            raise PodRejectedError(pod, str(error)) from error

    async def _allocate_or_fail(self, live: _LivePod) -> None:
        stops = self._stops
        try:
            await self._allocate(live)
        except PodRejectedError as rejection:
            if self._stops != stops:
                raise KubeletStoppedError(f"the kubelet stopped under the admission of {live.pod.name}") from rejection
            self.rejections[live.pod.uid] = rejection
            del self._pods[live.pod.uid]
            raise

    async def _admit_again(self) -> None:
        """After a start every pod goes through admission once more; a failure ends it, whatever its restart policy."""
        async with self._admission:
            for live in list(self._pods.values()):
                try:
                    await self._allocate_or_fail(live)
                except PodRejectedError:
                    continue  # it is in `rejections`

    async def _pre_start(self, resource: str, ids: list[str]) -> None:
        self._random.shuffle(ids)
        if resource not in self._devices.endpoints:
            raise PluginCallError(f"endpoint not found in cache for a registered resource: {resource}")
        if (endpoint := self._devices.endpoints[resource]) is not None:
            await endpoint.pre_start(ids, PRE_START_SECONDS)

    # Inside.

    def _begin_process(self) -> None:
        """What a kubelet process knows at its beginning: its checkpoint, and no plugin."""
        self._memory = read_memory(self._directory)
        self._devices = DeviceManager(
            self._memory,
            random=self._random,
            clock=lambda: asyncio.get_running_loop().time(),
            active=lambda: tuple(self._pods),
            keep=self._keep,
            numa_affinity=self._options.numa_affinity,
            grace_seconds=self._options.grace_seconds,
        )
        self._clients = PluginClients(
            self._directory, self._devices, dial_seconds=self._options.dial_seconds, changed=self._changed.set
        )

    def _keep(self) -> None:
        resources = self._devices.resources()
        write_memory(self._directory, self._memory, {each: self._devices.healthy(each) for each in resources})

    def _watch_plugins(self) -> None:
        if self._plugins_registry is not None:
            seconds = self._options.reconcile_seconds
            watcher = PluginWatcher(self._plugins_registry, self._clients, reconcile_seconds=seconds)
            self._watching = asyncio.create_task(watcher.run(), name="plugin watcher")

    async def _serve_pod_resources(self, path: Path) -> None:
        limit = RateLimit(
            self._options.pod_resources_per_second,
            self._options.pod_resources_burst,
            asyncio.get_running_loop().time,
        )
        service = PodResourcesService(
            self._memory,
            self._devices,
            active=lambda: [live.pod for live in self._pods.values()],
            limit=limit,
            serves_get=self._options.pod_resources_get,
        )
        server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(service, server)
        await self._serve(server, path)

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append((server, path))


def _wipe_sockets(directory: Path) -> None:
    """Unlink every socket directly in the directory; the checkpoint, plain files and sub-directories stay."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a plugin may take its own away at this moment
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()


def _leave_dead_socket(path: Path) -> None:
    """A kubelet that ends does not tidy up: its socket file stays until the next one starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
