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

The rank is one only where the pod's index has several numbers: else it is the index, or what the user wrote.
"""
_NAME_FIELD = "metadata.name"


def place(pod: NeuronPod, node: str, annotations: Mapping[str, str]) -> ApiRequest:
    """Place a pod on a node and hand it to its scheduler. ``annotations`` say its assignment, in each dialect."""
    says = {**annotations, NODE_KEY: node, POD_UID_KEY: pod.uid}
    spec = _released(pod, Requirement(_NAME_FIELD, "In", (node,)))
    return _request(pod, {"annotations": says, "labels": {NODE_KEY: node_label(node)}}, spec=spec)


def nominate(pod: NeuronPod, node: str) -> ApiRequest:
    """Let kube-scheduler keep CPU and memory of the node for a gated pod, against pods of no higher priority.

    It counts a nominated pod from when it knows of it, gated or not (pkg/scheduler/backend/queue/scheduling_queue.go).
    """
    request = _request(pod, {}, status={"nominatedNodeName": node})
    return replace(request, path=f"{request.path}/status")


def release_plainly(pod: NeuronPod) -> ApiRequest:
    """Hand a pod to its scheduler without a node; what was planned for it goes."""
    return _request(pod, _without_placement(pod), spec=_released(pod))


def release_among(pod: NeuronPod, without: Iterable[str]) -> ApiRequest:
    """Hand a pod to its scheduler, which may choose any node but those ``without`` a linked set for it."""
    says = {RELEASED_KEY: "excluded", POD_UID_KEY: pod.uid}
    return _request(pod, _without_placement(pod, says), spec=_released(pod, *_off(without)))


def kept_off(pod: NeuronPod, names: Iterable[str]) -> NeuronPod:
    """A pod as it is once it was handed over without these nodes."""
    pins = _off(names)
    return replace(pod, rules=replace(pod.rules, terms=pinned(pod.rules.terms, pins))) if pins else pod


def _off(names: Iterable[str]) -> tuple[Requirement, ...]:
    return tuple(Requirement(_NAME_FIELD, "NotIn", (name,)) for name in names)


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


def _without_placement(pod: NeuronPod, says: Mapping[str, str] | None = None) -> JsonObject:
    """The ``metadata`` of a pod without what a placement has written, and with what it ``says`` instead."""
    has_index = bool(pod.member and pod.member.rank and len(pod.member.rank) > 1)
    written = (*WRITTEN_KEYS, *([RANK_KEY] if has_index else []))
    return {"annotations": {**dict.fromkeys(written), **(says or {})}, "labels": {NODE_KEY: None}}


def _released(pod: NeuronPod, *pins: Requirement) -> JsonObject:
    """The ``spec`` of a pod without our gate, and with these requirements in each term of its node affinity."""
    spec: JsonObject = {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
    if pins:
        terms = [_term(term) for term in pinned(pod.rules.terms, pins)]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return spec


def _term(term: NodeSelectorTerm) -> JsonObject:
    written: JsonObject = {}
    for name, requirements in (("matchExpressions", term.expressions), ("matchFields", term.fields)):
        if requirements:
            written[name] = [
                {"key": one.key, "operator": one.operator, **({"values": list(one.values)} if one.values else {})}
                for one in requirements
            ]
    return written


def _request(pod: NeuronPod, metadata: JsonObject, **parts: JsonObject) -> ApiRequest:
    """One PATCH of the pod as it was read."""
    path = PODS.item(pod.reference.name, pod.reference.namespace)
    read: JsonObject = {"uid": pod.uid, "resourceVersion": pod.version, **metadata}
    return ApiRequest("PATCH", path, body={"metadata": read, **parts}, content_type=STRATEGIC_MERGE_PATCH)
