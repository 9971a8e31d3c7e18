"""ResourceClaims in the simulated kube-controller-manager and kube-scheduler: create, allocate, reserve, deallocate.

The controller creates claims from templates at once, also for gated pods, and deletes a claim with its pod. It
deallocates a claim that is reserved for no pod; an allocated claim keeps its finalizer. The scheduler takes the first
devices that fit, in the order of the slices, and reserves the claims before it binds the pod. An allocated claim ties
its pod to its node. Simulated are classes, selectors that compare attributes with constants, counts and ``All``,
``matchAttribute`` and ``distinctAttribute``, configuration, and taints. A claim with any other selector waits, and the
reason names it. Not simulated are alternatives, admin access, shared counters, consumable capacity and list attributes.
Sources (1.36.2): ``pkg/controller/resourceclaim``, ``staging/src/k8s.io/dynamic-resource-allocation/structured`` and
``pkg/scheduler/framework/plugins/dynamicresources``.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.cluster import ObjectReference
from neuron_plugin.cluster.claims import FINALIZER, neuron_claim
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS as CLAIM_RECORDS
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.simulation import api_server_kinds as kinds
from neuron_plugin.simulation.api_server_kinds import AnyJson, Refusal
from neuron_plugin.simulation.api_server_rules import MOST_RESERVED, now_text

if TYPE_CHECKING:  # the server imports this module for its tables
    from neuron_plugin.simulation.api_server import SimulatedApiServer

POD_CLAIM_KEY = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: the pod's name for it."""
NOT_CREATED = "FailedResourceClaimCreation"
"""Reason of the event for a claim that cannot be created."""


def sync_claims(api: SimulatedApiServer) -> None:
    """Bring all claims up to date, with an event on a pod whose claim cannot be created."""
    for pod in api.objects(kinds.PODS):
        if not pod["metadata"].get("deletionTimestamp") and pod["spec"].get("resourceClaims"):
            _make_claims(api, pod)
    by_uid = {pod["metadata"]["uid"]: pod for pod in api.objects(kinds.PODS)}
    for claim in api.objects(kinds.RESOURCE_CLAIMS):
        _reserve(api, claim, by_uid)
        _give_up(api, claim["metadata"]["namespace"], claim["metadata"]["name"], by_uid)


def claim_names(pod: AnyJson) -> dict[str, str]:
    """A pod's claims, by the pod's names for them; empty for a claim that does not exist yet."""
    made = {
        status["name"]: status.get("resourceClaimName") or ""
        for status in pod["status"].get("resourceClaimStatuses") or ()
    }
    return {
        entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"], "")
        for entry in pod["spec"].get("resourceClaims") or ()
    }


def consumer(pod: AnyJson) -> AnyJson:
    """A pod's entry in ``reservedFor``."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def claim_node(claim: AnyJson) -> str:
    """The node of a claim's allocation; empty if there is none."""
    return neuron_claim(CLAIM_RECORDS.decode(msgspec.json.encode(claim)), DRA_DRIVER).node


def _make_claims(api: SimulatedApiServer, pod: AnyJson) -> None:
    """Create a pod's missing claims, and write their names into its status."""
    metadata, namespace = pod["metadata"], pod["metadata"]["namespace"]
    owned = {
        claim["metadata"].get("annotations", {}).get(POD_CLAIM_KEY): claim["metadata"]["name"]
        for claim in api.objects(kinds.RESOURCE_CLAIMS)
        if claim["metadata"]["namespace"] == namespace and _owner(claim) == metadata["uid"]
    }
    known, statuses = claim_names(pod), []
    for entry in pod["spec"]["resourceClaims"]:
        template, name = entry.get("resourceClaimTemplateName"), entry["name"]
        if not template or (name in owned and known[name] == owned[name]):
            continue
        if name not in owned:
            try:
                made = claim_from(pod, name, api.get(kinds.CLAIM_TEMPLATES, template, namespace))
                owned[name] = api.create(kinds.RESOURCE_CLAIMS, made, namespace)["metadata"]["name"]
            except Refusal as refusal:
                why = f'PodResourceClaim {name}: resource claim template "{template}": {refusal}'
                said = {(event["note"], event["regarding"].get("uid")) for event in api.objects(kinds.EVENTS)}
                if (why, metadata["uid"]) not in said:
                    warn(api, pod, why, reason=NOT_CREATED, action="CreateResourceClaim", reporter="resource_claim")
                continue
        statuses.append({"name": name, "resourceClaimName": owned[name]})
    if statuses:
        api.patch_status(kinds.PODS, metadata["name"], {"resourceClaimStatuses": statuses}, namespace)


def warn(api: SimulatedApiServer, pod: AnyJson, note: str, *, reason: str, action: str, reporter: str) -> None:
    """Write an event about a pod."""
    metadata, by = pod["metadata"], {"reporter": reporter, "instance": reporter}
    about = ObjectReference("Pod", metadata["name"], metadata["uid"], "v1", metadata["namespace"])
    event = create_event(about, reason=reason, note=note, action=action, now=utc_now(), warning=True, **by)
    api.create(kinds.EVENTS, event.body or {}, metadata["namespace"])


