"""A simulated kubelet: the part of one that device plugins and drivers of claims see, over the same sockets and files.

It serves Registration and PodResources, watches for plugins, dials them back, and admits pods one after the other. It
remembers what it allocated and writes that into its checkpoint; after a start it knows what its files say. Order, texts
and faults are those of Kubernetes 1.36, as far as they concern a plugin. It runs no containers: what a container would
have received can be read, and the cgroup of a pod says whether it would have processes.

    kubelet = SimulatedKubelet(Path("/run/sim/device-plugins"), Path("/run/sim/pod-resources"))
    await kubelet.start()
    await kubelet.wait_for_capacity("aws.amazon.com/neuroncore", 32)
    admitted = await kubelet.admit(pod)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import in_numeric_order
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2_grpc import add_RegistrationServicer_to_server
from neuron_plugin.kubelet._proto.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from neuron_plugin.kubelet_files import CHECKPOINT, KUBELET_SOCKET
from neuron_plugin.simulation.kubelet_device_manager import (
    HEALTHY,
    AllocationError,
    DeviceManager,
    PluginCallError,
    replace_file,
)
from neuron_plugin.simulation.kubelet_dra import PLUGIN_TYPE, DraManager, NotPreparedError
from neuron_plugin.simulation.kubelet_plugins import PluginClients, PluginHandler, PluginWatcher, ResourceCapacity
from neuron_plugin.simulation.kubelet_pods import (
    AdmittedContainer,
    AdmittedPod,
    KubeletContainer,
    KubeletPod,
    PodGoneError,
    PodRejectedError,
    PodResourcesService,
    RateLimit,
    SimulatedCgroups,
    UnresolvableError,
    received,
    resolve,
)

_DEVICE_PLUGIN = "DevicePlugin"


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """How a kubelet is set; the defaults are Kubernetes 1.36's, times in seconds.

    ``sync_delay`` is how long after kubelet.sock appeared the pods of before are admitted again,
    ``termination_seconds`` how long processes run on after their pod was deleted by force, ``watcher_seconds`` how
    often it looks for plugins in its registry.
    """

    dial_seconds: float = 10.0
    grace_seconds: float = 300.0
    sync_delay: float = 0.1
    pod_resources_per_second: float = 100.0
    termination_seconds: float = 2.0
    watcher_seconds: float = 1.0


class KubeletStoppedError(Exception):
    """The kubelet ended in the middle of an admission; at its next start the pod is admitted again."""


class SimulatedKubelet:
    """One node's kubelet, on ``directory`` and, if given, ``pod_resources_directory`` and ``plugins_registry``.

    ``cgroup_root`` is a directory that it keeps like ``/sys/fs/cgroup``. ``checkpoint`` is its file. With ``dra`` it
    knows claims, and its container runtime looks for CDI devices in ``cdi_dir``. ``waiting`` says of each pod that
    waits for its claims why they are not prepared, ``rejections`` are the pods that it failed, both by UID.
    """

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        plugins_registry: Path | None = None,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        cgroup_root: Path | None = None,
        dra: DraManager | None = None,
        cdi_dir: Path | None = None,
    ) -> None:
        self.dra = dra
        self.waiting: dict[str, str] = {}
        self.rejections: dict[str, PodRejectedError] = {}
        options = options or KubeletOptions()
        self.checkpoint = directory / CHECKPOINT
        self._directory = directory
        self._pod_resources_directory = pod_resources_directory
        self._plugins_registry = plugins_registry
        self._options = options
        self._cdi_dir = cdi_dir
        self._cgroups = SimulatedCgroups(cgroup_root) if cgroup_root else None
        self._random = random or Random()  # noqa: S311 - the order of Go's maps, guards nothing
        self._pods: dict[str, KubeletPod] = {}
        self._running: dict[str, set[str]] = {}
        """The containers that run, by the UIDs of all pods."""
        self._unknown: set[str] = set()
        """UIDs of pods of the API server that this process has not asked it about yet."""
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._terminating: dict[str, asyncio.TimerHandle] = {}
        self._registrations: Counter[str] = Counter()
        self._admission = asyncio.Lock()
        self._servers: list[tuple[grpc.aio.Server, Path]] = []
        self._watching: asyncio.Task[None] | None = None
        self._stops = 0
        self._begin_process()
        if dra:
            dra.active = self._pods.keys()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The process.

    def _begin_process(self) -> None:
        """What a kubelet process knows at its beginning: its checkpoint, and no plugin."""
        options = self._options
        self.devices = DeviceManager(self._random)
        self.devices.load(self.checkpoint.read_bytes() if self.checkpoint.exists() else None)
        self.devices.sources_ready = False
        self.devices.running = self._running
        seconds = options.dial_seconds, options.grace_seconds
        self._clients = PluginClients(self._directory, self.devices, self.checkpoint, self._registrations, *seconds)
        limit = RateLimit(options.pod_resources_per_second)
        self._pod_resources = PodResourcesService(self.devices, self._pods, self._unknown, limit)
        self._registered_before = frozenset(self.devices.resources())

    async def start(self) -> None:
        """Wipe the directory's sockets, serve, and admit the pods of before again.

        Raises:
            KubeletStateError: the file of claims cannot be read.
        """
        for path in self._directory.iterdir():  # the checkpoint, plain files and sub-directories stay
            with contextlib.suppress(FileNotFoundError):  # a plugin may remove its own at this moment
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        self._begin_process()
        if self.dra:
            await self.dra.start()
        if self._plugins_registry:
            handlers: dict[str, PluginHandler] = {_DEVICE_PLUGIN: self._clients}
            if self.dra:
                handlers[PLUGIN_TYPE] = self.dra
            watcher = PluginWatcher(self._plugins_registry, handlers, seconds=self._options.watcher_seconds)
            self._watching = asyncio.create_task(watcher.run(), name="plugin watcher")
        registration = grpc.aio.server()
        add_RegistrationServicer_to_server(self._clients, registration)
        await self._serve(registration, self._directory / KUBELET_SOCKET)
        if self._pod_resources_directory is not None:
            pod_resources = grpc.aio.server()
            add_PodResourcesListerServicer_to_server(self._pod_resources, pod_resources)
            await self._serve(pod_resources, self._pod_resources_directory / KUBELET_SOCKET)
        self._unknown.update(self._pods)
        if self._pods:
            await asyncio.sleep(self._options.sync_delay)
        async with self._admission:  # a failure ends a pod, whatever its restart policy
            for pod in [pod for uid, pod in self._pods.items() if uid in self._unknown]:
                self._unknown.discard(pod.uid)
                with contextlib.suppress(PodRejectedError):
                    await self._allocate(pod)
        self.devices.sources_ready = True

    async def stop(self) -> None:
        """End as a kubelet does: streams end, calls are cut off, dead socket files stay behind."""
        self._stops += 1
        tasks = [*self._preparing.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.dra:
            await self.dra.stop()
        await self._clients.close()
        for server, path in self._servers:
            await server.stop(None)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(str(path))
        self._servers.clear()
        self._begin_process()

    async def restart(self) -> None:
        """Stop and start; running containers go on, allocations are remembered, plugins are not."""
        await self.stop()
        await self.start()

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append((server, path))

    # Resources.

    def capacity(self, resource: str) -> ResourceCapacity:
        """What the node shows of a resource, without the up to 10 s until the API server hears of it."""
        return self._clients.capacity(resource)

    async def wait_for_capacity(
        self, resource: str, allocatable: int, *, timeout_seconds: float = 10.0
    ) -> ResourceCapacity:
        """Wait until so many devices are allocatable.

        Raises:
            TimeoutError: names what the node showed instead.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while (shown := self.capacity(resource)).allocatable != allocatable:
                    self._clients.changed.clear()
                    await self._clients.changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{resource}: {self.capacity(resource)} after {timeout_seconds:g} s") from error
        return shown

    def registration_count(self, resource: str) -> int:
        """Accepted registrations of a resource since the beginning, over all restarts."""
        return self._registrations[resource]

    async def disconnect(self, resource: str) -> None:
        """Drop a live plugin for no reason it could know of, as the kubelet's book-keeping by name can."""
        await self._clients.disconnect(resource)

    def spoil_checkpoint(self, content: bytes = b"spoiled") -> None:
        """Put other content in the checkpoint's place.

        A kubelet that runs replaces it at its next write, one that starts cannot read what was allocated and goes on.
        """
        replace_file(self.checkpoint, content)

    # Pods.

    def has(self, uid: str) -> bool:
        """Whether a pod is one of this kubelet's, admitted or under admission."""
        return uid in self._pods

    @property
    def termination_seconds(self) -> float:
        """How long the processes of a pod run on that was deleted by force."""
        return self._options.termination_seconds

    async def admit(self, pod: KubeletPod) -> AdmittedPod:
        """Allocate for every container in order, one pod at a time; have its claims prepared; start its containers.

        A pod whose claims are not prepared waits: it is prepared again after a while, for as long as it is there.

        Raises:
            PodRejectedError: the pod has failed for good.
            PodGoneError: the pod was deleted, or the kubelet has ended, while it waited for its claims.
            KubeletStoppedError: the kubelet has ended before it was admitted or rejected.
        """
        self._running[pod.uid] = set()
        self._unknown.discard(pod.uid)
        async with self._admission:
            self._pods[pod.uid] = pod
            await self._allocate(pod)
        if self.dra and pod.claims:
            await self.prepare(pod)
        containers = [await self.start_container(pod.uid, container.name) for container in pod.containers]
        return AdmittedPod(pod, tuple(containers))

    async def resize(self, uid: str) -> None:
        """Admit a live pod again with other CPU or memory; no plugin is asked, and nothing a pod holds changes.

        Raises:
            PodRejectedError: it is not granted, and the pod runs on as it was.
        """
        async with self._admission:
            await self._allocate(self._pods[uid], ends=False)

    async def _allocate(self, pod: KubeletPod, *, ends: bool = True) -> None:
        """Allocate for all containers; a pod that is rejected ``ends``."""
        stops = self._stops
        try:
            for container in pod.containers:
                await self._allocate_container(pod, container)
        except AllocationError as error:
            if self._stops != stops:
                raise KubeletStoppedError(f"the kubelet stopped under the admission of {pod.name}") from error
            rejection = PodRejectedError(pod, str(error))
            if ends:
                self.rejections[pod.uid] = rejection
                if self.has(pod.uid):
                    self.remove_while_running(pod.uid)
            raise rejection from error

    async def _allocate_container(self, pod: KubeletPod, container: KubeletContainer) -> None:
        """All resources of one container, and then one write of the checkpoint."""
        devices = self.devices
        if await devices.allocate(pod.uid, container.name, container.limits, self._pods.keys(), self._clients):
            replace_file(self.checkpoint, devices.checkpoint_bytes())
        devices.offer_for_reuse(pod.uid, container.name, container.kind)

    async def prepare(self, pod: KubeletPod) -> None:
        """Have the claims of a pod prepared, as before each new sandbox of it, however often that takes.

        Raises:
            PodGoneError: the pod was deleted, or the kubelet has ended, while it waited.
        """
        task = self._preparing[pod.uid] = asyncio.create_task(self._prepare_claims(pod), name=f"prepare {pod.name}")
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            self.waiting.pop(pod.uid, None)
            if self._preparing.get(pod.uid) is task:
                del self._preparing[pod.uid]
        if task.cancelled():
            raise PodGoneError(f"pod {pod.name} was deleted while its claims were prepared")
        task.result()

    async def _prepare_claims(self, pod: KubeletPod) -> None:
        while self.dra:
            try:
                await self.dra.prepare(pod)
            except NotPreparedError as error:
                self.waiting[pod.uid] = str(error)
                await asyncio.sleep(self.dra.times.retry)
            else:
                return

    # Containers.

    async def start_container(self, uid: str, name: str) -> AdmittedContainer:
        """Start or restart a container of a live pod.

        Allocate is called only for a container with nothing recorded, as after a lost checkpoint. If that fails, or
        its CDI devices cannot be found, the answer says so (``waiting``) and the container may be started again.

        Raises:
            PodGoneError: the pod was deleted.
        """
        if uid not in self._pods:
            raise PodGoneError(f"pod {uid} was deleted before container {name} was started")
        pod, container = self._pods[uid], self._pods[uid].container(name)
        try:
            await self._prepare_start(pod, container)
            started = self._with_cdi(pod, container)
        except (AllocationError, NotPreparedError, UnresolvableError) as error:
            return self._received(pod, container, str(error))
        if container.kind is not ContainerKind.INIT:
            self._running[uid].add(name)
        if timer := self._terminating.pop(uid, None):
            timer.cancel()  # the same static pod is back
        if self._cgroups:
            self._cgroups.populate(pod)
        return started

    async def _prepare_start(self, pod: KubeletPod, container: KubeletContainer) -> None:
        """What comes before a container's start (``GetDeviceRunContainerOptions``), without PreStartContainer."""
        recorded = {entry.resource for entry in self.devices.of_container(pod.uid, container.name)}
        resources = recorded.union(name for name, _ in self.devices.wanted(container.limits))
        for resource in sorted(resources.difference(self._clients.endpoints, self._registered_before)):
            raise PluginCallError(f"endpoint not found in cache for a registered resource: {resource}")
        if resources > recorded:
            await self._allocate_container(pod, container)

    def _received(self, pod: KubeletPod, container: KubeletContainer, waiting: str | None = None) -> AdmittedContainer:
        allocations = list(self.devices.of_container(pod.uid, container.name))
        self._random.shuffle(allocations)
        return received(container, allocations, waiting)

    def _with_cdi(self, pod: KubeletPod, container: KubeletContainer) -> AdmittedContainer:
        """What a container receives, with its CDI devices as the runtime adds them: last, so they win.

        Raises:
            NotPreparedError: a claim of it was given up.
            UnresolvableError: its CDI devices are not described.
        """
        by_count = self._received(pod, container)
        names = by_count.cdi_devices
        if self.dra and pod.claims:
            names += self.dra.cdi_devices(pod, container)
        if not (self._cdi_dir and names):
            return by_count
        devices, envs = resolve(self._cdi_dir, names)
        envs, devices = {**by_count.envs, **envs}, (*by_count.devices, *devices)
        return replace(by_count, envs=envs, devices=devices, cdi_devices=names)

    def stop_container(self, uid: str, name: str) -> None:
        """A container of a live pod has died; what it holds stays its own."""
        self._running[uid].discard(name)

    def lose_containers(self) -> None:
        """The machine is off: no container of any pod runs any more."""
        for uid, pod in self._pods.items():
            self._running[uid] = set()
            self.end_processes(pod)

    def held_nodes(self) -> frozenset[str]:
        """The names of the device nodes that containers of live pods have, such as ``neuron3``."""
        held = set[str]()
        for pod in self._pods.values():
            for container in pod.containers:
                with contextlib.suppress(NotPreparedError, UnresolvableError):
                    nodes = self._with_cdi(pod, container).devices
                    held.update(node.host_path.rpartition("/")[2] for node in nodes)
        return frozenset(held)

    def resource_health(self, pod: KubeletPod, container: KubeletContainer) -> list[dict[str, Any]]:
        """``allocatedResourcesStatus`` of a container: the health of all that it holds, by count and by claims.

        A device that its plugin does not list looks Healthy.
        """
        by_count = []
        for entry in self.devices.of_container(pod.uid, container.name):
            listed, ids = self.devices.devices(entry.resource), in_numeric_order(entry.ids)
            health = {each: listed[each].health if each in listed else HEALTHY for each in ids}
            resources = [{"resourceID": device_id, "health": said} for device_id, said in health.items()]
            by_count.append({"name": entry.resource, "resources": resources})
        return [*by_count, *(self.dra.status(pod, container) if self.dra else ())]

    # Ends.

    def end_processes(self, pod: KubeletPod) -> None:
        """The containers of a pod are dead."""
        if self._cgroups:
            self._cgroups.remove(pod)

    def finish(self, uid: str) -> KubeletPod:
        """A pod has ended or was deleted and its containers are dead. Its devices come free at some later call.

        Its claims are given up by `unprepare`.
        """
        pod = self._forget(uid)
        self.end_processes(pod)
        return pod

    def remove_while_running(self, uid: str) -> KubeletPod:
        """A pod is gone though its processes run on: force deletion, a lost Node object, a static manifest removed.

        The kubelet keeps its entry until the next cleaning of memory, and may offer its devices from then on. The
        processes run for ``termination_seconds``.
        """
        pod = self._forget(uid)
        if self._cgroups:
            loop, seconds = asyncio.get_running_loop(), self._options.termination_seconds
            self._terminating[uid] = loop.call_later(seconds, self._cgroups.remove, pod)
        return pod

    async def unprepare(self, pod: KubeletPod) -> None:
        """Give up the claims of a pod that has ended.

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        if self.dra and pod.claims:
            await self.dra.unprepare(pod)

    def _forget(self, uid: str) -> KubeletPod:
        self._running.pop(uid, None)
        self._unknown.discard(uid)
        if task := self._preparing.get(uid):
            task.cancel()
        return self._pods.pop(uid)
