"""A simulated cluster that runs by itself: what its schedulers, kubelets and controllers do, for as long as it is up.

``default-scheduler`` and ``neuron-scheduler`` run. Each looks at its waiting pods in the order of creation: nodes that
its own filters leave are asked of the extender, if it has one, and the best of them is bound; a gated pod is left
alone. A kubelet admits the pods of its node, which then run until they are deleted. What its Deployment, DaemonSet or
kubelet would bring back is brought back: the extender, a plugin, a node's object. No request of a client ends any of
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import CORES_KEY, DEVICES_KEY, PREFIX
from neuron_plugin.allocation.node_rules import HostPort, NodeRules, Quantities, node_use
from neuron_plugin.cluster import ObjectReference, Pod
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.placement.context import REPORTER
from neuron_plugin.simulation.api_server_kinds import BUDGETS, EVENTS, NODES, AnyJson, Refusal
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_pods import budget_status
from neuron_plugin.simulation.api_server_store import Inbox
from neuron_plugin.simulation.claim_allocator import NotAllocatedError
from neuron_plugin.simulation.claim_controller import sync_claims
from neuron_plugin.simulation.cluster import SCHEDULERS, SimulatedCluster
from neuron_plugin.simulation.kubelet_claims import NotPreparedError
from neuron_plugin.simulation.kubelet_pods import AdmittedPod, PodRejectedError
from neuron_plugin.simulation.scheduler import BoundPod, ExtenderCallError, message, why_apart, why_not
from neuron_plugin.simulation.scheduler_claims import allocations_on, claims_of, reserve
from neuron_plugin.simulation.worker import SimulatedWorker
from neuron_plugin.topology import catalogue

LOOK_SECONDS = 1.0
"""Between two looks where no pod has changed: then waiting pods are tried again, as in kube-scheduler."""

WORK_SECONDS = 1.0
"""Between two changes of what the cores have done."""

START_SECONDS = 0.5
"""How long the others wait for a pod whose claims are being prepared."""

MOST_SHOWN = 4
"""Device nodes of a container that are shown one by one."""
_log = logging.getLogger(__name__)


async def live(cluster: SimulatedCluster) -> AsyncIterator[str]:
    """Run the cluster, and say in one line each what happened. Endless."""
    known: dict[str, Pod] = {}  # by UID, as they were when they were last acted on
    said: dict[str, str] = {}
    changes, events = cluster.api.follow(SERVED_PODS), cluster.api.follow(EVENTS)
    worked_at = time.monotonic()
    starting: dict[str, asyncio.Task[AdmittedPod]] = {}  # by UID: a pod may wait for its claims
    while True:
        if (seconds := time.monotonic() - worked_at) >= WORK_SECONDS:
            worked_at += seconds
            for worker in cluster.workers.values():
                await worker.work(seconds)
        while not changes.empty():
            changes.get_nowait()
        async for line in _upkeep(cluster):
            yield line
        if cluster.by_claims:
            sync_claims(cluster.api)
        for line in _new_events(events):
            yield line
        objects = cluster.api.objects(SERVED_PODS)
        pods = [PODS.decode(msgspec.json.encode(manifest)) for manifest in objects]
        for uid in known.keys() - {pod.uid for pod in pods}:  # deleted by force
            gone = known.pop(uid)
            said.pop(uid, None)
            if gone.node_name:
                with contextlib.suppress(KeyError):  # the kubelet rejected it
                    cluster.workers[gone.node_name].kubelet.finish(uid)
                if task := starting.pop(uid, None):
                    await asyncio.gather(task, return_exceptions=True)
            yield f"pod {_name(gone)}: deleted"
        room = _Room.of(cluster, pods)
        for pod, value in zip(pods, objects, strict=True):
            worker_of_pod = cluster.workers.get(pod.node_name)
            if pod.terminal or (pod.node_name and not worker_of_pod) or value["spec"].get("schedulingGates"):
                continue
            acted_on = known.get(pod.uid)
            if not pod.terminating:
                known[pod.uid] = pod
            try:
                if worker_of_pod is None:
                    line = await _schedule(cluster, room, pod, value)
                    lines = [line] if said.get(pod.uid) != line else []
                    said[pod.uid] = line
                elif pod.terminating:
                    await worker_of_pod.end(cluster.api, pod)
                    if task := starting.pop(pod.uid, None):
                        await asyncio.gather(task, return_exceptions=True)
                    known.pop(pod.uid, None)
                    lines = [f"pod {_name(pod)}: deleted"]
                elif acted_on and acted_on.node_name and pod.uid not in starting:
                    continue
                else:
                    if pod.uid not in starting:
                        said.pop(pod.uid, None)
                        admission = worker_of_pod.admit(cluster.api, pod)
                        starting[pod.uid] = asyncio.create_task(admission, name=f"start {_name(pod)}")
                    lines = await _started(worker_of_pod, pod, starting, said)
            except PodRejectedError as error:
                lines = [f"pod {_name(pod)}: {error}"]
            except NotPreparedError as error:
                lines = _news(said, pod, f"its claims are not given up yet: {error}")
            except Refusal:
                continue  # changed or deleted since it was listed: the next look sees that
            except Exception as error:  # noqa: BLE001 - whatever a client made of one pod, the others go on
                _log.debug("pod not handled", exc_info=error)
                line = f"pod {_name(pod)}: cannot be handled: {error!r}"
                lines = [line] if said.get(pod.uid) != line else []
                said[pod.uid] = line
            for line in lines:
                yield line
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await changes.get()
        except TimeoutError:
            continue


async def _upkeep(cluster: SimulatedCluster) -> AsyncIterator[str]:
    """What brings back what has ended, and writes down what the nodes have and budgets allow."""
    if (status := cluster.extender_status) is not None:
        yield f"the extender has ended with {status} and is started again"
        await cluster.restart_extender()
    nodes = {node["metadata"]["name"] for node in cluster.api.objects(NODES)}
    for worker in cluster.workers.values():
        if worker.name not in nodes:
            yield f"node {worker.name}: its object is gone, and its kubelet makes it again"
            worker.register(cluster.api)
        if worker.daemon and (status := worker.daemon.returncode) is not None:
            yield f"node {worker.name}: its plugin has ended with {status} and is started again"
            await worker.start_daemon()
        if worker.report_capacity(cluster.api):
            counts = (
                f"{worker.kubelet.capacity(resource.value).allocatable} {resource.short_name}" for resource in Resource
            )
            yield f"node {worker.name}: allocatable are {', '.join(counts)}"
    for budget in cluster.api.objects(BUDGETS):
        metadata = budget["metadata"]
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # a budget that cannot be followed
            status_of_budget = budget_status(budget, cluster.api.objects(SERVED_PODS))
            cluster.api.patch_status(BUDGETS, metadata["name"], status_of_budget, metadata["namespace"])


def _new_events(events: Inbox) -> Iterator[str]:
    """What the extender has written about pods since the last look: why a gated pod waits, for instance."""
    while not events.empty():
        change = events.get_nowait()
        if change is None or isinstance(change, Exception) or change.old is not None:
            continue
        event = change.new.value
        about = event.get("regarding") or {}
        if event.get("reportingController") == REPORTER and about.get("kind") == "Pod":
            yield f"pod {about.get('namespace')}/{about.get('name')}: {event.get('reason')}: {event.get('note')}"


@dataclass
class _Room:
    """What nodes have, and what their pods ask for, at one look."""

    nodes: dict[str, NodeRules]
    pods: dict[str, list[tuple[Quantities, frozenset[HostPort]]]] = field(default_factory=dict)
    placed: list[BoundPod] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: SimulatedCluster, pods: list[Pod]) -> _Room:
        """The nodes of a cluster and their pods."""
        records = (NODE_RECORDS.decode(msgspec.json.encode(manifest)) for manifest in cluster.api.objects(NODES))
        room = cls({record.name: neuron_node(record, catalogue()).rules for record in records})
        for pod in pods:
            if pod.node_name and not pod.terminal:
                room.take(BoundPod(pod.node_name, pod.namespace, pod.labels, neuron_pod(pod).rules))
        return room

    def take(self, pod: BoundPod) -> None:
        """A pod is on a node."""
        self.placed.append(pod)
        self.pods.setdefault(pod.node, []).append((pod.rules.needs + pod.rules.neuron, pod.rules.ports))

    def reasons(self, pod: BoundPod, *, extender: bool) -> dict[str, list[str]]:
        """By node, what the scheduler's own filters say against it.

        What the extender alone counts is left out where there is one (``ignoredByScheduler``).
        """
        rules = pod.rules
        if extender:
            rules = replace(rules, needs=tuple(need for need in rules.needs if not need[0].startswith(PREFIX)))
        return {
            name: why_not(rules, name, node, node_use(self.pods.get(name, ())))
            or why_apart(replace(pod, node=name), self.placed, self.nodes)
            for name, node in self.nodes.items()
        }


async def _schedule(cluster: SimulatedCluster, room: _Room, pod: Pod, value: AnyJson) -> str:
    """Bind a pod to the best node that takes it, or write into its status why there is none; a line that says which."""
    wanted = pod.spec.scheduler_name
    if wanted not in SCHEDULERS:
        return f"pod {_name(pod)}: waits: no scheduler is called {wanted!r}, only {' and '.join(SCHEDULERS)}"
    asks = neuron_pod(pod)
    claims: list[AnyJson] = []
    extender = bool(asks.request) and cluster.asks_extender(wanted)  # which is asked about its managedResources only
    candidate = BoundPod("", pod.namespace, pod.labels, asks.rules)
    reasons = room.reasons(candidate, extender=extender)
    allocations: dict[str, list[AnyJson]] = {}
    if asks.claims:
        try:
            claims = claims_of(cluster.api, value)
        except NotAllocatedError as error:
            return f"pod {_name(pod)}: waits: {error}"
        for name, objections in reasons.items():
            try:
                allocations[name] = [] if objections else allocations_on(cluster.api, claims, name)
            except NotAllocatedError as error:
                reasons[name] = [str(error)]
    fitting = [name for name, objections in reasons.items() if not objections]
    against = [objection for objections in reasons.values() for objection in objections]
    try:
        if extender and fitting:
            answer = await cluster.scheduler.filter(value, fitting)
            fitting = answer.nodes
            against += [*answer.failed.values(), *answer.unresolvable.values()]
        if fitting and extender:
            await cluster.scheduler.bind(value, await cluster.scheduler.best(value, fitting))
        elif fitting:
            reserve(cluster.api, value, claims, allocations.get(fitting[0], []))
            cluster.api.bind(pod.namespace, pod.name, node=fitting[0])
    except ExtenderCallError as error:
        why = str(error)
    else:
        if fitting:
            bound = PODS.decode(msgspec.json.encode(cluster.api.get(SERVED_PODS, pod.name, pod.namespace)))
            room.take(replace(candidate, node=bound.node_name))
            ids = [f"{key} {bound.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in bound.annotations]
            return f"pod {_name(pod)}: bound to {bound.node_name}" + "".join(f", {text}" for text in ids)
        why = message(len(reasons), against) if reasons else "no nodes available to schedule pods"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    if not any(condition.items() <= known.items() for known in value["status"].get("conditions") or ()):
        cluster.api.patch_status(SERVED_PODS, pod.name, {"conditions": [condition]}, pod.namespace)
        _record(cluster, pod, why)
    return f"pod {_name(pod)}: waits: {why}"


async def _started(
    worker: SimulatedWorker, pod: Pod, starting: dict[str, asyncio.Task[AdmittedPod]], said: dict[str, str]
) -> list[str]:
    """What a pod that is being started has received, or what it waits for.

    Raises:
        PodRejectedError: the kubelet failed the pod.
    """
    task = starting[pod.uid]
    await asyncio.wait((task,), timeout=START_SECONDS if pod.spec.resource_claims else None)
    if not task.done():
        return _news(said, pod, worker.kubelet.waiting.get(pod.uid, "its claims are being prepared"))
    del starting[pod.uid]
    said.pop(pod.uid, None)
    return [f"pod {_name(pod)}: {text}" for text in _received(task.result())]


def _news(said: dict[str, str], pod: Pod, text: str) -> list[str]:
    """A line about a pod, if it was not the last one."""
    line = f"pod {_name(pod)}: {text}"
    before, said[pod.uid] = said.get(pod.uid), line
    return [line] if line != before else []


def _record(cluster: SimulatedCluster, pod: Pod, why: str) -> None:
    """The scheduler's event."""
    event = create_event(
        ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace),
        reason="FailedScheduling",
        note=why,
        action="Scheduling",
        reporter=pod.spec.scheduler_name,
        instance=pod.spec.scheduler_name,
        now=utc_now(),
        warning=True,
    )
    cluster.api.create(EVENTS, event.body or {}, pod.namespace)


def _received(admitted: AdmittedPod) -> Iterator[str]:
    """What each container was given, a line each."""
    for container in admitted.containers:
        nodes = [f"--device=/dev/{Path(device.host_path).name}:{device.container_path}" for device in container.devices]
        if len(nodes) > MOST_SHOWN:
            nodes = [nodes[0], "...", nodes[-1]]
        env = [f"--env {variable}={value}" for variable, value in container.envs.items()]
        yield f"{container.name} receives {' '.join([*nodes, *env]) or 'no device'}"


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
