"""What the API server makes of what it is told: defaults, patches, bindings, deletions, each as a function of values.

Facts: ``pkg/registry/core/pod/storage/storage.go`` (binding), ``pkg/registry/core/pod/strategy.go`` (status keeps
metadata and ignores the spec; grace), ``staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go``
(preconditions), all of 1.36.2. Only what this project's programs touch is followed, and no admission. What may not be
kept is ``api_server_validation``'s to say.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS, ServedKind
from neuron_plugin.simulation.api_server_status import JsonObject, bad_request, conflict, invalid
from neuron_plugin.simulation.api_server_validation import check_prefix

_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
_DEFAULT_GRACE_SECONDS = 30
_MAX_GENERATED_STEM = 58
STALE = "the object has been modified; please apply your changes to the latest version and try again"


def now_text() -> str:
    """Return the time as objects carry it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def created(kind: ServedKind, namespace: str, body: JsonObject) -> JsonObject:
    """Return the object that a create makes of its body: names, UID, time and the kind's defaults.

    Raises:
        Refusal: 400 or 422, the body cannot be created.
    """
    metadata = dict(body.get("metadata") or {})
    claimed, wanted = (body.get("apiVersion", kind.version), body.get("kind", kind.kind)), (kind.version, kind.kind)
    if claimed != wanted:
        raise bad_request(f'{claimed[1]} in version "{claimed[0]}" cannot be handled as a {kind.kind}: no kind matches')
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if metadata.get("namespace", namespace) != namespace and kind.namespaced:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    name = metadata.get("name") or _generated(kind, metadata.pop("generateName", ""))
    if not name:
        raise invalid(kind.kind, "", "metadata.name: Required value: name or generateName is required")
    metadata |= {"name": name, "uid": metadata.get("uid") or str(uuid.uuid4()), "creationTimestamp": now_text()}
    if kind.namespaced:
        metadata["namespace"] = namespace
    made = {**body, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}
    return _with_defaults(kind, made)


def _generated(kind: ServedKind, prefix: str) -> str:
    if not prefix:
        return ""
    check_prefix(kind, prefix)
    return f"{prefix[:_MAX_GENERATED_STEM]}{uuid.uuid4().hex[:5]}"


def _with_defaults(kind: ServedKind, made: JsonObject) -> JsonObject:
    if kind is PODS:
        spec = {"schedulerName": "default-scheduler", "restartPolicy": "Always", **(made.get("spec") or {})}
        spec = {"terminationGracePeriodSeconds": _DEFAULT_GRACE_SECONDS, **spec}
        for part in ("containers", "initContainers"):
            if part in spec:
                spec[part] = [_with_requests(container) for container in spec[part]]
        return made | {"spec": spec, "status": {"phase": "Pending", **(made.get("status") or {})}}
    if kind is NODES:
        status = dict(made.get("status") or {})
        capacity = _quantities(status.get("capacity") or {})
        allocatable = _quantities(status.get("allocatable") or capacity)
        return made | {
            "spec": made.get("spec") or {},
            "status": {**status, "capacity": capacity, "allocatable": allocatable},
        }
    return made


def _with_requests(container: JsonObject) -> JsonObject:
    """Quantities become texts, and a limit without a request is requested (``pkg/apis/core/v1/defaults.go``)."""
    resources = container.get("resources") or {}
    limits = _quantities(resources.get("limits") or {})
    requests = {**limits, **_quantities(resources.get("requests") or {})}
    filled = {name: amounts for name, amounts in (("limits", limits), ("requests", requests)) if amounts}
    return container | {"resources": {**resources, **filled}}


def _quantities(amounts: JsonObject) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def merge_patched(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): objects merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patched(merged.get(name), change)
    return merged


def strategically_patched(value: JsonObject, patch: JsonObject) -> JsonObject:
    """Apply a strategic merge patch, of which only the list that clients here send is known: conditions, by type.

    An entry with ``$patch: delete`` takes out the one of its type; without such a one it changes nothing
    (``staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go``).
    """
    told = (patch.get("status") or {}).get("conditions")
    merged: JsonObject = merge_patched(value, patch)
    if told is not None:
        present = {condition["type"]: condition for condition in (value.get("status") or {}).get("conditions") or []}
        for condition in told:
            if condition.get("$patch") == "delete":
                present.pop(condition["type"], None)
            else:
                present[condition["type"]] = {**present.get(condition["type"], {}), **condition}
        merged["status"]["conditions"] = list(present.values())
    return merged


