"""Validation in the simulated API server, and its rules for pods: gates, bindings, evictions.

The rules cover what this project, kubectl and controllers write. The structs below check types, names, patterns and
lengths; functions compare fields with each other, in the real server's words. The annotations of a binding are merged
without validation, as by the real server. Sources (1.36.2):
``apimachinery/pkg/api/validation/objectmeta.go``, ``events.go`` and ``validation.go`` of ``pkg/apis/core/validation``,
``validation.go`` of ``pkg/apis/coordination`` and ``pkg/apis/resource``, ``pkg/registry/core/pod/strategy.go`` (the
condition of gated pods), and ``storage.go`` and ``eviction.go`` below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.allocation.requests import parse_quantity
from neuron_plugin.cluster.pod_wire import WireLabelSelector
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal, Selector, ServedKind, conflict, invalid

MOST_RESERVED = 256
"""The most pods that can use a claim."""
_MAX_ANNOTATIONS_BYTES = 256 << 10
_MAX_NOTE_BYTES = 1024
_IMMUTABLE = "Invalid value: field is immutable"

_SUBDOMAIN = r"(?=.{1,253}(?:/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED = rf"({_SUBDOMAIN}/)?{_PART}"
"""A name with an optional subdomain (``IsQualifiedName``)."""
_Name = Annotated[str, Meta(pattern=rf"^{_SUBDOMAIN}\Z")]
_Qualified = Annotated[str, Meta(pattern=rf"^{_QUALIFIED}\Z")]
_AnyCase = Annotated[str, Meta(pattern=rf"(?i)^{_QUALIFIED}\Z")]
_Label = Annotated[str, Meta(pattern=rf"^({_PART})?\Z")]
_MicroTime = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)\Z")]
_Word = Annotated[str, Meta(min_length=1, max_length=128)]
_Given = Annotated[str, Meta(min_length=1)]


class _Fields(msgspec.Struct, frozen=True, rename="camel"):
    """Fields without a rule are not checked."""


class _Owner(_Fields, frozen=True):
    api_version: _Given
    kind: _Given
    name: _Given
    uid: _Given


class _Metadata(_Fields, frozen=True):
    name: _Name
    labels: dict[_Qualified, _Label] | None = None
    annotations: dict[_AnyCase, str] | None = None
    owner_references: list[_Owner] | None = None


class _Object(_Fields, frozen=True):
    metadata: _Metadata


class _LeaseSpec(_Fields, frozen=True):
    lease_duration_seconds: Annotated[int, Meta(gt=0)] | None = None
    lease_transitions: Annotated[int, Meta(ge=0)] | None = None
    renew_time: _MicroTime | None = None
    acquire_time: _MicroTime | None = None


class _Lease(_Object, frozen=True):
    spec: _LeaseSpec | None = None


class _Event(_Object, frozen=True, kw_only=True):
    event_time: _MicroTime
    type: Literal["Normal", "Warning"]
    reporting_controller: _Qualified
    reporting_instance: _Word
    action: _Word
    reason: _Word


class _Container(_Fields, frozen=True):
    name: _Given


class _PodSpec(_Fields, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Pod(_Object, frozen=True):
    spec: _PodSpec


_TABLES: Mapping[ServedKind, type[_Object]] = {kinds.LEASES: _Lease, kinds.EVENTS: _Event, kinds.PODS: _Pod}


def is_qualified(name: str) -> bool:
    """Whether this can be the key of a label, or the name of an extended resource."""
    return re.fullmatch(_QUALIFIED, name) is not None


def check(kind: ServedKind, value: AnyJson) -> None:
    """Validate an object before it is stored."""
    try:
        msgspec.convert(value, _TABLES.get(kind, _Object))
    except msgspec.ValidationError as error:
        if ", got `" in str(error):
            raise Refusal(400, f"{kind.kind} cannot be handled: {error}") from None
        problems = [str(error)]
    else:
        problems = list(_annotations(value["metadata"].get("annotations") or {}))
        if kind is kinds.EVENTS:
            problems += _event(value)
        if kind is kinds.PODS:
            problems += _containers(value["spec"])
    refuse(f"{kind.kind}{kind.resource.removeprefix(kind.plural)}", value, problems)


def refuse(named: str, value: AnyJson, problems: Iterable[str]) -> None:
    """Raise the refusal of an object with problems."""
    if found := list(problems):
        raise invalid(named, value["metadata"]["name"], found[0] if len(found) == 1 else f"[{', '.join(found)}]")


def _annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    if sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items()) > _MAX_ANNOTATIONS_BYTES:
        yield f"metadata.annotations: Too long: may not be more than {_MAX_ANNOTATIONS_BYTES} bytes"


def _event(event: AnyJson) -> Iterator[str]:
    namespace = event["metadata"]["namespace"]
    if not (event.get("regarding") or {}).get("namespace") and namespace not in {"default", "kube-system"}:
        yield 'involvedObject.namespace: Invalid value: "": does not match event.namespace'
    if len(event.get("note", "").encode()) > _MAX_NOTE_BYTES:
        yield f'message: Invalid value: "": can have at most {_MAX_NOTE_BYTES} characters'


def _containers(spec: AnyJson) -> Iterator[str]:
    """A resource that cannot be overcommitted has equal request and limit (``validateContainerCommon``)."""
    for field in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            path, limits = f"spec.{field}[{place}].resources", resources.get("limits") or {}
            for name, amount in (resources.get("requests") or {}).items():
                if "/" not in name and not name.startswith("hugepages-"):
                    continue
                if name not in limits:
                    yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
                elif parse_quantity(str(amount)) != parse_quantity(str(limits[name])):
                    why = f"must be equal to {name} limit of {limits[name]}"
                    yield f'{path}.requests: Invalid value: "{amount}": {why}'


def check_claims(kind: ServedKind, old: AnyJson, new: AnyJson) -> None:
    """Validate an update of a claim, a claim template or a slice. Other kinds pass.

    The specs of claims and templates are immutable, as are a slice's node, driver and pool. An allocation can only be
    set or cleared.
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if kind is kinds.RESOURCE_SLICES:
        fixed = [
            ("driver", before.get("driver"), after.get("driver")),
            ("nodeName", before.get("nodeName"), after.get("nodeName")),
            ("pool.name", (before.get("pool") or {}).get("name"), (after.get("pool") or {}).get("name")),
        ]
        refuse(kind.kind, old, [f"spec.{name}: {_IMMUTABLE}" for name, was, would in fixed if was != would])
    elif kind in {kinds.RESOURCE_CLAIMS, kinds.CLAIM_TEMPLATES}:
        problems = [f"spec: {_IMMUTABLE}"] if before != after else []
        refuse(kind.kind, old, [*problems, *(_claim_status(old, new) if kind is kinds.RESOURCE_CLAIMS else ())])


