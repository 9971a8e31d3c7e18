"""A whole node for end-to-end tests: simulated hardware, a stand-in kubelet, a stand-in API server and the daemon."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.allocation import Assignment, ContainerKind, Ledger, PodUid, Resource
from neuron_plugin.allocation.assignment import read_assignment
from neuron_plugin.allocation.requests import ContainerSpec, pod_request
from neuron_plugin.kubelet import DevicePluginServer
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.machine import DaemonTimes
from neuron_plugin.plugin.settings import Numbering, PluginSettings
from neuron_plugin.simulation import AdmittedPod, KubeletContainer, KubeletPod, SimulatedNode, write_node
from neuron_plugin.simulation.api_server_kinds import EVENTS, NODES, PODS, AnyJson
from neuron_plugin.topology import catalogue
from tests.plugin.world import TRN1, assignment, uid_of
from tests.support.api_server import StandInApiServer
from tests.support.kubelet import StandInKubelet

NODE = "worker-1"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - private directories in it
_MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
"""Where a simulated node's 1 500 small files are gone again in no time."""

NAMESPACE = "default"

HASTY = DaemonTimes(turn=0.02, quiet=0.05, empty=0.3, read_node=0.5, starts=0.05)
"""The daemon's rhythm in milliseconds, for tests with a real clock."""


def decision_of(*containers: ContainerSpec, sets: Sequence[Sequence[int]], time: int = 1) -> dict[str, str]:
    """The annotations by which the extender gives these sets to a trn1.32xlarge's pod."""
    return assignment(TRN1, containers, sets, time)


@dataclass
class Site:
    """The parts; ``api`` None is a node without a cluster."""

    node: SimulatedNode
    kubelet: StandInKubelet
    api: StandInApiServer | None
    settings: PluginSettings
    times: DaemonTimes = HASTY
    specs: dict[str, tuple[ContainerSpec, ...]] = field(default_factory=dict)
    kubelet_pods: dict[str, KubeletPod] = field(default_factory=dict)

    @asynccontextmanager
    async def daemon(self, *, registered: bool = True) -> AsyncIterator[NodeDaemon]:
        """The daemon while the block lasts; by default from when the kubelet has all of its resources."""
        stop = asyncio.Event()
        daemon = NodeDaemon(self.settings, catalogue(), times=self.times)
        running = asyncio.create_task(daemon.run(stop), name="daemon")
        try:
            if registered:
                await eventually(lambda: all(map(self.is_offered, daemon.kubelet.servers)))
                if self.api:
                    await eventually(lambda: daemon.node.pods.listed_at is not None or self.api_is_down)
            yield daemon
        finally:
            stop.set()
            await running
        assert not list(self.settings.kubelet_dir.glob("neuron*.sock")), "an end leaves no socket"
        jobs = {"hardware", "kubelet", "publish", "turns", "cdi"}
        assert not jobs & {task.get_name() for task in asyncio.all_tasks()}, "nor a task"

    def is_offered(self, server: DevicePluginServer) -> bool:
        """Whether the kubelet has the list, too: before, a pod runs without the devices it asks for."""
        return server.registered.is_set() and self.kubelet.capacity(server.resource).capacity > 0

    @property
    def api_is_down(self) -> bool:
        return self.api is not None and self.api._runner is None

    def create(
        self, name: str, *containers: ContainerSpec, annotations: Mapping[str, str] | None = None, uid: str = ""
    ) -> None:
        """A pod is made and bound to this node."""
        made = uid or uid_of(name)
        self.specs[name] = containers
        self.kubelet_pods[name] = kubelet_pod(name, made, containers)
        if self.api:
            self.api.create_pod(manifest(name, made, containers))
            self.api.bind(NAMESPACE, name, node=NODE, annotations=annotations)

    async def admit(self, name: str) -> AdmittedPod:
        return await self.kubelet.admit(self.kubelet_pods[name])

    async def run(
        self, name: str, *containers: ContainerSpec, annotations: Mapping[str, str] | None = None
    ) -> AdmittedPod:
        self.create(name, *containers, annotations=annotations)
        return await self.admit(name)

    def end(self, name: str) -> None:
        """The containers are dead, the kubelet says so, and the pod is gone from the API server."""
        self.kubelet.finish(self.kubelet_pods.pop(name).uid)
        if self.api:
            ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
            self.api.set_pod_status(NAMESPACE, name, {"phase": "Succeeded", "containerStatuses": [ended]})
            self.api.delete_pod(NAMESPACE, name, grace_seconds=0)

    def annotations(self, name: str) -> dict[str, str]:
        assert self.api is not None
        found: dict[str, str] = self.api.get(PODS, name, NAMESPACE)["metadata"].get("annotations") or {}
        return found

    def decision(self, name: str) -> Assignment | None:
        return read_assignment(name, self.annotations(name), pod_request(self.specs[name]))

    def decided_ids(self, name: str) -> list[tuple[int, ...]]:
        decision = self.decision(name)
        return [part.ids for part in decision.containers] if decision else []

    async def confirmed(self, daemon: NodeDaemon, *names: str) -> None:
        await eventually(lambda: all(self.is_recorded(daemon, name) for name in names))

    def is_recorded(self, daemon: NodeDaemon, name: str) -> bool:
        """Whether the daemon has read all of the pod's containers in the kubelet's checkpoint."""
        uid = self.kubelet_pods[name].uid
        recorded = {key.container for key in daemon.node.recorded.entries if key.uid == uid}
        return recorded >= {part.name for part in pod_request(self.specs[name])}

    async def annotated(self, *names: str) -> None:
        await eventually(lambda: all(self.annotations(name).get("NEURON_ALLOCATED") == "true" for name in names))

    def event_reasons(self) -> list[str]:
        assert self.api is not None
        return [event["reason"] for event in self.api.objects(EVENTS)]

    def node_annotations(self) -> dict[str, str]:
        assert self.api is not None
        found: dict[str, str] = self.api.get(NODES, NODE)["metadata"].get("annotations") or {}
        return found


