"""What keeps kube-scheduler from placing a pod on a node, besides Neuron.

Cordon, taints, nodeSelector, node affinity, where the pod's volumes are, CPU, memory and other resources, host ports.
For ``explain``, and for plans about waiting pods. The verbs decide nothing by it, because kube-scheduler asks only
about nodes that meet these rules, and the state has none of this: it is read when it is needed. The rules are those of
the plugins NodeUnschedulable, TaintToleration, NodeAffinity, VolumeBinding, NodeResourcesFit and NodePorts
(pkg/scheduler/framework/plugins, Kubernetes 1.36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from math import ceil

import msgspec

from neuron_plugin.allocation import PREFIX, Resource, parse_quantity
from neuron_plugin.cluster import TERMINAL_PHASES, ApiObject, ApiResource

VOLUMES = "volumes"
NOT_LOOKED_AT = (
    "how many volumes can be attached",
    "pod affinity",
    "topology spread constraints",
    "scheduling gates",
)
"""What kube-scheduler looks at, too, and no explanation does."""
LOOKED_AT = ("cordon", "taints", "nodeSelector", "node affinity", "CPU, memory and other resources", "ports", VOLUMES)

_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_OURS = frozenset(resource.value for resource in Resource)
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not listened on


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


class _Resources(_Wire, frozen=True):
    requests: dict[str, str] | None = None


class _Port(_Wire, frozen=True):
    host_port: int | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class _Container(_Wire, frozen=True):
    restart_policy: str | None = None
    resources: _Resources | None = None
    ports: tuple[_Port, ...] | None = None


class _ClaimSource(_Wire, frozen=True):
    claim_name: str = ""


class _Present(_Wire, frozen=True):
    """An object of which only its presence matters."""


class _Volume(_Wire, frozen=True):
    name: str
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: _Present | None = None


class _PodSpec(_Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = None
    resources: _Resources | None = None
    overhead: dict[str, str] | None = None
    volumes: tuple[_Volume, ...] | None = None
    scheduling_gates: tuple[msgspec.Raw, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None
    topology_spread_constraints: tuple[_Spread, ...] | None = None


class _PodStatus(_Wire, frozen=True):
    phase: str = ""


class PodRules(ApiObject, frozen=True, dict=True, gc=True):
    """The part of a pod by which kube-scheduler chooses nodes.

    It has a ``__dict__``, like ``NodeRules``, so that sums are worked out once and not for each pair of pod and node.
    """

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

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

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of its PersistentVolumeClaims; a generic ephemeral volume has one that is named after both."""
        volumes = self.spec.volumes or ()
        claimed = (each.persistent_volume_claim.claim_name for each in volumes if each.persistent_volume_claim)
        return (*claimed, *(f"{self.name}-{each.name}" for each in volumes if each.ephemeral is not None))

    @cached_property
    def ports(self) -> frozenset[tuple[str, str, int]]:
        """The host ports of its containers: address, protocol, number."""
        containers = (*self.spec.containers, *(self.spec.init_containers or ()))
        return frozenset(
            (port.host_ip or _ANY_ADDRESS, port.protocol, port.host_port)
            for each in containers
            for port in each.ports or ()
            if port.host_port
        )

    @cached_property
    def needs(self) -> Counter[str]:
        """What it asks for, by resource in thousandths, Neuron left out; one pod of ``pods``.

        The sum of containers and sidecars, or what an init container and the sidecars before it need, if that is more;
        the whole pod's own request in place of it, where there is one (PodRequests in
        staging/src/k8s.io/component-helpers/resource/helpers.go).
        """
        most, sidecars = Counter[str](), Counter[str]()
        for each in self.spec.init_containers or ():
            if each.restart_policy == "Always":
                sidecars += _amounts(each.resources)
                most |= sidecars
            else:
                most |= sidecars + _amounts(each.resources)
        total = sum((_amounts(each.resources) for each in self.spec.containers), sidecars) | most
        for name, amount in _amounts(self.spec.resources).items():
            total[name] = amount
        return total + _read(self.spec.overhead) + Counter(pods=1000)


