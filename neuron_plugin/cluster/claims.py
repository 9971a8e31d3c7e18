"""ResourceClaims and ResourceSlices as the API server sends them, and the one decoder of a claim.

Group ``resource.k8s.io``, version v1 (Kubernetes 1.34). Selectors are CEL, which is not evaluated here: only a
conjunction of comparisons with our attributes is read. A claim with any other selector cannot be judged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from neuron_plugin.allocation import PodUid, Rejection
from neuron_plugin.allocation.claims import (
    CORE_CLASS,
    GROUP_ATTRIBUTES,
    MACHINE_ATTRIBUTES,
    Attributes,
    ClaimRequest,
    ClaimResult,
    NeuronClaim,
)
from neuron_plugin.allocation.rejection import INVALID_REQUEST
from neuron_plugin.cluster.api import UNREADABLE, JsonObject
from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire
from neuron_plugin.cluster.pod_wire import WireNodeSelector, unix_seconds
from neuron_plugin.topology import Unit

CONFIG_KIND = "NeuronConfig"
"""The kind of a claim's configuration in ``neuron.aws.com/v1``: AWS's ``logicalNeuronCore`` and our ``cores``."""
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim from being deleted while a pod uses it (pkg/controller/resourceclaim)."""
MOST_CORES = 512
"""Cores of a node: 64 devices with eight cores each."""

_COMPARISON = re.compile(
    r"""device\.attributes\[(?P<quote>["'])(?P<domain>[a-z0-9.-]+)(?P=quote)\]\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""\s*==\s*(?:(?P<number>[0-9]{1,9})|(?P<bool>true|false)|(?P<q>["'])(?P<text>[^"'\\]{0,64})(?P=q))""",
    re.ASCII,
)
_DRIVER_COMPARISON = re.compile(r"""device\.driver\s*==\s*(["'])(?P<driver>[a-z0-9.-]+)\1""", re.ASCII)


class _Cel(Wire, frozen=True):
    expression: str = ""


class _Selector(Wire, frozen=True):
    cel: _Cel = _Cel()


class _Exact(Wire, frozen=True):
    device_class_name: str = ""
    selectors: tuple[_Selector, ...] | None = None
    allocation_mode: str = "ExactCount"
    count: int | None = None
    admin_access: bool | None = None


class _Request(Wire, frozen=True):
    name: str = ""
    exactly: _Exact | None = None
    first_available: tuple[_Exact, ...] | None = None


class _Constraint(Wire, frozen=True):
    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Opaque(Wire, frozen=True):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Config(Wire, frozen=True):
    source: str = ""
    opaque: _Opaque | None = None


