"""How the simulated kubelet syncs the pods of its node with the API server.

Each sync of a pod admits it, starts its containers, or ends it if it is deleted, and writes its status. Containers keep
running while the kubelet is down. A `Runtime` says how long a container runs; without one it runs until it is killed.
Sources: ``pkg/kubelet/kubelet.go`` (SyncPod) and ``kubelet_pods.go`` (the phase) of 1.36.2.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from neuron_plugin.allocation import ContainerKind, Resource
from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.allocation.requests import parse_count
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import PODS, AnyJson, Refusal
from neuron_plugin.simulation.api_server_rules import now_text
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_dra import NotPreparedError
from neuron_plugin.simulation.kubelet_pods import (
    AdmittedContainer,
    AdmittedPod,
    KubeletContainer,
    KubeletPod,
    PodGoneError,
    PodRejectedError,
)

MOST_SHOWN = 4
"""Device nodes listed one by one; of more, the first and the last are."""


class ContainerExit(NamedTuple):
    """Exit code and termination message of a container."""

    code: int = 0
    said: str = ""


class Runtime(Protocol):
    """Runs containers."""

    async def run(self, pod: AnyJson, container: str) -> ContainerExit:
        """Run a started container until it exits. Cancelling the call kills the container."""


@dataclass(eq=False)
class _Worker:
    """A pod from its binding to its end. ``exits`` are the final exits of its containers."""

    manifest: AnyJson
    pod: KubeletPod
    task: asyncio.Task[None] | None = None
    admitted: bool = False
    started: dict[str, AdmittedContainer] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    runs: dict[str, asyncio.Task[ContainerExit]] = field(default_factory=dict)
    exits: dict[str, ContainerExit] = field(default_factory=dict)
    compute: AnyJson = field(default_factory=dict)
    """CPU and memory of its first container."""
    not_resized: str = ""
    since: str = field(default_factory=now_text)
    shown: AnyJson = field(default_factory=dict)
    said: str = ""

    @property
    def terminating(self) -> bool:
        """Whether its deletion has begun."""
        return "deletionTimestamp" in self.manifest["metadata"]

    @property
    def phase(self) -> str:
        """The pod's phase: whether all app containers have exited for good, else whether all have started."""
        apps = [container.name for container in self.pod.containers if container.kind is ContainerKind.APP]
        if apps and all(name in self.exits for name in apps):
            return "Failed" if any(self.exits[name].code for name in apps) else "Succeeded"
        return "Running" if all(self.starts[name] for name in apps) else "Pending"