class _NodeSpec(_Wire, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[_Taint, ...] | None = None


class _NodeStatus(_Wire, frozen=True):
    allocatable: dict[str, str] | None = None


class NodeRules(ApiObject, frozen=True, dict=True, gc=True):
    """The part of a node that these rules are about."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @cached_property
    def allocatable(self) -> Counter[str]:
        """What it has for pods, by resource in thousandths, Neuron left out."""
        return _read(self.status.allocatable)


class _ClaimSpec(_Wire, frozen=True):
    volume_name: str = ""


class Claim(ApiObject, frozen=True):
    """A PersistentVolumeClaim: the volume that it is bound to, if any."""

    spec: _ClaimSpec = _ClaimSpec()


class _VolumeNodeAffinity(_Wire, frozen=True):
    required: _NodeSelector | None = None


class _VolumeSpec(_Wire, frozen=True):
    node_affinity: _VolumeNodeAffinity | None = None


class PersistentVolume(ApiObject, frozen=True):
    """The part of a PersistentVolume that says which nodes can use it."""

    spec: _VolumeSpec = _VolumeSpec()

    @property
    def terms(self) -> tuple[_Term, ...] | None:
        """The terms of which a node has to match one; None where every node can use it."""
        required = self.spec.node_affinity.required if self.spec.node_affinity else None
        return (required.node_selector_terms or ()) if required else None


POD_RULES = ApiResource("/api/v1", "pods", PodRules)
NODE_RULES = ApiResource("/api/v1", "nodes", NodeRules)
CLAIMS = ApiResource("/api/v1", "persistentvolumeclaims", Claim)
PERSISTENT_VOLUMES = ApiResource("/api/v1", "persistentvolumes", PersistentVolume)


class NodeUse:
    """What the pods of a node ask for in sum, and the host ports that they have."""

    def __init__(self, pods: Iterable[PodRules] = ()) -> None:
        """Pods that have ended count for nothing."""
        self.amounts = Counter[str]()
        self.ports = set[tuple[str, str, int]]()
        for pod in pods:
            self.add(pod)

    def add(self, pod: PodRules) -> None:
        """One more pod."""
        if pod.status.phase not in TERMINAL_PHASES:
            self.amounts += pod.needs
            self.ports |= pod.ports


def _amounts(resources: _Resources | None) -> Counter[str]:
    return _read(resources.requests if resources else None)


def _read(quantities: Mapping[str, str] | None) -> Counter[str]:
    """Thousandths, rounded up; Neuron devices and what they have are ours to judge. A server stores no other texts."""
    found = Counter[str]()
    for name, text in (quantities or {}).items():
        if name not in _OURS and not name.startswith(PREFIX):
            with suppress(ValueError):
                found[name] = ceil(parse_quantity(text) * 1000)
    return found


def objections(
    pod: PodRules, node: NodeRules, use: NodeUse | None = None, volumes: Iterable[PersistentVolume] = ()
) -> Iterator[str]:
    """Why kube-scheduler does not place the pod on the node; nothing if it may.

    ``use`` is what other pods have there; without it resources and ports are not looked at. ``volumes`` are those that
    the pod's claims are bound to.
    """
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
    for volume in volumes:
        terms = volume.terms
        if terms is not None and not any(_matches(term, labels, node.name) for term in terms):
            yield f"its volume {volume.name} cannot be used there"
    if use is not None:
        yield from _shortages(pod, node, use)


def _shortages(pod: PodRules, node: NodeRules, use: NodeUse) -> Iterator[str]:
    """What is not left of resources and ports. A node that does not say how many pods it takes has room for more."""
    has = node.allocatable
    for name, asked in pod.needs.items():
        left = max(has[name] - use.amounts[name], 0)
        if asked > left and (name != "pods" or name in has):
            yield f"it has {_text(name, left)} of {name} left, the pod asks for {_text(name, asked)}"
    for address, protocol, number in sorted(pod.ports):
        taken = (at for at, kind, other in use.ports if (kind, other) == (protocol, number))
        if any(at == address or _ANY_ADDRESS in {at, address} for at in taken):
            yield f"host port {number}/{protocol} is in use there"


def _text(name: str, thousandths: int) -> str:
    """Bytes in GiB, all else as it is."""
    of_bytes = name in {"memory", "ephemeral-storage"} or name.startswith("hugepages-")
    return f"{thousandths / 1000 / 1024**3:.4g}Gi" if of_bytes else f"{thousandths / 1000:.6g}"


def nodes_for(pod: PodRules, nodes: Iterable[NodeRules], volumes: Iterable[PersistentVolume] = ()) -> frozenset[str]:
    """The nodes that the pod may go to for certain if no other pod is there.

    None where other pods decide, or a gate holds it back.
    """
    if pod.depends_on_pods or pod.spec.scheduling_gates:
        return frozenset()
    empty, needed = NodeUse(), list(volumes)
    return frozenset(node.name for node in nodes if not any(True for _ in objections(pod, node, empty, needed)))


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