@asynccontextmanager
async def a_site(
    instance_type: str = "trn1.32xlarge",
    *,
    cluster: bool = True,
    driver_version: str = "",
    usage_counters: bool = False,
    resources: tuple[str, ...] = (),
) -> AsyncIterator[Site]:
    """A node of this type, with everything but the daemon running."""
    with tempfile.TemporaryDirectory(prefix="np-", dir=_MEMORY) as directory:
        root = Path(directory)
        plugins, pod_resources = root / "dp", root / "pr"
        plugins.mkdir()
        pod_resources.mkdir()
        node = write_node(root / "node", instance_type, driver_version=driver_version, usage_counters=usage_counters)
        async with AsyncExitStack() as stack:
            random = Random(1)  # noqa: S311 - the order of Go's maps
            kubelet = StandInKubelet(plugins, pod_resources, random=random, cgroup_root=root / "cgroup")
            await stack.enter_async_context(kubelet)
            api = await stack.enter_async_context(StandInApiServer()) if cluster else None
            if api:
                api.create_node({"metadata": {"name": NODE}})
            yield Site(node, kubelet, api, settings_for(root, node, api, resources))


def settings_for(
    root: Path, node: SimulatedNode, api: StandInApiServer | None, resources: tuple[str, ...]
) -> PluginSettings:
    settings = PluginSettings(
        node_name=NODE,
        cluster=api is not None,
        kubeconfig=api.write_kubeconfig(root / "kubeconfig") if api else None,
        sysfs=node.paths.sysfs,
        dev=node.paths.dev,
        logical_core_file=node.paths.logical_nc_config,
        kubelet_dir=root / "dp",
        plugins_registry=root / "registry",
        pod_resources_socket=root / "pr" / "kubelet.sock",
        cdi_dir=root / "cdi",
        cgroup=root / "cgroup",
        rescan_seconds=0.1,
        decision_deadline_seconds=0.5,
        numbering=Numbering.HOST,
    )
    if not resources:
        return settings
    chosen = tuple(name for name in settings.resources if name.value in resources)
    return msgspec.structs.replace(settings, resources=chosen)


def kubelet_pod(name: str, uid: str, containers: tuple[ContainerSpec, ...]) -> KubeletPod:
    return KubeletPod(
        uid,
        NAMESPACE,
        name,
        tuple(
            KubeletContainer(each.name, {key: int(value) for key, value in each.limits.items()}, each.kind)
            for each in containers
        ),
    )


def manifest(name: str, uid: str, containers: tuple[ContainerSpec, ...]) -> AnyJson:
    return {
        "metadata": {"name": name, "uid": uid, "namespace": NAMESPACE},
        "spec": {
            "initContainers": [_container(each) for each in containers if each.kind is not ContainerKind.APP],
            "containers": [_container(each) for each in containers if each.kind is ContainerKind.APP],
        },
    }


def _container(spec: ContainerSpec) -> AnyJson:
    sidecar = {"restartPolicy": "Always"} if spec.kind is ContainerKind.SIDECAR else {}
    return {"name": spec.name, "resources": {"limits": dict(spec.limits)}, **sidecar}


def holders(daemon: NodeDaemon) -> set[PodUid]:
    return set(ledger(daemon).by_pod)


def ledger(daemon: NodeDaemon) -> Ledger:
    assert daemon.node.snapshot
    return daemon.node.snapshot.ledger


def ids(admitted: AdmittedPod, resource: Resource, container: str = "app") -> tuple[int, ...]:
    return tuple(int(each) for each in admitted.container(container).ids[resource.value])


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for what no event tells a test."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
