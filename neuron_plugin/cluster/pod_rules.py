"""The parts of a pod for kube-scheduler's own plugins: its rules and resource requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import ceil

from neuron_plugin.allocation import ContainerKind, Resource
from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY, PREFIX, RELEASED_KEY
from neuron_plugin.allocation.node_rules import (
    ANY_ADDRESS,
    NO_PREFERENCES,
    HostPort,
    NodeSelectorTerm,
    PodRules,
    PodSelector,
    PodTerm,
    Preferences,
    Quantities,
    Requirement,
    Spread,
    Toleration,
)
from neuron_plugin.allocation.requests import parse_quantity
from neuron_plugin.cluster.pod_wire import (
    NONE,
    REMEMBERED,
    Pod,
    WireAffinity,
    WireNodeSelector,
    WirePodAffinity,
    WirePodAffinityTerm,
    WireSpread,
    WireToleration,
    node_term,
)

RESOURCE_NAMES = tuple(resource.value for resource in Resource)
QuantityTexts = tuple[tuple[str, str], ...]
"""Names and quantities, as texts of the API."""

_equal_rules = lru_cache(maxsize=REMEMBERED)(PodRules)
"""Equal rules are one object, as caches are keyed by them."""


def rules_of(pod: Pod, needs: Quantities, neuron: Quantities) -> PodRules:
    """The rules of a pod; ``needs`` are its requests without Neuron, ``neuron`` those for Neuron."""
    spec, affinity = pod.spec, pod.spec.affinity
    gates = spec.scheduling_gates or ()
    by_node = affinity.node_affinity if affinity else None
    required = by_node and by_node.required_during_scheduling_ignored_during_execution
    return _equal_rules(
        scheduler_name=spec.scheduler_name,
        gates=tuple([gate.name for gate in gates]),
        node_selector=tuple((spec.node_selector or NONE).items()),
        terms=_terms(required, _pinned_to(pod), is_released=_was_released(pod)) if required else None,
        tolerations=_tolerations(spec.tolerations) if spec.tolerations else (),
        needs=needs,
        neuron=neuron,
        ports=ports_of(pod),
        claims=volume_claims(pod),
        resource_claims=bool(spec.resource_claims),
        affinity=required_terms(pod, affinity.pod_affinity) if affinity else (),
        anti_affinity=required_terms(pod, affinity.pod_anti_affinity) if affinity else (),
        spread=tuple([_spread(constraint, pod) for constraint in spec.topology_spread_constraints or ()]),
        preferences=_preferences(pod, affinity) if affinity else NO_PREFERENCES,
    )


def volume_claims(pod: Pod) -> tuple[str, ...]:
    """The pod's PersistentVolumeClaims. A generic ephemeral volume has a claim named after pod and volume."""
    volumes = pod.spec.volumes or ()
    return (
        *[volume.persistent_volume_claim.claim_name for volume in volumes if volume.persistent_volume_claim],
        *[f"{pod.name}-{volume.name}" for volume in volumes if volume.ephemeral is not None],
    )


def required_terms(pod: Pod, affinity: WirePodAffinity | None) -> tuple[PodTerm, ...]:
    """The required terms of a pod's affinity or anti-affinity to other pods."""
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return tuple([_pod_term(term, pod) for term in terms or ()])


def _pod_term(term: WirePodAffinityTerm, pod: Pod) -> PodTerm:
    """A term as a value. It means the pod's own namespace if it names and selects none."""
    chosen = term.namespace_selector
    namespaces = term.namespaces or (() if chosen is not None else (pod.namespace,))
    labels = None
    if term.label_selector is not None:
        labels = _with_own(term.label_selector.requirements, pod.labels, term.match_label_keys, "In")
        labels = _with_own(labels, pod.labels, term.mismatch_label_keys, "NotIn")
    selector = PodSelector(namespaces, labels, chosen.requirements if chosen is not None else None)
    return PodTerm(selector, term.topology_key)


def _spread(constraint: WireSpread, pod: Pod) -> Spread:
    """A topology spread constraint as a value."""
    chosen = constraint.label_selector
    labels = None if chosen is None else _with_own(chosen.requirements, pod.labels, constraint.match_label_keys, "In")
    return Spread(
        constraint.topology_key,
        labels,
        constraint.max_skew,
        constraint.min_domains or 1,
        hard=constraint.when_unsatisfiable == "DoNotSchedule",
        honors_affinity=constraint.node_affinity_policy != "Ignore",
        honors_taints=constraint.node_taints_policy == "Honor",
    )


def _with_own(
    labels: tuple[Requirement, ...], own: Mapping[str, str], keys: tuple[str, ...] | None, operator: str
) -> tuple[Requirement, ...]:
    """The requirements, with those from the pod's own labels, which the API server has usually added already."""
    added = (Requirement(key, operator, (own[key],)) for key in keys or () if key in own)
    return (*labels, *(requirement for requirement in added if requirement not in labels))


