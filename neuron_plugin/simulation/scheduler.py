"""What kube-scheduler does with nodes, and with an extender: its own filters, then the extender's verbs.

Its filters are those of NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit and the required
anti-affinity of InterPodAffinity, in its words; it has no others, and scores and preempts nothing. An extender is sent
what kube-scheduler 1.36 sends (Go's capitalised names, NodeNames with Nodes null, keep-alive), and its answers are read
as kube-scheduler does: only a 200 counts, a name that was not asked about fails the attempt, a node that the answer
does not name is unresolvable. Source: pkg/scheduler/framework/plugins, pkg/scheduler/extender.go and
staging/src/k8s.io/kube-scheduler/extender/v1/types.go.

    async with SimulatedScheduler("http://127.0.0.1:12345") as scheduler:
        answer = await scheduler.filter(pod, ["worker-1", "worker-2"])
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

import aiohttp
import msgspec

from neuron_plugin.allocation.node_rules import ANY_ADDRESS, NodeRules, NodeUse, PodRules, Taint, pod_labels
from neuron_plugin.simulation.api_server_kinds import AnyJson

HTTP_TIMEOUT_SECONDS = 5.0
"""The default of an extender's httpTimeout."""

_UNRESOLVABLE = "unresolvable"


class ExtenderCallError(Exception):
    """A call that fails the scheduling attempt, in the scheduler's words where it has some."""


def message(nodes: int, reasons: Iterable[str]) -> str:
    """The text of the FailedScheduling event, from what was said of each node."""
    parts = ", ".join(sorted(f"{number} {text}" for text, number in Counter(reasons).items()))
    return f"0/{nodes} nodes are available: {parts}."


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """What a filter call left over, and why not the others."""

    nodes: list[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)

    def message(self, asked: int) -> str:
        """The text of the FailedScheduling event."""
        return message(asked, [*self.failed.values(), *self.unresolvable.values()])


def why_not(pod: PodRules, name: str, node: NodeRules, use: NodeUse) -> list[str]:
    """Why kube-scheduler's own plugins do not let a pod go to a node; empty if they do.

    The first plugin that objects has the word, as in kube-scheduler. Only what is short can be several things.
    """
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
    """A pod on a node, or thought to be there."""

    node: str
    namespace: str
    labels: Mapping[str, str]
    rules: PodRules

    def keeps_off(self, other: BoundPod, nodes: Mapping[str, NodeRules]) -> bool:
        """Whether its required anti-affinity does not let another pod be where that one is."""
        return any(
            term.selector.matches(pod_labels(other.namespace, other.labels), {})
            and (domain := nodes[self.node].labels.get(term.topology_key)) is not None
            and nodes[other.node].labels.get(term.topology_key) == domain
            for term in self.rules.anti_affinity
        )


def why_apart(pod: BoundPod, placed: Iterable[BoundPod], nodes: Mapping[str, NodeRules]) -> list[str]:
    """Why InterPodAffinity does not let a pod be with the placed ones; of its rules the required anti-affinity only."""
    there = [other for other in placed if other.node in nodes]
    if any(other.keeps_off(pod, nodes) for other in there):
        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return (
        ["node(s) didn't match pod anti-affinity rules"] if any(pod.keeps_off(other, nodes) for other in there) else []
    )


class SimulatedScheduler:
    """A client of one extender. Use it as an asynchronous context manager."""

    def __init__(self, url_prefix: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._prefix = url_prefix.rstrip("/")
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=self._tls) if self._tls else aiohttp.TCPConnector()
        headers = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
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

    async def best(self, pod: AnyJson, nodes: Sequence[str]) -> str:
        """The node that the prioritize verb scores highest, the first of equals; one node is not scored.

        Raises:
            ExtenderCallError: no 200.
        """
        if len(nodes) == 1:
            return nodes[0]
        answer = await self._call("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        scores = {entry["Host"]: entry["Score"] for entry in answer or ()}
        return max(nodes, key=lambda node: int(scores.get(node, 0)))

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
        if self._session is None:
            raise RuntimeError("the simulated scheduler is not open: use it as 'async with SimulatedScheduler(...)'")
        url = f"{self._prefix}/{verb}"
        try:
            async with self._session.post(url, data=msgspec.json.encode(args)) as response:
                if response.status != HTTPStatus.OK:
                    raise ExtenderCallError(f"failed {verb} with extender at URL {url}, code {response.status}")
                return msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise ExtenderCallError(f'Post "{url}": {error!r}') from error
