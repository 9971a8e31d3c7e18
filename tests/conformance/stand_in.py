"""The suite's node without a cluster: stand-in kubelet and API server, the daemon in this process.

What a kubelet does between the API server and its containers is done here: admit, start again, tell phases.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.allocation import ContainerKind, Resource
from neuron_plugin.kubelet import PodResourcesClient
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.times import DaemonTimes
from neuron_plugin.simulation import AdmittedContainer, PodRejectedError, kubelet_pods, write_node
from neuron_plugin.simulation.api_server_kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, AnyJson
from neuron_plugin.simulation.claim_controller import sync_claims
from neuron_plugin.simulation.kubelet import KubeletOptions, SimulatedKubelet
from neuron_plugin.simulation.kubelet_claims import NotPreparedError
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.worker import ApiOfNode
from neuron_plugin.topology import catalogue
from tests.conformance.claims import allocated, claim_manifest, health_of, offered
from tests.conformance.node import (
    INSTANCE_TYPE,
    OPENABLE,
    Ability,
    Capacity,
    ContainerSpec,
    ContainerView,
    PodSpec,
    PodView,
    Received,
)
from tests.support.api_server import StandInApiServer

NODE = "stand-in"
DRA_TIMES = DraManagerTimes(retry=0.1, watcher=0.05, health=0.1, wipe=0.5, reconcile=0.2)
HOLD = "import os, sys; os.open(sys.argv[1], os.O_RDONLY); print('open', flush=True); sys.stdin.read()"
LINGER_SECONDS = 0.5
"""How long the process of a pod deleted by force is left alone; a kubelet gives it two seconds."""
NAMESPACE = "default"


class _LivePod:
    """A pod from its creation to its end, with the last start of each container."""

    def __init__(self, spec: PodSpec, uid: str) -> None:
        self.spec = spec
        self.pod = kubelet_pods.KubeletPod(
            uid,
            NAMESPACE,
            spec.name,
            tuple(
                kubelet_pods.KubeletContainer(
                    each.name, each.limits, each.kind, tuple((name, "") for name in each.claims)
                )
                for each in spec.containers
            ),
            {name: name for name in spec.claims},
        )
        self.admission: asyncio.Task[None] | None = None
        self.phase, self.reason, self.message = "Pending", "", ""
        self.started: dict[str, AdmittedContainer] = {}
        self.starts: dict[str, int] = {}
        self.resize, self.cpu = "", next((each.compute.get("cpu", "") for each in spec.containers), "")

    def start(self, container: AdmittedContainer) -> None:
        self.started[container.name] = container
        if container.waiting is None:
            self.starts[container.name] = self.starts.get(container.name, 0) + 1


class StandInNode:
    """See ``node.Node``."""

    patience_seconds = 10.0
    poll_seconds = 0.01
    grace_seconds = 0.5

    def __init__(self, root: Path) -> None:
        self.machine = write_node(root / "node", INSTANCE_TYPE, usage_counters=False)
        self.kubelet_dir = root / "dp"
        self._root = root
        for name in ("dp", "pr", "reg"):
            (root / name).mkdir()
        self._api = StandInApiServer()
        self._dra = DraManager(root, ApiOfNode(self._api, NODE), DRA_TIMES)
        options = KubeletOptions(
            grace_seconds=self.grace_seconds, termination_seconds=LINGER_SECONDS, watcher_seconds=0.05
        )
        self._kubelet = SimulatedKubelet(
            self.kubelet_dir,
            root / "pr",
            random=Random(1),  # noqa: S311 - the order of Go's maps
            options=options,
            plugins_registry=root / "reg",
            cgroup_root=root / "cgroup",
            dra=self._dra,
            cdi_dir=root / "cdi",
        )
        self.pod_resources_socket = root / "pr/kubelet.sock"
        self.pod_resources = PodResourcesClient(self.pod_resources_socket)
        self._pods: dict[str, _LivePod] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._kubelet_runs = True
        self._stop_plugin = asyncio.Event()
        self._plugin: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, root: Path) -> AsyncIterator[StandInNode]:
        """The node while the block lasts, without a plugin."""
        node = cls(root)
        async with node._api, node._kubelet:
            node._api.create_node({"metadata": {"name": NODE}})
            yield node
            await node.stop_plugin()
            for process in node._processes.values():
                await _kill(process)

    def require(self, ability: Ability) -> None:
        del ability  # it can do everything

    # The plugin.

    async def start_plugin(self, **settings: object) -> None:
        paths = self.machine.paths
        fixed: dict[str, object] = {
            "node_name": NODE,
            "kubeconfig": self._api.write_kubeconfig(self._root / "kubeconfig"),
            "sysfs": paths.sysfs,
            "dev": paths.dev,
            "logical_core_file": paths.logical_nc_config,
            "kubelet_dir": self.kubelet_dir,
            "plugins_registry": self._root / "reg",
            "pod_resources_socket": self.pod_resources_socket,
            "cdi_dir": self._root / "cdi",
            "cgroup": self._root / "cgroup",
        }
        times = DaemonTimes(empty=0.3)  # of a minute that a real node may take
        daemon = NodeDaemon(_settings({**fixed, **settings}), catalogue(), times=times)
        self._stop_plugin = asyncio.Event()
        self._plugin = asyncio.create_task(daemon.run(self._stop_plugin), name="plugin")

    async def stop_plugin(self) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin:
            self._stop_plugin.set()
            await plugin
            await self._notice_the_end()

    async def _notice_the_end(self) -> None:
        """A process takes longer to start than a kubelet to notice the last one's end; in one process it would not.

        A kubelet that is down notices nothing.
        """
        with contextlib.suppress(TimeoutError):
            for resource in Resource:
                await self._kubelet.wait_for_capacity(resource.value, 0, timeout_seconds=1)

    async def kill_plugin(self) -> None:
        await self.stop_plugin()

    # Pods.

    async def create(self, pod: PodSpec) -> None:
        manifest: AnyJson = {
            "metadata": {"name": pod.name, "namespace": NAMESPACE, "annotations": dict(pod.annotations)},
            "spec": {
                "initContainers": [_container(each) for each in pod.containers if each.kind is not ContainerKind.APP],
                "containers": [_container(each) for each in pod.containers if each.kind is ContainerKind.APP],
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in pod.claims],
            },
        }
        created = self._api.create_pod(manifest)
        live = self._pods[pod.name] = _LivePod(pod, created["metadata"]["uid"])
        self._api.bind(NAMESPACE, pod.name, node=NODE)
        if pod.claims:  # which may have to wait
            sync_claims(self._api)
            live.admission = asyncio.create_task(self._admit(live), name=f"admit {pod.name}")
        else:
            await self._admit(live)

    async def _admit(self, live: _LivePod) -> None:
        pod = live.spec
        try:
            admitted = await self._kubelet.admit(live.pod)
        except PodRejectedError as rejection:
            self._reject(live, rejection)
            return
        except kubelet_pods.PodGoneError:
            return
        for container in admitted.containers:
            live.start(container)
        if any(each.opens for each in pod.containers):
            self._processes[pod.name] = await self._open()
        exits = [each.exits for each in pod.containers if each.kind is ContainerKind.APP and each.exits is not None]
        if exits:
            self._end(live, "Failed" if any(exits) else "Succeeded")
        else:
            self._tell(live, "Running")

    async def view(self, name: str) -> PodView | None:
        live = self._pods.get(name)
        if live is None:
            return None
        if live.phase == "Running":
            rejection = self._kubelet.rejections.get(live.pod.uid)
            if rejection:
                self._reject(live, rejection)
            elif self._kubelet_runs:
                await self._start_waiting(live)
        containers = {each.name: self._container_view(live, each.name) for each in live.spec.containers}
        metadata = self._api.get(PODS, name, NAMESPACE)["metadata"]
        return PodView(
            uid=live.pod.uid,
            phase=live.phase,
            reason=live.reason,
            message=live.message,
            containers=containers,
            annotations=metadata.get("annotations") or {},
            labels=metadata.get("labels") or {},
            resize=live.resize,
            cpu=live.cpu,
        )

    async def delete(self, name: str, *, force: bool = False) -> None:
        live = self._pods.pop(name)
        if live.phase in ("Pending", "Running"):
            if force:
                self._kubelet.remove_while_running(live.pod.uid)
            else:
                self._kubelet.finish(live.pod.uid)
                with contextlib.suppress(NotPreparedError):  # the kubelet does it later
                    await self._kubelet.unprepare(live.pod)
                self._tell(live, "Succeeded")
        if live.admission:
            await live.admission
        self._api.delete_pod(NAMESPACE, name, grace_seconds=0)
        sync_claims(self._api)
        if process := self._processes.get(name):
            asyncio.get_running_loop().call_later(LINGER_SECONDS if force else 0, process.kill)

    async def end_containers(self, name: str) -> None:
        live = self._pods[name]
        for container in live.spec.containers:
            if container.kind is not ContainerKind.INIT:
                self._kubelet.stop_container(live.pod.uid, container.name)
                del live.started[container.name]

    async def processes(self, name: str) -> Collection[int]:
        process = self._processes.get(name)
        return {process.pid} if process and process.returncode is None else set()

    async def _open(self) -> asyncio.subprocess.Process:
        """A process that keeps a device open as one of a container does."""
        path = self.machine.paths.dev / f"neuron{OPENABLE}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return process

    async def claim(self, name: str, *devices: str) -> None:
        self._api.create(RESOURCE_CLAIMS, claim_manifest(name), NAMESPACE)
        self._api.change(RESOURCE_CLAIMS, name, {"status": allocated(NODE, devices)}, NAMESPACE, "status")

    async def slice(self) -> Mapping[str, tuple[str, ...]]:
        return offered(self._api.objects(RESOURCE_SLICES), NODE)

    async def annotate_node(self, key: str, value: str | None) -> None:
        self._api.patch_node(NODE, {"metadata": {"annotations": {key: value}}})

    async def resize(self, name: str, cpu: str) -> None:
        live = self._pods[name]
        try:
            await self._kubelet.resize(live.pod.uid)
            live.resize, live.cpu = "", cpu
        except PodRejectedError as rejection:
            live.resize = f"{rejection.reason}: {rejection}"

    async def _start_waiting(self, live: _LivePod) -> None:
        for container in live.spec.containers:
            started = live.started.get(container.name)
            if started is None or started.waiting:
                live.start(await self._kubelet.start_container(live.pod.uid, container.name))

    def _container_view(self, live: _LivePod, name: str) -> ContainerView:
        container = live.started.get(name)
        by_claims = self._dra.status(live.pod, live.pod.container(name)) if live.phase == "Running" else []
        health = {**self._kubelet.device_health(live.pod.uid, name), **health_of(by_claims)}
        if container is None:
            return ContainerView(starts=live.starts.get(name, 0), health=health)
        nodes = (node.container_path.rpartition("/")[2] for node in container.devices)
        # Those of claims are resolved already.
        cdi = (f"neuron{device.rpartition('-')[2]}" for device in container.cdi_devices if not live.pod.claims)
        return ContainerView(
            running=live.phase == "Running" and container.waiting is None,
            starts=live.starts.get(name, 0),
            waiting=container.waiting or "",
            received=Received(container.envs, tuple(sorted((*nodes, *cdi)))),
            health=health,
        )

    def _reject(self, live: _LivePod, rejection: PodRejectedError) -> None:
        live.reason, live.message = rejection.reason, str(rejection)
        self._tell(live, "Failed")

    def _end(self, live: _LivePod, phase: str) -> None:
        self._kubelet.finish(live.pod.uid)
        self._tell(live, phase)

    def _tell(self, live: _LivePod, phase: str) -> None:
        live.phase = phase
        status: AnyJson = {"phase": phase, "reason": live.reason, "message": live.message}
        self._api.set_pod_status(NAMESPACE, live.spec.name, status)

    # The kubelet.

    async def capacity(self, resource: str) -> Capacity:
        shown = self._kubelet.capacity(resource)
        return Capacity(shown.capacity, shown.allocatable)

    async def restart_kubelet(self) -> None:
        await self._kubelet.restart()

    async def stop_kubelet(self) -> None:
        self._kubelet_runs = False
        await self._kubelet.stop()

    async def start_kubelet(self) -> None:
        await self._kubelet.start()
        self._kubelet_runs = True

    async def spoil_checkpoint(self) -> None:
        self._kubelet.spoil_checkpoint()


def _settings(values: Mapping[str, object]) -> PluginSettings:
    """As a configuration file with these values would be read."""
    plain = msgspec.to_builtins({name.replace("_", "-"): value for name, value in values.items()}, enc_hook=str)
    settings = msgspec.convert(plain, PluginSettings, dec_hook=lambda kind, value: kind(value))
    return msgspec.structs.replace(settings, rescan_seconds=0.1)  # nobody may set so little


def _container(spec: ContainerSpec) -> AnyJson:
    """A container as the API server has it."""
    sidecar = {"restartPolicy": "Always"} if spec.kind is ContainerKind.SIDECAR else {}
    return {"name": spec.name, "resources": spec.resources, **sidecar}


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()
