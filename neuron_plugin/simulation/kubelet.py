"""A simulated kubelet: what device plugins and DRA drivers see of a kubelet, over the same sockets and files.

The kubelet serves Registration and PodResources, finds plugins and dials them, and admits one pod at a time. It keeps
allocations in its checkpoint and loads them when it starts. The order of calls, error texts and known bugs follow
Kubernetes 1.36. Containers do not run: tests read what a container would receive, and whether its cgroup is populated.

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
    SimulatedCgroups,
    UnresolvableError,
    received,
    resolve,
)

_DEVICE_PLUGIN = "DevicePlugin"


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The kubelet's settings, in seconds; the defaults are those of Kubernetes 1.36.

    ``sync_delay``: from the creation of kubelet.sock to the second admission of earlier pods. ``termination_seconds``:
    how long processes outlive their force-deleted pod. ``watcher_seconds``: between two scans of the plugin registry.
    """

    dial_seconds: float = 10.0
    grace_seconds: float = 300.0
    sync_delay: float = 0.1
    termination_seconds: float = 2.0
    watcher_seconds: float = 1.0


class SimulatedKubelet:
    """One node's kubelet. It serves in ``directory`` and, if given, in ``pod_resources_directory``.

    ``cgroup_root`` stands for ``/sys/fs/cgroup``. With ``dra`` the kubelet prepares claims, and its container runtime
    reads CDI devices from ``cdi_dir``. ``waiting`` says by pod UID why claims are not prepared; ``rejections`` are the
    pods that failed admission, by UID.
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
        """Running containers by pod UID."""
        self._unknown: set[str] = set()
        """UIDs of pods that this process has not admitted again yet."""
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
        """Start with the checkpoint and without plugins, as a new kubelet process does."""
        options = self._options
        self.devices = DeviceManager(self._random)
        self.devices.load(self.checkpoint.read_bytes() if self.checkpoint.exists() else None)
        self.devices.sources_ready = False
        self.devices.running = self._running
        seconds = options.dial_seconds, options.grace_seconds
        self._clients = PluginClients(self._directory, self.devices, self.checkpoint, self._registrations, *seconds)
        self._pod_resources = PodResourcesService(self.devices, self._pods, self._unknown)
        self._registered_before = frozenset(self.devices.resources())

    async def start(self) -> None:
        """Remove old sockets, serve, and admit earlier pods again.

        Raises:
            KubeletStateError: the claim state file cannot be read.
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
        """Stop like a kubelet: streams and calls end, and dead socket files stay."""
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
        """Stop and start. Containers keep running; allocations are kept, plugin connections are not."""
        await self.stop()
        await self.start()

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append((server, path))

    # Resources.

    def capacity(self, resource: str) -> ResourceCapacity:
        """The capacity that the next node status will report (a real kubelet updates it within 10 s)."""
        return self._clients.capacity(resource)

    async def wait_for_capacity(
        self, resource: str, allocatable: int, *, timeout_seconds: float = 10.0
    ) -> ResourceCapacity:
        """Wait until so many devices are allocatable.

        Raises:
            TimeoutError: with the capacity at that time.
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
        """How many registrations of a resource were accepted, over all restarts."""
        return self._registrations[resource]

    async def disconnect(self, resource: str) -> None:
        """Disconnect a healthy plugin without telling it, as the kubelet's bookkeeping by name can do."""
        await self._clients.disconnect(resource)

    def spoil_checkpoint(self) -> None:
        """Overwrite the checkpoint. A running kubelet replaces it at its next write; a new one forgets allocations."""
        replace_file(self.checkpoint, b"spoiled")

    # Pods.

    def has(self, uid: str) -> bool:
        """Whether the pod is admitted or being admitted."""
        return uid in self._pods

    @property
    def termination_seconds(self) -> float:
        """How long processes outlive their force-deleted pod."""
        return self._options.termination_seconds

    async def admit(self, pod: KubeletPod) -> AdmittedPod:
        """Allocate devices for each container in order, prepare the pod's claims, and start its containers.

        Claims that cannot be prepared are tried again until the pod is deleted.

        Raises:
            PodRejectedError: the pod failed for good.
            PodGoneError: the pod was deleted or the kubelet stopped before the pod was admitted or rejected.
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
        """Admit a live pod again with other CPU or memory. No plugin is called, and allocations do not change.

        Raises:
            PodRejectedError: the resize is not granted; the pod keeps running.
        """
        async with self._admission:
            await self._allocate(self._pods[uid], ends=False)

    async def _allocate(self, pod: KubeletPod, *, ends: bool = True) -> None:
        """Allocate for all containers. A rejected pod ends unless ``ends`` is false."""
        stops = self._stops
        try:
            for container in pod.containers:
                await self._allocate_container(pod, container)
        except AllocationError as error:
            if self._stops != stops:
                raise PodGoneError(f"the kubelet stopped while it admitted {pod.name}") from error
            rejection = PodRejectedError(pod, str(error))
            if ends:
                self.rejections[pod.uid] = rejection
                if self.has(pod.uid):
                    self.remove_while_running(pod.uid)
            raise rejection from error

    async def _allocate_container(self, pod: KubeletPod, container: KubeletContainer) -> None:
        """Allocate one container's resources, then write the checkpoint once."""
        devices = self.devices
        if await devices.allocate(pod.uid, container.name, container.limits, self._pods.keys(), self._clients):
            replace_file(self.checkpoint, devices.checkpoint_bytes())
        devices.offer_for_reuse(pod.uid, container.name, container.kind)

    async def prepare(self, pod: KubeletPod) -> None:
        """Prepare a pod's claims, as before each new sandbox, and try again until it succeeds.

        Raises:
            PodGoneError: the pod was deleted or the kubelet stopped meanwhile.
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

        Allocate is called only if no allocation is recorded, as after a lost checkpoint. If the call fails or a CDI
        device is unknown, the result says why (``waiting``), and the container can be started again.

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
        """The checks of ``GetDeviceRunContainerOptions``, without PreStartContainer."""
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
        """What a container receives. The runtime applies CDI devices last, so they win.

        Raises:
            NotPreparedError: a claim was unprepared.
            UnresolvableError: no file describes one of its CDI devices.
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
        """A container of a live pod has died; its allocation stays."""
        self._running[uid].discard(name)

    def lose_containers(self) -> None:
        """The machine is off: no container runs any more."""
        for uid, pod in self._pods.items():
            self._running[uid] = set()
            self.end_processes(pod)

    def held_nodes(self) -> frozenset[str]:
        """Device nodes held by live pods, such as ``neuron3``."""
        held = set[str]()
        for pod in self._pods.values():
            for container in pod.containers:
                with contextlib.suppress(NotPreparedError, UnresolvableError):
                    nodes = self._with_cdi(pod, container).devices
                    held.update(node.host_path.rpartition("/")[2] for node in nodes)
        return frozenset(held)

    def resource_health(self, pod: KubeletPod, container: KubeletContainer) -> list[dict[str, Any]]:
        """A container's ``allocatedResourcesStatus``: the health of its devices, from plugins and from claims.

        A device that its plugin does not list is reported Healthy.
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
        """The pod's containers are dead."""
        if self._cgroups:
            self._cgroups.remove(pod)

    def finish(self, uid: str) -> KubeletPod:
        """A pod has ended and its containers are dead. A later call frees its devices; `unprepare` frees its claims."""
        pod = self._forget(uid)
        self.end_processes(pod)
        return pod

    def remove_while_running(self, uid: str) -> KubeletPod:
        """A pod is gone but its processes run for ``termination_seconds``: force deletion, or a removed static pod.

        The kubelet keeps its allocation until `DeviceManager.forget_pods`, and may then offer the devices again.
        """
        pod = self._forget(uid)
        if self._cgroups:
            loop, seconds = asyncio.get_running_loop(), self._options.termination_seconds
            self._terminating[uid] = loop.call_later(seconds, self._cgroups.remove, pod)
        return pod

    async def unprepare(self, pod: KubeletPod) -> None:
        """Unprepare the claims of an ended pod.

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
