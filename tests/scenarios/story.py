"""A cluster in which stories happen: simulated machines, kubelets, API server and scheduler, and both real daemons.

The plugins speak gRPC with their kubelets and the extender HTTP with the scheduler, each as a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from neuron_plugin.allocation import Resource
from neuron_plugin.simulation import AdmittedPod, ExtenderCallError, SimulatedCluster
from neuron_plugin.simulation.api_server_kinds import EVENTS, PODS, AnyJson
from tests.support.manifests import pod_manifest
from tests.support.worker import end_pod

TYPES = {"inf1": "inf1.6xlarge", "inf2": "inf2.48xlarge", "trn1": "trn1.32xlarge"}
PREFIX = "neuron-plugin.io/"
SECONDS = 20.0

Limits = Mapping[str, int]


def devices(count: int, **amounts: int) -> Limits:
    return {Resource.NEURON.value: count} | {PREFIX + name: amount for name, amount in amounts.items()}


def cores(count: int, **amounts: int) -> Limits:
    return {Resource.NEURONCORE.value: count} | {PREFIX + name: amount for name, amount in amounts.items()}


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait for what a user would look for again and again."""
    async with asyncio.timeout(SECONDS):
        while not await holds():
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Running:
    """A pod that its kubelet has admitted: where it is, its annotations and what its containers received."""

    node: str
    annotations: Mapping[str, str]
    received: AdmittedPod

    @property
    def ids(self) -> str:
        return self.annotations.get("NEURON_DEVS") or self.annotations["NEURON_CORES"]

    @property
    def env(self) -> Mapping[str, str]:
        return self.received.containers[-1].envs

    @property
    def device_nodes(self) -> list[str]:
        return [f"/dev/{Path(each.host_path).name}" for each in self.received.containers[-1].devices]


class Story:
    """What users do in the cluster, and what they see."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api

    def pod(self, name: str) -> AnyJson:
        return self.api.get(PODS, name, "default")

    def create(self, name: str, *containers: Limits, init: Sequence[Limits] = (), **annotations: Any) -> AnyJson:
        """Create a pod; ``allow_devices="0-3"`` is its annotation ``neuron-plugin.io/allow-devices``."""
        made = pod_manifest(
            name,
            containers=[_container(f"c{number}", limits) for number, limits in enumerate(containers)],
            init_containers=[_container(f"i{number}", limits) for number, limits in enumerate(init)],
            annotations={PREFIX + key.replace("_", "-"): text for key, text in annotations.items()},
        )
        del made["metadata"]["uid"]  # the API server chooses one: others count as a static pod's
        return self.api.create_pod(made)

    async def bind(self, name: str, *on: str) -> None:
        """Attempts of kube-scheduler, on all nodes or on some, until the pod is bound to the best."""
        async with asyncio.timeout(SECONDS):
            while not (answer := await self.cluster.scheduler.filter(self.pod(name), on or list(TYPES))).nodes:
                await asyncio.sleep(0.1)
        await self.cluster.scheduler.bind(self.pod(name), answer.nodes[0])

    async def start(self, name: str) -> Running:
        """Have a bound pod admitted by its kubelet, which asks the plugin, and confirmed by the plugin."""
        received = await self.cluster.admit(name)
        await self.cluster.wait_until_allocated(name)
        record = self.cluster.pod(name)
        return Running(record.node_name, record.annotations, received)

    async def run(
        self, name: str, *containers: Limits, on: Sequence[str] = (), init: Sequence[Limits] = (), **annotations: Any
    ) -> Running:
        """Create a pod, bind and start it."""
        self.create(name, *containers, init=init, **annotations)
        await self.bind(name, *on)
        return await self.start(name)

    async def waits(self, name: str, *containers: Limits, on: Sequence[str] = (), **annotations: Any) -> str:
        """Create a pod that finds no node; why, as its event says it."""
        self.create(name, *containers, **annotations)
        nodes = on or list(TYPES)
        try:
            answer = await self.cluster.scheduler.filter(self.pod(name), nodes)
        except ExtenderCallError as error:
            return str(error)
        assert not answer.nodes
        return answer.message(len(nodes))

    async def end(self, name: str) -> None:
        """The pod ends; returns when everything of it is free."""
        record = self.cluster.pod(name)
        if not record.node_name:
            self.api.delete_pod("default", name, grace_seconds=0)
            return
        await end_pod(self.cluster, name)
        await until(lambda: self._is_free(record.node_name, record.uid))

    async def _is_free(self, node: str, uid: str) -> bool:
        return uid not in {each["uid"] for each in (await self.node(node))["status"]["holders"]}

    async def end_all(self) -> None:
        """The next story begins with an empty cluster."""
        for pod in self.api.objects(PODS):
            await self.end(pod["metadata"]["name"])
        for worker in self.cluster.workers.values():
            count = len(worker.node.description.loaded)
            cores_per_device = worker.node.description.generation.cores_per_device
            for resource in Resource:
                each = cores_per_device if resource is Resource.NEURONCORE else 1
                await worker.wait_until_offered(resource, count * each)

    async def call(self, path: str, body: object) -> Any:
        """A call of the extender as kube-scheduler makes it."""
        url = self.cluster.extender_url + path
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            assert answer.status == 200
            return await answer.json()

    async def monitor(self, resource: str) -> Any:
        """A list of the monitor API, on the port that asks for no certificate."""
        url = f"{self.cluster.health_url}/apis/neuron-plugin.io/v1/{resource}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.json()

    async def node(self, name: str) -> AnyJson:
        """A node as the monitor API shows it."""
        found: list[AnyJson] = (await self.monitor("neuronnodes"))["items"]
        return next(each for each in found if each["metadata"]["name"] == name)

    async def command(self, *arguments: str) -> str:
        """What a command of the CLI prints, run at a desk."""
        config = self.api.write_kubeconfig(self.cluster.root / "kubeconfig-desk", "desk")
        full = ("-m", "neuron_plugin.cli.main", *arguments)
        end = ("--kubeconfig", str(config)) if "--extender" not in arguments else ()
        process = await asyncio.create_subprocess_exec(sys.executable, *full, *end, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        return printed.decode()

    def events(self, name: str) -> set[str]:
        return {event["reason"] for event in self.api.objects(EVENTS) if event["regarding"]["name"] == name}

    def log_of(self, pod: str) -> list[dict[str, Any]]:
        """The lines of the extender's log that are about a pod."""
        lines = (self.cluster.root / "extender.log").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line.get("pod") == f"default/{pod}"]


def _container(name: str, limits: Limits) -> AnyJson:
    quantities = {resource: str(count) for resource, count in limits.items()}
    return {"name": name, "resources": {"limits": quantities, "requests": quantities}}
