"""The decoder of ``NeuronPod``.

Plugin, placement controller and command line share it, so they never disagree about a pod's request, assignment and
allowed nodes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import NamedTuple

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
from neuron_plugin.allocation.group import GroupMember, GroupName
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
from neuron_plugin.allocation.node_rules import HostPort, PlacedPod, Quantities, pod_labels
from neuron_plugin.allocation.pod import NO_LIFE, PodLife, is_movable, placement_strategy
from neuron_plugin.allocation.rejection import INVALID_REQUEST, UNREADABLE_ASSIGNMENT
from neuron_plugin.allocation.requests import ContainerSpec, RequestError, parse_count, pod_request
from neuron_plugin.allocation.ultraserver import VARIABLES, UltraServerPlace, read_ultraserver_place
from neuron_plugin.cluster.groups import group_member
from neuron_plugin.cluster.objects import ApiResource
from neuron_plugin.cluster.pod_rules import (
    RESOURCE_NAMES,
    QuantityTexts,
    ports_of,
    required_terms,
    rules_of,
    sum_of_requests,
    volume_claims,
)
from neuron_plugin.cluster.pod_wire import NONE, REMEMBERED, Pod, unix_seconds

PODS = ApiResource("/api/v1", "pods", Pod)

STATIC_POD_UID_KEY = "kubernetes.io/config.hash"
"""On a mirror pod: the kubelet's UID of the static pod (pkg/kubelet/types/constants.go)."""


@dataclass(frozen=True, slots=True)
class PodUse:
    """A bound pod without Neuron: its share of the node, and the parts that rules of other pods need."""

    placed: PlacedPod
    needs: Quantities
    ports: frozenset[HostPort]

    @property
    def node(self) -> str:
        """The node that the pod is bound to."""
        return self.placed.node


def asks_for_neuron(pod: Pod) -> bool:
    """Whether a container of the pod names one of the resources, even with the quantity 0."""
    return any(
        name in container.limits or name in container.requests
        for container, _ in pod.containers
        for name in RESOURCE_NAMES
    )


def pod_use(pod: Pod) -> PodUse | None:
    """A pod's share of its node; None if the pod is not bound or has ended."""
    if not pod.node_name or pod.terminal:
        return None
    affinity = pod.spec.affinity
    placed = PlacedPod(
        intern(pod.node_name),
        pod_labels(pod.namespace, pod.labels),
        terminating=pod.terminating,
        anti_affinity=required_terms(pod, affinity.pod_anti_affinity) if affinity else (),
        claims=volume_claims(pod) if pod.spec.volumes else (),
    )
    return PodUse(placed, _asked(pod, ()).needs, ports_of(pod))


@dataclass(frozen=True, slots=True)
class FinishedMember:
    """A pod of a group that has succeeded: its group does not wait for another in its place."""

    group: GroupName
    controller: str


def finished_member(pod: Pod) -> FinishedMember | None:
    """A pod as a group counts it once it has succeeded; None of any other.

    Without a controller it is not known whether later pods of this group's name belong to the same run.
    """
    kind, name = pod.controller
    member = _member(pod, kind) if pod.phase == "Succeeded" and name and not pod.terminating else None
    return FinishedMember(member.group, f"{kind}/{name}") if member and member.group[1] else None


def neuron_pod(pod: Pod, *, progress: bool = True) -> NeuronPod:
    """Decode a pod. It never fails: unusable parts become a ``Rejection``.

    Without ``progress`` the result has no ``life``, and a phase only once the pod has ended.
    """
    annotations, labels, spec = pod.annotations, pod.labels, pod.spec
    # Bounded, as texts are cached; one character too many shows that a text is too long.
    asked = _asked(
        pod, tuple([(key, annotations[key][: LONGEST_CONSTRAINT + 1]) for key in CONSTRAINT_KEYS if key in annotations])
    )
    request, rules = asked.request, rules_of(pod, asked.needs, asked.neuron)
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
        seen_by_scheduler=pod.seen_by_scheduler,
        assignment=assignment,
        priority=spec.priority or 0,
        preempts=spec.preemption_policy != "Never",
        phase=phase if progress or pod.terminal else "",
        terminating=pod.terminating,
        running=pod.running,
        ready=pod.ready,
        created=unix_seconds(pod.metadata.creation_timestamp or ""),
        static_uid=annotations.get(STATIC_POD_UID_KEY, ""),
        member=_member(pod, controller[0]),
        ultraserver=_ultraserver_place(pod),
        version=pod.resource_version if gated else "",
        labels=pod_labels(pod.namespace, labels),
        strategy=placement_strategy(annotations.get(PLACEMENT_KEY, "")),
        controller="" if controller[0] == "Node" else "/".join(filter(None, controller)),
        movable=is_movable(annotations),
        last_checkpoint=unix_seconds(annotations.get(LAST_CHECKPOINT_KEY, "")),
        local_storage=any(volume.empty_dir is not None for volume in spec.volumes or ()),
        rejection_message=(pod.status.message or "") if pod.rejected_at_admission else "",
        rules=rules,
        claims=_claims(pod) if spec.resource_claims else (),
        life=_life(pod, request) if progress else NO_LIFE,
    )