def _claim_status(old: AnyJson, new: AnyJson) -> Iterator[str]:
    before, after = old.get("status") or {}, new.get("status") or {}
    had, has = before.get("allocation"), after.get("allocation")
    if had and has and had != has:
        yield f"status.allocation: {_IMMUTABLE}"
    known, reserved = before.get("reservedFor") or [], after.get("reservedFor") or []
    if len(reserved) > MOST_RESERVED:
        yield f"status.reservedFor: Too many: {len(reserved)}: must have at most {MOST_RESERVED} items"
    if len({consumer.get("uid") for consumer in reserved}) < len(reserved):
        yield "status.reservedFor: Duplicate value"
    if reserved and not has:
        yield "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    elif old["metadata"].get("deletionTimestamp") and any(consumer not in known for consumer in reserved):
        yield (
            "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or "
            "`deletionTimestamp` are set"
        )


# Pods.

_CHANGEABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)
_ONLY_MORE = "only additions are allowed (no mutations or deletions)"


def now_text() -> str:
    """The current time, as in metadata and conditions."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_ready(record: AnyJson) -> bool:
    """Whether a pod or node has the condition Ready."""
    ready = {"type": "Ready", "status": "True"}
    return any(ready.items() <= condition.items() for condition in record["status"].get("conditions") or ())


def _with_condition(status: AnyJson, /, **condition: str | None) -> AnyJson:
    """The status with this condition, which replaces one of the same type."""
    others = [known for known in status.get("conditions") or () if known["type"] != condition["type"]]
    return status | {"conditions": [*others, condition]}


# Gates and changes of a spec.


def gated(pod: AnyJson) -> AnyJson:
    """Return a new pod; if it has gates, with the condition SchedulingGated."""
    spec, status = pod["spec"], pod["status"]
    if not spec.get("schedulingGates"):
        return pod
    if spec.get("nodeName"):
        why = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
        raise invalid("Pod", pod["metadata"]["name"], why)
    if any(condition["type"] == "PodScheduled" for condition in status.get("conditions") or ()):
        return pod
    waits = _with_condition(
        status,
        type="PodScheduled",
        status="False",
        reason="SchedulingGated",
        message="Scheduling is blocked due to non-empty scheduling gates",
        lastProbeTime=None,
        lastTransitionTime=None,
    )
    return pod | {"status": waits}


def check_change(old: AnyJson, new: AnyJson) -> None:
    """Validate an update of a pod's spec.

    Gates can only be removed. A gated pod's node selector and required node affinity can be narrowed.
    """
    refuse("Pod", old, _problems(old.get("spec") or {}, new.get("spec") or {}))


def _problems(old: AnyJson, new: AnyJson) -> Iterator[str]:
    gates = {gate["name"] for gate in old.get("schedulingGates") or ()}
    for place, gate in enumerate(new.get("schedulingGates") or ()):
        if gate["name"] not in gates:
            field = f"spec.schedulingGates[{place}].name"
            yield f"{field}: Forbidden: only deletion is allowed, but found new scheduling gate '{gate['name']}'"
    kept = old.get("tolerations") or []
    if not all(toleration in (new.get("tolerations") or []) for toleration in kept):
        yield "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    if gates:
        before, after = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
        if not before.items() <= after.items():
            yield (
                f"spec.nodeSelector: Invalid value: {after}: only additions to spec.nodeSelector are allowed "
                "(no mutations or deletions)"
            )
        yield from _affinity_problems(_terms(old), _terms(new))
    if _unchangeable(old, gated=bool(gates)) != _unchangeable(new, gated=bool(gates)):
        yield f"spec: Forbidden: pod updates may not change fields other than {_CHANGEABLE}"


def _affinity_problems(old: list[AnyJson], new: list[AnyJson]) -> Iterator[str]:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if old and len(old) != len(new):
        yield f"{path}: Invalid value: {new}: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return
    for place, (before, after) in enumerate(zip(old, new, strict=False)):
        parts = ("matchExpressions", "matchFields")
        was, now = ([term.get(field) or [] for field in parts] for term in (before, after))
        appended = all(left == right[: len(left)] for left, right in zip(was, now, strict=True))
        if not appended or (now != was and not any(was)):
            yield f"{path}[{place}]: Invalid value: {after}: {_ONLY_MORE}"


def _terms(spec: AnyJson) -> list[AnyJson]:
    value: Any = spec
    for field in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        value = value.get(field) or {}
    return list(value)


def _unchangeable(spec: AnyJson, *, gated: bool) -> AnyJson:
    """The immutable part of a pod's spec."""
    changeable = {"schedulingGates", "tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds"}
    rest = {name: value for name, value in spec.items() if value is not None and name not in changeable}
    if gated:
        rest.pop("nodeSelector", None)
        affinity = {name: value for name, value in (rest.pop("affinity", None) or {}).items() if name != "nodeAffinity"}
        rest |= {"affinity": affinity} if affinity else {}
    for field in ("containers", "initContainers"):
        if field in rest:
            rest[field] = [
                {name: value for name, value in container.items() if name != "image"} for container in rest[field]
            ]
    return rest


