"""Everything this project writes to pods, nodes, events and leases, as requests.

Each function makes a request, which ``api.send`` sends. No object is read and written back whole: a patch or a binding
changes only the fields that it names. Writes to pods carry the UID, so that a new pod of the same name never gets the
annotations of a deleted one. Writes to a lease that others may take carry the version that was read.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from neuron_plugin.allocation import PodReference
from neuron_plugin.cluster.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiRequest, JsonObject
from neuron_plugin.cluster.objects import CONFIG_MAPS, HOLDER_URL_KEY, LEASES, NODES, Lease, ObjectReference
from neuron_plugin.cluster.pods import PODS

_EVENTS = "/apis/events.k8s.io/v1"
_EVENT_NAME_SEED = 100  # characters: the server cuts a prefix to 58, and refuses one of more than 253
MAX_NOTE_BYTES = 1024  # ``pkg/apis/core/validation/events.go`` refuses a longer note,
_MAX_INSTANCE_BYTES = 128  # and a longer instance; a node's name may have 253


def utc_now() -> datetime:
    """The wall clock's time, for people to read."""
    return datetime.now(UTC)


def describe_pod(
    *,
    namespace: str,
    name: str,
    uid: str,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> ApiRequest:
    """Change annotations and labels of a pod; None removes one, others stay.

    It patches ``pods/status``, which takes metadata and ignores the spec, so that no right to patch pods is needed. A
    pod with another UID is not changed: see ``ApiError.other_object``.
    """
    named = {"annotations": annotations, "labels": labels}
    body: JsonObject = {"metadata": {"uid": uid, **{field: dict(values) for field, values in named.items() if values}}}
    return ApiRequest("PATCH", f"{PODS.item(name, namespace)}/status", body=body, content_type=MERGE_PATCH)


def read_pod(*, namespace: str, name: str) -> ApiRequest:
    """Read one pod from a quorum; decode with ``PODS.decode``."""
    return ApiRequest("GET", PODS.item(name, namespace))


def bind_pod(pod: PodReference, node: str, annotations: Mapping[str, str]) -> ApiRequest:
    """Bind a pod and annotate it, in the one transaction that the binding subresource is.

    The server answers 404 if the pod is gone, 409 if it has another UID, is bound already (to whatever node), is being
    deleted or is gated (``pkg/registry/core/pod/storage/storage.go``). Keys and sizes are *not* validated there.
    """
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return ApiRequest("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding", body=body)


def evict_pod(*, namespace: str, name: str, uid: str, version: str = "", dry_run: bool = False) -> ApiRequest:
    """Delete a pod if the disruption budgets allow it; its containers get their grace period.

    The server answers 429 if a budget does not allow it, 404 if the pod is gone, 409 if another pod has its name, or if
    it has changed since this ``version`` (``pkg/registry/core/pod/storage/eviction.go``). A ``dry_run`` is checked in
    the same way and deletes nothing.
    """
    options: JsonObject = {"preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})}}
    if dry_run:
        options["dryRun"] = ["All"]
    body: JsonObject = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    return ApiRequest("POST", f"{PODS.item(name, namespace)}/eviction", body=body)


def create_pod(manifest: JsonObject, namespace: str) -> ApiRequest:
    """Create a pod."""
    return ApiRequest("POST", PODS.collection(namespace), body={"apiVersion": "v1", "kind": "Pod", **manifest})


def delete_pod(*, namespace: str, name: str, uid: str) -> ApiRequest:
    """Delete a pod; its containers get their grace period. The server answers 409 if another pod has its name."""
    return ApiRequest("DELETE", PODS.item(name, namespace), body={"preconditions": {"uid": uid}})


def read_node(name: str) -> ApiRequest:
    """Read one node from a quorum; decode with ``NODES.decode``."""
    return ApiRequest("GET", NODES.item(name))


def describe_node(
    name: str,
    *,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
    version: str = "",
) -> ApiRequest:
    """Change annotations and labels of a node; None removes one, others stay.

    With a ``version`` the server answers 409 if the node has another version.
    """
    named = {"annotations": annotations, "labels": labels}
    metadata: JsonObject = {field: dict(values) for field, values in named.items() if values}
    if version:
        metadata["resourceVersion"] = version
    return ApiRequest("PATCH", NODES.item(name), body={"metadata": metadata}, content_type=MERGE_PATCH)


def report_node_condition(
    name: str, *, condition: str, status: bool | None, reason: str, message: str, since: datetime, now: datetime
) -> ApiRequest:
    """Set one condition of a node's status; ``status`` None is Unknown."""
    entry: JsonObject = {
        "type": condition,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": message,
        "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),  # a metav1.Time
        "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return _patch_node_condition(name, entry)


def limit_allocatable(name: str, counts: Mapping[str, int]) -> ApiRequest:
    """Set the allocatable counts of some resources in a node's status, before its kubelet does.

    The kubelet compares them with its own counts every 10 s, and corrects differences
    (pkg/kubelet/kubelet_node_status.go).
    """
    body: JsonObject = {"status": {"allocatable": {resource: str(count) for resource, count in counts.items()}}}
    return ApiRequest("PATCH", f"{NODES.item(name)}/status", body=body, content_type=MERGE_PATCH)


def remove_node_condition(name: str, condition: str) -> ApiRequest:
    """Remove one condition from a node's status; no error if it is missing.

    Uses the ``$patch`` directive of a strategic merge
    (``staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go``).
    """
    return _patch_node_condition(name, {"$patch": "delete", "type": condition})


def _patch_node_condition(name: str, entry: JsonObject) -> ApiRequest:
    """A strategic merge finds a condition by its type; a merge patch would replace the kubelet's conditions."""
    body: JsonObject = {"status": {"conditions": [entry]}}
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
    """Create an event about an object. The caller decides when to repeat it.

    ``reason`` and ``action`` are CamelCase words of at most 128 characters, ``reporter`` a qualified name such as
    ``neuron-plugin.io/plugin``, ``instance`` the pod or node that reports. Notes and instances that are too long are
    cut.
    """
    namespace = regarding.namespace or "default"  # the empty namespace of a cluster-wide object is refused
    body: JsonObject = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarding.name[:_EVENT_NAME_SEED]}-", "namespace": namespace},
        "eventTime": _micro_time(now),
        "reportingController": reporter,
        "reportingInstance": _cut(instance, _MAX_INSTANCE_BYTES),
        "action": action,
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "regarding": msgspec.to_builtins(regarding),
        "note": _cut(note, MAX_NOTE_BYTES),
    }
    return ApiRequest("POST", f"{_EVENTS}/namespaces/{namespace}/events", body=body)


def _micro_time(at: datetime) -> str:
    """Write a ``metav1.MicroTime``: microseconds, UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(text: str, limit_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    ellipsis = "…"
    return encoded[: limit_bytes - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


@dataclass(frozen=True, slots=True)
class LeaseName:
    """A lease and its writer.

    The lease is deleted with its ``owner``, such as a node. ``url`` is the holder's URL, written as an annotation;
    holders of one name with different URLs are different holders. ``annotations`` are further ones; an empty text means
    none.
    """

    namespace: str
    name: str
    holder: str
    owner: ObjectReference | None = None
    url: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the lease."""
        return LEASES.item(self.name, self.namespace)

    def holds(self, observed: Lease) -> bool:
        """Whether the lease as ``observed`` is held by this writer or its predecessor."""
        return (observed.holder, observed.holder_url) == (self.holder, self.url)


def create_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Create a lease; it is held at once if it names a holder."""
    metadata: JsonObject = {"name": lease.name, "namespace": lease.namespace}
    if annotations := {key: text for key, text in {HOLDER_URL_KEY: lease.url, **lease.annotations}.items() if text}:
        metadata["annotations"] = annotations
    if lease.owner is not None:
        metadata["ownerReferences"] = [msgspec.to_builtins(lease.owner)]
    body: JsonObject = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": lease.holder, "leaseDurationSeconds": round(duration_seconds)},
    }
    if lease.holder:
        body["spec"] = _held(lease.holder, duration_seconds, now) | {"acquireTime": _micro_time(now)}
    return ApiRequest("POST", LEASES.collection(lease.namespace), body=body)


def renew_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Write the holder without reading first: for a lease with one writer, such as a plugin's."""
    spec = _held(lease.holder, duration_seconds, now)
    return ApiRequest("PATCH", lease.path, body={"spec": spec}, content_type=MERGE_PATCH)


def claim_lease(
    lease: LeaseName,
    observed: Lease,
    *,
    duration_seconds: float,
    now: datetime,
    annotations: Mapping[str, str] | None = None,
) -> ApiRequest:
    """Take or renew the lease as ``observed``; the server answers 409 if another writer was faster.

    Also writes ``annotations`` that differ from the lease's; an empty text removes one.
    """
    spec = _held(lease.holder, duration_seconds, now)
    if observed.holder != lease.holder:
        spec |= {"acquireTime": _micro_time(now), "leaseTransitions": observed.transitions + 1}
    return _patch_version(
        lease, observed, spec, {HOLDER_URL_KEY: lease.url, **lease.annotations, **(annotations or {})}
    )


def annotate_lease(lease: LeaseName, observed: Lease, annotations: Mapping[str, str]) -> ApiRequest:
    """Change annotations of a lease as ``observed``; the server answers 409 if another writer was faster."""
    metadata: JsonObject = {"resourceVersion": observed.resource_version, "annotations": dict(annotations)}
    return ApiRequest("PATCH", lease.path, body={"metadata": metadata}, content_type=MERGE_PATCH)


def release_lease(lease: LeaseName, observed: Lease, *, now: datetime, settled: bool = True) -> ApiRequest:
    """Release the lease, so that another candidate need not wait until it expires.

    It has no holder then. If acts of the holder may still take effect (not ``settled``), its name stays for one more
    second: the next holder then takes the lease instead of being handed it.
    """
    return _patch_version(lease, observed, _held("" if settled else lease.holder, 1, now), {HOLDER_URL_KEY: ""})


def delete_lease(lease: LeaseName) -> ApiRequest:
    """Delete a lease whose holder is uninstalled."""
    return ApiRequest("DELETE", lease.path)


def write_config_map(namespace: str, name: str, key: str, data: bytes, *, version: str) -> ApiRequest:
    """Write one key of a ConfigMap that was read in ``version``, or create the ConfigMap if ``version`` is empty.

    The server answers 409 if another writer was faster, and 404 if the object is gone.
    """
    body: JsonObject = {"binaryData": {key: base64.b64encode(data).decode()}}
    if version:
        body["metadata"] = {"resourceVersion": version}
        return ApiRequest("PATCH", CONFIG_MAPS.item(name, namespace), body=body, content_type=MERGE_PATCH)
    body |= {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    return ApiRequest("POST", CONFIG_MAPS.collection(namespace), body=body)


def _held(holder: str, duration_seconds: float, now: datetime) -> JsonObject:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": round(duration_seconds),
        "renewTime": _micro_time(now),
    }


def _patch_version(lease: LeaseName, observed: Lease, spec: JsonObject, annotations: Mapping[str, str]) -> ApiRequest:
    metadata: JsonObject = {"resourceVersion": observed.resource_version, "uid": observed.uid}
    if changed := {key: text or None for key, text in annotations.items() if text != observed.annotations.get(key, "")}:
        metadata["annotations"] = changed
    return ApiRequest("PATCH", lease.path, body={"metadata": metadata, "spec": spec}, content_type=MERGE_PATCH)
