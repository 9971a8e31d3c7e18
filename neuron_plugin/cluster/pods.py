"""Pods as the API server sends them, and the one decoder that makes ``NeuronPod`` of them.

The structs follow the wire and skip what is not read. Plugin, placement controller and command line share the decoder,
so they can never disagree about what a pod asks for, what it was assigned and where it may go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from math import ceil
from sys import intern
from typing import NamedTuple

import msgspec

from neuron_plugin.allocation import (
    Assignment,
    ContainerKind,
    NeuronPod,
    PodReference,
    PodRequest,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.assignment import AssignmentError, read_assignment
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.constraints import LONGEST_CONSTRAINT, read_constraints
from neuron_plugin.allocation.group import GroupMember
from neuron_plugin.allocation.keys import (
    ASSIGNMENT_KEYS,
    CONSTRAINT_KEYS,
    GATE,
    LAST_CHECKPOINT_KEY,
    NODE_KEY,
    PLACEMENT_KEY,
    POD_UID_KEY,
    PREFIX,
    RELEASED_KEY,
    ULTRASERVER_KEY,
    UNHEALTHY_LABEL,
)
from neuron_plugin.allocation.node_rules import (
    ANY_ADDRESS,
    DEFAULT_SCHEDULER,
    NO_PREFERENCES,
    HostPort,
    NodeSelectorTerm,
    PlacedPod,
    PodRules,
    PodSelector,
    PodTerm,
    Preferences,
    Quantities,
    Requirement,
    Spread,
    Toleration,
    pod_labels,
)
from neuron_plugin.allocation.pod import TERMINAL_PHASES, is_movable, placement_strategy
from neuron_plugin.allocation.rejection import INVALID_REQUEST, UNREADABLE_ASSIGNMENT
from neuron_plugin.allocation.requests import ContainerSpec, RequestError, parse_count, parse_quantity, pod_request
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.allocation.ultraserver import VARIABLES, UltraServerPlace, read_ultraserver_place
from neuron_plugin.cluster.groups import group_member
from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire

STATIC_POD_UID_KEY = "kubernetes.io/config.hash"
"""On a mirror pod: the UID under which the kubelet knows the static pod (pkg/kubelet/types/constants.go)."""

_NOT_MADE_AGAIN = frozenset({"Node", "DaemonSet"})
"""Controllers that make a pod again on the same node only, or not at all (static pods)."""
_RESOURCE_NAMES = tuple(resource.value for resource in Resource)
_FIRST_YEAR = 1970
"""A time of this year is one that is not set."""
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)", re.ASCII)
_REMEMBERED = 4_096
"""Of each of the caches here: the pods of one controller have the same requests and terms."""
_NONE: Mapping[str, str] = {}


class _ClaimUse(Wire, frozen=True):
    name: str = ""
    request: str | None = None


class Resources(Wire, frozen=True):
    """``resources`` of a container: quantities as written, such as ``2`` or ``1k``, and claims of the pod."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None
    claims: tuple[_ClaimUse, ...] | None = None


class _Port(Wire, frozen=True):
    host_port: int | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class _SecurityContext(Wire, frozen=True):
    privileged: bool | None = None


class _Variable(Wire, frozen=True):
    name: str = ""


