"""The simulated kubelet as tests need it: it starts again, is set as they say, and its writes fail as they ask."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self, TypeVar

import grpc

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as plugin_pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.simulation import AdmittedContainer, AdmittedPod, AllocationError, KubeletPod, SimulatedKubelet
from neuron_plugin.simulation.kubelet_device_manager import CheckpointWriter, DeviceManager, PluginCallError
from neuron_plugin.simulation.kubelet_dra import DraManager
from neuron_plugin.simulation.kubelet_plugins import PluginClients, PluginConnection, _worded
from neuron_plugin.simulation.kubelet_pod_resources import PodResourcesService
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, PodRejectedError
from tests.support.device_manager import StandInDeviceManager, flat

PRE_START_SECONDS = 30.0

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


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


class RateLimit:
    """A token bucket: ``per_second`` calls, ``burst`` at once; zero per second is no limit."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = 0.0

    def allows(self, now: float) -> bool:
        """Take a token, if there is one."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._per_second and self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class LimitedPodResources(PodResourcesService):
    """PodResources with one rate limit for all clients, with ``Get``, and without ``unknown`` pods.

    Errors have the status UNKNOWN. ``serves_get`` False is a kubelet whose gate is off.
    """

    def __init__(
        self,
        devices: DeviceManager,
        pods: Mapping[str, KubeletPod],
        *,
        unknown: Collection[str],
        limit: RateLimit,
        serves_get: bool,
    ) -> None:
        super().__init__(devices, pods)
        self._unknown = unknown
        self._limit = limit
        self._serves_get = serves_get

    async def List(  # noqa: N802 - the API's name
        self,
        request: pb.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],
    ) -> pb.ListPodResourcesResponse:
        await self._admit(context)
        await super().List(request, context)  # frees devices
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active()])

    async def Get(  # noqa: N802 - the API's name
        self,
        request: pb.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse],
    ) -> pb.GetPodResourcesResponse:
        """One active pod."""
        await self._admit(context)
        if not self._serves_get:
            return await super().Get(request, context)
        for pod in self._active():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def GetAllocatableResources(  # noqa: N802 - the API's name
        self,
        request: pb.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse],
    ) -> pb.AllocatableResourcesResponse:
        await self._admit(context)
        return await super().GetAllocatableResources(request, context)

    def _active(self) -> list[KubeletPod]:
        return [pod for uid, pod in self.pods.items() if uid not in self._unknown]

    async def _admit(self, context: grpc.aio.ServicerContext[_Request, _Response]) -> None:
        if not self._limit.allows(asyncio.get_running_loop().time()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


@dataclass(eq=False)
class CountedClients(PluginClients):
    """The kubelet's side of the plugins; ``registrations`` counts those that were accepted."""

    registrations: Counter[str] = field(default_factory=Counter)

    async def connect(self, resource: str, socket: Path) -> None:
        await super().connect(resource, socket)
        self.registrations[resource] += 1


@dataclass(slots=True)
class WriteFault:
    """What happens to the next write of the checkpoint after an allocation or, with ``of_list``, after a device list.

    The kubelet takes the snapshot and writes it under different locks. So a write that is held back ``until`` an event
    can be overtaken, and an older snapshot then overwrites a newer one.
    """

    until: asyncio.Event | None = None
    fails: bool = False
    of_list: bool = False


class FailingCheckpointFile(CheckpointWriter):
    """The checkpoint; ``faults`` are those of the writes to come. ``flat_ids`` is the format before 1.20."""

    def __init__(self, directory: Path, *, flat_ids: bool) -> None:
        super().__init__(directory)
        self._flat_ids = flat_ids
        self.faults: list[WriteFault] = []
        self._process = 0

    async def write(self, devices: DeviceManager, *, of_list: bool = False) -> None:
        """Write the whole memory of the device manager.

        Raises:
            AllocationError: the write failed; memory keeps everything.
        """
        fault = next((each for each in self.faults if each.of_list == of_list), None)
        if fault is None:
            self.replace(devices.checkpoint_bytes())
            return
        self.faults.remove(fault)
        snapshot, process = devices.checkpoint_bytes(), self._process
        if fault.until:
            await fault.until.wait()
        if fault.fails or process != self._process:
            why = f"open {self.path}: {os.strerror(errno.ENOSPC).lower()}"
            raise AllocationError(f'failed to write checkpoint file "{CHECKPOINT}": {why}')
        self.replace(snapshot)

    def replace(self, content: bytes) -> None:
        super().replace(flat(content) if self._flat_ids else content)

    def read(self) -> bytes | None:
        """The content; None if there is no file."""
        return self.path.read_bytes() if self.path.exists() else None

    def abandon_writes(self) -> None:
        """The kubelet has ended: a write that is held back never happens."""
        self._process += 1


