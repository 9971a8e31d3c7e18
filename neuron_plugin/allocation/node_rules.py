"""What keeps kube-scheduler from placing a pod on a node, besides Neuron.

Cordon, taints, nodeSelector, node affinity, where the pod's volumes are, CPU, memory and other resources, host ports.
The rules are those of the plugins NodeUnschedulable, TaintToleration, NodeAffinity, VolumeBinding, NodeResourcesFit and
NodePorts (pkg/scheduler/framework/plugins, Kubernetes 1.36). The extender's verbs decide nothing by them, because
kube-scheduler asks only about nodes that meet them. Explanations, plans and moves do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

VOLUMES = "volumes"
NOT_LOOKED_AT = ("how many volumes can be attached", "pod affinity", "topology spread constraints")
"""What kube-scheduler looks at, too, and nothing here does."""

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not listened on
DEFAULT_SCHEDULER = "default-scheduler"
_CORDON_TAINT = "node.kubernetes.io/unschedulable"

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


def pinned(terms: tuple[NodeSelectorTerm, ...] | None, node: str) -> tuple[NodeSelectorTerm, ...]:
    """Required terms that leave one node: each as it was, and the node's name.

    A term without any requirement matches nothing, and has to stay so.
    """
    pin = Requirement("metadata.name", "In", (node,))
    if terms is None:
        return (NodeSelectorTerm(fields=(pin,)),)
    return tuple(
        replace(term, fields=(*term.fields, pin))
        if (term.expressions or term.fields) and pin not in term.fields
        else term
        for term in terms
    )


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods that a required anti-affinity keeps off: by namespace, None for any, and by labels.

    They are kept off nodes with the same value of the label ``topology_key`` as the node of the pod that has it.
    Namespaces that are chosen by label count as any: who may match is not placed, so too many are better than too few.
    """

    namespaces: tuple[str, ...] | None
    labels: tuple[Requirement, ...]
    topology_key: str

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod may be meant."""
        here = self.namespaces is None or namespace in self.namespaces
        return here and all(requirement.is_met(labels) for requirement in self.labels)


@dataclass(frozen=True, slots=True)
class PodRules:
    """The part of a pod by which kube-scheduler chooses nodes. Pods of one template have equal rules.

    ``terms`` are those of the required node affinity, of which a node has to match one; None without an affinity.
    ``needs`` has one pod of ``pods``. ``depends_on_pods``: other pods decide where it may go, by a required pod
    affinity or anti-affinity or a hard topology spread. ``prefers_nodes``: the spec prefers some nodes to others.
    ``claims`` are the names of its PersistentVolumeClaims. A pod with ``gates`` is not scheduled yet. ``neuron`` is
    what kube-scheduler counts of Neuron, by resource name. ``resource_claims``: it has claims of DRA, which only their
    own driver can judge. ``claim_driver`` is the driver by whose claims it asks for Neuron. ``keeps_off`` are pods that
    its anti-affinity keeps off where it runs.
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
    depends_on_pods: bool = False
    prefers_nodes: bool = False
    keeps_off: tuple[PodSelector, ...] = ()


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


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What the live pods of a node ask for in sum, and the host ports that they have."""

    amounts: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()


NO_USE = NodeUse()
_TAKEN_BY_OTHERS = frozenset({"cpu", "memory"})
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


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume that a pod's claim is bound to; ``terms`` say which nodes can use it, None means all."""

    name: str
    terms: tuple[NodeSelectorTerm, ...] | None = None


def objections(pod: PodRules, name: str, node: NodeRules, volumes: Iterable[Volume] = ()) -> Iterator[str]:
    """Why kube-scheduler does not place the pod on the node of this name, whatever other pods are there."""
    taints = [taint for taint in node.taints if taint.effect in {"NoSchedule", "NoExecute"}]
    if node.cordoned:
        taints = [taint for taint in taints if taint.key != _CORDON_TAINT]
        cordon = Taint(_CORDON_TAINT, "NoSchedule")
        if not any(toleration.tolerates(cordon) for toleration in pod.tolerations):
            yield "it is cordoned"
    for taint in taints:
        if not any(toleration.tolerates(taint) for toleration in pod.tolerations):
            yield f"the pod does not tolerate its taint {taint}"
    if pod.claim_driver != node.claim_driver and (pod.claim_driver or pod.neuron):
        how = f"by claims of {node.claim_driver} only" if node.claim_driver else "by count, and the pod has claims"
        yield f"its Neuron devices are given {how}"
    for key, value in pod.node_selector:
        if node.labels.get(key) != value:
            label = repr(node.labels[key]) if key in node.labels else "absent"
            yield f"nodeSelector wants {key}={value}, the label is {label}"
    if pod.terms is not None and not any(term.matches(name, node.labels) for term in pod.terms):
        yield f"node affinity wants {' or '.join(filter(None, map(str, pod.terms))) or 'what no node has'}"
    for volume in volumes:
        if volume.terms is not None and not any(term.matches(name, node.labels) for term in volume.terms):
            yield f"its volume {volume.name} cannot be used there"


def shortages(pod: PodRules, node: NodeRules, use: NodeUse) -> Iterator[str]:
    """What the node has too little of for the pod, beside the pods that use it.

    A node that does not say how many pods it takes has room for more.
    """
    allocatable = dict(node.allocatable)
    for name, asked in pod.needs:
        left = max(allocatable.get(name, 0) - use.amounts.get(name, 0), 0)
        if asked > left and (name != "pods" or name in allocatable):
            yield f"it has {_text(name, left)} of {name} left, the pod asks for {_text(name, asked)}"
    for address, protocol, number in sorted(pod.ports):
        taken = (at for at, kind, other in use.ports if (kind, other) == (protocol, number))
        if any(at == address or ANY_ADDRESS in {at, address} for at in taken):
            yield f"host port {number}/{protocol} is in use there"


def is_tight(node: NodeRules, use: NodeUse) -> bool:
    """Whether less than a tenth of the node's CPU or memory is left: another pod may take it before a bind."""
    taken = ((most, most - use.amounts.get(name, 0)) for name, most in node.allocatable if name in _TAKEN_BY_OTHERS)
    return any(10 * left < most for most, left in taken)


def lacks_counts(pod: PodRules, node: NodeRules, use: NodeUse) -> bool:
    """Whether kube-scheduler counts too little Neuron on the node for the pod, whatever is really free.

    It counts each resource name by itself. What pods have under one name lowers what the kubelet offers under the
    others, some seconds later.
    """
    offered = dict(node.neuron)
    return any(asked > offered.get(name, 0) - use.amounts.get(name, 0) for name, asked in pod.neuron)


def _text(name: str, thousandths: int) -> str:
    """Bytes in GiB, all else as it is."""
    of_bytes = name in {"memory", "ephemeral-storage"} or name.startswith("hugepages-")
    return f"{thousandths / 1000 / 1024**3:.4g}Gi" if of_bytes else f"{thousandths / 1000:.6g}"
