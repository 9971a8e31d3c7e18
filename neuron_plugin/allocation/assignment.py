"""The assignment on a pod, as annotations in two dialects.

Our dialect has devices in ``NEURON_DEVS`` and cores in ``NEURON_CORES``: one list for each container that requests that
unit, joined by ``|``, in spec order with init containers first. The vendor's dialect has one list in
``AWS_NEURON_IDS``, of the unit that the pod requests. Anybody may write annotations: reading returns an assignment that
fits the pod's request, or raises one typed error.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from neuron_plugin.allocation.keys import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    CORES_KEY,
    DEVICES_KEY,
    VENDOR_IDS_KEY,
    VENDOR_RESOURCE_KEY,
)
from neuron_plugin.allocation.placement import Assignment, ContainerAssignment
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import IdListError, Resource, format_ids, parse_ids
from neuron_plugin.topology import Unit

_UNIT_KEYS = {Unit.DEVICE: DEVICES_KEY, Unit.CORE: CORES_KEY}
_LIST_SEPARATOR = "|"
_READ_KEYS = (DEVICES_KEY, CORES_KEY, VENDOR_IDS_KEY, VENDOR_RESOURCE_KEY)
_REMEMBERED = 1024
"""Assignments kept in the cache."""
_LONGEST_REMEMBERED = 1024
"""Characters of the annotations of one pod: longer ones are not kept, so that they cannot exhaust memory."""
_MOST_DIGITS = 19
"""Of a time in nanoseconds, which has 64 bits."""


class Dialect(enum.StrEnum):
    """The keys that an assignment is written with."""

    NEURON_PLUGIN = "neuron-plugin"
    VENDOR = "vendor"


class AssignmentError(ValueError):
    """An annotation that cannot be used: names the pod, the key, its value and the expected value."""

    def __init__(self, pod: str, key: str, value: str, expected: str) -> None:
        """Keep the parts: events and metrics name them one by one."""
        super().__init__(f"pod {pod} has {key}={value[:200]!r}: {expected}")
        self.pod = pod
        self.key = key
        self.value = value
        self.expected = expected


def write_assignment(
    assignment: Assignment, dialects: Collection[Dialect] = (Dialect.NEURON_PLUGIN,)
) -> dict[str, str]:
    """The annotations of an assignment; ``NEURON_ALLOCATED`` is false at first."""
    containers = assignment.containers
    if not containers:
        return {}
    keys = {ALLOC_TIME_KEY: str(assignment.alloc_time_ns), ALLOCATED_KEY: "false"}
    if Dialect.NEURON_PLUGIN in dialects:
        for unit, key in _UNIT_KEYS.items():
            if of_unit := [container for container in containers if container.request.resource.unit is unit]:
                keys[key] = _list_each(of_unit)
    resources = {container.request.resource for container in containers}
    if Dialect.VENDOR in dialects and len(resources) == 1:  # one list for the whole pod: it cannot hold two resources
        text = format_ids(number for _, number in _all_ids(containers))
        alone = Dialect.NEURON_PLUGIN not in dialects  # no other annotation assigns the ids to containers
        if alone and _divided(text, tuple(container.request for container in containers)) != containers:
            text = _list_each(containers)
        keys |= {VENDOR_IDS_KEY: text, VENDOR_RESOURCE_KEY: resources.pop().value}
    return keys


def read_assignment(pod: str, annotations: Mapping[str, str], request: PodRequest) -> Assignment | None:
    """The assignment of a pod; None if the pod has no assignment key or requests nothing.

    ``pod`` is the pod's name for errors. Ids are not compared with a geometry: the node decides whether they exist and
    are linked. The annotations of a pod without requests are ignored: it cannot hold anything.

    Raises:
        AnnotationError: a key is malformed, does not fit what the pod requests, gives an id to two containers that
            the kubelet would keep apart, or the dialects contradict each other.
    """
    if not request:
        return None
    texts = tuple([(key, annotations[key]) for key in _READ_KEYS if key in annotations])
    is_short = sum(len(value) for _, value in texts) <= _LONGEST_REMEMBERED
    try:
        containers = _read(texts, request) if is_short else _read.__wrapped__(texts, request)
    except AssignmentError as error:
        raise AssignmentError(pod, error.key, error.value, error.expected) from None
    if not containers:
        return None
    time = annotations.get(ALLOC_TIME_KEY, "0")
    if not (time.isascii() and time.isdigit() and len(time) <= _MOST_DIGITS):
        raise AssignmentError(pod, ALLOC_TIME_KEY, time, "expected unix nanoseconds in decimal")
    return Assignment(containers, int(time), annotations.get(ALLOCATED_KEY, "").lower() == "true")


@lru_cache(maxsize=_REMEMBERED)
def _read(texts: tuple[tuple[str, str], ...], request: PodRequest) -> tuple[ContainerAssignment, ...]:
    """The ids in these annotations; empty without any. Cached, as many pods of a cluster have the same ids.

    Raises:
        AssignmentError: as above, without the pod's name.
    """
    annotations = dict(texts)
    ours = _read_ours(annotations, request)
    vendors = _read_vendors(annotations, request)
    theirs = annotations.get(VENDOR_IDS_KEY, "")  # its ids by container if it lists them so, else all ids together
    agree = ours == vendors if _LIST_SEPARATOR in theirs else _all_ids(ours) == _all_ids(vendors)
    if ours and vendors and not agree:
        raise AssignmentError("", VENDOR_IDS_KEY, theirs, f"expected the ids that {DEVICES_KEY} and {CORES_KEY} give")
    chosen = ours or vendors
    _refuse_sharing(annotations, chosen)
    return chosen


def _list_each(containers: Iterable[ContainerAssignment]) -> str:
    return _LIST_SEPARATOR.join(",".join(map(str, container.ids)) for container in containers)


def _read_ours(annotations: Mapping[str, str], request: PodRequest) -> tuple[ContainerAssignment, ...]:
    """The lists of both keys, each checked against its container."""
    if DEVICES_KEY not in annotations and CORES_KEY not in annotations:
        return ()
    lists = {}
    for unit, key in _UNIT_KEYS.items():
        parts, value = [container for container in request if container.resource.unit is unit], annotations.get(key, "")
        texts = value.split(_LIST_SEPARATOR) if key in annotations else []
        if len(texts) != len(parts):
            missing = "" if key in annotations else ": the key is missing"
            raise AssignmentError("", key, value, f"expected {_expectation(parts)}{missing}")
        held = [_checked(key, value, container, text) for container, text in zip(parts, texts, strict=True)]
        lists[unit] = iter(held)
    return tuple(next(lists[container.resource.unit]) for container in request)


def _read_vendors(annotations: Mapping[str, str], request: PodRequest) -> tuple[ContainerAssignment, ...]:
    """One list, divided among the containers in order, or one list for each joined by ``|``; all have the same unit."""
    value = annotations.get(VENDOR_IDS_KEY)
    if value is None:
        return ()
    units = {container.resource.unit for container in request}
    if len(units) > 1:
        expected = "expected a pod that requests devices or cores, this one requests both"
        raise AssignmentError("", VENDOR_IDS_KEY, value, expected)
    named = annotations.get(VENDOR_RESOURCE_KEY)
    fitting = [resource.value for resource in Resource if resource.unit in units]
    if named is not None and named not in fitting:
        raise AssignmentError("", VENDOR_RESOURCE_KEY, named, f"expected {' or '.join(fitting)}, as the pod requests")
    if len(request) == 1 or _LIST_SEPARATOR in value:
        texts = value.split(_LIST_SEPARATOR)
        if len(texts) != len(request):
            raise AssignmentError("", VENDOR_IDS_KEY, value, f"expected {_expectation(list(request))}")
        return tuple(
            _checked(VENDOR_IDS_KEY, value, container, text) for container, text in zip(request, texts, strict=True)
        )
    return _divided(value, request)


def _divided(value: str, request: PodRequest) -> tuple[ContainerAssignment, ...]:
    """Divide one list as the kubelet would: later containers first get the ids of plain init containers."""
    fresh = list(_parsed(VENDOR_IDS_KEY, value, value))
    dealt: list[ContainerAssignment] = []
    reusable: dict[Resource, list[int]] = {resource: [] for resource in Resource}
    for container in request:
        held = reusable[container.resource]
        again, unused = held[: container.count], held[container.count :]
        missing = container.count - len(again)
        ids, fresh = [*again, *fresh[:missing]], fresh[missing:]
        dealt.append(ContainerAssignment(container, tuple(sorted(ids))))
        reusable[container.resource] = [*ids, *unused] if container.kind is ContainerKind.INIT else unused
    if fresh or any(len(container.ids) != container.request.count for container in dealt):
        raise AssignmentError("", VENDOR_IDS_KEY, value, f"expected {_expectation(list(request))}")
    return tuple(dealt)


def _all_ids(containers: tuple[ContainerAssignment, ...]) -> set[tuple[Unit, int]]:
    return {(container.request.resource.unit, number) for container in containers for number in container.ids}


def _refuse_sharing(annotations: Mapping[str, str], containers: tuple[ContainerAssignment, ...]) -> None:
    """Refuse an id in two containers, unless the first is a plain init container with the same resource name."""
    taken: dict[Unit, set[int]] = {unit: set() for unit in Unit}
    reusable: dict[Resource, set[int]] = {resource: set() for resource in Resource}
    for container in containers:
        request, ids = container.request, set(container.ids)
        if shared := (ids - reusable[request.resource]) & taken[request.resource.unit]:
            unit_key = _UNIT_KEYS[request.resource.unit]
            key = unit_key if unit_key in annotations else VENDOR_IDS_KEY
            expected = f"the id {min(shared)} of container {request.name} is another container's, expected its own"
            raise AssignmentError("", key, annotations[key], expected)
        taken[request.resource.unit] |= ids
        reusable[request.resource] -= ids
        if request.kind is ContainerKind.INIT:
            reusable[request.resource] |= ids


def _checked(key: str, value: str, container: ContainerRequest, text: str) -> ContainerAssignment:
    ids = _parsed(key, value, text)
    if len(ids) != container.count:
        raise AssignmentError("", key, value, f"expected {container.count} ids for container {container.name}")
    return ContainerAssignment(container, ids)


def _parsed(key: str, value: str, text: str) -> tuple[int, ...]:
    try:
        return parse_ids(text)
    except IdListError as error:
        raise AssignmentError("", key, value, str(error)) from None


def _expectation(parts: list[ContainerRequest]) -> str:
    if not parts:
        return "no list: no container requests that unit"
    lists = ", ".join(f"{container.count} for {container.name}" for container in parts)
    return f"{len(parts)} list(s) of ids joined by {_LIST_SEPARATOR!r} ({lists})"
