"""What kubectl needs besides objects: discovery, OpenAPI, tables, core/v1 events, and a little protobuf.

This is enough for get, describe, explain, apply, diff, delete, cordon, drain, label and auth of kubectl 1.28 to 1.36.
The OpenAPI documents say that the server validates fields and supports dry runs, and describe the fields that this
project reads. ``drain``, ``auth`` and ``create namespace`` send protobuf; only their messages are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec.inspect import (
    BoolType,
    DateTimeType,
    DictType,
    IntType,
    ListType,
    StrType,
    StructType,
    UnionType,
    VarTupleType,
    type_info,
)

from neuron_plugin.cluster import ApiResource, claims, objects, storage
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server_kinds import AnyJson, ServedKind
from neuron_plugin.simulation.api_server_rules import is_ready
from neuron_plugin.simulation.resource_claims import claim_node

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_SHORT_NAMES = {
    kinds.PODS: ["po"],
    kinds.NODES: ["no"],
    kinds.BUDGETS: ["pdb"],
    kinds.CLAIMS: ["pvc"],
    kinds.VOLUMES: ["pv"],
    kinds.PRIORITY_CLASSES: ["pc"],
    kinds.NAMESPACES: ["ns"],
    kinds.CONFIG_MAPS: ["cm"],
    kinds.STATEFUL_SETS: ["sts"],
    kinds.STORAGE_CLASSES: ["sc"],
}
_CORE_EVENTS = ServedKind("/api/v1", "events", "Event")
_OPENAPI = "/openapi/v3/"
_NAMED = "x-kubernetes-group-version-kind"
_GROUPS = {kind.group: kind.version for kind in kinds.KINDS}
_READ_HERE = "Only the fields that neuron-plugin reads are described here; all others are stored as they are."
_RECORDS: Mapping[tuple[str, str], type] = {
    (resource.group, resource.plural): resource.record
    for resource in (POD_RECORDS, *vars(claims).values(), *vars(objects).values(), *vars(storage).values())
    if isinstance(resource, ApiResource)
}
"""The record type of a kind, by group path and plural."""
_TYPES: Mapping[type, str] = {StrType: "string", IntType: "integer", BoolType: "boolean", DateTimeType: "string"}
"""Names of OpenAPI types."""


def discovery(path: str) -> AnyJson | None:
    """A discovery or OpenAPI document; None for other paths."""
    path = path.rstrip("/") or path
    if path == "/version":
        unknown = dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), "")
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.2-simulated", **unknown}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        served: dict[str, list[AnyJson]] = {}
        for named in (version for group, version in _GROUPS.items() if group.startswith("/apis/")):
            name, _, version = named.partition("/")
            served.setdefault(name, []).append({"groupVersion": named, "version": version})
        groups = [{"name": name, "versions": of, "preferredVersion": of[0]} for name, of in served.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path in _GROUPS:
        resources = [
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": _VERBS,
                "shortNames": _SHORT_NAMES.get(kind, []),
                "categories": ["all"] if kind is kinds.PODS else [],
            }
            for kind in (*kinds.KINDS, _CORE_EVENTS)
            if kind.group == path
        ]
        if path == kinds.PODS.group:
            evictions = {"name": "pods/eviction", "namespaced": True, "group": "policy", "version": "v1"}
            resources.append({**evictions, "singularName": "", "kind": "Eviction", "verbs": ["create"]})
        return {"kind": "APIResourceList", "groupVersion": _GROUPS[path], "resources": resources}
    if path == _OPENAPI.rstrip("/"):
        return {"paths": {group.lstrip("/"): {"serverRelativeURL": _OPENAPI + group.lstrip("/")} for group in _GROUPS}}
    if (group := "/" + path.removeprefix(_OPENAPI)) in _GROUPS and path.startswith(_OPENAPI):
        return _openapi(group)
    return None


def _openapi(group: str) -> AnyJson:
    """A group's OpenAPI document: query parameters of patches, and the fields for ``kubectl explain``."""
    operations, schemas = {}, {}
    parameters = [{"name": word, "in": "query"} for word in ("fieldValidation", "dryRun")]
    for kind in (served for served in kinds.KINDS if served.group == group):
        name, _, version = kind.version.rpartition("/")
        named = {"group": name, "version": version, "kind": kind.kind}
        operations[f"{group}/{kind.plural}/{{name}}"] = {"patch": {"parameters": parameters, _NAMED: named}}
        fields = _described(type_info(_RECORDS.get((group, kind.plural), NoneType)))
        schemas[kind.kind] = fields | {"description": _READ_HERE, _NAMED: [named]}
    document = {"openapi": "3.0.0", "info": {"title": "simulated", "version": "1"}}
    return document | {"paths": operations, "components": {"schemas": schemas}}


