"""What is written on gated pods, as requests.

Each is one strategic merge PATCH with the resourceVersion that was read: a pod that has changed since is a 409, and is
looked at again. While a pod is gated, requirements may be appended to the terms of its required node affinity, and
nothing else of it may change (pkg/apis/core/validation/validation.go, ValidatePodUpdate). Gates are merged by name,
terms are replaced as a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    ASSIGNMENT_KEYS,
    DOMAIN_KEY,
    GATE,
    NODE_KEY,
    POD_UID_KEY,
    RANK_KEY,
    RELEASED_KEY,
    ULTRASERVER_KEY,
    VENDOR_RESOURCE_KEY,
)
from neuron_plugin.allocation.node_rules import NodeSelectorTerm, Requirement, pinned
from neuron_plugin.allocation.pod import node_label
from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import STRATEGIC_MERGE_PATCH, JsonObject
from neuron_plugin.cluster.pods import PODS

WRITTEN_KEYS = (
    *ASSIGNMENT_KEYS,
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    VENDOR_RESOURCE_KEY,
    NODE_KEY,
    POD_UID_KEY,
    DOMAIN_KEY,
    ULTRASERVER_KEY,
    RELEASED_KEY,
)
"""Every annotation that some placement writes, in any dialect: those that are taken off with it.

Not the rank, which users may write, too.
"""
_NAME_FIELD = "metadata.name"


def place(pod: NeuronPod, node: str, annotations: Mapping[str, str]) -> ApiRequest:
    """Place a pod on a node and hand it to its scheduler. ``annotations`` say its assignment, in each dialect."""
    return _request(pod, _metadata(pod, node, annotations), spec=_released(pod, node))


def nominate(pod: NeuronPod, node: str) -> ApiRequest:
    """Let kube-scheduler keep CPU and memory of the node for a gated pod, against pods of no higher priority.

    It counts a nominated pod from when it knows of it, gated or not (pkg/scheduler/backend/queue/scheduling_queue.go).
    """
    request = _request(pod, {"uid": pod.uid, "resourceVersion": pod.version}, status={"nominatedNodeName": node})
    return replace(request, path=f"{request.path}/status")


def release_plainly(pod: NeuronPod) -> ApiRequest:
    """Hand a pod to its scheduler without a node; what was planned for it goes."""
    return _request(pod, _without_placement(pod), spec=_released(pod, ""))


def release_among(pod: NeuronPod, without: Iterable[str]) -> ApiRequest:
    """Hand a pod to its scheduler, which may choose any node but those ``without`` a linked set for it."""
    metadata = _without_placement(pod)
    kept: JsonObject = {RELEASED_KEY: "excluded", POD_UID_KEY: pod.uid}
    metadata["annotations"] = {**dict.fromkeys(WRITTEN_KEYS), **kept}
    pins = tuple(Requirement(_NAME_FIELD, "NotIn", (name,)) for name in without)
    return _request(pod, metadata, spec=_released_to(pod, pins))


def group_annotations(rank: int | None, domain: Sequence[str], place: UltraServerPlace | None) -> dict[str, str]:
    """What is written with the assignment of a pod of a group.

    That is its rank, the domains that all its pods share, and its place in UltraServers that the group has whole.
    """
    said = {} if rank is None else {RANK_KEY: str(rank)}
    said |= {DOMAIN_KEY: "/".join(domain)} if domain else {}
    return said | ({ULTRASERVER_KEY: str(place)} if place else {})


def withdraw(pod: NeuronPod) -> ApiRequest:
    """Take a placement off a pod. The node affinity of a pod that was released stays: it cannot be taken back."""
    return _request(pod, _without_placement(pod))


def placement_annotations(pod: NeuronPod, node: str, annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that say where a pod was placed, and what it was assigned there."""
    return {**annotations, NODE_KEY: node, POD_UID_KEY: pod.uid}


def _metadata(pod: NeuronPod, node: str, annotations: Mapping[str, str]) -> JsonObject:
    says, labels = placement_annotations(pod, node, annotations), {NODE_KEY: node_label(node)}
    return {"uid": pod.uid, "resourceVersion": pod.version, "annotations": says, "labels": labels}


def _without_placement(pod: NeuronPod) -> JsonObject:
    nothing: JsonObject = dict.fromkeys(WRITTEN_KEYS)
    return {"uid": pod.uid, "resourceVersion": pod.version, "annotations": nothing, "labels": {NODE_KEY: None}}


def _released(pod: NeuronPod, node: str) -> JsonObject:
    """The ``spec`` of a pod without our gate, to be bound to ``node`` alone if there is one."""
    return _released_to(pod, (Requirement(_NAME_FIELD, "In", (node,)),) if node else ())


def _released_to(pod: NeuronPod, pins: tuple[Requirement, ...]) -> JsonObject:
    spec: JsonObject = {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
    if pins:
        terms = [_term(term) for term in pinned(pod.rules.terms, pins)]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return spec


def _term(term: NodeSelectorTerm) -> JsonObject:
    parts = {"matchExpressions": term.expressions, "matchFields": term.fields}
    return {
        name: [_requirement(requirement) for requirement in requirements]
        for name, requirements in parts.items()
        if requirements
    }


def _requirement(requirement: Requirement) -> JsonObject:
    written: JsonObject = {"key": requirement.key, "operator": requirement.operator}
    return {**written, "values": list(requirement.values)} if requirement.values else written


def _request(pod: NeuronPod, metadata: JsonObject, **parts: JsonObject) -> ApiRequest:
    path = PODS.item(pod.reference.name, pod.reference.namespace)
    return ApiRequest("PATCH", path, body={"metadata": metadata, **parts}, content_type=STRATEGIC_MERGE_PATCH)