def claim_from(pod: AnyJson, name: str, template: AnyJson) -> AnyJson:
    """A pod's claim from a template."""
    metadata, meant = pod["metadata"], template["spec"].get("metadata") or {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    annotations = {**(meant.get("annotations") or {}), POD_CLAIM_KEY: name}
    made = {"generateName": f"{metadata['name']}-{name}-", "ownerReferences": [owner], "annotations": annotations}
    return {"metadata": made | {"labels": meant.get("labels") or {}}, "spec": template["spec"].get("spec") or {}}


def _owner(claim: AnyJson) -> str:
    """The UID of the pod that owns a claim; empty if there is none."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("kind") == "Pod" and owner.get("controller")), "")


def _reserve(api: SimulatedApiServer, claim: AnyJson, pods: Mapping[str, AnyJson]) -> None:
    """Reserve an allocated claim for its pods that were bound without a scheduler."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    if not status.get("allocation") or metadata.get("deletionTimestamp"):
        return
    reserved = status.get("reservedFor") or []
    known = {consumer["uid"] for consumer in reserved}
    missing = [
        consumer(pod)
        for uid, pod in pods.items()
        if uid not in known
        and pod["spec"].get("nodeName")
        and pod["metadata"]["namespace"] == metadata["namespace"]
        and metadata["name"] in claim_names(pod).values()
        and not (pod["metadata"].get("deletionTimestamp") or _is_done(pod))
    ]
    if missing:
        change = {"status": {"reservedFor": [*reserved, *missing]}}
        api.change(kinds.RESOURCE_CLAIMS, metadata["name"], change, metadata["namespace"], "status")


def _give_up(api: SimulatedApiServer, namespace: str, name: str, pods: Mapping[str, AnyJson]) -> None:
    """Remove ended pods from a claim. If none is left, deallocate it; delete it if its owner has ended."""
    claim = api.get(kinds.RESOURCE_CLAIMS, name, namespace)
    status = claim.get("status") or {}
    reserved = status.get("reservedFor") or []
    remaining = [
        consumer for consumer in reserved if consumer.get("resource") != "pods" or _goes_on(pods.get(consumer["uid"]))
    ]
    deleted = bool(claim["metadata"].get("deletionTimestamp"))
    if len(remaining) < len(reserved) or (deleted and not remaining and status.get("allocation")):
        change: AnyJson = {"reservedFor": remaining}
        if not remaining:
            change["allocation"] = None
        claim = api.change(kinds.RESOURCE_CLAIMS, name, {"status": change}, namespace, "status")
    finalizers = claim["metadata"].get("finalizers") or []
    freed = len(remaining) < len(reserved) or deleted
    if FINALIZER in finalizers and freed and not claim["status"].get("allocation"):
        kept = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        api.change(kinds.RESOURCE_CLAIMS, name, {"metadata": {"finalizers": kept}}, namespace)
    owner = _owner(claim)
    if owner and not remaining and not deleted and not _goes_on(pods.get(owner)):
        api.delete(kinds.RESOURCE_CLAIMS, name, namespace)


def _goes_on(pod: AnyJson | None) -> bool:
    return pod is not None and not _is_done(pod)


def _is_done(pod: AnyJson) -> bool:
    """Whether no container of the pod runs or can ever run."""
    never_bound = pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName")
    return pod["status"].get("phase") in TERMINAL_PHASES or bool(never_bound)


# The scheduler.

NOT_ALLOCATED = "cannot allocate all claims"
"""The scheduler's reason for a node that lacks devices."""

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
    """A claim cannot be allocated; the text is for the pod."""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device in a slice. ``attributes`` have full names, such as ``neuron.aws.com/deviceId``."""

    id: PooledDevice
    attributes: Mapping[str, str | int | bool]
    taints: tuple[AnyJson, ...]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request: how many devices, and the devices that fit."""

    name: str
    count: int
    fitting: tuple[OfferedDevice, ...]


_Chosen = tuple[tuple[str, OfferedDevice], ...]
"""Request and device for each allocated device."""


def offered_devices(slices: Iterable[AnyJson], node: str) -> list[OfferedDevice]:
    """A node's devices, sorted by slice name."""
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
    """The allocated devices of claims."""
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {} for claim in claims)
    return {
        (result["driver"], result["pool"], result["device"])
        for allocated in results
        for result in allocated.get("results") or ()
    }


