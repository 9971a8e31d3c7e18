"""A cluster with simulated machines, kubelets, API server and scheduler, and with our real daemons.

The daemons are processes and use the same sockets, files and messages as in a real cluster. This module builds the
cluster and performs single steps; ``supervise`` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import CORE_CLASS, DRA_DRIVER
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import ALLOCATED_KEY, INVENTORY_KEY, NODE_KEY
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.allocation.rejection import NODE_REFUSALS
from neuron_plugin.cluster import DecodeError, Pod
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.placement.check_pods import CLAIM
from neuron_plugin.placement.gates.webhook import patch as gate_patch
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal
from neuron_plugin.simulation.api_server_objects import json_patched
from neuron_plugin.simulation.cluster_nodes import (
    READY_SECONDS,
    PlayedNode,
    SimulatedWorker,
    end_process,
    free_port,
    start_process,
)
from neuron_plugin.simulation.kubelet_pods import AdmittedPod
from neuron_plugin.simulation.machines import CHECK_CLAIM, CPU_NODE, MOST_PLUGINS
from neuron_plugin.simulation.scheduler import FilterAnswer, SimulatedScheduler

NODE_NAME = "node-1"
"""The usual name of a single node."""


class PlacedBy(enum.StrEnum):
    """Who places the pods of the default scheduler. The second scheduler always asks the extender."""

    GATES = "gates"
    """The placement controller places gated pods before the scheduler sees them."""
    EXTENDER = "extender"
    """The scheduler asks the extender."""


_SYSTEM_CLASSES = tuple(
    {"metadata": {"name": f"system-{name}-critical"}, "value": value}
    for name, value in (("cluster", 2_000_000_000), ("node", 2_000_001_000))
)
_SERVING = re.compile(r'"message":"serving".*?"port":(\d+)')


def pod_manifest(name: str, containers: Mapping[str, tuple[Resource, int]]) -> AnyJson:
    """A pod's manifest, by each container's request."""
    made = [
        {"name": container, "resources": {"limits": {resource.value: str(count)}}}
        for container, (resource, count) in containers.items()
    ]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": made}}


def _with_priority(pod: AnyJson, classes: Iterable[AnyJson]) -> AnyJson:
    """A new pod with the priority of its class (``plugin/pkg/admission/priority``).

    Raises:
        Refusal: 403, the class does not exist.
    """
    known = {entry["metadata"]["name"]: entry for entry in (*classes, *_SYSTEM_CLASSES)}
    usual = next((name for name, entry in known.items() if entry.get("globalDefault")), "")
    if not (name := pod["spec"].get("priorityClassName") or usual):
        return pod
    if name not in known:
        text = f'pods "{pod["metadata"]["name"]}" is forbidden: no PriorityClass with name {name} was found'
        raise Refusal(403, text, name=pod["metadata"]["name"], kind="pods")
    policy = {"preemptionPolicy": known[name].get("preemptionPolicy", "PreemptLowerPriority")}
    given = {"priorityClassName": name, "priority": known[name].get("value", 0)}
    return pod | {"spec": policy | pod["spec"] | given}


def _gated(pod: AnyJson, *, claims: bool) -> AnyJson:
    """A new pod after the chart's MutatingAdmissionPolicy; our webhook's code does the same."""
    try:
        changes = gate_patch(msgspec.Raw(msgspec.json.encode(pod)), claims=claims)
    except DecodeError:
        return pod  # validation refuses it
    made: AnyJson = json_patched(pod, changes)
    return made


class SimulatedCluster:
    """An async context manager: the cluster is ready inside it, and ended after it. All files are under ``root``.

    ``instance_types`` maps node names to types. The first ``plugins`` nodes with Neuron run the real plugin; others are
    played. With ``by_claims``, nodes offer their devices by DRA claims. ``extender_url`` serves the scheduler,
    ``health_url`` serves pages for people.
    """

    def __init__(
        self,
        root: Path,
        instance_types: Mapping[str, str],
        *,
        daemon_flags: Sequence[str] = (),
        extender_flags: Sequence[str] = (),
        placed_by: PlacedBy = PlacedBy.EXTENDER,
        by_claims: bool = False,
        plugins: int = MOST_PLUGINS,
        api: SimulatedApiServer | None = None,
    ) -> None:
        """A given ``api`` keeps its own admission of pods."""
        self.root = root
        self.placed_by = placed_by
        self.by_claims = by_claims
        gates = placed_by is PlacedBy.GATES
        self.api = api or SimulatedApiServer(self._admit)
        if by_claims and gates:
            daemon_flags = (*daemon_flags, "--placed-claims")
            extender_flags = (*extender_flags, "--dra-driver", DRA_DRIVER)
        flags, places = tuple(daemon_flags), Counter[str]()
        self.workers: dict[str, SimulatedWorker] = {}
        self.played: dict[str, PlayedNode] = {}
        for name, instance_type in instance_types.items():
            family = instance_type.partition(".")[0]
            place, places[family] = places[family], places[family] + 1
            if instance_type == CPU_NODE or len(self.workers) >= plugins:
                self.played[name] = PlayedNode(self.api, name, instance_type, place)
            else:
                self.workers[name] = SimulatedWorker(
                    self.api, root / name, name, instance_type, place, daemon_flags=flags, by_claims=by_claims
                )
        self.extender_url = ""
        self.health_url = ""
        self._extender_flags = tuple(extender_flags)
        self.scheduler: SimulatedScheduler
        self._extender: asyncio.subprocess.Process | None = None
        self._extender_port = self._health_port = 0
        self._sessions = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self.api.start()
            if self.by_claims:
                spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}]}
                placed = self.placed_by is PlacedBy.GATES  # as in the chart: only the controller allocates cores
                for name in (DRA_DRIVER, CORE_CLASS) if placed else (DRA_DRIVER,):
                    self.api.create(kinds.DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec}, "")
                request = {"name": CLAIM, "exactly": {"deviceClassName": DRA_DRIVER, "allocationMode": "All"}}
                template = {"metadata": {"name": CHECK_CLAIM}, "spec": {"spec": {"devices": {"requests": [request]}}}}
                self.api.create(kinds.CLAIM_TEMPLATES, template, "kube-system")
            for played in self.played.values():
                played.register()
            for worker in self.workers.values():
                await worker.start(self._kubeconfig("plugin"))
            await self._start_extender()
            await self.wait_until_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.aclose()
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()), end_process(self._extender))
        await self.api.stop()

    def _admit(self, pod: AnyJson) -> AnyJson:
        """The admission of a new pod."""
        pod = _with_priority(pod, self.api.objects(kinds.PRIORITY_CLASSES))
        return _gated(pod, claims=self.by_claims) if self.placed_by is PlacedBy.GATES else pod

    @property
    def worker(self) -> SimulatedWorker:
        """The first node with a real plugin."""
        return next(iter(self.workers.values()))

    @property
    def nodes(self) -> dict[str, SimulatedWorker | PlayedNode]:
        """All nodes by name."""
        return {**self.workers, **self.played}

    def log(self, namespace: str, pod: str, container: str) -> str | None:
        """A container's log; None if it has not run."""
        if self.api.get(kinds.PODS, pod, namespace)["spec"].get("nodeName") in self.played:
            return ""
        logs = (worker.pods.log(namespace, pod, container) for worker in self.workers.values())
        return next((log for log in logs if log is not None), None)

    @property
    def extender_status(self) -> int | None:
        """The extender's exit status; None while it runs."""
        return self._extender.returncode if self._extender else None

    def asks_extender(self, scheduler: str) -> bool:
        """Whether this scheduler asks the extender about pods with Neuron."""
        return self.placed_by is PlacedBy.EXTENDER or scheduler != DEFAULT_SCHEDULER

    async def restart_extender(self) -> None:
        """Start the extender, after an end on the same ports. It serves some seconds later."""
        flags = {
            "--kubeconfig": self._kubeconfig("extender"),
            "--port": self._extender_port,
            "--health-address": "127.0.0.1",
            "--health-port": self._health_port,
            "--log-format": "json",
        }
        texts = [text for flag, value in flags.items() for text in (flag, str(value))]
        self._extender = await start_process(self.root / "extender.log", "extender", *texts, *self._extender_flags)

    async def _start_extender(self) -> None:
        """Start the extender, with its log in ``extender.log``, and wait until it is ready."""
        self._health_port = free_port()
        await self.restart_extender()
        log = self.root / "extender.log"  # names the port: the extender chooses a free one
        async with asyncio.timeout(READY_SECONDS):
            while not (serving := _SERVING.search(log.read_text())):
                if (status := self.extender_status) is not None:
                    raise RuntimeError(f"the extender ended with {status}: {log.read_text()[-500:]}")
                await asyncio.sleep(0.05)
        self._extender_port = int(serving[1])
        self.extender_url = f"http://127.0.0.1:{self._extender_port}"
        self.health_url = f"http://127.0.0.1:{self._health_port}"
        scheduler = SimulatedScheduler(f"{self.extender_url}/scheduler")
        self.scheduler = await self._sessions.enter_async_context(scheduler)
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.extender_url}/readyz") as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.05)

    async def wait_until_ready(self) -> None:
        """Wait until each plugin is registered with its kubelet and has published its inventory and its Lease.

        A pod that is created before that is refused.

        Raises:
            TimeoutError: a plugin is late, or has ended; with the end of its log.
        """
        late = list(self.workers.values())
        try:
            async with asyncio.timeout(READY_SECONDS):
                while late := [each for each in late if not (each.is_registered and self._is_published(each.name))]:
                    if ended := [each for each in late if each.daemon and each.daemon.returncode is not None]:
                        raise ended[0].late("it has ended")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise (error if error.args else late[0].late(f"not ready after {READY_SECONDS:g} s")) from None
        for worker in self.workers.values():
            worker.report_capacity()

    def _is_published(self, node: str) -> bool:
        leases = {lease["metadata"]["name"]: lease["spec"] for lease in self.api.objects(kinds.LEASES)}
        annotations = self.api.get(kinds.NODES, node)["metadata"].get("annotations") or {}
        return INVENTORY_KEY in annotations and bool(leases.get(f"{LEASE_PREFIX}{node}", {}).get("holderIdentity"))

    def _kubeconfig(self, user: str) -> Path:
        return self.api.write_kubeconfig(self.root / f"kubeconfig-{user}", user)

    async def filter(self, name: str) -> FilterAnswer:
        """Play the scheduler: ask the extender which nodes fit a pod, again while a node is not ready.

        Raises:
            TimeoutError: the nodes do not become ready.
        """
        passing = {refusal.text for refusal in NODE_REFUSALS}
        async with asyncio.timeout(READY_SECONDS):
            while True:
                pod = self.api.get(kinds.PODS, name, "default")
                answer = await self.scheduler.filter(pod, list(self.workers))
                if passing.isdisjoint({*answer.failed.values(), *answer.unresolvable.values()}):
                    return answer
                await asyncio.sleep(0.05)

    async def placed(self, name: str) -> str:
        """Wait until the controller places a gated pod, or says why the pod waits: then return the reason, else "".

        Raises:
            TimeoutError: neither happens.
        """
        async with asyncio.timeout(READY_SECONDS):
            while (pod := self.pod(name)).spec.scheduling_gates:
                for event in self.api.objects(kinds.EVENTS):
                    if event["regarding"].get("uid") == pod.uid and event["reason"] == EventReason.WAITING:
                        return str(event["note"])
                await asyncio.sleep(0.02)
        return ""

    async def bind(self, name: str) -> None:
        """Play the scheduler: bind a placed pod to its node, or let the extender bind a pod to the first node.

        Raises:
            ExtenderCallError: the extender refused or failed.
        """
        if node := self.pod(name).annotations.get(NODE_KEY):
            self.api.bind("default", name, node=node)
        else:
            await self.scheduler.bind(self.api.get(kinds.PODS, name, "default"), self.worker.name)

    async def wait_until_allocated(self, pod: str) -> None:
        """Wait until the plugin confirms on a pod what it has allocated."""
        async with asyncio.timeout(READY_SECONDS):
            while self.pod(pod).annotations.get(ALLOCATED_KEY) != "true":  # noqa: ASYNC110 - polled, as a user would
                await asyncio.sleep(0.02)

    def pod(self, name: str) -> Pod:
        """A pod, read from the API server."""
        return PODS.decode(msgspec.json.encode(self.api.get(kinds.PODS, name, "default")))

    async def admit(self, name: str) -> AdmittedPod:
        """Play the kubelet for a bound pod; see ``PodSync.admit``."""
        manifest = self.api.get(kinds.PODS, name, "default")
        return await self.workers[manifest["spec"]["nodeName"]].pods.admit(manifest)