def resized(old: AnyJson, new: AnyJson) -> AnyJson:
    """Return a pod after a write to its subresource ``resize``: only the containers' resources change."""
    wanted = {container["name"]: container.get("resources") or {} for container in new["spec"].get("containers") or ()}
    containers = [
        container | {"resources": wanted.get(container["name"], container.get("resources") or {})}
        for container in old["spec"]["containers"]
    ]
    return old | {"spec": old["spec"] | {"containers": containers}}


# Bindings.


def bound(pod: AnyJson, binding: AnyJson) -> AnyJson:
    """Return the bound pod: node, annotations and condition change together."""
    metadata, wanted = pod["metadata"], binding.get("metadata") or {}
    name, node = metadata["name"], (binding.get("target") or {}).get("name", "")
    if wanted.get("name", name) != name:
        raise Refusal(400, "name in URL does not match name in Binding object")
    if not node or binding["target"].get("kind", "Node") not in {"", "Node"}:
        raise invalid("Binding", name, "target: Invalid value: a node with a name is expected")
    if why := unmet(metadata, wanted) or _why_not_bound(pod):
        raise conflict("pods/binding", name, why)
    annotations = {**(metadata.get("annotations") or {}), **(wanted.get("annotations") or {})}
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    return pod | {
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "spec": pod["spec"] | {"nodeName": node},
        "status": _with_condition(status, type="PodScheduled", status="True", lastTransitionTime=now_text()),
    }


