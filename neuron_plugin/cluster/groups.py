"""A pod's group, from its PodGroup, our annotations, or the labels and annotations of its framework.

Frameworks number their pods by labels of their own. The number is the rank by which pods are placed near each other.
Names do not identify members: a replaced pod may keep its name. So membership follows from each pod's own labels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from neuron_plugin.allocation import Rejection
from neuron_plugin.allocation.group import NO_WISH, GroupMember, GroupName, TopologyWish, is_replica
from neuron_plugin.allocation.keys import (
    GROUP_KEY,
    GROUP_SIZE_KEY,
    NODE_KEY,
    PREFLIGHT_KEY,
    RANK_KEY,
    SLICE_KEY,
    SPARES_KEY,
    TOPOLOGY_KEY,
    WINDOW_KEY,
)
from neuron_plugin.allocation.rejection import INVALID_CONSTRAINT

_LWS = "leaderworkerset.sigs.k8s.io/"
_KUEUE = "kueue.x-k8s.io/"
_KUBEFLOW = "training.kubeflow.org/"
_JOBSET = "jobset.sigs.k8s.io/"
JOBSET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS_EXCLUSIVE = f"{_LWS}exclusive-topology"
"""Annotations with a node label: a Job, or a replica, has a domain of this label for itself. Its other pods are created
in the domain of the first pod."""
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_POD_INDEX = "apps.kubernetes.io/pod-index"
_NUMBER = re.compile(r"[0-9]{1,6}")
_SIZE = re.compile(r"[1-9][0-9]{0,4}")
_SPARES = re.compile(r"[0-8]")
_LEVEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,315}[A-Za-z0-9])?")
"""A level of the network, or the key of a node label."""
_MASTERS = frozenset({"master", "launcher", "chief"})

Texts = Mapping[str, str]


def group_member(
    namespace: str, annotations: Texts, labels: Texts, pod_group: str, owner_kind: str
) -> GroupMember | None:
    """A pod's membership in its group; None if the pod is placed alone.

    ``pod_group`` is the PodGroup of its spec. The pods of one replica of a LeaderWorkerSet are a group without our
    annotations, and also if our annotation in its template gives the size of a replica: all replicas have one template.
    So is a pod group of Kueue, unless its pods serve independently.
    """
    texts = {**labels, **annotations}
    name, size, lws = "", 0, labels.get(f"{_LWS}name", "")
    leads = labels.get(f"{_LWS}worker-index") == "0"
    own, own_size = texts.get(GROUP_KEY, ""), _number(texts.get(GROUP_SIZE_KEY, ""), _SIZE) or 0
    replica_size = _number(annotations.get(f"{_LWS}size", ""), _SIZE) or 0
    if pod_group:
        name = pod_group
    elif lws and (index := labels.get(f"{_LWS}group-index", "")) and (not own or own_size == replica_size):
        name, size = f"{lws}/{index}", replica_size
    elif own:
        name, size = own, own_size
    elif (kueue := texts.get(f"{_KUEUE}pod-group-name", "")) and not _serves(texts):
        name, size = kueue, _number(annotations.get(f"{_KUEUE}pod-group-total-count", ""), _SIZE) or 0
    checked = annotations.get(PREFLIGHT_KEY, "").strip()
    if not name:
        odd = _unreadable(PREFLIGHT_KEY, checked, "a pod of a group") if checked else None
        return GroupMember((namespace, ""), unreadable=odd) if odd else None
    leads |= JOBSET_EXCLUSIVE in annotations and annotations.get(_COMPLETION_INDEX) == "0"
    group: GroupName = namespace, name
    exclusive = annotations.get(LWS_EXCLUSIVE, "") if is_replica(group) else ""
    if texts.get(f"{_JOBSET}global-replicas", "") == "1":
        exclusive = annotations.get(JOBSET_EXCLUSIVE, "")  # each Job has a domain of its own
    leads |= owner_kind == "StatefulSet" and f"{_LWS}worker-index" not in labels  # each may wait for the one before it
    wish = topology_wish(annotations)
    readable, unreadable = (NO_WISH, wish) if isinstance(wish, Rejection) else (wish, None)
    text = annotations.get(SPARES_KEY, "").strip()
    if (spares := _number(text or "0", _SPARES)) is None:
        unreadable = _unreadable(SPARES_KEY, text, "a number from 0 to 8")
    if checked not in {"", "group"}:
        unreadable = _unreadable(PREFLIGHT_KEY, checked, "group")
    if exclusive and readable == NO_WISH:
        readable = TopologyWish(required=exclusive)
    rank = _rank(texts, several=not is_replica(group))
    return GroupMember(group, size, rank, leads, readable, unreadable, lws, spares=spares or 0, preflight=bool(checked))


def _serves(texts: Texts) -> bool:
    return any(texts.get(f"{_KUEUE}pod-group-{mode}", "").lower() == "true" for mode in ("serving", "fast-admission"))


def _number(text: str, pattern: re.Pattern[str] = _NUMBER) -> int | None:
    return int(text) if text and pattern.fullmatch(text := text.strip()) else None


def _rank(texts: Texts, *, several: bool) -> tuple[int, ...] | None:
    """The rank of a pod: from our annotation, or else the index from its framework.

    A placement writes the rank as one number on the pod, even if the index has several numbers. In that case the index
    still counts: a replacement is recognised by it.
    """
    own, index = _number(texts.get(RANK_KEY, "")), _index(texts, several=several)
    if own is None or (index and len(index) > 1 and NODE_KEY in texts):
        return index
    return (own,)


def _index(texts: Texts, *, several: bool) -> tuple[int, ...] | None:
    """The pod's index from its framework, preceded by the index of its job if there are several jobs.

    ``several``: the group may have pods of several replicas of a LeaderWorkerSet.
    """
    offset = _number(texts.get(f"{_KUEUE}pod-index-offset", "")) or 0
    if (index := _number(texts.get(_COMPLETION_INDEX, ""))) is not None:
        jobs = (_number(texts.get(f"{_JOBSET}{key}", "")) for key in ("job-global-index", "job-index"))
        job = next((number for number in jobs if number is not None), None)
        return (index + offset,) if job is None else (job, index + offset)
    if (index := _number(texts.get(f"{_LWS}worker-index", ""))) is not None:
        replica = _number(texts.get(f"{_LWS}group-index", "")) if several else None
        return (index + offset,) if replica is None else (replica, index + offset)
    if (index := _number(texts.get(f"{_KUBEFLOW}replica-index", ""))) is not None:
        role = texts.get(f"{_KUBEFLOW}replica-type", texts.get(f"{_KUBEFLOW}job-role", "")).lower()
        return int(role not in _MASTERS), index + offset
    for key in (f"{_KUEUE}pod-group-pod-index", _POD_INDEX):
        if (index := _number(texts.get(key, ""))) is not None:
            return (index + offset,)
    return None


def topology_wish(annotations: Texts) -> TopologyWish | Rejection:
    """How near to each other the pods of a group have to be.

    Kueue's annotations are ignored if Kueue places the pod itself. Such a pod names its workload; Kueue's gate is gone
    by the time the pod is decoded.
    """
    wish = NO_WISH
    if text := annotations.get(TOPOLOGY_KEY, "").strip():
        fields = _fields(text, ("required", "preferred"))
        if text != "none" and not fields:
            return _unreadable(TOPOLOGY_KEY, text, "required=LEVEL, preferred=LEVEL or none")
        wish = TopologyWish(fields.get("required", ""), fields.get("preferred", ""), anywhere=text == "none")
    elif f"{_KUEUE}workload" not in annotations:
        wish = TopologyWish(
            annotations.get(f"{_KUEUE}podset-required-topology", ""),
            annotations.get(f"{_KUEUE}podset-preferred-topology", ""),
            anywhere=annotations.get(f"{_KUEUE}podset-unconstrained-topology", "") == "true",
        )
        level = annotations.get(f"{_KUEUE}podset-slice-required-topology", "")
        size = _number(annotations.get(f"{_KUEUE}podset-slice-size", ""), _SIZE)
        wish = replace(wish, slice_size=size, slice_level=level) if level and size else wish
    if text := annotations.get(SLICE_KEY, "").strip():
        fields = _fields(text, ("size", "required"))
        size = _number(fields.get("size", ""), _SIZE)
        if size is None or "required" not in fields:
            return _unreadable(SLICE_KEY, text, "size=NUMBER,required=LEVEL")
        wish = replace(wish, slice_size=size, slice_level=fields["required"])
    if text := annotations.get(WINDOW_KEY, "").strip():
        if text != "any":
            return _unreadable(WINDOW_KEY, text, "any")
        wish = replace(wish, any_window=True)
    return wish


def _fields(text: str, names: Collection[str]) -> dict[str, str]:
    """The parts NAME=LEVEL of a text, each name once; empty if the text has any other part."""
    parts = [part.partition("=") for part in text.split(",")]
    fields = {name: value for name, _, value in parts if name in names and _LEVEL.fullmatch(value)}
    return fields if len(fields) == len(parts) else {}


def _unreadable(key: str, text: str, expected: str) -> Rejection:
    return replace(INVALID_CONSTRAINT, detail=f"annotation {key} is {text[:60]!r}, expected {expected}")
