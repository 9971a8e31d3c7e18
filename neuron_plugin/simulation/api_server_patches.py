"""What a PATCH makes of an object: JSON merge patches (RFC 7386) and Kubernetes' strategic merge patches.

A strategic merge knows which lists are merged, and by which key of their entries; all other lists are replaced. Facts:
``staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go`` and the ``patchMergeKey`` tags of
``staging/src/k8s.io/api/core/v1/types.go``, of 1.36.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from neuron_plugin.cluster.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal

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
"""Lists of objects that are merged: by the value of this key, an entry is another's."""
_MERGED_VALUES = ("finalizers",)
"""Lists of texts that are merged."""
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
    """Apply a strategic merge patch, with its directives ``$patch``, ``$retainKeys`` and ``$setElementOrder``.

    An entry with ``$patch: delete`` removes the one of its key; without such a one it changes nothing.
    """
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
    """Entries merged by ``key``: in the patch's ``order`` if it gives one, else new ones last."""
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
