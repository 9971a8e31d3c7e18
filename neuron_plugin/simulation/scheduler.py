"""The simulated schedulers ``default-scheduler`` and ``neuron-scheduler``.

A scheduler filters the nodes for each waiting pod, asks its extender, if it has one, about the remaining nodes, and
binds the pod to the best. Gated pods are skipped. The filters are NodeUnschedulable, TaintToleration, NodeAffinity,
NodePorts, NodeResourcesFit and the required anti-affinity of InterPodAffinity, with kube-scheduler's texts. Nothing is
scored or preempted. Requests to the extender are those of kube-scheduler 1.36 (capitalised names, NodeNames with Nodes
null, keep-alive). Its answers are read in the same way: only a 200 counts, an unknown node name fails the attempt, and
a node without an answer is unresolvable. Sources: pkg/scheduler/schedule_one.go, framework/plugins, extender.go, and
staging/src/k8s.io/kube-scheduler/extender/v1/types.go.

    async with SimulatedScheduler("http://127.0.0.1:12345") as scheduler:
        answer = await scheduler.filter(pod, ["worker-1", "worker-2"])
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Self, TypedDict, TypeVar

import aiohttp
import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import CORES_KEY, DEVICES_KEY, PREFIX
from neuron_plugin.allocation.node_rules import (
    ANY_ADDRESS,
    DEFAULT_SCHEDULER,
    SECOND_SCHEDULER,
    HostPort,
    NodeRules,
    NodeUse,
    PodRules,
    Quantities,
    Taint,
    node_use,
    pod_labels,
)
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import CLAIMS, NODES, PODS, AnyJson, Refusal
from neuron_plugin.simulation.resource_claims import NotAllocatedError, allocations_on, claims_of, reserve, warn
from neuron_plugin.topology import catalogue

HTTP_TIMEOUT_SECONDS = 5.0
"""The default httpTimeout of an extender."""

_UNRESOLVABLE = "unresolvable"
_Decoded = TypeVar("_Decoded")
SCHEDULERS = (DEFAULT_SCHEDULER, SECOND_SCHEDULER)


# Filters and the extender.


class ExtenderCallError(Exception):
    """A failed call to the extender, which fails the scheduling attempt."""


def message(nodes: int, reasons: Iterable[str]) -> str:
    """The text of the FailedScheduling event, from the reasons of each node."""
    parts = ", ".join(sorted(f"{number} {text}" for text, number in Counter(reasons).items()))
    return f"0/{nodes} nodes are available: {parts}."


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The nodes that pass a filter call, and the reasons against the others."""

    nodes: list[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)

    def message(self, asked: int) -> str:
        """The text of the FailedScheduling event."""
        return message(asked, [*self.failed.values(), *self.unresolvable.values()])


def why_not(pod: PodRules, name: str, node: NodeRules, use: NodeUse) -> list[str]:
    """Why kube-scheduler's own plugins reject a node for a pod: the reasons of the first plugin that does."""
    cordon = (Taint("node.kubernetes.io/unschedulable", "NoSchedule"),) if node.cordoned else ()
    for taints, text in ((cordon, "were unschedulable"), (node.taints, "had untolerated taint(s)")):
        for taint in taints:
            hard = taint.effect in {"NoSchedule", "NoExecute"}
            if hard and not any(toleration.tolerates(taint) for toleration in pod.tolerations):
                return [f"node(s) {text}"]
    selected = all(node.labels.get(key) == value for key, value in pod.node_selector)
    if not selected or (pod.terms is not None and not any(term.matches(name, node.labels) for term in pod.terms)):
        return ["node(s) didn't match Pod's node affinity/selector"]
    for address, protocol, number in pod.ports:
        taken = [at for at, kind, other in use.ports if (kind, other) == (protocol, number)]
        if any(at == address or ANY_ADDRESS in {at, address} for at in taken):
            return ["node(s) didn't have free ports for the requested pod ports"]
    has = dict((*node.allocatable, *node.neuron))
    short = [key for key, asked in (*pod.needs, *pod.neuron) if asked > has.get(key, 0) - use.amounts.get(key, 0)]
    return ["Too many pods" if key == "pods" else f"Insufficient {key}" for key in short]


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node, or a candidate for the node."""

    node: str
    namespace: str
    labels: Mapping[str, str]
    rules: PodRules

    def keeps_off(self, other: BoundPod, nodes: Mapping[str, NodeRules]) -> bool:
        """Whether this pod's required anti-affinity rejects another pod on its node."""
        return any(
            term.selector.matches(pod_labels(other.namespace, other.labels), {})
            and (domain := nodes[self.node].labels.get(term.topology_key)) is not None
            and nodes[other.node].labels.get(term.topology_key) == domain
            for term in self.rules.anti_affinity
        )


