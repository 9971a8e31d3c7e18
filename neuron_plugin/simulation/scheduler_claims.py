"""What kube-scheduler does about the claims of a pod: it chooses devices, the first that fit in the slices' order.

A claim that is allocated is taken as it is and ties its pod to its node; the others are allocated on the node that is
chosen. Both are reserved for the pod before it is bound. Followed are classes, selectors that compare attributes with
constants, counts and ``All``, ``matchAttribute`` and ``distinctAttribute``, alternatives, configuration, and taints
that a request does not tolerate. Admin access, shared counters, consumable capacity and lists as attributes are not,
nor is any other CEL: a claim with such a selector waits, and the reason names it. Sources of 1.36.2, also of the
reasons' words: ``staging/src/k8s.io/dynamic-resource-allocation/structured`` and
``pkg/scheduler/framework/plugins/dynamicresources``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_plugin.cluster.claims import FINALIZER
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AnyJson,
    Refusal,
)
from neuron_plugin.simulation.api_server_pods import now_text
from neuron_plugin.simulation.api_server_validation import MOST_RESERVED
from neuron_plugin.simulation.claim_controller import claim_names, claim_node, consumer

NOT_ALLOCATED = "cannot allocate all claims"
"""The scheduler's words for a node that has not the devices."""

PooledDevice = tuple[str, str, str]
"""Driver, pool and device."""

_COMPARISON = re.compile(
    r"""(?: device\.(?P<driver>driver)
        | device\.attributes\[(["'])(?P<domain>[^"']+)\2\]\.\??(?P<name>\w+)(?:\.orValue\((?:""|''|[0-9]+|false)\))? )
    \s* (?P<operator>==|!=|<=|>=|<|>) \s*
    (?: (?P<number>-?[0-9]+) | (?P<bool>true|false) | (["'])(?P<text>[^"']*)\8 )""",
    re.VERBOSE,
)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class NotAllocatedError(Exception):
    """No devices for claims; the text is for the pod."""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a slice. ``attributes`` have full names, such as ``neuron.aws.com/deviceId``."""

    id: PooledDevice
    attributes: Mapping[str, str | int | bool]
    taints: tuple[AnyJson, ...]


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One way to serve a request; ``count`` None is all devices."""

    name: str
    count: int | None
    fitting: tuple[OfferedDevice, ...]


_Chosen = tuple[tuple[str, OfferedDevice], ...]
"""Devices with the request that each is for."""


def offered_devices(slices: Iterable[AnyJson], node: str) -> list[OfferedDevice]:
    """The devices of a node, in the order of its slices' names."""
    offered = []
    for resource_slice in sorted(slices, key=lambda resource_slice: str(resource_slice["metadata"]["name"])):
        spec = resource_slice["spec"]
        if spec.get("nodeName") != node:
            continue
        for entry in spec.get("devices") or ():
            attributes = {
                name if "/" in name else f"{spec['driver']}/{name}": next(iter(value.values()))
                for name, value in (entry.get("attributes") or {}).items()
            }
            device = spec["driver"], spec["pool"]["name"], entry["name"]
            offered.append(OfferedDevice(device, attributes, tuple(entry.get("taints") or ())))
    return offered


def taken_devices(claims: Iterable[AnyJson]) -> set[PooledDevice]:
    """The devices that are allocated to claims."""
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {} for claim in claims)
    return {
        (result["driver"], result["pool"], result["device"])
        for allocated in results
        for result in allocated.get("results") or ()
    }


def allocate(
    claim: AnyJson, classes: Mapping[str, AnyJson], devices: Sequence[OfferedDevice], taken: Collection[PooledDevice]
) -> AnyJson:
    """The ``devices`` of an allocation for a claim, from the devices of one node without those ``taken``.

    Raises:
        NotAllocatedError: there are none, or the claim asks for what is not simulated.
    """
    spec = (claim.get("spec") or {}).get("devices") or {}
    requests = [
        [
            _alternative(request, alternative, classes, devices, taken)
            for alternative in request.get("firstAvailable") or [request.get("exactly")]
        ]
        for request in spec.get("requests") or ()
    ]
    constraints = spec.get("constraints") or ()
    chosen = next(_choices(requests, constraints, ()), None)
    if chosen is None:
        raise NotAllocatedError(NOT_ALLOCATED)
    results = [
        {"request": request, "driver": device.id[0], "pool": device.id[1], "device": device.id[2]}
        for request, device in chosen
    ]
    configs = [
        {"source": "FromClass", "requests": [request["name"]], **config}
        for request in spec.get("requests") or ()
        for config in classes[_class_of(request)]["spec"].get("config") or ()
    ]
    configs += [{"source": "FromClaim", **config} for config in spec.get("config") or ()]
    return {"results": results} | ({"config": configs} if configs else {})


