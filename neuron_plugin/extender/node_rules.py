"""What keeps kube-scheduler from placing a pod on a node, besides Neuron: cordon, taints, nodeSelector, node affinity.

For ``explain``, and for plans about waiting pods. The verbs decide nothing by it, because kube-scheduler asks only
about nodes that meet these rules, and the state has neither labels nor taints: they are read when they are needed. The
rules are those of the plugins NodeUnschedulable, TaintToleration and NodeAffinity (pkg/scheduler/framework/plugins).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from neuron_plugin.cluster import ApiObject, ApiResource

NOT_LOOKED_AT = (
    "CPU, memory and other resources",
    "ports",
    "volumes",
    "pod affinity",
    "topology spread constraints",
    "scheduling gates",
)
"""What kube-scheduler looks at, too, and no explanation does."""
LOOKED_AT = ("cordon", "taints", "nodeSelector", "node affinity")

_CORDON_TAINT = "node.kubernetes.io/unschedulable"


class _Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Names as on the wire; the server leaves empty parts out or sends null."""


class _Toleration(_Wire, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Taint(_Wire, frozen=True):
    key: str
    effect: str
    value: str | None = None

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class _Requirement(_Wire, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, [self.key, self.operator, ",".join(self.values or ())]))


class _Term(_Wire, frozen=True):
    match_expressions: tuple[_Requirement, ...] | None = None
    match_fields: tuple[_Requirement, ...] | None = None


class _NodeSelector(_Wire, frozen=True):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(_Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class _PodAffinity(_Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[msgspec.Raw, ...] | None = None


class _Affinity(_Wire, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spread(_Wire, frozen=True):
    when_unsatisfiable: str = ""


class _PodSpec(_Wire, frozen=True):
    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[msgspec.Raw, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None
    topology_spread_constraints: tuple[_Spread, ...] | None = None


class PodRules(ApiObject, frozen=True):
    """The part of a pod by which kube-scheduler chooses nodes."""

    spec: _PodSpec = _PodSpec()

    @property
    def required_terms(self) -> tuple[_Term, ...] | None:
        """The terms of the required node affinity, of which a node has to match one; None without one."""
        node_affinity = self.spec.affinity.node_affinity if self.spec.affinity else None
        required = node_affinity.required_during_scheduling_ignored_during_execution if node_affinity else None
        return (required.node_selector_terms or ()) if required else None

    @property
    def depends_on_pods(self) -> bool:
        """Whether other pods decide where it may go: required pod affinity or anti-affinity, or a hard spread."""
        affinity = self.spec.affinity or _Affinity()
        spreads = self.spec.topology_spread_constraints or ()
        return any(each.when_unsatisfiable == "DoNotSchedule" for each in spreads) or any(
            each and each.required_during_scheduling_ignored_during_execution
            for each in (affinity.pod_affinity, affinity.pod_anti_affinity)
        )


class _NodeSpec(_Wire, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[_Taint, ...] | None = None


class NodeRules(ApiObject, frozen=True):
    """The part of a node that these rules are about."""

    spec: _NodeSpec = _NodeSpec()


POD_RULES = ApiResource("/api/v1", "pods", PodRules)
NODE_RULES = ApiResource("/api/v1", "nodes", NodeRules)


def objections(pod: PodRules, node: NodeRules) -> Iterator[str]:
    """Why kube-scheduler does not place the pod on the node; nothing if it may."""
    tolerations, labels = pod.spec.tolerations or (), node.labels
    taints = [taint for taint in node.spec.taints or () if taint.effect in {"NoSchedule", "NoExecute"}]
    if node.spec.unschedulable:
        taints = [taint for taint in taints if taint.key != _CORDON_TAINT]
        if not any(_tolerates(one, _Taint(_CORDON_TAINT, "NoSchedule")) for one in tolerations):
            yield "it is cordoned"
    for taint in taints:
        if not any(_tolerates(one, taint) for one in tolerations):
            yield f"the pod does not tolerate its taint {taint}"
    for key, value in (pod.spec.node_selector or {}).items():
        if labels.get(key) != value:
            found = repr(labels[key]) if key in labels else "absent"
            yield f"nodeSelector wants {key}={value}, the label is {found}"
    terms = pod.required_terms
    if terms is not None and not any(_matches(term, labels, node.name) for term in terms):
        wanted = (" and ".join(map(str, (*(t.match_expressions or ()), *(t.match_fields or ())))) for t in terms)
        yield f"node affinity wants {' or '.join(filter(None, wanted)) or 'what no node has'}"


def nodes_for(pod: PodRules, nodes: Iterable[NodeRules]) -> frozenset[str]:
    """The nodes that the pod may go to for certain; none where other pods decide, or a gate holds it back."""
    if pod.depends_on_pods or pod.spec.scheduling_gates:
        return frozenset()
    return frozenset(node.name for node in nodes if not any(True for _ in objections(pod, node)))


def _tolerates(toleration: _Toleration, taint: _Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return (
        toleration.operator in {None, "", "Equal"}
        and bool(toleration.key)
        and ((toleration.value or "") == (taint.value or ""))
    )


def _matches(term: _Term, labels: Mapping[str, str], name: str) -> bool:
    """A term without any requirement matches no node."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    return bool(expressions or fields) and (
        all(_meets(one, labels) for one in expressions) and all(_meets(one, {"metadata.name": name}) for one in fields)
    )


def _meets(requirement: _Requirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    with suppress(ValueError, TypeError):  # neither number: such a requirement is met by no node
        (limit,), number = map(int, values), int(value)  # type: ignore[arg-type]  # None is a TypeError
        return number > limit if requirement.operator == "Gt" else requirement.operator == "Lt" and number < limit
    return False