def why_apart(pod: BoundPod, placed: Iterable[BoundPod], nodes: Mapping[str, NodeRules]) -> list[str]:
    """Why required anti-affinity, of the pod or of placed pods, rejects the pod's node."""
    there = [other for other in placed if other.node in nodes]
    if any(other.keeps_off(pod, nodes) for other in there):
        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return (
        ["node(s) didn't match pod anti-affinity rules"] if any(pod.keeps_off(other, nodes) for other in there) else []
    )


class _Score(TypedDict):
    Host: str
    Score: int


class SimulatedScheduler:
    """A client of one extender, and an asynchronous context manager."""

    def __init__(self, url_prefix: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._prefix = url_prefix.rstrip("/")
        self._tls = tls
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=self._tls) if self._tls else aiohttp.TCPConnector()
        headers = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def filter(self, pod: AnyJson, nodes: Sequence[str]) -> FilterAnswer:
        """The filter verb, as with nodeCacheCapable.

        Raises:
            ExtenderCallError: no 200, an ``Error``, or a node that was not asked about.
        """
        answer = await self._call("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if answer.get("Error"):
            raise ExtenderCallError(answer["Error"])
        names = answer.get("NodeNames") or []
        for name in names:
            if name not in nodes:
                text = f'extender "{self._prefix}" claims a filtered node "{name}"'
                raise ExtenderCallError(f"{text} which is not found in the input node list")
        failed, unresolvable = answer.get("FailedNodes") or {}, answer.get("FailedAndUnresolvableNodes") or {}
        unnamed = dict.fromkeys((name for name in nodes if name not in {*names, *failed, *unresolvable}), _UNRESOLVABLE)
        return FilterAnswer(names, failed, {**unresolvable, **unnamed})

    async def prioritize(self, pod: AnyJson, nodes: Sequence[str]) -> dict[str, int]:
        """The scores by the prioritize verb. A failed call gives none, as in kube-scheduler."""
        try:
            answer = await self._call("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
            return {entry["Host"]: entry["Score"] for entry in msgspec.convert(answer or (), list[_Score])}
        except (ExtenderCallError, msgspec.ValidationError):  # such as 5.0, which Go cannot read into an int64
            return {}

    async def best(self, pod: AnyJson, nodes: Sequence[str]) -> str:
        """The first node with the highest score. A single node is not scored."""
        scores = await self.prioritize(pod, nodes) if len(nodes) > 1 else {}
        return max(nodes, key=lambda node: scores.get(node, 0))

    async def bind(self, pod: AnyJson, node: str) -> None:
        """The bind verb.

        Raises:
            ExtenderCallError: no 200, no answer in time, or an ``Error``.
        """
        metadata = pod["metadata"]
        args = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        answer = await self._call("bind", args)
        if answer.get("Error"):
            raise ExtenderCallError(answer["Error"])

    async def _call(self, verb: str, args: AnyJson) -> Any:
        url = f"{self._prefix}/{verb}"
        try:
            async with self._session.post(url, data=msgspec.json.encode(args)) as response:
                if response.status != HTTPStatus.OK:
                    raise ExtenderCallError(f"failed {verb} with extender at URL {url}, code {response.status}")
                return msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise ExtenderCallError(f'Post "{url}": {error!r}') from error


# Scheduling cycles.


@dataclass
class _Room:
    """The nodes and their pods in one scheduling round."""

    nodes: dict[str, NodeRules]
    pods: dict[str, list[tuple[Quantities, frozenset[HostPort]]]] = field(default_factory=dict)
    placed: list[BoundPod] = field(default_factory=list)
    choosy: list[BoundPod] = field(default_factory=list)
    """Placed pods with required anti-affinity."""
    uses: dict[str, NodeUse] = field(default_factory=dict)

    def take(self, pod: BoundPod) -> None:
        """Add a pod on a node."""
        self.placed.append(pod)
        if pod.rules.anti_affinity:
            self.choosy.append(pod)
        self.pods.setdefault(pod.node, []).append((pod.rules.needs + pod.rules.neuron, pod.rules.ports))
        self.uses.pop(pod.node, None)

    def use(self, node: str) -> NodeUse:
        """The requests of a node's pods."""
        if node not in self.uses:
            self.uses[node] = node_use(self.pods.get(node, ()))
        return self.uses[node]

    def reasons(self, pod: BoundPod, *, extender: bool) -> dict[str, list[str]]:
        """The filters' reasons against each node. They ignore an extender's resources (``ignoredByScheduler``)."""
        rules, near = pod.rules, self.placed if pod.rules.anti_affinity else self.choosy
        if extender:
            rules = replace(rules, needs=tuple(need for need in rules.needs if not need[0].startswith(PREFIX)))
        return {
            name: why_not(rules, name, node, self.use(name)) or why_apart(replace(pod, node=name), near, self.nodes)
            for name, node in self.nodes.items()
        }


def _pod_of(manifest: AnyJson) -> tuple[Pod, NeuronPod]:
    pod = POD_RECORDS.decode(msgspec.json.encode(manifest))
    return pod, neuron_pod(pod)


def _rules_of(manifest: AnyJson) -> NodeRules:
    return neuron_node(NODE_RECORDS.decode(msgspec.json.encode(manifest)), catalogue()).rules


class Scheduling:
    """The schedulers of a cluster. ``asks_extender`` says which ask ``extender``. ``say`` gets a line for each pod."""

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
        self._known: dict[str, tuple[AnyJson, Any]] = {}
        """Decoded pods and nodes by UID."""

    async def look(self) -> None:
        """Try to schedule all waiting pods."""
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
            pod, asks = self._read(manifest, _pod_of)
            try:
                text = await self._schedule(room, pod, asks, manifest)
            except Refusal:
                continue  # changed or deleted meanwhile: the next look sees that
            except (KeyError, TypeError, ValueError) as error:  # a malformed pod must not stop the others
                text = f"cannot be handled: {error!r}"
            line = f"pod {pod.namespace}/{pod.name}: {text}"
            if self._said.get(pod.uid) != line:
                self._said[pod.uid] = line
                self._say(line)

    def _room(self, manifests: Iterable[AnyJson]) -> _Room:
        """The current nodes and their pods."""
        nodes = self._api.objects(NODES)
        there = {manifest["metadata"]["uid"] for manifest in (*nodes, *manifests)}
        self._known = {uid: known for uid, known in self._known.items() if uid in there}
        room = _Room({node["metadata"]["name"]: self._read(node, _rules_of) for node in nodes})
        for manifest in manifests:
            pod, asks = self._read(manifest, _pod_of)
            if pod.node_name and not pod.terminal:
                room.take(BoundPod(pod.node_name, pod.namespace, pod.labels, asks.rules))
        return room

    def _read(self, manifest: AnyJson, decode: Callable[[AnyJson], _Decoded]) -> _Decoded:
        """Decode an object, once for each version."""
        uid = manifest["metadata"]["uid"]
        if uid not in self._known or self._known[uid][0] is not manifest:
            self._known[uid] = manifest, decode(manifest)
        found: _Decoded = self._known[uid][1]
        return found

    async def _schedule(self, room: _Room, pod: Pod, asks: NeuronPod, manifest: AnyJson) -> str:
        """Bind a pod to the best node, or write into its status why none fits; return a text about it."""
        wanted = pod.spec.scheduler_name
        if wanted not in SCHEDULERS:
            return f"waits: no scheduler is called {wanted!r}, only {' and '.join(SCHEDULERS)}"
        there = {(claim["metadata"]["namespace"], claim["metadata"]["name"]) for claim in self._api.objects(CLAIMS)}
        if absent := [name for name in asks.rules.claims if (pod.namespace, name) not in there]:
            text = f'0/{len(room.nodes)} nodes are available: persistentvolumeclaim "{absent[0]}" not found.'
            return self._leave(pod, manifest, text)
        claims: list[AnyJson] = []
        extender = bool(asks.request) and self._asks_extender(wanted)  # only about its managedResources
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
        bound, _ = self._read(self._api.get(PODS, pod.name, pod.namespace), _pod_of)
        room.take(replace(candidate, node=bound.node_name))
        ids = [f"{key} {bound.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in bound.annotations]
        return ", ".join([f"bound to {bound.node_name}", *ids])

    def _leave(self, pod: Pod, manifest: AnyJson, why: str) -> str:
        """Write a condition and an event that say why a pod waits."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        if not any(condition.items() <= known.items() for known in manifest["status"].get("conditions") or ()):
            self._api.patch_status(PODS, pod.name, {"conditions": [condition]}, pod.namespace)
            by = pod.spec.scheduler_name
            warn(self._api, manifest, why, reason="FailedScheduling", action="Scheduling", reporter=by)
        return f"waits: {why}"


def _waits(manifest: AnyJson) -> bool:
    """Whether a pod waits for a scheduler."""
    spec, status = manifest["spec"], manifest["status"]
    over = "deletionTimestamp" in manifest["metadata"] or status.get("phase") in {"Succeeded", "Failed"}
    return not (over or spec.get("nodeName") or spec.get("schedulingGates"))