class Container(Wire, frozen=True):
    """A container of either list."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None
    ports: tuple[_Port, ...] | None = None
    security_context: _SecurityContext | None = None
    env: tuple[_Variable, ...] | None = None

    @property
    def limits(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.limits) or _NONE

    @property
    def requests(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.requests) or _NONE


class Present(Wire, frozen=True):
    """An object of which only its presence matters."""


class WireRequirement(Wire, frozen=True):
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class WireTerm(Wire, frozen=True):
    """A node selector term."""

    match_expressions: tuple[WireRequirement, ...] | None = None
    match_fields: tuple[WireRequirement, ...] | None = None


class WireNodeSelector(Wire, frozen=True):
    """A node selector: a node has to match one of its terms."""

    node_selector_terms: tuple[WireTerm, ...] | None = None

    @property
    def terms(self) -> tuple[NodeSelectorTerm, ...]:
        """The terms as values."""
        return tuple(_node_term(term) for term in self.node_selector_terms or ())


def _node_term(term: WireTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(listed: tuple[WireRequirement, ...] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(requirement.key, requirement.operator, requirement.values or ()) for requirement in listed or ()
    )


class _PreferredTerm(Wire, frozen=True):
    weight: int = 0
    preference: WireTerm = WireTerm()


class _NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: WireNodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredTerm, ...] | None = None


class WireLabelSelector(Wire, frozen=True):
    """A label selector; an empty one matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[WireRequirement, ...] | None = None

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All of which have to be met."""
        labels = [Requirement(key, "In", (value,)) for key, value in (self.match_labels or {}).items()]
        return (*labels, *_requirements(self.match_expressions))


class _PodAffinityTerm(Wire, frozen=True):
    label_selector: WireLabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] | None = None
    namespace_selector: WireLabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None

    def of(self, pod: Pod) -> PodTerm:
        """The term of a pod. Its namespace is meant where none is named or chosen."""
        chosen = self.namespace_selector
        namespaces = self.namespaces or (() if chosen is not None else (pod.namespace,))
        labels = None
        if self.label_selector is not None:
            labels = _with_own(self.label_selector.requirements, pod.labels, self.match_label_keys, "In")
            labels = _with_own(labels, pod.labels, self.mismatch_label_keys, "NotIn")
        selector = PodSelector(namespaces, labels, chosen.requirements if chosen is not None else None)
        return PodTerm(selector, self.topology_key)


def _with_own(
    labels: tuple[Requirement, ...], own: Mapping[str, str], keys: tuple[str, ...] | None, operator: str
) -> tuple[Requirement, ...]:
    """Requirements and those that follow from the pod's own labels, which the API server has mostly added already."""
    added = (Requirement(key, operator, (own[key],)) for key in keys or () if key in own)
    return (*labels, *(requirement for requirement in added if requirement not in labels))


class _WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 0
    pod_affinity_term: _PodAffinityTerm = _PodAffinityTerm()


class _PodAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[_PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_WeightedPodAffinityTerm, ...] | None = None