class _Devices(Wire, frozen=True):
    requests: tuple[_Request, ...] | None = None
    constraints: tuple[_Constraint, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Spec(Wire, frozen=True):
    devices: _Devices = _Devices()


class _Result(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""


class _AllocatedDevices(Wire, frozen=True):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(Wire, frozen=True):
    devices: _AllocatedDevices = _AllocatedDevices()
    node_selector: WireNodeSelector | None = None
    allocation_timestamp: str | None = None


class _Consumer(Wire, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(Wire, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class ResourceClaim(ApiObject, frozen=True):
    """A claim."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


class _NeuronConfig(msgspec.Struct, rename="camel", frozen=True):
    kind: str = ""
    logical_neuron_core: int | None = None
    cores: int | None = None


RESOURCE_CLAIMS = ApiResource("/apis/resource.k8s.io/v1", "resourceclaims", ResourceClaim)


class _Taint(Wire, frozen=True):
    key: str = ""


class _SliceDevice(Wire, frozen=True):
    name: str = ""
    taints: tuple[_Taint, ...] | None = None


class _SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str = ""
    devices: tuple[_SliceDevice, ...] | None = None


class ResourceSlice(ApiObject, frozen=True):
    """A slice of the devices of a driver; ``spec`` is decoded when needed."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def driver(self) -> str:
        """The driver that published it."""
        return self._read.driver

    @property
    def taints(self) -> dict[str, frozenset[str]]:
        """The keys of each device's taints, by its name."""
        return {
            device.name: frozenset(taint.key for taint in device.taints or ()) for device in self._read.devices or ()
        }

    @property
    def _read(self) -> _SliceSpec:
        try:
            return msgspec.json.decode(self.spec, type=_SliceSpec)
        except UNREADABLE:
            return _SliceSpec()


RESOURCE_SLICES = ApiResource("/apis/resource.k8s.io/v1", "resourceslices", ResourceSlice)


def neuron_claim(claim: ResourceClaim, driver: str) -> NeuronClaim:
    """Decode a claim for the driver of this name. It never fails.

    The DeviceClass of whole devices has the driver's name, the class of cores is ``CORE_CLASS``.
    """
    allocation, devices = claim.status.allocation, claim.spec.devices
    results = (allocation.devices.results if allocation else None) or ()
    requests: tuple[ClaimRequest, ...] | Rejection
    # An allocation has the configuration in force, including that of the class.
    configs = (allocation.devices.config if allocation else None) or devices.config or ()
    config: _NeuronConfig | Rejection = _config(configs, {driver, "neuron.aws.com"})
    try:
        requests = () if isinstance(config, Rejection) else _requests(devices, driver, config.cores or 0)
    except _UnservedError as error:
        requests = replace(INVALID_REQUEST, detail=f"claim {claim.namespace}/{claim.name}: {error}")
    classes = {driver, CORE_CLASS}
    return NeuronClaim(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        version=claim.resource_version,
        requests=config if isinstance(config, Rejection) else requests,
        fault=config.detail if isinstance(config, Rejection) else "",
        others=any(classes.isdisjoint(_classes(request)) for request in devices.requests or ()),
        allocated=allocation is not None,
        allocated_at=unix_seconds(allocation.allocation_timestamp or "") if allocation else 0.0,
        results=tuple(
            ClaimResult(result.request, result.pool, result.device) for result in results if result.driver == driver
        ),
        node=_node(allocation.node_selector) if allocation and allocation.node_selector else "",
        logical_core_size=0 if isinstance(config, Rejection) else config.logical_neuron_core or 0,
        reserved_for=tuple(
            PodUid(consumer.uid)
            for consumer in claim.status.reserved_for or ()
            if consumer.resource == "pods" and consumer.uid
        ),
        finalizers=claim.metadata.finalizers or (),
    )


class _UnservedError(ValueError):
    """A claim that the placement controller cannot allocate; kube-scheduler may."""


def _classes(request: _Request) -> set[str]:
    return {exact.device_class_name for exact in (request.exactly, *(request.first_available or ())) if exact}


def _requests(devices: _Devices, driver: str, cores: int) -> tuple[ClaimRequest, ...]:
    """The requests for our devices, in order.

    Raises:
        _UnservedError: one of them cannot be judged here, with the reason.
    """
    requests = []
    for request in devices.requests or ():
        if {driver, CORE_CLASS}.isdisjoint(_classes(request)):
            continue
        exact = request.exactly
        if exact is None:
            raise _UnservedError(f"request {request.name} has alternatives (firstAvailable), expected one (exactly)")
        if exact.admin_access:
            raise _UnservedError(f"request {request.name} asks for admin access, expected one without")
        unit = Unit.CORE if exact.device_class_name == CORE_CLASS else Unit.DEVICE
        count = 0 if exact.allocation_mode == "All" else 1 if exact.count is None else exact.count
        if unit is Unit.CORE:
            if not count:
                raise _UnservedError(f"request {request.name} asks for all cores: ask for all devices instead")
            count = cores or count
        attributes = _attributes(request.name, exact.selectors or (), driver)
        requests.append(ClaimRequest(request.name, unit, count, attributes))
    ours = {request.name for request in requests}
    for constraint in devices.constraints or ():
        meant = set(constraint.requests or ()) or ours
        attribute = constraint.match_attribute or ""
        if not (meant & ours) or attribute in _SAME_ON_A_NODE:
            continue
        place = next((place for place, grouped in enumerate(requests) if grouped.name in meant), 0)
        grouped = requests[place]
        size = GROUP_ATTRIBUTES.get(attribute, 0)
        if len(meant) > 1 or grouped.unit is not Unit.DEVICE or not 0 < grouped.count <= size:
            named = attribute or constraint.distinct_attribute or "a constraint"
            raise _UnservedError(f"constraint {named} over {', '.join(sorted(meant))} cannot be judged here")
        # On nodes with groups, each valid set of so many devices is in one group anyway (topology/sets.py).
        requests[place] = replace(grouped, attributes=(*grouped.attributes, (attribute, None)))
    return tuple(requests)


_SAME_ON_A_NODE = MACHINE_ATTRIBUTES | {"neuron.aws.com/neuronDriverVersion", "neuron.aws.com/draDriverVersion"}
"""Attributes that are equal on all devices of a node, so a constraint on them has no effect."""


def _attributes(name: str, selectors: Iterable[_Selector], driver: str) -> Attributes:
    """The required attributes from selectors: conjunctions of comparisons of attributes with constants.

    Raises:
        _UnservedError: a selector says something else.
    """
    attributes: list[tuple[str, str | int | bool | None]] = []
    for selector in selectors:
        for term in selector.cel.expression.split("&&"):
            text = term.strip().removeprefix("(").removesuffix(")").strip()
            if (match := _DRIVER_COMPARISON.fullmatch(text)) and match["driver"] == driver:
                continue
            match = _COMPARISON.fullmatch(text)
            if match is None:
                expected = (
                    'expected comparisons such as device.attributes["neuron.aws.com"].deviceId == 3, joined by &&'
                )
                raise _UnservedError(f"request {name} has the selector {text[:80]!r}, {expected}")
            value: str | int | bool = match["text"] or ""
            if match["number"] is not None:
                value = int(match["number"])
            elif match["bool"] is not None:
                value = match["bool"] == "true"
            attribute = f"{match['domain']}/{match['name']}"
            if attribute not in GROUP_ATTRIBUTES and attribute not in MACHINE_ATTRIBUTES:
                raise _UnservedError(f"request {name} wants {attribute} to be {value!r}, which cannot be judged here")
            attributes.append((attribute, value))
    return tuple(attributes)


def _config(configs: Iterable[_Config], drivers: Collection[str]) -> _NeuronConfig | Rejection:
    """The configuration for our devices. The claim's configuration replaces that of its class, which comes first.

    All requests of a claim share one: two different configurations are refused.
    """
    last, from_claim = _NeuronConfig(), set[_NeuronConfig]()
    for stated in configs:
        if stated.opaque is None or stated.opaque.driver not in drivers:
            continue
        try:
            config = msgspec.json.decode(stated.opaque.parameters, type=_NeuronConfig)
        except UNREADABLE as error:
            return replace(INVALID_REQUEST, detail=f"the claim's configuration cannot be read: {error}")
        if config.kind != CONFIG_KIND:
            detail = f"the claim's configuration is a {config.kind!r}, expected {CONFIG_KIND}"
            return replace(INVALID_REQUEST, detail=detail)
        if config.logical_neuron_core not in {None, 1, 2}:
            detail = f"the claim's logicalNeuronCore is {config.logical_neuron_core}, expected 1 or 2"
            return replace(INVALID_REQUEST, detail=detail)
        if config.cores is not None and not 0 < config.cores <= MOST_CORES:
            return replace(INVALID_REQUEST, detail=f"the claim's cores are {config.cores}, expected 1 to {MOST_CORES}")
        last = config
        if stated.source != "FromClass":
            from_claim.add(config)
    if len(from_claim) > 1:
        detail = f"the claim has {len(from_claim)} configurations that differ, expected one for all of its requests"
        return replace(INVALID_REQUEST, detail=detail)
    return last


def _node(selector: WireNodeSelector) -> str:
    """The node in an allocation; kube-scheduler and the placement controller both write its name."""
    for term in selector.terms:
        for requirement in (*term.fields, *term.expressions):
            if requirement.key in {"metadata.name", "kubernetes.io/hostname"} and len(requirement.values) == 1:
                return requirement.values[0]
    return ""


def allocation_of(driver: str, node: str, results: Iterable[ClaimResult], time: str) -> JsonObject:
    """The ``status.allocation`` of a claim for our devices alone, on one node.

    ``time`` (RFC 3339) is required: otherwise kube-scheduler would set it when it reserves the claim for its pod, and
    the API server refuses changes of an allocation.
    """
    return {
        "devices": {
            "results": [
                {"request": result.request, "driver": driver, "pool": result.pool, "device": result.device}
                for result in results
            ]
        },
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        },
        "allocationTimestamp": time,
    }