def _preferences(pod: Pod, affinity: WireAffinity) -> Preferences:
    """The preferences of a pod. Weights of anti-affinity are negative. An empty node term prefers no node."""
    by_node, pods = affinity.node_affinity, list[tuple[int, PodTerm]]()
    preferred = (by_node and by_node.preferred_during_scheduling_ignored_during_execution) or ()
    for sign, among in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        if terms := among and among.preferred_during_scheduling_ignored_during_execution:
            pods += [(sign * term.weight, _pod_term(term.pod_affinity_term, pod)) for term in terms]
    if not (preferred or pods):
        return NO_PREFERENCES
    return Preferences(tuple((term.weight, node_term(term.preference)) for term in preferred), tuple(pods))


@lru_cache(maxsize=REMEMBERED)
def _tolerations(tolerations: tuple[WireToleration, ...]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(toleration.key or "", toleration.operator or "", toleration.value or "", toleration.effect or "")
        for toleration in tolerations
    )


def _pinned_to(pod: Pod) -> str:
    """The node whose name a placement by gates has added to the pod's terms; empty without such a placement."""
    placed = pod.annotations.get(NODE_KEY), pod.annotations.get(POD_UID_KEY)
    return pod.node_name if pod.node_name and placed == (pod.node_name, pod.uid) else ""


def _was_released(pod: Pod) -> bool:
    """Whether the pod is bound, and had been released to its scheduler with some nodes excluded."""
    return bool(pod.node_name) and RELEASED_KEY in pod.annotations and pod.annotations.get(POD_UID_KEY) == pod.uid


@lru_cache(maxsize=REMEMBERED)
def _terms(required: WireNodeSelector, pinned_to: str, *, is_released: bool) -> tuple[NodeSelectorTerm, ...] | None:
    """The required terms of a pod; of a bound pod without the node names that its placement by gates has added.

    Such names hold for this pod only. If it is replaced, the new pod has no place, so plans may place it anywhere.
    """
    terms, pin = required.terms, Requirement("metadata.name", "In", (pinned_to,))
    if not (pinned_to or is_released):
        return terms
    left = []
    for term in terms:
        fields = term.fields[:-1] if term.fields[-1:] == (pin,) else term.fields
        if is_released:
            fields = tuple(field for field in fields if (field.key, field.operator) != ("metadata.name", "NotIn"))
        left.append(term if fields == term.fields else replace(term, fields=fields))
    own = tuple(left)
    return own if own == terms or any(term.expressions or term.fields for term in own) else None


NO_PORTS = frozenset[HostPort]()


def ports_of(pod: Pod) -> frozenset[HostPort]:
    """The host ports of a pod."""
    ports = [
        (port.host_ip or ANY_ADDRESS, port.protocol, port.host_port)
        for container, _ in pod.containers
        for port in container.ports or ()
        if port.host_port
    ]
    return frozenset(ports) if ports else NO_PORTS  # an empty frozenset has 216 bytes, and there are many pods


def sum_of_requests(
    containers: Iterable[tuple[ContainerKind, QuantityTexts]],
    whole: QuantityTexts,
    overhead: QuantityTexts,
    *,
    gated: bool,
) -> tuple[Quantities, Quantities]:
    """The requests of a pod as kube-scheduler counts them: without Neuron, and for Neuron.

    The sum of containers and sidecars, or the need of an init container with the sidecars before it, if that is more. A
    request of the whole pod replaces it (PodRequests in staging/src/k8s.io/component-helpers/resource/helpers.go). A
    scheduler with our extender ignores our amounts; for a gated pod, the scheduler counts them like any other resource.
    """
    most, lasting = dict[str, int](), dict[str, int]()
    for kind, texts in containers:
        needs = dict(quantities(texts))
        if kind is ContainerKind.INIT:
            most = _largest(most, _added(lasting, needs))
        else:
            lasting = _added(lasting, needs)
            most = _largest(most, lasting)
    total = _added(most | dict(quantities(whole)), dict(quantities(overhead)))
    neuron = tuple(sorted((name, amount) for name, amount in total.items() if name in RESOURCE_NAMES and amount))
    others = {
        name: amount
        for name, amount in total.items()
        if name not in RESOURCE_NAMES and (gated or not name.startswith(PREFIX))
    }
    return tuple(sorted({**others, "pods": 1000}.items())), neuron


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def _largest(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}


@lru_cache(maxsize=REMEMBERED)
def quantities(texts: QuantityTexts) -> Quantities:
    """Quantities in thousandths, rounded up. The server stores only valid quantities."""
    amounts = []
    for name, text in texts:
        with suppress(ValueError):
            amounts.append((name, ceil(parse_quantity(text) * 1000)))
    return tuple(sorted(amounts))
