"""A cluster of simulated nodes: machines, kubelets, API server and scheduler are simulated, our daemons are real.

The daemons run as processes of their own and meet the simulated parts over the same sockets, files and messages as in a
real cluster. Here the cluster is built and does what it is asked to, step by step; ``live`` lets it run by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.cluster import PODS
from neuron_plugin.cluster import Pod as PodRecord
from neuron_plugin.scheduling.state import NODE_REFUSALS
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_kinds import JsonObject
from neuron_plugin.simulation.kubelet_pods import AdmittedPod
from neuron_plugin.simulation.scheduler import FilterAnswer, SimulatedScheduler
from neuron_plugin.simulation.worker import READY_SECONDS, SimulatedWorker, end_process, free_port, start_process

NODE_NAME = "node-1"
"""Of the only node, where there is one."""

_SERVING = re.compile(r'"message":"serving".*?"port":(\d+)')


def pod_manifest(name: str, containers: Mapping[str, tuple[Resource, int]]) -> JsonObject:
    """A pod as a user would apply it, by what each container asks for."""
    made = [
        {"name": container, "resources": {"limits": {resource.value: str(count)}}}
        for container, (resource, count) in containers.items()
    ]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": made}}


class SimulatedCluster:
    """An async context: everything is up inside it, and gone after it. All files are made under ``root``.

    ``instance_types`` are the nodes' by name. ``extender_url`` is where the extender serves the ``scheduler``, which is
    there once everything is up, ``health_url`` where it serves pages for people.
    """

    def __init__(
        self,
        root: Path,
        instance_types: Mapping[str, str],
        *,
        daemon_flags: Sequence[str] = (),
        extender_flags: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.api = SimulatedApiServer()
        self.workers = {
            name: SimulatedWorker(root / name, name, instance_type, daemon_flags=daemon_flags)
            for name, instance_type in instance_types.items()
        }
        self.extender_url = ""
        self.health_url = ""
        self._extender_flags = tuple(extender_flags)
        self.scheduler: SimulatedScheduler
        self._extender: asyncio.subprocess.Process | None = None
        self._sessions = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self.api.start()
            for worker in self.workers.values():
                await worker.start(self.api, self._kubeconfig("plugin"))
            await self._start_extender()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.aclose()
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()), end_process(self._extender))
        await self.api.stop()

    @property
    def worker(self) -> SimulatedWorker:
        """The first node, which may be the only one."""
        return next(iter(self.workers.values()))

    async def _start_extender(self) -> None:
        """Start the extender, its log in ``extender.log``, and wait until it serves."""
        health_port = free_port()
        flags = {
            "--kubeconfig": self._kubeconfig("extender"),
            "--port": 0,
            "--health-address": "127.0.0.1",
            "--health-port": health_port,
            "--log-format": "json",
        }
        texts = [text for flag, value in flags.items() for text in (flag, str(value))]
        self._extender = await start_process(self.root / "extender.log", "extender", *texts, *self._extender_flags)
        log = self.root / "extender.log"  # names the port: one chosen here might be taken before the extender starts
        async with asyncio.timeout(READY_SECONDS):
            while not (serving := _SERVING.search(log.read_text())):
                if (status := self._extender.returncode) is not None:
                    raise RuntimeError(f"the extender ended with {status}: {log.read_text()[-500:]}")
                await asyncio.sleep(0.05)
        self.extender_url = f"http://127.0.0.1:{serving[1]}"
        self.health_url = f"http://127.0.0.1:{health_port}"
        scheduler = SimulatedScheduler(f"{self.extender_url}/scheduler")
        self.scheduler = await self._sessions.enter_async_context(scheduler)
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.extender_url}/readyz") as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.05)

    def _kubeconfig(self, user: str) -> Path:
        return self.api.write_kubeconfig(self.root / f"kubeconfig-{user}", user)

    async def filter(self, name: str) -> FilterAnswer:
        """Do the scheduler's part: ask the extender which nodes take a pod.

        As a scheduler does, it asks again while the answer is about a node, not about the pod: before the node is
        known, or while its plugin is away.

        Raises:
            TimeoutError: the nodes do not become ready for pods.
        """
        passing = {refusal.text for refusal in NODE_REFUSALS}
        async with asyncio.timeout(READY_SECONDS):
            while True:
                pod = self.api.get(SERVED_PODS, name, "default")
                answer = await self.scheduler.filter(pod, list(self.workers))
                if passing.isdisjoint({*answer.failed.values(), *answer.unresolvable.values()}):
                    return answer
                await asyncio.sleep(0.05)

    async def bind(self, name: str) -> None:
        """Do the scheduler's part: have the extender bind a pod to the first node.

        Raises:
            ExtenderCallError: the extender refused or failed.
        """
        await self.scheduler.bind(self.api.get(SERVED_PODS, name, "default"), self.worker.name)

    async def wait_for_annotation(self, pod: str, key: str, value: str) -> None:
        """Wait until an annotation of a pod reads so."""
        async with asyncio.timeout(READY_SECONDS):
            while self.pod(pod).annotations.get(key) != value:  # noqa: ASYNC110 - polled, as a user would
                await asyncio.sleep(0.02)

    def pod(self, name: str) -> PodRecord:
        """A pod as the API server has it."""
        return PODS.decode(msgspec.json.encode(self.api.get(SERVED_PODS, name, "default")))

    async def admit(self, name: str) -> AdmittedPod:
        """Do the kubelet's part for a pod that was bound; see ``SimulatedWorker.admit``."""
        record = self.pod(name)
        return await self.workers[record.node_name].admit(self.api, record)