def allocate(
    claim: AnyJson, classes: Mapping[str, AnyJson], devices: Sequence[OfferedDevice], taken: Collection[PooledDevice]
) -> AnyJson:
    """The ``devices`` of a claim's allocation, from a node's devices except those ``taken``.

    Raises:
        NotAllocatedError: no devices fit, or the claim needs a feature that is not simulated.
    """
    spec = (claim.get("spec") or {}).get("devices") or {}
    requests = [_read_request(request, classes, devices, taken) for request in spec.get("requests") or ()]
    constraints = spec.get("constraints") or ()
    chosen = next(_choices(requests, constraints), None)
    if chosen is None:
        raise NotAllocatedError(NOT_ALLOCATED)
    results = [
        {"request": request, "driver": device.id[0], "pool": device.id[1], "device": device.id[2]}
        for request, device in chosen
    ]
    configs = [
        {"source": "FromClass", "requests": [request["name"]], **config}
        for request in spec.get("requests") or ()
        for config in classes[request["exactly"]["deviceClassName"]]["spec"].get("config") or ()
    ]
    configs += [{"source": "FromClaim", **config} for config in spec.get("config") or ()]
    return {"results": results} | ({"config": configs} if configs else {})


def claims_of(api: SimulatedApiServer, pod: AnyJson) -> list[AnyJson]:
    """A pod's claims.

    Raises:
        NotAllocatedError: a claim does not exist, is being deleted, or is full.
    """
    metadata, claims = pod["metadata"], []
    for name in claim_names(pod).values():
        if not name:
            raise NotAllocatedError(f'pod "{metadata["namespace"]}/{metadata["name"]}": ResourceClaim not created yet')
        try:
            claim = api.get(kinds.RESOURCE_CLAIMS, name, metadata["namespace"])
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
        NotAllocatedError: the node lacks devices, or a claim is allocated on another node.
    """
    classes = {device_class["metadata"]["name"]: device_class for device_class in api.objects(kinds.DEVICE_CLASSES)}
    devices = offered_devices(api.objects(kinds.RESOURCE_SLICES), node)
    taken = taken_devices(api.objects(kinds.RESOURCE_CLAIMS))
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
    """Write the allocations, and reserve all claims for the pod.

    Like the real scheduler, it adds a time to an allocation without one.

    Raises:
        Refusal: 422, the added time changes the allocation; 404 or 409, the claim has changed.
    """
    user = consumer(pod)
    for claim, allocated in zip(claims, allocations, strict=True):
        metadata, reserved = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or []
        if user in reserved:
            continue
        name, namespace, finalizers = metadata["name"], metadata["namespace"], metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            api.change(kinds.RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}, namespace)
        status = {"allocation": {"allocationTimestamp": now_text(), **allocated}, "reservedFor": [*reserved, user]}
        api.change(kinds.RESOURCE_CLAIMS, name, {"status": status}, namespace, "status")


# The choice of devices.


def _read_request(
    request: AnyJson, classes: Mapping[str, AnyJson], devices: Sequence[OfferedDevice], taken: Collection[PooledDevice]
) -> _Request:
    """Read a request, with the free devices that fit it."""
    name, exact = request["name"], request.get("exactly")
    if exact is None:
        raise NotAllocatedError(f"request {name}: alternatives are not simulated")
    known = classes.get(exact["deviceClassName"])
    if known is None:
        raise NotAllocatedError(f"request {name}: device class {exact['deviceClassName']} does not exist")
    selectors = [*(known["spec"].get("selectors") or ()), *(exact.get("selectors") or ())]
    tests = [_test(selector["cel"]["expression"]) for selector in selectors]
    meant = [device for device in devices if all(test(device) for test in tests)]
    tolerations = exact.get("tolerations") or ()
    free = tuple(
        device
        for device in meant
        if device.id not in taken and all(_tolerates(tolerations, taint) for taint in device.taints)
    )
    everything = exact.get("allocationMode") == "All"
    return _Request(name, len(meant) or 1 if everything else int(exact.get("count") or 1), free)


def _test(expression: str) -> Callable[[OfferedDevice], bool]:
    """A selector as a function: comparisons joined by &&. A missing attribute meets no comparison."""
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
    """Whether the tolerations allow a device with this taint (``resourceclaim/devicetoleration.go``)."""
    if taint.get("effect") not in {"NoSchedule", "NoExecute"}:
        return True
    return any(
        toleration.get("effect") in {None, "", taint["effect"]}
        and toleration.get("key") in {None, "", taint["key"]}
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def _choices(requests: Sequence[_Request], constraints: Sequence[AnyJson], chosen: _Chosen = ()) -> Iterator[_Chosen]:
    """All ways to choose devices for the requests, in the order of their devices."""
    counts = Counter(name for name, _ in chosen)
    request = next((each for each in requests if counts[each.name] < each.count), None)
    if request is None:
        yield chosen
        return
    own, held = [device for name, device in chosen if name == request.name], {device.id for _, device in chosen}
    later = request.fitting[request.fitting.index(own[-1]) + 1 :] if own else request.fitting
    left = [each for each in later if each.id not in held and _keeps(request.name, each, constraints, chosen)]
    for place in range(len(left) - (request.count - counts[request.name]) + 1):
        yield from _choices(requests, constraints, (*chosen, (request.name, left[place])))


def _keeps(request: str, device: OfferedDevice, constraints: Sequence[AnyJson], chosen: _Chosen) -> bool:
    """Whether a device meets all constraints together with the chosen ones."""
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
    return request in (constraint.get("requests") or [request])