class _Affinity(Wire, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _SpreadConstraint(Wire, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: WireLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] | None = None

    def of(self, pod: Pod) -> Spread:
        """The constraint of a pod."""
        chosen = self.label_selector
        labels = None if chosen is None else _with_own(chosen.requirements, pod.labels, self.match_label_keys, "In")
        return Spread(
            self.topology_key,
            labels,
            self.max_skew,
            self.min_domains or 1,
            hard=self.when_unsatisfiable == "DoNotSchedule",
            honors_affinity=self.node_affinity_policy != "Ignore",
            honors_taints=self.node_taints_policy == "Honor",
        )


class SchedulingGroup(Wire, frozen=True):
    """The PodGroup that the pod is scheduled with."""

    pod_group_name: str | None = None


class _Gate(Wire, frozen=True):
    name: str = ""


class _Toleration(Wire, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _ClaimSource(Wire, frozen=True):
    claim_name: str = ""


class _ResourceClaim(Wire, frozen=True):
    """A claim of the pod; ``resource_claim_name`` is set where it is not made from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class _ClaimStatus(Wire, frozen=True):
    """The claim that was made from a template; the pod may do without one that has no name."""

    name: str = ""
    resource_claim_name: str | None = None


class _Volume(Wire, frozen=True):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: Present | None = None


class PodSpec(Wire, frozen=True):
    """The part of a pod's ``spec`` that somebody reads."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    restart_policy: str = "Always"
    hostname: str | None = None
    subdomain: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: Resources | None = None
    overhead: dict[str, str] | None = None
    volumes: tuple[_Volume, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None
    topology_spread_constraints: tuple[_SpreadConstraint, ...] | None = None
    scheduling_gates: tuple[_Gate, ...] | None = None
    resource_claims: tuple[_ResourceClaim, ...] | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerRunning(Wire, frozen=True):
    """A container that runs."""

    started_at: str | None = None


class ContainerEnd(Wire, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Wire, frozen=True):
    """One of the states is there."""

    running: ContainerRunning | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(Wire, frozen=True):
    """What runs in a container, and what did."""

    name: str = ""
    started: bool | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class _Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None


class PodStatus(Wire, frozen=True):
    """The part of a pod's ``status`` that somebody reads."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str | None = None
    conditions: tuple[_Condition, ...] | None = None
    resource_claim_statuses: tuple[_ClaimStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(ApiObject, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def node_name(self) -> str:
        """The node it is bound to; empty before."""
        return self.spec.node_name

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return self.status.phase

    @property
    def terminal(self) -> bool:
        """Its containers have ended for good, though the object may stay."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def terminating(self) -> bool:
        """Its deletion has begun; it keeps its devices until it is gone."""
        return self.metadata.deletion_timestamp is not None

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of the owner that controls it; empty texts without one."""
        owners = self.metadata.owner_references or ()
        return next(((owner.kind, owner.name) for owner in owners if owner.controller), ("", ""))

    @property
    def rejected_at_admission(self) -> bool:
        """Whether its kubelet got no devices for it from the plugin: the pod has failed for good."""
        return self.status.phase == "Failed" and self.status.reason == "UnexpectedAdmissionError"

    @property
    def containers(self) -> Iterator[tuple[Container, ContainerKind]]:
        """Every container and when it runs, in the order in which the kubelet admits them."""
        for container in self.spec.init_containers or ():
            yield container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        for container in self.spec.containers or ():
            yield container, ContainerKind.APP

    @property
    def started(self) -> bool:
        """Whether any container, init containers included, runs or has ever run.

        A container that crashed and waits for its restart has only its last state.
        """
        for status in self._container_statuses:
            states = (status.state, status.last_state)
            if status.started or any(state and (state.running or state.terminated) for state in states):
                return True
        return False

    @property
    def running(self) -> bool:
        """Whether a container runs. Of a pod whose phase PodGC has set to Failed the status may show that still."""
        return any(status.state and status.state.running for status in self._container_statuses)

    @property
    def ready(self) -> bool:
        """Whether its condition Ready is True."""
        return any(known.type == "Ready" and known.status == "True" for known in self.status.conditions or ())

    @property
    def tried(self) -> bool:
        """Whether a scheduler has looked at it and said so. The API server itself writes that it is gated."""
        conditions = self.status.conditions or ()
        return any(known.type == "PodScheduled" and known.reason != "SchedulingGated" for known in conditions)

    @property
    def end_requested(self) -> bool:
        """Whether the pod is ended by others than its containers: deleted, evicted, preempted, or ended by the kubelet.

        The kubelet gives a reason to a pod that it ends as a whole (``Evicted``, ``Terminated`` and ``Preempting`` in
        pkg/kubelet/eviction, nodeshutdown and preemption; ``DeadlineExceeded``), and none to one whose containers end.
        """
        disrupted = any(
            condition.type == "DisruptionTarget" and condition.status == "True"
            for condition in self.status.conditions or ()
        )
        return self.terminating or disrupted or bool(self.status.reason)

    @property
    def privileged(self) -> tuple[str, ...]:
        """The containers that run privileged, by name."""
        return tuple(
            container.name
            for container, _ in self.containers
            if container.security_context and container.security_context.privileged
        )

    @property
    def ending(self) -> bool:
        """Whether the pod's end was requested, or has begun: an app container has ended that is not started again."""
        policies = {each.name: each.restart_policy or self.spec.restart_policy for each in self.spec.containers or ()}
        for status in self.status.container_statuses or ():
            end, policy = status.state and status.state.terminated, policies.get(status.name)
            if end and (policy == "Never" or (policy == "OnFailure" and end.exit_code == 0)):
                return True
        return self.end_requested

    @property
    def runs(self) -> tuple[ContainerRun, ...]:
        """The latest run of each container that ever ran. No run has failed whose end was requested.

        Once all other containers have ended the kubelet ends the sidecars.
        """
        runs = tuple(run for status in self._container_statuses if (run := _latest_run(status)))
        if self.end_requested:
            return tuple(replace(run, failed=False) for run in runs)
        ends = [status.state and status.state.terminated for status in self.status.container_statuses or ()]
        if not (ends and all(ends)):
            return runs
        last_end = max(unix_seconds(end.finished_at or "") for end in ends if end)
        sidecars = {container.name for container, kind in self.containers if kind is ContainerKind.SIDECAR}
        return tuple(
            replace(run, failed=False) if run.container in sidecars and run.ended >= last_end else run for run in runs
        )

    @property
    def _container_statuses(self) -> tuple[ContainerStatus, ...]:
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


PODS = ApiResource("/api/v1", "pods", Pod)

_NOT_ITS_OWN_ERROR = frozenset({"OOMKilled", "StartError", "ContainerCannotRun"})
"""Reasons of an end that say nothing about the devices (``pkg/kubelet/kuberuntime``, containerd)."""


def _latest_run(status: ContainerStatus) -> ContainerRun | None:
    """What runs, or what ended last: a container that waits for its restart has only its last state."""
    if status.state and status.state.running:
        return ContainerRun(status.name, unix_seconds(status.state.running.started_at or ""))
    for state in (status.state, status.last_state):
        if state and (end := state.terminated):
            failed = end.exit_code != 0 and end.reason not in _NOT_ITS_OWN_ERROR
            started, ended = unix_seconds(end.started_at or ""), unix_seconds(end.finished_at or "")
            return ContainerRun(status.name, started, ended, failed)
    return None


@dataclass(frozen=True, slots=True)
class PodUse:
    """A bound pod without Neuron: what it takes of its node, and what the rules among pods look at."""

    placed: PlacedPod
    needs: Quantities
    ports: frozenset[HostPort]

    @property
    def node(self) -> str:
        """Where it is."""
        return self.placed.node


def asks_for_neuron(pod: Pod) -> bool:
    """Whether a container of the pod names one of the resources, be it with the quantity 0."""
    return any(
        name in container.limits or name in container.requests
        for container, _ in pod.containers
        for name in _RESOURCE_NAMES
    )


def pod_use(pod: Pod) -> PodUse | None:
    """What a pod takes of its node; None of one that is not bound or has ended."""
    if not pod.node_name or pod.terminal:
        return None
    affinity = pod.spec.affinity
    placed = PlacedPod(
        intern(pod.node_name),
        pod_labels(pod.namespace, pod.labels),
        terminating=pod.terminating,
        anti_affinity=_required_terms(pod, affinity.pod_anti_affinity) if affinity else (),
        claims=_volume_claims(pod) if pod.spec.volumes else (),
    )
    return PodUse(placed, _asked(pod, ()).needs, _ports(pod))


def neuron_pod(pod: Pod, *, progress: bool = True) -> NeuronPod:
    """Decode a pod. Nothing in it can fail this: what cannot be followed becomes a ``Rejection``.

    Without ``progress`` it says nothing of how far the pod's containers have come: no start, no runs, and a phase only
    at its end.
    """
    annotations, labels, spec = pod.annotations, pod.labels, pod.spec
    # Bounded, as they are remembered; one character more than is read shows that a text is too long.
    asked = _asked(
        pod, tuple([(key, annotations[key][: LONGEST_CONSTRAINT + 1]) for key in CONSTRAINT_KEYS if key in annotations])
    )
    request, rules = asked.request, _rules(pod, asked)
    reference, gated = PodReference(PodUid(pod.uid), pod.namespace, pod.name), GATE in rules.gates
    assignment: Assignment | Rejection | None = None
    if request and not isinstance(request, Rejection) and not annotations.keys().isdisjoint(ASSIGNMENT_KEYS):
        try:
            assignment = read_assignment(str(reference), annotations, request)
        except AssignmentError as error:
            assignment = replace(UNREADABLE_ASSIGNMENT, detail=str(error))
    if isinstance(assignment, Assignment) and not assignment.allocated and _is_meant_for_another(pod):
        assignment = None
    own = annotations.get(POD_UID_KEY) == pod.uid and not (pod.node_name or pod.terminating)
    controller, phase = pod.controller, pod.phase
    return NeuronPod(
        reference=reference,
        request=request,
        node=pod.node_name,
        promised=annotations.get(NODE_KEY, "") if own else "",
        released=own and RELEASED_KEY in annotations,
        unschedulable=own and _is_unschedulable(pod),
        tried=pod.tried,
        assignment=assignment,
        priority=spec.priority or 0,
        preempts=spec.preemption_policy != "Never",
        phase=phase if progress or pod.terminal else "",
        terminating=pod.terminating,
        ending=progress and pod.ending,
        started=progress and (pod.started or phase == "Running"),
        running=pod.running,
        ready=pod.ready,
        runs=pod.runs if progress and request and not isinstance(request, Rejection) else (),
        created=unix_seconds(pod.metadata.creation_timestamp or ""),
        privileged=pod.privileged if progress else (),
        static_uid=annotations.get(STATIC_POD_UID_KEY, ""),
        assignment_keys=tuple([key for key in ASSIGNMENT_KEYS if key in annotations]),
        refused_demands=_refused_demands(pod) if isinstance(request, Rejection) else frozenset(),
        member=_member(pod, controller[0]),
        ultraserver=_ultraserver_place(pod),
        version=pod.resource_version if gated else "",
        labels=pod_labels(pod.namespace, labels),
        strategy=placement_strategy(annotations.get(PLACEMENT_KEY, "")),
        labelled_unhealthy=UNHEALTHY_LABEL in labels,
        controller="" if controller[0] in _NOT_MADE_AGAIN else "/".join(filter(None, controller)),
        movable=is_movable(annotations),
        last_checkpoint=unix_seconds(annotations.get(LAST_CHECKPOINT_KEY, "")),
        rejection_message=(pod.status.message or "") if pod.rejected_at_admission else "",
        rules=rules,
        claims=_claims(pod) if spec.resource_claims else (),
    )


def _claims(pod: Pod) -> tuple[PodClaim, ...]:
    """The claims of a pod, by the names of the ResourceClaims that were made for it.

    A template of which none was made, and of which the status says so, asks for nothing (PodResourceClaimStatus in
    staging/src/k8s.io/api/core/v1/types.go).
    """
    made = {status.name: status.resource_claim_name or "" for status in pod.status.resource_claim_statuses or ()}
    uses = [
        (use.name, (container.name, use.request or ""))
        for container, _ in pod.containers
        for use in (container.resources.claims if container.resources else None) or ()
    ]
    return tuple(
        PodClaim(
            claim.name,
            claim.resource_claim_name or made.get(claim.name, ""),
            tuple(user for name, user in uses if name == claim.name),
        )
        for claim in pod.spec.resource_claims or ()
        if claim.resource_claim_name or made.get(claim.name, claim.name)
    )


def _is_meant_for_another(pod: Pod) -> bool:
    """Whether the assignment of a bound pod was made for another node, or for the pod that this one is a copy of.

    The ids then say nothing here. Once the plugin has written what the pod has, it does not matter any more.
    """
    node, uid = pod.annotations.get(NODE_KEY, ""), pod.annotations.get(POD_UID_KEY, "")
    return bool(pod.node_name) and (node not in {"", pod.node_name} or uid not in {"", pod.uid})


def _is_unschedulable(pod: Pod) -> bool:
    """Whether its scheduler has found no node for it, and does not make room for it either."""
    refused = any(
        condition.type == "PodScheduled" and condition.reason == "Unschedulable"
        for condition in pod.status.conditions or ()
    )
    return refused and not pod.status.nominated_node_name


def _member(pod: Pod, owner_kind: str) -> GroupMember | None:
    group = pod.spec.scheduling_group
    pod_group = (group.pod_group_name if group else "") or ""
    if not (pod_group or pod.labels or pod.annotations):
        return None
    member = group_member(pod.namespace, pod.annotations, pod.labels, pod_group, owner_kind)
    if member is None:
        return None
    spec, host = pod.spec, ""
    if spec.hostname and spec.subdomain:  # the cluster's domain is left to the resolver of the pod
        host = f"{spec.hostname}.{spec.subdomain}.{pod.namespace}.svc"
    sets_ultraserver = any(
        variable.name in VARIABLES for container, _ in pod.containers for variable in container.env or ()
    )
    return replace(member, host=host, sets_ultraserver=sets_ultraserver)


def _ultraserver_place(pod: Pod) -> UltraServerPlace | None:
    text = pod.annotations.get(ULTRASERVER_KEY, "")
    own = text and pod.annotations.get(POD_UID_KEY) == pod.uid and not _is_meant_for_another(pod)
    return read_ultraserver_place(text) if own else None


class _Asked(NamedTuple):
    """What a pod asks for: sets, and what kube-scheduler counts, besides Neuron and of Neuron."""

    request: PodRequest | Rejection
    needs: Quantities
    neuron: Quantities


_Texts = tuple[tuple[str, str], ...]


def _asked(pod: Pod, constraint_texts: _Texts) -> _Asked:
    spec = pod.spec
    containers = tuple(
        [
            (container.name, kind, tuple(container.limits.items()), tuple(container.requests.items()))
            for container, kind in pod.containers
        ]
    )
    whole = tuple(((spec.resources and spec.resources.requests) or _NONE).items())
    gated = any(gate.name == GATE for gate in spec.scheduling_gates or ())
    return _asked_by(containers, constraint_texts, whole, tuple((spec.overhead or _NONE).items()), gated=gated)


@lru_cache(maxsize=_REMEMBERED)
def _asked_by(
    containers: tuple[tuple[str, ContainerKind, _Texts, _Texts], ...],
    constraint_texts: _Texts,
    whole: _Texts,
    overhead: _Texts,
    *,
    gated: bool,
) -> _Asked:
    """Equal requests are one object. Exact quantities cost tens of microseconds, and pods ask for few things."""
    try:
        request: PodRequest | Rejection = pod_request(
            ContainerSpec(name, kind, _neuron_quantities(limits), _neuron_quantities(requests))
            for name, kind, limits, requests in containers
        )
    except RequestError as error:
        request = replace(INVALID_REQUEST, detail=str(error))
    if constraint_texts and not isinstance(request, Rejection):
        parts = [(container.name, container.resource.unit) for container in request]
        constraints = read_constraints(dict(constraint_texts), parts)
        request = tuple(replace(container, constraints=constraints) for container in request)
    # The API server writes a request for each limit of an extended resource; other objects may lack them.
    amounts = [
        (kind, tuple({**{name: text for name, text in limits if name in _RESOURCE_NAMES}, **dict(requests)}.items()))
        for _, kind, limits, requests in containers
    ]
    return _Asked(request, *_sum(amounts, whole, overhead, gated=gated))


def _neuron_quantities(texts: _Texts) -> dict[str, str]:
    return {name: text for name, text in texts if name in _RESOURCE_NAMES or name.startswith(PREFIX)}


def _refused_demands(pod: Pod) -> frozenset[tuple[Resource, int]]:
    demands = set()
    for container, _ in pod.containers:
        for resource in Resource:
            with suppress(ValueError):
                text = container.limits.get(resource.value, container.requests.get(resource.value, "0"))
                demands.add((resource, parse_count(text)))
    return frozenset(demand for demand in demands if demand[1])


@lru_cache(maxsize=_REMEMBERED)
def unix_seconds(text: str) -> float:
    """A time of RFC 3339 in unix seconds; 0 for any other text."""
    if not _RFC_3339.fullmatch(text := text.strip()):  # ``fromisoformat`` alone reads much that is no RFC 3339
        return 0.0
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return time.timestamp() if time.year > _FIRST_YEAR else 0.0


# What kube-scheduler's own rules ask of a node.


_equal_rules = lru_cache(maxsize=_REMEMBERED)(PodRules)
"""Equal rules are one object: much that is remembered is looked up by them."""


def _rules(pod: Pod, asked: _Asked) -> PodRules:
    spec, affinity = pod.spec, pod.spec.affinity
    gates = spec.scheduling_gates or ()
    by_node = affinity.node_affinity if affinity else None
    required = by_node and by_node.required_during_scheduling_ignored_during_execution
    return _equal_rules(
        scheduler_name=spec.scheduler_name,
        gates=tuple([gate.name for gate in gates]),
        node_selector=tuple((spec.node_selector or _NONE).items()),
        terms=_terms(required, _pinned_to(pod), is_released=_was_released(pod)) if required else None,
        tolerations=_tolerations(spec.tolerations) if spec.tolerations else (),
        needs=asked.needs,
        neuron=asked.neuron,
        ports=_ports(pod),
        claims=_volume_claims(pod),
        resource_claims=bool(spec.resource_claims),
        affinity=_required_terms(pod, affinity.pod_affinity) if affinity else (),
        anti_affinity=_required_terms(pod, affinity.pod_anti_affinity) if affinity else (),
        spread=tuple([spread.of(pod) for spread in spec.topology_spread_constraints or ()]),
        preferences=_preferences(pod, affinity) if affinity else NO_PREFERENCES,
    )


def _volume_claims(pod: Pod) -> tuple[str, ...]:
    """The pod's PersistentVolumeClaims. A generic ephemeral volume has one that is named after pod and volume."""
    volumes = pod.spec.volumes or ()
    return (
        *[volume.persistent_volume_claim.claim_name for volume in volumes if volume.persistent_volume_claim],
        *[f"{pod.name}-{volume.name}" for volume in volumes if volume.ephemeral is not None],
    )


def _required_terms(pod: Pod, affinity: _PodAffinity | None) -> tuple[PodTerm, ...]:
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return tuple([term.of(pod) for term in terms or ()])


def _preferences(pod: Pod, affinity: _Affinity) -> Preferences:
    """Weights of anti-affinity are negative. A node term without any requirement prefers no node."""
    by_node = affinity.node_affinity
    preferred = (by_node and by_node.preferred_during_scheduling_ignored_during_execution) or ()
    nodes = [(term.weight, _node_term(term.preference)) for term in preferred]
    pods = list[tuple[int, PodTerm]]()
    for sign, among in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        terms = (among and among.preferred_during_scheduling_ignored_during_execution) or ()
        pods += [(sign * term.weight, term.pod_affinity_term.of(pod)) for term in terms]
    return Preferences(tuple(nodes), tuple(pods)) if nodes or pods else NO_PREFERENCES


@lru_cache(maxsize=_REMEMBERED)
def _tolerations(tolerations: tuple[_Toleration, ...]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(toleration.key or "", toleration.operator or "", toleration.value or "", toleration.effect or "")
        for toleration in tolerations
    )


def _pinned_to(pod: Pod) -> str:
    """The node to whose name a placement by gates has bound this pod's terms; empty where none has."""
    said = pod.annotations.get(NODE_KEY), pod.annotations.get(POD_UID_KEY)
    return pod.node_name if pod.node_name and said == (pod.node_name, pod.uid) else ""


def _was_released(pod: Pod) -> bool:
    """Whether a pod is bound that was handed to its scheduler but for some nodes."""
    return bool(pod.node_name) and RELEASED_KEY in pod.annotations and pod.annotations.get(POD_UID_KEY) == pod.uid


@lru_cache(maxsize=_REMEMBERED)
def _terms(required: WireNodeSelector, pinned_to: str, *, is_released: bool) -> tuple[NodeSelectorTerm, ...] | None:
    """The required terms of a bound pod without the nodes that its way through the gate has added.

    The pod is where it is. Its replacement is a new pod that has no place, so plans may send it anywhere.
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


def _ports(pod: Pod) -> frozenset[HostPort]:
    return frozenset(
        [
            (port.host_ip or ANY_ADDRESS, port.protocol, port.host_port)
            for container, _ in pod.containers
            for port in container.ports or ()
            if port.host_port
        ]
    )


def _sum(
    containers: Iterable[tuple[ContainerKind, _Texts]], whole: _Texts, overhead: _Texts, *, gated: bool
) -> tuple[Quantities, Quantities]:
    """What a pod asks for besides Neuron, and of Neuron.

    The sum of containers and sidecars, or what an init container and the sidecars before it need, if that is more. The
    whole pod's own request, where there is one, stands in place of it (PodRequests in
    staging/src/k8s.io/component-helpers/resource/helpers.go). Amounts of our own are left to the extender by a
    scheduler that has one. Of a gated pod the scheduler counts them as any other resource.
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
    neuron = tuple(sorted((name, amount) for name, amount in total.items() if name in _RESOURCE_NAMES and amount))
    others = {
        name: amount
        for name, amount in total.items()
        if name not in _RESOURCE_NAMES and (gated or not name.startswith(PREFIX))
    }
    return tuple(sorted({**others, "pods": 1000}.items())), neuron


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def _largest(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}


@lru_cache(maxsize=_REMEMBERED)
def quantities(texts: _Texts) -> Quantities:
    """Amounts in thousandths, rounded up. A server stores no text that is no quantity."""
    amounts = []
    for name, text in texts:
        with suppress(ValueError):
            amounts.append((name, ceil(parse_quantity(text) * 1000)))
    return tuple(sorted(amounts))
