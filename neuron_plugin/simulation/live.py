"""A simulated cluster that runs by itself: what its scheduler and kubelets do, for as long as it is up.

The scheduler looks at each waiting pod in the order of creation: nodes that are not cordoned and have the labels of the
pod's nodeSelector are filtered by the extender, the best of them is bound. It has none of kube-scheduler's other
plugins: CPU, memory, taints, affinity and preemption are not looked at. A kubelet admits the pods of its node, which
then run until they are deleted. A daemon that has ended is started again, as its DaemonSet would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec

from neuron_plugin.allocation import CORES_KEY, DEVICES_KEY, Resource
from neuron_plugin.cluster import PODS, ObjectReference, create_event, neuron_pod, utc_now
from neuron_plugin.cluster import Pod as PodRecord
from neuron_plugin.simulation.api_server_kinds import EVENTS, NODES, JsonObject, Refusal
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.cluster import SimulatedCluster
from neuron_plugin.simulation.kubelet_pods import AdmittedPod, PodRejectedError
from neuron_plugin.simulation.scheduler import ExtenderCallError

LOOK_SECONDS = 1.0
"""Between two looks where no pod has changed: then waiting pods are tried again, as in kube-scheduler."""

MOST_SHOWN = 4
"""Device nodes of a container that are shown one by one."""
SCHEDULER = "simulated-scheduler"


async def live(cluster: SimulatedCluster) -> AsyncIterator[str]:
    """Run the cluster, and say in one line each what happened. Endless."""
    known: dict[str, PodRecord] = {}  # by UID, as they were when they were last acted on
    said: dict[str, str] = {}
    changes = cluster.api.follow(SERVED_PODS)
    while True:
        while not changes.empty():
            changes.get_nowait()
        for worker in cluster.workers.values():
            if worker.daemon and (status := worker.daemon.returncode) is not None:
                yield f"node {worker.name}: its plugin has ended with {status} and is started again"
                await worker.start_daemon()
            if worker.report_capacity(cluster.api):
                counts = (f"{worker.kubelet.capacity(each.value).allocatable} {each.short_name}" for each in Resource)
                yield f"node {worker.name}: allocatable are {', '.join(counts)}"
        objects = cluster.api.objects(SERVED_PODS)
        pods = [PODS.decode(msgspec.json.encode(each)) for each in objects]
        for uid in known.keys() - {pod.uid for pod in pods}:  # deleted by force
            gone = known.pop(uid)
            said.pop(uid, None)
            if gone.node_name:
                with contextlib.suppress(KeyError):  # the kubelet rejected it
                    cluster.workers[gone.node_name].kubelet.finish(uid)
            yield f"pod {_name(gone)}: deleted"
        for pod, value in zip(pods, objects, strict=True):
            worker_of_pod = cluster.workers.get(pod.node_name)
            if pod.terminal or (pod.node_name and not worker_of_pod) or value["spec"].get("schedulingGates"):
                continue
            acted_on = known.get(pod.uid)
            if not pod.terminating:
                known[pod.uid] = pod
            try:
                if worker_of_pod is None:
                    line = await _schedule(cluster, pod, value)
                    lines = [line] if said.get(pod.uid) != line else []
                    said[pod.uid] = line
                elif pod.terminating:
                    worker_of_pod.end(cluster.api, pod)
                    known.pop(pod.uid, None)
                    lines = [f"pod {_name(pod)}: deleted"]
                elif acted_on and acted_on.node_name:
                    continue
                else:
                    said.pop(pod.uid, None)
                    lines = [
                        f"pod {_name(pod)}: {each}" for each in _received(await worker_of_pod.admit(cluster.api, pod))
                    ]
            except PodRejectedError as error:
                lines = [f"pod {_name(pod)}: {error}"]
            except Refusal as refusal:
                if refusal.code != HTTPStatus.NOT_FOUND:
                    raise
                continue  # deleted since it was listed: the next look says so
            for line in lines:
                yield line
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await changes.get()
        except TimeoutError:
            continue


async def _schedule(cluster: SimulatedCluster, pod: PodRecord, value: JsonObject) -> str:
    """Bind a pod to the best node that takes it, or write into its status why there is none; a line that says which."""
    selector = value["spec"].get("nodeSelector") or {}
    nodes = [
        node["metadata"]["name"]
        for node in cluster.api.objects(NODES)
        if not node["spec"].get("unschedulable") and selector.items() <= node["metadata"].get("labels", {}).items()
    ]
    asks = neuron_pod(pod).request
    try:
        answer = None
        if asks and nodes:  # the extender is asked about its managedResources only
            answer = await cluster.scheduler.filter(value, nodes)
            fitting = answer.nodes
        else:
            fitting = nodes
        if fitting and answer:
            await cluster.scheduler.bind(value, await cluster.scheduler.best(value, fitting))
        elif fitting:
            cluster.api.bind(pod.namespace, pod.name, node=fitting[0])
    except ExtenderCallError as error:
        why = str(error)
    else:
        if fitting:
            bound = PODS.decode(msgspec.json.encode(cluster.api.get(SERVED_PODS, pod.name, pod.namespace)))
            ids = [f"{key} {bound.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in bound.annotations]
            return f"pod {_name(pod)}: bound to {bound.node_name}" + "".join(f", {each}" for each in ids)
        number = len(cluster.workers)
        why = answer.message(number) if answer else f"0/{number} nodes are available: none is open and selected."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    if condition not in (value["status"].get("conditions") or ()):
        cluster.api.patch_status(SERVED_PODS, pod.name, {"conditions": [condition]}, pod.namespace)
        _record(cluster, pod, why)
    return f"pod {_name(pod)}: waits: {why}"


def _record(cluster: SimulatedCluster, pod: PodRecord, why: str) -> None:
    """The scheduler's event."""
    event = create_event(
        ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace),
        reason="FailedScheduling",
        note=why,
        action="Scheduling",
        reporter=SCHEDULER,
        instance=SCHEDULER,
        now=utc_now(),
        warning=True,
    )
    cluster.api.create(EVENTS, event.body or {}, pod.namespace)


def _received(admitted: AdmittedPod) -> Iterator[str]:
    """What each container was given, a line each."""
    for container in admitted.containers:
        nodes = [f"--device=/dev/{Path(each.host_path).name}:{each.container_path}" for each in container.devices]
        if len(nodes) > MOST_SHOWN:
            nodes = [nodes[0], "...", nodes[-1]]
        env = [f"--env {variable}={value}" for variable, value in container.envs.items()]
        yield f"{container.name} receives {' '.join([*nodes, *env]) or 'no device'}"


def _name(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"
