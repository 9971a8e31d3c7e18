"""Do the pods' annotations say what the kubelet gave?

The extender believes the annotations. Where they differ from the kubelet's account, it plans with silicon that
somebody else has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from neuron_plugin.allocation.annotations import ContainerIds
from neuron_plugin.allocation.requests import Kind
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cli.doctor_facts import ApiPod, Cluster, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, or_ok, problem, unchecked, warning
from neuron_plugin.cli.text import plural, ranges
from neuron_plugin.plugin.pods import NodePod

PATIENCE_SECONDS = 120
"""How long a decision may wait for its Allocate: admission follows the binding within seconds."""

Given = Mapping[tuple[str, Resource], tuple[int, ...]]
"""Ids of each container of a pod by the kubelet."""


def check_annotations(facts: Facts) -> Iterator[Finding]:
    """Each live pod of this node: readable, confirmed, and the same as in PodResources."""
    cluster = facts.cluster
    if isinstance(cluster, Unknown):
        yield unchecked(cluster)
        return
    asking = [(pod, pod.neuron) for pod in cluster.pods if pod.neuron]
    findings = [finding for pod, neuron in asking for finding in _pod(facts, pod, neuron)]
    yield from or_ok(
        (*findings, *_unknown_pods(facts, cluster)), f"{plural(len(asking), 'pod')} with Neuron, as annotated"
    )


def _pod(facts: Facts, pod: ApiPod, neuron: NodePod) -> Iterator[Finding]:
    if neuron.problem:
        yield problem(
            neuron.problem,
            "what this pod is to get cannot be told: the extender gives this node no further multi-device pod",
            "correct or delete the pod",
        )
        return
    given = _given(facts, pod)
    if neuron.decision is None:
        if pod.phase == "Running":
            yield warning(
                f"{pod.pod} runs without an annotation that says its devices",
                "the extender does not know what it holds, and gives this node no further multi-device pod",
                "the plugin writes it within 10 s: see its log, and that it may reach and patch the API server",
            )
        return
    yield from _confirmed(facts, pod, neuron.decision.allocated, neuron.decision.alloc_time_ns)
    if given is not None:
        yield from _compared(pod, neuron.decision.containers, given)


def _confirmed(facts: Facts, pod: ApiPod, allocated: bool, alloc_time_ns: int) -> Iterator[Finding]:  # noqa: FBT001 - the annotation's value
    if allocated:
        return
    if pod.phase == "Running":
        yield warning(
            f"{pod.pod} runs, and its NEURON_ALLOCATED is still false",
            "nobody has confirmed that it holds what its annotation says; the vendor's plugin never does for one "
            "device or all of them",
            "neuron-plugin confirms within 10 s: see its log, and that it may reach and patch the API server",
        )
    elif alloc_time_ns and facts.now_ns - alloc_time_ns > PATIENCE_SECONDS * 1_000_000_000:
        minutes = (facts.now_ns - alloc_time_ns) // 60_000_000_000
        yield warning(
            f"{pod.pod} was given its devices {plural(minutes, 'minute')} ago and has not been admitted",
            "they are kept for it, and nobody else gets them",
            "see 'kubectl describe pod' for what holds it up, and the kubelet's log; delete it if nothing will change",
        )


def _compared(pod: ApiPod, decided: Iterable[ContainerIds], given: Given) -> Iterator[Finding]:
    """App containers and sidecars: the kubelet tells nothing of plain init containers."""
    parts = list(decided)
    reuses = any(part.request.kind is Kind.INIT for part in parts)
    if not given and pod.phase != "Running":
        return
    for part in parts:
        request = part.request
        held = given.get((request.container, request.resource))
        if request.kind is Kind.INIT or held == part.ids or (held and reuses and len(held) == len(part.ids)):
            continue
        said = ranges(held) if held else "nothing"
        yield problem(
            f"{pod.pod}/{request.container}: annotated {request.resource} {ranges(part.ids)}, the kubelet gave {said}",
            "the extender plans with the annotation: it may give this silicon to another pod",
            "the plugin corrects it within 10 s: see its log; if it does not run here, delete the pod",
        )


def _given(facts: Facts, pod: ApiPod) -> Given | None:
    """What the kubelet lists for a pod, None where it cannot be asked."""
    if isinstance(facts.kubelet.pods, Unknown):
        return None
    names = {resource.value: resource for resource in Resource}
    return {
        (container.container, names[container.resource]): tuple(sorted(int(each) for each in container.ids))
        for found in facts.kubelet.pods
        if (found.namespace, found.name) == (pod.pod.namespace, pod.pod.name)
        for container in found.containers
        if container.resource in names and all(each.isascii() and each.isdecimal() for each in container.ids)
    }


def _unknown_pods(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Holders that the API server does not have: deleted by force, or another cluster's."""
    known = {(pod.pod.namespace, pod.pod.name) for pod in cluster.pods}
    pods = () if isinstance(facts.kubelet.pods, Unknown) else facts.kubelet.pods
    for found in pods:
        holds = any(container.resource in set(Resource) for container in found.containers)
        if holds and (found.namespace, found.name) not in known:
            yield warning(
                f"the kubelet lists {found.namespace}/{found.name} with devices, the API server has no such pod here",
                "it was deleted by force, or this is not the API server of this node",
                "run this again in 10 s; see that --node-name is this node's; if it stays, see the kubelet's log",
            )
