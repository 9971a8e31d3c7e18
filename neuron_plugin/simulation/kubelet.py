"""A simulated kubelet: the part of one that device plugins see, over the same sockets, messages and files.

For the demo, for tests and for trying a plugin without a cluster. It serves Registration and PodResources, dials
plugins back, admits pods one after the other, remembers what it allocated and writes that into its checkpoint, with the
order, the texts and the faults of Kubernetes 1.36 as far as they concern a plugin. It runs no containers: what a
container would have received can be read, and the cgroup of a pod says whether it would have processes.

    async with SimulatedKubelet(Path("/run/sim/device-plugins"), Path("/run/sim/pod-resources")) as kubelet:
        await kubelet.wait_for_capacity("aws.amazon.com/neuroncore", 32)
        admitted = await kubelet.admit(pod)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2_grpc import add_RegistrationServicer_to_server
from neuron_plugin.kubelet._proto.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from neuron_plugin.simulation.kubelet_device_manager import AllocationError, DeviceManager
from neuron_plugin.simulation.kubelet_files import CheckpointFile, PodCgroups
from neuron_plugin.simulation.kubelet_plugins import Capacity, PluginCallError, PluginClients
from neuron_plugin.simulation.kubelet_pod_resources import PodResourcesService, RateLimit
from neuron_plugin.simulation.kubelet_pods import (
    AdmittedContainer,
    AdmittedPod,
    Container,
    Pod,
    PodRejectedError,
    received,
)

SOCKET_NAME = "kubelet.sock"


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """How this kubelet is set; the defaults are Kubernetes 1.36's, times in seconds.

    ``sync_delay`` is how long after kubelet.sock appeared the pods of before are admitted again,
    ``termination_seconds`` how long processes run on after their pod was deleted by force. ``flat_device_ids`` is the
    checkpoint of a kubelet before 1.20.
    """

    dial_seconds: float = 10.0
    grace_seconds: float = 300.0
    sync_delay: float = 0.1
    pod_resources_per_second: float = 100.0
    pod_resources_burst: int = 10
    pod_resources_get: bool = True
    numa_affinity: frozenset[int] | None = None
    termination_seconds: float = 2.0
    flat_device_ids: bool = False


class KubeletStoppedError(Exception):
    """The kubelet ended in the middle of an admission; at its next start the pod is admitted again."""


@dataclass(slots=True)
class _LivePod:
    """``known`` is False for a pod of the API server while this kubelet process has not reached the API server."""

    pod: Pod
    running: set[str] = field(default_factory=set)
    known: bool = True


class SimulatedKubelet:
    """One node's kubelet, on ``directory`` and, if given, ``pod_resources_directory``.

    ``cgroup_root`` is a directory that it keeps like ``/sys/fs/cgroup``. ``checkpoint`` is its file; ``rejections`` are
    the pods it failed, by UID.
    """

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        cgroup_root: Path | None = None,
    ) -> None:
        self.rejections: dict[str, PodRejectedError] = {}
        self._options = options or KubeletOptions()
        self.checkpoint = CheckpointFile(directory, flat_ids=self._options.flat_device_ids)
        self._directory = directory
        self._pod_resources_directory = pod_resources_directory
        self._cgroups = PodCgroups(cgroup_root) if cgroup_root else None
        self._random = random or Random()  # noqa: S311 - the order of Go's maps, guards nothing
        self._pods: dict[str, _LivePod] = {}
        self._terminating: dict[str, asyncio.TimerHandle] = {}
        self._admission = asyncio.Lock()
        self._stops = 0
        self._servers: list[tuple[grpc.aio.Server, Path]] = []
        self._begin_process()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The process.

    def _begin_process(self) -> None:
        """What a kubelet process knows at its beginning: its checkpoint, and no plugin."""
        self.devices = DeviceManager(self._random, numa_affinity=self._options.numa_affinity)
        self.devices.load(self.checkpoint.read())
        self.devices.sources_ready = False
        dial, grace = self._options.dial_seconds, self._options.grace_seconds
        self._clients = PluginClients(self._directory, self.devices, self.checkpoint, dial, grace)

    async def start(self, *, api_reachable: bool = True) -> None:
        """Wipe the directory's sockets, serve, and admit the pods of before again.

        Without the API server these are the static pods alone, and nothing is freed until `reach_api`.
        """
        for path in self._directory.iterdir():  # the checkpoint, plain files and sub-directories stay
            with contextlib.suppress(FileNotFoundError):  # a plugin may remove its own at this moment
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        self._begin_process()
        registration = grpc.aio.server()
        add_RegistrationServicer_to_server(self._clients, registration)
        await self._serve(registration, self._directory / SOCKET_NAME)
        if self._pod_resources_directory is not None:
            limit = RateLimit(self._options.pod_resources_per_second, self._options.pod_resources_burst)
            serves_get = self._options.pod_resources_get
            service = PodResourcesService(self.devices, self._active_pods, limit, serves_get=serves_get)
            pod_resources = grpc.aio.server()
            add_PodResourcesListerServicer_to_server(service, pod_resources)
            await self._serve(pod_resources, self._pod_resources_directory / SOCKET_NAME)
        for live in self._pods.values():
            live.known = False
        if self._pods:
            await asyncio.sleep(self._options.sync_delay)
        await self._admit_again([live for live in self._pods.values() if live.pod.static])
        if api_reachable:
            await self.reach_api()

    async def reach_api(self) -> None:
        """The API server has answered: admit its pods again, and free devices of ended pods from now on."""
        await self._admit_again([live for live in self._pods.values() if not live.known])
        self.devices.sources_ready = True

    async def stop(self) -> None:
        """End as a kubelet does: streams end, calls are cut off, dead socket files stay behind."""
        self._stops += 1
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

    # Resources.

    def capacity(self, resource: str) -> Capacity:
        """What the node shows of a resource, without the up to 10 s until the API server hears of it."""
        return self._clients.capacity(resource)

    async def wait_for_capacity(self, resource: str, allocatable: int, *, timeout_seconds: float = 10.0) -> Capacity:
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
        """Start or restart a container of a live pod: PreStartContainer where a plugin asked for it.

        Allocate is called only for a container with nothing recorded, as after a lost checkpoint. If a call fails, the
        answer says so (``waiting``) and the container may be started again.
        """
        live = self._pods[uid]
        container = live.pod.container(name)
        waiting = None
        try:
            await self._prepare(live.pod, container)
        except AllocationError as error:
            waiting = str(error)
        if waiting is None:
            if container.kind is not ContainerKind.INIT:
                live.running.add(name)
            if timer := self._terminating.pop(uid, None):
                timer.cancel()  # the same static pod is back
            if self._cgroups:
                self._cgroups.populate(live.pod)
        allocations = list(self.devices.of_container(uid, name))
        self._random.shuffle(allocations)
        return received(container, allocations, waiting)

    def finish(self, uid: str) -> None:
        """A pod has ended or was deleted and its containers are dead. Its devices come free at some later call."""
        live = self._pods.pop(uid)
        if self._cgroups:
            self._cgroups.remove(live.pod)

    def _active_pods(self) -> Collection[Pod]:
        """The pods whose devices are not free, and that PodResources lists."""
        return [live.pod for live in self._pods.values() if live.known]

    async def _allocate(self, live: _LivePod) -> None:
        try:
            for container in live.pod.containers:
                await self._allocate_container(live.pod, container, running=container.name in live.running)
        except AllocationError as error:
            raise PodRejectedError(live.pod, str(error)) from error

    async def _allocate_container(self, pod: Pod, container: Container, *, running: bool = False) -> None:
        """All resources of one container, and then one write of the checkpoint."""
        devices, clients, recorded = self.devices, self._clients, False
        wanted = devices.wanted(container.limits)
        if wanted:
            devices.forget_pods({active.uid for active in self._active_pods()})
        for resource, count in wanted:
            selection = devices.devices_to_allocate(pod.uid, container.name, resource, count, running=running)
            if selection is None:
                continue
            endpoint = clients.endpoints.get(resource)
            preferred = await endpoint.preferred(selection) if endpoint and selection.asks else ()
            ids = devices.complete(selection, preferred)
            try:
                answer = await clients.endpoint(resource).allocate(ids)
            except PluginCallError:
                devices.restore()
                raise
            if not answer.container_responses:
                # No restoration here: the ids stay reserved until another pod with devices is removed.
                raise AllocationError("no containers return in allocation response &AllocateResponse{}")
            response = answer.container_responses[0].SerializeToString()
            devices.record(pod.uid, container.name, resource, ids, response)
            recorded = True
        if recorded:
            await self.checkpoint.write(devices)
        devices.offer_for_reuse(pod.uid, container.name, container.kind)

    async def _prepare(self, pod: Pod, container: Container) -> None:
        """The calls before a container's start (``GetDeviceRunContainerOptions``)."""
        recorded = {each.resource: sorted(each.ids) for each in self.devices.of_container(pod.uid, container.name)}
        resources = list(dict.fromkeys([*recorded, *(name for name, _ in self.devices.wanted(container.limits))]))
        self._random.shuffle(resources)
        for resource in resources:
            if resource not in self._clients.endpoints:
                raise PluginCallError(f"endpoint not found in cache for a registered resource: {resource}")
            endpoint = self._clients.endpoints[resource]
            if endpoint is None or not endpoint.options.pre_start_required:
                continue
            if resource not in recorded:
                where = f"pod {pod.uid}, container {container.name}, resource {resource}"
                raise PluginCallError(f"no devices found allocated in local cache for {where}")
            self._random.shuffle(recorded[resource])
            await endpoint.pre_start(recorded[resource])
        if len(resources) > len(recorded):
            await self._allocate_container(pod, container)

    async def _allocate_or_fail(self, live: _LivePod) -> None:
        stops = self._stops
        try:
            await self._allocate(live)
        except PodRejectedError as rejection:
            if self._stops != stops:
                raise KubeletStoppedError(f"the kubelet stopped under the admission of {live.pod.name}") from rejection
            self.rejections[live.pod.uid] = rejection
            del self._pods[live.pod.uid]
            self._terminate(live.pod)
            raise

    async def _admit_again(self, pods: Collection[_LivePod]) -> None:
        """After a start every pod goes through admission once more; a failure ends it, whatever its restart policy."""
        async with self._admission:
            for live in pods:
                live.known = True
                with contextlib.suppress(PodRejectedError):  # it is in `rejections`
                    await self._allocate_or_fail(live)

    def _terminate(self, pod: Pod) -> None:
        """Let the processes of a pod that the kubelet no longer has run on for a while."""
        if self._cgroups:
            loop = asyncio.get_running_loop()
            seconds = self._options.termination_seconds
            self._terminating[pod.uid] = loop.call_later(seconds, self._cgroups.remove, pod)

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append((server, path))