def updated(kind: ServedKind, old: JsonObject, new: JsonObject, *, status: bool, patch: bool) -> JsonObject:
    """Return what an update or a patch makes of the old object, after its preconditions.

    ``status`` is the subresource: it takes status and metadata, the object itself all but the status.

    Raises:
        Refusal: 409 or 422, a precondition does not hold.
    """
    before, after = old["metadata"], new.get("metadata") or {}
    name = before["name"]
    _check_version(kind, name, before["resourceVersion"], after.get("resourceVersion", ""), patch=patch)
    wanted_uid = after.get("uid") or before["uid"]
    if wanted_uid != before["uid"]:
        raise _other_uid(kind, name, wanted_uid, before["uid"], patch=patch)
    metadata = {key: value for key, value in after.items() if value not in ({}, None)}
    for fixed in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
        metadata.pop(fixed, None)
        if fixed in before:
            metadata[fixed] = before[fixed]
    kept, taken = (old, {"status": new.get("status")}) if status else (new, {"status": old.get("status")})
    parts = {key: value for key, value in {**kept, **taken}.items() if value is not None}
    return {**parts, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}


def _check_version(kind: ServedKind, name: str, present: str, wanted: str, *, patch: bool) -> None:
    if not wanted and kind is LEASES and not patch:
        raise invalid(kind.kind, name, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    if wanted and wanted != present:
        raise conflict(kind.resource, name, STALE)


def _other_uid(kind: ServedKind, name: str, wanted: str, present: str, *, patch: bool) -> Exception:
    if patch:
        return invalid(kind.kind, name, f'metadata.uid: Invalid value: "{wanted}": field is immutable')
    return conflict(kind.resource, name, _uid_precondition(wanted, present))


def _uid_precondition(wanted: str, present: str) -> str:
    return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}"


def bound(pod: JsonObject, binding: JsonObject, *, keep_annotations: bool = True) -> JsonObject:
    """Return the pod as a binding leaves it: node, annotations and condition in one step.

    Raises:
        Refusal: 400 or 409, for the reasons and with the texts of the real server.
    """
    metadata, wanted = pod["metadata"], binding.get("metadata") or {}
    name, node = metadata["name"], (binding.get("target") or {}).get("name", "")
    if wanted.get("name", name) != name:
        raise bad_request("name in URL does not match name in Binding object")
    if not node or binding["target"].get("kind", "Node") not in {"", "Node"}:
        raise invalid("Binding", name, "target: Invalid value: a node with a name is expected")
    _check_binding(pod, wanted)
    annotations = {
        **(metadata.get("annotations") or {}),
        **((wanted.get("annotations") or {}) if keep_annotations else {}),
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
    told = [entry for entry in pod["status"].get("conditions") or [] if entry["type"] != scheduled["type"]]
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    return pod | {
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "spec": pod["spec"] | {"nodeName": node},
        "status": status | {"conditions": [*told, scheduled]},
    }


def _check_binding(pod: JsonObject, wanted: JsonObject) -> None:
    why = _why_not_bound(pod, wanted)
    if why:
        raise conflict("pods/binding", pod["metadata"]["name"], why)


def _why_not_bound(pod: JsonObject, wanted: JsonObject) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    uid, version = wanted.get("uid") or metadata["uid"], wanted.get("resourceVersion") or metadata["resourceVersion"]
    if uid != metadata["uid"]:
        return _uid_precondition(uid, metadata["uid"])
    if version != metadata["resourceVersion"]:
        versions = f"{version}, ResourceVersion in object meta: {metadata['resourceVersion']}"
        return f"Precondition failed: ResourceVersion in precondition: {versions}"
    if metadata.get("deletionTimestamp"):
        return f"pod {metadata['name']} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {metadata["name"]} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {metadata['name']} has non-empty .spec.schedulingGates"
    return ""


def deleted(kind: ServedKind, value: JsonObject, options: JsonObject) -> JsonObject | None:
    """Return the object as a deletion leaves it: a bound, living pod only gets its deletion time; None is gone.

    Raises:
        Refusal: 409, the precondition of the options does not hold.
    """
    metadata = value["metadata"]
    wanted = (options.get("preconditions") or {}).get("uid")
    if wanted not in (None, "", metadata["uid"]):
        raise conflict(kind.resource, metadata["name"], _uid_precondition(wanted, metadata["uid"]))
    grace = _grace_seconds(value, options) if kind is PODS else 0
    if grace == 0:
        return None
    if metadata.get("deletionTimestamp"):
        return value
    timing = {"deletionTimestamp": now_text(), "deletionGracePeriodSeconds": grace}
    return value | {"metadata": metadata | timing}


def _grace_seconds(pod: JsonObject, options: JsonObject) -> int:
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in _TERMINAL_PHASES:
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
