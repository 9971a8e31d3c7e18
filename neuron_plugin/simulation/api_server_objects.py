"""The objects of the simulated API server, and the verbs that change them, without HTTP.

HTTP requests and the methods of `SimulatedApiServer` end in the same functions here. The rules are functions of values.
Only what this project and kubectl use is followed. Sources (1.36.2): ``pkg/registry/core/pod/strategy.go`` (status,
grace), ``store.go`` of ``k8s.io/apiserver/pkg/registry/generic/registry`` (preconditions), ``strategicpatch/patch.go``
of apimachinery, and the ``patchMergeKey`` tags of ``k8s.io/api/core/v1/types.go``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.allocation.requests import parse_count
from neuron_plugin.cluster import ApiResource, DecodeError
from neuron_plugin.cluster.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal, ServedKind, Target, conflict, invalid
from neuron_plugin.simulation.api_server_rules import (
    bound,
    check,
    check_change,
    check_claims,
    disrupted,
    evicted,
    gated,
    needs_budget,
    now_text,
    resized,
    selected_by,
    unmet,
)
from neuron_plugin.simulation.api_server_store import Collection, ObjectKey, Stored, Versions

STALE = "the object has been modified; please apply your changes to the latest version and try again"

_RECORDS: Mapping[ServedKind, ApiResource[Any]] = {kinds.PODS: POD_RECORDS, kinds.NODES: NODE_RECORDS}
"""Kinds that every program lists as a whole. An object that our programs cannot read is refused."""
_DEFAULT_GRACE_SECONDS = 30
"""Of a pod (pkg/apis/core/v1/defaults.go)."""
_MAX_GENERATED_STEM = 58
"""Characters before the five random ones (apiserver/pkg/storage/names)."""

_FIXED = (
    *("name", "namespace", "uid", "resourceVersion"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
)
"""Metadata that no write changes."""

Admission = Callable[[AnyJson], AnyJson]
"""Mutates a new object."""


class ApiObjects:
    """All objects. ``admit_pod`` mutates each new pod."""

    def __init__(self, admit_pod: Admission | None = None) -> None:
        self._admit_pod = admit_pod
        self.logs: Callable[[str, str, str], str | None] = lambda *_: None
        """Container logs by namespace, pod and container."""
        self.versions = Versions()
        self.collections: dict[ServedKind, Collection] = {kind: Collection(self.versions) for kind in kinds.KINDS}

    def rehearsal(self) -> ApiObjects:
        """A copy of the objects for a dry run."""
        made = ApiObjects(self._admit_pod)
        made.versions.current = self.versions.current
        made.collections = {kind: kept.copy(made.versions) for kind, kept in self.collections.items()}
        return made

    def create(self, kind: ServedKind, body: AnyJson, namespace: str = "") -> Stored:
        """Create an object. A UID in the body is kept, for repeatable tests."""
        made = created(kind, namespace, body)
        if kind is kinds.PODS:
            made = gated(self._admit_pod(made) if self._admit_pod else made)
        name = made["metadata"]["name"]
        key = (made["metadata"]["namespace"] if kind.namespaced else "", name)
        if self.collections[kind].get(key):
            text = f'{kind.resource} "{name}" already exists'
            raise Refusal(409, text, reason="AlreadyExists", name=name, kind=kind.resource)
        return self._store(kind, key, made)

    def read(self, target: Target) -> Stored:
        """Return an object."""
        stored = self.collections[target.kind].get((target.namespace, target.name))
        if stored is None:
            resource = target.kind.resource
            raise Refusal(404, f'{resource} "{target.name}" not found', name=target.name, kind=resource)
        return stored

    def patch(self, target: Target, change: AnyJson, content_type: str = MERGE_PATCH) -> Stored:
        """Patch an object or a subresource."""
        return self.replace(target, PATCHES[content_type](self.read(target).value, change))

    def replace(self, target: Target, value: AnyJson) -> Stored:
        """Replace an object or a subresource. A deleted object is removed with its last finalizer."""
        old = self.read(target).value
        if target.subresource == "resize":
            value = resized(old, value)
        after = updated(target.kind, old, value, part=target.subresource)
        key = (target.namespace, target.name)
        if is_released(after["metadata"]):
            return self.collections[target.kind].remove(key)
        return self._store(target.kind, key, after)

    def bind(self, namespace: str, name: str, binding: AnyJson) -> AnyJson:
        """Bind a pod: ``pods/binding``. Return the Status of success."""
        pod = self.read(Target(kinds.PODS, namespace, name)).value
        self.collections[kinds.PODS].put((namespace, name), bound(pod, binding))
        details = {"name": name, "kind": "pods"}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def log(self, namespace: str, name: str, container: str) -> str:
        """Return a container's log."""
        self.read(Target(kinds.PODS, namespace, name))
        text = self.logs(namespace, name, container)
        if text is None:
            raise Refusal(400, f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
        return text

    def delete(self, target: Target, options: AnyJson | None = None) -> Stored:
        """Delete an object. One with finalizers, and a running pod with grace, only gets its deletion time."""
        after = deleted(target.kind, self.read(target).value, options or {})
        key = (target.namespace, target.name)
        collection = self.collections[target.kind]
        return collection.remove(key) if after is None else collection.put(key, after)

    def evict(self, namespace: str, name: str, eviction: AnyJson) -> AnyJson:
        """Delete a pod if its disruption budget allows it: ``pods/eviction``. Return the Status of success."""
        options = eviction.get("deleteOptions") or {}
        pod = self.read(Target(kinds.PODS, namespace, name)).value
        if (eviction.get("metadata") or {}).get("name") != name:
            raise Refusal(400, "name in URL does not match name in Eviction object")
        after = deleted(kinds.PODS, pod, options)
        all_budgets = [stored.value for stored in self.collections[kinds.BUDGETS].objects()]
        budgets = [budget for budget in all_budgets if needs_budget(pod) and selected_by(budget)(pod)]
        if len(budgets) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise Refusal(500, text)
        for budget in [disrupted(budget, name) for budget in budgets]:
            self.collections[kinds.BUDGETS].put((namespace, budget["metadata"]["name"]), budget)
        if after is None:
            self.collections[kinds.PODS].remove((namespace, name))
        else:
            self.collections[kinds.PODS].put((namespace, name), evicted(after))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _store(self, kind: ServedKind, key: ObjectKey, value: AnyJson) -> Stored:
        check(kind, value)
        try:
            if record := _RECORDS.get(kind):
                record.decode(msgspec.json.encode(value))
        except DecodeError as error:
            raise Refusal(400, f"{kind.kind} cannot be handled: {error}") from error
        for place, condition in enumerate((value.get("status") or {}).get("conditions") or ()):
            if not condition.get("type"):
                raise invalid(kind.kind, key[1], f"status.conditions[{place}].type: Required value")
        return self.collections[kind].put(key, value)


# Creation.


def created(kind: ServedKind, namespace: str, body: AnyJson) -> AnyJson:
    """Return the new object: the body with name, UID, time and the kind's defaults."""
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
    metadata |= {"uid": metadata.get("uid") or str(uuid.uuid4()), "creationTimestamp": now_text()}
    if kind.namespaced:
        metadata["namespace"] = namespace
    made = {**body, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}
    if kind is kinds.PODS:
        spec = {"schedulerName": "default-scheduler", "restartPolicy": "Always", **(made.get("spec") or {})}
        spec = {"terminationGracePeriodSeconds": _DEFAULT_GRACE_SECONDS, "securityContext": {}, **spec}
        status = {"phase": "Pending", **(made.get("status") or {})}
        return made | {"spec": _defaulted(spec), "status": status}
    if kind is kinds.NODES:
        status = dict(made.get("status") or {})
        capacity = _quantities(status.get("capacity") or {})
        allocatable = _quantities(status.get("allocatable") or capacity)
        status |= {"capacity": capacity, "allocatable": allocatable}
        return made | {"spec": made.get("spec") or {}, "status": status}
    if kind is kinds.RESOURCE_CLAIMS:
        return made | {"spec": _claim_defaults(made.get("spec") or {}), "status": {}}
    return made


def _claim_defaults(spec: AnyJson) -> AnyJson:
    """A claim's spec with default mode and count (``pkg/apis/resource/v1/defaults.go``)."""
    devices, requests = dict(spec.get("devices") or {}), []
    for request in devices.get("requests") or ():
        exact = {"allocationMode": "ExactCount", **(request.get("exactly") or {})}
        exact |= {"count": exact.get("count", 1)} if exact["allocationMode"] == "ExactCount" else {}
        requests.append(request if request.get("exactly") is None else {**request, "exactly": exact})
    return spec | {"devices": devices | ({"requests": requests} if requests else {})}


def _defaulted(spec: AnyJson) -> AnyJson:
    """A pod's spec with quantities as text, requests defaulted from limits, and without empty gates."""
    filled = {name: value for name, value in spec.items() if name != "schedulingGates" or value}
    for field in spec.keys() & {"containers", "initContainers"}:
        filled[field] = [dict(container) for container in spec[field]]
        for container in filled[field]:  # limits are default requests (pkg/apis/core/v1/defaults.go)
            resources = container.get("resources") or {}
            limits = _quantities(resources.get("limits") or {})
            requests = {**limits, **_quantities(resources.get("requests") or {})}
            amounts = {
                name: quantities for name, quantities in (("limits", limits), ("requests", requests)) if quantities
            }
            container["resources"] = {**resources, **amounts}
    return filled


def _quantities(amounts: AnyJson) -> dict[str, str]:
    for name, amount in amounts.items():
        if "/" in name:  # extended resources are whole numbers
            parse_count(str(amount))
    return {name: str(amount) for name, amount in amounts.items()}


# Changes.


def updated(kind: ServedKind, old: AnyJson, new: AnyJson, *, part: str) -> AnyJson:
    """Return the object after an update, once preconditions and the kind's rules are checked.

    ``part`` is the subresource. An update of the status changes only status and metadata; any other keeps the status.
    """
    status = part == "status"
    before, after = old["metadata"], new.get("metadata") or {}
    name, version, uid = before["name"], after.get("resourceVersion", ""), after.get("uid") or before["uid"]
    if version and version != before["resourceVersion"]:
        raise conflict(kind.resource, name, STALE)
    if uid != before["uid"]:
        raise invalid(kind.kind, name, f'metadata.uid: Invalid value: "{uid}": field is immutable')
    if status and kind is kinds.RESOURCE_CLAIMS:
        after = before  # a claim's status update changes no finalizers (ResetObjectMetaForStatus)
    metadata = {key: value for key, value in after.items() if value not in ({}, None)}
    for fixed in _FIXED:
        metadata.pop(fixed, None)
        if fixed in before:
            metadata[fixed] = before[fixed]
    kept, taken = (old, {"status": new.get("status")}) if status else (new, {"status": old.get("status")})
    parts = {key: value for key, value in {**kept, **taken}.items() if value is not None}
    if kind is kinds.PODS and not status:
        parts["spec"] = _defaulted(parts.get("spec") or {})
        if part != "resize":
            check_change(old, parts)
    check_claims(kind, old, parts)
    return {**parts, "apiVersion": kind.version, "kind": kind.kind, "metadata": metadata}


# Deletions.


def deleted(kind: ServedKind, value: AnyJson, options: AnyJson) -> AnyJson | None:
    """Return the object after a deletion, or None if it is removed.

    An object with finalizers, and a running pod with a grace period, only get their deletion time.
    """
    metadata = value["metadata"]
    if why := unmet(metadata, options.get("preconditions") or {}):
        raise conflict(kind.resource, metadata["name"], why)
    grace = 0
    if kind is kinds.PODS and value["spec"].get("nodeName") and value["status"].get("phase") not in TERMINAL_PHASES:
        asked = options.get("gracePeriodSeconds")
        grace = int(value["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
    if grace == 0 and not metadata.get("finalizers"):
        return None
    left = metadata.get("deletionGracePeriodSeconds", grace + 1)  # grace is only ever shortened
    timing = {"deletionTimestamp": now_text(), "deletionGracePeriodSeconds": grace}
    return value | {"metadata": metadata | timing} if grace < left else value


def is_released(metadata: AnyJson) -> bool:
    """Whether a deleted object has no finalizers and no grace left."""
    return metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")


# Patches.

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that a strategic merge patch merges, with the key that identifies an entry. It replaces other lists."""
_MERGED_VALUES = ("finalizers",)
"""Lists of strings that it merges."""
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


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


def json_patched(value: Any, patch: Iterable[AnyJson]) -> Any:
    """Apply a JSON patch (RFC 6902) without ``move`` and ``copy``."""
    patched = msgspec.json.decode(msgspec.json.encode(value))
    for step in patch:
        operation, path = step["op"], str(step["path"])
        *above, last = (word.replace("~1", "/").replace("~0", "~") for word in path.split("/")[1:])
        if operation not in {"add", "remove", "replace", "test"}:
            raise Refusal(400, f"Unexpected kind: {operation}")
        met = True
        try:
            place: Any = patched
            for word in above:
                place = place[int(word) if isinstance(place, list) else word]
            in_list = isinstance(place, list)
            key: Any = last if not in_list else len(place) if last == "-" else int(last)
            if operation == "add" and in_list:
                place.insert(key, step["value"])
            elif operation == "add":
                place[key] = step["value"]
            elif operation == "test":
                met = place[key] == step["value"]
            elif operation == "remove":
                del place[key]
            elif operation == "replace":
                place[key] = step["value"]
        except (IndexError, KeyError, TypeError, ValueError):
            met = False
        if not met:
            text = "the server rejected our request due to an error in our request"
            raise Refusal(422, f"{text}: {operation} {path}")
    return patched


def strategically_patched(value: AnyJson, patch: AnyJson) -> AnyJson:
    """Apply a strategic merge patch with ``$patch``, ``$retainKeys``, ``$setElementOrder`` and list deletions."""
    if (directive := patch.get("$patch", "merge")) != "merge":
        if directive not in {"replace", "delete"}:
            raise Refusal(400, f"Unknown patch type: {directive}")
        return {} if directive == "delete" else {name: entry for name, entry in patch.items() if name != "$patch"}
    kept = patch.get("$retainKeys")
    merged = {name: entry for name, entry in value.items() if kept is None or name in kept}
    for name, change in patch.items():
        if name.startswith(_DELETE):
            listed = name.removeprefix(_DELETE)
            merged[listed] = [entry for entry in merged.get(listed) or [] if entry not in change]
        if name.startswith("$"):
            continue
        present = merged.get(name)
        if change is None:
            merged.pop(name, None)
        elif isinstance(change, dict):
            merged[name] = strategically_patched(present if isinstance(present, dict) else {}, change)
        elif isinstance(change, list) and name in _MERGE_KEYS:
            merged[name] = _merged_list(_MERGE_KEYS[name], present or [], change, patch.get(_ORDER + name) or [])
        elif isinstance(change, list) and name in _MERGED_VALUES:
            merged[name] = list(dict.fromkeys([*(present or []), *change]))
        else:
            merged[name] = change
    return merged


def _merged_list(key: str, present: list[Any], patch: list[Any], order: list[Any]) -> list[AnyJson]:
    """Merge entries by ``key``. They have the patch's ``order`` if it gives one, else new entries come last."""
    for entry in patch:
        if not isinstance(entry, dict) or (key not in entry and entry.get("$patch") != "replace"):
            raise Refusal(400, f"map: {entry} does not contain declared merge key: {key}")
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if entry.get("$patch") != "replace"]
    entries = {entry[key]: entry for entry in present}
    for entry in patch:
        if entry.get("$patch") == "delete":
            entries.pop(entry[key], None)
        else:
            entries[entry[key]] = strategically_patched(entries.get(entry[key], {}), entry)
    places = {entry[key]: place for place, entry in enumerate(order)}
    return sorted(entries.values(), key=lambda entry: places.get(entry[key], len(places)))


JSON_PATCH = "application/json-patch+json"
PATCHES: Mapping[str, Callable[[Any, Any], Any]] = {
    JSON_PATCH: json_patched,
    MERGE_PATCH: merge_patched,
    STRATEGIC_MERGE_PATCH: strategically_patched,
}
"""The patch formats by content type."""
