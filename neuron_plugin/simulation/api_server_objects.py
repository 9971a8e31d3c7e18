"""The simulated API server without HTTP: what each verb makes of the objects it keeps.

Tests, the demo and planning call `ApiObjects` directly to play the user, the scheduler or the kubelet; the programs
under test come through HTTP and end in the same functions. The rules are functions of values. Facts:
``pkg/registry/core/pod/storage/storage.go`` (binding), ``pkg/registry/core/pod/strategy.go`` (status keeps metadata and
ignores the spec; grace), ``store.go`` of ``k8s.io/apiserver/pkg/registry/generic/registry`` (preconditions), all of
1.36.2. Only what this project's programs touch is followed, and no admission.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.allocation import parse_count
from neuron_plugin.cluster import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from neuron_plugin.simulation.api_server_kinds import (
    KINDS,
    NODES,
    PODS,
    JsonObject,
    Refusal,
    ServedKind,
    Target,
    conflict,
    invalid,
)
from neuron_plugin.simulation.api_server_store import Collection, Key, Stored, Versions

STALE = "the object has been modified; please apply your changes to the latest version and try again"

_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
_DEFAULT_GRACE_SECONDS = 30
_MAX_GENERATED_STEM = 58


class ApiObjects:
    """Every object of every kind."""

    def __init__(self) -> None:
        self.versions = Versions()
        self.collections: dict[ServedKind, Collection] = {kind: Collection(self.versions) for kind in KINDS}

    def create(self, kind: ServedKind, body: JsonObject, namespace: str = "") -> Stored:
        """Create an object. A UID in the body is kept, so that a test can repeat itself.

        Raises:
            Refusal: 409, the name is taken; 400 or 422, the body is wrong.
        """
        made = created(kind, namespace, body)
        name = made["metadata"]["name"]
        key = (made["metadata"]["namespace"] if kind.namespaced else "", name)
        if self.collections[kind].get(key):
            text = f'{kind.resource} "{name}" already exists'
            raise Refusal(409, text, reason="AlreadyExists", name=name, kind=kind.resource)
        return self._store(kind, key, made)

    def read(self, target: Target) -> Stored:
        """Return an object as it is.

        Raises:
            Refusal: 404, there is none.
        """
        found = self.collections[target.kind].get((target.namespace, target.name))
        if found is None:
            resource = target.kind.resource
            raise Refusal(404, f'{resource} "{target.name}" not found', name=target.name, kind=resource)
        return found

    def patch(self, target: Target, change: JsonObject, content_type: str = MERGE_PATCH) -> Stored:
        """Patch an object, or its status.

        Raises:
            Refusal: 404, there is none; 409, another version; 400 or 422, another UID, or it would be wrong.
        """
        old = self.read(target).value
        after = updated(target.kind, old, PATCHES[content_type](old, change), status=target.subresource == "status")
        return self._store(target.kind, (target.namespace, target.name), after)

    def bind(self, namespace: str, name: str, binding: JsonObject) -> JsonObject:
        """Bind a pod: ``pods/binding``. Return the Status of success.

        Raises:
            Refusal: 404, 409 or 400, as `bound` says.
        """
        pod = self.read(Target(PODS, namespace, name)).value
        self.collections[PODS].put((namespace, name), bound(pod, binding))
        details = {"name": name, "kind": "pods"}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def delete(self, target: Target, options: JsonObject | None = None) -> Stored:
        """Delete an object; a pod on a node only begins to end, until deleted with a grace period of 0.

        Raises:
            Refusal: 404, there is none; 409, another UID.
        """
        after = deleted(target.kind, self.read(target).value, options or {})
        key = (target.namespace, target.name)
        collection = self.collections[target.kind]
        return collection.remove(key) if after is None else collection.put(key, after)

    def _store(self, kind: ServedKind, key: Key, value: JsonObject) -> Stored:
        return self.collections[kind].put(key, value)


# Creation.


def created(kind: ServedKind, namespace: str, body: JsonObject) -> JsonObject:
    """Return the object that a create makes of its body: names, UID, time and the kind's defaults.

    Raises:
        Refusal: 400 or 422, the body cannot be created.
    """
    metadata = dict(body.get("metadata") or {})
    claimed, wanted = (body.get("apiVersion", kind.version), body.get("kind", kind.kind)), (kind.version, kind.kind)
    if claimed != wanted:
        text = f'{claimed[1]} in version "{claimed[0]}" cannot be handled as a {kind.kind}: no kind matches'
        raise Refusal(400, text)
    if metadata.get("resourceVersion"):
        raise Refusal(400, "resourceVersion should not be set on objects to be created")
    if metadata.get("namespace", namespace) != namespace and kind.namespaced:
        raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
    prefix = metadata.pop("generateName", "") if not metadata.get("name") else ""
    if prefix:
        metadata["name"] = f"{prefix[:_MAX_GENERATED_STEM]}{uuid.uuid4().hex[:5]}"
    if not metadata.get("name"):
        raise invalid(kind.kind, "", "metadata.name: Required value: name or generateName is required")
    metadata |= {"uid": metadata.get("uid") or str(uuid.uuid4()), "creationTimestamp": _now_text()}
    if kind.namespaced:
        metadata["namespace"] = namespace
    made = {**body, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}
    if kind is PODS:
        spec = {"schedulerName": "default-scheduler", "restartPolicy": "Always", **(made.get("spec") or {})}
        spec = {"terminationGracePeriodSeconds": _DEFAULT_GRACE_SECONDS, **spec}
        for part in spec.keys() & {"containers", "initContainers"}:
            spec[part] = [dict(container) for container in spec[part]]
            for container in spec[part]:  # a limit without a request is requested (pkg/apis/core/v1/defaults.go)
                resources = container.get("resources") or {}
                limits = _quantities(resources.get("limits") or {})
                requests = {**limits, **_quantities(resources.get("requests") or {})}
                filled = {name: amounts for name, amounts in (("limits", limits), ("requests", requests)) if amounts}
                container["resources"] = {**resources, **filled}
        return made | {"spec": spec, "status": {"phase": "Pending", **(made.get("status") or {})}}
    if kind is NODES:
        status = dict(made.get("status") or {})
        capacity = _quantities(status.get("capacity") or {})
        allocatable = _quantities(status.get("allocatable") or capacity)
        status |= {"capacity": capacity, "allocatable": allocatable}
        return made | {"spec": made.get("spec") or {}, "status": status}
    return made


def _quantities(amounts: JsonObject) -> dict[str, str]:
    for name, amount in amounts.items():
        if "/" in name:  # an extended resource is counted
            parse_count(str(amount))
    return {name: str(amount) for name, amount in amounts.items()}


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Patches.


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

    An entry with ``$patch: delete`` removes the one of its type; without such a one it changes nothing
    (``staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go``).
    """
    conditions = (patch.get("status") or {}).get("conditions")
    merged: JsonObject = merge_patched(value, patch)
    if conditions is not None:
        present = {condition["type"]: condition for condition in (value.get("status") or {}).get("conditions") or []}
        for condition in conditions:
            if condition.get("$patch") == "delete":
                present.pop(condition["type"], None)
            else:
                present[condition["type"]] = {**present.get(condition["type"], {}), **condition}
        merged["status"]["conditions"] = list(present.values())
    return merged


