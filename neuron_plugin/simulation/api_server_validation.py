"""What the simulated API server refuses to store, of what this project's programs write.

Names, labels and annotations of every object; containers' names, and what they ask for by count; Leases; events as
``events.k8s.io/v1`` takes them. Else specs of pods and nodes are taken as they are. A binding is not checked: its
annotations are merged unseen, as on the real server. Sources (1.36):
``apimachinery/pkg/api/validation/objectmeta.go``, ``events.go`` and ``validation.go`` of
``pkg/apis/core/validation``, ``pkg/apis/coordination/validation/validation.go``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from neuron_plugin.allocation.requests import parse_quantity
from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, PODS, AnyJson, Refusal, ServedKind, invalid

_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_MAX_ANNOTATIONS_BYTES = 256 << 10
_MAX_EVENT_WORD = 128
_MAX_NOTE_BYTES = 1024

_MICRO_TIMES = {LEASES: ("renewTime", "acquireTime"), EVENTS: ("eventTime",)}


def check_prefix(kind: ServedKind, prefix: str) -> None:
    """A prefix of a name may end in a dash, but not in a dot (``NameIsDNSSubdomain``).

    Raises:
        Refusal: 422, it can begin no name.
    """
    masked = f"{prefix[:-2]}a" if prefix.endswith("-") and len(prefix) > 1 else prefix
    if not _SUBDOMAIN.fullmatch(masked):
        raise invalid(kind.kind, "", f'metadata.generateName: Invalid value: "{prefix}": a lowercase subdomain')


def check(kind: ServedKind, value: AnyJson) -> None:
    """Check an object that is about to be stored.

    Raises:
        Refusal: 400, a field has the wrong type; 422, a value breaks a rule.
    """
    _check_types(kind, value)
    problems = [*_metadata(value["metadata"])]
    if kind is LEASES:
        problems += _lease(value.get("spec") or {})
    if kind is EVENTS:
        problems += _event(value)
    if kind is PODS:
        problems += _containers(value["spec"])
    if problems:
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        named = f"{kind.kind}{kind.resource.removeprefix(kind.plural)}"
        raise invalid(named, value["metadata"]["name"], text)


def _check_types(kind: ServedKind, value: AnyJson) -> None:
    for part in ("labels", "annotations"):
        for key, text in (value["metadata"].get(part) or {}).items():
            if not isinstance(text, str):
                raise Refusal(400, f"json: cannot unmarshal metadata.{part}.{key} into a Go value of type string")
    times = (value.get("spec") or {}) if kind is LEASES else value
    for name in _MICRO_TIMES.get(kind, ()):
        if times.get(name) is not None and not _MICRO_TIME.fullmatch(str(times[name])):
            raise Refusal(400, f'parsing time "{times[name]}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse')


def _metadata(metadata: AnyJson) -> Iterator[str]:
    if not _SUBDOMAIN.fullmatch(metadata["name"]):
        yield _bad("metadata.name", metadata["name"], "a lowercase RFC 1123 subdomain is expected")
    for key, text in (metadata.get("labels") or {}).items():
        if not _is_qualified(key):
            yield _bad("metadata.labels", key, "a qualified name is expected")
        if text and not _NAME_PART.fullmatch(text):
            yield _bad("metadata.labels", text, "a label of at most 63 letters, digits, -, _ and . is expected")
    annotations: dict[str, str] = metadata.get("annotations") or {}
    yield from (
        _bad("metadata.annotations", key, "a qualified name is expected")
        for key in annotations
        if not _is_qualified(key.lower())
    )
    if sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items()) > _MAX_ANNOTATIONS_BYTES:
        yield f"metadata.annotations: Too long: may not be more than {_MAX_ANNOTATIONS_BYTES} bytes"
    for owner in metadata.get("ownerReferences") or []:
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                yield _bad(f"metadata.ownerReferences.{part}", "", "must not be empty")


def _containers(spec: AnyJson) -> Iterator[str]:
    """Each has a name; what cannot be given twice has a limit that is its request (``validateContainerCommon``)."""
    for field in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(field) or ()):
            if not container.get("name"):
                yield f"spec.{field}[{place}].name: Required value"
            resources = container.get("resources") or {}
            path, limits = f"spec.{field}[{place}].resources", resources.get("limits") or {}
            for name, amount in (resources.get("requests") or {}).items():
                if "/" not in name and not name.startswith("hugepages-"):
                    continue
                if name not in limits:
                    yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
                elif parse_quantity(str(amount)) != parse_quantity(str(limits[name])):
                    yield _bad(f"{path}.requests", amount, f"must be equal to {name} limit of {limits[name]}")


def _lease(spec: AnyJson) -> Iterator[str]:
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield _bad("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        yield _bad("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _event(event: AnyJson) -> Iterator[str]:
    if not event.get("eventTime"):
        yield "eventTime: Required value"
    if event.get("type") not in {"Normal", "Warning"}:
        yield _bad("type", "", f"has invalid value: {event.get('type', '')}")
    namespace = event["metadata"]["namespace"]
    if not (event.get("regarding") or {}).get("namespace") and namespace not in {"default", "kube-system"}:
        yield _bad("involvedObject.namespace", "", "does not match event.namespace")
    if not _is_qualified(event.get("reportingController", "")):
        yield _bad("reportingController", event.get("reportingController", ""), "a qualified name is expected")
    for word in ("reportingInstance", "action", "reason"):
        size = len(event.get(word, "").encode())
        if size == 0:
            yield f"{word}: Required value"
        if size > _MAX_EVENT_WORD:
            yield _bad(word, "", f"can have at most {_MAX_EVENT_WORD} characters")
    if len(event.get("note", "").encode()) > _MAX_NOTE_BYTES:
        yield _bad("message", "", f"can have at most {_MAX_NOTE_BYTES} characters")


def _is_qualified(name: str) -> bool:
    """A name of at most 63 characters, maybe behind a subdomain and a slash (``IsQualifiedName``)."""
    domain, slash, part = name.rpartition("/")
    return bool(_NAME_PART.fullmatch(part)) and (not slash or bool(_SUBDOMAIN.fullmatch(domain)))


def _bad(field: str, value: Any, why: str) -> str:
    return f'{field}: Invalid value: "{value}": {why}'