def _described(read: object) -> AnyJson:
    """The OpenAPI schema of a record type; a field that is not decoded is an object."""
    match read:
        case UnionType(types=[first, *_]):
            return _described(first)
        case VarTupleType(item_type=item) | ListType(item_type=item):
            return {"type": "array", "items": _described(item)}
        case DictType(value_type=value):
            return {"type": "object", "additionalProperties": _described(value)}
        case StructType(fields=fields):
            return {"type": "object", "properties": {field.encode_name: _described(field.type) for field in fields}}
    return {"type": _TYPES.get(type(read), "object")}


def review(path: str) -> AnyJson | None:
    """The answer to a SelfSubjectAccessReview and the like: everything is allowed. None for other paths."""
    kind, status = _REVIEWS.get(path, ("", {}))
    version = path.removeprefix("/apis/").rpartition("/")[0]
    return {"kind": kind, "apiVersion": version, "metadata": {}, "spec": {}, "status": status} if kind else None


_Fields = Mapping[int, tuple[str, Any]]
"""By field number: the field's name, and the fields of a nested message or a function that converts the value."""
_DELETE_OPTIONS: _Fields = {
    1: ("gracePeriodSeconds", int),
    2: ("preconditions", {1: ("uid", bytes.decode), 2: ("resourceVersion", bytes.decode)}),
    5: ("dryRun", lambda text: [text.decode()]),
}
_EVICTION: _Fields = {
    1: ("metadata", {1: ("name", bytes.decode), 3: ("namespace", bytes.decode)}),
    2: ("deleteOptions", _DELETE_OPTIONS),
}
_EVERY = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
_REVIEWS: Mapping[str, tuple[str, AnyJson]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": ("SelfSubjectAccessReview", {"allowed": True}),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": (
        "SelfSubjectRulesReview",
        {"resourceRules": _EVERY, "nonResourceRules": [], "incomplete": False},
    ),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": ("SelfSubjectReview", {"userInfo": {"username": "everybody"}}),
}
_MESSAGES: Mapping[str, _Fields] = {
    "Namespace": {1: ("metadata", {1: ("name", bytes.decode)})},
    "DeleteOptions": _DELETE_OPTIONS,
    "Eviction": _EVICTION,
    **{kind: {} for kind, _ in _REVIEWS.values()},
}
_ENVELOPE: _Fields = {1: ("type", {2: ("kind", bytes.decode)}), 2: ("raw", bytes)}
_MAGIC = b"k8s\0"


def read_protobuf(body: bytes) -> AnyJson:
    """Read kubectl's protobuf body (``generated.proto`` of policy/v1, meta/v1 and v1).

    Raises:
        ValueError: not protobuf, cut off, or another kind.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("a protobuf body starts with k8s")
    try:
        envelope = _message(body[len(_MAGIC) :], _ENVELOPE)
        kind = (envelope.get("type") or {}).get("kind", "")
        if kind in _MESSAGES:
            return _message(envelope.get("raw", b""), _MESSAGES[kind])
    except (DecodeError, TypeError) as error:
        raise ValueError(f"the protobuf body is cut off, or has other fields: {error}") from error
    raise ValueError(f"{kind or 'nothing'} in protobuf, which is not read here: create it from a file")


def _message(data: bytes, fields: _Fields) -> AnyJson:
    """The named ``fields`` of a message. The library reads them as unknown fields of an empty message."""
    message: AnyJson = {}
    found = UnknownFieldSet(Empty.FromString(data))
    for field in map(found.__getitem__, range(len(found))):
        if field.field_number in fields:
            name, made = fields[field.field_number]
            message[name] = _message(field.data, made) if isinstance(made, dict) else made(field.data)
    return message


def core_event(event: AnyJson) -> AnyJson:
    """An event or a list of events as core/v1."""
    if "items" in event:
        return {**event, "apiVersion": "v1", "items": [*map(core_event, event["items"])]}
    at = event["metadata"]["creationTimestamp"]
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": event["metadata"],
        "involvedObject": event.get("regarding") or {},
        "message": event.get("note", ""),
        "source": {"component": event.get("reportingController", "")},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        **{key: event.get(key, "") for key in ("reason", "type")},
    }


def table(kind: ServedKind, listed: AnyJson, pods: Iterable[AnyJson] = (), *, include: str = "Metadata") -> AnyJson:
    """A list or an object as a Table. Nodes show what ``pods`` leave free.

    Each row carries the object's metadata, or with ``include`` "Object" the whole object, for ``--sort-by``.
    """
    objects = listed["items"] if str(listed.get("kind", "")).endswith("List") else [listed]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    used = _used(pods) if kind is kinds.NODES else Counter()
    whole = include == "Object"
    rows = [
        {"cells": _cells(kind, record, used), "object": record if whole else partial | {"metadata": record["metadata"]}}
        for record in objects
    ]
    columns = [{"name": name, "type": "string"} for name in _COLUMNS.get(kind, ("Name", "Age"))]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": listed.get("metadata") or {}}
    return head | {"columnDefinitions": columns, "rows": rows}


_COLUMNS = {
    kinds.PODS: ("Name", "Ready", "Status", "Node", "Neuron", "Age"),
    kinds.NODES: ("Name", "Status", "Free-Neuron", "Free-NeuronCore", "Age"),
    _CORE_EVENTS: ("Age", "Type", "Reason", "Object", "Message"),
    kinds.EVENTS: ("Age", "Type", "Reason", "Object", "Message"),
    kinds.RESOURCE_CLAIMS: ("Name", "State", "Devices", "Node", "Age"),
    kinds.RESOURCE_SLICES: ("Name", "Node", "Driver", "Pool", "Devices", "Tainted", "Age"),
    kinds.DEVICE_CLASSES: ("Name", "Selectors", "Age"),
}


def _claim_state(claim: AnyJson) -> str:
    """A claim's STATE, such as ``allocated,reserved``."""
    status, deleted = claim.get("status") or {}, bool(claim["metadata"].get("deletionTimestamp"))
    words = ["deleted"] * deleted
    if status.get("allocation"):
        words += ["allocated", *["reserved"] * bool(status.get("reservedFor"))]
    return ",".join(words if deleted or status.get("allocation") else ["pending"])