class PodSync:
    """The pods of one node. ``say`` gets a line for each change of a pod."""

    def __init__(self, api: SimulatedApiServer, kubelet: SimulatedKubelet, *, runtime: Runtime | None = None) -> None:
        self.say: Callable[[str], None] = lambda _: None
        self._api = api
        self._kubelet = kubelet
        self._runtime = runtime
        self._workers: dict[str, _Worker] = {}
        self._up = True

    def look(self, manifests: Iterable[AnyJson]) -> None:
        """Take the node's current pods, and start a sync of each pod that is not being synced."""
        if not self._up:
            return
        pods = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
        for uid in self._workers.keys() - pods.keys():
            self._lose(self._workers.pop(uid))
        for manifest in pods.values():
            if manifest["status"].get("phase") in TERMINAL_PHASES:
                continue
            worker = self._known(manifest)
            uid = worker.pod.uid
            if worker.task is None or worker.task.done():
                worker.task = asyncio.create_task(self._pass(worker), name=f"pod {worker.pod.name}")
            elif worker.terminating and self._kubelet.has(uid):
                self._kubelet.finish(uid)  # stop waiting for its claims
            elif why := self._kubelet.waiting.get(uid):
                self._tell(worker, why)

    async def stop(self) -> None:
        """Stop the kubelet; containers keep running."""
        self._up = False
        await self._kubelet.stop()
        tasks = [worker.task for worker in self._workers.values() if worker.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self) -> None:
        """Start the kubelet again. It admits the remaining pods once more."""
        pods = {manifest["metadata"]["uid"]: manifest for manifest in self._api.objects(PODS)}
        for uid, worker in list(self._workers.items()):
            if uid not in pods:
                self._lose(self._workers.pop(uid))
            elif "deletionTimestamp" in pods[uid]["metadata"] and self._kubelet.has(uid):
                self._kubelet.finish(uid)
            self._notice_exits(worker)
            worker.shown = {}  # others may have written the status meanwhile
        await self._kubelet.start()
        self._up = True

    async def lose_containers(self) -> None:
        """The machine is off. The kubelet will admit and start the remaining pods from the beginning."""
        self._kubelet.lose_containers()
        for worker in self._workers.values():
            await _kill(worker)
            worker.runs.clear()
            worker.started.clear()
            worker.admitted, worker.said = False, ""

    async def close(self) -> None:
        """Stop the kubelet and kill all containers."""
        await self.stop()
        await asyncio.gather(*(_kill(worker) for worker in self._workers.values()))

    async def admit(self, manifest: AnyJson) -> AdmittedPod:
        """Sync a pod bound to this node once, and return what its containers received.

        Raises:
            PodRejectedError: the kubelet failed the pod.
        """
        worker = self._known(manifest)
        await self._sync(worker)
        return AdmittedPod(worker.pod, tuple(worker.started.values()))

    async def end(self, manifest: AnyJson) -> None:
        """End a pod's containers, and delete the pod.

        Raises:
            NotPreparedError: its claims cannot be unprepared, and the pod stays Terminating.
        """
        await self._end(self._known(manifest))

    def log(self, namespace: str, name: str, container: str) -> str | None:
        """A container's log: its variables and device nodes; None if it has not run."""
        for worker in self._workers.values():
            if (worker.pod.namespace, worker.pod.name) == (namespace, name):
                started = worker.started.get(container or worker.pod.containers[-1].name)
                if started and started.waiting is None:
                    env = [f"{key}={value}" for key, value in sorted(started.envs.items())]
                    return "\n".join([*env, *(node.container_path for node in started.devices), "READY", ""])
        return None

    # One sync.

    def _known(self, manifest: AnyJson) -> _Worker:
        """The pod's worker, with the current manifest."""
        uid = manifest["metadata"]["uid"]
        if uid not in self._workers:
            pod = kubelet_pod(POD_RECORDS.decode(msgspec.json.encode(manifest)))
            self._workers[uid] = _Worker(manifest, pod, compute=_compute(manifest))
        self._workers[uid].manifest = manifest
        return self._workers[uid]

    async def _pass(self, worker: _Worker) -> None:
        try:
            if worker.terminating:
                await self._end(worker)
                self._tell(worker, "deleted")
            else:
                await self._sync(worker)
        except PodRejectedError:
            return  # as its status says
        except NotPreparedError as error:
            self._tell(worker, f"its claims are not given up yet: {error}")
        except (PodGoneError, Refusal):
            return  # deleted or changed meanwhile: the next sync sees that
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a malformed pod must not stop the others
            self._tell(worker, f"cannot be handled: {error!r}")

    async def _sync(self, worker: _Worker) -> None:
        """Bring a pod to its desired state, as far as that is possible now.

        Raises:
            PodRejectedError: the kubelet failed the pod.
        """
        uid = worker.pod.uid
        try:
            if not worker.admitted and uid not in self._kubelet.rejections:
                for admitted in (await self._kubelet.admit(worker.pod)).containers:
                    self._note(worker, admitted)
                worker.admitted = True
            self._notice_exits(worker)
            if worker.phase in TERMINAL_PHASES and self._kubelet.has(uid):
                self._kubelet.finish(uid)
            for container in worker.pod.containers if self._kubelet.has(uid) else ():
                started = worker.started.get(container.name)
                if container.name not in worker.exits and (started is None or started.waiting is not None):
                    self._note(worker, await self._kubelet.start_container(uid, container.name))
            if self._kubelet.has(uid):
                await self._resize(worker)
        finally:
            self._report(worker)

    def _note(self, worker: _Worker, container: AdmittedContainer) -> None:
        """Record that a container was started, or could not be."""
        name = container.name
        worker.started[name] = container
        if container.waiting is not None:
            self._tell(worker, f"{name} does not start: {container.waiting}")
            return
        worker.starts[name] += 1
        if self._runtime and container.kind is not ContainerKind.INIT:
            worker.runs[name] = asyncio.create_task(self._runtime.run(worker.manifest, name), name=f"container {name}")
        nodes = [f"--device=/dev/{Path(device.host_path).name}:{device.container_path}" for device in container.devices]
        shown = nodes if len(nodes) <= MOST_SHOWN else [nodes[0], "...", nodes[-1]]
        env = [f"--env {variable}={value}" for variable, value in container.envs.items()]
        self._tell(worker, f"{name} receives {' '.join([*shown, *env]) or 'no device'}")

    def _notice_exits(self, worker: _Worker) -> None:
        """Let exited containers start again, or record their exit, as the restart policy says."""
        policy = worker.manifest["spec"].get("restartPolicy")
        for name in [name for name, run in worker.runs.items() if run.done()]:
            end = worker.runs.pop(name).result()
            del worker.started[name]
            if self._kubelet.has(worker.pod.uid):
                self._kubelet.stop_container(worker.pod.uid, name)
            if policy == "Never" or (policy == "OnFailure" and not end.code):
                worker.exits[name] = end

    async def _resize(self, worker: _Worker) -> None:
        """Admit the pod again if its CPU or memory has changed."""
        wanted = _compute(worker.manifest)
        if wanted == worker.compute:
            worker.not_resized = ""
            return
        try:
            await self._kubelet.resize(worker.pod.uid)
        except PodRejectedError as rejection:
            worker.not_resized = str(rejection)
        else:
            worker.compute, worker.not_resized = wanted, ""

    async def _end(self, worker: _Worker) -> None:
        """See `end`."""
        uid, name, namespace = worker.pod.uid, worker.pod.name, worker.pod.namespace
        await _kill(worker)
        self._kubelet.end_processes(worker.pod)
        await self._kubelet.unprepare(worker.pod)  # while the pod is active, so only once (kubernetes#140212)
        if self._kubelet.has(uid):
            self._kubelet.finish(uid)
        self._workers.pop(uid, None)
        done = {"terminated": {"exitCode": 0}}
        statuses = [{"name": container.name, "state": done} for container in worker.pod.containers]
        self._api.patch_status(PODS, name, {"phase": "Succeeded", "containerStatuses": statuses}, namespace)
        self._api.delete_pod(namespace, name, grace_seconds=0)

    def _lose(self, worker: _Worker) -> None:
        """The pod was deleted by force. Its processes run for a while.

        A kubelet that is admitting the pod finishes the admission first.
        """
        if self._kubelet.has(worker.pod.uid):
            self._kubelet.remove_while_running(worker.pod.uid)
        elif worker.task and not worker.task.done():
            worker.task.add_done_callback(lambda _: self._lose(worker))
            return
        for run in worker.runs.values():
            asyncio.get_running_loop().call_later(self._kubelet.termination_seconds, run.cancel)
        self._tell(worker, "deleted")

    # Output.

    def _tell(self, worker: _Worker, text: str) -> None:
        """Say a line about a pod, unless it repeats the last one."""
        if worker.said != text:
            worker.said = text
            self.say(f"pod {worker.pod.namespace}/{worker.pod.name}: {text}")

    def _report(self, worker: _Worker) -> None:
        """Write the pod's status if it has changed."""
        if rejection := self._kubelet.rejections.get(worker.pod.uid):
            self._tell(worker, str(rejection))
        phase = "Failed" if rejection else worker.phase
        ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": worker.since}
        pending = {"type": "PodResizePending", "$patch": "delete"}
        if why := worker.not_resized:
            pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": why}
        status: AnyJson = {"phase": phase, "conditions": [ready, pending]}
        if rejection:
            status |= {"reason": rejection.reason, "message": str(rejection)}
        for field_name, is_app in (("initContainerStatuses", False), ("containerStatuses", True)):
            status[field_name] = [
                self._container_status(worker, container)
                for container in worker.pod.containers
                if (container.kind is ContainerKind.APP) is is_app
            ]
        if status != worker.shown:
            worker.shown = status
            self._api.patch_status(PODS, worker.pod.name, status, worker.pod.namespace)

    def _container_status(self, worker: _Worker, container: KubeletContainer) -> AnyJson:
        name, starts = container.name, worker.starts[container.name]
        started = worker.started.get(name)
        runs = started is not None and started.waiting is None and worker.phase not in TERMINAL_PHASES
        done = name in worker.exits or (runs and container.kind is ContainerKind.INIT)
        if done:
            end = worker.exits.get(name, ContainerExit())
            said = {"message": end.said} if end.said else {}
            state: AnyJson = {"terminated": {"exitCode": end.code, "startedAt": worker.since, **said}}
        elif runs:
            state = {"running": {"startedAt": worker.since}}
        else:
            message = started.waiting if started else None
            reason = "CreateContainerError" if message else "ContainerCreating"
            state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        health = self._kubelet.resource_health(worker.pod, container)
        return {
            "name": name,
            "ready": runs and not done,
            "started": runs and not done,
            "restartCount": max(starts - 1, 0),
            "state": state,
            **({"allocatedResourcesStatus": health} if health else {}),
            **({"resources": {"requests": worker.compute}} if worker.compute else {}),
        }


async def _kill(worker: _Worker) -> None:
    for run in worker.runs.values():
        run.cancel()
    await asyncio.gather(*worker.runs.values(), return_exceptions=True)


def _compute(manifest: AnyJson) -> AnyJson:
    """CPU and memory requests of the pod's first container."""
    first: AnyJson = next(iter(manifest["spec"].get("containers") or ()), {})
    requests = (first.get("resources") or {}).get("requests") or {}
    return {name: requests[name] for name in ("cpu", "memory") if name in requests}


def kubelet_pod(record: Pod) -> KubeletPod:
    """The kubelet's view of a pod."""
    resources, claims = set(Resource), neuron_pod(record).claims
    containers = [
        KubeletContainer(
            container.name,
            {key: parse_count(text) for key, text in container.limits.items() if key in resources},
            kind,
            tuple((claim.name, request) for claim in claims for user, request in claim.users if user == container.name),
        )
        for container, kind in record.containers
    ]
    named = {claim.name: claim.claim for claim in claims if claim.claim}
    return KubeletPod(record.uid, record.namespace, record.name, tuple(containers), named)
