"""Runs a simulated cluster: kubelets, schedulers and controllers, each in its own loop.

The loops restart the extender and the plugins, and register deleted nodes again, as Deployment, DaemonSet and kubelet
would. No client request can end a loop. A node with a silent kubelet becomes not ready and gets taints. Pods that do
not tolerate the taints any longer are deleted, and stay Terminating until the kubelet is back. Faults of a whole node
are requested over HTTP. Sources (1.36.2): ``pkg/controller/nodelifecycle/node_lifecycle_controller.go``,
``pkg/controller/tainteviction`` and ``plugin/pkg/admission/defaulttolerationseconds``.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator

import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.placement.context import REPORTER
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal, ServedKind
from neuron_plugin.simulation.api_server_rules import budget_status, is_ready, now_text
from neuron_plugin.simulation.cluster import SimulatedCluster
from neuron_plugin.simulation.machines import NODE_FAULTS, NODE_FAULTS_PATH
from neuron_plugin.simulation.resource_claims import sync_claims
from neuron_plugin.simulation.scheduler import Scheduling

NOT_READY_SECONDS = 10.0
"""Silence until a node is not ready: a fifth of the usual time, because a person waits."""
TOLERATION_SECONDS = 300.0
"""How long pods tolerate an unreachable node by default."""
_UNREACHABLE = "node.kubernetes.io/unreachable"
_NOT_READY = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
}
LOOK_SECONDS = 1.0
"""The longest pause between two turns of a loop: waiting pods are tried again, as by kube-scheduler."""
WORK_SECONDS = 1.0
"""Between two updates of the work counters."""
REBOOT_SECONDS = 3.0
"""How long a rebooting machine is off: shorter than in reality, because a person waits."""
_SILENCE = (
    f"not ready after {NOT_READY_SECONDS:g} s of silence; after {TOLERATION_SECONDS:g} s more its pods are evicted, "
    "unless they tolerate it otherwise"
)


# Nodes with a silent kubelet.


class NodeLifecycle:
    """Kubernetes' node lifecycle and taint eviction controllers."""

    def __init__(self, api: SimulatedApiServer) -> None:
        self._api = api
        self._silent: dict[str, float] = {}
        """Silent nodes, and since when."""

    def look(self, silent: Collection[str], now: float) -> Iterator[str]:
        """Taint nodes that stay ``silent``, untaint nodes that are back, and evict pods. Yields a line for each."""
        self._silent = {name: self._silent.get(name, now) for name in silent}
        for node in self._api.objects(kinds.NODES):
            name, quiet = node["metadata"]["name"], now - self._silent.get(node["metadata"]["name"], now)
            marked = any(taint["key"] == _UNREACHABLE for taint in node["spec"].get("taints") or ())
            is_late = quiet >= NOT_READY_SECONDS
            if marked and name not in self._silent:
                self._mark(node, [])
            elif is_late and not marked:
                taint = {"key": _UNREACHABLE, "timeAdded": now_text()}
                self._mark(node, [{**taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")])
                self._api.patch_status(kinds.NODES, name, {"conditions": [_NOT_READY]})
                yield f"node {name}: not ready: its kubelet is silent"
            if is_late:
                yield from self._evict(name, quiet - NOT_READY_SECONDS)

    def _mark(self, node: AnyJson, taints: list[AnyJson]) -> None:
        others = [taint for taint in node["spec"].get("taints") or () if taint["key"] != _UNREACHABLE]
        self._api.patch_node(node["metadata"]["name"], {"spec": {"taints": others + taints}})

    def _evict(self, node: str, seconds: float) -> Iterator[str]:
        """Mark the node's pods not ready, and delete those that tolerate the taint no longer."""
        for pod in self._api.objects(kinds.PODS):
            metadata = pod["metadata"]
            if pod["spec"].get("nodeName") != node or "deletionTimestamp" in metadata:
                continue
            name, namespace = metadata["name"], metadata["namespace"]
            with contextlib.suppress(Refusal):  # deleted meanwhile
                if is_ready(pod):
                    not_ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
                    self._api.patch_status(kinds.PODS, name, {"conditions": [not_ready]}, namespace)
                if seconds >= _tolerated_seconds(pod):
                    self._api.delete_pod(namespace, name)
                    yield f"pod {namespace}/{name}: evicted, because node {node} is not ready; ends once it is back"


def _tolerated_seconds(pod: AnyJson) -> float:
    """How long a pod stays on an unreachable node."""
    seconds = [
        float(toleration.get("tolerationSeconds", "inf"))
        for toleration in pod["spec"].get("tolerations") or ()
        if toleration.get("key", _UNREACHABLE) == _UNREACHABLE
        and toleration.get("effect", "NoExecute") in {"", "NoExecute"}
    ]
    return min(seconds, default=TOLERATION_SECONDS)


# Faults of a whole node.


class NodeFaults:
    """Serves the HTTP requests for faults of a whole node."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._lost: set[str] = set()
        self._one_by_one = asyncio.Lock()

    async def answer(self, request: ApiRequest) -> Response:
        """Make a fault or undo it, and answer with a sentence.

        Raises:
            Refusal: an unknown node or fault, or it is not possible now.
        """
        name, what, change = [*request.path.removeprefix(NODE_FAULTS_PATH).split("/"), "", ""][:3]
        async with self._one_by_one:
            text = await self._change(name, what, change)
        return Response(200, msgspec.json.encode({"message": f"node {name}: {text}"}))

    async def _change(self, name: str, what: str, change: str) -> str:
        node = self._cluster.nodes.get(name)
        if node is None:
            raise Refusal(404, f"no node of the playground is called {name}", name=name, kind="nodes")
        if change not in NODE_FAULTS.get(what, ()):
            raise Refusal(404, "the server could not find the requested resource")
        if (change != "back" and name in self._lost) or (change == "back" and name not in self._lost):
            raise Refusal(409, f"node {name} is {'lost' if name in self._lost else 'not lost'}", name=name)
        if what == "kubelet" and node.up is (change == "start"):
            raise Refusal(409, f"the kubelet of node {name} {'runs' if node.up else 'does not run'}", name=name)
        match change:
            case "restart":
                await node.stop_kubelet()
                await node.start_kubelet()
                return "its kubelet has started again; containers ran on"
            case "stop":
                await node.stop_kubelet()
                return f"its kubelet is stopped, and containers run on; it is {_SILENCE}"
            case "start":
                await node.start_kubelet()
                return "its kubelet runs again"
            case "reboot":
                await node.power_off()
                await asyncio.sleep(REBOOT_SECONDS)
                await node.power_on()
                before = "; a pod with devices fails that its kubelet admits before its plugin is there"
                return f"the machine has started again{before if name in self._cluster.workers else ''}"
            case "lost":
                self._lost.add(name)
                await node.power_off()
                return f"the machine is lost; it is {_SILENCE}"
            case _:
                self._lost.discard(name)
                await node.power_on()
                return "the machine is back"


# The loops.


async def turns(api: SimulatedApiServer, *watched: ServedKind, seconds: float = LOOK_SECONDS) -> AsyncIterator[None]:
    """Yield now, after each change of these kinds, and at least every so many seconds."""
    changes = api.follow(*watched)
    try:
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changes.get()
            while not changes.empty():
                changes.get_nowait()
    finally:
        api.unfollow(changes)


async def supervise(cluster: SimulatedCluster) -> AsyncIterator[str]:
    """Run the cluster forever, and yield a line for each thing that happens."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loops = (_kubelets, _control_plane, _upkeep, _cores, _events)
    tasks = [asyncio.create_task(loop(cluster, lines), name=loop.__name__) for loop in loops]
    try:
        while True:
            line = asyncio.ensure_future(lines.get())
            await asyncio.wait((line, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
                await asyncio.gather(*(task for task in tasks if task.done()))  # raises why
            yield line.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _kubelets(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Kubelets and played nodes handle their pods."""
    for worker in cluster.workers.values():
        worker.pods.say = lines.put_nowait
    pods = defaultdict[str, list[AnyJson]](list)
    async for _ in turns(cluster.api, kinds.PODS):
        before, pods = pods, defaultdict(list)
        for manifest in cluster.api.objects(kinds.PODS):
            pods[manifest["spec"].get("nodeName", "")].append(manifest)
        for worker in cluster.workers.values():
            worker.pods.look(pods[worker.name])
        for name in before.keys() | pods.keys() if cluster.played else ():
            same = len(before[name]) == len(pods[name]) and all(map(operator.is_, before[name], pods[name]))
            if name in cluster.played and not same:
                cluster.played[name].look(pods[name])


async def _control_plane(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Controllers handle claims, volumes and budgets; schedulers handle waiting pods."""
    scheduling = Scheduling(cluster.api, cluster.scheduler, cluster.asks_extender, lines.put_nowait)
    async for _ in turns(cluster.api, kinds.PODS, kinds.NODES, kinds.CLAIMS):
        sync_claims(cluster.api)
        provision(cluster.api)
        for budget in cluster.api.objects(kinds.BUDGETS):
            metadata = budget["metadata"]
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # a malformed budget
                status = budget_status(budget, cluster.api.objects(kinds.PODS))
                cluster.api.patch_status(kinds.BUDGETS, metadata["name"], status, metadata["namespace"])
        await scheduling.look()


def provision(api: SimulatedApiServer) -> None:
    """Bind each new PersistentVolumeClaim to a new volume that every node can use."""
    for claim in api.objects(kinds.CLAIMS):
        metadata, spec = claim["metadata"], claim.get("spec") or {}
        if not spec.get("volumeName"):
            name = f"pvc-{metadata['uid']}"
            volume = {key: spec[key] for key in ("accessModes", "storageClassName") if key in spec}
            api.create(kinds.VOLUMES, {"metadata": {"name": name}, "spec": volume, "status": {"phase": "Bound"}}, "")
            api.change(kinds.CLAIMS, metadata["name"], {"spec": {"volumeName": name}}, metadata["namespace"])
            api.patch_status(kinds.CLAIMS, metadata["name"], {"phase": "Bound"}, metadata["namespace"])


async def _upkeep(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Restart daemons, register deleted nodes, taint silent nodes, and report capacities."""
    lifecycle = NodeLifecycle(cluster.api)
    async for _ in turns(cluster.api, kinds.NODES):
        if (status := cluster.extender_status) is not None:
            lines.put_nowait(f"the extender has ended with {status} and is started again")
            await cluster.restart_extender()
        for played in cluster.played.values():
            played.upkeep(time.monotonic())
        nodes = {node["metadata"]["name"] for node in cluster.api.objects(kinds.NODES)}
        silent = {name for name, node in cluster.nodes.items() if not node.up}
        for line in lifecycle.look(silent, time.monotonic()):
            lines.put_nowait(line)
        for worker in (worker for worker in cluster.workers.values() if worker.up):
            if worker.name not in nodes:
                lines.put_nowait(f"node {worker.name}: its object is gone, and its kubelet makes it again")
                worker.register()
            if worker.daemon and (status := worker.daemon.returncode) is not None:
                lines.put_nowait(f"node {worker.name}: its plugin has ended with {status} and is started again")
                await worker.start_daemon()
            if worker.report_capacity():
                counts = (
                    f"{worker.kubelet.capacity(resource.value).allocatable} {resource.short_name}"
                    for resource in Resource
                )
                lines.put_nowait(f"node {worker.name}: allocatable are {', '.join(counts)}")


async def _cores(cluster: SimulatedCluster, _: asyncio.Queue[str]) -> None:
    """Advance the work counters of the nodes."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(WORK_SECONDS)
        now = time.monotonic()
        for worker in cluster.workers.values():
            await worker.work(now - before)
        before = now


async def _events(cluster: SimulatedCluster, lines: asyncio.Queue[str]) -> None:
    """Report the placement controller's events, such as why a gated pod waits."""
    changes = cluster.api.follow(kinds.EVENTS)
    while True:
        change = await changes.get()
        if change is None or isinstance(change, Exception) or change.old is not None:
            continue
        event = change.new.value
        about = event.get("regarding") or {}
        if event.get("reportingController") == REPORTER:
            name = "/".join(filter(None, (about.get("namespace"), about.get("name"))))
            lines.put_nowait(f"{str(about.get('kind')).lower()} {name}: {event.get('reason')}: {event.get('note')}")
