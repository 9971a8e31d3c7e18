"""A cluster of one simulated node: machine, kubelet, API server and scheduler are simulated, our two daemons are real.

The daemons run as processes of their own and meet the simulated parts over the same sockets, files and messages as in a
real cluster. What a kubelet does between the API server and the node is done here: admit a bound pod, write its phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.cluster import PODS
from neuron_plugin.cluster import Pod as PodRecord
from neuron_plugin.extender.state import NODE_REFUSALS
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_kinds import JsonObject
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_pods import AdmittedPod, Container, Pod, PodRejectedError
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.scheduler import FilterAnswer, SimulatedScheduler

NODE_NAME = "simulated-node"
READY_SECONDS = 60.0
STOP_SECONDS = 10.0

_SERVING = re.compile(r'"message":"serving".*?"port":(\d+)')


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """A pod to create: its containers' limits by container name, init containers apart."""

    name: str
    containers: Mapping[str, Mapping[str, int]]
    init_containers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def manifest(self) -> JsonObject:
        """The pod as a user would apply it."""
        return {
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "containers": [_container(name, limits) for name, limits in self.containers.items()],
                "initContainers": [_container(name, limits) for name, limits in self.init_containers.items()],
            },
        }


class SimulatedCluster:
    """An async context: everything is up inside it, and gone after it."""

    def __init__(self, root: Path, instance_type: str, *, daemon_flags: Sequence[str] = ()) -> None:
        """All files are made under ``root``; ``cgroup_root`` is the node's ``/sys/fs/cgroup``."""
        self.root = root
        self.cgroup_root = root / "cgroup"
        self.kubelet_dir = root / "dp"
        self.pod_resources_dir = root / "pr"
        self._daemon_flags = tuple(daemon_flags)
        self.node: SimulatedNode = write_node(root / "node", instance_type, usage_counters=False)
        for directory in (self.kubelet_dir, self.pod_resources_dir):
            directory.mkdir()
        self.api = SimulatedApiServer()
        chance = Random(0)  # noqa: S311 - chooses ids, guards nothing; every demo goes the same way
        self.kubelet = SimulatedKubelet(
            self.kubelet_dir, self.pod_resources_dir, random=chance, cgroup_root=self.cgroup_root
        )
        self._daemon: asyncio.subprocess.Process | None = None
        self._extender: asyncio.subprocess.Process | None = None
        self._scheduler: SimulatedScheduler | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.api.start()
            self.api.create_node({"metadata": {"name": NODE_NAME}})
            await self.kubelet.start()
            await self.start_daemon()
            await self._start_extender()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scheduler:
            await self._scheduler.__aexit__(kind, error, traceback)
        await self.stop_daemon()
        await _end(self._extender)
        await self.kubelet.stop()
        await self.api.stop()

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet serves PodResources."""
        return self.pod_resources_dir / "kubelet.sock"

    async def start_daemon(self) -> None:
        """Start the node daemon; its log goes to ``plugin.log``."""
        flags = {
            "--node-name": NODE_NAME,
            "--kubeconfig": self._kubeconfig("plugin"),
            "--sysfs": self.node.paths.sysfs,
            "--dev": self.node.paths.dev,
            "--logical-core-file": self.node.paths.logical_nc_config,
            "--kubelet-dir": self.kubelet_dir,
            "--pod-resources-socket": self.pod_resources_socket,
            "--health-port": 0,
        }
        self._daemon = await self._start("plugin", "run", flags, *self._daemon_flags)

    async def stop_daemon(self) -> int | None:
        """Ask the node daemon to end, as Kubernetes would; its exit status, or None when it did not run."""
        daemon, self._daemon = self._daemon, None
        return await _end(daemon)

    async def kill_daemon(self) -> None:
        """End the node daemon by SIGKILL."""
        if self._daemon is not None:
            self._daemon.kill()
            await self._daemon.wait()
            self._daemon = None

    async def _start_extender(self) -> None:
        """Start the extender, its log in ``extender.log``, and wait until it serves."""
        flags = {
            "--kubeconfig": self._kubeconfig("extender"),
            "--port": 0,
            "--health-address": "127.0.0.1",
            "--health-port": 0,
            "--log-format": "json",
        }
        self._extender = await self._start("extender", "extender", flags)
        url = f"http://127.0.0.1:{await self._extender_port(self._extender)}"
        self._scheduler = await SimulatedScheduler(f"{url}/scheduler").__aenter__()
        await self._wait_until_ready(f"{url}/readyz")

    async def _extender_port(self, extender: asyncio.subprocess.Process) -> int:
        """The port that the extender was given, from its log: one chosen here might be taken before it starts."""
        log = self.root / "extender.log"
        async with asyncio.timeout(READY_SECONDS):
            while not (serving := _SERVING.search(log.read_text())):
                if extender.returncode is not None:
                    raise RuntimeError(f"the extender ended with {extender.returncode}: {log.read_text()[-500:]}")
                await asyncio.sleep(0.05)
        return int(serving[1])

    async def _start(
        self, log: str, command: str, flags: Mapping[str, object], *more: str
    ) -> asyncio.subprocess.Process:
        texts = [text for flag, value in flags.items() for text in (flag, str(value))]
        with (self.root / f"{log}.log").open("ab") as stream:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "neuron_plugin.cli.main", command, *texts, *more, stderr=stream
            )

    def _kubeconfig(self, user: str) -> Path:
        return self.api.write_kubeconfig(self.root / f"kubeconfig-{user}", user)

    async def _wait_until_ready(self, url: str) -> None:
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.05)

    async def filter(self, name: str) -> FilterAnswer:
        """Do the scheduler's part: ask the extender whether the node takes a pod.

        As a scheduler does, it asks again while the answer is about the node, not about the pod: before the node is
        known, or while its plugin is away.

        Raises:
            TimeoutError: the node does not become ready for pods.
        """
        passing = {refusal.text for refusal in NODE_REFUSALS}
        async with asyncio.timeout(READY_SECONDS):
            while True:
                pod = self.api.get(SERVED_PODS, name, "default")
                answer = await self._open_scheduler().filter(pod, [NODE_NAME])
                if passing.isdisjoint({*answer.failed.values(), *answer.unresolvable.values()}):
                    return answer
                await asyncio.sleep(0.05)

    async def bind(self, name: str) -> None:
        """Do the scheduler's part: have the extender bind a pod to the node.

        Raises:
            ExtenderCallError: the extender refused or failed.
        """
        await self._open_scheduler().bind(self.api.get(SERVED_PODS, name, "default"), NODE_NAME)

    def _open_scheduler(self) -> SimulatedScheduler:
        if self._scheduler is None:
            raise RuntimeError("the simulated cluster is not up: use it as 'async with SimulatedCluster(...)'")
        return self._scheduler

    async def wait_until_offered(self, resource: Resource, count: int) -> None:
        """Wait until the kubelet has so many healthy ids of a resource.

        Raises:
            TimeoutError: with the last lines of the daemon's log.
        """
        try:
            await self.kubelet.wait_for_capacity(resource.value, count, timeout_seconds=READY_SECONDS)
        except TimeoutError as error:
            last = "\n".join((self.root / "plugin.log").read_text().splitlines()[-5:])
            raise TimeoutError(f"{error}; the daemon's log ends with:\n{last}") from error

    async def wait_for_annotation(self, pod: str, key: str, value: str) -> None:
        """Wait until an annotation of a pod reads so."""
        async with asyncio.timeout(READY_SECONDS):
            while self.pod(pod).annotations.get(key) != value:  # noqa: ASYNC110 - polled, as a user would
                await asyncio.sleep(0.02)

    def pod(self, name: str) -> PodRecord:
        """A pod as the API server has it."""
        return PODS.decode(msgspec.json.encode(self.api.get(SERVED_PODS, name, "default")))

    async def admit(self, name: str) -> AdmittedPod:
        """Do the kubelet's part for a pod that was bound to this node, and return what its containers received.

        Raises:
            PodRejectedError: the kubelet failed the pod, as its phase then says.
        """
        record, resources = self.pod(name), set(Resource)
        containers = [
            Container(one.name, {key: int(count) for key, count in one.limits.items() if key in resources}, kind)
            for one, kind in record.containers
        ]
        try:
            admitted = await self.kubelet.admit(Pod(record.uid, record.namespace, name, tuple(containers)))
        except PodRejectedError as error:
            status: JsonObject = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": str(error)}
            self.api.set_pod_status("default", name, status)
            raise
        self.api.set_pod_status("default", name, {"phase": "Running"})
        return admitted

    def end(self, name: str) -> None:
        """The pod's containers have ended, which the kubelet says first, and the object is deleted."""
        self.kubelet.finish(self.pod(name).uid)
        ended: JsonObject = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
        self.api.set_pod_status("default", name, {"phase": "Succeeded", "containerStatuses": [ended]})
        self.api.delete_pod("default", name, grace_seconds=0)


async def _end(process: asyncio.subprocess.Process | None) -> int | None:
    if process is None or process.returncode is not None:
        return process.returncode if process else None
    process.terminate()
    async with asyncio.timeout(STOP_SECONDS):
        return await process.wait()


def _container(name: str, limits: Mapping[str, int]) -> JsonObject:
    return {"name": name, "resources": {"limits": {resource: str(count) for resource, count in limits.items()}}}
