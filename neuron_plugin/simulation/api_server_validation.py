"""What the simulated API server refuses to store, of what this project's programs, kubectl and controllers write.

Types, names, patterns and lengths are a table: the structs below. What compares one field with another is said in
code, in the real server's words. Else specs of pods and nodes are taken as they are. A binding is not checked: its
annotations are merged unseen, as on the real server. Sources (1.36): ``apimachinery/pkg/api/validation/objectmeta.go``,
``events.go`` and ``validation.go`` of ``pkg/apis/core/validation``, ``pkg/apis/coordination/validation/validation.go``
and ``pkg/apis/resource/validation/validation.go``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from neuron_plugin.allocation.requests import parse_quantity
from neuron_plugin.simulation.api_server_kinds import (
    CLAIM_TEMPLATES,
    EVENTS,
    LEASES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AnyJson,
    Refusal,
    ServedKind,
    invalid,
)

MOST_RESERVED = 256
"""Pods that may use one claim."""
_MAX_ANNOTATIONS_BYTES = 256 << 10
_MAX_NOTE_BYTES = 1024
_IMMUTABLE = "Invalid value: field is immutable"

_SUBDOMAIN = r"(?=.{1,253}(?:/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED = rf"({_SUBDOMAIN}/)?{_PART}"
"""A name of at most 63 characters, maybe behind a subdomain and a slash (``IsQualifiedName``)."""
_Name = Annotated[str, Meta(pattern=rf"^{_SUBDOMAIN}\Z")]
_Qualified = Annotated[str, Meta(pattern=rf"^{_QUALIFIED}\Z")]
_AnyCase = Annotated[str, Meta(pattern=rf"(?i)^{_QUALIFIED}\Z")]
_Label = Annotated[str, Meta(pattern=rf"^({_PART})?\Z")]
_MicroTime = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)\Z")]
_Word = Annotated[str, Meta(min_length=1, max_length=128)]
_Given = Annotated[str, Meta(min_length=1)]


class _Fields(msgspec.Struct, frozen=True, rename="camel"):
    """Fields that are not named are taken as they are."""


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


_TABLES: Mapping[ServedKind, type[_Object]] = {LEASES: _Lease, EVENTS: _Event, PODS: _Pod}


def is_qualified(name: str) -> bool:
    """Whether a key of a label may be called so, or an extended resource."""
    return re.fullmatch(_QUALIFIED, name) is not None


def check_prefix(kind: ServedKind, prefix: str) -> None:
    """A prefix of a name may end in a dash, but not in a dot (``NameIsDNSSubdomain``)."""
    masked = f"{prefix[:-2]}a" if prefix.endswith("-") and len(prefix) > 1 else prefix
    if not re.fullmatch(_SUBDOMAIN, masked):
        raise invalid(kind.kind, "", f'metadata.generateName: Invalid value: "{prefix}": a lowercase subdomain')


def check(kind: ServedKind, value: AnyJson) -> None:
    """Check an object that is about to be stored."""
    try:
        msgspec.convert(value, _TABLES.get(kind, _Object))
    except msgspec.ValidationError as error:
        if ", got `" in str(error):
            raise Refusal(400, f"{kind.kind} cannot be handled: {error}") from None
        problems = [str(error)]
    else:
        problems = list(_annotations(value["metadata"].get("annotations") or {}))
        if kind is EVENTS:
            problems += _event(value)
        if kind is PODS:
            problems += _containers(value["spec"])
    refuse(f"{kind.kind}{kind.resource.removeprefix(kind.plural)}", value, problems)


def refuse(named: str, value: AnyJson, problems: Iterable[str]) -> None:
    """Refuse an object that has problems."""
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
    """What cannot be given twice has a limit that is its request (``validateContainerCommon``)."""
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
    """Check what a write makes of a claim, a template or a slice; other kinds are not looked at.

    A claim's spec stays, and its allocation is only set or cleared as a whole. A template stays, and a slice stays one
    of the same node, driver and pool.
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if kind is RESOURCE_SLICES:
        fixed = [
            ("driver", before.get("driver"), after.get("driver")),
            ("nodeName", before.get("nodeName"), after.get("nodeName")),
            ("pool.name", (before.get("pool") or {}).get("name"), (after.get("pool") or {}).get("name")),
        ]
        refuse(kind.kind, old, [f"spec.{name}: {_IMMUTABLE}" for name, was, would in fixed if was != would])
    elif kind in {RESOURCE_CLAIMS, CLAIM_TEMPLATES}:
        problems = [f"spec: {_IMMUTABLE}"] if before != after else []
        refuse(kind.kind, old, [*problems, *(_claim_status(old, new) if kind is RESOURCE_CLAIMS else ())])


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