def _tainted(devices: Collection[AnyJson]) -> str:
    """Devices with taints, as DEVICE=VALUE, or the taint key's name for lack of a value. ``all`` means every device."""
    tainted: dict[str, list[str]] = {}
    for device in devices:
        for taint in device.get("taints") or ():
            tainted.setdefault(taint.get("value") or taint["key"].rpartition("/")[2], []).append(device["name"])
    shown = {why: ["all"] if len(names) == len(devices) > 1 else names for why, names in tainted.items()}
    return ",".join(f"{name}={why}" for why, names in shown.items() for name in names)


def _used(pods: Iterable[AnyJson]) -> Counter[tuple[str, str]]:
    """Requested Neuron by node and resource, as kube-scheduler counts it."""
    used: Counter[tuple[str, str]] = Counter()
    for bound in pods:
        pod = POD_RECORDS.decode(msgspec.json.encode(bound))
        if pod.node_name and not pod.terminal:
            used.update({(pod.node_name, name): amount // 1000 for name, amount in neuron_pod(pod).rules.neuron})
    return used


def _cells(kind: ServedKind, record: AnyJson, used: Counter[tuple[str, str]]) -> list[str]:
    metadata, spec, status = record["metadata"], record.get("spec") or {}, record.get("status") or {}
    name, annotations = metadata["name"], metadata.get("annotations") or {}
    age = datetime.now(UTC) - datetime.fromisoformat(metadata["creationTimestamp"])
    aged = f"{int(age.total_seconds())}s"
    if kind is kinds.PODS:
        ready = sum(bool(container.get("ready")) for container in status.get("containerStatuses") or ())
        ids = annotations.get("NEURON_DEVS") or annotations.get("NEURON_CORES") or ""
        gated = any(condition.get("reason") == "SchedulingGated" for condition in status.get("conditions") or ())
        phase = "SchedulingGated" if gated and spec.get("schedulingGates") else status.get("phase", "")
        shown = "Terminating" if metadata.get("deletionTimestamp") else status.get("reason") or phase
        return [name, f"{ready}/{len(spec.get('containers') or ())}", shown, spec.get("nodeName", ""), ids, aged]
    if kind is kinds.NODES:
        capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
        keys = ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore")
        free = (max(int(allocatable.get(key, 0)) - used[name, key], 0) for key in keys)
        counts = [f"{left}/{capacity.get(key, 0)}" for left, key in zip(free, keys, strict=True)]
        cordoned = ",SchedulingDisabled" if spec.get("unschedulable") else ""
        return [name, ("Ready" if is_ready(record) else "NotReady") + cordoned, *counts, aged]
    if record.get("kind", "Event") == "Event":
        about = record.get("involvedObject") or record.get("regarding") or {}
        named = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
        return [
            aged,
            record.get("type", ""),
            record.get("reason", ""),
            named,
            record.get("message") or record.get("note", ""),
        ]
    if kind is kinds.RESOURCE_CLAIMS:
        results = (status.get("allocation") or {}).get("devices", {}).get("results") or ()
        return [name, _claim_state(record), ",".join(result["device"] for result in results), claim_node(record), aged]
    if kind is kinds.RESOURCE_SLICES:
        pool, devices = (spec.get("pool") or {}).get("name", ""), spec.get("devices") or ()
        counts = [str(len(devices)), _tainted(devices)]
        return [name, spec.get("nodeName", ""), spec.get("driver", ""), pool, *counts, aged]
    if kind is kinds.DEVICE_CLASSES:
        return [name, " && ".join(selector["cel"]["expression"] for selector in spec.get("selectors") or ()), aged]
    return [name, aged]
