"""The stand-in API server without HTTP: what each verb does to the objects it keeps.

Tests, the demo and the planner call these directly to play the user, the scheduler or the kubelet; the programs under
test come through HTTP and end up in the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_plugin.cluster import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from neuron_plugin.simulation import api_server_rules as rules
from neuron_plugin.simulation.api_server_kinds import KINDS, PODS, ServedKind, Target
from neuron_plugin.simulation.api_server_status import JsonObject, already_exists, not_found, success
from neuron_plugin.simulation.api_server_store import Collection, Key, Stored, Versions
from neuron_plugin.simulation.api_server_validation import check

if TYPE_CHECKING:
    from collections.abc import Callable

PATCHES: dict[str, Callable[[JsonObject, JsonObject], JsonObject]] = {
    MERGE_PATCH: rules.merge_patched,
    STRATEGIC_MERGE_PATCH: rules.strategically_patched,
}


class ApiObjects:
    """Every object of every kind.

    ``keep_binding_annotations`` False plays a server that forgets the annotations of a binding.
    """

    def __init__(self) -> None:
        self.keep_binding_annotations = True
        self.versions = Versions()
        self.collections: dict[ServedKind, Collection] = {kind: Collection(self.versions) for kind in KINDS}

    def create(self, kind: ServedKind, body: JsonObject, namespace: str = "") -> Stored:
        """Create an object. A UID in the body is kept, so that a story can be told twice.

        Raises:
            Refusal: 409, the name is taken; 400 or 422, the body is wrong.
        """
        made = rules.created(kind, namespace, body)
        check(kind, made)
        key = _key(kind, made)
        if self.collections[kind].get(key):
            raise already_exists(kind.resource, key[1])
        return self.collections[kind].put(key, made)

    def read(self, target: Target) -> Stored:
        """Return an object as it is.

        Raises:
            Refusal: 404, there is none.
        """
        found = self.collections[target.kind].get((target.namespace, target.name))
        if found is None:
            raise not_found(target.kind.resource, target.name)
        return found

    def update(self, target: Target, body: JsonObject) -> Stored:
        """Replace an object, or its status.

        Raises:
            Refusal: 404, there is none; 409, another version or UID; 400 or 422, it would be wrong.
        """
        return self._change(target, body, patch=False)

    def patch(self, target: Target, change: JsonObject, content_type: str = MERGE_PATCH) -> Stored:
        """Patch an object, or its status.

        Raises:
            Refusal: 404, there is none; 409, another version; 400 or 422, another UID, or it would be wrong.
        """
        return self._change(target, PATCHES[content_type](self.read(target).value, change), patch=True)

    def bind(self, namespace: str, name: str, binding: JsonObject) -> JsonObject:
        """Bind a pod: ``pods/binding``.

        Raises:
            Refusal: 404, 409 or 400, as ``rules.bound`` says.
        """
        pod = self.read(Target(PODS, namespace, name)).value
        after = rules.bound(pod, binding, keep_annotations=self.keep_binding_annotations)
        self.collections[PODS].put((namespace, name), after)
        return success("pods", name)

    def delete(self, target: Target, options: JsonObject | None = None) -> Stored:
        """Delete an object; a pod on a node only begins to end, until deleted with a grace period of 0.

        Raises:
            Refusal: 404, there is none; 409, another UID.
        """
        after = rules.deleted(target.kind, self.read(target).value, options or {})
        key = (target.namespace, target.name)
        collection = self.collections[target.kind]
        return collection.remove(key) if after is None else collection.put(key, after)

    def _change(self, target: Target, body: JsonObject, *, patch: bool) -> Stored:
        status = target.subresource == "status"
        after = rules.updated(target.kind, self.read(target).value, body, status=status, patch=patch)
        check(target.kind, after)
        return self.collections[target.kind].put((target.namespace, target.name), after)


def _key(kind: ServedKind, made: JsonObject) -> Key:
    metadata = made["metadata"]
    return (metadata["namespace"] if kind.namespaced else "", metadata["name"])