def unmet(metadata: AnyJson, preconditions: AnyJson) -> str:
    """The unmet precondition in the real server's words; empty if all are met."""
    for key, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if (wanted := preconditions.get(key)) not in {None, "", metadata[key]}:
            return f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {metadata[key]}"
    return ""


def _why_not_bound(pod: AnyJson) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    if metadata.get("deletionTimestamp"):
        return f"pod {metadata['name']} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {metadata["name"]} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {metadata['name']} has non-empty .spec.schedulingGates"
    return ""


# Evictions.


def needs_budget(pod: AnyJson) -> bool:
    """Whether an eviction needs a budget: not if the pod has not started, has ended or is being deleted."""
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def disrupted(budget: AnyJson, pod: str) -> AnyJson:
    """Return a PodDisruptionBudget after the eviction of one of its pods."""
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    allowed = int(status.get("disruptionsAllowed") or 0)
    if allowed <= 0:
        needed, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        cause = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        causes = [{"reason": "DisruptionBudget", "message": cause}]
        text = "Cannot evict pod as it would violate the pod's disruption budget."
        raise Refusal(429, text, name=pod, causes=causes)
    return budget | {"status": status | {"disruptionsAllowed": allowed - 1}}


def evicted(pod: AnyJson) -> AnyJson:
    """Return an evicted pod with its condition DisruptionTarget."""
    status = _with_condition(
        pod["status"],
        type="DisruptionTarget",
        status="True",
        reason="EvictionByEvictionAPI",
        message="Eviction API: evicting",
        lastTransitionTime=now_text(),
    )
    return pod | {"status": status}


def selected_by(budget: AnyJson) -> Selector:
    """Which pods a PodDisruptionBudget selects; none without a selector."""
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return lambda _: False
    rules = msgspec.convert(selector, WireLabelSelector).requirements

    def meant(pod: AnyJson) -> bool:
        metadata, labels = pod["metadata"], pod["metadata"].get("labels") or {}
        return metadata["namespace"] == budget["metadata"]["namespace"] and all(rule.is_met(labels) for rule in rules)

    return meant


def budget_status(budget: AnyJson, pods: Iterable[AnyJson]) -> AnyJson:
    """A budget's status by the disruption controller: how many pods are healthy, and can be evicted.

    The real controller gets the expected number from the pods' owners. Here the current pods count, because nothing
    replaces pods.
    """
    meant, spec = selected_by(budget), budget.get("spec") or {}
    chosen = [pod for pod in pods if meant(pod) and pod["status"].get("phase") not in TERMINAL_PHASES]
    healthy = sum(is_ready(pod) and not pod["metadata"].get("deletionTimestamp") for pod in chosen)
    expected = len(chosen)
    if spec.get("maxUnavailable") is not None:
        desired = max(expected - _share(spec["maxUnavailable"], expected), 0)
    else:
        desired = _share(spec.get("minAvailable", 1), expected)
    return {
        "expectedPods": expected,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": max(healthy - desired, 0) if expected else 0,
    }


def _share(amount: Any, whole: int) -> int:
    """A number, or a percentage of the whole, rounded up."""
    text = str(amount)
    return -(-int(text.removesuffix("%")) * whole // 100) if text.endswith("%") else int(text)
