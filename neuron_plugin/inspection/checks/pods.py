"""What pods hold: is it sound by the kubelet's account, and do their annotations say the same?

The kubelet keeps one account for each resource name and knows nothing of links, so this is where double booking and
torn sets show. The extender believes the annotations: where they differ it plans with silicon that somebody else has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

from neuron_plugin.allocation import (
    ContainerAssignment,
    ContainerKind,
    HolderLedger,
    Holding,
    PodReference,
    Resource,
    ids_of,
    mask_of,
)
from neuron_plugin.inspection.facts import ApiPod, Cluster, Facts
from neuron_plugin.inspection.findings import Finding, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.text import named, plural, ranges
from neuron_plugin.inspection.unknown import NO_DEVICE, Unknown
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology import Geometry, Unit, cores_in, valid_sets

_Held: TypeAlias = tuple[PodReference, Holding]


def check_holders(facts: Facts) -> Iterator[Finding]:
    """Ids nobody can have, silicon held twice, sets that are not linked, devices that are gone or sick."""
    ledger, geometry = facts.ledger, facts.machine.geometry
    if isinstance(ledger, Unknown) or geometry is None:
        yield unchecked(ledger if isinstance(ledger, Unknown) else NO_DEVICE)
        return
    held = [(holder.pod, holding) for holder in ledger for holding in holder.holdings]
    findings = (*_strange(facts, geometry), *_shared(geometry, held), *_unlinked(facts, geometry, held))
    pods = plural(len({pod.uid for pod, _ in held}), "pod")
    yield from or_ok((*findings, *_unusable(facts, geometry, held)), f"{pods} with {_total(ledger)}, none twice")


def _total(ledger: HolderLedger) -> str:
    return plural(len(cores_in(ledger.used_mask)), "logical core")


def _strange(facts: Facts, geometry: Geometry) -> Iterator[Finding]:
    units = {resource.value: resource.unit for resource in Resource}
    pods = () if isinstance(facts.holders, Unknown) else facts.holders
    for pod in pods:
        for container in pod.containers:
            unit = units.get(container.resource)
            strange = [each for each in container.ids if unit and not _is_here(geometry, unit, each)]
            if strange:
                yield problem(
                    f"{pod.namespace}/{pod.name}/{container.container} holds {container.resource} "
                    f"{', '.join(strange)}, which this machine does not have",
                    "another plugin gave it, or LNC was changed under it: what the pod really uses is not known",
                    "delete the pod; leave one plugin on the node, and drain the node before LNC is changed",
                )


def _is_here(geometry: Geometry, unit: Unit, text: str) -> bool:
    return text.isascii() and text.isdecimal() and bool(mask_of(geometry, unit, (int(text),)))


def _shared(geometry: Geometry, held: list[_Held]) -> Iterator[Finding]:
    for (one, mine), (other, theirs) in combinations(held, 2):
        if shared := mine.mask & theirs.mask:
            yield problem(
                f"{_name(one, mine)} and {_name(other, theirs)} both hold {_said(geometry, shared)}",
                "the second to start fails, or one disturbs the other's work",
                "delete one of the two, unless one has ended (kubelets before 1.34 still list it); if it comes again, "
                "see that one plugin alone serves this node",
            )


def _unlinked(facts: Facts, geometry: Geometry, held: list[_Held]) -> Iterator[Finding]:
    """Sets no rule would have given. A pod with init containers may hold another set than the kubelet lists."""
    reusing = _pods_with_init_containers(facts)
    for pod, holding in held:
        ids = ids_of(geometry, holding.resource.unit, holding.mask)
        if (pod.namespace, pod.name) in reusing or not ids:
            continue
        if holding.mask not in valid_sets(geometry, holding.resource.unit, len(ids)):
            yield warning(
                f"{_name(pod, holding)} holds {holding.resource} {ranges(ids)}, which is no linked set here",
                "the Neuron runtime needs consecutive ids, and collectives need linked devices: it may fail at start",
                "ask for a count that has a set (see the README) and let neuron-plugin choose; then delete the pod",
            )


def _pods_with_init_containers(facts: Facts) -> set[tuple[str, str]]:
    pods = facts.cluster.pods if isinstance(facts.cluster, Cluster) else ()
    return {
        (pod.pod.namespace, pod.pod.name)
        for pod in pods
        if pod.neuron and any(part.kind is ContainerKind.INIT for part in pod.neuron.request)
    }


def _unusable(facts: Facts, geometry: Geometry, held: list[_Held]) -> Iterator[Finding]:
    usable = facts.machine.usable_mask
    for pod, holding in held:
        if lost := geometry.devices_touched(holding.mask & ~usable):
            yield warning(
                f"{_name(pod, holding)} runs on {named('device', lost)}, missing or unhealthy",
                "running pods are left alone; its work may fail, and it cannot be admitted again as it is",
                "delete the pod, so that its controller makes another one on good devices",
            )


def _said(geometry: Geometry, mask: int) -> str:
    """Whole devices where it is no less than that."""
    devices = geometry.devices_touched(mask)
    if geometry.devices_mask(devices) == mask:
        return named("device", devices)
    return named("core", cores_in(mask))


def _name(pod: PodReference, holding: Holding) -> str:
    return f"{pod}/{holding.container} ({holding.resource})"


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


def _compared(pod: ApiPod, decided: Iterable[ContainerAssignment], given: Given) -> Iterator[Finding]:
    """App containers and sidecars: the kubelet tells nothing of plain init containers.

    A container that re-uses its init container's ids is listed with what the kubelet drew from them, and may have been
    given another part; one that is not listed may be in admission until the pod runs.
    """
    parts = list(decided)
    reuses = any(part.request.kind is ContainerKind.INIT for part in parts)
    for part in parts:
        request = part.request
        held = given.get((request.container, request.resource))
        if request.kind is ContainerKind.INIT or held == part.ids or (held and reuses and len(held) == len(part.ids)):
            continue
        if held is None and pod.phase != "Running":
            continue
        said = ranges(held) if held else "nothing"
        yield problem(
            f"{pod.pod}/{request.container}: annotated {request.resource} {ranges(part.ids)}, the kubelet gave {said}",
            "the extender plans with the annotation: it may give this silicon to another pod",
            "the plugin corrects it within 10 s: see its log; if it does not run here, delete the pod",
        )


def _given(facts: Facts, pod: ApiPod) -> Given | None:
    """What the kubelet lists for a pod, None where it cannot be asked."""
    if isinstance(facts.holders, Unknown):
        return None
    names = {resource.value: resource for resource in Resource}
    return {
        (container.container, names[container.resource]): tuple(sorted(int(each) for each in container.ids))
        for found in facts.holders
        if (found.namespace, found.name) == (pod.pod.namespace, pod.pod.name)
        for container in found.containers
        if container.resource in names and all(each.isascii() and each.isdecimal() for each in container.ids)
    }


def _unknown_pods(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Holders that the API server does not have: deleted by force, or another cluster's."""
    known = {(pod.pod.namespace, pod.pod.name) for pod in cluster.pods}
    pods = () if isinstance(facts.holders, Unknown) else facts.holders
    for found in pods:
        holds = any(container.resource in set(Resource) for container in found.containers)
        if holds and (found.namespace, found.name) not in known:
            yield warning(
                f"the kubelet lists {found.namespace}/{found.name} with devices, the API server has no such pod here",
                "it was deleted by force, or this is not the API server of this node",
                "run this again in 10 s; see that --node-name is this node's; if it stays, see the kubelet's log",
            )
