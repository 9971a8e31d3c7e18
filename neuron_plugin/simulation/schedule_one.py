"""The scheduling cycles of the simulated schedulers: which node a waiting pod goes to, or why it waits.

``default-scheduler`` and ``neuron-scheduler`` run. Each looks at its waiting pods in the order of creation: nodes that
its own filters leave are asked of the extender, if it has one, and the best of them is bound. A gated pod is left
alone. Source: ``pkg/scheduler/schedule_one.go`` of 1.36.2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import CORES_KEY, DEVICES_KEY, PREFIX
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER, HostPort, NodeRules, NodeUse, Quantities, node_use
from neuron_plugin.cluster import ObjectReference, Pod
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.placement.extender.scheduler_config import SECOND_SCHEDULER
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import CLAIMS, EVENTS, NODES, PODS, AnyJson, Refusal, ServedKind
from neuron_plugin.simulation.scheduler import (
    BoundPod,
    ExtenderCallError,
    SimulatedScheduler,
    message,
    why_apart,
    why_not,
)
from neuron_plugin.simulation.scheduler_claims import NotAllocatedError, allocations_on, claims_of, reserve
from neuron_plugin.topology import catalogue

SCHEDULERS = (DEFAULT_SCHEDULER, SECOND_SCHEDULER)
"""The schedulers that run."""


@dataclass
class _Room:
    """What nodes have, and what their pods ask for, at one look."""

    nodes: dict[str, NodeRules]
    pods: dict[str, list[tuple[Quantities, frozenset[HostPort]]]] = field(default_factory=dict)
    placed: list[BoundPod] = field(default_factory=list)
    choosy: list[BoundPod] = field(default_factory=list)
    """Those of the placed ones that keep others off."""
    uses: dict[str, NodeUse] = field(default_factory=dict)

    def take(self, pod: BoundPod) -> None:
        """A pod is on a node."""
        self.placed.append(pod)
        if pod.rules.anti_affinity:
            self.choosy.append(pod)
        self.pods.setdefault(pod.node, []).append((pod.rules.needs + pod.rules.neuron, pod.rules.ports))
        self.uses.pop(pod.node, None)

    def use(self, node: str) -> NodeUse:
        """What the pods of a node ask for together."""
        if node not in self.uses:
            self.uses[node] = node_use(self.pods.get(node, ()))
        return self.uses[node]

    def reasons(self, pod: BoundPod, *, extender: bool) -> dict[str, list[str]]:
        """By node, what the scheduler's own filters say against it.

        What the extender alone counts is left out where there is one (``ignoredByScheduler``).
        """
        rules, near = pod.rules, self.placed if pod.rules.anti_affinity else self.choosy
        if extender:
            rules = replace(rules, needs=tuple(need for need in rules.needs if not need[0].startswith(PREFIX)))
        return {
            name: why_not(rules, name, node, self.use(name)) or why_apart(replace(pod, node=name), near, self.nodes)
            for name, node in self.nodes.items()
        }


class Scheduling:
    """The schedulers of a cluster; ``asks_extender`` says which of them ask ``extender``. ``say`` is given lines."""

    def __init__(
        self,
        api: SimulatedApiServer,
        extender: SimulatedScheduler,
        asks_extender: Callable[[str], bool],
        say: Callable[[str], None],
    ) -> None:
        self._api = api
        self._extender = extender
        self._asks_extender = asks_extender
        self._say = say
        self._said: dict[str, str] = {}
        """The last line about each pod, by UID."""
        self._records: dict[str, tuple[AnyJson, Pod, NeuronPod]] = {}
        """Pods by UID as they were last decoded."""
        self._rules: dict[str, tuple[AnyJson, NodeRules]] = {}
        """What the scheduler looks at of nodes, by name."""

    async def look(self) -> None:
        """Try all pods that wait."""
        manifests = self._api.objects(PODS)
        for uid in self._said.keys() - {manifest["metadata"]["uid"] for manifest in manifests}:
            name, _, text = self._said.pop(uid).partition(": ")
            if not text.startswith("bound"):
                self._say(f"{name}: deleted")
        waiting = [manifest for manifest in manifests if _waits(manifest)]
        if not waiting:
            return
        room = self._room(manifests)
        for manifest in waiting:
            pod, asks = self._record(manifest)
            try:
                text = await self._schedule(room, pod, asks, manifest)
            except Refusal:
                continue  # changed or deleted since it was listed: the next look sees that
            except (KeyError, TypeError, ValueError) as error:  # whatever a client made of one pod, the others go on
                text = f"cannot be handled: {error!r}"
            line = f"pod {pod.namespace}/{pod.name}: {text}"
            if self._said.get(pod.uid) != line:
                self._said[pod.uid] = line
                self._say(line)

    def _room(self, manifests: Iterable[AnyJson]) -> _Room:
        """The nodes of the cluster and their pods."""
        rules = dict[str, tuple[AnyJson, NodeRules]]()
        for manifest in self._api.objects(NODES):
            name = manifest["metadata"]["name"]
            known, found = self._rules.get(name, (None, None))
            if found is None or known is not manifest:
                found = neuron_node(NODE_RECORDS.decode(msgspec.json.encode(manifest)), catalogue()).rules
            rules[name] = manifest, found
        self._rules = rules
        room = _Room({name: found for name, (_, found) in rules.items()})
        pods = [self._record(manifest) for manifest in manifests]
        self._records = {pod.uid: self._records[pod.uid] for pod, _ in pods}
        for pod, asks in pods:
            if pod.node_name and not pod.terminal:
                room.take(BoundPod(pod.node_name, pod.namespace, pod.labels, asks.rules))
        return room

    def _record(self, manifest: AnyJson) -> tuple[Pod, NeuronPod]:
        """A pod as it is decoded, once for each version of it."""
        uid = manifest["metadata"]["uid"]
        if uid not in self._records or self._records[uid][0] is not manifest:
            pod = POD_RECORDS.decode(msgspec.json.encode(manifest))
            self._records[uid] = manifest, pod, neuron_pod(pod)
        return self._records[uid][1:]

    async def _schedule(self, room: _Room, pod: Pod, asks: NeuronPod, manifest: AnyJson) -> str:
        """Bind a pod to the best node that takes it, or write into its status why there is none; what is to say."""
        wanted = pod.spec.scheduler_name
        if wanted not in SCHEDULERS:
            return f"waits: no scheduler is called {wanted!r}, only {' and '.join(SCHEDULERS)}"
        if absent := [name for name in asks.rules.claims if not self._is_there(CLAIMS, name, pod.namespace)]:
            text = f'0/{len(room.nodes)} nodes are available: persistentvolumeclaim "{absent[0]}" not found.'
            return self._leave(pod, manifest, text)
        claims: list[AnyJson] = []
        extender = bool(asks.request) and self._asks_extender(wanted)  # which is asked about its managedResources only
        candidate = BoundPod("", pod.namespace, pod.labels, asks.rules)
        reasons = room.reasons(candidate, extender=extender)
        allocations: dict[str, list[AnyJson]] = {}
        if asks.claims:
            try:
                claims = claims_of(self._api, manifest)
            except NotAllocatedError as error:
                return f"waits: {error}"
            for name, objections in reasons.items():
                try:
                    allocations[name] = [] if objections else allocations_on(self._api, claims, name)
                except NotAllocatedError as error:
                    reasons[name] = [str(error)]
        fitting = [name for name, objections in reasons.items() if not objections]
        against = [objection for objections in reasons.values() for objection in objections]
        try:
            if extender and fitting:
                answer = await self._extender.filter(manifest, fitting)
                fitting = answer.nodes
                against += [*answer.failed.values(), *answer.unresolvable.values()]
            if fitting and extender:
                await self._extender.bind(manifest, await self._extender.best(manifest, fitting))
            elif fitting:
                reserve(self._api, manifest, claims, allocations.get(fitting[0], []))
                self._api.bind(pod.namespace, pod.name, node=fitting[0])
        except ExtenderCallError as error:
            return self._leave(pod, manifest, str(error))
        if not fitting:
            why = message(len(reasons), against) if reasons else "no nodes available to schedule pods"
            return self._leave(pod, manifest, why)
        bound, _ = self._record(self._api.get(PODS, pod.name, pod.namespace))
        room.take(replace(candidate, node=bound.node_name))
        ids = [f"{key} {bound.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in bound.annotations]
        return ", ".join([f"bound to {bound.node_name}", *ids])

    def _is_there(self, kind: ServedKind, name: str, namespace: str) -> bool:
        with contextlib.suppress(Refusal):
            return bool(self._api.get(kind, name, namespace))
        return False

    def _leave(self, pod: Pod, manifest: AnyJson, why: str) -> str:
        """Say on a pod, and in an event, why it waits."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        if not any(condition.items() <= known.items() for known in manifest["status"].get("conditions") or ()):
            self._api.patch_status(PODS, pod.name, {"conditions": [condition]}, pod.namespace)
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
            self._api.create(EVENTS, event.body or {}, pod.namespace)
        return f"waits: {why}"


def _waits(manifest: AnyJson) -> bool:
    """Whether a scheduler is to look at a pod."""
    spec, status = manifest["spec"], manifest["status"]
    over = "deletionTimestamp" in manifest["metadata"] or status.get("phase") in {"Succeeded", "Failed"}
    return not (over or spec.get("nodeName") or spec.get("schedulingGates"))
