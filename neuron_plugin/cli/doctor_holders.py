"""Is what the kubelet handed out sound: each core once, linked, on devices that work?

The kubelet keeps one account for each resource name and knows nothing of links, so this is where double booking and
torn sets show.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TypeAlias

from neuron_plugin.allocation.ledger import Holding, Ledger, Pod
from neuron_plugin.allocation.requests import Kind
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.cli.doctor_devices import NO_DEVICE
from neuron_plugin.cli.doctor_facts import Cluster, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, or_ok, problem, unchecked, warning
from neuron_plugin.cli.text import named, plural, ranges
from neuron_plugin.topology.geometry import Geometry, cores_in
from neuron_plugin.topology.sets import Unit, valid_sets

_Held: TypeAlias = tuple[Pod, Holding]


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


def _total(ledger: Ledger) -> str:
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
        if pod.neuron and any(part.kind is Kind.INIT for part in pod.neuron.request)
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


def _name(pod: Pod, holding: Holding) -> str:
    return f"{pod}/{holding.container} ({holding.resource})"
