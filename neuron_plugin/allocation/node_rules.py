"""What a pod and a node say that kube-scheduler's own plugins look at, besides Neuron: values, without a judgement.

``planning/rules`` judges by them. Of a pod that is placed, labels and anti-affinity matter to others, too.
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
"""The name of the scheduler that asks our extender, beside the default one."""

Quantities = tuple[tuple[str, int], ...]
"""Amounts by resource name, in thousandths, by name. Neuron resources are left out: they are judged apart."""

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
        """Whether a pod with this toleration may go to a node with this taint."""
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
        with suppress(ValueError, TypeError):  # neither number: no node meets such a requirement
            (limit,), number = map(int, self.values), int(value)  # type: ignore[arg-type]  # None is a TypeError
            return number > limit if self.operator == "Gt" else self.operator == "Lt" and number < limit
        return False


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements that a node has to meet all at once. A term without any matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, (*self.expressions, *self.fields)))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node of this name and these labels meets the term."""
        if not (self.expressions or self.fields):
            return False
        named = {"metadata.name": name}
        return all(requirement.is_met(labels) for requirement in self.expressions) and all(
            requirement.is_met(named) for requirement in self.fields
        )


def pinned(terms: tuple[NodeSelectorTerm, ...] | None, pins: tuple[Requirement, ...]) -> tuple[NodeSelectorTerm, ...]:
    """Required terms with more requirements of a node's name: each as it was, and these.

    A term without any requirement matches nothing, and has to stay so.
    """
    if terms is None:
        return (NodeSelectorTerm(fields=pins),)
    return tuple(
        replace(term, fields=tuple(dict.fromkeys((*term.fields, *pins)))) if term.expressions or term.fields else term
        for term in terms
    )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodLabels:
    """Namespace and labels of a pod, by which other pods' rules mean it. Equal ones are one object: ``pod_labels``.

    The pods of a template mostly share theirs, so a cluster has far fewer of them than pods.
    """

    namespace: str
    labels: Mapping[str, str]

    def __repr__(self) -> str:
        return f"PodLabels({self.namespace!r}, {dict(self.labels)!r})"


_pod_labels: WeakValueDictionary[tuple[str, tuple[tuple[str, str], ...]], PodLabels] = WeakValueDictionary()


def pod_labels(namespace: str, labels: Mapping[str, str]) -> PodLabels:
    """The one ``PodLabels`` of a namespace and these labels."""
    key = namespace, tuple(sorted(labels.items()))
    known = _pod_labels.get(key)
    if known is None:
        texts = {intern(name): intern(value) for name, value in key[1]}
        known = _pod_labels[intern(namespace), tuple(texts.items())] = PodLabels(intern(namespace), texts)
    return known


NO_LABELS = pod_labels("", {})


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Which pods a rule means: by namespace, named or chosen by its labels, and by their own labels.

    ``labels`` of None mean no pod, an empty tuple any. ``namespace_labels`` of None choose no namespace.
    """

    namespaces: tuple[str, ...]
    labels: tuple[Requirement, ...] | None
    namespace_labels: tuple[Requirement, ...] | None = None

    def matches(self, pod: PodLabels, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether a pod is meant; ``namespaces`` has the labels of each namespace."""
        if pod.namespace not in self.namespaces:
            chosen, labels = self.namespace_labels, namespaces.get(pod.namespace, {})
            if chosen is None or not all(requirement.is_met(labels) for requirement in chosen):
                return False
        return self.labels is not None and all(requirement.is_met(pod.labels) for requirement in self.labels)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term of a pod affinity or anti-affinity: with or apart from such pods, by the domains of a node label."""

    selector: PodSelector
    topology_key: str


class PlacedPod(NamedTuple):
    """A pod on a node, bound or promised there; ``anti_affinity`` and ``claims`` as ``PodRules`` has them."""

    node: str
    labels: PodLabels
    bound: bool = True
    terminating: bool = False
    anti_affinity: tuple[PodTerm, ...] = ()
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint; ``hard`` is ``DoNotSchedule``. Policies that are not set have their defaults here.

    ``labels`` choose pods of the pod's own namespace; those of ``matchLabelKeys`` are among them.
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
    """What the pod itself would rather have, each with its weight; a negative weight keeps apart from such pods."""

    nodes: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    pods: tuple[tuple[int, PodTerm], ...] = ()


NO_PREFERENCES = Preferences()


@dataclass(frozen=True, slots=True)
class PodRules:
    """The part of a pod by which kube-scheduler chooses nodes. Pods of one template have equal rules.

    ``terms`` are those of the required node affinity, of which a node has to match one; None without an affinity.
    ``needs`` has one pod of ``pods``. ``claims`` are the names of its PersistentVolumeClaims. A pod with ``gates`` is
    not scheduled yet. ``neuron`` is what kube-scheduler counts of Neuron, by resource name. ``resource_claims``: it has
    claims of DRA, which only their own driver can judge. ``claim_driver`` is the driver by whose claims it asks for
    Neuron. ``affinity`` and ``anti_affinity`` are the required terms, and ``spread`` all constraints.
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
        """The pods that decide where this one may go, and those that it prefers or avoids."""
        terms = (*self.affinity, *self.anti_affinity, *(term for _, term in self.preferences.pods))
        return tuple(term.selector for term in terms)

    @property
    def depends_on_pods(self) -> bool:
        """Whether pods that are there decide where this one may go."""
        return bool(self.affinity or self.anti_affinity or any(spread.hard for spread in self.spread))

    @property
    def prefers_nodes(self) -> bool:
        """Whether the spec prefers some nodes to others."""
        soft = any(not spread.hard for spread in self.spread)
        return soft or self.preferences != NO_PREFERENCES


_LOST = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The part of a node that these rules are about.

    ``allocatable`` is what it has for pods, and ``neuron`` what it offers of Neuron, by resource name, as its kubelet
    last said. ``claim_driver`` is the driver of DRA by whose claims its devices are given.
    """

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Quantities = ()
    neuron: Quantities = ()
    claim_driver: str = ""

    @property
    def lost(self) -> bool:
        """Whether the node is not ready, or cannot be reached: what ends there may never be seen to end."""
        return any(taint.key in _LOST for taint in self.taints)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What the live pods of a node ask for in sum, and the host ports that they have."""

    amounts: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def is_tight(self, node: NodeRules) -> bool:
        """Whether less than a tenth of the node's CPU or memory is left: another pod may take it before a bind."""
        taken = ((most, most - self.amounts.get(name, 0)) for name, most in node.allocatable if name in TAKEN_BY_OTHERS)
        return any(10 * left < most for most, left in taken)


NO_USE = NodeUse()
TAKEN_BY_OTHERS = frozenset({"cpu", "memory"})
"""What pods without Neuron take, too."""


def node_use(pods: Iterable[tuple[Quantities, frozenset[HostPort]]]) -> NodeUse:
    """The use of a node by pods with these needs and host ports."""
    amounts: dict[str, int] = {}
    all_ports = frozenset[HostPort]()
    for needs, ports in pods:
        for name, amount in needs:
            amounts[name] = amounts.get(name, 0) + amount
        if ports:
            all_ports |= ports
    return NodeUse(amounts, all_ports)