PATCHES = {MERGE_PATCH: merge_patched, STRATEGIC_MERGE_PATCH: strategically_patched}
"""The patch formats by content type."""


def updated(kind: ServedKind, old: JsonObject, new: JsonObject, *, status: bool) -> JsonObject:
    """Return what a patch makes of the old object, after its preconditions.

    ``status`` is the subresource: it takes status and metadata, the object itself all but the status.

    Raises:
        Refusal: 409 or 422, a precondition does not hold.
    """
    before, after = old["metadata"], new.get("metadata") or {}
    name, version, uid = before["name"], after.get("resourceVersion", ""), after.get("uid") or before["uid"]
    if version and version != before["resourceVersion"]:
        raise conflict(kind.resource, name, STALE)
    if uid != before["uid"]:
        raise invalid(kind.kind, name, f'metadata.uid: Invalid value: "{uid}": field is immutable')
    metadata = {key: value for key, value in after.items() if value not in ({}, None)}
    for fixed in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
        metadata.pop(fixed, None)
        if fixed in before:
            metadata[fixed] = before[fixed]
    kept, taken = (old, {"status": new.get("status")}) if status else (new, {"status": old.get("status")})
    parts = {key: value for key, value in {**kept, **taken}.items() if value is not None}
    return {**parts, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}


def _uid_precondition(wanted: str, present: str) -> str:
    return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}"


# Bindings and deletions.


def bound(pod: JsonObject, binding: JsonObject) -> JsonObject:
    """Return the pod as a binding leaves it: node, annotations and condition in one step.

    Raises:
        Refusal: 400 or 409, for the reasons and with the texts of the real server.
    """
    metadata, wanted = pod["metadata"], binding.get("metadata") or {}
    name, node = metadata["name"], (binding.get("target") or {}).get("name", "")
    if wanted.get("name", name) != name:
        raise Refusal(400, "name in URL does not match name in Binding object")
    if not node or binding["target"].get("kind", "Node") not in {"", "Node"}:
        raise invalid("Binding", name, "target: Invalid value: a node with a name is expected")
    if why := _why_not_bound(pod, wanted):
        raise conflict("pods/binding", name, why)
    annotations = {**(metadata.get("annotations") or {}), **(wanted.get("annotations") or {})}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now_text()}
    others = [entry for entry in pod["status"].get("conditions") or [] if entry["type"] != scheduled["type"]]
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    return pod | {
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "spec": pod["spec"] | {"nodeName": node},
        "status": status | {"conditions": [*others, scheduled]},
    }


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
    if kind is not PODS or not value["spec"].get("nodeName") or value["status"].get("phase") in _TERMINAL_PHASES:
        return None
    asked = options.get("gracePeriodSeconds")
    grace = int(value["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
    if grace == 0:
        return None
    if metadata.get("deletionTimestamp"):
        return value
    timing = {"deletionTimestamp": _now_text(), "deletionGracePeriodSeconds": grace}
    return value | {"metadata": metadata | timing}
