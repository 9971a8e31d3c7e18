"""A cluster of simulated nodes: machines, kubelets, API server and scheduler are simulated, our daemons are real.

The daemons run as processes of their own and meet the simulated parts over the same sockets, files and messages as in a
real cluster. Here the cluster is built and does what it is asked to, step by step; ``supervise`` lets it run by itself.
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
from neuron_plugin.allocation.keys import INVENTORY_KEY, NODE_KEY
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
"""Of the only node, where there is one."""


class PlacedBy(enum.StrEnum):
    """Who chooses nodes and sets for the pods of the default scheduler; the second one has the extender always."""

    GATES = "gates"
    """The placement controller, before the scheduler: new pods are gated, and the scheduler has no extender."""
    EXTENDER = "extender"
    """The extender, asked by the scheduler."""


_SYSTEM_CLASSES = tuple(
    {"metadata": {"name": f"system-{name}-critical"}, "value": value}
    for name, value in (("cluster", 2_000_000_000), ("node", 2_000_001_000))
)
_SERVING = re.compile(r'"message":"serving".*?"port":(\d+)')


def pod_manifest(name: str, containers: Mapping[str, tuple[Resource, int]]) -> AnyJson:
    """A pod as a user would apply it, by what each container asks for."""
    made = [
        {"name": container, "resources": {"limits": {resource.value: str(count)}}}
        for container, (resource, count) in containers.items()
    ]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": made}}


def _with_priority(pod: AnyJson, classes: Iterable[AnyJson]) -> AnyJson:
    """A new pod with the priority of its class (``plugin/pkg/admission/priority``).

    Raises:
        Refusal: 403, there is no such class.
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
    """A new pod as the chart's MutatingAdmissionPolicy leaves it; the webhook that is asked here does the same."""
    try:
        changes = gate_patch(msgspec.Raw(msgspec.json.encode(pod)), claims=claims)
    except DecodeError:
        return pod  # which is refused for it
    made: AnyJson = json_patched(pod, changes)
    return made


class SimulatedCluster:
    """An async context: everything is up inside it, and gone after it. All files are made under ``root``.

    ``instance_types`` are the nodes' by name. The first ``plugins`` of those with Neuron are machines with the real
    plugin, the others are played. ``extender_url`` is where the extender serves the ``scheduler``, which is
    there once everything is up, ``health_url`` where it serves pages for people. ``by_claims``: the nodes' devices are
    given by claims of Dynamic Resource Allocation.
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
        """With an ``api`` the cluster is on that server, which admits pods as it was told."""
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
                placed = self.placed_by is PlacedBy.GATES  # as in the chart: nobody else can allocate cores
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
        """What the admission of a new pod makes of it."""
        pod = _with_priority(pod, self.api.objects(kinds.PRIORITY_CLASSES))
        return _gated(pod, claims=self.by_claims) if self.placed_by is PlacedBy.GATES else pod

    @property
    def worker(self) -> SimulatedWorker:
        """The first node, which may be the only one."""
        return next(iter(self.workers.values()))

    @property
    def nodes(self) -> dict[str, SimulatedWorker | PlayedNode]:
        """All nodes by their names."""
        return {**self.workers, **self.played}

    def log(self, namespace: str, pod: str, container: str) -> str | None:
        """What a container has printed; None if it has not run."""
        if self.api.get(kinds.PODS, pod, namespace)["spec"].get("nodeName") in self.played:
            return ""
        logs = (worker.pods.log(namespace, pod, container) for worker in self.workers.values())
        return next((log for log in logs if log is not None), None)

    @property
    def extender_status(self) -> int | None:
        """With what the extender has ended; None while it runs."""
        return self._extender.returncode if self._extender else None

    def asks_extender(self, scheduler: str) -> bool:
        """Whether a scheduler asks the extender about pods that want Neuron."""
        return self.placed_by is PlacedBy.EXTENDER or scheduler != DEFAULT_SCHEDULER

    async def restart_extender(self) -> None:
        """Start an extender that has ended again, where it was; it serves some seconds later."""
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
        """Start the extender, its log in ``extender.log``, and wait until it serves."""
        self._health_port = free_port()
        await self.restart_extender()
        log = self.root / "extender.log"  # names the port: one chosen here might be taken before the extender starts
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
        """Do the scheduler's part: ask the extender which nodes take a pod.

        As a scheduler does, it asks again while the answer is about a node, not about the pod: before the node is
        known, or while its plugin is away.

        Raises:
            TimeoutError: the nodes do not become ready for pods.
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
        """Wait for the placement controller to place a gated pod; why it lets the pod wait, empty once it is placed.

        Raises:
            TimeoutError: it does neither.
        """
        async with asyncio.timeout(READY_SECONDS):
            while (pod := self.pod(name)).spec.scheduling_gates:
                for event in self.api.objects(kinds.EVENTS):
                    if event["regarding"].get("uid") == pod.uid and event["reason"] == EventReason.WAITING:
                        return str(event["note"])
                await asyncio.sleep(0.02)
        return ""

    async def bind(self, name: str) -> None:
        """Do the scheduler's part: bind a pod where it was placed, or have the extender bind it to the first node.

        Raises:
            ExtenderCallError: the extender refused or failed.
        """
        if node := self.pod(name).annotations.get(NODE_KEY):
            self.api.bind("default", name, node=node)
        else:
            await self.scheduler.bind(self.api.get(kinds.PODS, name, "default"), self.worker.name)

    async def wait_for_annotation(self, pod: str, key: str, value: str) -> None:
        """Wait until an annotation of a pod reads so."""
        async with asyncio.timeout(READY_SECONDS):
            while self.pod(pod).annotations.get(key) != value:  # noqa: ASYNC110 - polled, as a user would
                await asyncio.sleep(0.02)

    def pod(self, name: str) -> Pod:
        """A pod as the API server has it."""
        return PODS.decode(msgspec.json.encode(self.api.get(kinds.PODS, name, "default")))

    async def admit(self, name: str) -> AdmittedPod:
        """Do the kubelet's part for a pod that was bound; see ``PodSync.admit``."""
        manifest = self.api.get(kinds.PODS, name, "default")
        return await self.workers[manifest["spec"]["nodeName"]].pods.admit(manifest)