class StandInKubelet(SimulatedKubelet):
    """See `SimulatedKubelet`; tests put faults into its ``checkpoint``. ``rejections`` are the pods it failed, by UID.

    ``_running`` are the containers that run and ``_unknown`` the pods of the API server that this kubelet process has
    not reached the API server for, both by pod UID.
    """

    devices: StandInDeviceManager
    checkpoint: FailingCheckpointFile

    def __init__(
        self,
        directory: Path,
        pod_resources_directory: Path | None = None,
        *,
        random: Random | None = None,
        options: KubeletOptions | None = None,
        cgroup_root: Path | None = None,
        dra: DraManager | None = None,
        cdi_dir: Path | None = None,
    ) -> None:
        super().__init__(
            directory, pod_resources_directory, random=random, cgroup_root=cgroup_root, dra=dra, cdi_dir=cdi_dir
        )
        self.rejections: dict[str, PodRejectedError] = {}
        self._options = options or KubeletOptions()
        self.checkpoint = FailingCheckpointFile(directory, flat_ids=self._options.flat_device_ids)
        self._registrations: Counter[str] = Counter()
        self._running: dict[str, set[str]] = {}
        self._unknown: set[str] = set()
        self._terminating: dict[str, asyncio.TimerHandle] = {}
        self._stops = 0
        self._begin_process()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The process.

    def _begin_process(self) -> None:
        """What a kubelet process knows at its beginning: its checkpoint, and no plugin."""
        options = self._options
        self.devices = StandInDeviceManager(self._random, numa_affinity=options.numa_affinity)
        self.devices.load(self.checkpoint.read())
        self.devices.sources_ready = False
        self.devices.running = self._running
        self._clients = CountedClients(
            self._directory,
            self.devices,
            self.checkpoint,
            options.dial_seconds,
            options.grace_seconds,
            self._registrations,
        )
        self._pod_resources = LimitedPodResources(
            self.devices,
            self._pods,
            unknown=self._unknown,
            limit=RateLimit(options.pod_resources_per_second, options.pod_resources_burst),
            serves_get=options.pod_resources_get,
        )
        self._registered_before = frozenset(self.devices.resources())

    async def start(self, *, api_reachable: bool = True) -> None:
        """Wipe the directory's sockets, serve, and admit the pods of before again.

        Without the API server these are the static pods alone, and nothing is freed until `reach_api`.
        """
        for path in self._directory.iterdir():  # the checkpoint, plain files and sub-directories stay
            with contextlib.suppress(FileNotFoundError):  # a plugin may remove its own at this moment
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        self._begin_process()
        await super().start()
        self._unknown.update(self._pods)
        if self._pods:
            await asyncio.sleep(self._options.sync_delay)
        await self._admit_again([pod for pod in self._pods.values() if is_static(pod)])
        if api_reachable:
            await self.reach_api()

    async def reach_api(self) -> None:
        """The API server has answered: admit its pods again, and free devices of ended pods from now on."""
        await self._admit_again([pod for uid, pod in self._pods.items() if uid in self._unknown])
        self.devices.sources_ready = True

    async def stop(self) -> None:
        """End as a kubelet does: streams end, calls are cut off, dead socket files stay behind."""
        self._stops += 1
        self.checkpoint.abandon_writes()
        paths = [path for _, path in self._servers]
        await super().stop()
        for path in paths:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(str(path))
        self._begin_process()

    async def restart(self) -> None:
        """Stop and start; running containers go on, allocations are remembered, plugins are not."""
        await self.stop()
        await self.start()

    # Pods.

    async def admit(self, pod: KubeletPod) -> AdmittedPod:
        """As `SimulatedKubelet`, and remember a rejection.

        Raises:
            PodRejectedError: the pod has failed for good.
            KubeletStoppedError: neither that nor admitted.
        """
        self._running[pod.uid] = set()
        self._unknown.discard(pod.uid)
        stops = self._stops
        try:
            return await super().admit(pod)
        except PodRejectedError as rejection:
            self._reject(rejection, stops)
            raise

    async def start_container(self, uid: str, name: str) -> AdmittedContainer:
        """Start or restart a container of a live pod: PreStartContainer where a plugin asked for it.

        Allocate is called only for a container with nothing recorded, as after a lost checkpoint. If a call fails, the
        answer says so (``waiting``) and the container may be started again.
        """
        container = self._pods[uid].container(name)
        try:
            await self._prepare(self._pods[uid], container)
        except AllocationError as error:
            return self._received(uid, name, str(error))
        if container.kind is not ContainerKind.INIT:
            self._running[uid].add(name)
        if timer := self._terminating.pop(uid, None):
            timer.cancel()  # the same static pod is back
        return await super().start_container(uid, name)

    def finish(self, uid: str) -> KubeletPod:
        self._running.pop(uid)
        self._unknown.discard(uid)
        return super().finish(uid)

    async def _prepare(self, pod: KubeletPod, container: KubeletContainer) -> None:
        """The calls before a container's start (``GetDeviceRunContainerOptions``)."""
        recorded = {each.resource: sorted(each.ids) for each in self.devices.of_container(pod.uid, container.name)}
        resources = list(dict.fromkeys([*recorded, *(name for name, _ in self.devices.wanted(container.limits))]))
        self._random.shuffle(resources)
        for resource in resources:
            endpoint = self._clients.endpoints.get(resource)
            if endpoint is None and resource not in self._registered_before:
                raise PluginCallError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint is None or not endpoint.options.pre_start_required:
                continue
            if resource not in recorded:
                where = f"pod {pod.uid}, container {container.name}, resource {resource}"
                raise PluginCallError(f"no devices found allocated in local cache for {where}")
            self._random.shuffle(recorded[resource])
            await _pre_start(endpoint, recorded[resource])
        if len(resources) > len(recorded):
            await self._allocate_container(pod, container)

    async def _admit_again(self, pods: Collection[KubeletPod]) -> None:
        """After a start every pod goes through admission once more; a failure ends it, whatever its restart policy."""
        async with self._admission:
            for pod in pods:
                self._unknown.discard(pod.uid)
                stops = self._stops
                try:
                    await self._allocate(pod)
                except PodRejectedError as rejection:
                    self._reject(rejection, stops)

    def _reject(self, rejection: PodRejectedError, stops: int) -> None:
        pod = rejection.pod
        if self._stops != stops:
            self._pods[pod.uid] = pod
            raise KubeletStoppedError(f"the kubelet stopped under the admission of {pod.name}") from rejection
        self.rejections[pod.uid] = rejection
        self._pods[pod.uid] = pod
        self._terminate(self._forget(pod.uid))

    def _forget(self, uid: str) -> KubeletPod:
        self._running.pop(uid)
        self._unknown.discard(uid)
        if task := self._preparing.get(uid):
            task.cancel()
        return self._pods.pop(uid)

    def _terminate(self, pod: KubeletPod) -> None:
        """Let the processes of a pod that the kubelet no longer has run on for a while."""
        if self._cgroups:
            loop = asyncio.get_running_loop()
            seconds = self._options.termination_seconds
            self._terminating[pod.uid] = loop.call_later(seconds, self._cgroups.remove, pod)

    # What happens only in tests.

    def spoil_checkpoint(self, content: bytes | None = b"spoiled") -> None:
        """Put other content in the checkpoint's place; None removes the file.

        A kubelet that runs replaces it at its next write, one that starts cannot read what was allocated and goes on.
        """
        if content is None:
            self.checkpoint.path.unlink(missing_ok=True)
        else:
            CheckpointWriter.replace(self.checkpoint, content)

    def registration_count(self, resource: str) -> int:
        """Accepted registrations of a resource since the beginning, over all restarts."""
        return self._registrations[resource]

    async def connect(self, resource: str, socket: Path) -> None:
        """Register a plugin by its socket, as the plugin watcher does.

        Raises:
            PluginCallError: an impossible name, or the plugin does not answer.
        """
        await self._clients.connect(resource, socket)

    async def disconnect(self, resource: str) -> None:
        """Drop a live plugin for no reason it could know of, as the kubelet's book-keeping by name can."""
        await self._clients.disconnect(resource)

    async def resize(self, uid: str) -> None:
        """Admit a live pod again with other CPU or memory; no plugin is asked, and nothing a pod holds changes.

        Raises:
            PodRejectedError: it is not granted, and the pod runs on as it was.
        """
        async with self._admission:
            await self._allocate(self._pods[uid])

    def stop_container(self, uid: str, name: str) -> None:
        """A container of a live pod has died; what it holds stays its own."""
        self._running[uid].discard(name)

    def remove_while_running(self, uid: str) -> KubeletPod:
        """A pod is gone though its processes run on: force deletion, a lost Node object, a static manifest removed.

        The kubelet keeps its entry until the next cleaning of memory, and may offer its devices from then on. The
        processes run for ``termination_seconds``.
        """
        pod = self._forget(uid)
        self._terminate(pod)
        return pod

    def device_health(self, uid: str, container: str) -> Mapping[str, str]:
        """The health of each id a container holds, as the pod's status shows it: an absent device looks Healthy."""
        return {
            each: device.health if (device := self.devices.devices(allocation.resource).get(each)) else "Healthy"
            for allocation in self.devices.of_container(uid, container)
            for each in allocation.ids
        }


def is_static(pod: KubeletPod) -> bool:
    """Whether the pod comes from a manifest on the node: its UID is then a hash of that."""
    return re.fullmatch(r"[0-9a-f]{32}", pod.uid) is not None


async def _pre_start(endpoint: PluginConnection, ids: Collection[str]) -> None:
    """Announce the start of a container."""
    prefix = "device plugin PreStartContainer rpc failed with err: "
    endpoint._require_running(prefix)
    request = plugin_pb.PreStartContainerRequest(devices_ids=ids)
    await _worded(endpoint._stub.PreStartContainer(request, timeout=PRE_START_SECONDS), prefix)
