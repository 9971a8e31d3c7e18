"""The parts of pods and nodes for kube-scheduler's own plugins, besides Neuron: values, without a judgement.

``planning/rules`` judges by them. Labels and anti-affinity of a placed pod affect other pods, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from sys import intern
from typing import NamedTuple
from weakref import WeakValueDictionary

VOLUMES = "volumes"

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not listened on
DEFAULT_SCHEDULER = "default-scheduler"
SECOND_SCHEDULER = "neuron-scheduler"
"""The name of the second scheduler, which uses our extender."""

Quantities = tuple[tuple[str, int], ...]
"""Amounts in thousandths by resource name, sorted by name. Neuron resources are left out: they are judged
separately."""

HostPort = tuple[str, str, int]
"""A host port: address, protocol, number."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod; empty texts match everything, as in the API."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether the toleration tolerates the taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in {"", "Equal"} and bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(filter(None, [self.key, self.operator, ",".join(self.values)]))

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels, or fields, meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        with suppress(ValueError, TypeError):  # one is no number: no node meets such a requirement
            (limit,), number = map(int, self.values), int(value)  # type: ignore[arg-type]  # None is a TypeError
            return number > limit if self.operator == "Gt" else self.operator == "Lt" and number < limit
        return False


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements, all of which a node must meet. A term without requirements matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, (*self.expressions, *self.fields)))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with this name and these labels matches the term."""
        if not (self.expressions or self.fields):
            return False
        named = {"metadata.name": name}
        return all(requirement.is_met(labels) for requirement in self.expressions) and all(
            requirement.is_met(named) for requirement in self.fields
        )


def pinned(terms: tuple[NodeSelectorTerm, ...] | None, pins: tuple[Requirement, ...]) -> tuple[NodeSelectorTerm, ...]:
    """Required terms with ``pins`` added to each: requirements of the node's name.

    A term without requirements matches no node, and must stay so.
    """
    if terms is None:
        return (NodeSelectorTerm(fields=pins),)
    return tuple(
        replace(term, fields=tuple(dict.fromkeys((*term.fields, *pins)))) if term.expressions or term.fields else term
        for term in terms
    )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodLabels:
    """Namespace and labels of a pod, for rules of other pods. Equal ones are one object: see ``pod_labels``.

    Pods of one template mostly have equal labels, so a cluster has far fewer of them than pods.
    """

    namespace: str
    labels: Mapping[str, str]

    def __repr__(self) -> str:
        return f"PodLabels({self.namespace!r}, {dict(self.labels)!r})"


_pod_labels: WeakValueDictionary[tuple[str, tuple[tuple[str, str], ...]], PodLabels] = WeakValueDictionary()


def pod_labels(namespace: str, labels: Mapping[str, str]) -> PodLabels:
    """The only ``PodLabels`` with this namespace and these labels."""
    key = namespace, tuple(sorted(labels.items()))
    known = _pod_labels.get(key)
    if known is None:
        texts = {intern(name): intern(value) for name, value in key[1]}
        known = _pod_labels[intern(namespace), tuple(texts.items())] = PodLabels(intern(namespace), texts)
    return known


NO_LABELS = pod_labels("", {})


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Selects pods by namespace, named or selected by its labels, and by their own labels.

    ``labels`` None selects no pod, an empty tuple every pod. ``namespace_labels`` None selects no namespace.
    """

    namespaces: tuple[str, ...]
    labels: tuple[Requirement, ...] | None
    namespace_labels: tuple[Requirement, ...] | None = None

    def matches(self, pod: PodLabels, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether a pod is selected; ``namespaces`` has the labels of each namespace."""
        if pod.namespace not in self.namespaces:
            chosen, labels = self.namespace_labels, namespaces.get(pod.namespace, {})
            if chosen is None or not all(requirement.is_met(labels) for requirement in chosen):
                return False
        return self.labels is not None and all(requirement.is_met(pod.labels) for requirement in self.labels)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term of a pod affinity or anti-affinity: selected pods, and the node label that defines domains."""

    selector: PodSelector
    topology_key: str


class PlacedPod(NamedTuple):
    """A pod that is bound to or promised on a node; for ``anti_affinity`` and ``claims`` see ``PodRules``."""

    node: str
    labels: PodLabels
    bound: bool = True
    terminating: bool = False
    anti_affinity: tuple[PodTerm, ...] = ()
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint; ``hard`` is ``DoNotSchedule``. Unset policies have their defaults.

    ``labels`` select pods of the pod's own namespace, and include the labels of ``matchLabelKeys``.
    """

    topology_key: str
    labels: tuple[Requirement, ...] | None
    max_skew: int = 1
    min_domains: int = 1
    hard: bool = True
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True, slots=True)
class Preferences:
    """The pod's preferences with their weights; a negative weight means anti-affinity."""

    nodes: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    pods: tuple[tuple[int, PodTerm], ...] = ()


NO_PREFERENCES = Preferences()


@dataclass(frozen=True, slots=True)
class PodRules:
    """The parts of a pod by which kube-scheduler chooses nodes. Pods of one template have equal rules.

    ``terms`` is the required node affinity: a node must match one of them; None without an affinity. ``needs`` includes
    one of the resource ``pods``. ``claims`` are the names of its PersistentVolumeClaims. A pod with ``gates`` is not
    scheduled yet. ``neuron`` are the Neuron resources that kube-scheduler counts, by name. ``resource_claims``: it has
    DRA claims, which only their driver can judge. ``claim_driver`` is the driver whose claims ask for Neuron.
    ``affinity`` and ``anti_affinity`` are the required terms, and ``spread`` all constraints.
    """

    scheduler_name: str = DEFAULT_SCHEDULER
    gates: tuple[str, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    needs: Quantities = ()
    neuron: Quantities = ()
    ports: frozenset[HostPort] = frozenset()
    claims: tuple[str, ...] = ()
    resource_claims: bool = False
    claim_driver: str = ""
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    preferences: Preferences = NO_PREFERENCES

    @property
    def selectors(self) -> tuple[PodSelector, ...]:
        """Selectors of the pods that its rules and preferences depend on."""
        terms = (*self.affinity, *self.anti_affinity, *(term for _, term in self.preferences.pods))
        return tuple(term.selector for term in terms)

    @property
    def depends_on_pods(self) -> bool:
        """Whether existing pods decide where this one may go."""
        return bool(self.affinity or self.anti_affinity or any(spread.hard for spread in self.spread))

    @property
    def prefers_nodes(self) -> bool:
        """Whether the spec prefers some nodes to others."""
        soft = any(not spread.hard for spread in self.spread)
        return soft or self.preferences != NO_PREFERENCES


_LOST = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The parts of a node for these rules.

    ``allocatable`` are its quantities for pods, and ``neuron`` those of Neuron resources, as last reported by its
    kubelet. ``claim_driver`` is the DRA driver whose claims give its devices.
    """

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Quantities = ()
    neuron: Quantities = ()
    claim_driver: str = ""

    @property
    def lost(self) -> bool:
        """Whether the node is not ready, or unreachable: the end of its pods may never be seen."""
        return any(taint.key in _LOST for taint in self.taints)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The sum of requests of a node's live pods, and their host ports."""

    amounts: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def is_tight(self, node: NodeRules) -> bool:
        """Whether less than a tenth of the node's CPU or memory is left: another pod may take it before a bind."""
        taken = ((most, most - self.amounts.get(name, 0)) for name, most in node.allocatable if name in TAKEN_BY_OTHERS)
        return any(10 * left < most for most, left in taken)


NO_USE = NodeUse()
TAKEN_BY_OTHERS = frozenset({"cpu", "memory"})
"""Resources that pods without Neuron use, too."""


def node_use(pods: Iterable[tuple[Quantities, frozenset[HostPort]]]) -> NodeUse:
    """The use of a node by pods with these requests and host ports."""
    amounts: dict[str, int] = {}
    all_ports = frozenset[HostPort]()
    for needs, ports in pods:
        for name, amount in needs:
            amounts[name] = amounts.get(name, 0) + amount
        if ports:
            all_ports |= ports
    return NodeUse(amounts, all_ports)