def _life(pod: Pod, request: PodRequest | Rejection) -> PodLife:
    is_refused = isinstance(request, Rejection)
    return PodLife(
        started=pod.started or pod.phase == "Running",
        ending=pod.ending,
        runs=pod.runs if request and not is_refused else (),
        privileged=pod.privileged,
        assignment_keys=tuple([key for key in ASSIGNMENT_KEYS if key in pod.annotations]),
        refused_demands=_refused_demands(pod) if is_refused else frozenset(),
        labelled_unhealthy=UNHEALTHY_LABEL in pod.labels,
    )


def _claims(pod: Pod) -> tuple[PodClaim, ...]:
    """The claims of a pod, with the names of the ResourceClaims made for it.

    A template for which the status names no claim asks for nothing (PodResourceClaimStatus in
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
    """Whether the assignment of a bound pod was made for another node, or for another pod of which this is a copy.

    The ids are then meaningless. Once the plugin has written the pod's ids, this does not matter any more.
    """
    node, uid = pod.annotations.get(NODE_KEY, ""), pod.annotations.get(POD_UID_KEY, "")
    return bool(pod.node_name) and (node not in {"", pod.node_name} or uid not in {"", pod.uid})


def _is_unschedulable(pod: Pod) -> bool:
    """Whether its scheduler has found no node for it, and is not making room for it either."""
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
    if spec.hostname and spec.subdomain:  # the pod's resolver adds the cluster's domain
        host = f"{spec.hostname}.{spec.subdomain}.{pod.namespace}.svc"
    sets_ultraserver = any(
        variable.name in VARIABLES for container, _ in pod.containers for variable in container.env or ()
    )
    return replace(member, host=host, sets_ultraserver=sets_ultraserver) if host or sets_ultraserver else member


def _ultraserver_place(pod: Pod) -> UltraServerPlace | None:
    text = pod.annotations.get(ULTRASERVER_KEY, "")
    own = text and pod.annotations.get(POD_UID_KEY) == pod.uid and not _is_meant_for_another(pod)
    return read_ultraserver_place(text) if own else None


class _Asked(NamedTuple):
    """A pod's request for sets, and its requests as kube-scheduler counts them: without Neuron, and for Neuron."""

    request: PodRequest | Rejection
    needs: Quantities
    neuron: Quantities


def _asked(pod: Pod, constraint_texts: QuantityTexts) -> _Asked:
    spec = pod.spec
    containers = tuple(
        [
            (container.name, kind, tuple(container.limits.items()), tuple(container.requests.items()))
            for container, kind in pod.containers
        ]
    )
    whole = tuple(((spec.resources and spec.resources.requests) or NONE).items())
    gated = any(gate.name == GATE for gate in spec.scheduling_gates or ())
    return _asked_by(containers, constraint_texts, whole, tuple((spec.overhead or NONE).items()), gated=gated)


@lru_cache(maxsize=REMEMBERED)
def _asked_by(
    containers: tuple[tuple[str, ContainerKind, QuantityTexts, QuantityTexts], ...],
    constraint_texts: QuantityTexts,
    whole: QuantityTexts,
    overhead: QuantityTexts,
    *,
    gated: bool,
) -> _Asked:
    """Cached: parsing quantities takes tens of microseconds, and equal requests become one object."""
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
    # The API server adds a request for each limit of an extended resource; manifests may lack them.
    amounts = [
        (kind, tuple({**{name: text for name, text in limits if name in RESOURCE_NAMES}, **dict(requests)}.items()))
        for _, kind, limits, requests in containers
    ]
    return _Asked(request, *sum_of_requests(amounts, whole, overhead, gated=gated))


def _neuron_quantities(texts: QuantityTexts) -> dict[str, str]:
    return {name: text for name, text in texts if name in RESOURCE_NAMES or name.startswith(PREFIX)}


def _refused_demands(pod: Pod) -> frozenset[tuple[Resource, int]]:
    demands = set()
    for container, _ in pod.containers:
        for resource in Resource:
            with suppress(ValueError):
                text = container.limits.get(resource.value, container.requests.get(resource.value, "0"))
                demands.add((resource, parse_count(text)))
    return frozenset(demand for demand in demands if demand[1])
