"""What kubectl asks of an API server beyond the objects: which kinds there are, tables to print, and old-style events.

kubectl 1.28 to 1.36 needs no more for get, describe, apply, delete, cordon and label. The OpenAPI document says one
thing: the server checks fields itself, so kubectl does not ask for schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from neuron_plugin.simulation.api_server_kinds import EVENTS, KINDS, NODES, PODS, JsonObject, ServedKind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "watch"]
_SHORT_NAMES = {PODS: ["po"], NODES: ["no"]}
_CORE_EVENTS = ServedKind("/api/v1", "v1", "events", "Event")
_OPENAPI = "/openapi/v3/"
_GROUPS = {kind.group: kind.version for kind in KINDS}


def discovery(path: str) -> JsonObject | None:
    """The answer to a GET that names no object; None for other paths."""
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.2-simulated"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        named = [version for group, version in _GROUPS.items() if group.startswith("/apis/")]
        versions = [{"groupVersion": each, "version": each.rpartition("/")[2]} for each in named]
        groups = [
            {"name": each["groupVersion"].partition("/")[0], "versions": [each], "preferredVersion": each}
            for each in versions
        ]
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
            }
            for kind in (*KINDS, _CORE_EVENTS)
            if kind.group == path
        ]
        return {"kind": "APIResourceList", "groupVersion": _GROUPS[path], "resources": resources}
    if path == _OPENAPI.rstrip("/"):
        return {"paths": {each.lstrip("/"): {"serverRelativeURL": _OPENAPI + each.lstrip("/")} for each in _GROUPS}}
    if (group := "/" + path.removeprefix(_OPENAPI)) in _GROUPS and path.startswith(_OPENAPI):
        operations = {}
        for kind in (each for each in KINDS if each.group == group):
            name, _, version = kind.version.rpartition("/")
            patch = {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "x-kubernetes-group-version-kind": {"group": name, "version": version, "kind": kind.kind},
            }
            operations[f"{group}/{kind.plural}/{{name}}"] = {"patch": patch}
        return {"openapi": "3.0.0", "info": {"title": "simulated", "version": "1"}, "paths": operations}
    return None


def core_events(events: Iterable[JsonObject], namespace: str, selector: str) -> JsonObject:
    """Events as ``/api/v1`` shows them; ``selector`` may name fields of the object that they are about."""
    wanted = dict(term.partition("=")[::2] for term in selector.split(",") if "=" in term)
    found = []
    for each in events:
        about, at = each.get("regarding") or {}, each["metadata"]["creationTimestamp"]
        fields = {f"involvedObject.{key}": value for key, value in about.items()}
        if namespace in {"", each["metadata"]["namespace"]} and wanted.items() <= {**wanted, **fields}.items():
            found.append(
                {
                    "metadata": each["metadata"],
                    "involvedObject": about,
                    "message": each.get("note", ""),
                    "source": {"component": each.get("reportingController", "")},
                    "firstTimestamp": at,
                    "lastTimestamp": at,
                    "count": 1,
                    **{key: each.get(key, "") for key in ("reason", "type")},
                }
            )
    return {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": found}


def table(kind: ServedKind, listed: JsonObject) -> JsonObject:
    """A list, or a single object, as kubectl prints it."""
    objects = listed["items"] if str(listed.get("kind", "")).endswith("List") else [listed]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    rows = [{"cells": _cells(kind, each), "object": partial | {"metadata": each["metadata"]}} for each in objects]
    columns = [{"name": name, "type": "string"} for name in _COLUMNS.get(kind, ("Name", "Age"))]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": listed.get("metadata") or {}}
    return head | {"columnDefinitions": columns, "rows": rows}


_COLUMNS = {
    PODS: ("Name", "Ready", "Status", "Node", "Neuron", "Age"),
    NODES: ("Name", "Status", "Neuron", "NeuronCore", "Age"),
    _CORE_EVENTS: ("Age", "Type", "Reason", "Object", "Message"),
    EVENTS: ("Age", "Type", "Reason", "Object", "Message"),
}


def _cells(kind: ServedKind, each: JsonObject) -> list[str]:
    metadata, spec, status = each["metadata"], each.get("spec") or {}, each.get("status") or {}
    name, annotations = metadata["name"], metadata.get("annotations") or {}
    age = datetime.now(UTC) - datetime.fromisoformat(metadata["creationTimestamp"])
    aged = f"{int(age.total_seconds())}s"
    if kind is PODS:
        ready = sum(bool(one.get("ready")) for one in status.get("containerStatuses") or ())
        ids = annotations.get("NEURON_DEVS") or annotations.get("NEURON_CORES") or ""
        gated = any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ())
        phase = "SchedulingGated" if gated and spec.get("schedulingGates") else status.get("phase", "")
        shown = "Terminating" if metadata.get("deletionTimestamp") else status.get("reason") or phase
        return [name, f"{ready}/{len(spec.get('containers') or ())}", shown, spec.get("nodeName", ""), ids, aged]
    if kind is NODES:
        capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
        keys = ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore")
        counts = [f"{allocatable.get(key, 0)}/{capacity.get(key, 0)}" for key in keys]
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
        cordoned = ",SchedulingDisabled" if spec.get("unschedulable") else ""
        return [name, ("Ready" if ready else "NotReady") + cordoned, *counts, aged]
    if each.get("kind", "Event") == "Event":
        about = each.get("involvedObject") or each.get("regarding") or {}
        named = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
        return [aged, each.get("type", ""), each.get("reason", ""), named, each.get("message") or each.get("note", "")]
    return [name, aged]