def claims_of(api: SimulatedApiServer, pod: AnyJson) -> list[AnyJson]:
    """The claims of a pod, before any node is looked at.

    Raises:
        NotAllocatedError: one of them is not there, goes, or is full.
    """
    metadata, claims = pod["metadata"], []
    for name in claim_names(pod).values():
        if not name:
            raise NotAllocatedError(f'pod "{metadata["namespace"]}/{metadata["name"]}": ResourceClaim not created yet')
        try:
            claim = api.get(RESOURCE_CLAIMS, name, metadata["namespace"])
        except Refusal as refusal:
            raise NotAllocatedError(str(refusal)) from None
        status = claim.get("status") or {}
        if claim["metadata"].get("deletionTimestamp"):
            raise NotAllocatedError(f'resourceclaim "{name}" is being deleted')
        reserved = status.get("reservedFor") or ()
        if len(reserved) >= MOST_RESERVED and metadata["uid"] not in {consumer["uid"] for consumer in reserved}:
            raise NotAllocatedError("resourceclaim in use")
        claims.append(claim)
    return claims


def allocations_on(api: SimulatedApiServer, claims: Sequence[AnyJson], node: str) -> list[AnyJson]:
    """The allocation of each claim on a node.

    Raises:
        NotAllocatedError: the node has not the devices, or a claim is allocated elsewhere.
    """
    classes = {device_class["metadata"]["name"]: device_class for device_class in api.objects(DEVICE_CLASSES)}
    devices, taken = offered_devices(api.objects(RESOURCE_SLICES), node), taken_devices(api.objects(RESOURCE_CLAIMS))
    allocations: list[AnyJson] = []
    for claim in claims:
        allocated = (claim.get("status") or {}).get("allocation")
        if allocated and claim_node(claim) not in {"", node}:
            raise NotAllocatedError("resourceclaim not available on the node")
        if not allocated:
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            chosen = allocate(claim, classes, devices, taken)
            allocated = {"devices": chosen, "nodeSelector": selector, "allocationTimestamp": now_text()}
            taken |= taken_devices([{"status": {"allocation": allocated}}])
        allocations.append(allocated)
    return allocations


def reserve(api: SimulatedApiServer, pod: AnyJson, claims: Sequence[AnyJson], allocations: Sequence[AnyJson]) -> None:
    """Write the allocations of claims that had none, and that all of them are for the pod.

    An allocation by somebody else without a time is given one, as the real scheduler does.

    Raises:
        Refusal: 422, that is a change of an allocation; 404 or 409, the claim has changed.
    """
    user = consumer(pod)
    for claim, allocated in zip(claims, allocations, strict=True):
        metadata, reserved = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or []
        if user in reserved:
            continue
        name, namespace, finalizers = metadata["name"], metadata["namespace"], metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            api.change(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}, namespace)
        status = {"allocation": {"allocationTimestamp": now_text(), **allocated}, "reservedFor": [*reserved, user]}
        api.change(RESOURCE_CLAIMS, name, {"status": status}, namespace, "status")


# The choice.


def _class_of(request: AnyJson) -> str:
    return str((request.get("exactly") or (request.get("firstAvailable") or [{}])[0])["deviceClassName"])


