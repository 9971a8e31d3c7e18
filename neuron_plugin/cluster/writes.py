"""Everything this project writes to pods, nodes and events, as requests.

Each function says what to tell the API server; ``api.send`` tells it. Nothing is read first and written back whole: a
patch or a binding changes only what it names, and carries the UID, so that a pod deleted and made anew under the same
name is never given the annotations of the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.cluster.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiRequest, JsonObject
from neuron_plugin.cluster.kinds import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from neuron_plugin.cluster.records import ObjectReference

_EVENTS = "/apis/events.k8s.io/v1"
_CLUSTER_EVENTS_NAMESPACE = "default"
"""Where events about cluster-wide objects live: their own empty namespace is refused."""

_EVENT_NAME_SEED = 100
"""Characters of the object's name in its event's: the server cuts a prefix to 58, and refuses one of more than 253."""

MAX_NOTE_BYTES = 1024
"""``pkg/apis/core/validation/events.go``: a longer note is refused."""

_MAX_INSTANCE_BYTES = 128
"""As above; a node's name may have 253."""


def bind_pod(*, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> ApiRequest:
    """Bind a pod and annotate it, in the one transaction that the binding subresource is.

    The server answers 404 if the pod is gone, 409 if it has another UID, is bound already (to whatever node), is being
    deleted or is gated (``pkg/registry/core/pod/storage/storage.go``). Keys and sizes are *not* validated there.
    """
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return ApiRequest("POST", f"{PODS.item(name, namespace)}/binding", body=body)


def annotate_pod(*, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> ApiRequest:
    """Change annotations of a pod; None removes one.

    It goes through ``pods/status``, which keeps metadata and ignores the spec, so that the right to patch pods is not
    needed. A pod with another UID under this name is left alone: see ``ApiError.other_object``.
    """
    body: JsonObject = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
    return ApiRequest("PATCH", f"{PODS.item(name, namespace)}/status", body=body, content_type=MERGE_PATCH)


def read_pod(*, namespace: str, name: str) -> ApiRequest:
    """Read one pod from a quorum; decode with ``PODS.decode``."""
    return ApiRequest("GET", PODS.item(name, namespace))


def read_node(name: str) -> ApiRequest:
    """Read one node from a quorum; decode with ``NODES.decode``."""
    return ApiRequest("GET", NODES.item(name))


def describe_node(
    name: str,
    *,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> ApiRequest:
    """Change annotations and labels of a node; None removes one, what is not named stays."""
    named = {"annotations": annotations, "labels": labels}
    metadata: JsonObject = {part: dict(values) for part, values in named.items() if values}
    return ApiRequest("PATCH", NODES.item(name), body={"metadata": metadata}, content_type=MERGE_PATCH)


def report_node_condition(
    name: str, *, condition: str, status: bool | None, reason: str, message: str, since: datetime, now: datetime
) -> ApiRequest:
    """Set one condition of a node's status; ``status`` None is Unknown.

    A strategic merge, which knows conditions by their type; a merge patch would replace those of the kubelet.
    """
    entry: JsonObject = {
        "type": condition,
        "status": {True: "True", False: "False", None: "Unknown"}[status],
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since),
        "lastHeartbeatTime": timestamp(now),
    }
    body: JsonObject = {"status": {"conditions": [entry]}}
    return ApiRequest("PATCH", f"{NODES.item(name)}/status", body=body, content_type=STRATEGIC_MERGE_PATCH)


def remove_node_condition(name: str, condition: str) -> ApiRequest:
    """Take one condition out of a node's status, those of others stay; one that is not there is no error.

    The ``$patch`` directive of a strategic merge
    (``staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go``).
    """
    body: JsonObject = {"status": {"conditions": [{"$patch": "delete", "type": condition}]}}
    return ApiRequest("PATCH", f"{NODES.item(name)}/status", body=body, content_type=STRATEGIC_MERGE_PATCH)


def create_event(
    regarding: ObjectReference,
    *,
    reason: str,
    note: str,
    action: str,
    reporter: str,
    instance: str,
    now: datetime,
    warning: bool = False,
) -> ApiRequest:
    """Record an event about an object. When to say something again is the caller's to decide.

    ``reason`` and ``action`` are CamelCase words of at most 128 characters, ``reporter`` a qualified name such as
    ``neuron-plugin.io/plugin``, ``instance`` the pod or node that reports. A note over 1024 bytes is cut, and
    an instance over 128.
    """
    namespace = regarding.namespace or _CLUSTER_EVENTS_NAMESPACE
    body: JsonObject = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarding.name[:_EVENT_NAME_SEED]}-", "namespace": namespace},
        "eventTime": micro_timestamp(now),
        "reportingController": reporter,
        "reportingInstance": _cut(instance, _MAX_INSTANCE_BYTES),
        "action": action,
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "regarding": msgspec.to_builtins(regarding),
        "note": _cut(note, MAX_NOTE_BYTES),
    }
    return ApiRequest("POST", f"{_EVENTS}/namespaces/{namespace}/events", body=body)


def timestamp(at: datetime) -> str:
    """Write a ``metav1.Time``: seconds, UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: datetime) -> str:
    """Write a ``metav1.MicroTime``: microseconds, UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(text: str, limit_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    ellipsis = "…"
    return encoded[: limit_bytes - len(ellipsis.encode())].decode(errors="ignore") + ellipsis
