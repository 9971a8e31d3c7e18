"""A simulated kubelet: the part of one that device plugins see, over the same sockets, messages and files.

For the demo and the playground; tests have one that also starts again. It serves Registration and PodResources, dials
plugins back, and admits pods one after the other. It remembers what it allocated and writes that into its checkpoint.
Order, texts and faults are those of Kubernetes 1.36, as far as they concern a plugin. It runs no containers: what a
container would have received can be read, and the cgroup of a pod says whether it would have processes.

    kubelet = SimulatedKubelet(Path("/run/sim/device-plugins"), Path("/run/sim/pod-resources"))
    await kubelet.start()
    await kubelet.wait_for_capacity("aws.amazon.com/neuroncore", 32)
    admitted = await kubelet.admit(pod)
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2_grpc import add_RegistrationServicer_to_server
from neuron_plugin.kubelet._proto.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation.cdi import UnresolvableError, resolve
from neuron_plugin.simulation.kubelet_claims import NotPreparedError
from neuron_plugin.simulation.kubelet_device_manager import AllocationError, CheckpointWriter, DeviceManager
from neuron_plugin.simulation.kubelet_dra import DraManager
from neuron_plugin.simulation.kubelet_plugins import PluginClients, ResourceCapacity
from neuron_plugin.simulation.kubelet_pod_resources import PodResourcesService
from neuron_plugin.simulation.kubelet_pods import (
    AdmittedContainer,
    AdmittedPod,
    KubeletContainer,
    KubeletPod,
    PodGoneError,
    PodRejectedError,
    SimulatedCgroups,
    received,
)


class SimulatedKubelet:
    """One node's kubelet, on ``directory`` and, if given, ``pod_resources_directory``.

    ``cgroup_root`` is a directory that it keeps like ``/sys/fs/cgroup``. ``checkpoint`` is its file. With ``dra`` it
    knows claims, and its container runtime looks for CDI devices in ``cdi_dir``. ``waiting`` says of each pod that
    waits for its claims why they are not prepared, by UID.
    """

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        random: Random | None = None,
        cgroup_root: Path | None = None,
        dra: DraManager | None = None,
        cdi_dir: Path | None = None,
    ) -> None:
        self.dra = dra
        self.waiting: dict[str, str] = {}
        self._cdi_dir = cdi_dir
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._directory = directory
        self._pod_resources_directory = pod_resources_directory
        self._cgroups = SimulatedCgroups(cgroup_root) if cgroup_root else None
        self._random = random or Random()  # noqa: S311 - the order of Go's maps, guards nothing
        self._pods: dict[str, KubeletPod] = {}
        self._admission = asyncio.Lock()
        self._servers: list[tuple[grpc.aio.Server, Path]] = []
        self.checkpoint = CheckpointWriter(directory)
        self.devices = DeviceManager(self._random)
        self._clients = PluginClients(directory, self.devices, self.checkpoint)
        self._pod_resources = PodResourcesService(self.devices, self._pods)
        if dra:
            dra.active = self._pods.keys()

    async def start(self) -> None:
        """Serve.

        Raises:
            KubeletStateError: the file of claims cannot be read.
        """
        if self.dra:
            await self.dra.start()
        registration = grpc.aio.server()
        add_RegistrationServicer_to_server(self._clients, registration)
        await self._serve(registration, self._directory / KUBELET_SOCKET)
        if self._pod_resources_directory is not None:
            pod_resources = grpc.aio.server()
            add_PodResourcesListerServicer_to_server(self._pod_resources, pod_resources)
            await self._serve(pod_resources, self._pod_resources_directory / KUBELET_SOCKET)

    async def stop(self) -> None:
        """End as a kubelet does: streams end, calls are cut off."""
        for task in tuple(self._preparing.values()):
            task.cancel()
        if self.dra:
            await self.dra.stop()
        await self._clients.close()
        for server, _ in self._servers:
            await server.stop(None)
        self._servers.clear()

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

    # Pods.

    def held_nodes(self) -> frozenset[str]:
        """The names of the device nodes that containers of live pods have, such as ``neuron3``."""
        held = set[str]()
        for pod in self._pods.values():
            for container in pod.containers:
                by_count = received(container, list(self.devices.of_container(pod.uid, container.name)), None)
                nodes = self._with_claims(pod.uid, by_count).devices
                held.update(node.host_path.rpartition("/")[2] for node in nodes)
        return frozenset(held)

    async def admit(self, pod: KubeletPod) -> AdmittedPod:
        """Allocate for every container in order, one pod at a time; have its claims prepared; start its containers.

        A pod whose claims are not prepared waits: it is prepared again after a while, for as long as it is there.

        Raises:
            PodRejectedError: the pod has failed for good.
            PodGoneError: the pod was deleted, or the kubelet has ended, while it waited.
        """
        async with self._admission:
            self._pods[pod.uid] = pod
            try:
                await self._allocate(pod)
            except PodRejectedError:
                del self._pods[pod.uid]
                raise
        if self.dra and pod.claims:
            await self.prepare(pod)
        containers = [await self.start_container(pod.uid, container.name) for container in pod.containers]
        return AdmittedPod(pod, tuple(containers))

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

    async def start_container(self, uid: str, name: str) -> AdmittedContainer:
        """Start a container of a live pod. One whose CDI devices cannot be found does not start (``waiting``)."""
        received = self._with_claims(uid, self._received(uid, name))
        if self._cgroups and not received.waiting:
            self._cgroups.populate(self._pods[uid])
        return received

    def finish(self, uid: str) -> KubeletPod:
        """A pod has ended or was deleted and its containers are dead. Its devices come free at some later call.

        Its claims are given up by `unprepare`.
        """
        pod = self._pods.pop(uid)
        if task := self._preparing.get(uid):
            task.cancel()
        if self._cgroups:
            self._cgroups.remove(pod)
        return pod

    async def unprepare(self, pod: KubeletPod) -> None:
        """Give up the claims of a pod that has ended.

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        if self.dra and pod.claims:
            await self.dra.unprepare(pod)

    def _with_claims(self, uid: str, received: AdmittedContainer) -> AdmittedContainer:
        """A container with the devices of its claims, as the container runtime adds them: last, so they win."""
        pod = self._pods[uid]
        if not (self.dra and self._cdi_dir and pod.claims):
            return received
        try:
            names = self.dra.cdi_devices(pod, pod.container(received.name))
            edits = resolve(self._cdi_dir, names)
        except (NotPreparedError, UnresolvableError) as error:
            return replace(received, waiting=str(error))
        envs = {**received.envs, **(edits.envs or {})}
        return replace(received, envs=envs, devices=(*received.devices, *edits.devices), cdi_devices=names)

    async def _allocate(self, pod: KubeletPod) -> None:
        try:
            for container in pod.containers:
                await self._allocate_container(pod, container)
        except AllocationError as error:
            raise PodRejectedError(pod, str(error)) from error

    async def _allocate_container(self, pod: KubeletPod, container: KubeletContainer) -> None:
        """All resources of one container, and then one write of the checkpoint."""
        devices = self.devices
        if await devices.allocate(pod.uid, container.name, container.limits, self._pods.keys(), self._clients):
            await self.checkpoint.write(devices)
        devices.offer_for_reuse(pod.uid, container.name, container.kind)

    def _received(self, uid: str, name: str, waiting: str | None = None) -> AdmittedContainer:
        allocations = list(self.devices.of_container(uid, name))
        self._random.shuffle(allocations)
        return received(self._pods[uid].container(name), allocations, waiting)

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append((server, path))