def _alternative(
    request: AnyJson,
    alternative: AnyJson,
    classes: Mapping[str, AnyJson],
    devices: Sequence[OfferedDevice],
    taken: Collection[PooledDevice],
) -> _Alternative:
    """One way to serve a request, with the devices that it may have."""
    name = request["name"] if alternative is request.get("exactly") else f"{request['name']}/{alternative['name']}"
    known = classes.get(alternative["deviceClassName"])
    if known is None:
        raise NotAllocatedError(f"request {name}: device class {alternative['deviceClassName']} does not exist")
    selectors = [*(known["spec"].get("selectors") or ()), *(alternative.get("selectors") or ())]
    tests = [_test(selector["cel"]["expression"]) for selector in selectors]
    meant = [device for device in devices if all(test(device) for test in tests)]
    tolerations = alternative.get("tolerations") or ()
    free = [
        device
        for device in meant
        if device.id not in taken and all(_tolerates(tolerations, taint) for taint in device.taints)
    ]
    if alternative.get("allocationMode") != "All":
        return _Alternative(name, int(alternative.get("count") or 1), tuple(free))
    return _Alternative(name, None, tuple(free) if len(free) == len(meant) else ())


def _test(expression: str) -> Callable[[OfferedDevice], bool]:
    """A selector as a function: a conjunction of comparisons. An attribute that a device has not meets none."""
    tests = []
    for term in expression.split("&&"):
        match = _COMPARISON.fullmatch(term.strip().removeprefix("(").removesuffix(")").strip())
        if match is None:
            raise NotAllocatedError(f"the selector {term.strip()!r} is not simulated")
        wanted: str | int | bool = match["text"] or ""
        if match["number"] is not None:
            wanted = int(match["number"])
        elif match["bool"] is not None:
            wanted = match["bool"] == "true"
        key = "" if match["driver"] else f"{match['domain']}/{match['name']}"
        tests.append((key, _OPERATORS[match["operator"]], wanted))

    def meets(device: OfferedDevice) -> bool:
        values = (
            (device.attributes.get(key) if key else device.id[0], compare, wanted) for key, compare, wanted in tests
        )
        return all(type(value) is type(wanted) and compare(value, wanted) for value, compare, wanted in values)

    return meets


def _tolerates(tolerations: Iterable[AnyJson], taint: AnyJson) -> bool:
    """Whether a taint keeps no new claim off (``resourceclaim/devicetoleration.go``)."""
    if taint.get("effect") not in {"NoSchedule", "NoExecute"}:
        return True
    return any(
        toleration.get("effect") in {None, "", taint["effect"]}
        and toleration.get("key") in {None, "", taint["key"]}
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def _choices(
    requests: Sequence[Sequence[_Alternative]], constraints: Sequence[AnyJson], chosen: _Chosen
) -> Iterator[_Chosen]:
    """Devices for all requests, each way after the other."""
    if not requests:
        yield chosen
        return
    for alternative in requests[0]:
        count = len(alternative.fitting) if alternative.count is None else alternative.count
        if count:
            for more in _sets(alternative.name, alternative.fitting, count, constraints, chosen):
                yield from _choices(requests[1:], constraints, more)


def _sets(
    request: str, candidates: Sequence[OfferedDevice], count: int, constraints: Sequence[AnyJson], chosen: _Chosen
) -> Iterator[_Chosen]:
    """The ways to add ``count`` devices for a request, in the order of the candidates."""
    if not count:
        yield chosen
        return
    held = {device.id for _, device in chosen}
    fitting = [
        candidate
        for candidate in candidates
        if candidate.id not in held and _keeps(request, candidate, constraints, chosen)
    ]
    for place in range(len(fitting) - count + 1):
        yield from _sets(request, fitting[place + 1 :], count - 1, constraints, (*chosen, (request, fitting[place])))


def _keeps(request: str, device: OfferedDevice, constraints: Sequence[AnyJson], chosen: _Chosen) -> bool:
    """Whether a device for a request keeps all constraints beside those chosen already."""
    for constraint in constraints:
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
        if not _is_meant(constraint, request):
            continue
        if attribute not in device.attributes:
            return False
        others = [device.attributes[attribute] for name, device in chosen if _is_meant(constraint, name)]
        value = device.attributes[attribute]
        if any(other != value for other in others) if constraint.get("matchAttribute") else value in others:
            return False
    return True


def _is_meant(constraint: AnyJson, request: str) -> bool:
    names = constraint.get("requests")
    return not names or request in names or request.partition("/")[0] in names
